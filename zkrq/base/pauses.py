"""Compute the pauses between the attempts of something that keeps failing."""

from __future__ import annotations

MAX_DOUBLINGS = 64
"""Doublings after which a pause stops growing, so that it stays a finite number."""


def doubled(first: float, times: int, *, most: float) -> float:
    """Double ``first`` seconds this many times; return at most ``most`` seconds."""
    return min(most, first * 2.0 ** min(times, MAX_DOUBLINGS))
