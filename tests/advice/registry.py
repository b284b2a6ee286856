"""Note which test carries out which next step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", bound=Callable[..., object])

LED_OUT: dict[tuple[str, str], str] = {}
"""Tests of this folder, by the file that names the step and a part of its text."""


def leads_out_of(file: str, *parts: str) -> Callable[[T], T]:
    """Mark the test that builds the state in which these steps of a file are given, does what they say, and sees that
    it has led out."""

    def decorate(test: T) -> T:
        for part in parts:
            assert (file, part) not in LED_OUT, f"{file}: {part!r} is executed twice"
            LED_OUT[file, part] = test.__name__
        return test

    return decorate
