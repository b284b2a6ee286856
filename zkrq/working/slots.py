"""Divide the slots of a worker among its queues, by weight.  Nothing here waits: a queue is called when it gets a slot.

An item occupies one slot while it is worked on.  If several queues want slots, each gets its share by weight; a queue
that wants none leaves its share to the others, and gets it back as slots become free.

Shares are seldom whole numbers: three slots by weights of 3 and 1 are 2.25 and 0.75.  So a queue below its share, if
only by a fraction of a slot, may have one more; among such queues the one goes first that has been given least for its
weight.  In the long run the fractions even out over the number of items ("start-time fair queueing": Goyal et al.,
1996).  Its virtual time is ``served`` here.  A queue that wanted nothing for a while restarts at that of the last one
served; otherwise it would get all slots until it had caught up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Share:
    """The slots of one queue."""

    weight: float
    woken: Callable[[], object]
    """Called when the queue was granted a slot."""
    wanted: int = 0
    """Slots that the queue could use, including those that it was granted and has not taken."""
    occupied: int = 0
    """Slots that no other queue can have: granted ones, taken ones, and those of running items."""
    granted: int = 0
    """Part of ``occupied`` that the queue has not taken yet."""
    idle: bool = True
    """Whether the queue has wanted nothing since it last left."""
    served: float = 0.0
    """Slots granted to the queue so far, divided by its weight."""


class Slots:
    """Grant slots to the queues that want them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._shares: list[Share] = []
        self._served = 0.0

    def add(self, weight: float, woken: Callable[[], object]) -> Share:
        """Add a queue."""
        share = Share(weight, woken)
        self._shares.append(share)
        return share

    @property
    def free(self) -> int:
        """Number of slots that no queue occupies."""
        return self.count - sum([share.occupied for share in self._shares])

    def whole_share(self, share: Share) -> int:
        """Return the whole slots in a queue's share of all slots."""
        return math.floor(self.count * share.weight / sum(each.weight for each in self._shares))

    def want(self, share: Share, count: int) -> None:
        """Note that a queue could use this many slots, and grant the free ones."""
        if share.idle:  # it has no claim to slots that it left to others
            share.served = max(share.served, self._served)
        share.idle = False
        share.wanted = count
        self._grant()

    def take(self, share: Share, most: int) -> int:
        """Take up to ``most`` of the granted slots; return how many."""
        count = min(share.granted, most)
        share.granted -= count
        share.wanted = max(0, share.wanted - count)
        return count

    def leave(self, share: Share, unused: int = 0) -> None:
        """Return the granted slots, and ``unused`` of the taken ones, because the queue wants no more now."""
        unused += share.granted
        share.idle, share.wanted, share.granted = True, 0, 0
        share.occupied -= unused
        share.served -= unused / share.weight
        self._grant()

    def end(self, share: Share) -> None:
        """Free the slot of an item that is done."""
        share.occupied -= 1
        self._grant()

    def _grant(self) -> None:
        free = self.free
        while free > 0 and (wanting := [share for share in self._shares if share.wanted > share.granted]):
            share = next_share(wanting, self.count)
            self._served = share.served
            share.served += 1 / share.weight
            share.occupied += 1
            share.granted += 1
            share.woken()
            free -= 1


def next_share(wanting: Sequence[Share], count: int) -> Share:
    """Choose which queue gets a free slot of ``count``: the least served one of those below their share."""
    if len(wanting) == 1:
        return wanting[0]
    total = sum(share.weight for share in wanting)
    below = [share for share in wanting if share.occupied * total < count * share.weight]
    return min(below or wanting, key=lambda share: share.served)
