"""Decide what one shard of a queue is asked for when several could serve the same consumers.

Shards that had more items ready than they were asked for are asked in turn, one at a time, for all that is wanted.  The
others, which may be empty, are asked only if there is no such shard, all at the same time.  So a process claims as much
at a time as it would from a single shard, and one consumer of four shards does not claim four items for one.

Nothing here waits or reads a clock: ``now`` is ``loop.time()``, in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

LATE_SECONDS = 0.1
"""Seconds after which a request no longer counts: other shards are asked for what it is about."""

PROBE_SECONDS = 0.5
"""Seconds between two looks at a shard that had nothing, while consumers are served by other shards."""


class Standing(Protocol):
    """What the last requests have shown of a shard."""

    @property
    def is_dry(self) -> bool:
        """Whether nothing was left there."""
        ...

    @property
    def asking(self) -> int:
        """Items asked for by the request in flight."""
        ...

    @property
    def is_late(self) -> bool:
        """Whether that request has been in flight for ``LATE_SECONDS``."""
        ...


def asked_of(wanted: int, own: Standing, before: Sequence[Standing], after: Sequence[Standing]) -> int:
    """Return how many of the items that the consumers want a shard is asked for.

    ``before`` and ``after``: the shards that were asked less recently than this one, and more recently.
    """
    others = (*before, *after)
    rivals = _with_items(others)
    if own.is_dry:
        return 0 if rivals else -(-wanted // (1 + len(others)))
    if _with_items(before) or any(rival.asking for rival in rivals):
        return 0
    return max(0, wanted - sum(other.asking for other in others if not other.is_late))


def is_spared(own: Standing, others: Sequence[Standing]) -> bool:
    """Tell whether a shard is asked for nothing because others have items."""
    return own.is_dry and bool(_with_items(others))


def _with_items(standings: Sequence[Standing]) -> list[Standing]:
    return [each for each in standings if not each.is_dry and not each.is_late]
