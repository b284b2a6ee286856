"""Disaster recovery, rehearsed: all servers lost but one disk, and ZooKeeper lost altogether."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import zkrq
from tests.faults.servers import kill_all, servers_with_disks
from tests.harness import (
    command,
    drain,
    in_process,
    is_whole,
    new_namespace,
    over_zookeeper,
    settled,
    take,
    until,
)
from zkrq import local
from zkrq.base import events
from zkrq.base.settings import Settings
from zkrq.client import schedule_store
from zkrq.client.cluster import Cluster
from zkrq.coordination.coordinator import VIEW
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.protocol.enrolment import enrol
from zkrq.protocol.keys import key
from zkrq.protocol.replies import Answer
from zkrq.protocol.shards import ShardName
from zkrq.protocol.steps import NotNow, Operation
from zkrq.replication.urls import dial

pytestmark = pytest.mark.anyio

QUEUE = "jobs"


# -- all servers lost but one disk -------------------------------------------------------------------------------------


async def test_all_servers_are_lost_but_one_disk_and_the_machines_come_back_empty() -> None:
    """Whichever disk it is: a push returned when every server in sync had the item."""
    namespace, hub = new_namespace(), Hub()
    async with servers_with_disks() as servers:
        for kept in servers.redis:
            async with in_process(servers, namespace, hub) as cluster:
                await cluster.queue(QUEUE).push_many(range(100))
            await kill_all(servers)
            others = [server for server in servers.redis if server is not kept]
            await asyncio.gather(kept.start(), *(server.restart(wipe=True) for server in others))
            told: list[zkrq.Event] = []
            async with in_process(servers, namespace, hub, on_event=told.append) as cluster:
                assert await drain(cluster) == list(range(100))
                await until(lambda: is_whole(cluster))
            recovered = next(event for event in told if isinstance(event, events.Recovered))
            assert (recovered.servers, set(recovered.missing)) == ((kept.name,), {each.name for each in others})


async def test_all_servers_are_lost_but_one_disk_and_the_others_never_come_back() -> None:
    namespace, hub = new_namespace(), Hub()
    async with servers_with_disks() as servers, local.servers(redis=2, zookeeper=0) as new:
        async with in_process(servers, namespace, hub) as cluster:
            await cluster.queue(QUEUE).push_many(range(100))
        await kill_all(servers)
        await servers.redis[1].start()
        with pytest.raises(zkrq.Unavailable, match="`zkrq servers recover redis-2`"):
            await in_process(servers, namespace, hub, operation_timeout=1.0).open()
        await in_process(servers, namespace, hub).recover(["redis-2"])
        async with in_process(servers, namespace, hub) as cluster:
            with pytest.raises(zkrq.NotEnoughReplicas):
                await cluster.queue(QUEUE).push("below min_replicas")
            assert not cluster.health().ok
            await cluster.add_server(new.redis[0].url, name="new-1")  # and now it is on two servers again
            await cluster.add_server(new.redis[1].url, name="new-2")
            for lost in "redis-1", "redis-3":
                await cluster.remove_server(lost)
            await cluster.queue(QUEUE).push(100)
            assert await drain(cluster) == list(range(101))
            assert is_whole(cluster)


# -- ZooKeeper lost altogether -----------------------------------------------------------------------------------------


async def ten_seconds_later(servers: local.Servers, namespace: str) -> None:
    """After a repair, so that the servers can be taken again."""
    for server in servers.redis:
        if server.running:
            await command(server, "HDEL", key(namespace, "", "server"), "repairer")


async def refound(servers: local.Servers, namespace: str, hub: Hub, *named: str) -> None:
    await ten_seconds_later(servers, namespace)
    await in_process(servers, namespace, hub).recover(named, without_zookeeper=True)


async def test_zookeeper_is_lost_altogether_while_clients_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real one, its disk included.  A client that was connected goes on when the namespace is there again, and with
    the schedules that its code declares."""
    monkeypatch.setattr(schedule_store, "READ_SECONDS", 0.1)
    namespace = new_namespace()
    async with local.servers(redis=3, zookeeper=1) as servers, over_zookeeper(servers, namespace) as running:
        queue = running.queue(QUEUE)
        await queue.push_many(range(100))
        held = await take(queue)
        await running.queue("keys").push("with a key", key="k", id="i")
        epoch = running.view.epoch
        nightly = running.every(0.2, running.queue("reports"), 1, name="nightly")
        await until(lambda: nightly.last is not None)
        await servers.zookeeper[0].kill()
        await servers.zookeeper[0].restart(wipe=True)

        with pytest.raises(zkrq.ConfigError, match="does not exist here"):
            await over_zookeeper(servers, namespace, found=False).open()
        with pytest.raises(zkrq.ConfigError, match=r"holds items of namespace .* but ZooKeeper knows no view"):
            await over_zookeeper(servers, namespace).open()
        with pytest.raises(zkrq.ConfigError, match="found=True"):
            await over_zookeeper(servers, namespace, found=False).recover(["redis-1"], without_zookeeper=True)
        await over_zookeeper(servers, namespace).recover(["redis-1", "redis-2", "redis-3"], without_zookeeper=True)

        async with over_zookeeper(servers, namespace, found=False) as cluster:
            assert is_whole(cluster)
            assert cluster.view.epoch > epoch
            again = cluster.queue(QUEUE)
            receipt = await cluster.queue("keys").push("another", key="k", id="i")
            assert not receipt.new
            items = set[int]()
            async for claim in again.pop():  # the held one, too, whose consumer ZooKeeper does not know any more
                async with claim:
                    items.add(claim.item)
                if len(items) == 100:
                    break
            assert items == set(range(100))
        with pytest.raises(zkrq.ClaimLost):
            await held.ack()
        await until(lambda: running.view.epoch > epoch)
        await queue.push("from the one that ran on")
        claim = await take(queue)
        assert claim.item == "from the one that ran on"
        await claim.ack()

        async def is_declared() -> bool:
            return [entry.name for entry in await running.schedules().list()] == ["nightly"]

        await settled(is_declared)
        last = nightly.last
        await until(lambda: nightly.last != last)


