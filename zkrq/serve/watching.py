"""Look at the namespace now and then, more often while a page is open, and keep the figures for the curves.

One look serves all open pages.  A look that fails leaves the figures of the last one, and says since when.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from zkrq.base import clock
from zkrq.base.errors import OutcomeUnknown, Unavailable, ZkrqError
from zkrq.base.tasks import Tasks, wait_set
from zkrq.client.inner import read_servers
from zkrq.serve.curves import History
from zkrq.serve.problems import Busy

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster
    from zkrq.client.consumers import Consumer
    from zkrq.client.health import Health
    from zkrq.client.inspection import Statistics
    from zkrq.client.items import Item
    from zkrq.protocol.server_info import ServerInfo
    from zkrq.serve.queues import Queues

LOOK_SECONDS = 2.0
"""Seconds between two looks while a page is open."""

IDLE_SECONDS = 15.0
"""Seconds between two looks while none is."""

QUEUE_SECONDS = 0.01
"""Seconds between two looks for each queue, because each is a call."""

PATIENCE = 1.0
"""Seconds that a page waits for a fresh look."""

CONSUMERS_SECONDS = 10.0
"""Seconds between two counts of what consumers hold, which reads all claims, and between two reports of servers."""

REPORT_SECONDS = 1.0
"""Seconds that a look waits for the servers' reports about themselves."""

CONSUMERS_PATIENCE = 5.0
"""Seconds that a look waits for the list of consumers."""

STREAM_SECONDS = 3600.0
"""Seconds for which a page is kept up to date; then the browser asks again, so its session must still hold."""

STREAMS_MAX = 100
"""Pages that are kept up to date at one time."""


@dataclass(frozen=True, slots=True)
class Look:
    """Hold what a look has found.

    ``as_of``: when the figures were read; ``trouble``: why they were not read since.  ``reports``: of the servers that
    answered lately.  ``notes``: what else could not be read, and why; the figures do not depend on it.
    """

    health: Health
    as_of: datetime
    queues: Mapping[str, Statistics] = field(default_factory=dict[str, "Statistics"])
    consumers: Mapping[str, Consumer] = field(default_factory=dict[str, "Consumer"])
    reports: Mapping[str, ServerInfo] = field(default_factory=dict[str, "ServerInfo"])
    trouble: str = ""
    notes: tuple[str, ...] = ()

    def without(self, error: ZkrqError | TimeoutError) -> Look:
        """Return this look for a page that could not read what it shows: only for silence it blames the servers."""
        if isinstance(error, TimeoutError | Unavailable | OutcomeUnknown):
            return replace(self, trouble=self.trouble or str(error) or "They have not answered in time.")
        return replace(self, notes=(*self.notes, str(error)))


def takes_pushes(cluster: Cluster) -> bool:
    """Tell whether enough servers of a shard are in sync for a push."""
    shards = cluster.shards
    return cluster.view.writable if len(shards) == 1 else any(shard.takes_pushes for shard in shards.values())


