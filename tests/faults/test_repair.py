"""Servers that come back under load, in every way; nothing is lost, nothing revived, and no caller waits for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

import zkrq
from tests.faults.servers import dropping
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
    whole_again,
)
from tests.load import QUEUE, Load
from zkrq import local
from zkrq.base import events
from zkrq.base.settings import Settings
from zkrq.client.cluster import Cluster
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.protocol import calls
from zkrq.protocol.payloads import NO_HEADERS, join
from zkrq.protocol.records import fresh
from zkrq.protocol.view import ServerId, View, restored
from zkrq.repair import backoff, probe

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def one_more_redis() -> AsyncGenerator[local.LocalRedis, None]:
    async with local.servers(redis=1, zookeeper=0) as more:
        yield more.redis[0]


# -- catch-up ------------------------------------------------------------------------------------------------------


async def test_a_server_that_has_come_and_gone_is_not_kept_waiting_while_pushes_fail(
    servers: local.Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after its ninth eviction: its pause is a minute, unless it is needed."""
    monkeypatch.setattr(backoff, "FIRST_PAUSE", backoff.MAX_PAUSE)
    async with over_zookeeper(servers, new_namespace()) as cluster:
        queue, flapping, another = cluster.queue(QUEUE), *servers.redis[:2]
        await queue.push("before")
        await flapping.restart()
        await until(lambda: "redis-1 is not brought back: evicted 1 times" in " ".join(cluster.health().warnings))
        await another.kill()
        async with asyncio.timeout(backoff.MAX_PAUSE / 2):
            while True:
                with suppress(zkrq.NotEnoughReplicas, zkrq.OutcomeUnknown):
                    await queue.push("after", id="after")
                    break
        assert flapping.name in cluster.view.members
        await another.start()


async def test_one_comes_back_empty_and_then_the_two_others_die(servers: local.Servers) -> None:
    """What it was given is all there is, and it is enough: every item, in its state, with its payload."""
    told: list[zkrq.Event] = []
    async with over_zookeeper(servers, new_namespace(), on_event=told.append) as cluster:
        queue = cluster.queue(QUEUE)
        load = Load(cluster)
        async with load.running():
            before = cluster.view
            await servers.redis[0].restart(wipe=True)
            await whole_again(cluster, before)
            await until(load.progress(500))
        await queue.push_many(range(300))
        await queue.push("later", delay=3600)
        held = [await take(queue) for _ in range(3)]
        await held[0].bury("dead")
        before = cluster.view
        await servers.redis[0].restart(wipe=True)
        await whole_again(cluster, before)
        await asyncio.gather(servers.redis[1].kill(), servers.redis[2].kill())
        await asyncio.gather(*(claim.ack() for claim in held[1:]))
        assert await drain(cluster) == list(range(3, 300))
        assert await queue.size() == (0, 1, 0, 1)
    caught_up = [event for event in told if isinstance(event, events.ServerCaughtUp)]
    assert [event.server for event in caught_up] == ["redis-1", "redis-1"]
    assert caught_up[1].items >= 304


async def test_large_items_are_copied_too(servers: local.Servers) -> None:
    """A page that would be too large is copied in parts."""
    async with over_zookeeper(servers, new_namespace()) as cluster:
        queue = cluster.queue(QUEUE, codec=zkrq.RAW)
        items = [bytes([number]) * 400_000 for number in range(20)]
        await queue.push_many(items)
        before = cluster.view
        await servers.redis[0].restart(wipe=True)
        await whole_again(cluster, before)
        await asyncio.gather(servers.redis[1].kill(), servers.redis[2].kill())
        found: list[object] = []
        async for claim in queue.pop(wait=False):
            async with claim:
                found.append(claim.item)
        assert found == items


async def test_what_was_removed_stays_removed(servers: local.Servers) -> None:
    """Tombstones are copied: a late repetition of a push finds its item gone."""
    async with over_zookeeper(servers, new_namespace()) as cluster:
        queue = cluster.queue(QUEUE)
        await queue.push("once", id="once")
        assert await drain(cluster) == ["once"]
        for server in servers.redis:
            before = cluster.view
            await server.restart(wipe=True)
            await whole_again(cluster, before)
        await queue.push("once", id="once")
        assert await queue.size() == (0, 0, 0, 0)


