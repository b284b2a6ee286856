"""Describe what a client knows about its servers and its session, without asking any of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from zkrq.protocol.shards import FIRST

if TYPE_CHECKING:
    from zkrq.protocol.view import ServerId, View
    from zkrq.repair.progress import Progress


class ServerHealth(NamedTuple):
    """Describe one server as this client sees it.

    ``place``: member, learner, eligible or out, as the view says.  ``connected``: whether this client has a connection
    to it.  ``catching_up``: the progress of the catch-up that this client runs for it, None without one.
    ``shard``: the shard that it is in.  ``out_since``: when it left the servers in sync, in UTC, by the clock of the
    client that evicted it; None if it is in sync, or has not been yet.  ``reason``: why it could not be brought back
    when this client last tried, or why a client that only looks could not ask it; None if it does not know.
    ``version``: of Redis, or of the one that Valkey says it is like; empty while it is not connected.
    """

    place: str
    connected: bool
    catching_up: Progress | None = None
    shard: str = FIRST
    out_since: datetime | None = None
    reason: str | None = None
    version: str = ""


class Health(NamedTuple):
    """Describe a client and its servers.

    ``ok``: as far as this client knows, a push and a claim would succeed now in every shard.  ``session``: the state of
    its ZooKeeper session.  ``epoch``: of the first shard's view.  ``trouble``: why not: servers that refuse this
    client, though they may work for others, wake-ups that it may not receive, shards that are away, and too few servers
    in sync, or none that can be used, with the reasons that are known.  ``warnings``: what works still, with less
    redundancy than it should have: which servers are not in sync, since when and why, and how many more failures stop
    pushes; clocks that differ; and queues with damaged entries that are set aside, as far as this client has looked for
    them.
    """

    ok: bool
    session: str
    epoch: int
    servers: Mapping[str, ServerHealth]
    trouble: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def place_of(server: ServerId, view: View) -> str:
    """Name the place of a server in the view."""
    if server in view.members:
        return "member"
    if server in view.learners:
        return "learner"
    return "eligible" if server in view.eligible else "out"


def lost_redundancy(view: View, servers: Mapping[str, ServerHealth], now: datetime, shard: str = "") -> list[str]:
    """Describe which servers of a view are not in sync, and what the next failure would do; empty if all are in sync.

    ``servers``: those of the view.  ``shard``: its name, empty if there is only one.
    """
    absent = {
        id: servers.get(id) or ServerHealth(place_of(id, view), connected=False)
        for id in view.servers
        if id not in view.members
    }
    if not absent:
        return []
    state = [
        f"{len(view.members)} of {len(view.servers)} servers in sync",
        ", ".join(_describe_absence(id, server, now) for id, server in absent.items()),
        _next_failure(len(view.members), view.min_replicas),
    ]
    reasons = [
        f"{id} is not brought back: {server.reason}"
        for id, server in absent.items()
        if server.reason and server.place != "learner"
    ]
    return [f"shard {shard}: {text}" if shard else text for text in ("; ".join(state), *reasons)]


def no_server_usable(reasons: Mapping[ServerId, str], shard: str = "") -> tuple[str, ...]:
    """Describe why no server in sync can be used, with each reason once; empty without reasons.

    ``shard``: its name, empty for the first one.
    """
    if not reasons:
        return ()
    servers: dict[str, list[str]] = {}
    for id, reason in sorted(reasons.items()):
        servers.setdefault(reason, []).append(id)
    text = "; ".join(f"{', '.join(ids)}: {reason}" for reason, ids in servers.items())
    return (f"{f'shard {shard}: ' if shard else ''}no server in sync can be used: {text}",)


def _describe_absence(id: str, server: ServerHealth, now: datetime) -> str:
    place = "being caught up, out" if server.place == "learner" else "out"
    if server.out_since is None:
        return f"{id} {place.removesuffix(', out')}"
    form = "%H:%M" if now - server.out_since < timedelta(hours=12) else "%Y-%m-%d %H:%M"
    return f"{id} {place} since {server.out_since.strftime(form)} UTC"


def _next_failure(members: int, needed: int) -> str:
    spare = members - needed
    if spare < 0:
        return f"pushes wait until {needed} are"
    return "one more failure stops pushes" if spare == 0 else f"{spare + 1} more failures stop pushes"