class Watching:
    """Look at a cluster: ``async with`` owns the loop that does."""

    def __init__(self, cluster: Cluster, queues: Queues, stopping: asyncio.Event) -> None:
        """``stopping``: set when every stream is to end."""
        self.history = History()
        self._cluster = cluster
        self._queues = queues
        self._tasks = Tasks("zkrq serve: looks")
        self._look = Look(cluster.health(), clock.now())
        self._stopping = stopping
        self._streams = 0
        self._wanted = asyncio.Event()
        self._looked = asyncio.Event()
        self._looked_at = self._changed_at = -math.inf
        self._consumers_at = -math.inf

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.supervise(self._run, "look")
        self._tasks.start(self._end_streams(), "end the streams")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._tasks.__aexit__(kind, error, traceback)

    async def look(self) -> Look:
        """Return what is seen now, or what was seen last if that takes longer than ``PATIENCE``.

        What was seen in the last ``LOOK_SECONDS`` is as good as new, unless something was changed since.
        """
        now = asyncio.get_running_loop().time()
        if self._looked_at <= max(self._changed_at, now - LOOK_SECONDS):
            self._wanted.set()
            await wait_set(self._looked, PATIENCE)
        return self._look

    def check_room(self) -> None:
        """Raise ``Busy`` if no more pages can be kept up to date."""
        if self._streams >= STREAMS_MAX:
            raise Busy(f"{STREAMS_MAX} pages are kept up to date already")

    def soon(self) -> None:
        """Look immediately, because something was changed."""
        self._changed_at = asyncio.get_running_loop().time()
        self._wanted.set()

    async def looks(self) -> AsyncGenerator[Look]:
        """Yield what is seen, again and again, until the server stops or ``STREAM_SECONDS`` have passed."""
        loop = asyncio.get_running_loop()
        end = loop.time() + STREAM_SECONDS
        self._streams += 1
        self._wanted.set()
        try:
            while not self._stopping.is_set():
                looked = self._looked
                yield self._look
                if loop.time() >= end:
                    return
                await looked.wait()
        finally:
            self._streams -= 1

    async def _end_streams(self) -> None:
        await self._stopping.wait()
        self._looked.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wanted.clear()
            started = loop.time()
            reading = asyncio.create_task(self._read(started), name="zkrq serve: read the figures")
            try:
                while not (await asyncio.wait([reading], timeout=LOOK_SECONDS))[0]:
                    if self._looked_at >= started:
                        continue  # the figures are here, and what is still read has a bound of its own
                    late = f"The servers have not answered for {loop.time() - started:.0f} s."
                    self._show(replace(self._look, health=self._cluster.health(), trouble=late))
                self._show(reading.result())
            finally:
                reading.cancel()
            rest = QUEUE_SECONDS * len(self._look.queues)
            await asyncio.sleep(min(rest, LOOK_SECONDS))  # however often a look is asked for
            await wait_set(self._wanted, max(rest, LOOK_SECONDS if self._streams else IDLE_SECONDS))

    def _show(self, look: Look) -> None:
        """Give a look to all open pages."""
        self._look = look
        looked, self._looked = self._looked, asyncio.Event()
        looked.set()

    async def _read(self, now: float) -> Look:
        """Read all figures; what cannot be read stays as it was."""
        look = self._look
        try:
            look = replace(look, queues=await self._cluster.statistics(), as_of=clock.now(), trouble="")
            self._looked_at = now
            self.history.add(now, look.queues)
            if now - self._consumers_at >= CONSUMERS_SECONDS:
                self._consumers_at = now  # before they are read: what is forgotten meanwhile is read again
                look = await self._read_consumers(replace(look, reports=await self._read_reports(look)))
        except ZkrqError as error:
            look = replace(look, trouble=str(error))
        return replace(look, health=self._cluster.health())

    def note_owners(self, items: Iterable[Item[bytes]]) -> None:
        """If a consumer has come that has one of these items, have the next look read the consumers again."""
        if any(item.owner and item.owner not in self._look.consumers for item in items):
            self._consumers_at = -math.inf

    def forget_consumers(self) -> None:
        """Have the next look, which is made now, read the consumers again."""
        self._consumers_at = -math.inf
        self.soon()

    async def _read_consumers(self, look: Look) -> Look:
        """Read what consumers hold, for which ZooKeeper is asked; without it the ones that were seen last stay."""
        try:
            async with asyncio.timeout(CONSUMERS_PATIENCE):
                return replace(look, consumers=await self._cluster.consumers(), notes=())
        except (ZkrqError, TimeoutError) as error:
            why = str(error) or f"they could not be listed within {CONSUMERS_PATIENCE:g} s"
            return replace(look, notes=(f"The consumers are those seen last: {why}",))

    async def _read_reports(self, look: Look) -> Mapping[str, ServerInfo]:
        """Read the servers' reports about themselves; keep the last ones if these do not come in time."""
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                return await read_servers(self._cluster)
        except TimeoutError:
            return look.reports
