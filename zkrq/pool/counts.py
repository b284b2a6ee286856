"""Count the children of a pool, and what they use, for metrics and probes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import Any, NamedTuple

from zkrq.pool.states import ChildState

_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

_TIMES, _RESIDENT = slice(11, 15), 21
"""Places in ``/proc/PID/stat`` behind the name of the program: times of the process and of its children; its pages."""


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Counts of the children of a worker: those in each state, and since the worker was made.

    ``died``: ended without being told to; ``died_by``: by which signal or exit code.  ``killed``: by SIGKILL, because a
    handler did not stop.  ``replaced``: after ``max_items`` or above ``max_memory``.  ``cpu_seconds``: of all, of
    running ones only on Linux.  ``memory``: resident bytes of running ones, on Linux; pages that several share count
    for each.
    """

    starting: int = 0
    idle: int = 0
    working: int = 0
    stopping: int = 0
    started: int = 0
    died: int = 0
    killed: int = 0
    replaced: int = 0
    died_by: Mapping[str, int] = field(default_factory=dict[str, int])
    cpu_seconds: float = 0.0
    memory: int = 0


class Used(NamedTuple):
    """What a process uses: seconds of processor time, and resident bytes."""

    seconds: float
    memory: int


def used_by(process: int) -> Used:
    """Read what a process uses, with the children that it has waited for; nothing if it is gone, or not on Linux."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            told = file.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return Used(0.0, 0)
    return Used(sum(map(int, told[_TIMES])) / _TICK, int(told[_RESIDENT]) * _PAGE)


class Tally:
    """Count what has become of children."""

    def __init__(self) -> None:
        self.started = self.killed = self.replaced = 0
        self._died_by = Counter({"SIGKILL": 0, "SIGSEGV": 0})
        self._seconds_of_ended = 0.0
        self._most_seconds = 0.0

    def die(self, how: str) -> None:
        """Count a child that has ended without being told to: the name of a signal, or an exit code."""
        self._died_by[how] += 1

    def spend(self, seconds: float) -> None:
        """Count the processor time of a child that has ended."""
        self._seconds_of_ended += seconds

    def statistics(self, children: Iterable[tuple[ChildState, int]]) -> PoolStatistics:
        """Return all counts, with these children: the state and the process of each."""
        states, used = Counter[ChildState](), list[Used]()
        for state, process in children:
            states[state] += 1
            if process:
                used.append(used_by(process))
        # A child that has ended is missing until that has been reported: a sum of this kind never falls.
        spent = self._seconds_of_ended + sum(each.seconds for each in used)
        self._most_seconds = max(self._most_seconds, spent)
        return PoolStatistics(
            starting=states[ChildState.STARTING],
            idle=states[ChildState.IDLE],
            working=states[ChildState.WORKING],
            stopping=states[ChildState.STOPPING],
            started=self.started,
            died=self._died_by.total(),
            killed=self.killed,
            replaced=self.replaced,
            died_by=dict(self._died_by),
            cpu_seconds=self._most_seconds,
            memory=sum(each.memory for each in used),
        )


class Shown(NamedTuple):
    """A pool that runs in this process: the names of its clusters, and what tells its counts."""

    clusters: frozenset[str]
    tell: Callable[[], PoolStatistics]


running: list[Shown] = []
"""The pools that run in this process."""


def of_cluster(name: str) -> PoolStatistics | None:
    """Return the counts of the pools that serve queues of this cluster, added up; None if there is none.

    Call this on their event loop.
    """
    pools = [pool.tell() for pool in running if name in pool.clusters]
    return reduce(_add, pools) if pools else None


def _add(one: PoolStatistics, other: PoolStatistics) -> PoolStatistics:
    died_by = Counter(one.died_by)
    died_by.update(other.died_by)
    names = (each.name for each in fields(PoolStatistics) if each.name != "died_by")
    sums: dict[str, Any] = {name: getattr(one, name) + getattr(other, name) for name in names}
    return PoolStatistics(**sums, died_by=died_by)
