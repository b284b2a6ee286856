"""Group commit: many small calls become one.

The first call of an idle ``Batcher`` leaves at once, with all that the same turn of the event loop adds to it.  What
comes while a batch is under way leaves together when that returns, with what those add who were waiting for it; or
before, when it is much or has waited for long.  So a lone call waits for nothing, and many callers share the price of
one round trip without asking for it.  (The idea is the group commit of databases: DeWitt et al., 1984.)
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from zkrq.errors import Closed, OutcomeUnknown, Unavailable
from zkrq.tasks import Tasks

MAX_BATCH = 500
"""Calls in one batch: what one script takes in a few milliseconds."""

MAX_BATCH_BYTES = 1 << 20
"""A batch is closed when it has grown beyond this; a larger call goes alone."""

FURTHER_LEAST = 100
"""Calls that leave though a batch is under way, and that are not split: fewer cost less when they wait for it."""

FURTHER_BYTES = 1 << 16
"""So many bytes leave though a batch is under way."""

FURTHER_SECONDS = 0.002
"""After so long a call leaves though a batch is under way: a slow server is felt, but not twice."""

MAX_WAITING = 100_000
"""Calls that may wait for a batch."""

MAX_IN_FLIGHT = 4
"""Batches under way at once."""

CallT = TypeVar("CallT")
ResultT = TypeVar("ResultT")


class Batcher(Generic[CallT, ResultT]):
    """Collects calls and gives them to ``send``, which answers each or raises for all.

    ``send`` returns one result, or one exception, per call in order.  A caller that is cancelled leaves; its call is
    carried out all the same.  A call that has waited for ``patience`` seconds without leaving is told ``Unavailable``.
    """

    def __init__(
        self,
        send: Callable[[Sequence[CallT]], Awaitable[Sequence[ResultT | Exception]]],
        *,
        size: Callable[[CallT], int],
        tasks: Tasks,
        name: str,
        patience: float,
    ) -> None:
        self._send = send
        self._size = size
        self._tasks = tasks
        self._name = name
        self._patience = patience
        self._waiting: deque[tuple[CallT, asyncio.Future[ResultT], int, float]] = deque()
        self._bytes = 0
        self._in_flight = 0
        self._scheduled = False
        self._hurry: asyncio.TimerHandle | None = None
        self._closed = False
        self._landed = asyncio.Event()
        self._landed.set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, call: CallT) -> asyncio.Future[ResultT]:
        """Have ``call`` carried out; the future gets its result."""
        if self._closed:
            raise Closed()
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        if len(self._waiting) >= MAX_WAITING:
            raise Unavailable(f"{self._name}: {MAX_WAITING} calls wait already; nothing happened, retry later")
        future: asyncio.Future[ResultT] = loop.create_future()
        size = self._size(call)
        self._bytes += size
        self._waiting.append((call, future, size, loop.time()))
        if not self._scheduled:
            if self._is_worth_it():
                self._schedule(loop)
            elif self._hurry is None:
                self._hurry_up_later(loop)
        return future

    def stop(self) -> None:
        """Take no more calls; those that have not left are told ``Closed``: nothing happened."""
        self._closed = True
        if self._hurry:
            self._hurry.cancel()
        while self._waiting:
            future = self._waiting.popleft()[1]
            if not future.done():
                future.set_exception(Closed())
                future.exception()

    async def aclose(self) -> None:
        """Stop, and wait for the batches that are under way."""
        self.stop()
        await self._landed.wait()

    def _is_worth_it(self) -> bool:
        """Whether what waits is not to wait any longer."""
        return not self._in_flight or (
            self._in_flight < MAX_IN_FLIGHT and (len(self._waiting) >= FURTHER_LEAST or self._bytes >= FURTHER_BYTES)
        )

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = True
        loop.call_soon(self._depart)

    def _hurry_up_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._in_flight < MAX_IN_FLIGHT:
            since = self._waiting[0][-1]
            self._hurry = loop.call_at(since + FURTHER_SECONDS, self._depart, True)

    def _depart(self, hurry: bool = False) -> None:
        self._scheduled = False
        if self._hurry:
            self._hurry.cancel()
            self._hurry = None
        self._turn_away()
        while self._waiting and self._in_flight < MAX_IN_FLIGHT and (hurry or self._is_worth_it()):
            batch = self._take()
            self._in_flight += 1
            self._landed.clear()
            self._tasks.start(self._carry_out(batch), self._name)
        if self._waiting and self._loop:
            self._hurry_up_later(self._loop)

    def _take(self) -> list[tuple[CallT, asyncio.Future[ResultT]]]:
        batch: list[tuple[CallT, asyncio.Future[ResultT]]] = []
        waiting, room = self._waiting, MAX_BATCH_BYTES
        # A crowd leaves in as many parts as there is room for, so that servers work on one while the next is made.
        count = max(FURTHER_LEAST, -(-len(waiting) // (MAX_IN_FLIGHT - self._in_flight)))
        if len(waiting) < count + FURTHER_LEAST:
            count = len(waiting)  # the rest would have to wait
        for _ in range(min(count, MAX_BATCH)):
            call, future, size, _ = waiting[0]
            room -= size
            if room < 0 and batch:
                break
            waiting.popleft()
            self._bytes -= size
            batch.append((call, future))
        return batch

    def _turn_away(self) -> None:
        """Those that have waited for too long; they stand in the order in which they came."""
        latest = asyncio.get_running_loop().time() - self._patience
        while self._waiting and self._waiting[0][-1] <= latest:
            _, future, size, _ = self._waiting.popleft()
            self._bytes -= size
            if not future.done():
                error = Unavailable(f"{self._name}: waited for {self._patience:g} s; nothing happened, retry")
                future.set_exception(error)

    async def _carry_out(self, batch: list[tuple[CallT, asyncio.Future[ResultT]]]) -> None:
        results: Sequence[ResultT | Exception] = ()
        try:
            results = await self._send([call for call, _ in batch])
        except Exception as error:  # every caller is told, each by an error of its own: a traceback is not shared
            results = [_own(error) for _ in batch]
        finally:
            self._in_flight -= 1
            if not results:
                results = [OutcomeUnknown("closed in the middle") for _ in batch]
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
            if not self._in_flight:
                self._landed.set()
            if not self._scheduled and self._loop:
                self._schedule(self._loop)  # after those who were told here, and may have the next call


def _own(error: Exception) -> Exception:
    own = copy.copy(error)
    own.__cause__ = error
    return own