async def test_a_namespace_that_exists_is_not_founded_again(servers: local.Servers) -> None:
    namespace, hub = new_namespace(), Hub()
    async with in_process(servers, namespace, hub):
        before = hub.read(VIEW)
        with pytest.raises(zkrq.ConfigError, match="recover its servers without --without-zookeeper"):
            await refound(servers, namespace, hub, "redis-1")
        assert hub.read(VIEW) == before


async def test_what_does_not_belong_together_is_refused(servers: local.Servers) -> None:
    namespace, one, two = new_namespace(), Hub(), Hub()
    with pytest.raises(zkrq.ConfigError, match="none of redis-1, redis-2 holds anything of namespace"):
        await refound(servers, namespace, Hub(), "redis-1", "redis-2")
    with pytest.raises(zkrq.ConfigError, match="not among the servers that were given: redis-9"):
        await refound(servers, namespace, Hub(), "redis-9")
    async with in_process(servers, namespace, one) as cluster:
        await cluster.queue(QUEUE).push(1)
    async with local.servers(redis=1, zookeeper=0) as other:
        async with in_process(other, namespace, two) as cluster:
            await cluster.queue(QUEUE).push(2)
        urls = {"redis-2": servers.redis[1].url, "redis-1": other.redis[0].url}
        mixed = local.Servers((other.redis[0], servers.redis[1]), ())
        assert mixed.redis_urls == urls
        with pytest.raises(zkrq.ConfigError, match="belong to different deployments"):
            await refound(mixed, namespace, Hub(), "redis-1", "redis-2")
    async with in_process(servers, namespace, one) as cluster:  # as it was
        assert await drain(cluster) == [1]
    await refound(servers, namespace, Hub(), "redis-1", "redis-2")  # those of one


