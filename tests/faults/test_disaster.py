"""Disaster recovery, rehearsed: all servers lost but one disk, and ZooKeeper lost altogether."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import zkrq
from tests.faults.stage import Actor, Stage, coordinator_of, hub_of
from tests.harness import command, is_whole, settled, until
from tests.load import QUEUE
from zkrq import local
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
from zkrq.protocol.view import View
from zkrq.replication.urls import dial

pytestmark = pytest.mark.anyio

NAMES = ("redis-1", "redis-2", "redis-3")


# -- all servers lost but one disk -------------------------------------------------------------------------------------


async def test_all_servers_are_lost_but_one_disk_and_the_machines_come_back_empty(disk_stage: Stage) -> None:
    """Whichever disk it is: a push returned when every server in sync had the item."""
    for kept in disk_stage.servers.redis:
        others = [server for server in disk_stage.servers.redis if server is not kept]
        await push_100(disk_stage)
        await disk_stage.kill()
        await asyncio.gather(disk_stage.start(kept), disk_stage.restart_empty(*others))
        async with disk_stage.visit() as client:
            assert await client.drain() == list(range(100))
            await disk_stage.expect_whole()
        recovered = await client.expect_event(zkrq.Recovered)
        assert (recovered.servers, set(recovered.missing)) == ((kept.name,), {each.name for each in others})


async def test_all_servers_are_lost_but_one_disk_and_the_others_never_come_back(disk_stage: Stage) -> None:
    """What is left is on two servers again once new ones were added, and pushes are refused until then."""
    left = disk_stage.servers.redis[1]
    await push_100(disk_stage)
    await disk_stage.kill()
    await disk_stage.start(left)
    with pytest.raises(zkrq.Unavailable, match="`zkrq servers recover redis-2`"):
        await disk_stage.enter(operation_timeout=1.0)
    await disk_stage.recover(left)
    async with local.servers(redis=2, zookeeper=0) as new, disk_stage.visit() as client:
        with pytest.raises(zkrq.NotEnoughReplicas):
            await client.push("below min_replicas")
        assert not client.cluster.health().ok
        for number, server in enumerate(new.redis, 1):
            await client.cluster.add_server(server.url, name=f"new-{number}")
        for lost in "redis-1", "redis-3":
            await client.cluster.remove_server(lost)
        await client.push(100)
        assert await client.drain() == list(range(101))
        assert is_whole(client.cluster)


# -- ZooKeeper lost altogether -----------------------------------------------------------------------------------------


async def test_zookeeper_is_lost_altogether_while_clients_run(
    zookeeper_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real one, its disk included.  A client that was connected goes on when the namespace is there again, and with
    the schedules that its code declares."""
    monkeypatch.setattr(schedule_store, "READ_SECONDS", 0.1)
    running = await zookeeper_stage.enter()
    await running.push_all(range(100))
    held, before = await running.claim(), running.view
    await running.cluster.queue("keys").push("with a key", key="k", id="i")
    nightly = running.cluster.every(0.2, running.cluster.queue("reports"), 1, name="nightly")
    await until(lambda: nightly.last is not None)
    (zookeeper,) = zookeeper_stage.servers.zookeeper
    await zookeeper.kill()
    await zookeeper.restart(wipe=True)
    await expect_no_other_way(zookeeper_stage)
    await zookeeper_stage.client().recover(NAMES, without_zookeeper=True)
    await expect_all_there(zookeeper_stage, before)
    with pytest.raises(zkrq.ClaimLost):
        await held.ack()
    await until(lambda: running.view.epoch > before.epoch)
    await expect_going_on(running)
    await settled(lambda: has_schedules(running, "nightly"))
    last = nightly.last
    await until(lambda: nightly.last != last)


