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
from tests.faults.stage import Actor, Stage
from tests.harness import command, in_process, is_whole, settled, until
from tests.load import QUEUE
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

LOOKS = 2.0
"""Seconds in which a client looks after all servers; a look is a second after the one before."""


@asynccontextmanager
async def one_more_redis() -> AsyncGenerator[local.LocalRedis, None]:
    async with local.servers(redis=1, zookeeper=0) as more:
        yield more.redis[0]


# -- catch-up ------------------------------------------------------------------------------------------------------


async def test_a_server_that_has_come_and_gone_is_not_kept_waiting_while_pushes_fail(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after its ninth eviction: its pause is a minute, unless it is needed."""
    monkeypatch.setattr(backoff, "FIRST_PAUSE", backoff.MAX_PAUSE)
    client, (flapping, another, _) = await stage.enter(), stage.servers.redis
    await client.push("before")
    await flapping.restart()
    warning = "redis-1 is not brought back: evicted 1 times"
    await until(lambda: warning in " ".join(client.cluster.health().warnings))
    await stage.kill(another)
    async with asyncio.timeout(backoff.MAX_PAUSE / 2):
        while True:
            with suppress(zkrq.NotEnoughReplicas, zkrq.OutcomeUnknown):
                await client.push("after", id="after")
                break
    assert stage.is_member(flapping)
    await stage.start(another)


async def test_one_comes_back_empty_and_then_the_two_others_die(stage: Stage) -> None:
    """What it was given is all there is, and it is enough: every item, in its state, with its payload."""
    client, (back, *others) = await stage.enter(), stage.servers.redis
    async with stage.load() as load:
        async with stage.out_and_back():
            await stage.restart_empty(back)
        await until(load.progress(500))
    await client.push_all(range(300))
    await client.push("later", delay=3600)
    held = [await client.claim() for _ in range(3)]
    await held[0].bury("dead")
    async with stage.out_and_back():
        await stage.restart_empty(back)
    await stage.kill(*others)
    await asyncio.gather(*(claim.ack() for claim in held[1:]))
    assert await client.drain() == list(range(3, 300))
    assert await client.queue.size() == (0, 1, 0, 1)
    caught_up = client.events(events.ServerCaughtUp)
    assert [event.server for event in caught_up] == ["redis-1", "redis-1"]
    assert caught_up[1].items >= 304


async def test_large_items_are_copied_too(stage: Stage) -> None:
    """A page that would be too large is copied in parts."""
    client, (back, *others) = await stage.enter({"codec": zkrq.RAW}), stage.servers.redis
    items = [bytes([number]) * 400_000 for number in range(20)]
    await client.push_all(items)
    async with stage.out_and_back():
        await stage.restart_empty(back)
    await stage.kill(*others)
    found: list[object] = []
    async for claim in client.queue.pop(wait=False):
        async with claim:
            found.append(claim.item)
    assert found == items


async def test_what_was_removed_stays_removed(stage: Stage) -> None:
    """Tombstones are copied: a late repetition of a push finds its item gone."""
    client = await stage.enter()
    await client.push("once", id="once")
    assert await client.drain() == ["once"]
    for server in stage.servers.redis:
        async with stage.out_and_back():
            await stage.restart_empty(server)
    await client.push("once", id="once")
    assert await client.queue.size() == (0, 0, 0, 0)


async def test_a_catch_up_that_is_left_in_the_middle_is_carried_on_by_another_client(hub_stage: Stage) -> None:
    """The learner is in the view already; whoever looks next goes on with it."""
    first = await hub_stage.enter()
    await first.queue.push_many(range(20_000), ttl=3600)  # none in a bundle: so this takes a while
    second = await hub_stage.enter()
    await hub_stage.restart_empty(hub_stage.servers.redis[0])
    await until(lambda: bool(second.view.learners))
    await first.close()
    await until(lambda: is_whole(second.cluster))
    assert (await second.queue.size()).ready == 20_000


async def test_a_catch_up_goes_on_where_it_was_while_the_view_moves(hub_stage: Stage) -> None:
    """Another server flaps, say: each change of the view tells all members, and nothing is copied twice for it."""
    client, (back, *others) = await hub_stage.enter(), hub_stage.servers.redis
    await client.queue.push_many(range(30_000), ttl=3600)  # none in a bundle: so this takes a while
    await hub_stage.restart_empty(back)
    client.look()
    await until(lambda: ServerId("redis-1") in client.view.learners)
    moves = 0
    membership = client.cluster._client.shard.membership  # pyright: ignore[reportPrivateUsage]
    while not hub_stage.is_member(back):
        view = await membership.change(client.view, move)
        await membership.fleet.ask_in(view, view.members, calls.Seal())
        moves += 1
        assert moves < 600, "it is not whole after a minute of changes"
        await asyncio.sleep(0.1)
    assert moves > 3
    (caught_up,) = client.events(events.ServerCaughtUp)
    assert caught_up.items < 31_000
    for server in others:
        await hub_stage.kill(server)
    assert await client.queue.size() == (30_000, 0, 0, 0)


def move(view: View, /, *, by: str) -> View:
    return replace(view, epoch=view.epoch + 1, by=by)


async def test_progress_is_told(stage: Stage) -> None:
    """By events, and by ``health()``."""
    client = await stage.enter()
    await client.push_all(range(5_000))
    before = client.view
    await stage.restart_empty(stage.servers.redis[0])
    seen: list[zkrq.Progress] = []
    while not is_whole(client.cluster, before.epoch):
        progress = client.cluster.health().servers["redis-1"].catching_up
        seen += [progress] if progress else []
        await asyncio.sleep(0)
    last = client.events(events.CatchingUp)[-1]
    assert last.copied >= last.total == 5_000
    assert last.rate > 0
    assert last.seconds_left == 0
    assert seen, "health() shows it as well"


async def test_a_server_that_evicts_keys_is_not_taken_back(stage: Stage) -> None:
    """Not before it is configured as it has to be."""
    client = await stage.enter()
    await client.push("x")
    async with stage.out_and_back(), killed_and_set(stage.servers.redis[0], "maxmemory-policy", "allkeys-lru") as back:
        client.look()
        await stage.expect_evicted(back)
        await expect_outside(stage, back)


async def test_a_full_learner_does_not_halt_the_pushes(stage: Stage) -> None:
    """It has less memory than the queue needs, so it is not even begun with; nor does one that becomes full matter."""
    client = await stage.enter({"codec": zkrq.RAW})
    await client.push_all([bytes(1000)] * 2000)
    async with stage.out_and_back(), killed_and_set(stage.servers.redis[0], "maxmemory", "1500000") as small:
        await client.push_all([b"on"] * 500)
        await asyncio.sleep(LOOKS)
        await client.push_all([b"and on"] * 500)
        await expect_outside(stage, small, seconds=0)


@asynccontextmanager
async def killed_and_set(server: local.LocalRedis, option: str, value: str) -> AsyncGenerator[local.LocalRedis]:
    """Kill a server, and start it with another option; at the end it is restarted as it was."""
    await server.kill()
    server.config[option] = value
    try:
        await server.start()
        yield server
    finally:
        del server.config[option]
        await server.restart()


async def expect_outside(stage: Stage, server: local.LocalRedis, seconds: float = LOOKS) -> None:
    """A server is not taken back within as many seconds."""
    await asyncio.sleep(seconds)
    assert ServerId(server.name) not in stage.view.receivers


async def test_a_policy_that_changed_on_a_living_connection(stage: Stage) -> None:
    """The connection stands, so who is there has to be asked again."""
    client, victim = await stage.enter(), stage.servers.redis[0]
    await client.push("x")
    async with stage.out_and_back(), dropping(victim):
        await command(victim, "FLUSHALL")
        await client.push("y")
        await expect_outside(stage, victim)


async def test_a_policy_that_is_changed_at_run_time_is_noticed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call shows it, so running clients read it; the server is back when its policy is."""
    monkeypatch.setattr(probe, "INSPECT_SECONDS", 0.0)
    client, victim = await stage.enter(), ServerId(stage.servers.redis[0].name)
    await client.push("x")
    async with stage.out_and_back(), dropping(stage.servers.redis[0]):
        client.look()
        await until(lambda: victim not in client.view.receivers)
        assert "allkeys-lru" in str(client.cluster.health().servers[victim].reason)
        assert (await client.push("y")).replicas == 2


async def test_a_server_that_may_drop_items_stays_where_pushes_need_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them have the policy: one leaves, the others serve running programs and new ones, with a warning."""
    monkeypatch.setattr(probe, "INSPECT_SECONDS", 0.0)
    client = await stage.enter()
    async with stage.out_and_back(), dropping(*stage.servers.redis):
        client.look()
        await until(lambda: caplog.text.count("and stays because pushes need it") == 2)
        client.look()
        late = await stage.enter()
        await until(lambda: caplog.text.count("and stays because pushes need it") == 4)
        for each in (client, late):
            assert (await each.push("x")).replicas == 2
            health = each.cluster.health()
            assert health.ok
            assert sum("may drop items: maxmemory-policy" in text for text in health.warnings) == 2
        await late.close()
        assert len(client.view.members) == 2
        assert caplog.text.count("and stays because pushes need it") == 4, "each client says it once"


async def test_pushes_go_on_once_one_of_two_lost_servers_is_back(stage: Stage) -> None:
    """Below min_replicas: the evicted are eligible until enough are in sync."""
    client, lost = await stage.enter(), stage.servers.redis[:2]
    await client.push("before")
    await stage.kill(*lost)
    client.look()
    await until(lambda: len(client.view.members) == 1)
    assert client.view.eligible, "both, or the second where they were found dead one after the other"
    await stage.restart_empty(lost[0])
    await until(lambda: client.view.writable)
    await until(lambda: not client.view.eligible)
    assert (await client.push("after")).replicas == 2
    assert await client.drain() == ["before", "after"]


async def test_an_eligible_server_that_was_only_out_of_reach_is_not_wiped(stage: Stage) -> None:
    """It holds everything that was pushed, and only one other does: what it missed is added."""
    client, (*hung, left) = await stage.enter(command_timeout=0.5), stage.servers.redis
    await client.push_all(range(100))
    async with stage.out_and_back() as before:
        for server in hung:
            await command(server, "CONFIG", "RESETSTAT")
            server.pause()
        client.look()
        await until(lambda: len(client.view.eligible) == 2)
        await client.ack(10)
        for server in hung:
            server.resume()
    kept = [server for server in hung if b"cmdstat_unlink" not in await command(server, "INFO", "commandstats")]
    assert len(kept) == 1, "the other one came after pushes could complete without it"
    assert stage.life(kept[0]).generation == restored(before.members[ServerId(kept[0].name)])
    await stage.kill(left)
    assert await client.drain() == list(range(10, 100))


# -- adding and removing ---------------------------------------------------------------------------------------------


async def test_a_dead_server_is_replaced_online(stage: Stage) -> None:
    """Producers and consumers go on; other clients follow."""
    other, client = await stage.enter(), await stage.enter()
    dead, next_to_die, _ = stage.servers.redis
    async with one_more_redis() as new:
        async with stage.load() as load:
            await stage.kill(dead)
            assert await client.cluster.add_server(new.url, name="new") == "new"
            await client.cluster.remove_server(dead.name)
            await until(load.progress(500))
            await until(lambda: sorted(other.view.servers) == ["new", "redis-2", "redis-3"])
            assert sorted(other.view.members) == ["new", "redis-2", "redis-3"]
            await stage.kill(next_to_die)
            await until(load.progress(500))
        assert not load.uncertain
        newcomer = await stage.enter()
        assert "new" in newcomer.cluster.health().servers, "its own list is older"
        await stage.exeunt()


async def test_a_server_is_renamed_online(stage: Stage) -> None:
    """Nothing is copied, and producers and consumers go on; who is given the former name connects nevertheless."""
    other, client = await stage.enter(), await stage.enter()
    async with stage.load() as load:
        for old, new in (("redis-1", "anna"), ("redis-2", "bert"), ("anna", "clara")):
            before = client.view
            await client.cluster.rename_server(old, new)
            assert client.view.epoch == before.epoch + 1
            assert client.view.members[ServerId(new)] == before.members[ServerId(old)]
            await until(load.progress(200))
    assert not load.uncertain
    assert sorted(other.view.members) == ["bert", "clara", "redis-3"]
    with pytest.raises(zkrq.ConfigError, match="there is a server bert"):
        await client.cluster.rename_server("clara", "bert")
    with pytest.raises(zkrq.ConfigError, match="'redis-1' is not a server"):
        await client.cluster.rename_server("redis-1", "emil")
    with pytest.raises(zkrq.ConfigError, match="name"):
        await client.cluster.rename_server("clara", " ")
    await stage.exeunt()
    by_their_new_names: dict[str, str] = dict(
        zip(("clara", "bert", "redis-3"), stage.servers.redis_urls.values(), strict=True)
    )
    for given in (stage.servers.redis_urls, by_their_new_names):
        async with zkrq.connect(given, stage.servers.zookeeper_hosts, namespace=stage.namespace) as newcomer:
            assert (await newcomer.queue(QUEUE).push("after")).replicas == 3


async def test_without_zookeeper_a_renamed_server_is_known_by_its_new_name(hub_stage: Stage) -> None:
    """The servers themselves tell it where ZooKeeper has lost everything."""
    client = await hub_stage.enter()
    await client.push("kept")
    await client.cluster.rename_server("redis-1", "anna")
    await hub_stage.exeunt()
    first, *others = hub_stage.servers.redis
    urls = {"anna": first.url, **{server.name: server.url for server in others}}
    settings = Settings(namespace=hub_stage.namespace, found=True)
    await Cluster(urls, MemoryCoordinator(Hub()), settings).recover(list(urls), without_zookeeper=True)


async def test_adding_what_cannot_be_added(stage: Stage) -> None:
    """Nothing is changed by it."""
    client, first = await stage.enter(), stage.servers.redis[0]
    view = client.view
    with pytest.raises(zkrq.ConfigError, match="not a Redis URL"):
        await client.cluster.add_server("localhost:6379")
    with pytest.raises(zkrq.ConfigError, match="name"):
        await client.cluster.add_server(first.url, name="")
    with pytest.raises(zkrq.ConfigError, match=r"holds the data of|same Redis server"):
        await client.cluster.add_server(first.url, name="twin")
    with pytest.raises(zkrq.Unavailable, match="does not answer"):
        await client.cluster.add_server("redis://127.0.0.1:1")
    assert client.view == view


async def test_adding_another_ensembles_server_or_another_under_a_known_name(stage: Stage) -> None:
    """Each is refused for its own reason."""
    cluster, info = (await stage.enter()).cluster, f"{{{stage.namespace}}}:server"
    async with one_more_redis() as other:
        with pytest.raises(zkrq.ConfigError, match="use another name"):
            await cluster.add_server(other.url, name="redis-1")
        await command(other, "HSET", info, "generation", "g", "epoch", "500", "name", "theirs")
        with pytest.raises(zkrq.ConfigError, match="another deployment"):
            await cluster.add_server(other.url, name="new")
        await command(other, "HSET", info, "deployment", cluster.view.deployment)
        with pytest.raises(zkrq.ConfigError, match="epoch 500"):
            await cluster.add_server(other.url, name="new")
    assert cluster.view.epoch == 1


async def test_another_deployments_server_is_taken_only_by_force(stage: Stage) -> None:
    """Two ensembles have a namespace of the same name; what one holds is not wiped because the other was misled."""
    client = await stage.enter()
    async with (
        local.servers(redis=1, zookeeper=0) as own,
        in_process(own, stage.namespace) as theirs,
    ):
        await theirs.queue(QUEUE).push_many(range(20))
        await client.push("ours")
        with pytest.raises(zkrq.ConfigError, match=r"another deployment .* 1 queue\(s\): nothing was changed"):
            await client.cluster.add_server(own.redis[0].url, name="new")
        assert "new" not in client.view.servers
        assert (await theirs.queue(QUEUE).size()).ready == 20
        assert await client.cluster.add_server(own.redis[0].url, name="new", force=True) == "new"
        for server in stage.servers.redis[:2]:
            await stage.kill(server)
        assert await client.drain() == ["ours"]
        await stage.exeunt()


async def test_a_listed_server_that_another_deployment_has_taken_is_not_wiped(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Who is on the list is caught up by itself, but not over items that are none of ours."""
    client, (victim, *others) = await stage.enter(), stage.servers.redis
    await client.push("ours")
    await stage.kill(victim)
    client.look()
    await until(lambda: len(client.view.members) == 2)
    await stage.exeunt()
    await stage.restart_empty(victim)
    async with in_process(local.Servers((victim,), ()), stage.namespace) as theirs:
        await theirs.queue(QUEUE).push_many(range(20))
        client = await stage.enter()
        await until(lambda: "redis-1 holds the items of another deployment" in caplog.text)
        assert ServerId("redis-1") not in client.view.receivers
        assert (await theirs.queue(QUEUE).size()).ready == 20
        with pytest.raises(zkrq.ConfigError, match="another deployment"):
            await client.cluster.add_server(victim.url, name="redis-1")
        await client.cluster.add_server(victim.url, name="redis-1", force=True)
        assert is_whole(client.cluster)
        for server in others:
            await stage.kill(server)
        assert await client.drain() == ["ours"]
        await stage.exeunt()


async def test_removing_the_last_one_that_holds_everything(stage: Stage) -> None:
    """The others were restarted, and nobody has noticed yet."""
    client, (_, *others) = await stage.enter(min_replicas=1), stage.servers.redis
    await client.push("precious")
    await stage.restart_empty(*others)
    with suppress(zkrq.Unavailable, zkrq.ConfigError):  # by then it may be known
        await client.cluster.remove_server("redis-1")
    await settled(lambda: _holds(client, 1))


async def _holds(client: Actor, items: int) -> bool:
    with suppress(zkrq.ZkrqError):
        return (await client.queue.size()).ready == items
    return False


async def test_removing_what_cannot_be_removed(stage: Stage) -> None:
    """Nothing is changed by it."""
    client = await stage.enter(min_replicas=3)
    view = client.view
    with pytest.raises(zkrq.ConfigError, match="not a server of this namespace"):
        await client.cluster.remove_server("nobody")
    with pytest.raises(zkrq.ConfigError, match="min_replicas is 3"):
        await client.cluster.remove_server("redis-1")
    assert client.view == view


# -- scrub -----------------------------------------------------------------------------------------------------------


class PutOfOld(calls.PushPlain):
    """A put that takes pushes of the last hour."""

    put_window_ms = 3_600_000


async def run_script(client: Actor, server: ServerId, call: calls.Call[Any]) -> None:
    (answer,) = (await client.fleet.ask_in(client.view, [server], call)).values()
    assert answer.status.value == "OK"


async def scrub(client: Actor) -> None:
    await client.cluster._client.shard.repairer.scrub()  # pyright: ignore[reportPrivateUsage]


def half(name: str) -> PutOfOld:
    """A push that reached one server, ten minutes ago."""
    old = fresh(0, int(time.time() * 1000) - 700_000)
    return PutOfOld(name, [calls.Put("half", old, join([NO_HEADERS + b'"half"']))])


async def test_scrub_mends_what_dead_clients_have_left_behind(stage: Stage) -> None:
    """A push on one follower only; a decision on the primary only."""
    client = await stage.enter()
    for item in ("removed", "kept"):
        await client.push(item)
    primary = client.view.primary(QUEUE)
    follower, other = sorted(client.view.members.keys() - {primary})
    young = calls.Put("young", fresh(0, int(time.time() * 1000)), join([NO_HEADERS + b'"young"']))
    await run_script(client, follower, half(QUEUE))
    await run_script(client, other, calls.PushPlain(QUEUE, [young]))
    await run_script(client, primary, calls.Clear(QUEUE, 1, "", 0, b""))
    await scrub(client)
    mended = client.events(events.Scrubbed)
    assert [(event.affirmed, event.forwarded) for event in mended] == [(1, 1)], "told to all followers at once"
    await scrub(client)
    assert client.events(events.Scrubbed) == mended, "nothing is left to do"
    for victim in [server for server in stage.servers.redis if server.name != follower]:
        await stage.kill(victim)
    assert sorted(map(str, await client.drain())) == ["half", "kept"]


async def test_scrub_finds_a_queue_that_only_a_follower_knows(stage: Stage) -> None:
    """The first push of a queue reached one server."""
    client, name = await stage.enter(), "elsewhere"
    follower = max(client.view.members.keys() - {client.view.primary(name), client.view.primary("")})
    await run_script(client, follower, half(name))
    await scrub(client)
    assert await client.cluster.queue(name).size() == (1, 0, 0, 0)


async def test_scrub_leaves_a_healthy_queue_alone(stage: Stage) -> None:
    """Neither while items flow through it nor afterwards is there anything to mend."""
    client = await stage.enter()
    async with stage.load():
        await scrub(client)
    await settled(lambda: _quiet(client))
    await scrub(client)
    await client.close()
    assert not client.events(events.Scrubbed)


async def _quiet(client: Actor) -> bool:
    return await client.queue.size() == (0, 0, 0, 0)
