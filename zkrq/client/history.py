"""Read which items of a queue have ended last (``lua/_endings.lua``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from zkrq.base import clock
from zkrq.base.reasons import split
from zkrq.base.results import ResultState
from zkrq.protocol import calls

if TYPE_CHECKING:
    from zkrq.replication.replicas import Replicas

PAGE = 500
"""Items that one call reads."""

_ENDS: Mapping[bytes, ResultState] = {
    b"A": ResultState.DONE,
    b"D": ResultState.DEAD,
    b"X": ResultState.CANCELLED,
    b"E": ResultState.EXPIRED,
}
"""The end that each letter of a server's reply stands for (``lua/history.lua``)."""


@dataclass(frozen=True, slots=True)
class EndedItem:
    """An item that has ended, and how.

    ``state``: done, dead, cancelled or expired.  ``took``: seconds from the beginning of its last claim until its end,
    and ``owner``: the owner id of that consumer; None if no consumer ended it.  ``attempts``: deliveries that were not
    released.  ``reason``: of a dead letter.  ``key``, ``group``: None if it had none.  Its payload is gone, unless it
    is a dead letter; its result is kept for the ``ttl`` of ``Results``.
    """

    id: str
    state: ResultState
    ended_at: datetime
    took: float | None
    owner: str | None
    attempts: int
    key: str | None
    group: str | None
    reason: str | None


async def read_history(queue: str, n: int, replicas: Replicas) -> list[EndedItem]:
    """Return the ``n`` items of one shard that have ended last, the latest first.  Raises ``Unavailable``."""
    found: dict[bytes, EndedItem] = {}
    for passed in range(0, n, PAGE):
        now, told = clock.now(), await replicas.ask(calls.History(queue, passed, min(PAGE, n - passed)))
        found = {row.id: _ended(row, now) for row in told.items} | found  # those that came since move the others on
        if passed + PAGE >= told.kept:
            break
    return sorted(found.values(), key=lambda item: item.ended_at, reverse=True)[:n]


def _ended(row: calls.EndedRow, now: datetime) -> EndedItem:
    took_us, (reason, _) = int(row.took_us), split(row.text.decode(errors="replace"))
    return EndedItem(
        row.id.decode(errors="replace"),
        _ENDS[row.state],
        now - timedelta(microseconds=int(row.age_us)),
        None if took_us < 0 else took_us / 1_000_000,
        row.owner.decode(errors="replace") or None,
        row.attempts,
        row.key.decode(errors="replace") or None,
        row.group.decode(errors="replace") or None,
        reason,
    )
