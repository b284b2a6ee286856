"""Two shards of three real Redis servers each, three ZooKeeper servers, several clients, and load that never stops."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import zkrq
from tests.faults.servers import kill_all
from tests.faults.stage import Stage
from tests.harness import command, push_surely, settled, until
from tests.security.znodes import link_of
from zkrq import local
from zkrq.client.cluster import Cluster
from zkrq.coordination.zookeeper.link import NoNode
from zkrq.protocol import calls
from zkrq.protocol.payloads import NO_HEADERS, join
from zkrq.protocol.records import fresh
from zkrq.protocol.shards import FIRST, ShardName, home, shard_of
from zkrq.protocol.view import ServerId

pytestmark = pytest.mark.anyio

CLIENTS = 3


@pytest.fixture(scope="module")
async def second_servers(anyio_backend: str) -> AsyncGenerator[local.Servers]:
    async with local.servers(redis=3, zookeeper=0) as running:
        yield running


@pytest.fixture
async def second(second_servers: local.Servers) -> AsyncGenerator[local.Servers]:
    """The servers of the second shard, empty and running."""
    yield second_servers
    for server in second_servers.all:
        server.resume()
    await second_servers.start()


def urls(servers: local.Servers) -> dict[str, str]:
    return {f"b-{name}": url for name, url in servers.redis_urls.items()}


class Traffic:
    """Pushes and deliveries by several clients: two thirds of the items plain, the others under an id or a key."""

    def __init__(self) -> None:
        self.pushed = set[str]()
        self.acked = set[str]()
        self.perhaps_acked = set[str]()
        self.revived = list[str]()
        self.held = Counter[str]()
        self.twice = list[str]()
        self.refused = Counter[str]()
        self.places = Counter[str | None]()
        self.slowest = 0.0
        self._stop = asyncio.Event()
        self._acking = 0

    async def produce(self, queue: zkrq.Queue[Any], *, named: bool) -> None:
        """Push what is new.  What may have happened is repeated beside it, for as long as it takes."""
        loop, number = asyncio.get_running_loop(), 0
        repeating = list[asyncio.Task[None]]()
        while not self._stop.is_set():
            number += 1
            name = secrets.token_hex(8)
            options: dict[str, Any] = ({"id": zkrq.new_id()} if number % 2 else {"key": name}) if named else {}
            began = loop.time()
            try:
                receipt = await queue.push(name, **options)
            except zkrq.OutcomeUnknown as error:
                repeating.append(asyncio.create_task(self._repeat(queue, name, error.id)))
            except (zkrq.Unavailable, zkrq.NotEnoughReplicas):
                self.refused["named" if named else "plain"] += 1
                await asyncio.sleep(0.05)
            else:
                self.slowest = self.slowest if named else max(self.slowest, loop.time() - began)
                self.pushed.add(name)
                self.places[shard_of(receipt.id)] += 1
            await asyncio.sleep(0.002)
        await asyncio.gather(*repeating)

    async def _repeat(self, queue: zkrq.Queue[Any], name: str, id: str | None) -> None:
        await push_surely(queue, name, id)
        self.pushed.add(name)

    async def consume(self, queue: zkrq.Queue[Any]) -> None:
        async for claim in queue.pop():
            name = claim.item
            if name in self.acked:
                self.revived.append(name)
            self.held[name] += 1
            if self.held[name] > 1:
                self.twice.append(name)
            await asyncio.sleep(0)
            self.held[name] -= 1
            self._acking += 1
            try:
                await claim.ack()
            except zkrq.OutcomeUnknown:
                self.perhaps_acked.add(name)
                # A claim that is referenced is extended.  Kept while the loop waits for its next item, it would never
                # end, and that item might be the same one.
                del claim
            except zkrq.ClaimLost:
                continue
            else:
                self.acked.add(name)
            finally:
                self._acking -= 1

    def progress(self, items: int) -> Any:
        """A condition: so many items more were pushed and acked than now."""
        pushed, acked = len(self.pushed), len(self.acked)
        return lambda: len(self.pushed) >= pushed + items and len(self.acked) >= acked + items

    async def more_at(self, shard: str, items: int) -> None:
        """Wait until more than this number of items more were pushed to a shard."""
        before = self.places[shard]
        await until(lambda: self.places[shard] > before + items)

    @asynccontextmanager
    async def running(self, clusters: list[Cluster], queue: str) -> AsyncGenerator[None]:
        """Items flow; at the end everything is drained and nothing may be missing."""
        async with asyncio.TaskGroup() as group:
            # What was perhaps acked comes back when its claim ends, and is waited for.
            queues = [cluster.queue(queue, claim_timeout=10) for cluster in clusters]
            producing = [
                group.create_task(self.produce(queue, named=named))
                for queue in queues
                for named in (False, False, True)
            ]
            consuming = [group.create_task(self.consume(queue)) for queue in queues for _ in range(2)]
            await until(self.progress(200))
            yield
            self._stop.set()
            await asyncio.wait(producing)

            async def is_drained() -> bool:
                try:
                    return not (any(await queues[0].size()) or self._acking)
                except zkrq.Unavailable:
                    return False

            await settled(is_drained)
            for task in consuming:
                task.cancel()
        assert self.pushed <= self.acked | self.perhaps_acked, "lost"
        assert not self.revived, "delivered again after an ack that had returned"
        assert not self.twice, "held twice"


@pytest.fixture
async def opened(stage: Stage) -> list[Cluster]:
    """Clients that were given the servers of the first shard."""
    return [(await stage.enter()).cluster for _ in range(CLIENTS)]


async def test_a_shard_that_dies_stops_no_push_and_its_items_come_when_it_is_back(
    opened: list[Cluster], second: local.Servers
) -> None:
    """Plain pushes go to the other one meanwhile."""
    await opened[0].add_shard("b", urls(second))
    traffic = Traffic()
    async with traffic.running(opened, "plain"):
        await traffic.more_at("b", 20)
        await kill_all(second)
        refused = traffic.refused["plain"]
        await traffic.more_at("main", 200)
        assert traffic.refused["plain"] == refused, "another shard took it"
        await second.start()
        await traffic.more_at("b", 20)
    print(f"the slowest plain push took {traffic.slowest:.2f} s; {dict(traffic.places)}; {traffic.refused}")


async def test_queues_that_are_used_once_and_deleted_leave_no_znode_and_ids_stay_where_they_are(
    opened: list[Cluster], second: local.Servers
) -> None:
    """A queue whose ids are used has a home, which is forgotten with the queue and outlasts changes of the map."""
    one, two, _ = opened
    link, homes = await link_of(one), f"/{one.namespace}/homes"
    await one.add_shard("b", urls(second))
    await asyncio.gather(*(two.queue(f"once-{number}").push(number, id="mine") for number in range(60)))
    for number in range(60):
        assert await two.queue(f"once-{number}").delete() == 1
    with pytest.raises(NoNode):
        await link.children(homes)
    kept = [f"kept-{number}" for number in range(8)]
    for queue in kept:
        assert (await one.queue(queue).push("x", id="mine")).new
    for change in (one.drain_shard("b"), two.add_shard("b", urls(second)), one.drain_shard("main")):
        await change
        for client in opened:
            assert not any([(await client.queue(queue).push("x", id="mine")).new for queue in kept])
    assert set(kept) <= await link.children(homes)


async def test_a_shard_comes_and_goes_under_load_and_no_push_is_refused(
    opened: list[Cluster], second: local.Servers
) -> None:
    """It is added, drained and removed by one client each."""
    one, two, three = opened
    traffic = Traffic()
    async with traffic.running(opened, "moving"):
        await one.add_shard("b", urls(second))
        await traffic.more_at("b", 50)
        await two.drain_shard("b")
        await settled(lambda: is_empty(two, "b"))
        await three.remove_shard("b", force=True)
        await kill_all(second)
        await until(traffic.progress(200))
        assert all(list(cluster.shards) == ["main"] for cluster in opened)
    assert not traffic.refused["plain"]
    print(f"{dict(traffic.places)}; {traffic.refused}")


async def test_an_id_that_only_a_hung_server_has_taken_is_there_once_after_a_shard_was_added(
    stage: Stage, second: local.Servers
) -> None:
    """The server comes back with what it took by the map of before.  It is the queue's primary on its shard, so that
    is claimed; and the push is repeated, where the queue is at home by then."""
    client, (hung, other, _) = await stage.enter(command_timeout=0.5, operation_timeout=2), stage.servers.redis
    before, shards = client.view, [FIRST, ShardName("b")]
    name = next(n for n in map(str, range(100)) if home(n, shards) == "b" and before.primary(n) == hung.name)
    for server in (hung, other):
        server.pause()
    # A push of another client, which does not return: it arrives as soon as the server goes on.
    put = calls.Put("mine", fresh(0, int(time.time() * 1000)), join([NO_HEADERS + b'"x"']))
    await client.fleet.ask_in(before, [ServerId(hung.name)], calls.PushPlain(name, [put]))
    client.look()
    await until(lambda: len(client.view.eligible) == 2)
    (added,) = await asyncio.gather(client.cluster.add_shard("b", urls(second)), return_exceptions=True)
    hung.resume()
    await until(lambda: client.view.writable)
    other.resume()
    await stage.expect_whole(before.epoch)
    await client.cluster.add_shard("b", urls(second))
    await push_surely(client.cluster.queue(name), "x", "mine")
    assert await client.drain(name) == ["x"]
    assert "may come back with what no other server has" in str(added)


async def is_empty(cluster: Cluster, shard: str) -> bool:
    return not await cluster.shard_sizes(shard)


ORDERED, ALONE = zkrq.Groups(ordered=True), zkrq.Limits(concurrency=1000)

KINDS: dict[str, tuple[dict[str, Any], Callable[[str], dict[str, Any]]]] = {
    "plain": ({}, lambda name: {}),
    "id": ({}, lambda name: {"id": name}),
    "made-id": ({}, lambda name: {"id": zkrq.new_id()}),
    "key": ({}, lambda name: {"key": name}),
    "replace": ({}, lambda name: {"key": name, "replace": True}),
    "window": ({}, lambda name: {"key": name, "key_window": 60}),
    "group": ({}, lambda name: {"group": name[:1]}),
    "ordered": ({"groups": ORDERED}, lambda name: {"group": name[:1]}),
    "limited": ({"limits": ALONE}, lambda name: {}),
    "max-size": ({"max_size": 1_000_000}, lambda name: {}),
}
"""Every kind of push: the options of its queue, and those of a push."""

MANY = {"plain", "group", "ordered", "limited", "max-size"}
"""Kinds that ``push_many`` takes."""


class EveryKind:
    """Pushes of every kind, without a pause and without a fault: none may fail."""

    PUSHERS = 6
    """Of each kind, for each client."""

    def __init__(self) -> None:
        self.pushed = Counter[str]()
        self.failed = list[tuple[str, zkrq.ZkrqError]]()
        self._stop = False

    async def push(self, cluster: Cluster, kind: str, *, many: bool) -> None:
        settings, options = KINDS[kind]
        make: Any = cluster.queue
        queue: zkrq.Queue[Any] = make(kind, **settings)
        while not self._stop:
            name = secrets.token_hex(8)
            try:
                if many:
                    await queue.push_many([name] * 3, **options(name))
                else:
                    await queue.push(name, **options(name))
            except zkrq.ZkrqError as error:
                self.failed.append((kind, error))
            else:
                self.pushed[kind] += 3 if many else 1
            await asyncio.sleep(0.002)

    @asynccontextmanager
    async def running(self, clusters: list[Cluster]) -> AsyncGenerator[None]:
        async with asyncio.TaskGroup() as group:
            for cluster in clusters:
                for kind in KINDS:
                    for number in range(self.PUSHERS):
                        group.create_task(self.push(cluster, kind, many=kind in MANY and number == 0))
            await self.more()
            yield
            await self.more()
            self._stop = True

    async def more(self) -> None:
        """Wait until items of every kind were pushed."""
        before = self.pushed.copy()
        await until(lambda: bool(self.failed) or all(self.pushed[kind] > before[kind] + 20 for kind in KINDS))


async def test_the_map_changes_under_every_kind_of_push_and_each_returns(
    opened: list[Cluster], second: local.Servers
) -> None:
    """A shard is added and drained, and limits of queues are written meanwhile; every item is there once."""
    operator, *producers = opened
    traffic = EveryKind()
    async with traffic.running(producers):
        for round in range(2):
            await operator.add_shard("b", urls(second))
            await traffic.more()
            for number in range(4):  # each changes the map: the first limits of a queue that nobody else uses
                await operator.queue(f"other-{round}-{number}").set_limits(zkrq.Limits(concurrency=5))
                await traffic.more()
            await operator.drain_shard("b")
            await traffic.more()
    assert not traffic.failed
    for kind in KINDS:
        assert sum(await operator.queue(kind).size()) == traffic.pushed[kind], kind


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(3))
async def test_shards_while_servers_of_both_are_killed(
    opened: list[Cluster], servers: local.Servers, second: local.Servers, seed: int
) -> None:
    """A shard is added, drained and removed under load, with a fault at each step."""
    chance = random.Random(seed)
    traffic = Traffic()
    async with traffic.running(opened, "chaos"):
        for round in range(3):
            name = f"b{round}"
            async with _amid_a_fault(servers, second, chance):
                await _until_done(opened, "add_shard", name, urls(second))
            await until(lambda name=name: traffic.places[name] > 20)
            await _one_fault(servers, second, chance)
            for server in second.redis if chance.random() < 0.5 else ():
                await server.kill()
            await until(traffic.progress(100))
            await second.start()
            async with _amid_a_fault(servers, second, chance):
                await _until_done(opened, "drain_shard", name)
            async with _amid_a_fault(servers, second, chance):
                await _until_done(opened, "remove_shard", name, force=True)
            for server in second.redis:
                await command(server, "FLUSHALL")
            await until(traffic.progress(100))


@asynccontextmanager
async def _amid_a_fault(servers: local.Servers, second: local.Servers, chance: random.Random) -> AsyncGenerator[None]:
    """A fault comes and goes beside what is done in the block."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_one_fault(servers, second, chance))
        yield


async def _until_done(clusters: list[Cluster], call: str, *arguments: Any, **options: Any) -> None:
    """What an operator does: call again, anywhere, until it has worked."""
    errors = list[zkrq.ZkrqError]()
    for cluster in clusters * 100:
        try:
            return await getattr(cluster, call)(*arguments, **options)
        except zkrq.ConfigError as error:
            if "cannot be removed yet" not in str(error):
                raise
            errors.append(error)
        except (zkrq.Unavailable, zkrq.OutcomeUnknown) as error:
            errors.append(error)
        await asyncio.sleep(0.3)
    raise AssertionError(f"{call} never worked: {errors[-5:]}")


async def _one_fault(servers: local.Servers, second: local.Servers, chance: random.Random) -> None:
    await asyncio.sleep(chance.random())
    match chance.randrange(3):
        case 0:
            server = await servers.zookeeper_leader()
        case 1:
            server = chance.choice(servers.redis)
        case _:
            server = chance.choice(second.redis)
    await server.kill()
    await asyncio.sleep(2.5)
    await server.start()
    await asyncio.sleep(1.5)
