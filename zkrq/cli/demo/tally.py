"""Count what becomes of every item.  Plain values, no I/O.

Moments are ``time.monotonic()``, which all processes of one machine share: reports of different consumers may arrive in
any order, and are judged by the time at which they were made.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from dataclasses import dataclass


class Report(enum.StrEnum):
    """A consumer's report about an item."""

    DELIVERED = "delivered"  # a handler has begun
    FINISHED = "finished"  # the handler is done, its ack is sent next
    ACKED = "acked"  # the ack has returned
    DROPPED = "dropped"  # the claim was lost: another consumer may have the item


class Gap:
    """Find the longest time between two successive moments."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._last: float | None = None

    def note(self, at: float) -> None:
        if self._last is not None:
            self.longest = max(self.longest, at - self._last)
        self._last = at if self._last is None else max(at, self._last)


@dataclass(frozen=True, slots=True)
class Result:
    """The demo's result.

    redelivered: deliveries of an item beyond its first.
    unheard: items whose consumer was killed while it waited for the ack's answer, and that were not delivered again.
    lost: items whose push returned and that are neither done nor unheard.
    retried: pushes made again under the same id.
    longest_push_gap, longest_ack_gap: seconds between two that returned, while producers were pushing.
    """

    pushed: int
    delivered: int
    done: int
    unheard: int
    redelivered: int
    retried: int
    lost: int
    delivered_after_ack: int
    longest_push_gap: float
    longest_ack_gap: float
    troubles: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether every promise was kept, and the demo went as planned."""
        return not (self.lost or self.delivered_after_ack or self.troubles)


class Tally:
    """Count the items of one demo, by id."""

    def __init__(self) -> None:
        self.retried = 0
        self.delivered = 0
        self.troubles: list[str] = []
        self._pushed: set[str] = set()
        self._deliveries: Counter[str] = Counter()
        self._last_delivery: dict[str, float] = {}
        self._first_ack: dict[str, float] = {}
        self._in_hand: defaultdict[str, set[str]] = defaultdict(set)
        self._acking: defaultdict[str, set[str]] = defaultdict(set)
        self._cut_short: set[str] = set()
        self._measuring = True
        self._push_gap = Gap()
        self._ack_gap = Gap()

    # -- events ----------------------------------------------------------------------------------------------------

    def note_push(self, id: str, at: float) -> None:
        """Note that a push has returned."""
        self._pushed.add(id)
        self._push_gap.note(at)

    def note(self, consumer: str, report: Report, id: str, at: float) -> None:
        """Note a consumer's report."""
        match report:
            case Report.DELIVERED:
                self.delivered += 1
                self._deliveries[id] += 1
                self._last_delivery[id] = max(at, self._last_delivery.get(id, at))
                self._in_hand[consumer].add(id)
            case Report.FINISHED:
                self._in_hand[consumer].discard(id)
                self._acking[consumer].add(id)
            case Report.ACKED:
                self._first_ack[id] = min(at, self._first_ack.get(id, at))
                self._lay_down(consumer, id)
                if self._measuring:
                    self._ack_gap.note(at)
            case Report.DROPPED:
                self._lay_down(consumer, id)

    def note_death(self, consumer: str) -> None:
        """Note that a consumer was killed, after all its reports.

        Items that it was acking just then have been worked on to the end, and are acked or will be delivered again.
        """
        self._cut_short |= self._acking.pop(consumer, set())
        self._in_hand.pop(consumer, None)

    def stop_measuring(self) -> None:
        """Stop measuring the gaps between acks, because no producer pushes any more."""
        self._measuring = False

    def _lay_down(self, consumer: str, id: str) -> None:
        self._in_hand[consumer].discard(id)
        self._acking[consumer].discard(id)

    # -- results ---------------------------------------------------------------------------------------------------

    @property
    def pushed(self) -> int:
        return len(self._pushed)

    @property
    def done(self) -> int:
        return len(self._first_ack)

    @property
    def redelivered(self) -> int:
        return self.delivered - len(self._deliveries)

    def in_hand(self, consumer: str) -> int:
        """Count the items that this consumer works on, without those that it is acking."""
        return len(self._in_hand.get(consumer, ()))

    def unfinished(self) -> set[str]:
        """Return the ids that were pushed and that no consumer has finished; after the end, these are lost."""
        return self._pushed - self._first_ack.keys() - self._cut_short

    def result(self) -> Result:
        after_ack = sum(self._last_delivery[id] > at for id, at in self._first_ack.items())
        return Result(
            pushed=self.pushed,
            delivered=self.delivered,
            done=self.done,
            unheard=len(self._cut_short - self._first_ack.keys()),
            redelivered=self.redelivered,
            retried=self.retried,
            lost=len(self.unfinished()),
            delivered_after_ack=after_ack,
            longest_push_gap=self._push_gap.longest,
            longest_ack_gap=self._ack_gap.longest,
            troubles=tuple(self.troubles),
        )
