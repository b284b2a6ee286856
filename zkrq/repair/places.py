"""Servers as a repair meets them: in a life of its own choosing, not only in the one that the view names."""

from __future__ import annotations

from collections.abc import Mapping

from zkrq.replication.copying import Place
from zkrq.replication.founding import identify
from zkrq.replication.replies import Answer, Status
from zkrq.replication.server import Identity, Server
from zkrq.replication.view import Life, ServerId
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


async def reserve(server: Server, run_id: str, repairer: str) -> None:
    """Take, or keep, the right to repair a server.  Raises ``NotNow``."""
    answer = await server.call("reserve", "", 0, Life(run_id, ""), [repairer, HOLD_MS])
    if answer.status is Status.TAKEN:
        raise Taken(f"server {server.id} is being repaired by another client")
    if answer.status is not Status.OK:
        raise NotNow(f"server {server.id}: {answer.reason}")
