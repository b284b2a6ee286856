"""The processor time of servers of any kind, read where Linux keeps it.

All private servers of a contestant are in one process group (``zkrq.local.guard``), so a group is what is measured:
also what a broker starts by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")

AFTER_NAME = 2
"""``/proc/PID/stat``: number of the first field after the process's name, which is in brackets and may hold spaces."""

PARENT, GROUP, USER_TIME, SYSTEM_TIME = 3, 4, 13, 14
"""Fields of ``/proc/PID/stat``, counted from 0."""


def available() -> bool:
    """Whether this system tells."""
    return (PROC / "self" / "stat").exists()


def of_groups(groups: Iterable[int]) -> float:
    """Seconds of processor time that the living processes of these groups have taken so far, and all that descend
    from them: processes of a pool lead groups of their own."""
    wanted = set(groups)
    parents, ticks, counted = dict[int, int](), dict[int, int](), set[int]()
    for file in PROC.glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        process = int(file.parent.name)
        parents[process] = int(fields[PARENT - AFTER_NAME])
        ticks[process] = int(fields[USER_TIME - AFTER_NAME]) + int(fields[SYSTEM_TIME - AFTER_NAME])
        if int(fields[GROUP - AFTER_NAME]) in wanted:
            counted.add(process)
    while more := {process for process, parent in parents.items() if parent in counted} - counted:
        counted |= more
    return sum(ticks[process] for process in counted) / os.sysconf("SC_CLK_TCK")