async def test_a_catch_up_that_is_left_in_the_middle_is_carried_on_by_another_client(servers: local.Servers) -> None:
    """The learner is in the view already; whoever looks next goes on with it."""
    namespace, hub = new_namespace(), Hub()
    async with in_process(servers, namespace, hub) as first:
        await first.queue(QUEUE).push_many(range(20_000), ttl=3600)  # none in a bundle: so this takes a while
        async with in_process(servers, namespace, hub) as second:
            await servers.redis[0].restart(wipe=True)
            await until(lambda: bool(second.view.learners))
            await first.aclose()
            await until(lambda: is_whole(second))
            assert (await second.queue(QUEUE).size()).ready == 20_000


async def test_a_catch_up_goes_on_where_it_was_while_the_view_moves(servers: local.Servers) -> None:
    """Another server flaps, say: each change of the view tells all members, and nothing is copied twice for it."""
    namespace, hub, told = new_namespace(), Hub(), list[zkrq.Event]()
    async with in_process(servers, namespace, hub, on_event=told.append) as cluster:
        await cluster.queue(QUEUE).push_many(range(30_000), ttl=3600)  # none in a bundle: so this takes a while
        await servers.redis[0].restart(wipe=True)
        cluster._client.shard.probe.look()  # pyright: ignore[reportPrivateUsage]
        await until(lambda: ServerId("redis-1") in cluster.view.learners)
        moves = 0
        membership = cluster._client.shard.membership  # pyright: ignore[reportPrivateUsage]
        while ServerId("redis-1") not in cluster.view.members:
            view = await membership.change(cluster.view, move)
            await membership.fleet.ask_in(view, view.members, calls.Seal())
            moves += 1
            assert moves < 600, "it is not whole after a minute of changes"
            await asyncio.sleep(0.1)
        assert moves > 3
        (caught_up,) = [event for event in told if isinstance(event, events.ServerCaughtUp)]
        assert caught_up.items < 31_000
        for server in servers.redis[1:]:
            await server.kill()
        assert await cluster.queue(QUEUE).size() == (30_000, 0, 0, 0)


def move(view: View, /, *, by: str) -> View:
    return replace(view, epoch=view.epoch + 1, by=by)


async def test_progress_is_told(servers: local.Servers) -> None:
    told: list[zkrq.Event] = []
    async with over_zookeeper(servers, new_namespace(), on_event=told.append) as cluster:
        await cluster.queue(QUEUE).push_many(range(5_000))
        before = cluster.view
        await servers.redis[0].restart(wipe=True)
        seen: list[zkrq.Progress] = []
        while not is_whole(cluster, before.epoch):
            progress = cluster.health().servers["redis-1"].catching_up
            seen += [progress] if progress else []
            await asyncio.sleep(0)
        last = [event for event in told if isinstance(event, events.CatchingUp)][-1]
        assert last.copied >= last.total == 5_000
        assert last.rate > 0
        assert last.seconds_left == 0
        assert seen, "health() shows it as well"


async def test_a_server_that_evicts_keys_is_not_taken_back(servers: local.Servers) -> None:
    async with over_zookeeper(servers, new_namespace()) as cluster:
        await cluster.queue(QUEUE).push("x")
        victim = servers.redis[0]
        await victim.kill()
        victim.config["maxmemory-policy"] = "allkeys-lru"
        try:
            await victim.start()
            cluster._client.shard.probe.look()  # pyright: ignore[reportPrivateUsage]
            await until(lambda: ServerId(victim.name) not in cluster.view.members)
            await asyncio.sleep(2)  # looks are a second apart
            assert ServerId(victim.name) not in cluster.view.receivers
        finally:
            del victim.config["maxmemory-policy"]
            before = cluster.view
            await victim.restart()
        await whole_again(cluster, before)


