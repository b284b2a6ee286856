"""Read what the holders of claims have reported of their progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zkrq.base.progress import WorkProgress, decode_report
from zkrq.protocol.calls import ToldReports

if TYPE_CHECKING:
    from zkrq.replication.replicas import Replicas


async def read_progress(queue: str, id: str, replicas: Replicas) -> WorkProgress | None:
    """Return the progress of the work on a claimed item, None if nothing is known.  Raises ``Unavailable``."""
    return (await read_all_progress(queue, [id], replicas)).get(id)


async def read_all_progress(queue: str, ids: Sequence[str], replicas: Replicas) -> Mapping[str, WorkProgress]:
    """Return the progress of the work on claimed items, of those of which something is known.

    Raises ``Unavailable``.
    """
    told = zip(ids, await replicas.ask(ToldReports(queue, ids)), strict=True)
    return {id: decode_report(each.text, each.age_us / 1_000_000) for id, each in told if each is not None}
