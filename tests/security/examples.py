"""How many examples of hostile input are tried: FUZZ_EXAMPLES, or enough for every run of the tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "30"))


def fuzz(share: float = 1.0) -> Callable[[Any], Any]:
    """Settings for examples that cost as many times less or more."""
    return settings(
        max_examples=max(5, round(EXAMPLES * share)),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
