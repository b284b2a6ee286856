"""Wait until items have ended: one loop per queue and shard asks for all callers of this process.

Each question is a decision (``lua/results.lua``): what it tells of an item that has ended is known to every server.
For the others it leaves this process's wake-up channel, to which the decision that ends the item publishes.  A message
may be lost, and the next primary knows no waiting caller.  So the loop asks for all items again every few seconds,
after each change of the view, and after it has begun to listen anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from zkrq.base.errors import Closed, ZkrqError
from zkrq.protocol.calls import Read, Results, Told, stored_at
from zkrq.protocol.replies import Status

if TYPE_CHECKING:
    from zkrq.base.tasks import Tasks
    from zkrq.consuming.wakeups import Wakeups
    from zkrq.protocol.replies import Answer
    from zkrq.replication.replicas import Replicas

ASK_AGAIN_SECONDS = 5.0
"""Seconds after which a caller that waits for an item asks again, although no message has arrived ..."""

ASK_UNHEARD_SECONDS = 0.5
"""... and where this process may not listen for messages."""

ASKED_AT_ONCE = 150
"""Items that one call asks about: some milliseconds of a server's time."""

RETRY_SECONDS = 0.2
"""Seconds before a question that failed is repeated: its decision was retried until its time was over."""


_log = logging.getLogger("zkrq.results")


class Awaiting:
    """Wait for the ends of one queue's items on one shard."""

    def __init__(
        self,
        replicas: Replicas,
        wakeups: Wakeups,
        ask_followers: Callable[[Read], Awaitable[Sequence[Answer]]],
        *,
        cluster: str,
        queue: str,
        tasks: Tasks,
        question: type[Results] = Results,
    ) -> None:
        """``question``: makes the call that asks, of queue, channel and ids."""
        self.replicas = replicas
        self._question = question
        self._ask_followers = ask_followers
        self._wakeups = wakeups
        self._queue = queue
        self._tasks = tasks
        self._waiting: dict[str, list[asyncio.Future[Told]]] = {}
        self._due: dict[str, None] = {}
        """Items to ask about now, in order."""
        self._news = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._closed = False
        self.trouble: ZkrqError | None = None
        """Why the last question failed, None if it was answered."""
        self._about = {"cluster": cluster, "queue": queue}

    def close(self) -> None:
        """End every wait with ``Closed``."""
        self._closed = True
        if self._runner:
            self._runner.cancel()
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(Closed())

    async def wait(self, id: str) -> Told:
        """Wait until an item has ended, or is not known.  Raises ``Closed``."""
        if self._closed:
            raise Closed()
        future: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id, []).append(future)
        self._due[id] = None
        self._news.set()
        if self._runner is None:
            self._wakeups.await_ends(self._queue, self._heard, self.ask_again)
            self._runner = self._tasks.supervise(self._run, f"wait for results of {self._queue}")
        try:
            return await future
        finally:
            futures = self._waiting[id]
            futures.remove(future)
            if not futures:
                del self._waiting[id]
                self._due.pop(id, None)

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - Only what a caller waits for is asked about, or items would be asked about forever.
        - While callers wait there is a loop that asks.
        """
        assert self._due.keys() <= self._waiting.keys(), f"nobody waits for {self._due.keys() - self._waiting.keys()}"
        assert all(self._waiting.values()), f"items that nobody waits for: {self._waiting}"
        assert self._runner or not self._waiting, "callers wait for results, and nothing asks"

    async def ask(self, ids: Sequence[str], waiter: str = "") -> list[Told]:
        """Ask what became of items now.  Raises ``Unavailable``, ``OutcomeUnknown``: ask again."""
        decided = await self.replicas.decide(self._question(self._queue, waiter, ids))
        told = list(decided.reply.told)
        for at, id in enumerate(ids) if decided.superseded else ():
            # Some server knows of a later decision about this item: what was told may not be the last word.
            places = stored_at(id).items()
            if any(position in decided.superseded.get(bundle.encode(), ()) for bundle, position in places):
                told[at] = (await self.ask([id], waiter))[0]
        if any(each.letter == b"U" for each in told):
            await self._look_elsewhere(ids, told)
        return told

    async def _look_elsewhere(self, ids: Sequence[str], told: list[Told]) -> None:
        """Take items that the primary does not know for queued, if another server has them.

        A push may have evicted the primary a moment ago, and returned, while neither this client nor the other servers
        have heard of the next view.  After that the question meets the next primary.
        """
        for at, id in enumerate(ids):
            if told[at].letter == b"U":
                places = stored_at(id)
                call = Read(self._queue, list(places))
                for answer in await self._ask_followers(call):
                    copies = call.read(answer.body).items if answer.status is Status.OK else ()
                    if any(copied.has_not_ended(places[copied.id.decode()]) for copied in copies):
                        told[at] = Told(b"Q")

    def ask_again(self) -> None:
        """Ask about all items soon: messages may have been missed."""
        self._due |= dict.fromkeys(self._waiting)
        self._news.set()

    def _heard(self, id: str) -> None:
        if id in self._waiting:
            self._due[id] = None
            self._news.set()

    async def _run(self) -> None:
        """Ask as long as a caller waits."""
        loop = asyncio.get_running_loop()
        all_at = loop.time() + ASK_AGAIN_SECONDS
        while True:
            self._news.clear()
            if loop.time() >= all_at:
                self.ask_again()
                all_at = loop.time() + ASK_AGAIN_SECONDS
            ids = list(islice(self._due, ASKED_AT_ONCE))
            if not ids:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(all_at if self._waiting else None):
                        await self._news.wait()
                continue
            for id in ids:
                del self._due[id]
            try:
                is_heard = await self._ask_for(ids)
            except ZkrqError as error:
                if self.trouble is None:
                    _log.warning("no results for now, retrying: %s", error, extra=self._about)
                self.trouble = error
                self._due = dict.fromkeys(id for id in ids if id in self._waiting) | self._due
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self.trouble = None
            if not is_heard:
                all_at = min(all_at, loop.time() + ASK_UNHEARD_SECONDS)

    async def _ask_for(self, ids: Sequence[str]) -> bool:
        """Ask about these, and tell the callers about those that have ended; return whether messages can arrive."""
        is_heard = await self._wakeups.listen(self.replicas.primary(self._queue))
        answers = await self.ask(ids, self._wakeups.channel if is_heard else "")
        for id, told in zip(ids, answers, strict=True):
            for future in self._waiting.get(id, ()) if told.has_ended else ():
                if not future.done():
                    future.set_result(told)
        return is_heard
