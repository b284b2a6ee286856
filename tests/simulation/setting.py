"""Choose the size of a seed, the settings of its queues, and which of the rarer calls are made, for all clients."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.simulation.servers import Pace
from zkrq import DeadLetters, Groups, Limits
from zkrq.protocol.clocks import CLOCK_BOUND
from zkrq.protocol.recurring import MISSED, Missed

_POLICIES = (
    None,
    DeadLetters(expired=True),
    DeadLetters(max_count=2),
    DeadLetters(max_age=5.0),
    DeadLetters(max_count=3, max_age=15.0, expired=True),
)


_LIMITS = (None, Limits(concurrency=4), Limits(rate=(6, 1.0)), Limits(concurrency=8, rate=(15, 2.5)))
_GROUP_RATES = (None, (4, 1.0), (12, 2.5))


@dataclass(frozen=True, slots=True)
class Setting:
    """``keyed``, ``expiring``: which part of the pushes has one of the ``keys``, or a time to live;
    ``replacing``: which part of those with a key takes the place of queued items."""

    keys: tuple[str, ...]
    keyed: float
    expiring: float
    max_size: int | None
    dead_letters: DeadLetters | None
    clears: bool
    pauses: bool
    deletes: bool = False
    every: float = 0.0
    """Seconds between two pushes that recur, 0: none do."""
    catch_up: float = 240.0
    """Seconds by which such a push may be late."""
    missed: Missed = "last"
    """Which of several that are due are made."""
    limits: Limits | None = None
    replacing: float = 0.0
    together: int = 6
    """How many items a call pushes at most, or calls that leave together."""
    groups: int = 0
    """Into how many groups items are pushed, 0: into none."""
    all_grouped: bool = False
    """Whether items without a group are one of their own."""
    group_limit: int | None = None
    """Items of each group claimed at once."""
    ordered: bool = False
    """Whether groups keep the order of their pushes."""
    group_rate: tuple[int, float] | None = None
    """Claims of each group begun in a time, in seconds."""
    holds_group: bool = True
    """Whether a failed item holds such a group while it waits."""
    windows: float = 0.0
    """Which part of the pushes with a key that replace nothing has a window."""

    @property
    def declared_groups(self) -> Groups | None:
        """What is declared of groups: where several have limits, the first one has its own."""
        if not self.all_grouped:
            return None
        limit, rate, own = self.group_limit, self.group_rate, dict[str, Limits]()
        if self.groups > 1 and (limit or rate):
            own["group 0"] = Limits(None if self.ordered else (limit or 2) + 1, rate and (2, rate[1] / 2))
        return Groups(limit, self.ordered, rate, own)

    def groups_option(self, *, declares: bool) -> Groups | None:
        """That of a program, which may declare nothing; where an order is kept it need not know of groups at all."""
        if declares or not self.all_grouped:
            return self.declared_groups
        return None if self.ordered else Groups()

    @property
    def results(self) -> bool:
        """Whether consumers ack with results, for which others ask."""
        return self.together == 15

    @property
    def history(self) -> int | None:
        """How many items that have ended are kept; where other things are declared of the queue, too."""
        is_declared = self.limits is not None or self.ordered or self.group_limit is not None
        return self.together if is_declared else None

    @property
    def of_all_releases(self) -> Setting:
        """The same without options of the queue that only the latest level has."""
        return replace(
            self,
            limits=None,
            group_limit=None,
            group_rate=None,
            ordered=False,
            holds_group=True,
            all_grouped=False,
            together=14 if self.results else self.together,
        )

    @property
    def drops_letters(self) -> bool:
        """Whether consumers drop some dead letters."""
        letters = self.dead_letters
        return letters is not None and (letters.max_age is not None or (letters.max_count or 1_000) < 1_000)

    @property
    def keeps_expired(self) -> bool:
        """Whether what has expired becomes a dead letter."""
        return self.dead_letters is not None and self.dead_letters.expired


def draw_lateness(drawn: Setting, chance: random.Random) -> Setting:
    """The same with how late a push that recurs may be.  The keys of such pushes are forgotten within a day."""
    return replace(drawn, catch_up=chance.choice((30.0, 240.0, 500.0)), missed=chance.choice(MISSED))


FREE = Pace()

_LOADS = (
    (FREE, 0),
    (Pace(seconds_an_element=100e-6, seconds_a_byte=1e-8), 0),  # a scan of a thousand elements takes 0.1 s
    (Pace(seconds_an_element=1e-6, seconds_a_byte=3e-7), 100_000),  # 3 MB a second: ten items take 0.3 s
)
"""What work costs in a seed, and the ballast of its items."""


class Shape(NamedTuple):
    """How large a seed is: most are small, so that there can be many."""

    servers: int
    min_replicas: int
    queues: int
    seconds: float
    """How long clients produce; faults begin within a little longer."""
    clocks: float = 2.0
    """Seconds by which any clock may be wrong."""
    days: int = 0
    """How many days pass afterwards, on each of which ids of the first one are used again."""
    pace: Pace = FREE
    """What work costs on the servers and on the way."""
    ballast: int = 0
    """Bytes by which each item is larger than it need be."""


def draw_shape(chance: random.Random) -> Shape:
    """A seed's size."""
    servers = chance.choices((2, 3, 4, 5), (2, 8, 2, 1))[0]
    min_replicas = min(servers, chance.choices((1, 2, 3), (2, 8, 2))[0])
    queues, seconds = chance.choices((1, 2, 3), (7, 2, 1))[0], chance.choices((8.0, 15.0, 30.0), (4, 3, 2))[0]
    clocks = chance.choices((2.0, 30.0, CLOCK_BOUND / 2), (6, 1, 1))[0]
    days = chance.choices((0, 1, 2), (12, 2, 1))[0]
    pace, ballast = chance.choices(_LOADS, (10, 1, 1))[0]
    return Shape(servers, min_replicas, queues, seconds, clocks, days, pace, ballast)


