"""Keep results under ids of the callers', as backends of frameworks do, and check what is read.

A read is like that of a register: nothing is read that nobody stored, nothing older than what a later call has stored
for certain, nothing of less rank than that, and nothing goes while it is to be kept.
"""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass, field

from tests.simulation.findings import Findings
from tests.simulation.items import Outcome
from tests.simulation.world import CALL_LIMIT, Client, World
from zkrq.base.codecs import RAW
from zkrq.base.errors import Closed
from zkrq.client.stored import PART_BYTES, Rank, StoredResult, StoredResults

QUEUE = "kept"
IDS = ("a", "b", "c")
TTL = 50_000.0
"""Seconds that no run lasts."""
LARGE = PART_BYTES + 100
"""Bytes of a result that is kept in parts."""


@dataclass(eq=False, slots=True)
class _Write:
    """A call that stores a result.  ``ended_at``: infinite unless it is known to have succeeded."""

    value: bytes
    rank: Rank
    begun_at: float
    ended_at: float = math.inf
    refused: bool = False

    def is_before(self, other: _Write) -> bool:
        """Whether the other one began when this one had ended, and replaces it."""
        return self.ended_at < other.begun_at and other.rank >= self.rank


@dataclass(slots=True)
class Kept:
    """What was promised of all results of a run."""

    found: Findings
    writes: dict[str, list[_Write]] = field(default_factory=lambda: {id: [] for id in IDS})

    def read(self, id: str, result: StoredResult | None, begun_at: float) -> None:
        """Somebody who began to read at this moment was given this.

        Where the clock of a server was wrong by far, it may have said that the time of what was stored is over.
        """
        if self.found.leapt and (result is None or any(write.value == result.value for write in self.writes[id])):
            return
        writes = self.writes[id]
        certain = [write for write in writes if write.ended_at < begun_at]
        if result is None:
            if certain:
                self.found.violation(f"result {id} is gone, though {len(certain)} were stored")
            return
        (write, *_) = [write for write in writes if write.value == result.value] or [None]
        if write is None or write.refused:
            self.found.violation(f"result {id} is {result.value[:20]!r}, which nobody has stored")
        elif any(write.is_before(other) or other.rank > write.rank for other in certain):
            self.found.violation(f"result {id} went back to {write.value[:20]!r}")
        elif result.is_last != (write.rank is not Rank.PRESENT):
            self.found.violation(f"result {id} is {result}, and was stored as {write.rank}")


class Keeper:
    """One client's calls."""

    def __init__(self, client: Client, kept: Kept, chance: random.Random) -> None:
        self._client = client
        self._kept = kept
        self._chance = chance
        self._numbers = 0
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start; runs in the client's process."""
        self._task = self._client.start(self._run(), "keeper")

    async def end(self) -> None:
        """Have it end."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled() and (error := self._task.exception()):
            self._kept.found.violation(f"{self._client.name}: its keeper ended with {error!r}")

    async def _run(self) -> None:
        chance = self._chance
        while True:
            await asyncio.sleep(chance.random() * 3)
            results = self._results()
            if results is None:
                continue
            match chance.choice(("store", "store", "get", "get", "wait")):
                case "store":
                    await self._store(results)
                case "get":
                    await self._get(results)
                case _:
                    await self._wait(results)

    def _results(self) -> StoredResults | None:
        cluster = self._client.cluster if self._client.at_latest_level else None
        try:
            return StoredResults(cluster.queue(QUEUE, codec=RAW)) if cluster else None
        except Closed:
            return None

    async def _store(self, results: StoredResults) -> None:
        chance, world = self._chance, self._client.world
        id, rank = chance.choice(IDS), chance.choice((Rank.PRESENT, Rank.PRESENT, Rank.FAILED, Rank.DONE))
        self._numbers += 1
        value = f"{self._client.name} {self._numbers} ".encode()
        if chance.random() < 0.1:
            value = value.ljust(LARGE)
        write = _Write(value, rank, world.loop.now)
        self._kept.writes[id].append(write)
        ended = await self._client.do("store", results.store(id, value, ttl=TTL, rank=rank), 2 * CALL_LIMIT)
        write.refused = ended.outcome is Outcome.REFUSED
        if ended.outcome is Outcome.DONE:
            write.ended_at = world.loop.now

    async def _get(self, results: StoredResults) -> None:
        begun_at = self._client.world.loop.now
        ids = self._chance.sample(IDS, self._chance.randint(1, len(IDS)))
        ended = await self._client.do("get stored", results.get(ids), 2 * CALL_LIMIT)
        for id, result in zip(ids, ended.value or (), strict=False):
            self._kept.read(id, result, begun_at)

    async def _wait(self, results: StoredResults) -> None:
        begun_at, id = self._client.world.loop.now, self._chance.choice(IDS)
        timeout = self._chance.choice((0.0, 2.0, 10.0))
        ended = await self._client.do("wait for stored", results.wait(id, timeout=timeout), timeout + 2 * CALL_LIMIT)
        if ended.outcome is Outcome.DONE:
            self._kept.read(id, ended.value, begun_at)


def keeps(world: World) -> bool:
    """Whether this run does this at all.  Drawn by a chance of its own, so other runs stay as they were."""
    return world.chance_for("keeping").random() < 0.25
