"""Repair servers: catch-up, recovery, scrub; and fence dead consumers."""
