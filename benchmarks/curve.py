"""Measure how long a push takes, and until a handler has the item, as the load grows: beside SAQ and NATS.

Each system is a process that pushes and a worker process, and all of them are there in one run: they take turns at each
part of what they reach, so that slow disturbances of the machine are alike for them.
"""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks import brokers, environments, fleet, places, programs
from benchmarks.latency import percentile
from benchmarks.plan import Plan
from benchmarks.plots import P50, P99, PACE, PUSH, TO_HANDLER
from benchmarks.sheet import Sheet, Topic

WORKER = fleet.Fleet(1, 32, 0.0)

PARTS = (5, 10, 25, 50, 75, 90)
"""Paces in percent of what a system reaches."""

FIXED, FIXED_RATE = "1,000/s", 1_000.0
"""A pace that is the same for all."""

CURVE = Topic(
    "curve",
    "Latency by load",
    f"One process pushes, whether the pushes before have returned or not, and a worker process with {WORKER.slots} "
    "slots handles the items by doing nothing. `to handler` is from just before the push to the handler's first line; "
    "times in ms. Each system is measured at parts of what it reaches: of the most items a second that it handled "
    "while the pace was doubled until it fell behind. The systems take turns.",
    "",
    "system, load",
    plot="curves",
)

FIRST_PACE = 500.0
"""Items a second with which the search for what a system reaches begins."""

KEEPS_UP = 0.9
"""Part of the pace that a system handles unless it falls behind."""

PACE_MOST = 64_000.0
"""Items a second at which the search ends: no producer of these pushes more."""

SEARCH_SECONDS, SECONDS = 1.0, 2.0
"""Seconds of a step of the search, and of one repetition."""


PUSH_P50, TO_HANDLER_P50 = PUSH + P50, TO_HANDLER + P50


def row(system: str, load: str) -> str:
    """Return the name of a row."""
    return f"{system}, {load}"


async def run(plan: Plan, sheet: Sheet, folder: Path) -> None:
    pythons = environments.prepare(folder, sheet)
    async with AsyncExitStack() as stack:
        crews: dict[str, fleet.Crew] = {}
        for system in fleet.SYSTEMS:
            if system.title not in (fleet.ZKRQ, fleet.SAQ, fleet.NATS):
                continue
            python = pythons[system.environment] if system.environment else Path(sys.executable)
            try:
                place = await stack.enter_async_context(places.opened(system.place))
                crews[system.title] = await stack.enter_async_context(fleet.running(system, python, place, WORKER))
            except (brokers.BrokerFailed, programs.ProgramFailed, TimeoutError) as error:
                sheet.remark(f"curve: {system.title}: not measured: {error or 'it took too long'}")
        reached = {title: await reach(crew) for title, crew in crews.items()}
        for _ in range(plan.repetitions):
            for part in plan.rows(PARTS, (10, 50, 90)):
                for title, crew in crews.items():
                    await paced(sheet, crew, f"{part} %", reached[title] * part / 100, plan.seconds(SECONDS))
            for crew in crews.values():
                await paced(sheet, crew, FIXED, FIXED_RATE, plan.seconds(SECONDS))


async def reach(crew: fleet.Crew) -> float:
    """Return the most items a second that were handled while the pace was doubled until the system fell behind."""
    pace, most = FIRST_PACE, 0.0
    while pace <= PACE_MOST:
        items = int(pace * SEARCH_SECONDS)
        await crew.round(items, pace)
        handled = items / crew.span
        most = max(most, handled)
        if handled < KEEPS_UP * pace:
            break
        pace *= 2
    return most


async def paced(sheet: Sheet, crew: fleet.Crew, load: str, pace: float, seconds: float) -> None:
    """Push at a pace, and note how long pushes and deliveries took."""
    pushes, deliveries, _ = await crew.round(max(1, int(pace * seconds)), pace)
    figures = {PACE: pace}
    for what, times in ((PUSH, pushes), (TO_HANDLER, deliveries)):
        figures |= {what + P50: percentile(times, 50) * 1000, what + P99: percentile(times, 99) * 1000}
    sheet.add(CURVE, row(crew.system.title, load), **figures)
    if load == FIXED:  # once for each system
        sheet.note(CURVE, row(crew.system.title, load), crew.settings)
