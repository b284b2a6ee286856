"""How large a seed is, what its queues are like, and which of the rarer calls are made: for all clients the same."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from zkrq import DeadLetters

_POLICIES = (
    None,
    DeadLetters(expired=True),
    DeadLetters(max_count=2),
    DeadLetters(max_age=5.0),
    DeadLetters(max_count=3, max_age=15.0, expired=True),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """``keyed``, ``expiring``: which part of the pushes has one of the ``keys``, or a time to live."""

    keys: tuple[str, ...]
    keyed: float
    expiring: float
    max_size: int | None
    dead_letters: DeadLetters | None
    clears: bool
    pauses: bool

    @property
    def drops_letters(self) -> bool:
        """Whether consumers drop some dead letters."""
        letters = self.dead_letters
        return letters is not None and (letters.max_age is not None or (letters.max_count or 1_000) < 1_000)

    @property
    def keeps_expired(self) -> bool:
        """Whether what has expired becomes a dead letter."""
        return self.dead_letters is not None and self.dead_letters.expired


class Shape(NamedTuple):
    """How large a seed is: most are small, so that there can be many."""

    servers: int
    min_replicas: int
    queues: int
    seconds: float
    """How long clients produce; faults begin within a little longer."""


def draw_shape(chance: random.Random) -> Shape:
    """A seed's size."""
    servers = chance.choices((2, 3, 4, 5), (2, 8, 2, 1))[0]
    min_replicas = min(servers, chance.choices((1, 2, 3), (2, 8, 2))[0])
    queues, seconds = chance.choices((1, 2, 3), (7, 2, 1))[0], chance.choices((8.0, 15.0, 30.0), (4, 3, 2))[0]
    return Shape(servers, min_replicas, queues, seconds)


def draw(chance: random.Random) -> Setting:
    """The setting of one queue."""
    return Setting(
        keys=tuple(f"key {number}" for number in range(chance.choice((1, 2, 3)))),
        keyed=chance.choice((0.0, 0.2, 0.2, 0.6)),
        expiring=chance.choice((0.0, 0.1, 0.1, 0.4)),
        max_size=chance.choice((None, None, None, None, None, chance.randint(3, 12))),
        dead_letters=chance.choices(_POLICIES, (12, 3, 2, 2, 2))[0],
        clears=chance.random() < 0.1,
        pauses=chance.random() < 0.2,
    )
