"""What all faults have in common."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from tests.chaos.client_process import SMALL_FILLING
from tests.chaos.stage import ClientProcess, Pace, Stage, until
from zkrq import local

EVIDENCE_TIMEOUT = 5.0
"""Seconds within which a fault must be seen to have happened."""


class Lane(enum.Enum):
    """Who suffers.  In a mixed run, one fault of each lane may be there at once."""

    REDIS = "redis"
    ZOOKEEPER = "zookeeper"
    CLIENT = "client"


class Fault(ABC):
    """One way for things to go wrong, again and again."""

    name: ClassVar[str]
    lane: ClassVar[Lane]
    filling: ClassVar[int] = SMALL_FILLING
    """Bytes of ballast in the largest items."""
    users: ClassVar[bool] = False
    """Whether each client has a password of its own; not in a mixed run, since restarted servers forget it."""
    alone: ClassVar[bool] = False
    """Whether it is left out of a mixed run for what it needs."""
    needs_catch_up: ClassVar[bool] = False
    """Whether a server may be out of the view afterwards, until it has been caught up."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.fired: int = 0

    @classmethod
    def seconds(cls, pace: Pace) -> float:
        """How long it lasts."""
        return pace.hold

    async def prepare(self) -> None:
        """Put there what has to be there before the load begins."""
        return

    async def look_back(self) -> None:
        """Add to the stage's troubles what does not hold when everything is drained."""
        return

    @abstractmethod
    async def begin(self) -> str:
        """Do it; returns to whom."""

    @abstractmethod
    async def end(self) -> None:
        """Undo it, as far as that is possible; also after a begin that was broken off."""

    def pick(self) -> local.LocalRedis:
        """A Redis server to suffer: in half of the cases, the one that decides for the queue."""
        servers = self.stage.servers.redis
        return self.stage.primary if self.stage.chance.random() < 0.5 else self.stage.chance.choice(servers)

    def pick_client(self) -> ClientProcess:
        return self.stage.chance.choice(self.stage.clients)


async def is_stopped(pid: int) -> bool:
    """Whether this process is stopped, as it should be in a moment."""
    stat = Path(f"/proc/{pid}/stat")
    return await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", EVIDENCE_TIMEOUT)
