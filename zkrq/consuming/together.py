"""Ack many claims by one call for each shard, without a task or a future for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

from zkrq.base.errors import OutcomeUnknown, ZkrqError
from zkrq.consuming.lease import Issuer, Lease, Refused, Verb


async def ack_together(leases: Iterable[Lease], wanted: int | None = None) -> None:
    """Ack the leases that are neither settled nor lost.  Those that the servers refuse are lost afterwards.

    ``wanted``: items that their consumer is expected to want next, None: as many.  Raises as ``Lease.settle`` does,
    ``ClaimLost`` excepted, once all calls have ended; then, and if it is cancelled, leases without an answer may be
    acked again.
    """
    # A queue has an issuer for each shard, and the caller may give claims of several queues.
    by_issuer: dict[Issuer, list[Lease]] = {}
    for lease in leases:
        if lease.settled is None and not lease.loss:
            by_issuer.setdefault(lease.grant.issuer, []).append(lease)
    errors: list[BaseException] = []
    sent: list[tuple[Sequence[Lease], asyncio.Future[Refused]]] = []
    for issuer, some in by_issuer.items():
        try:
            sent.append((some, issuer.ack_together(some, len(some) if wanted is None else wanted)))
        except ZkrqError as error:
            errors.append(error)  # nothing happened to these; the others are still sent
            continue
        # Noted before the await, so a second settlement in the meantime is an error and not a second call.
        for lease in some:
            lease.settled = Verb.ACK
        if wanted:  # the consumer comes back once, whichever shard has its next items
            wanted = 0
    # Each in turn, so that no error leaves the other claims without a note; and awaited directly, because a worker
    # frees its slot for the next request only while few outcomes are on their way.
    try:
        for _, answer in sent:
            with suppress(Exception):
                await answer
    finally:
        errors += [error for some, answer in sent if (error := _note(some, answer))]
    # Where one outcome is unknown, the call as a whole may have had an effect, and says so.
    if errors:
        raise next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])


def _note(leases: Sequence[Lease], answer: asyncio.Future[Refused]) -> BaseException | None:
    """Note what became of the leases; return the error for those whose outcome is not known."""
    answer.cancel()  # changes nothing once it is there
    error = None if answer.cancelled() else answer.exception()
    if error is None and not answer.cancelled():
        for lease in leases:
            lease.extending = False
            if lease.timer:
                lease.stop_extending()
        refused = answer.result()
        for lease in leases if refused else ():
            if (lease.grant, lease.position) in refused:
                lease.refuse(Verb.ACK)
        return None
    now = asyncio.get_running_loop().time()
    for lease in leases:
        lease.settled = None
        # It may not be tried again after its deadline: the item may be another consumer's by now.
        if lease.deadline_at <= now:
            lease.lose(f"it expired while its {Verb.ACK} was in flight")
    return error