async def test_a_policy_that_changed_on_a_living_connection(servers: local.Servers) -> None:
    """The connection stands, so who is there has to be asked again."""
    async with over_zookeeper(servers, new_namespace()) as cluster:
        queue = cluster.queue(QUEUE)
        await queue.push("x")
        victim = servers.redis[0]
        await command(victim, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        try:
            await command(victim, "FLUSHALL")
            await queue.push("y")
            await asyncio.sleep(2)  # looks are a second apart
            assert ServerId(victim.name) not in cluster.view.receivers
        finally:
            before = cluster.view
            await command(victim, "CONFIG", "SET", "maxmemory-policy", "noeviction")
        await whole_again(cluster, before)


async def test_a_policy_that_is_changed_at_run_time_is_noticed(
    servers: local.Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call shows it, so running clients read it; the server is back when its policy is."""
    monkeypatch.setattr(probe, "INSPECT_SECONDS", 0.0)
    victim = ServerId(servers.redis[0].name)
    async with over_zookeeper(servers, new_namespace()) as cluster:
        await cluster.queue(QUEUE).push("x")
        before = cluster.view
        async with dropping(servers.redis[0]):
            cluster._client.shard.probe.look()  # pyright: ignore[reportPrivateUsage]
            await until(lambda: victim not in cluster.view.receivers)
            assert "allkeys-lru" in str(cluster.health().servers[victim].reason)
            assert (await cluster.queue(QUEUE).push("y")).replicas == 2
        await whole_again(cluster, before)


async def test_a_server_that_may_drop_items_stays_where_pushes_need_it(
    servers: local.Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them have the policy: one leaves, the others serve running programs and new ones, with a warning."""
    monkeypatch.setattr(probe, "INSPECT_SECONDS", 0.0)
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace) as cluster:
        before = cluster.view
        async with dropping(*servers.redis):
            cluster._client.shard.probe.look()  # pyright: ignore[reportPrivateUsage]
            await until(lambda: caplog.text.count("and stays because pushes need it") == 2)
            cluster._client.shard.probe.look()  # pyright: ignore[reportPrivateUsage]
            async with over_zookeeper(servers, namespace) as late:
                await until(lambda: caplog.text.count("and stays because pushes need it") == 4)
                for client in (cluster, late):
                    assert (await client.queue(QUEUE).push("x")).replicas == 2
                    health = client.health()
                    assert health.ok
                    assert sum("may drop items: maxmemory-policy" in text for text in health.warnings) == 2
            assert len(cluster.view.members) == 2
            assert caplog.text.count("and stays because pushes need it") == 4, "each client says it once"
        await whole_again(cluster, before)


async def test_a_full_learner_does_not_halt_the_pushes(servers: local.Servers) -> None:
    """It has less memory than the queue needs, so it is not even begun with; nor does one that becomes full matter."""
    async with over_zookeeper(servers, new_namespace()) as cluster:
        queue = cluster.queue(QUEUE, codec=zkrq.RAW)
        await queue.push_many([bytes(1000)] * 2000)
        small = servers.redis[0]
        await small.kill()
        small.config["maxmemory"] = "1500000"
        try:
            await small.start()
            await queue.push_many([b"on"] * 500)
            await asyncio.sleep(2)  # looks are a second apart
            await queue.push_many([b"and on"] * 500)
            assert ServerId(small.name) not in cluster.view.receivers
        finally:
            del small.config["maxmemory"]
            before = cluster.view
            await small.restart()
        await whole_again(cluster, before)


async def test_pushes_go_on_once_one_of_two_lost_servers_is_back(servers: local.Servers) -> None:
    """Below min_replicas: the evicted are eligible until enough are in sync."""
    async with over_zookeeper(servers, new_namespace()) as cluster:
        queue = cluster.queue(QUEUE)
        await queue.push("before")
        await asyncio.gather(servers.redis[0].kill(), servers.redis[1].kill())
        cluster._client.shard.probe.look()  # pyright: ignore[reportPrivateUsage]
        await until(lambda: len(cluster.view.members) == 1)
        assert cluster.view.eligible, "both, or the second where they were found dead one after the other"
        await servers.redis[0].restart(wipe=True)
        await until(lambda: cluster.view.writable)
        await until(lambda: not cluster.view.eligible)
        assert (await queue.push("after")).replicas == 2
        assert await drain(cluster) == ["before", "after"]


async def test_an_eligible_server_that_was_only_out_of_reach_is_not_wiped(servers: local.Servers) -> None:
    """It holds everything that was pushed, and only one other does: what it missed is added."""
    async with over_zookeeper(servers, new_namespace(), command_timeout=0.5) as cluster:
        queue = cluster.queue(QUEUE)
        await queue.push_many(range(100))
        before = cluster.view
        hung = servers.redis[:2]
        for server in hung:
            await command(server, "CONFIG", "RESETSTAT")
            server.pause()
        cluster._client.shard.probe.look()  # pyright: ignore[reportPrivateUsage]
        await until(lambda: len(cluster.view.eligible) == 2)
        for _ in range(10):
            await (await take(queue)).ack()
        for server in hung:
            server.resume()
        await whole_again(cluster, before)
        kept = [server for server in hung if b"cmdstat_unlink" not in await command(server, "INFO", "commandstats")]
        assert len(kept) == 1, "the other one came after pushes could complete without it"
        id = ServerId(kept[0].name)
        assert cluster.view.members[id].generation == restored(before.members[id])
        await servers.redis[2].kill()
        assert await drain(cluster) == list(range(10, 100))


# -- adding and removing ---------------------------------------------------------------------------------------------


async def test_a_dead_server_is_replaced_online(servers: local.Servers) -> None:
    """Producers and consumers go on; other clients follow."""
    namespace = new_namespace()
    async with (
        one_more_redis() as new,
        over_zookeeper(servers, namespace) as cluster,
        over_zookeeper(servers, namespace) as other,
    ):
        load = Load(other)
        async with load.running():
            dead = servers.redis[0]
            await dead.kill()
            assert await cluster.add_server(new.url, name="new") == "new"
            await cluster.remove_server(dead.name)
            await until(load.progress(500))
            await until(lambda: sorted(other.view.servers) == ["new", "redis-2", "redis-3"])
            assert sorted(other.view.members) == ["new", "redis-2", "redis-3"]
            await asyncio.gather(servers.redis[1].kill())
            await until(load.progress(500))
        assert not load.uncertain
        async with over_zookeeper(servers, namespace) as newcomer:
            assert "new" in newcomer.health().servers, "its own list is older"


async def test_a_server_is_renamed_online(servers: local.Servers) -> None:
    """Nothing is copied, and producers and consumers go on; who is given the former name connects nevertheless."""
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace) as cluster, over_zookeeper(servers, namespace) as other:
        load = Load(other)
        async with load.running():
            for old, new in (("redis-1", "anna"), ("redis-2", "bert"), ("anna", "clara")):
                before = cluster.view
                await cluster.rename_server(old, new)
                assert cluster.view.epoch == before.epoch + 1
                assert cluster.view.members[ServerId(new)] == before.members[ServerId(old)]
                await until(load.progress(200))
        assert not load.uncertain
        assert sorted(other.view.members) == ["bert", "clara", "redis-3"]
        with pytest.raises(zkrq.ConfigError, match="there is a server bert"):
            await cluster.rename_server("clara", "bert")
        with pytest.raises(zkrq.ConfigError, match="'redis-1' is not a server"):
            await cluster.rename_server("redis-1", "emil")
        with pytest.raises(zkrq.ConfigError, match="name"):
            await cluster.rename_server("clara", " ")
    by_their_new_names: dict[str, str] = dict(
        zip(("clara", "bert", "redis-3"), servers.redis_urls.values(), strict=True)
    )
    for given in (servers.redis_urls, by_their_new_names):
        async with zkrq.connect(given, servers.zookeeper_hosts, namespace=namespace) as newcomer:
            assert (await newcomer.queue(QUEUE).push("after")).replicas == 3