@asynccontextmanager
async def evicted(servers: local.Servers, namespace: str, hub: Hub) -> AsyncGenerator[zkrq.Cluster, None]:
    """A cluster whose third server left with an item that was acked meanwhile."""
    async with in_process(servers, namespace, hub) as cluster:
        await cluster.queue(QUEUE).push_many(["acked", "kept"])
        await servers.redis[2].kill()
        claim = await take(cluster.queue(QUEUE))
        await claim.ack()
        await cluster.queue(QUEUE).push("pushed without it")
        yield cluster


async def test_the_data_of_a_server_that_was_out_of_sync_is_merged_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """Its tombstones are not too old here, so the acked item stays removed; and what it lacks is copied to it."""
    namespace = new_namespace()
    async with servers_with_disks() as servers:
        async with evicted(servers, namespace, Hub()):
            pass
        await servers.redis[2].start()
        hub = Hub()
        await refound(servers, namespace, hub, "redis-1", "redis-2", "redis-3")
        assert "redis-3 has seen epoch 1, others 2" in caplog.text
        async with in_process(servers, namespace, hub) as cluster:
            assert is_whole(cluster)
            assert await drain(cluster) == ["kept", "pushed without it"]


async def test_servers_that_are_not_named_come_back_by_force_alone() -> None:
    """They hold the former deployment, and nobody knows whether what they hold is newer: nothing wipes them unasked."""
    namespace = new_namespace()
    async with servers_with_disks() as servers:
        former = Hub()
        async with in_process(servers, namespace, former) as cluster:
            await cluster.queue(QUEUE).push_many(range(100))
        await servers.redis[2].kill()
        hub = Hub()
        await refound(servers, namespace, hub, "redis-1", "redis-2")
        async with in_process(servers, namespace, hub) as cluster:
            assert sorted(cluster.view.members) == ["redis-1", "redis-2"]
            assert sorted(cluster.view.servers) == ["redis-1", "redis-2", "redis-3"]
            await servers.redis[2].start()
            await until(lambda: "another deployment" in str(cluster.health()))
            await cluster.remove_server("redis-3")
            await cluster.add_server(servers.redis[2].url, name="redis-3", force=True)
            assert is_whole(cluster)
        # A client of the former ZooKeeper, which was not lost after all: it finds none of its servers, and takes none.
        with pytest.raises(zkrq.ConfigError, match="seen a later epoch than ZooKeeper's view"):
            await in_process(servers, namespace, former, found=False).open()
        with pytest.raises(zkrq.ConfigError):
            await in_process(servers, namespace, former).recover(["redis-1", "redis-2", "redis-3"])
        async with in_process(servers, namespace, hub) as cluster:
            assert await drain(cluster) == list(range(100))


def dying_after(enrolled: int) -> Callable[..., Operation[Answer]]:
    """In place of ``enrol``: the client dies when this number of servers has its next generation."""
    count = itertools.count(1)

    def enrol_some(*arguments: Any, **named: Any) -> Operation[Answer]:
        answer = yield from enrol(*arguments, **named)
        if next(count) == enrolled:
            raise NotNow("it dies")
        return answer

    return enrol_some


