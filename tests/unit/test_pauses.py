"""Pauses between attempts: doubled, and bounded."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from zkrq.base.pauses import doubled


def test_pauses_until_the_longest() -> None:
    assert [doubled(0.5, times, most=3.0) for times in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@given(st.floats(1e-3, 1e3), st.integers(0, 10**9), st.floats(1e-3, 1e9))
def test_pause_is_a_number_within_bounds(first: float, times: int, most: float) -> None:
    pause = doubled(first, times, most=most)
    assert math.isfinite(pause)
    assert min(first, most) <= pause <= most
