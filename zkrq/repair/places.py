"""Servers as a repair meets them: in a life of its own choosing, not only in the one that the view names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.view import Life, ServerId
from zkrq.replication.fleet import Fleet
from zkrq.replication.link import Identity

HOLD_MS = 10_000
"""How long the right to repair a server is kept without being renewed."""


class NotNow(Exception):
    """A repair cannot go on; it is tried again later.  Never leaves the package."""


class Taken(NotNow):
    """Another client is at it."""


async def meet(fleet: Fleet, servers: Iterable[ServerId]) -> dict[ServerId, Identity]:
    """Ask servers who they are; all must answer and be usable.  Raises ``NotNow``."""
    met: dict[ServerId, Identity] = {}
    for id, who in (await fleet.identify(servers)).items():
        if isinstance(who, Answer):
            raise NotNow(f"server {id}: {who.reason}")
        met[id] = who
    return met


class Reservation:
    """The right to repair a server, kept for as long as it is renewed now and then."""

    def __init__(self, fleet: Fleet, server: ServerId, run_id: str, repairer: str) -> None:
        self._fleet = fleet
        self._server = server
        self._life = Life(run_id, "")
        self._repairer = repairer
        self._until = float("-inf")

    async def take(self) -> None:
        """Take it, or keep it.  Raises ``NotNow``."""
        self._until = asyncio.get_running_loop().time() + HOLD_MS / 1000
        lives, arguments = {self._server: self._life}, [self._repairer, HOLD_MS]
        answer = (await self._fleet.ask(0, lives, "reserve", "", arguments))[self._server]
        if answer.status is Status.TAKEN:
            raise Taken(f"server {self._server} is being repaired by another client")
        if answer.status is not Status.OK:
            raise NotNow(f"server {self._server}: {answer.reason}")

    async def keep(self) -> None:
        """Renew it where half of its time is over.  Raises ``NotNow``."""
        if asyncio.get_running_loop().time() > self._until - HOLD_MS / 2000:
            await self.take()
