"""Find out of which ids a queue has no item, for calls that skip these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zkrq.base.tasks import together

if TYPE_CHECKING:
    from zkrq.client.queue import Queue

LOOKED_UP_TOGETHER = 50
"""Ids that are looked up at the same time."""


async def find_missing(queue: Queue[Any], ids: Sequence[str], changed: int = 0) -> list[str]:
    """Return the ids of which the queue has no item in any state, in their order.

    ``changed``: of how many a call has changed the item; if of all, none is looked up.  Raises ``Unavailable``.
    """
    wanted, missing = list(dict.fromkeys(ids)), list[str]()
    if changed >= len(wanted):
        return missing
    for start in range(0, len(wanted), LOOKED_UP_TOGETHER):
        some = wanted[start : start + LOOKED_UP_TOGETHER]
        found = await together(map(queue.get, some))
        missing += [id for id, item in zip(some, found, strict=True) if item is None]
    return missing
