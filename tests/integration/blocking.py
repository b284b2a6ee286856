"""Wait in a thread of the test for what happens in others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.harness import HANG
from zkrq import sync


def take(queue: sync.Queue[Any]) -> sync.Claim[Any]:
    """One claim, which must come."""
    claim = queue.pop_one(timeout=HANG)
    assert claim is not None
    return claim


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
