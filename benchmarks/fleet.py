"""Measure the everyday fleet: one process pushes at a pace, many small worker processes handle one item at a time.

Every process is a program of its own, of zkrq and of its peers alike.  One system's servers run at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks import brokers, environments, places, programs, server_time
from benchmarks.latency import percentile
from benchmarks.peers.fleet import Duty, Round
from benchmarks.plan import Plan
from benchmarks.sheet import Sheet, Topic


@dataclass(frozen=True, slots=True)
class System:
    """A queue, its servers, and the program of its producer and workers.

    ``environment``: None for this one.  ``is_pool``: one program has the slots of all workers, in processes.
    """

    title: str
    place: places.Kind
    program: str
    environment: str | None = "main"
    is_pool: bool = False


ZKRQ, POOL, SAQ, NATS = (
    "zkrq, three copies",
    "zkrq, a pool, three copies",
    "SAQ, one copy",
    "NATS JetStream, three copies",
)

SYSTEMS: Sequence[System] = (
    System(ZKRQ, "zkrq", "benchmarks.fleet_client", None),
    System(SAQ, "redis", "benchmarks.peers.saq_fleet"),
    System(NATS, "nats", "benchmarks.peers.nats_fleet"),
    System(POOL, "zkrq", "benchmarks.pool_client", None, is_pool=True),
    System("RabbitMQ quorum queue, three copies", "rabbitmq", "benchmarks.peers.rabbitmq_fleet"),
    System("taskiq-redis, one copy", "redis", "benchmarks.peers.taskiq_fleet", "taskiq"),
    System("arq, one copy", "redis", "benchmarks.peers.arq_fleet"),
)
"""Those that zkrq is compared with come right after it, so that slow disturbances of the machine are alike."""


class Fleet(NamedTuple):
    """Worker processes, the slots of each, and the seconds that a handler takes."""

    workers: int
    slots: int
    handling: float

    def at(self, rate: int) -> Topic:
        """Return the table of this fleet at this pace, in items a second."""
        slots = "one slot" if self.slots == 1 else f"{self.slots} slots"
        return Topic(
            f"fleet-{self.workers}-{self.slots}-{rate}",
            f"The everyday fleet: {self.workers} workers with {slots} each, {rate} items a second",
            f"{self.workers} worker processes with {slots} each, and a process that pushes {rate} items a second, "
            f"whether the pushes before have returned or not; handlers take {self.handling * 1000:.0f} ms. `to "
            "handler` is from just before the push to the handler's first line. Times in ms; processor time in µs per "
            "item, of all workers with their children, and of all of the system's servers with theirs.",
            "",
            "system",
        )


EIGHT, SIXTEEN, WIDE, ROOMY = Fleet(8, 1, 0.005), Fleet(16, 1, 0.02), Fleet(4, 8, 0.005), Fleet(4, 32, 0.02)
EVERYDAY, BUSY, CALM, STEADY = 200, 300, 50, 400
"""Items a second."""

IDLE = Topic(
    "fleet-idle",
    "The everyday fleet at rest",
    f"Processor time while nothing is pushed: of {EIGHT.workers} waiting workers together, and of all servers.",
    "ms per minute",
    "system",
)

TO_HANDLER, WORKERS, SERVERS = "to handler p50", "workers, µs", "servers, µs"

SECONDS, IDLE_SECONDS = 4.0, 18.0
"""Seconds of one repetition, and of waiting."""

WARM_UP_SECONDS = 1.5
REST = 1.0
"""Seconds after the warm-up, until connections and caches are as they stay."""

LAST_SECONDS = 0.25
"""Seconds after the last push, until workers are asked for what has reached them; they are asked again if some is
missing."""

PATIENCE = 60.0
"""Seconds until all programs are ready, until all pushes have returned, and until all items have been handled."""


async def run(plan: Plan, sheet: Sheet, folder: Path) -> None:
    pythons = environments.prepare(folder, sheet)
    if not server_time.available():
        sheet.remark("processor time of the fleet: not measured, this system has no /proc")
    for system in SYSTEMS:
        python = pythons[system.environment] if system.environment else Path(sys.executable)
        try:
            async with places.opened(system.place) as place:
                async with running(system, python, place, EIGHT) as crew:
                    await crew.idle(sheet, plan.seconds(IDLE_SECONDS))
                    for rate in plan.rows((EVERYDAY, CALM), (EVERYDAY,)):
                        await crew.paced(sheet, rate, plan.repetitions)
                for fleet, rate in plan.rows(((SIXTEEN, BUSY), (WIDE, EVERYDAY), (ROOMY, STEADY)), ()):
                    async with running(system, python, place, fleet) as crew:
                        await crew.paced(sheet, rate, plan.repetitions)
        except (brokers.BrokerFailed, programs.ProgramFailed, TimeoutError) as error:
            sheet.remark(f"fleet: {system.title}: not measured: {error or 'it took too long'}")


@dataclass(slots=True)
class Crew:
    """The running programs of a system."""

    system: System
    fleet: Fleet
    settings: str
    producer: Process
    workers: Sequence[Process]
    place: places.Place
    pushed: int = 0
    span: float = 0.0
    """Seconds from the first push of the last round to the last handler."""

    async def idle(self, sheet: Sheet, seconds: float) -> None:
        """Measure what waiting costs."""
        before = self._spent()
        await asyncio.sleep(seconds)
        if server_time.available():
            workers, servers = (
                (now - then) / seconds * 60_000 for then, now in zip(before, self._spent(), strict=True)
            )
            sheet.add(IDLE, self.system.title, workers=workers, servers=servers)
            sheet.note(IDLE, self.system.title, self.settings)

    async def paced(self, sheet: Sheet, rate: int, repetitions: int) -> None:
        """Push at a pace, and measure how long it takes and what it costs."""
        for _ in range(repetitions):
            await self._paced(sheet, rate, int(rate * SECONDS))

    async def _paced(self, sheet: Sheet, rate: int, items: int) -> None:
        before = self._spent()
        pushes, deliveries, after = await self.round(items, rate)
        figures = {
            "push p50": percentile(pushes, 50) * 1000,
            "push p99": percentile(pushes, 99) * 1000,
            TO_HANDLER: percentile(deliveries, 50) * 1000,
            "to handler p99": percentile(deliveries, 99) * 1000,
        }
        if server_time.available():
            names = (WORKERS, SERVERS)
            spent = zip(names, before, after, strict=True)
            figures |= {name: (now - then) / items * 1e6 for name, then, now in spent}
        sheet.add(self.fleet.at(rate), self.system.title, **figures)

    async def round(self, items: int, rate: float) -> tuple[Sequence[float], Sequence[float], tuple[float, float]]:
        """Push items; return the seconds of the pushes, of the deliveries, and of processor time spent until then.

        Raises ``ProgramFailed`` and ``TimeoutError``.
        """
        round_ = Round(self.pushed, items, rate)
        self.pushed += items
        pushes: list[float] = await programs.ask(self.producer, round_)
        reached: dict[int, float] = {}
        first, last = math.inf, 0.0
        async with asyncio.timeout(PATIENCE):
            while True:
                await asyncio.sleep(LAST_SECONDS)
                spent = self._spent()
                for n, at, seconds in itertools.chain(*await asyncio.gather(*map(programs.ask, self.workers))):
                    if n >= round_.first:  # and no late repetition of an earlier one
                        reached.setdefault(n, seconds)
                        first, last = min(first, at), max(last, at + seconds)
                if len(reached) == items:
                    self.span = last - first
                    return pushes, list(reached.values()), spent

    def _spent(self) -> tuple[float, float]:
        """Seconds of processor time of the workers and of the servers so far."""
        return server_time.of_groups([self.workers[0].pid]), server_time.of_groups(self.place.groups)


@asynccontextmanager
async def running(system: System, python: Path, place: places.Place, fleet: Fleet) -> AsyncGenerator[Crew]:
    """Start the producer, which makes the queue, and then the workers; push and handle some items."""
    started: list[Process] = []
    workers, each = (1, fleet.workers * fleet.slots) if system.is_pool else (fleet.workers, fleet.slots)

    def duty(number: int, *, works: bool) -> dict[str, object]:
        queue = f"fleet-{fleet.workers}-{fleet.slots}"
        return Duty(works, place.urls, queue, number, each, fleet.handling, place.zookeeper)._asdict()

    try:
        async with asyncio.timeout(PATIENCE):
            producer = await programs.start(python, system.program, duty(0, works=False))
            started.append(producer)
            settings = await programs.answer(producer)
            for number in range(workers):
                group = started[1].pid if number else 0
                started.append(await programs.start(python, system.program, duty(number, works=True), group=group))
            await asyncio.gather(*map(programs.answer, started[1:]))
        crew = Crew(system, fleet, settings, producer, started[1:], place)
        rate = 10 * fleet.workers * fleet.slots
        await crew.round(int(rate * WARM_UP_SECONDS), rate)
        await asyncio.sleep(REST)
        yield crew
    finally:
        for program in reversed(started[1:]):
            await programs.kill(program)
        if started:
            await programs.dismiss(started[0])
