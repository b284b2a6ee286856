"""Plan the amount of work: the default run takes twenty-five minutes, the quick one about four."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """``quick`` shortens everything that takes long; the figures are rougher, and some rows are left out."""

    quick: bool = False

    @property
    def repetitions(self) -> int:
        return 1 if self.quick else 3

    def items(self, usual: int) -> int:
        """Return how many items to measure with."""
        return max(200, usual // 4) if self.quick else usual

    def seconds(self, usual: float) -> float:
        """Return how long to measure, in seconds."""
        return usual / 4 if self.quick else usual

    def rows(self, usual: tuple[T, ...], quick: tuple[T, ...]) -> tuple[T, ...]:
        """Return which rows a table has."""
        return quick if self.quick else usual