async def test_without_zookeeper_a_renamed_server_is_known_by_its_new_name(servers: local.Servers) -> None:
    namespace = new_namespace()
    async with in_process(servers, namespace) as cluster:
        await cluster.queue(QUEUE).push("kept")
        await cluster.rename_server("redis-1", "anna")
    urls = {"anna": servers.redis[0].url, **{server.name: server.url for server in servers.redis[1:]}}
    settings = Settings(namespace=namespace, found=True)
    await Cluster(urls, MemoryCoordinator(Hub()), settings).recover(list(urls), without_zookeeper=True)


async def test_adding_what_cannot_be_added(servers: local.Servers) -> None:
    async with over_zookeeper(servers, new_namespace()) as cluster:
        view = cluster.view
        with pytest.raises(zkrq.ConfigError, match="not a Redis URL"):
            await cluster.add_server("localhost:6379")
        with pytest.raises(zkrq.ConfigError, match="name"):
            await cluster.add_server(servers.redis[0].url, name="")
        with pytest.raises(zkrq.ConfigError, match=r"holds the data of|same Redis server"):
            await cluster.add_server(servers.redis[0].url, name="twin")
        with pytest.raises(zkrq.Unavailable, match="does not answer"):
            await cluster.add_server("redis://127.0.0.1:1")
        assert cluster.view == view