def draw(chance: random.Random) -> Setting:
    """The setting of one queue."""
    drawn = Setting(
        keys=tuple(f"key {number}" for number in range(chance.choice((1, 2, 3)))),
        keyed=chance.choice((0.0, 0.2, 0.2, 0.6)),
        expiring=chance.choice((0.0, 0.1, 0.1, 0.4)),
        max_size=chance.choice((None, None, None, None, None, chance.randint(3, 12))),
        dead_letters=chance.choices(_POLICIES, (12, 3, 2, 2, 2))[0],
        clears=chance.random() < 0.1,
        pauses=chance.random() < 0.2,
        every=chance.choices((0.0, 2.0, 5.0), (8, 1, 1))[0],
        together=chance.choices((6, 15, 40), (6, 3, 1))[0],
        deletes=chance.random() < 0.25,
        replacing=chance.choice((0.0, 0.0, 0.3, 0.6)),
        groups=chance.choices((0, 1, 3, 8), (5, 1, 3, 1))[0],
        all_grouped=chance.random() < 0.3,
    )
    # Drawn last, so that everything else is as it was without them.  A deletion takes them away.
    limits = chance.choices(_LIMITS, (8, 2, 1, 1))[0]
    group_limit = chance.choice((None, 1, 2)) if drawn.groups else None
    ordered = drawn.groups > 0 and chance.random() < 0.4
    holds_group = not ordered or chance.random() < 0.7
    if chance.random() < 0.25:
        drawn = replace(drawn, windows=0.8, keyed=0.6)
    if drawn.deletes:
        return drawn
    group_limit = None if ordered else group_limit
    group_rate = chance.choices(_GROUP_RATES, (3, 1, 1))[0] if drawn.groups else None
    is_grouped = drawn.all_grouped or group_limit is not None or ordered or group_rate is not None
    drawn = replace(drawn, limits=limits, group_limit=group_limit, all_grouped=is_grouped)
    return replace(drawn, ordered=ordered, holds_group=holds_group, group_rate=group_rate)
