"""Run handlers in child processes, under the client of their parent."""