async def test_adding_another_ensembles_server_or_another_under_a_known_name(servers: local.Servers) -> None:
    namespace = new_namespace()
    async with one_more_redis() as other, over_zookeeper(servers, namespace) as cluster:
        with pytest.raises(zkrq.ConfigError, match="use another name"):
            await cluster.add_server(other.url, name="redis-1")
        await command(other, "HSET", f"{{{namespace}}}:server", "generation", "g", "epoch", "500", "name", "theirs")
        with pytest.raises(zkrq.ConfigError, match="another deployment"):
            await cluster.add_server(other.url, name="new")
        deployment = cluster.view.deployment
        await command(other, "HSET", f"{{{namespace}}}:server", "deployment", deployment)
        with pytest.raises(zkrq.ConfigError, match="epoch 500"):
            await cluster.add_server(other.url, name="new")
        assert cluster.view.epoch == 1


async def test_another_deployments_server_is_taken_only_by_force(servers: local.Servers) -> None:
    """Two ensembles have a namespace of the same name; what one holds is not wiped because the other was misled."""
    namespace = new_namespace()
    async with (
        local.servers(redis=1, zookeeper=0) as own,
        in_process(own, namespace) as theirs,
        over_zookeeper(servers, namespace) as cluster,
    ):
        await theirs.queue(QUEUE).push_many(range(20))
        await cluster.queue(QUEUE).push("ours")
        with pytest.raises(zkrq.ConfigError, match=r"another deployment .* 1 queue\(s\): nothing was changed"):
            await cluster.add_server(own.redis[0].url, name="new")
        assert "new" not in cluster.view.servers
        assert (await theirs.queue(QUEUE).size()).ready == 20
        assert await cluster.add_server(own.redis[0].url, name="new", force=True) == "new"
        for server in servers.redis[:2]:
            await server.kill()
        assert await drain(cluster) == ["ours"]


