"""The worker: calls a handler for each claimed item."""
