"""Simulate a Redis server inside the process: as much of one as zkrq needs, with the real scripts."""