@pytest.mark.parametrize("enrolled", [1, 2, 3])
async def test_a_refounding_that_was_left_in_the_middle_is_repeated(
    enrolled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies when some servers have their next generation, or all, and the register is not written."""
    namespace, hub, enrol_some = new_namespace(), Hub(), dying_after(enrolled)
    async with servers_with_disks() as servers:
        async with in_process(servers, namespace, Hub()) as cluster:
            await cluster.queue(QUEUE).push_many(range(100))
        monkeypatch.setattr("zkrq.protocol.refounding.enrol", enrol_some)
        with pytest.raises(zkrq.Unavailable, match="it dies"):
            await refound(servers, namespace, hub, "redis-1", "redis-2", "redis-3")
        await refound(servers, namespace, hub, "redis-1", "redis-2", "redis-3")
        async with in_process(servers, namespace, hub) as cluster:
            assert is_whole(cluster)
            assert await drain(cluster) == list(range(100))


@pytest.mark.parametrize("former_epoch", [1, 2, 500])
async def test_a_server_that_was_away_at_one_refounding_is_no_part_of_the_next(former_epoch: int) -> None:
    """It is not taken for one that was left in the middle, even if its former clients went on with it alone, so that
    acked items do not come back with it."""
    namespace, first, second = new_namespace(), Hub(), Hub()
    async with servers_with_disks() as servers:
        async with in_process(servers, namespace, Hub()) as cluster:
            await cluster.queue(QUEUE).push("acked")
        await servers.redis[2].kill()
        await refound(servers, namespace, first, "redis-1", "redis-2")
        async with in_process(servers, namespace, first) as cluster:
            assert await drain(cluster) == ["acked"]
            for server in servers.redis[:2]:  # ten minutes later
                await command(server, "DEL", *(key(namespace, QUEUE, name) for name in ("records", "tombstones")))
            await cluster.queue(QUEUE).push("kept")
            deployment = cluster.view.deployment
        await servers.redis[2].start()
        await command(servers.redis[2], "HSET", key(namespace, "", "server"), "epoch", str(former_epoch))
        with pytest.raises(zkrq.ConfigError, match=r"without redis-3: .* recover --without-zookeeper redis-1 redis-2`"):
            await refound(servers, namespace, second, "redis-1", "redis-2", "redis-3")
        await refound(servers, namespace, second, "redis-1", "redis-2")
        async with in_process(servers, namespace, second) as cluster:
            assert cluster.view.deployment != deployment
            await cluster.remove_server("redis-3")
            await cluster.add_server(servers.redis[2].url, name="redis-3", force=True)
            assert is_whole(cluster)
            assert await drain(cluster) == ["kept"]


# -- ZooKeeper restored from an older backup ---------------------------------------------------------------------------


def later_than(cluster: zkrq.Cluster, epoch: int) -> bool:
    return cluster.view.epoch > epoch and not cluster.health().trouble


async def test_zookeeper_is_restored_from_an_older_backup_while_clients_run() -> None:
    """The real one, with all of its data.  A client that runs says so, and goes on when servers were named; others are
    told which command that is.  Nothing is lost, and what was acked since the backup stays acked."""
    namespace, told = new_namespace(), list[zkrq.Event]()
    async with local.servers(redis=3, zookeeper=1) as servers:
        zookeeper = servers.zookeeper[0]
        async with over_zookeeper(servers, namespace, on_event=told.append, session_timeout=1.0) as running:
            queue = running.queue(QUEUE)
            await queue.push_many(range(100))
            await zookeeper.kill()
            backup = shutil.copytree(zookeeper.data, zookeeper.directory / "backup")
            await zookeeper.start()
            first = running.view
            await servers.redis[2].restart(wipe=True)  # out and in again: the view goes on
            await until(lambda: is_whole(running, first.epoch) and running.view.epoch >= first.epoch + 3)
            held, epoch = await take(queue), running.view.epoch
            await (await take(queue)).ack()

            await zookeeper.kill()
            shutil.rmtree(zookeeper.data)
            shutil.copytree(backup, zookeeper.data)
            await zookeeper.start()
            await until(lambda: any(isinstance(event, zkrq.RegisterWentBack) for event in told))
            command = "`zkrq servers recover --older-zookeeper redis-1 redis-2 redis-3`"
            assert not running.health().ok
            assert any(command in text for text in running.health().trouble)
            await queue.push(100)  # under the view that it knows
            with pytest.raises(zkrq.ConfigError, match="servers recover --older-zookeeper NAME"):
                await over_zookeeper(servers, namespace, found=False).open()
            with pytest.raises(zkrq.ConfigError, match="recover its servers without --without-zookeeper"):
                await over_zookeeper(servers, namespace).recover(["redis-1"], without_zookeeper=True)

            names = ["redis-1", "redis-2", "redis-3"]
            await ten_seconds_later(servers, namespace)
            await over_zookeeper(servers, namespace, found=False).recover(names, older_zookeeper=True)
            await until(lambda: later_than(running, epoch))
            assert len([event for event in told if isinstance(event, zkrq.RegisterWentBack)]) == 1
            await queue.push(101)
            async with over_zookeeper(servers, namespace, found=False) as cluster:
                assert is_whole(cluster, epoch + 900)
                with pytest.raises(zkrq.ConfigError, match="it did not go back"):
                    await over_zookeeper(servers, namespace).recover(names, older_zookeeper=True)
            with suppress(zkrq.ClaimLost):  # unless its session was in the backup
                await held.release()
            assert len(await drain(running)) == 101
        async with over_zookeeper(servers, namespace, found=False) as cluster:
            assert await drain(cluster) == []


async def reinstate(servers: local.Servers, namespace: str, hub: Hub, *named: str) -> None:
    await ten_seconds_later(servers, namespace)
    await in_process(servers, namespace, hub).recover(named, older_zookeeper=True)


@asynccontextmanager
async def gone_back(servers: local.Servers, namespace: str, hub: Hub) -> AsyncGenerator[zkrq.Cluster, None]:
    """A running client of a register that went back to before a server left, and came back."""
    async with in_process(servers, namespace, hub) as running:
        await running.queue(QUEUE).push_many(range(10))
        before, epoch = dict(hub.registers), running.view.epoch
        await servers.redis[2].restart(wipe=True)
        await until(lambda: is_whole(running, epoch) and running.view.epoch >= epoch + 3)
        hub.restore(before)
        await until(lambda: not running.health().ok)
        yield running


async def test_a_server_that_was_not_named_comes_back_by_catch_up(servers: local.Servers) -> None:
    namespace, hub = new_namespace(), Hub()
    async with gone_back(servers, namespace, hub) as running:
        epoch = running.view.epoch
        await reinstate(servers, namespace, hub, "redis-1", "redis-2")
        await until(lambda: is_whole(running, epoch + 900))
        assert await drain(running) == list(range(10))


async def test_a_server_that_has_seen_more_is_named_as_well(servers: local.Servers) -> None:
    """It may have been in sync alone; a server of another deployment, and an unknown one, are refused."""
    namespace, hub = new_namespace(), Hub()
    async with gone_back(servers, namespace, hub) as running:
        info = key(namespace, "", "server")
        await command(servers.redis[0], "HSET", info, "epoch", str(running.view.epoch + 1))
        before = hub.read(VIEW)
        for named, told in (
            (["redis-2", "redis-3"], "redis-1 has seen epoch .* name it as well"),
            (["redis-9"], "not among the servers that were given"),
        ):
            with pytest.raises(zkrq.ConfigError, match=told):
                await reinstate(servers, namespace, hub, *named)
        await command(servers.redis[1], "HSET", info, "deployment", "another")
        with pytest.raises(zkrq.ConfigError, match="redis-2 holds the items of another deployment"):
            await reinstate(servers, namespace, hub, "redis-1", "redis-2")
        assert hub.read(VIEW) == before


@pytest.mark.parametrize("enrolled", [1, 2, 3])
async def test_a_view_over_one_that_went_back_was_left_in_the_middle(
    enrolled: int, servers: local.Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace, hub, enrol_some = new_namespace(), Hub(), dying_after(enrolled)
    async with gone_back(servers, namespace, hub) as running:
        names, epoch = ["redis-1", "redis-2", "redis-3"], running.view.epoch
        monkeypatch.setattr("zkrq.protocol.refounding.enrol", enrol_some)
        with pytest.raises(zkrq.Unavailable, match="it dies"):
            await reinstate(servers, namespace, hub, *names)
        await reinstate(servers, namespace, hub, *names)
        await until(lambda: is_whole(running, epoch + 1900))
        assert await drain(running) == list(range(10))


async def test_a_client_of_the_later_view_that_hears_of_nothing_completes_nothing(servers: local.Servers) -> None:
    """It was cut off from ZooKeeper while the register went back and was written over; the servers refuse it until it
    hears of the new view."""
    namespace, hub = new_namespace(), Hub()
    async with in_process(servers, namespace, hub, operation_timeout=1.0) as running:
        await running.queue(QUEUE).push(1)
        before, epoch = dict(hub.registers), running.view.epoch
        await servers.redis[2].restart(wipe=True)
        await until(lambda: is_whole(running, epoch) and running.view.epoch >= epoch + 3)
        coordinator = running._client.coordinator  # pyright: ignore[reportPrivateUsage]
        assert isinstance(coordinator, MemoryCoordinator)
        hub.suspend(coordinator)
        hub.restore(before)
        await reinstate(servers, namespace, hub, "redis-1", "redis-2")
        with pytest.raises((zkrq.OutcomeUnknown, zkrq.Unavailable)):
            await running.queue(QUEUE).push(2)
        async with in_process(servers, namespace, hub) as cluster:
            assert await drain(cluster) == [1]
        hub.resume(coordinator)
        await until(lambda: is_whole(running, epoch + 900))
        await running.queue(QUEUE).push(3)
        assert await drain(running) == [3]


# -- the same, with two shards -----------------------------------------------------------------------------------------


def in_two_shards(servers: local.Servers, namespace: str, hub: Hub, **options: Any) -> zkrq.Cluster:
    """A client that was given two shards: of the first two servers, and of the others."""
    urls = list(servers.redis_urls.items())
    given: dict[str, Any] = {"found": True, "description": "test", **options}
    settings = Settings(namespace=namespace, **given)
    first, second = dict(urls[:2]), {ShardName("b"): dict(urls[2:])}
    return Cluster(first, MemoryCoordinator(hub), settings, dial=dial, shards=second)


def epoch_of(cluster: zkrq.Cluster, shard: str) -> int:
    view = cluster.shards[shard].view
    return view.epoch if view else 0


async def flap(servers: local.Servers, running: zkrq.Cluster) -> None:
    """A server of each shard goes and comes, so that both views go on."""
    before = {shard: epoch_of(running, shard) for shard in ("main", "b")}
    for server in servers.redis[1], servers.redis[3]:
        await server.restart(wipe=True)
    await until(lambda: all(epoch_of(running, shard) >= epoch + 3 for shard, epoch in before.items()))
    await until(lambda: not running.health().warnings)


@pytest.mark.parametrize("known", [True, False], ids=["the backup has the second shard", "it has not"])
async def test_zookeeper_is_restored_where_there_are_two_shards(known: bool) -> None:
    """The shard map may have gone back as well, to before the second shard was added: it is added again."""
    namespace, hub = new_namespace(), Hub()
    async with local.servers(redis=4, zookeeper=0) as servers:
        only_first = local.Servers(servers.redis[:2], ())
        second = {server.name: server.url for server in servers.redis[2:]}
        async with in_process(only_first, namespace, hub) as cluster:
            await cluster.queue(QUEUE).push("with an id", id="before")
            backup = dict(hub.registers)
        async with in_two_shards(servers, namespace, hub) as running:
            await running.add_shard("b", second)
            await until(lambda: all(shard.takes_pushes for shard in running.shards.values()))
            queue = running.queue(QUEUE)
            await queue.push_many(range(20))
            await asyncio.gather(*(queue.push(number) for number in range(20, 40)))
            backup = dict(hub.registers) if known else backup
            await flap(servers, running)
            hub.restore(backup)
            await until(lambda: not running.health().ok)
            await ten_seconds_later(servers, namespace)
            with pytest.raises(zkrq.ConfigError, match="recover --older-zookeeper"):
                await in_two_shards(servers, namespace, hub).open()
            await in_two_shards(servers, namespace, hub).recover(["redis-1", "redis-2"], older_zookeeper=True)
            async with in_process(only_first, namespace, hub, found=False) as cluster:
                if not known:
                    with pytest.raises(zkrq.ConfigError, match="has no shard 'b': give its servers as NAME=URL"):
                        await cluster.recover(list(second), older_zookeeper=True, shard="b")
                await cluster.recover(second, older_zookeeper=True, shard="b")
            await until(lambda: running.health().ok)
            receipt = await queue.push("again", id="before")
            assert not receipt.new
            async with in_two_shards(servers, namespace, hub, found=False) as cluster:
                items = await drain(cluster)
            assert sorted(items, key=str) == sorted(["with an id", *range(40)], key=str)
