"""Read which items of a queue have ended last (``lua/_endings.lua``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zkrq.client.items import EndedItem, ended_item
from zkrq.protocol import calls

if TYPE_CHECKING:
    from zkrq.replication.replicas import Replicas

PAGE = 500
"""Items that one call reads."""


async def read_history(queue: str, n: int, replicas: Replicas) -> list[EndedItem]:
    """Return the ``n`` items of one shard that have ended last, the latest first.  Raises ``Unavailable``."""
    found: dict[bytes, EndedItem] = {}
    for passed in range(0, n, PAGE):
        told = await replicas.ask(calls.History(queue, passed, min(PAGE, n - passed)))
        found = {row.id: ended_item(row) for row in told.items} | found  # those that came since move the others on
        if passed + PAGE >= told.kept:
            break
    return sorted(found.values(), key=lambda item: item.ended_at, reverse=True)[:n]
