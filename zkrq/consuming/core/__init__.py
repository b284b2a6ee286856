"""Decide what happens to the claims of a queue in this process, without I/O, clock and chance."""
