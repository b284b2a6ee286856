"""Servers as a repair meets them: in a life of its own choosing, not only in the one that the view names."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.view import Life, ServerId
from zkrq.replication.copying import Place
from zkrq.replication.founding import identify
from zkrq.replication.link import Identity
from zkrq.replication.server import Server
from zkrq.replication.wire import Arguments

HOLD_MS = 10_000
"""How long the right to repair a server is kept without being renewed."""


class NotNow(Exception):
    """A repair cannot go on; it is tried again later.  Never leaves the package."""


class Taken(NotNow):
    """Another client is at it."""


def place(server: Server, epoch: int, life: Life) -> Place:
    """A server in one life under one epoch."""

    async def call(script: str, queue: str, arguments: Arguments) -> Answer:
        return await server.call(script, queue, epoch, life, arguments)

    return Place(server.id, call)


async def meet(servers: Mapping[ServerId, Server]) -> dict[ServerId, Identity]:
    """Ask servers who they are; all must answer and be usable.  Raises ``NotNow``."""
    met: dict[ServerId, Identity] = {}
    for id, who in (await identify(servers)).items():
        if isinstance(who, Answer):
            raise NotNow(f"server {id}: {who.reason}")
        met[id] = who
    return met


class Reservation:
    """The right to repair a server, kept for as long as it is renewed now and then."""

    def __init__(self, server: Server, run_id: str, repairer: str) -> None:
        self._server = server
        self._life = Life(run_id, "")
        self._repairer = repairer
        self._until = float("-inf")

    async def take(self) -> None:
        """Take it, or keep it.  Raises ``NotNow``."""
        self._until = asyncio.get_running_loop().time() + HOLD_MS / 1000
        answer = await self._server.call("reserve", "", 0, self._life, [self._repairer, HOLD_MS])
        if answer.status is Status.TAKEN:
            raise Taken(f"server {self._server.id} is being repaired by another client")
        if answer.status is not Status.OK:
            raise NotNow(f"server {self._server.id}: {answer.reason}")

    async def keep(self) -> None:
        """Renew it where half of its time is over.  Raises ``NotNow``."""
        if asyncio.get_running_loop().time() > self._until - HOLD_MS / 2000:
            await self.take()
