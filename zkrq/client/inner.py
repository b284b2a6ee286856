"""Reach what is inside a cluster: for other modules of the library, not for users.

The command line, too, asks here what the public calls do not tell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol, cast

from zkrq.base.tasks import together
from zkrq.client.addresses import check_shard
from zkrq.protocol import calls
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.view import ServerId
from zkrq.replication.urls import address

if TYPE_CHECKING:
    from zkrq.client.client import Client
    from zkrq.client.cluster import Cluster
    from zkrq.client.shard import Shard
    from zkrq.protocol.server_info import ServerInfo

client_of = cast("Callable[[Cluster], Client]", attrgetter("_client"))
"""Return the client inside a cluster."""


class Inner(Protocol):
    """A cluster, or one for threads, which has a cluster inside once it is open."""

    def _opened(self) -> Cluster | None: ...


def opened_of(cluster: Inner) -> Cluster | None:
    """Return the asynchronous cluster, None if this process has not opened it."""
    return cluster._opened()  # pyright: ignore[reportPrivateUsage]


async def remembered_queues(cluster: Cluster) -> list[str]:
    """List all queues of which the servers remember something, also deleted ones.  Raises ``Unavailable``."""
    return await cluster._remembered()  # pyright: ignore[reportPrivateUsage]


async def read_servers(cluster: Cluster) -> Mapping[str, ServerInfo]:
    """Ask the servers for their reports about themselves; those that do not answer are left out.

    Servers without a connection are not asked, because that would wait for them.
    """
    found: dict[str, ServerInfo] = {}
    for shard in client_of(cluster).shards.open.values():
        met = [id for id in shard.view.receivers if shard.fleet.servers[id].identity]
        told = await shard.fleet.identify(met)
        found |= {id: who for id, who in told.items() if not isinstance(who, Answer)}
    return found


async def check_answers(cluster: Cluster, shard: str, url: str) -> None:
    """Raise ``ConfigError`` or ``Unavailable`` if no server that a shard could use answers at a URL."""
    await client_of(cluster).shards.find(check_shard(shard)).roster.check(ServerId(address(url)), url)


async def copied_by_learners(cluster: Cluster, queues: Collection[str]) -> Mapping[str, float]:
    """Return how much of their shard's items of these queues the learners have, in percent.  Raises ``Unavailable``."""
    shards = [shard for shard in client_of(cluster).shards.open.values() if not shard.away]
    found = await together(_copied_in(shard, queues) for shard in shards)
    return {id: percent for each in found for id, percent in each.items()}


async def _copied_in(shard: Shard, queues: Collection[str]) -> Mapping[str, float]:
    view, fleet = shard.view, shard.fleet
    if not view.learners:
        return {}
    counts = await together(shard.replicas.ask(calls.Count(name)) for name in queues)
    whole = sum(of.ready + of.scheduled + of.claimed + of.dead for of in counts)
    has = dict.fromkeys(view.learners, 0)
    for name in queues:
        call = calls.Count(name)
        for id, answer in (await fleet.ask_in(view, view.learners, call)).items():
            if answer.status is Status.OK:
                has[id] += sum(call.read(answer.body)[:4])  # as in sizes
    return {id: min(100.0, 100 * count / whole) if whole else 100.0 for id, count in has.items()}