async def test_a_listed_server_that_another_deployment_has_taken_is_not_wiped(
    servers: local.Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """Who is on the list is caught up by itself, but not over items that are none of ours."""
    namespace = new_namespace()
    victim = servers.redis[0]
    async with over_zookeeper(servers, namespace) as cluster:
        await cluster.queue(QUEUE).push("ours")
        await victim.kill()
        cluster._client.shard.probe.look()  # pyright: ignore[reportPrivateUsage]
        await until(lambda: len(cluster.view.members) == 2)
    await victim.restart(wipe=True)
    one = replace(servers, redis=servers.redis[:1])
    async with in_process(one, namespace) as theirs:
        await theirs.queue(QUEUE).push_many(range(20))
        async with over_zookeeper(servers, namespace) as cluster:
            await until(lambda: "redis-1 holds the items of another deployment" in caplog.text)
            assert ServerId("redis-1") not in cluster.view.receivers
            assert (await theirs.queue(QUEUE).size()).ready == 20
            with pytest.raises(zkrq.ConfigError, match="another deployment"):
                await cluster.add_server(victim.url, name="redis-1")
            await cluster.add_server(victim.url, name="redis-1", force=True)
            assert is_whole(cluster)
            for server in servers.redis[1:]:
                await server.kill()
            assert await drain(cluster) == ["ours"]


async def test_removing_the_last_one_that_holds_everything(servers: local.Servers) -> None:
    """The others were restarted, and nobody has noticed yet."""
    async with over_zookeeper(servers, new_namespace(), min_replicas=1) as cluster:
        await cluster.queue(QUEUE).push("precious")
        await asyncio.gather(*(server.restart(wipe=True) for server in servers.redis[1:]))
        with suppress(zkrq.Unavailable, zkrq.ConfigError):  # by then it may be known
            await cluster.remove_server("redis-1")
        await settled(lambda: _holds(cluster, 1))


async def _holds(cluster: Cluster, items: int) -> bool:
    with suppress(zkrq.ZkrqError):
        return (await cluster.queue(QUEUE).size()).ready == items
    return False


async def test_removing_what_cannot_be_removed(servers: local.Servers) -> None:
    async with over_zookeeper(servers, new_namespace(), min_replicas=3) as cluster:
        view = cluster.view
        with pytest.raises(zkrq.ConfigError, match="not a server of this namespace"):
            await cluster.remove_server("nobody")
        with pytest.raises(zkrq.ConfigError, match="min_replicas is 3"):
            await cluster.remove_server("redis-1")
        assert cluster.view == view


# -- scrub -----------------------------------------------------------------------------------------------------------


class PutOfOld(calls.PushPlain):
    """A put that takes pushes of the last hour."""

    put_window_ms = 3_600_000


async def run_script(cluster: Cluster, server: ServerId, call: calls.Call[Any]) -> None:
    membership = cluster._client.shard.membership  # pyright: ignore[reportPrivateUsage]
    (answer,) = (await membership.fleet.ask_in(cluster.view, [server], call)).values()
    assert answer.status.value == "OK"


async def scrub(cluster: Cluster) -> None:
    await cluster._client.shard.repairer.scrub()  # pyright: ignore[reportPrivateUsage]


async def test_scrub_mends_what_dead_clients_have_left_behind(servers: local.Servers) -> None:
    """A push on one follower only; a decision on the primary only."""
    told: list[zkrq.Event] = []
    async with over_zookeeper(servers, new_namespace(), on_event=told.append) as cluster:
        queue = cluster.queue(QUEUE)
        for item in ("removed", "kept"):
            await queue.push(item)
        primary = cluster.view.primary(QUEUE)
        follower, other = sorted(cluster.view.members.keys() - {primary})
        old = fresh(0, int(time.time() * 1000) - 700_000)
        young = fresh(0, int(time.time() * 1000))
        await run_script(cluster, follower, PutOfOld(QUEUE, [calls.Put("half", old, join([NO_HEADERS + b'"half"']))]))
        await run_script(
            cluster, other, calls.PushPlain(QUEUE, [calls.Put("young", young, join([NO_HEADERS + b'"young"']))])
        )
        await run_script(cluster, primary, calls.Clear(QUEUE, 1, "", 0, b""))
        await scrub(cluster)
        mended = [event for event in told if isinstance(event, events.Scrubbed)]
        assert [(event.affirmed, event.forwarded) for event in mended] == [(1, 1)], "told to all followers at once"
        await scrub(cluster)
        assert [event for event in told if isinstance(event, events.Scrubbed)] == mended, "nothing is left to do"
        for victim in [server for server in servers.redis if server.name != follower]:
            await victim.kill()
        assert sorted(map(str, await drain(cluster))) == ["half", "kept"]


async def test_scrub_finds_a_queue_that_only_a_follower_knows(servers: local.Servers) -> None:
    """The first push of a queue reached one server."""
    async with over_zookeeper(servers, new_namespace()) as cluster:
        name = "elsewhere"
        follower = max(cluster.view.members.keys() - {cluster.view.primary(name), cluster.view.primary("")})
        old = fresh(0, int(time.time() * 1000) - 700_000)
        await run_script(cluster, follower, PutOfOld(name, [calls.Put("half", old, join([NO_HEADERS + b'"half"']))]))
        await scrub(cluster)
        assert await cluster.queue(name).size() == (1, 0, 0, 0)


async def test_scrub_leaves_a_healthy_queue_alone(servers: local.Servers) -> None:
    told: list[zkrq.Event] = []
    async with over_zookeeper(servers, new_namespace(), on_event=told.append) as cluster:
        load = Load(cluster)
        async with load.running():
            await scrub(cluster)
        await settled(lambda: _quiet(cluster))
        await scrub(cluster)
    assert not [event for event in told if isinstance(event, events.Scrubbed)]


async def _quiet(cluster: Cluster) -> bool:
    return await cluster.queue(QUEUE).size() == (0, 0, 0, 0)
