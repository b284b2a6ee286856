"""Forward committed rows of an outbox into their queues."""

from __future__ import annotations

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from zkrq.base.codecs import JSON, Codec
from zkrq.base.errors import CodecError, ContradictsOrder, PayloadTooLarge, ZkrqError, message_of
from zkrq.base.settings import AS_DECLARED
from zkrq.base.tasks import Tasks
from zkrq.outbox.rows import BATCH, Execute, Row, TooLate, lease, settle

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster
    from zkrq.client.queue import Queue

T = TypeVar("T")

LOOK_SECONDS = 1.0
"""Seconds between two looks for rows that no ``wake`` announced."""

RETRY_SECONDS = 5.0
"""Seconds until the next try after one in which a row could not be pushed, or the database did not answer."""

TRIES = 5
"""Attempts of a transaction, which a database ends if it deadlocks with that of another forwarder."""

_log = logging.getLogger("zkrq.outbox")


class Forwarded(NamedTuple):
    """What one round did with the rows that it leased: ``pushed``, ``failed`` for good, ``left`` for the next round."""

    pushed: int = 0
    failed: int = 0
    left: int = 0


class ForwarderBase(ABC):
    """Push rows and remove them, while it is entered (``async with``), or by ``forward``.

    Any number of forwarders may run, in any processes: a row is leased by one of them, and by another one two minutes
    later if the first has died.  An item exists once, because its id is the row's, which is known until ten minutes
    after the item was handled.  If a forwarder dies between a push and the removal of its row, and no other one comes
    within that time, the item is delivered again; an inbox recognises it.

    A row that no queue can take (bytes that the codec cannot read, a payload that is too large there) keeps the reason
    in its column ``failure``, which is logged, and is not tried again until that is NULL.  Everything else is retried.
    """

    def __init__(self, cluster: Cluster, codecs: Mapping[str, Codec[Any]]) -> None:
        """``codecs``: of queues whose rows were written with another one than JSON, by the queue's name."""
        self._cluster = cluster
        self._codecs = codecs
        self._by = secrets.token_hex(8)
        self._tasks = Tasks(f"zkrq outbox {cluster.namespace}")
        self._woken = asyncio.Event()

    @abstractmethod
    async def _transact(self, work: Callable[[Execute], T]) -> T:
        """Carry out work in one transaction of the database."""

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.supervise(self._run, "forward")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop.  Rows that are being pushed are leased by others later."""
        await self._tasks.__aexit__(kind, error, traceback)

    def wake(self) -> None:
        """Look immediately: this process has committed a row."""
        self._woken.set()

    async def forward(self) -> Forwarded:
        """Push the rows that are there and that no other forwarder has, ``BATCH`` at a time, until none is left.

        Rows that cannot be pushed for now are left for ``RETRY_SECONDS``, so that one full queue does not stop others.
        Raises what the database raises.
        """
        pushed = failed = left = 0
        while True:
            rows = await self._repeat(lambda execute: lease(execute, self._by))
            # Rows are leased until they are settled, so a cancellation costs others two minutes and no item.
            outcomes = dict(zip([row.id for row in rows], await self._push(rows), strict=True))
            await self._repeat(partial(settle, by=self._by, outcomes=outcomes, retry_seconds=RETRY_SECONDS))
            left += sum(outcome == "" for outcome in outcomes.values())
            pushed += sum(outcome is None for outcome in outcomes.values())
            failed += sum(bool(outcome) for outcome in outcomes.values())
            if len(rows) < BATCH:
                return Forwarded(pushed, failed, left)

    async def _repeat(self, work: Callable[[Execute], T]) -> T:
        """Carry out work that may be repeated.

        PostgreSQL locks rows that another forwarder has leased meanwhile, in no fixed order, only to find that they are
        not free: two such transactions may wait for each other.  Without a repetition, rows that were pushed would stay
        until their lease is over, and be pushed again.
        """
        for _ in range(TRIES - 1):
            try:
                return await self._transact(work)
            except Exception as error:  # the driver's
                _log.debug("a transaction on the outbox failed, and is repeated: %s", error)
        return await self._transact(work)

    async def _push(self, rows: list[Row]) -> list[str | None]:
        return await asyncio.gather(*map(self._push_one, rows))

    async def _push_one(self, row: Row) -> str | None:
        """Push one row.

        Returns None if the item is in its queue or was there, the reason if it never can be, empty: not now.
        """
        codec = self._codecs.get(row.queue)
        try:
            item, arguments = (codec or JSON).decode(row.payload), row.arguments()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a codec may raise what it likes
            return _never(row, str(error) if isinstance(error, TooLate) else message_of(error))
        try:
            queue: Queue[Any] = self._cluster.queue(row.queue, codec=codec or AS_DECLARED)
            await queue.push(item, **arguments)
        except (CodecError, PayloadTooLarge, ContradictsOrder) as error:
            return _never(row, str(error))
        # Again, under the same id: QueueFull, Unavailable, OutcomeUnknown; also ConfigError, which may be a password,
        # or a level that is raised later.
        except ZkrqError as error:
            _log.warning("item %s of the outbox is pushed into queue %s later: %s", row.id, row.queue, error)
            return ""
        except Exception:  # for instance of an option that only a later release knows; other rows must not wait for it
            _log.exception("item %s of the outbox is pushed into queue %s later", row.id, row.queue)
            return ""
        return None

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            pause = LOOK_SECONDS
            try:
                await self.forward()
            except Exception:  # the driver's: the database may come back
                _log.exception("the outbox cannot be read")
                pause = RETRY_SECONDS
            try:
                async with asyncio.timeout(pause):
                    await self._woken.wait()
            except TimeoutError:
                pass


def _never(row: Row, reason: str) -> str:
    """Report that a row can never be pushed; return the reason that is kept."""
    _log.error("item %s of the outbox cannot be pushed into queue %s: %s", row.id, row.queue, reason)
    return reason
