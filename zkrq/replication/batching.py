"""Group commit: many small calls become one.

The first call of an idle ``Batcher`` leaves at once, with all that the same turn of the event loop adds to it; what
comes while a batch is under way waits until that returns, but not for long and not until it is many, and then leaves
together.  So a lone call waits for nothing, and many callers share the price of one round trip without asking for it.
(The idea is the group commit of databases: DeWitt et al., 1984.)
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

FURTHER_LEAST = 64
"""Calls that leave while another batch is under way, and that are not split: fewer cost less when they wait for it."""

FURTHER_SECONDS = 0.01
"""After so long what waits for a batch to return leaves all the same: a slow server is felt, but not twice."""

MAX_WAITING = 100_000
"""Calls that may wait for a batch."""

MAX_IN_FLIGHT = 4
"""Batches under way at once."""

CallT = TypeVar("CallT")
ResultT = TypeVar("ResultT")

Entry = tuple[CallT, "asyncio.Future[ResultT]"]


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
        self._waiting: deque[tuple[CallT, asyncio.Future[ResultT], float]] = deque()
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
        self._waiting.append((call, future, loop.time() + self._patience))
        if not self._scheduled and self._may_depart():
            self._scheduled = True
            loop.call_soon(self._depart)
        elif not self._scheduled:
            self._hurry = self._hurry or loop.call_later(FURTHER_SECONDS, self._depart, 1)
        return future

    def stop(self) -> None:
        """Take no more calls; those that have not left are told ``Closed``: nothing happened."""
        self._closed = True
        if self._hurry:
            self._hurry.cancel()
        while self._waiting:
            _, future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(Closed())
                future.exception()

    async def aclose(self) -> None:
        """Stop, and wait for the batches that are under way."""
        self.stop()
        await self._landed.wait()

    def _may_depart(self, further_least: int = FURTHER_LEAST) -> bool:
        least = further_least if self._in_flight else 1
        return len(self._waiting) >= least and self._in_flight < MAX_IN_FLIGHT

    def _depart(self, further_least: int = FURTHER_LEAST) -> None:
        self._scheduled = False
        if self._hurry:
            self._hurry.cancel()
            self._hurry = None
        while self._may_depart(further_least) and not self._closed:
            batch = self._take()
            if not batch:
                return
            self._in_flight += 1
            self._landed.clear()
            self._tasks.start(self._carry_out(batch), self._name)
        if self._waiting and self._loop:
            self._hurry = self._loop.call_later(FURTHER_SECONDS, self._depart, 1)

    def _take(self) -> list[tuple[CallT, asyncio.Future[ResultT]]]:
        batch: list[tuple[CallT, asyncio.Future[ResultT]]] = []
        waiting, size, room = self._waiting, self._size, MAX_BATCH_BYTES
        self._turn_away()
        # A crowd leaves in as many parts as there is room for, so that servers work on one while the next is made.
        share = -(-len(waiting) // (MAX_IN_FLIGHT - self._in_flight))
        for _ in range(min(len(waiting), MAX_BATCH, max(FURTHER_LEAST, share))):
            call, future, _ = waiting[0]
            room -= size(call)
            if room < 0 and batch:
                break
            waiting.popleft()
            batch.append((call, future))
        return batch

    def _turn_away(self) -> None:
        """Those that have waited for too long; they stand in the order in which they came."""
        now = asyncio.get_running_loop().time()
        while self._waiting and self._waiting[0][2] <= now:
            _, future, _ = self._waiting.popleft()
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
            self._depart()
            if not self._in_flight:
                self._landed.set()


def _own(error: Exception) -> Exception:
    own = copy.copy(error)
    own.__cause__ = error
    return own