async def expect_no_other_way(stage: Stage) -> None:
    """Nobody takes the servers for those of a new namespace, nor founds one that is to exist."""
    with pytest.raises(zkrq.ConfigError, match="does not exist here"):
        await stage.enter(found=False)
    with pytest.raises(zkrq.ConfigError, match=r"holds items of namespace .* but ZooKeeper knows no view"):
        await stage.enter()
    with pytest.raises(zkrq.ConfigError, match="found=True"):
        await stage.client(found=False).recover(["redis-1"], without_zookeeper=True)


async def expect_all_there(stage: Stage, before: View) -> None:
    """A new client finds every item, the held one too, whose consumer ZooKeeper does not know any more; and keys."""
    async with stage.visit(found=False) as client:
        assert is_whole(client.cluster)
        assert client.view.epoch > before.epoch
        receipt = await client.cluster.queue("keys").push("another", key="k", id="i")
        assert not receipt.new
        items = set[int]()
        async for claim in client.queue.pop():
            async with claim:
                items.add(claim.item)
            if len(items) == 100:
                break
        assert items == set(range(100))


async def expect_going_on(running: Actor) -> None:
    """It pushes and claims."""
    await running.push("from the one that ran on")
    claim = await running.claim()
    assert claim.item == "from the one that ran on"
    await claim.ack()


async def has_schedules(client: Actor, *names: str) -> bool:
    return tuple(entry.name for entry in await client.cluster.schedules().list()) == names


async def test_a_namespace_that_exists_is_not_founded_again(hub_stage: Stage) -> None:
    """ZooKeeper's data are there, so its view is not replaced."""
    await hub_stage.enter()
    before = hub_of(hub_stage).read(VIEW)
    with pytest.raises(zkrq.ConfigError, match="recover its servers without --without-zookeeper"):
        await refound(hub_stage, "redis-1")
    assert hub_of(hub_stage).read(VIEW) == before


async def test_what_does_not_belong_together_is_refused(hub_stage: Stage) -> None:
    """Servers of two deployments, unknown ones, and those that hold nothing; the former deployment is as it was."""
    with pytest.raises(zkrq.ConfigError, match="none of redis-1, redis-2 holds anything of namespace"):
        await refound(anew(hub_stage), "redis-1", "redis-2")
    with pytest.raises(zkrq.ConfigError, match="not among the servers that were given: redis-9"):
        await refound(anew(hub_stage), "redis-9")
    async with hub_stage.visit() as client:
        await client.push(1)
    async with local.servers(redis=1, zookeeper=0) as other:
        async with anew(hub_stage, other).visit() as client:
            await client.push(2)
        ours, theirs = hub_stage.servers.redis[1], other.redis[0]
        mixed = local.Servers((theirs, ours), ())
        assert mixed.redis_urls == {"redis-2": ours.url, "redis-1": theirs.url}
        with pytest.raises(zkrq.ConfigError, match="belong to different deployments"):
            await refound(anew(hub_stage, mixed), "redis-1", "redis-2")
    async with hub_stage.visit() as client:
        assert await client.drain() == [1]
    await refound(anew(hub_stage), "redis-1", "redis-2")  # those of one


