"""Describe what a client knows about its servers and its session, without asking any of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zkrq.protocol.shards import FIRST
from zkrq.protocol.view import ServerId, View
from zkrq.repair.progress import Progress


class ServerHealth(NamedTuple):
    """Describe one server as this client sees it.

    ``place``: member, learner, eligible or out, as the view says.  ``connected``: whether this client has a connection
    to it.  ``catching_up``: the progress of the catch-up that this client runs for it, None without one.
    ``shard``: the shard that it is in.
    """

    place: str
    connected: bool
    catching_up: Progress | None = None
    shard: str = FIRST


class Health(NamedTuple):
    """Describe a client and its servers.

    ``ok``: as far as this client knows, a push and a claim would succeed now in every shard.  ``session``: the state of
    its ZooKeeper session.  ``epoch``: of the first shard's view.  ``trouble``: what fails for this client, though it
    may work for others: servers that refuse it, wake-ups that it may not receive, and shards that are away.
    """

    ok: bool
    session: str
    epoch: int
    servers: Mapping[str, ServerHealth]
    trouble: tuple[str, ...] = ()


def place_of(server: ServerId, view: View) -> str:
    """Name the place of a server in the view."""
    if server in view.members:
        return "member"
    if server in view.learners:
        return "learner"
    return "eligible" if server in view.eligible else "out"
