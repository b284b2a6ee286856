"""Decide how many items to claim ahead for the consumers of a queue, and how many of those to hand back.

An item that was claimed ahead costs its consumer no round trip, but other processes do not get it.  So a stream without
a ``prefetch`` claims ahead what it takes in ``PREFETCH_SECONDS`` at its recent pace, and items that its consumers will
not take soon go back within about twice ``AHEAD_SECONDS``.

Nothing here waits or reads a clock: ``now`` is ``loop.time()``, in seconds.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

CLAIM_MAX = 500
"""Greatest number of items claimed in one request."""

AHEAD_MAX = 2 * CLAIM_MAX
"""Greatest number of items claimed ahead from one shard: consumers take those of one request while the next is made."""

PREFETCH_SECONDS = 0.1
"""Seconds of work claimed ahead for streams without a ``prefetch`` of their own."""

AHEAD_BYTES = 4 << 20
"""Bytes of payloads claimed ahead, estimated by the mean size of recent ones."""

MEAN_OVER = 4
"""Approximate number of claim requests over which the mean size of payloads is taken."""

AHEAD_SECONDS = 0.5
"""Seconds between two checks of the items claimed ahead.  An item waits at most twice as long for a consumer that takes
nothing."""


class PrefetchLimit(NamedTuple):
    """Limit the items claimed ahead for a stream to ``most``, None: to its pace.

    ``fixed``: the user asked for exactly that many, and the stream keeps them even while it takes none.  ``at_once``:
    items that it takes together, so that nothing less is claimed ahead for its pace.
    """

    most: int | None
    fixed: bool = False
    at_once: int = 1


class Pace:
    """Measure how fast the consumers of a queue take items."""

    def __init__(self) -> None:
        self.streams: Counter[PrefetchLimit] = Counter()
        self.shards = 1
        """Shards that are claimed from; at most ``AHEAD_MAX`` items are claimed ahead from each."""
        self.target = 0
        """Items to have claimed ahead."""
        self.fixed = 0
        """Part of ``target`` that streams asked for and keep."""
        self.eager = 0
        """Items that the streams for which items may be claimed ahead take at once: one each, or a batch."""
        self.at_once = 1
        """Items that the stream with the largest batches takes at once."""
        self.taken = 0
        """Items that consumers have taken so far.  The caller that hands one out adds to it."""
        self.limited = False
        """Whether the queue has limits: then nothing is claimed ahead, because it would hold a slot."""
        self._has_begun = False
        self._since = 0.0, 0  # when the measurement began, and ``taken`` at that time
        self._checked = 0.0, 0  # the same for the last check for untaken items
        self._stalled = False
        self._mean_bytes = 0.0

    def begin(self, now: float) -> None:
        """Start to measure, unless that has begun."""
        if not self._has_begun:
            self._has_begun = True
            self._since = self._checked = now, 0

    def join(self, limit: PrefetchLimit) -> None:
        """Add a stream."""
        self.streams[limit] += 1
        self.eager += _eager(limit)
        self.at_once = max(self.at_once, limit.at_once)
        self._stalled = False

    def leave(self, limit: PrefetchLimit) -> None:
        """Remove a stream."""
        self.streams[limit] -= 1
        self.eager -= _eager(limit)
        self.streams += Counter[PrefetchLimit]()  # drops the limits that no stream has
        if limit.at_once > 1:
            self.at_once = max([each.at_once for each in self.streams], default=1)

    def change(self, limit: PrefetchLimit, now: PrefetchLimit) -> None:
        """Give a stream another limit."""
        self.streams[limit] -= 1
        self.streams[now] += 1
        self.eager += _eager(now) - _eager(limit)

    def note_claimed(self, now: float, *, items: int, size: int, buffer_was_empty: bool) -> None:
        """Note the items that a claim request returned, and the bytes of their payloads."""
        if items:
            self._mean_bytes += (size / items - self._mean_bytes) / (MEAN_OVER if self._mean_bytes else 1)
        if buffer_was_empty:
            self._checked = now, self.taken

    def adapt(self, now: float, *, is_certain: bool) -> None:
        """Set ``target`` and ``fixed``: what streams asked for, plus the recent pace of the others.

        A stream with a limit gets all of it from the start, so that a short one needs a single request; once it has
        taken nothing for ``AHEAD_SECONDS``, it gets its pace.  Nothing is claimed ahead while the session is not
        certain, because then other clients may fence this process; nor from a queue with limits.
        """
        since, taken_before = self._since
        taken, elapsed = self.taken - taken_before, now - since
        # The first item tells no pace: a slow consumer has nothing claimed ahead, and so nothing to hand back.
        lately = int(max(0, taken - 1) / max(elapsed, PREFETCH_SECONDS) * PREFETCH_SECONDS)
        self.fixed = expected = 0
        for (most, fixed, at_once), streams in self.streams.items():
            if fixed:
                self.fixed += (most or 0) * streams
            elif most is None:
                # Part of a batch saves its consumer no request: it asks for the rest in any case.
                expected = max(expected, lately - lately % at_once)
            else:
                expected = max(expected, min(most * streams, lately) if self._stalled else most * streams)
        self.target = min(AHEAD_MAX * self.shards, self.fixed + expected, int(AHEAD_BYTES / max(1.0, self._mean_bytes)))
        if not is_certain or self.limited:
            self.target = 0
        if self.limited:
            self.fixed = 0
        if elapsed > PREFETCH_SECONDS:
            self._since = now - elapsed / 2, self.taken - taken // 2

    def surplus(self, now: float, buffered: int) -> int:
        """Return how many of the items claimed ahead will not be taken before the next check, by the pace since the
        last one.

        0 between two checks.
        """
        checked_at, taken = self._checked
        if now - checked_at < AHEAD_SECONDS:
            return 0
        self._checked = now, self.taken
        moved = self.taken - taken
        expected = self.fixed + int(moved / (now - checked_at) * AHEAD_SECONDS)
        if buffered <= expected:
            return 0
        self._stalled = moved == 0
        self._since = checked_at, taken  # so that it is not claimed again at an older pace
        return buffered - expected

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - What streams take at once is the sum over those that there are: with more, items are claimed for consumers
          that never come, and with less, each of them waits for a request of its own.
        - Nothing is measured from a moment at which more was taken than is by now: the pace would be negative.
        - Nothing negative is claimed ahead, nor kept of it.
        """
        assert min(self.streams.values(), default=0) >= 0, f"more streams left than came: {self.streams}"
        eager = sum(_eager(limit) * streams for limit, streams in self.streams.items())
        assert self.eager == eager, f"{self.eager} items are taken at once, of {eager}"
        largest = max((limit.at_once for limit, streams in self.streams.items() if streams), default=1)
        assert self.at_once >= largest, f"batches of {self.at_once}, of {largest}"
        assert max(self._since[1], self._checked[1]) <= self.taken, "more was taken before than by now"
        assert self.target >= 0 <= self.fixed, f"{self.target} items are claimed ahead, {self.fixed} are kept"


def _eager(limit: PrefetchLimit) -> int:
    """Return how many items a stream takes at once, 0 if nothing may be claimed ahead for it."""
    return 0 if limit.most == 0 else limit.at_once
