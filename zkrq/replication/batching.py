"""Group commit: many small calls become one.

The first call of an idle ``Batcher`` leaves at once, with all that the same turn of the event loop adds to it; what
comes while ``MAX_IN_FLIGHT`` batches are under way waits for one of them to return and then leaves together.  So a lone
call waits for nothing, and many callers share the price of one round trip without asking for it.  (The idea is the
group commit of databases: DeWitt et al., 1984.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from zkrq.errors import Closed, OutcomeUnknown
from zkrq.tasks import Tasks

MAX_BATCH = 500
"""Calls in one batch: what one script takes in a few milliseconds."""

MAX_BATCH_BYTES = 1 << 20
"""A batch is closed when it has grown beyond this; a larger call goes alone."""

MAX_IN_FLIGHT = 2
"""Batches under way at once."""

CallT = TypeVar("CallT")
ResultT = TypeVar("ResultT")

Entry = tuple[CallT, "asyncio.Future[ResultT]"]


class Batcher(Generic[CallT, ResultT]):
    """Collects calls and gives them to ``send``, which answers each or raises for all.

    ``send`` returns one result, or one exception, per call in order.  A caller that is cancelled leaves; its call is
    carried out all the same.
    """

    def __init__(
        self,
        send: Callable[[Sequence[CallT]], Awaitable[Sequence[ResultT | Exception]]],
        *,
        size: Callable[[CallT], int],
        tasks: Tasks,
        name: str,
    ) -> None:
        self._send = send
        self._size = size
        self._tasks = tasks
        self._name = name
        self._waiting: deque[tuple[CallT, asyncio.Future[ResultT]]] = deque()
        self._in_flight = 0
        self._scheduled = False
        self._closed = False
        self._landed = asyncio.Event()
        self._landed.set()

    def add(self, call: CallT) -> asyncio.Future[ResultT]:
        """Have ``call`` carried out; the future gets its result."""
        if self._closed:
            raise Closed()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ResultT] = loop.create_future()
        self._waiting.append((call, future))
        if not self._scheduled and self._in_flight < MAX_IN_FLIGHT:
            self._scheduled = True
            loop.call_soon(self._depart)
        return future

    async def aclose(self) -> None:
        """Take no more calls and wait for those that are under way; those that have not left are told ``Closed``."""
        self._closed = True
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(Closed())
                future.exception()
        await self._landed.wait()

    def _depart(self) -> None:
        self._scheduled = False
        while self._waiting and self._in_flight < MAX_IN_FLIGHT:
            batch = self._take()
            self._in_flight += 1
            self._landed.clear()
            self._tasks.start(self._carry_out(batch), self._name)

    def _take(self) -> list[tuple[CallT, asyncio.Future[ResultT]]]:
        batch: list[tuple[CallT, asyncio.Future[ResultT]]] = []
        room = MAX_BATCH_BYTES
        while self._waiting and len(batch) < MAX_BATCH:
            room -= self._size(self._waiting[0][0])
            if room < 0 and batch:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _carry_out(self, batch: list[tuple[CallT, asyncio.Future[ResultT]]]) -> None:
        results: Sequence[ResultT | Exception] = ()
        try:
            results = await self._send([call for call, _ in batch])
        except Exception as error:  # every caller is told; none is lost
            results = [error] * len(batch)
        finally:
            self._in_flight -= 1
            for position, (_, future) in enumerate(batch):
                _settle(future, results[position] if results else OutcomeUnknown("closed in the middle"))
            self._depart()
            if not self._in_flight:
                self._landed.set()


def _settle(future: asyncio.Future[ResultT], result: ResultT | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
