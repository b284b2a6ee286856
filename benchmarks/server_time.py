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

GROUP, USER_TIME, SYSTEM_TIME = 4, 13, 14
"""Fields of ``/proc/PID/stat``, counted from 0."""


def available() -> bool:
    """Whether this system tells."""
    return (PROC / "self" / "stat").exists()


def of_groups(groups: Iterable[int]) -> float:
    """Seconds of processor time that the living processes of these groups have taken so far."""
    wanted, ticks = set(groups), 0
    for file in PROC.glob("[0-9]*/stat"):
        try:
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[GROUP - AFTER_NAME]) in wanted:
            ticks += int(fields[USER_TIME - AFTER_NAME]) + int(fields[SYSTEM_TIME - AFTER_NAME])
    return ticks / os.sysconf("SC_CLK_TCK")
