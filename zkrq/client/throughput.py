"""Count what passes through a queue, from two looks at it.  Pure."""

from __future__ import annotations

from typing import NamedTuple


class Passed(NamedTuple):
    """Count the items that came to a queue, and those that left it, between two looks."""

    pushed: int
    removed: int


class Throughput(NamedTuple):
    """Count the items that ever came to a queue, and those that left it, as far as its primary knows.

    ``removed``: acked, cancelled, cleared, discarded, dropped or expired items.  ``server``: the primary, which counts
    since it has had the queue.  So two looks can be compared, and one alone says little.
    """

    pushed: int
    removed: int
    server: str

    def since(self, before: Throughput) -> Passed | None:
        """Count what has passed since an earlier look.

        None if that is not known: another server counted then, or it has begun anew, because the queue was forgotten
        after a time without items.
        """
        if before.server != self.server or before.pushed > self.pushed or before.removed > self.removed:
            return None
        return Passed(self.pushed - before.pushed, self.removed - before.removed)


NO_THROUGHPUT = Throughput(0, 0, "")
"""The throughput of a queue that was never looked at."""
