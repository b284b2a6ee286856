"""Read what the holders of claims have reported of their progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zkrq.base.progress import WorkProgress, decode_report
from zkrq.protocol.calls import ToldReports

if TYPE_CHECKING:
    from zkrq.replication.replicas import Replicas


async def read_progress(queue: str, id: str, replicas: Replicas) -> WorkProgress | None:
    """Return the progress of the work on a claimed item, None if nothing is known.  Raises ``Unavailable``."""
    (told,) = await replicas.ask(ToldReports(queue, [id]))
    return None if told is None else decode_report(told.text, told.age_us / 1_000_000)
