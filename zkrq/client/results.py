"""Provide the queue that keeps results: wait for the result of an item or of many; push and wait in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast

from zkrq.base.checks import Duration, check_duration, check_id
from zkrq.base.errors import ConfigError, Receipt, Unavailable, split
from zkrq.base.results import Result, ResultState
from zkrq.client.awaiting import Awaiting
from zkrq.client.queue import Queue, parts_of
from zkrq.client.reports import read_progress
from zkrq.protocol.calls import Told
from zkrq.protocol.failures import last_reason

if TYPE_CHECKING:
    from zkrq.base.limits import Results
    from zkrq.client.parts import QueueParts
    from zkrq.client.shard import Shard
    from zkrq.operations.push import PushOptions
    from zkrq.protocol.calls import Read
    from zkrq.protocol.replies import Answer

T = TypeVar("T")
R = TypeVar("R")

RESULTS_MAX = 10_000
"""Items that one ``results`` may ask for: as many as a server remembers that callers wait for."""

_STATES: Mapping[bytes, ResultState] = {
    b"U": ResultState.UNKNOWN,
    b"Q": ResultState.QUEUED,
    b"C": ResultState.CLAIMED,
    b"D": ResultState.DEAD,
    b"A": ResultState.DONE,  # with a result
    b"N": ResultState.DONE,  # without one
    b"L": ResultState.DONE,  # its result is lost
    b"X": ResultState.CANCELLED,
    b"E": ResultState.EXPIRED,
}
"""The state that each letter of a server's reply stands for (``lua/results.lua``)."""


class ResultReceipt(Receipt, Generic[R]):
    """The receipt of a push into a queue with results: ``await receipt.result()`` waits for the item."""

    queue: ResultQueue[Any, R]

    async def result(self, *, timeout: Duration | None = 10.0) -> Result[R]:
        """Wait until the item has ended; see ``ResultQueue.result``."""
        return await self.queue.result(self.id, timeout=timeout)


