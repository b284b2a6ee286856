"""The stage of faults: real servers that scenarios stop, clients that enter and leave, and the verbs of both.

A scenario takes one of the stages of ``conftest.py``: its clients share a namespace of their own.  A client enters as
an ``Actor``, which notes the events that it is told; the stage stops servers and says what the first client sees then.
Every client that is left closes in the end, before the servers start again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import zkrq
from tests.harness import HANG, drain, in_process, is_whole, new_namespace, over_zookeeper, until, whole_again
from tests.load import QUEUE, Load
from zkrq import local
from zkrq.client.cluster import Cluster
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.protocol.view import ServerId, View
from zkrq.replication.fleet import Fleet

E = TypeVar("E", bound=zkrq.Event)


class Actor:
    """A client, the queue that its verbs are about, and the events that it was told."""

    def __init__(self, cluster: Cluster, told: list[zkrq.Event], **options: Any) -> None:
        self.cluster = cluster
        self.told = told
        given: dict[str, Any] = {"name": QUEUE, **options}
        self.queue: zkrq.Queue[Any] = cluster.queue(**given)

    @property
    def view(self) -> View:
        return self.cluster.view

    @property
    def fleet(self) -> Fleet:
        """Its connections, to ask single servers."""
        return self.cluster._client.shard.membership.fleet  # pyright: ignore[reportPrivateUsage]

    def events(self, kind: type[E]) -> list[E]:
        """Return the events of one kind that it reported."""
        return [event for event in self.told if isinstance(event, kind)]

    async def expect_event(self, kind: type[E]) -> E:
        """Wait until it is told the first event of a kind."""
        await until(lambda: bool(self.events(kind)))
        return self.events(kind)[0]

    async def push(self, item: object, **options: Any) -> zkrq.Receipt:
        return await self.queue.push(item, **options)

    async def push_all(self, items: Iterable[object]) -> None:
        await self.queue.push_many(items)

    async def claim(self) -> zkrq.Claim[Any]:
        """Claim the next item, which has to come."""
        claim = await self.queue.pop_one(timeout=HANG)
        assert claim is not None
        return claim

    async def claim_all(self, count: int) -> list[zkrq.Claim[Any]]:
        """Claim as many items, which have to come, one after another."""
        return [claim async for claim in self.queue.pop(limit=count)]

    async def ack(self, count: int = 1) -> None:
        """Claim and ack the next items."""
        for _ in range(count):
            await (await self.claim()).ack()

    async def drain(self, queue: str = QUEUE) -> list[object]:
        """Ack everything that is ready; return the items."""
        return await drain(self.cluster, queue)

    def look(self) -> None:
        """Look after the servers now instead of after a pause."""
        self.cluster._client.shard.probe.look()  # pyright: ignore[reportPrivateUsage]

    async def close(self) -> None:
        await self.cluster.aclose()


class Stage:
    """The servers of a scenario, and its clients: over ZooKeeper, or with the coordinator ``hub`` in this process."""

    def __init__(self, servers: local.Servers, hub: Hub | None, namespace: str | None = None) -> None:
        """``namespace``: that of another stage; None: one of its own."""
        self.servers = servers
        self.hub = hub
        self.namespace = namespace or new_namespace()
        self.actors: list[Actor] = []

    # -- who is there -------------------------------------------------------------------------------------------------

    def client(self, **options: Any) -> Cluster:
        """Make a client that is not open.  ``urls``, without ZooKeeper: of servers that it reaches in another way."""
        if self.hub:
            return in_process(self.servers, self.namespace, self.hub, **options)
        return over_zookeeper(self.servers, self.namespace, **options)

    def environment(self, **options: str) -> dict[str, str]:
        """Return the environment of a command over ZooKeeper; ``options``: by the names of their variables."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("ZKRQ_", "NOTIFY_"))},
            "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in self.servers.redis_urls.items()),
            "ZKRQ_ZOOKEEPER": self.servers.zookeeper_hosts,
            "ZKRQ_NAMESPACE": self.namespace,
            **options,
        }

    async def enter(self, queue: dict[str, Any] | None = None, **options: Any) -> Actor:
        """Open a client.  ``queue``: options of its queue, the name if it is another one; ``options``: its own."""
        told: list[zkrq.Event] = []
        cluster = self.client(on_event=told.append, **options)
        await cluster.open()
        self.actors.append(Actor(cluster, told, **(queue or {})))
        return self.actors[-1]

    @asynccontextmanager
    async def visit(self, queue: dict[str, Any] | None = None, **options: Any) -> AsyncGenerator[Actor]:
        """A client that is open within the block; see ``enter``."""
        actor = await self.enter(queue, **options)
        try:
            yield actor
        finally:
            self.actors.remove(actor)
            await actor.close()

    async def exeunt(self) -> None:
        """Close every client, the last one first; one that is closed stays so."""
        while self.actors:
            await self.actors.pop().close()

    @property
    def cluster(self) -> Cluster:
        """The first client, whose view the stage goes by."""
        return self.actors[0].cluster

    @property
    def view(self) -> View:
        return self.cluster.view

    def primary(self, queue: str = QUEUE) -> local.LocalRedis:
        return self.server(self.view.primary(queue))

    def followers(self, queue: str = QUEUE) -> list[local.LocalRedis]:
        """The members beside the primary."""
        return [self.server(id) for id in self.view.members if id != self.view.primary(queue)]

    def server(self, name: str) -> local.LocalRedis:
        return next(server for server in self.servers.redis if server.name == name)

    def is_member(self, server: local.LocalRedis) -> bool:
        return server.name in self.view.members

    @asynccontextmanager
    async def load(self, producers: int = 8, consumers: int = 8) -> AsyncGenerator[Load]:
        """Items that flow through the first client; in the end nothing may be missing, and nothing revived."""
        load = Load(self.cluster)
        async with load.running(producers, consumers):
            yield load

    # -- what goes wrong ----------------------------------------------------------------------------------------------

    async def kill(self, *servers: local.LocalRedis) -> None:
        """Kill servers at the same time, or all."""
        await asyncio.gather(*(server.kill() for server in servers or self.servers.redis))

    async def start(self, *servers: local.LocalRedis) -> None:
        """Start servers with what their disks have, or all."""
        await asyncio.gather(*(server.start() for server in servers or self.servers.redis))

    async def restart_empty(self, *servers: local.LocalRedis) -> None:
        """Restart servers, running or not, without their data."""
        await asyncio.gather(*(server.restart(wipe=True) for server in servers))

    async def move_on(self, server: local.LocalRedis) -> None:
        """A server loses its data, leaves the view and comes back, so that the view moves on."""
        epoch = self.view.epoch
        await self.restart_empty(server)
        await until(lambda: is_whole(self.cluster, epoch) and self.view.epoch >= epoch + 3)

    async def recover(self, *servers: local.LocalRedis) -> zkrq.Recovered:
        """Name servers to go on with, as an operator does, by a client of its own; return what that is told."""
        told: list[zkrq.Event] = []
        await self.client(on_event=told.append).recover([server.name for server in servers])
        return next(event for event in told if isinstance(event, zkrq.Recovered))

    # -- what is to be seen -------------------------------------------------------------------------------------------

    async def expect_evicted(self, server: local.LocalRedis) -> None:
        await until(lambda: not self.is_member(server))

    async def expect_whole(self, after: int = 0) -> None:
        """All servers are in sync, in a view later than that epoch."""
        await until(lambda: is_whole(self.cluster, after))

    @asynccontextmanager
    async def out_and_back(self) -> AsyncGenerator[View]:
        """The view moves on from what it is now, and all servers are in sync again."""
        before = self.view
        yield before
        await whole_again(self.cluster, before)

    def life(self, server: local.LocalRedis) -> Any:
        """The life of a server that the view names."""
        return self.view.members[ServerId(server.name)]


def hub_of(stage: Stage) -> Hub:
    """Return the coordinator of a stage that has it in this process."""
    assert stage.hub
    return stage.hub


def coordinator_of(actor: Actor) -> MemoryCoordinator:
    """Return a client's side of that coordinator."""
    coordinator = actor.cluster._client.coordinator  # pyright: ignore[reportPrivateUsage]
    assert isinstance(coordinator, MemoryCoordinator)
    return coordinator
