"""Share the frame of the programs that make flows: many members, and one item that continues when all have ended.

A program is told what to do line by line, and answers each with a line; both are JSON.

    {"flows": 3, "members": 10}     flows one after the other: seconds of each, and milliseconds to what continues
    {"slow": 2000, "patience": 60}  one flow of slow members: a line when half of them have run, then what became of it

Like the other programs of this folder, these import nothing of zkrq.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.common import say

CONCURRENCY = 8
"""Members that run at the same time."""

SLOW = 0.02
"""Seconds that a slow member takes."""

POLL = 0.02
AFTERWARDS = 3.0
"""Seconds for which a second continuation is waited for."""

Make = Callable[[str, int, float], Awaitable[object]]
"""Make a flow of this name, of this many members, each of which takes this many seconds."""


@dataclass(slots=True)
class Notes:
    """What handlers have told: when each member ended, and when what continues began, by flow."""

    ended: dict[str, dict[int, list[float]]] = field(
        default_factory=lambda: defaultdict[str, dict[int, list[float]]](lambda: defaultdict(list))
    )
    continued: dict[str, list[float]] = field(default_factory=lambda: defaultdict[str, list[float]](list))

    def end(self, flow: str, member: int, at: float | None = None) -> None:
        self.ended[flow][member].append(time.time() if at is None else at)

    def go_on(self, flow: str, at: float | None = None) -> None:
        self.continued[flow].append(time.time() if at is None else at)

    def last_end(self, flow: str) -> float:
        return max(moment for moments in self.ended[flow].values() for moment in moments)


async def serve(make: Make, notes: Notes, settings: str) -> None:
    """Say the settings, then do what each line of the standard input says."""
    say(settings)
    number = 0
    while line := await asyncio.to_thread(sys.stdin.readline):
        told: dict[str, Any] = json.loads(line)
        number += 1
        if "slow" in told:
            say(await _slow(make, notes, f"slow-{number}", told["slow"], told["patience"]))
        else:
            say(await _several(make, notes, number, told["flows"], told["members"]))


async def _several(make: Make, notes: Notes, number: int, flows: int, members: int) -> dict[str, Any]:
    seconds, late = list[float](), list[float]()
    for each in range(flows):
        flow, began = f"flow-{number}-{each}", time.time()
        await make(flow, members, 0.0)
        while not notes.continued[flow]:  # noqa: ASYNC110 - handlers may be in other processes
            await asyncio.sleep(POLL)
        seconds.append(notes.continued[flow][0] - began)
        late.append((notes.continued[flow][0] - notes.last_end(flow)) * 1000)
    return {"seconds": seconds, "late": late}


async def _slow(make: Make, notes: Notes, flow: str, members: int, patience: float) -> dict[str, Any]:
    making = asyncio.ensure_future(make(flow, members, SLOW))
    while len(notes.ended[flow]) < members / 2:  # noqa: ASYNC110
        await asyncio.sleep(POLL)
    say("half")
    end = time.time() + patience
    while not notes.continued[flow] and time.time() < end:  # noqa: ASYNC110
        await asyncio.sleep(POLL)
    if notes.continued[flow]:
        await asyncio.sleep(AFTERWARDS)
    await asyncio.wait([making], timeout=0)
    times = Counter(len(moments) for moments in notes.ended[flow].values())
    first = min(notes.continued[flow], default=None)
    return {
        "ran": sum(times.values()),
        "again": sum(count for often, count in times.items() if often > 1),
        "continued": len(notes.continued[flow]),
        "after": None if first is None else first - notes.last_end(flow),
        "early": first is not None
        and (sum(times.values()) < members or any(moments[0] > first for moments in notes.ended[flow].values())),
    }
