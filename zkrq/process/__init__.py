"""A worker as a process: signals, exit codes, probes, and the supervisor of several processes."""