async def test_the_data_of_a_server_that_was_out_of_sync_is_merged_and_told(
    disk_stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tombstones are not too old here, so the acked item stays removed; and what it lacks is copied to it."""
    outside = disk_stage.servers.redis[2]
    async with disk_stage.visit() as client:
        await client.push_all(["acked", "kept"])
        await disk_stage.kill(outside)
        await client.ack()
        await client.push("pushed without it")
    await disk_stage.start(outside)
    lose_coordinator(disk_stage)
    await refound(disk_stage, *NAMES)
    assert "redis-3 has seen epoch 1, others 2" in caplog.text
    client = await disk_stage.enter()
    assert is_whole(client.cluster)
    assert await client.drain() == ["kept", "pushed without it"]


async def test_servers_that_are_not_named_come_back_by_force_alone(disk_stage: Stage) -> None:
    """They hold the former deployment, and nobody knows whether what they hold is newer: nothing wipes them unasked."""
    unnamed = disk_stage.servers.redis[2]
    await push_100(disk_stage)
    await disk_stage.kill(unnamed)
    former = lose_coordinator(disk_stage)
    await refound(disk_stage, "redis-1", "redis-2")
    async with disk_stage.visit() as client:
        assert sorted(client.view.members) == ["redis-1", "redis-2"]
        assert sorted(client.view.servers) == ["redis-1", "redis-2", "redis-3"]
        await disk_stage.start(unnamed)
        await until(lambda: "another deployment" in str(client.cluster.health()))
        await take_by_force(client, unnamed)
    # A client of the former ZooKeeper, which was not lost after all: it finds none of its servers, and takes none.
    with pytest.raises(zkrq.ConfigError, match="seen a later epoch than ZooKeeper's view"):
        await former.enter(found=False)
    with pytest.raises(zkrq.ConfigError):
        await former.client().recover(NAMES)
    assert await (await disk_stage.enter()).drain() == list(range(100))


@pytest.mark.parametrize("enrolled", [1, 2, 3])
async def test_a_refounding_that_was_left_in_the_middle_is_repeated(
    enrolled: int, disk_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies when some servers have their next generation, or all, and the register is not written."""
    await push_100(disk_stage)
    lose_coordinator(disk_stage)
    monkeypatch.setattr("zkrq.protocol.refounding.enrol", dying_after(enrolled))
    with pytest.raises(zkrq.Unavailable, match="it dies"):
        await refound(disk_stage, *NAMES)
    await refound(disk_stage, *NAMES)
    client = await disk_stage.enter()
    assert is_whole(client.cluster)
    assert await client.drain() == list(range(100))


@pytest.mark.parametrize("former_epoch", [1, 2, 500])
async def test_a_server_that_was_away_at_one_refounding_is_no_part_of_the_next(
    former_epoch: int, disk_stage: Stage
) -> None:
    """It is not taken for one that was left in the middle, even if its former clients went on with it alone, so that
    acked items do not come back with it."""
    *others, away = disk_stage.servers.redis
    async with disk_stage.visit() as client:
        await client.push("acked")
    await disk_stage.kill(away)
    lose_coordinator(disk_stage)
    await refound(disk_stage, "redis-1", "redis-2")
    async with disk_stage.visit() as client:
        assert await client.drain() == ["acked"]
        await forget_ends(disk_stage, *others)
        await client.push("kept")
        deployment = client.view.deployment
    await disk_stage.start(away)
    await set_server(disk_stage, away, "epoch", str(former_epoch))
    lose_coordinator(disk_stage)
    with pytest.raises(zkrq.ConfigError, match=r"without redis-3: .* recover --without-zookeeper redis-1 redis-2`"):
        await refound(disk_stage, *NAMES)
    await refound(disk_stage, "redis-1", "redis-2")
    client = await disk_stage.enter()
    assert client.view.deployment != deployment
    await take_by_force(client, away)
    assert await client.drain() == ["kept"]


# -- ZooKeeper restored from an older backup ---------------------------------------------------------------------------


async def test_zookeeper_is_restored_from_an_older_backup_while_clients_run(zookeeper_stage: Stage) -> None:
    """The real one, with all of its data.  A client that runs says so, and goes on when servers were named; others are
    told which command that is.  Nothing is lost, and what was acked since the backup stays acked."""
    running = await zookeeper_stage.enter(session_timeout=1.0)
    await running.push_all(range(100))
    restore = await back_up(zookeeper_stage)
    await zookeeper_stage.move_on(zookeeper_stage.servers.redis[2])
    held, epoch = await running.claim(), running.view.epoch
    await running.ack()
    await restore()
    await expect_told_that_it_went_back(zookeeper_stage)
    await running.push(100)  # under the view that it knows
    await refuse_older(zookeeper_stage)
    await free_servers(zookeeper_stage)
    await zookeeper_stage.client(found=False).recover(NAMES, older_zookeeper=True)
    await until(lambda: running.view.epoch > epoch and not running.cluster.health().trouble)
    assert len(running.events(zkrq.RegisterWentBack)) == 1
    await running.push(101)
    async with zookeeper_stage.visit(found=False) as client:
        assert is_whole(client.cluster, epoch + 900)
        with pytest.raises(zkrq.ConfigError, match="it did not go back"):
            await zookeeper_stage.client().recover(NAMES, older_zookeeper=True)
    with suppress(zkrq.ClaimLost):  # unless its session was in the backup
        await held.release()
    assert len(await running.drain()) == 101
    await running.close()
    assert await (await zookeeper_stage.enter(found=False)).drain() == []


async def back_up(stage: Stage) -> Callable[[], Any]:
    """Copy all of ZooKeeper's data; return what puts them in the place of later ones."""
    (zookeeper,) = stage.servers.zookeeper
    await zookeeper.kill()
    backup = shutil.copytree(zookeeper.data, zookeeper.directory / "backup")
    await zookeeper.start()

    async def restore() -> None:
        await zookeeper.kill()
        shutil.rmtree(zookeeper.data)
        shutil.copytree(backup, zookeeper.data)
        await zookeeper.start()

    return restore


async def expect_told_that_it_went_back(stage: Stage) -> None:
    """The client that runs names the command that helps."""
    running = stage.actors[0]
    await running.expect_event(zkrq.RegisterWentBack)
    command = "`zkrq servers recover --older-zookeeper redis-1 redis-2 redis-3`"
    assert not running.cluster.health().ok
    assert any(command in text for text in running.cluster.health().trouble)


async def refuse_older(stage: Stage) -> None:
    """A new client is told the command, and another way of recovery is refused."""
    with pytest.raises(zkrq.ConfigError, match="servers recover --older-zookeeper NAME"):
        await stage.enter(found=False)
    with pytest.raises(zkrq.ConfigError, match="recover its servers without --without-zookeeper"):
        await stage.client().recover(["redis-1"], without_zookeeper=True)


async def test_a_server_that_was_not_named_comes_back_by_catch_up(hub_stage: Stage) -> None:
    """It holds nothing that the named ones have not got."""
    running = await gone_back(hub_stage)
    epoch = running.view.epoch
    await reinstate(hub_stage, "redis-1", "redis-2")
    await hub_stage.expect_whole(epoch + 900)
    assert await running.drain() == list(range(10))


async def test_a_server_that_has_seen_more_is_named_as_well(hub_stage: Stage) -> None:
    """It may have been in sync alone; a server of another deployment, and an unknown one, are refused."""
    one, two, _ = hub_stage.servers.redis
    running = await gone_back(hub_stage)
    await set_server(hub_stage, one, "epoch", str(running.view.epoch + 1))
    before = hub_of(hub_stage).read(VIEW)
    with pytest.raises(zkrq.ConfigError, match=r"redis-1 has seen epoch .* name it as well"):
        await reinstate(hub_stage, "redis-2", "redis-3")
    with pytest.raises(zkrq.ConfigError, match="not among the servers that were given"):
        await reinstate(hub_stage, "redis-9")
    await set_server(hub_stage, two, "deployment", "another")
    with pytest.raises(zkrq.ConfigError, match="redis-2 holds the items of another deployment"):
        await reinstate(hub_stage, "redis-1", "redis-2")
    assert hub_of(hub_stage).read(VIEW) == before


@pytest.mark.parametrize("enrolled", [1, 2, 3])
async def test_a_view_over_one_that_went_back_was_left_in_the_middle(
    enrolled: int, hub_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies when some servers have their next generation; naming them again completes it."""
    running = await gone_back(hub_stage)
    epoch = running.view.epoch
    monkeypatch.setattr("zkrq.protocol.refounding.enrol", dying_after(enrolled))
    with pytest.raises(zkrq.Unavailable, match="it dies"):
        await reinstate(hub_stage, *NAMES)
    await reinstate(hub_stage, *NAMES)
    await hub_stage.expect_whole(epoch + 1900)
    assert await running.drain() == list(range(10))


async def test_a_client_of_the_later_view_that_hears_of_nothing_completes_nothing(hub_stage: Stage) -> None:
    """It was cut off from ZooKeeper while the register went back and was written over; the servers refuse it until it
    hears of the new view."""
    hub_stage.hub = hub = Hub()  # whose sessions outlast the cut
    running = await hub_stage.enter(operation_timeout=1.0)
    await running.push(1)
    before, epoch = dict(hub.registers), running.view.epoch
    await hub_stage.move_on(hub_stage.servers.redis[2])
    hub.suspend(coordinator_of(running))
    hub.restore(before)
    await reinstate(hub_stage, "redis-1", "redis-2")
    with pytest.raises((zkrq.OutcomeUnknown, zkrq.Unavailable)):
        await running.push(2)
    async with hub_stage.visit() as client:
        assert await client.drain() == [1]
    hub.resume(coordinator_of(running))
    await hub_stage.expect_whole(epoch + 900)
    await running.push(3)
    assert await running.drain() == [3]


# -- the same, with two shards -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False], ids=["the backup has the second shard", "it has not"])
async def test_zookeeper_is_restored_where_there_are_two_shards(known: bool) -> None:
    """The shard map may have gone back as well, to before the second shard was added: it is added again."""
    async with local.servers(redis=4, zookeeper=0) as servers:
        first = Stage(local.Servers(servers.redis[:2], ()), Hub())
        hub, second = hub_of(first), {server.name: server.url for server in servers.redis[2:]}
        async with first.visit() as client:
            await client.push("with an id", id="before")
            backup = dict(hub.registers)
        async with in_two_shards(first, second) as running:
            await running.add_shard("b", second)
            await until(lambda: all(shard.takes_pushes for shard in running.shards.values()))
            await push_40(running)
            backup = dict(hub.registers) if known else backup
            await flap(servers, running)
            hub.restore(backup)
            await until(lambda: not running.health().ok)
            await free_servers(Stage(servers, hub, first.namespace))
            with pytest.raises(zkrq.ConfigError, match="recover --older-zookeeper"):
                await in_two_shards(first, second).open()
            await in_two_shards(first, second).recover(["redis-1", "redis-2"], older_zookeeper=True)
            await recover_second(first, second, known=known)
            await until(lambda: running.health().ok)
            receipt = await running.queue(QUEUE).push("again", id="before")
            assert not receipt.new
            async with in_two_shards(first, second, found=False) as cluster:
                items = await Actor(cluster, []).drain()
            assert sorted(items, key=str) == sorted(["with an id", *range(40)], key=str)


def in_two_shards(stage: Stage, second: dict[str, str], **options: Any) -> zkrq.Cluster:
    """A client that was given two shards: of the stage's servers, and of others."""
    given: dict[str, Any] = {"found": True, "description": "test", **options}
    settings = Settings(namespace=stage.namespace, **given)
    coordinator, shards = MemoryCoordinator(hub_of(stage)), {ShardName("b"): second}
    return Cluster(stage.servers.redis_urls, coordinator, settings, dial=dial, shards=shards)


async def push_40(cluster: zkrq.Cluster) -> None:
    """Half of them together, the others each by itself."""
    queue = cluster.queue(QUEUE)
    await queue.push_many(range(20))
    await asyncio.gather(*(queue.push(number) for number in range(20, 40)))


async def flap(servers: local.Servers, running: zkrq.Cluster) -> None:
    """A server of each shard goes and comes, so that both views go on."""
    before = {shard: epoch_of(running, shard) for shard in ("main", "b")}
    for server in servers.redis[1], servers.redis[3]:
        await server.restart(wipe=True)
    await until(lambda: all(epoch_of(running, shard) >= epoch + 3 for shard, epoch in before.items()))
    await until(lambda: not running.health().warnings)


def epoch_of(cluster: zkrq.Cluster, shard: str) -> int:
    view = cluster.shards[shard].view
    return view.epoch if view else 0


async def recover_second(first: Stage, second: dict[str, str], *, known: bool) -> None:
    """Recover the second shard by a client that was given the first; one that is not in the map is given with URLs."""
    async with first.visit(found=False) as client:
        if not known:
            with pytest.raises(zkrq.ConfigError, match="has no shard 'b': give its servers as NAME=URL"):
                await client.cluster.recover(list(second), older_zookeeper=True, shard="b")
        await client.cluster.recover(second, older_zookeeper=True, shard="b")


# -- what the scenarios have in common ---------------------------------------------------------------------------------


async def push_100(stage: Stage) -> None:
    """Leave 100 items behind and no client."""
    async with stage.visit() as client:
        await client.push_all(range(100))


def anew(stage: Stage, servers: local.Servers | None = None) -> Stage:
    """The same namespace under a coordinator that knows nothing; ``servers``: with these, None: with the same."""
    return Stage(servers or stage.servers, Hub(), stage.namespace)


def lose_coordinator(stage: Stage) -> Stage:
    """Go on under a coordinator that knows nothing; return the stage of the former one."""
    former = Stage(stage.servers, stage.hub, stage.namespace)
    stage.hub = Hub()
    return former


async def refound(stage: Stage, *named: str) -> None:
    """Go on with the servers that are named, where ZooKeeper's data are lost."""
    await free_servers(stage)
    await stage.client().recover(named, without_zookeeper=True)


async def gone_back(stage: Stage) -> Actor:
    """Enter with ten items; the register goes back to before a server left and came back."""
    running = await stage.enter()
    await running.push_all(range(10))
    before = dict(hub_of(stage).registers)
    await stage.move_on(stage.servers.redis[2])
    hub_of(stage).restore(before)
    await until(lambda: not running.cluster.health().ok)
    return running


async def reinstate(stage: Stage, *named: str) -> None:
    """Go on with the servers that are named, where ZooKeeper's data are older."""
    await free_servers(stage)
    await stage.client().recover(named, older_zookeeper=True)


async def free_servers(stage: Stage) -> None:
    """Ten seconds after a repair, servers can be taken again."""
    for server in stage.servers.redis:
        if server.running:
            await command(server, "HDEL", key(stage.namespace, "", "server"), "repairer")


async def forget_ends(stage: Stage, *servers: local.LocalRedis) -> None:
    """Ten minutes later: tombstones are gone."""
    for server in servers:
        await command(server, "DEL", *(key(stage.namespace, QUEUE, name) for name in ("records", "tombstones")))


async def set_server(stage: Stage, server: local.LocalRedis, field: str, value: str) -> None:
    """Have a server say something else of itself."""
    await command(server, "HSET", key(stage.namespace, "", "server"), field, value)


async def take_by_force(client: Actor, server: local.LocalRedis) -> None:
    """Wipe a server of another deployment, and let it in."""
    await client.cluster.remove_server(server.name)
    await client.cluster.add_server(server.url, name=server.name, force=True)
    assert is_whole(client.cluster)


def dying_after(enrolled: int) -> Callable[..., Operation[Answer]]:
    """In place of ``enrol``: the client dies when this number of servers has its next generation."""
    count = itertools.count(1)

    def enrol_some(*arguments: Any, **named: Any) -> Operation[Answer]:
        answer = yield from enrol(*arguments, **named)
        if next(count) == enrolled:
            raise NotNow("it dies")
        return answer

    return enrol_some
