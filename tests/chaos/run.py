"""One run: clients at work, a fault every few seconds, then everything is healed, drained and counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from tests.chaos.checker import Outcome, check
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.record import Entry, Kind
from tests.chaos.stage import Pace, Stage, dismiss, quiesce, set_stage, until
from zkrq import local

MIXED = "mixed"
"""All faults in one run; up to one of each lane at once."""

MIXED_MAX = 10.0
"""Seconds: what lasts longer is left out of a mixed run, or shortened to half of that."""

NAMES = (*FAULTS, MIXED)

STEADY = 50
"""Pushes and settlings that must succeed before the first fault, and again after the last."""

STEADY_TIMEOUT = 30.0

SLACK = 150.0
"""Seconds that everything but load and faults may take together: connecting, healing, catching up, draining, ending."""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one run.  ``troubles`` are what else did not go as it should, as sentences."""

    fault: str
    min_replicas: int
    seed: str
    fired: int
    outcome: Outcome
    troubles: tuple[str, ...]
    entries: Sequence[Entry]

    @property
    def ok(self) -> bool:
        return not (self.outcome.broken or self.troubles)


def usual(fault: str, pace: Pace) -> float:
    """Seconds that a run spends on load and faults."""
    tempered = _tempered(fault, pace)
    return max(pace.seconds, *(kind.seconds(tempered) for kind in _kinds(fault, pace)))


def bound(fault: str, pace: Pace) -> float:
    """Seconds after which a run is over, whatever happens."""
    return 2 * usual(fault, pace) + SLACK  # a fault may begin when the time is almost up


async def run(
    servers: local.Servers, fault: str, namespace: str, *, min_replicas: int, pace: Pace, seed: str, directory: Path
) -> Run:
    """Play one run on these servers, which are whole again afterwards; the entries are left in ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    limit = bound(fault, pace)
    tempered, kinds = _tempered(fault, pace), _kinds(fault, pace)
    try:
        async with (
            asyncio.timeout(limit),
            set_stage(
                servers,
                directory,
                namespace,
                min_replicas=min_replicas,
                pace=tempered,
                seed=seed,
                filling=max(kind.filling for kind in kinds),
                users=any(kind.users for kind in kinds),
            ) as stage,
        ):
            faults = [kind(stage) for kind in kinds]
            left = await _play(stage, faults)
            stage.look()
    except TimeoutError:
        # What it left behind says nothing of what is promised.
        return Run(fault, min_replicas, seed, 0, check([], {}, notice=0), (f"it was not over after {limit:g} s",), [])
    fired = sum(fault.fired for fault in faults)
    if not fired:
        stage.troubles.append("the fault never happened")
    outcome = check(stage.journal.entries, left, notice=pace.claim_timeout)
    return Run(fault, min_replicas, seed, fired, outcome, tuple(stage.troubles), stage.journal.entries)


def _kinds(fault: str, pace: Pace) -> list[type[Fault]]:
    if fault != MIXED:
        return [FAULTS[fault]]
    tempered = _tempered(fault, pace)
    return [kind for kind in FAULTS.values() if kind.seconds(tempered) <= MIXED_MAX and not kind.alone]


def _tempered(fault: str, pace: Pace) -> Pace:
    if fault != MIXED:
        return pace
    return replace(pace, zookeeper_down=min(pace.zookeeper_down, MIXED_MAX / 2), once=False)


async def _play(stage: Stage, faults: list[Fault]) -> dict[str, str]:
    """The run itself; returns what is left in the queue."""
    pace = stage.pace
    for fault in faults:
        await fault.prepare()
    await move(stage, "in the beginning")
    stage.note(Kind.LOAD_BEGUN)
    try:
        deadline = time.monotonic() + pace.seconds
        async with asyncio.TaskGroup() as lanes:
            for _, members in groupby(sorted(faults, key=_lane), key=_lane):
                lanes.create_task(_strike(stage, list(members), deadline))
            await asyncio.sleep(pace.seconds)
    finally:
        await stage.heal()
    await stage.become_whole(pace.whole)
    await move(stage, "after the last fault")
    stage.note(Kind.LOAD_ENDED)
    await quiesce(stage)
    left = await drain(stage)
    for fault in faults:
        await fault.look_back()
    stage.note(Kind.DISMISSED)
    await dismiss(stage)
    return left


def _lane(fault: Fault) -> str:
    return fault.lane.value


async def move(stage: Stage, when: str) -> None:
    """Wait until work has gone on for a while."""
    stage.look()
    enough = stage.progress + STEADY

    def moved() -> bool:
        stage.look()
        return stage.progress >= enough

    if not await until(moved, STEADY_TIMEOUT):
        stage.troubles.append(f"nothing moved {when}")


async def _strike(stage: Stage, faults: list[Fault], deadline: float) -> None:
    """One fault after the other, of one lane, until the deadline; the first one in any case."""
    pace = stage.pace
    while True:
        fault = stage.chance.choice(faults)
        if fault.needs_catch_up and not await stage.become_whole(pace.whole):
            return
        await _inflict(fault)
        if pace.once:
            return
        await asyncio.sleep(stage.chance.uniform(0, pace.pause))
        if time.monotonic() >= deadline:
            return


async def _inflict(fault: Fault) -> None:
    stage, begun = fault.stage, time.monotonic()
    told = fault.name
    try:
        told = f"{fault.name} {await fault.begin()}"
        stage.note(Kind.FAULT_BEGUN, told, at=begun)
        await asyncio.sleep(fault.seconds(stage.pace))
    finally:
        await fault.end()
        stage.note(Kind.FAULT_ENDED, told)


async def drain(stage: Stage) -> dict[str, str]:
    """Wait until the queue is empty; returns what is in it all the same when the time is up."""
    deadline = time.monotonic() + stage.pace.drain
    while (left := await stage.left_over()) and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    return left
