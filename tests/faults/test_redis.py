"""Redis servers that die, hang, come back or run full while items flow; the queue must go on and lose nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

import zkrq
from tests.harness import HANG, new_namespace, over_zookeeper, settled, until
from zkrq import local
from zkrq.cluster import Cluster

pytestmark = pytest.mark.anyio

QUEUE = "jobs"


class Load:
    """Producers and consumers that go on whatever happens, and what they saw."""

    def __init__(self, cluster: Cluster) -> None:
        self._queue = cluster.queue(QUEUE)
        self._stop = False
        self._acking = 0
        self.pushed: set[str] = set()
        self.delivered: Counter[str] = Counter()
        self.acked: set[str] = set()
        self.revived: list[str] = []
        self.uncertain: list[str] = []

    async def produce(self) -> None:
        while not self._stop:
            id = zkrq.new_id()
            while True:
                try:
                    await self._queue.push({"id": id}, id=id)
                except (zkrq.OutcomeUnknown, zkrq.NotEnoughReplicas, zkrq.Unavailable):
                    self.uncertain.append(id)
                    await asyncio.sleep(0.05)
                else:
                    break
            self.pushed.add(id)
            await asyncio.sleep(0)

    async def consume(self) -> None:
        async for claim in self._queue.pop():
            if claim.id in self.acked:
                self.revived.append(claim.id)
            self.delivered[claim.id] += 1
            self._acking += 1
            try:
                await claim.ack()
            except (zkrq.OutcomeUnknown, zkrq.ClaimLost):
                continue
            finally:
                self._acking -= 1
            self.acked.add(claim.id)

    def progress(self, items: int) -> Callable[[], bool]:
        """A condition: so many items more were pushed and acked than now."""
        pushed, acked = len(self.pushed), len(self.acked)
        return lambda: len(self.pushed) >= pushed + items and len(self.acked) >= acked + items

    @asynccontextmanager
    async def running(self, producers: int = 8, consumers: int = 8) -> AsyncGenerator[None, None]:
        """Items flow; at the end everything is drained and nothing may be missing."""
        async with asyncio.TaskGroup() as group:
            producing = [group.create_task(self.produce()) for _ in range(producers)]
            consuming = [group.create_task(self.consume()) for _ in range(consumers)]
            await until(self.progress(200))
            yield
            self._stop = True
            await asyncio.wait(producing, timeout=HANG)
            await settled(self._is_drained)
            for task in consuming:
                task.cancel()
        assert self.pushed <= self.acked, f"lost: {self.pushed - self.acked}"
        assert not self.revived, "delivered again after an ack that had returned"

    async def _is_drained(self) -> bool:
        sizes = await self._queue.size()
        return sizes.ready + sizes.scheduled + sizes.claimed + self._acking == 0


def named(servers: local.Servers, name: str) -> local.LocalRedis:
    return next(server for server in servers.redis if server.name == name)


def primary(servers: local.Servers, cluster: Cluster) -> local.LocalRedis:
    return named(servers, cluster.view.primary(QUEUE))


def follower(servers: local.Servers, cluster: Cluster) -> local.LocalRedis:
    leading = cluster.view.primary(QUEUE)
    return named(servers, next(id for id in cluster.view.members if id != leading))


@pytest.mark.parametrize("which", [primary, follower])
async def test_a_server_is_killed_under_load(
    servers: local.Servers, which: Callable[[local.Servers, Cluster], local.LocalRedis]
) -> None:
    async with over_zookeeper(servers, new_namespace()) as cluster:
        load = Load(cluster)
        async with load.running():
            victim = which(servers, cluster)
            await victim.kill()
            await until(load.progress(500))
            assert victim.name not in cluster.view.members
            assert len(cluster.view.members) == 2
        assert not load.uncertain, "the pushes simply went on"
        assert max(load.delivered.values()) == 1


async def test_an_idle_client_notices_a_dead_server(servers: local.Servers) -> None:
    """At its next look for orphans, without any push or pop."""
    async with over_zookeeper(servers, new_namespace()) as cluster:
        victim = follower(servers, cluster)
        await victim.kill()
        cluster._reaper.look()  # pyright: ignore[reportPrivateUsage]
        await until(lambda: victim.name not in cluster.view.members)


@pytest.mark.parametrize("which", [primary, follower])
async def test_a_server_is_stopped_under_load_and_continued(
    servers: local.Servers, which: Callable[[local.Servers, Cluster], local.LocalRedis]
) -> None:
    """Stopped, it times out and is evicted; continued, it executes what waited for it, and nobody believes it."""
    async with over_zookeeper(servers, new_namespace(), command_timeout=1.0) as cluster:
        load = Load(cluster)
        async with load.running():
            victim = which(servers, cluster)
            victim.pause()
            await until(load.progress(500))
            assert victim.name not in cluster.view.members
            victim.resume()
            await until(load.progress(500))
            assert victim.name not in cluster.view.members


@pytest.mark.parametrize("wipe", [False, True], ids=["with its data", "empty"])
async def test_a_server_that_was_restarted_stays_out_of_the_view(servers: local.Servers, wipe: bool) -> None:
    """It holds old items, or none: either would be lost items and revived ones if it were believed."""
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace) as cluster:
        load = Load(cluster)
        async with load.running():
            victim = primary(servers, cluster)
            await victim.restart(wipe=wipe)
            await until(load.progress(500))
            assert victim.name not in cluster.view.members
        async with over_zookeeper(servers, namespace) as newcomer:
            assert victim.name not in newcomer.view.members
            await newcomer.queue(QUEUE).push("still works")


async def test_a_server_that_was_flushed_is_no_longer_believed(servers: local.Servers) -> None:
    async with over_zookeeper(servers, new_namespace()) as cluster:
        load = Load(cluster)
        async with load.running():
            victim = primary(servers, cluster)
            await command(victim, "FLUSHALL")
            await until(load.progress(500))
            assert victim.name not in cluster.view.members


async def test_a_server_that_becomes_a_replica_is_evicted(servers: local.Servers) -> None:
    async with over_zookeeper(servers, new_namespace()) as cluster:
        load = Load(cluster)
        async with load.running():
            victim, master = primary(servers, cluster), follower(servers, cluster)
            await command(victim, "REPLICAOF", master.host, str(master.port))
            await until(load.progress(500))
            assert victim.name not in cluster.view.members
            await command(victim, "REPLICAOF", "NO", "ONE")


async def test_two_of_three_servers_are_killed(servers: local.Servers) -> None:
    """Below min_replicas pushes are refused and say so; what is there can be claimed and acked."""
    events: list[zkrq.Event] = []
    async with over_zookeeper(servers, new_namespace(), on_event=events.append) as cluster:
        queue = cluster.queue(QUEUE)
        await queue.push_many(range(20))
        held = await queue.pop_many(5, timeout=HANG)
        first, second = (server for server in servers.redis if server.name != cluster.view.primary(QUEUE))
        await asyncio.gather(first.kill(), second.kill())
        with pytest.raises((zkrq.NotEnoughReplicas, zkrq.OutcomeUnknown)):
            while True:
                await queue.push("may not be promised")
        await asyncio.gather(*(claim.ack() for claim in held))
        with pytest.raises(zkrq.NotEnoughReplicas):
            await queue.push("refused at once, nothing written")
        assert set(cluster.view.eligible) == {first.name, second.name}
        seen: list[object] = []
        async for claim in queue.pop(wait=False):
            async with claim:
                seen.append(claim.item)
        assert seen[:15] == list(range(5, 20))
        assert "refused at once, nothing written" not in seen
        assert not cluster.health().ok
        assert sum(isinstance(event, zkrq.NotWritable) for event in events) == 1


async def test_all_servers_are_killed(servers: local.Servers) -> None:
    """Nothing can be promised, so nothing is; and nothing hangs."""
    async with over_zookeeper(servers, new_namespace(), operation_timeout=3) as cluster:
        queue = cluster.queue(QUEUE)
        await queue.push("x")
        for server in servers.redis:
            await server.kill()
        with pytest.raises((zkrq.Unavailable, zkrq.OutcomeUnknown)):
            await queue.push("y")
        with pytest.raises(zkrq.Unavailable):
            await queue.pop_one(timeout=1)
        with pytest.raises(zkrq.Unavailable):
            await queue.size()


async def test_a_full_server_refuses_pushes_and_drains(servers: local.Servers) -> None:
    """OOM is a refusal: nobody is evicted for it, and claims and acks go on."""
    async with over_zookeeper(servers, new_namespace(), operation_timeout=2) as cluster:
        queue = cluster.queue(QUEUE, codec=zkrq.RAW)
        await queue.push_many([bytes(1000)] * 100)
        try:
            for server in servers.redis:
                await command(server, "CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(zkrq.Unavailable, match="nothing was written"):
                await queue.push(b"too much")
            async for claim in queue.pop(wait=False):
                await claim.ack()
            assert await queue.size() == (0, 0, 0, 0)
            assert len(cluster.view.members) == 3
        finally:
            for server in servers.redis:
                await command(server, "CONFIG", "SET", "maxmemory", "0")
        await queue.push(b"room again")


async def command(server: local.LocalRedis, *words: str) -> bytes:
    """One command to one server; its reply's first line."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        writer.write(f"*{len(words)}\r\n".encode() + b"".join(f"${len(w)}\r\n{w}\r\n".encode() for w in words))
        async with asyncio.timeout(HANG):
            return await reader.readline()
    finally:
        writer.close()
        await writer.wait_closed()