class ResultQueue(Queue[T], Generic[T, R]):
    """A queue of items of type ``T`` whose handlers return results of type ``R``.

    Made by ``Cluster.queue(..., results=Results())``.  Everything else is as in ``Queue``.
    """

    def __init__(self, parts: QueueParts[T], source: Queue[T] | None = None) -> None:
        """``source``: another object for the same queue, kept alive as long as this one."""
        super().__init__(parts)
        self._results: Results[R] | None = parts.context.settings.results
        self._source = source

    async def push(self, item: T, **options: Unpack[PushOptions]) -> ResultReceipt[R]:
        """Put one item into the queue, as ``Queue.push`` does.  The receipt can wait for the item's result."""
        receipt: ResultReceipt[R] = ResultReceipt(*await super().push(item, **options))
        receipt.queue = self
        return receipt

    async def call(self, item: T, *, timeout: Duration | None = 10.0, **options: Unpack[PushOptions]) -> R:
        """Push an item, wait until it is done, and return what its handler returned.

        ``timeout``: seconds to wait after the push, None: no limit.  The other arguments are those of ``push``.
        Raises what ``push`` and ``result`` raise, and ``NoResult``, whose ``id`` names the item, if the item became a
        dead letter, was removed, or has not ended within ``timeout``.  In the last case the item stays in the queue,
        as it does if this call is cancelled.
        """
        receipt = await self.push(item, **options)
        return (await receipt.result(timeout=timeout)).get()

    async def result(self, id: str, *, timeout: Duration | None = 10.0) -> Result[R]:
        """Wait until an item has ended; return its result.

        ``timeout``: seconds, None: no limit, 0: do not wait.  After that time the result has the present state, queued
        or claimed, and then the work's progress.  If no server knows the item, returns ``UNKNOWN`` immediately.

        The states done, cancelled and expired are final, whichever servers die; a dead letter may be redriven.  A
        result is kept for the ``ttl`` of ``Results``, or for less if the queue's tombstones exceed their memory.  The
        wait survives the death of servers.  Cancelling it changes nothing.

        Raises ``Unavailable`` if no server answered within ``timeout``, ``OutcomeUnknown`` if not all did: ask again.
        Raises ``CodecError`` if the result cannot be decoded.
        """
        check_id("id", id)
        self._parts.check_open()
        seconds = None if timeout is None else check_duration("timeout", timeout)
        until = None if seconds is None else asyncio.get_running_loop().time() + seconds
        told = await self._first(id, lambda shard: self._told(shard, id, until))
        result: Result[R] = self._as_result(id, told) if told else Result(id, ResultState.UNKNOWN)
        if result.state is not ResultState.CLAIMED:
            return result
        with suppress(Unavailable):  # the state is known, and the progress only says more
            progress = await self._first(id, lambda shard: read_progress(self.name, id, shard.replicas))
            result = replace(result, progress=progress)
        return result

    async def results(self, ids: Iterable[str], *, timeout: Duration | None = 10.0) -> dict[str, Result[R]]:
        """Wait until all of these items have ended; return the result of each, by id.

        At most 10,000 ids.  ``timeout`` is for all of them together; otherwise as ``result``.
        """
        asked = list(dict.fromkeys(ids))
        if len(asked) > RESULTS_MAX:
            raise ConfigError(f"{len(asked)} ids, at most {RESULTS_MAX} at once")
        waits = [asyncio.ensure_future(self.result(id, timeout=timeout)) for id in asked]
        try:
            return dict(zip(asked, await asyncio.gather(*waits), strict=True))
        finally:
            for wait in waits:  # of which one has failed, or all are cancelled
                wait.cancel()

    async def _told(self, shard: Shard, id: str, until: float | None) -> Told | None:
        """Wait for an item of one shard until a moment of the event loop; return the reply, None if the item is
        unknown there."""
        awaiting = self._awaiting(shard)
        loop = asyncio.get_running_loop()
        try:
            if until is None or until > loop.time():
                async with asyncio.timeout_at(until):
                    return _known(await awaiting.wait(id))
        except TimeoutError:
            if awaiting.trouble is not None:
                raise Unavailable(f"queue {self.name!r} could not be asked in time: {awaiting.trouble}") from (
                    awaiting.trouble
                )
        return _known((await awaiting.ask([id]))[0])

    def _awaiting(self, shard: Shard) -> Awaiting:
        """Return the waits for items of one shard."""
        known = self._parts.waits.get(shard.name)
        if known is None or known.replicas is not shard.replicas:
            if known is not None:
                known.close()
            known = self._parts.waits[shard.name] = Awaiting(
                shard.replicas,
                shard.wakeups,
                partial(_ask_followers, shard),
                cluster=self.cluster,
                queue=self.name,
                tasks=self._parts.context.tasks,
            )
        return known

    def _as_kept(self, id: str, text: bytes, *, is_lost: bool) -> Result[R]:
        """Return the result of an item that was acked, as a server has it."""
        return self._as_result(id, Told(b"L" if is_lost else b"A", text))

    def _as_result(self, id: str, told: Told) -> Result[R]:
        state, kept = _STATES[told.letter], self._results
        match state:
            case ResultState.DONE if told.letter == b"A":
                value = kept.decode(told.text) if kept else cast("R | None", told.text or None)
                return Result(id, state, value, has_value=True)
            case ResultState.DEAD:
                reason, traceback = split(last_reason(told.text))
                return Result(id, state, reason=reason, traceback=traceback)
            case ResultState.CLAIMED:
                return Result(id, state, owner=told.text.decode(errors="replace"))
            case _:
                return Result(id, state, is_lost=told.letter == b"L")


async def _ask_followers(shard: Shard, call: Read) -> Sequence[Answer]:
    """Ask all servers of a shard but the queue's primary, each once."""
    view = shard.view
    others = [id for id in view.members if id != view.primary(call.queue)]
    return list((await shard.fleet.ask_in(view, others, call)).values())


def _known(told: Told) -> Told | None:
    return None if told.letter in (b"U", b"M") else told  # M: it has moved


def make_queue(parts: QueueParts[Any]) -> Queue[Any]:
    """Make the public object of a queue."""
    return Queue(parts) if parts.context.settings.results is None else ResultQueue[Any, Any](parts)


def reading(queue: Queue[T]) -> ResultQueue[T, Any]:
    """Return a queue that reads results; as bytes, where the queue itself keeps none in this process."""
    return ResultQueue[T, Any](parts_of(queue), queue)
