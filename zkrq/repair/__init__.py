"""Servers that come back: catch-up, recovery, scrub."""
