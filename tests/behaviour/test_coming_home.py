"""Items that were pushed to other shards before their queue got limits or an order: they come home, each once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, NoReturn

import pytest

import zkrq
from tests.behaviour.homes import ONE, SECOND, B, all_now, connect, name_at, there
from zkrq.client.homing import Homing, bring_home
from zkrq.client.inner import client_of
from zkrq.client.results import ResultQueue
from zkrq.protocol import calls
from zkrq.protocol.deciding import Deciding
from zkrq.protocol.shards import FIRST, ShardName, shard_of
from zkrq.protocol.view import View
from zkrq.replication.replicas import Replicas
from zkrq.testing import Servers, TestCluster

pytestmark = pytest.mark.anyio

SERVERS = 4

ORDERED = zkrq.Groups(ordered=True)


class Died(Exception):
    """The client that brings items home is no more."""


@pytest.fixture
async def two(own: Servers) -> AsyncGenerator[TestCluster]:
    """A client of a namespace of two shards."""
    async with connect(own) as cluster:
        await cluster.add_shard(B, own.urls(*SECOND))
        yield cluster


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items come home when a test says so."""

    async def nothing(_: Homing) -> None:
        pass

    monkeypatch.setattr(Homing, "look", nothing)


async def come_home(cluster: zkrq.Cluster, name: str) -> int:
    return await bring_home(client_of(cluster).shards, name)


async def push_to(queue: zkrq.Queue[Any], shard: str, items: Sequence[object], **options: Any) -> list[str]:
    """Push until each of these is on that shard; the others are removed.  Their ids."""
    ids = list[str]()
    for item in items:
        while shard_of(id := (await queue.push(item, **options)).id) != shard:
            assert await queue.cancel(id)
        ids.append(id)
    return ids


def let_die(monkeypatch: pytest.MonkeyPatch, kind: type[calls.Call[Any]], *, sent: bool) -> None:
    """Let the client die at the first call of this kind: before it is sent, or before its answer arrives."""
    decide = Replicas.decide

    async def dying(self: Replicas, call: calls.Decision[Any], *, map_number: int = 0) -> object:
        decided = None
        if sent or not isinstance(call, kind):
            decided = await decide(self, call, map_number=map_number)
        if isinstance(call, kind):
            raise Died
        return decided

    monkeypatch.setattr(Replicas, "decide", dying)


@pytest.mark.parametrize("home", [FIRST, B])
async def test_what_is_on_another_shard_waits_and_comes_home(two: TestCluster, home: ShardName) -> None:
    name, other = name_at(home), B if home == FIRST else FIRST
    queue = two.queue(name)
    ids = await push_to(queue, other, ["first", "second"])
    await push_to(queue, home, ["third"])
    await queue.set_limits(ONE)
    assert await queue.limits() == ONE
    claimed = await all_now(queue)
    assert [claim.item for claim in claimed] == ["third"], "nothing is claimed beside what is at home"
    assert await come_home(two, name) == 2
    assert await there(two, name, other) == 0
    assert await all_now(queue) == [], "one at a time"
    await claimed[0].ack()
    seen = list[tuple[str, str]]()
    while claimed := await all_now(queue):
        (claim,) = claimed
        seen.append((claim.id, claim.item))
        await claim.ack()
    assert seen == list(zip(ids, ["first", "second"], strict=True))
    assert sum(await queue.size()) == 0


async def test_items_of_a_bundle_come_home(two: TestCluster) -> None:
    name = name_at(FIRST)
    queue = two.queue(name)
    while shard_of((ids := [receipt.id for receipt in await queue.push_many(range(7))])[0]) != B:
        await queue.clear()
    claim, *rest = [await anext(aiter(queue.pop(prefetch=0))) for _ in range(3)]
    await rest[0].ack()
    await rest[1].release()
    await queue.set_limits(zkrq.Limits(concurrency=5))
    assert await come_home(two, name) == 5
    assert await come_home(two, name) == 0, "what is claimed counts where it is"
    await claim.nack(delay=0)
    assert await come_home(two, name) == 1
    assert await there(two, name, B) == 0
    found = {item.id: (item.item, item.attempts, item.failures) async for item in queue.scan()}
    assert found == {id: (at, int(at == 0), int(at == 0)) for at, id in enumerate(ids) if at != 1}


async def test_what_is_known_of_an_item_comes_along(two: TestCluster) -> None:
    name = name_at(FIRST)
    queue = two.queue(name)
    options: dict[str, Any] = {"priority": 3, "ttl": 500, "group": "g", "headers": {"a": "b"}}
    (id,) = await push_to(queue, B, [{"x": 1}], **options)
    (later,) = await push_to(queue, B, ["later"], delay=100)
    (claim,) = await all_now(queue)
    await claim.nack(50, "it failed")
    before = [await queue.get(each) for each in (id, later)]
    await queue.set_limits(ONE)
    assert await come_home(two, name) == 2
    after = [await queue.get(each) for each in (id, later)]
    for was, now in zip(before, after, strict=True):
        assert was
        assert now
        assert was.seconds_left is not None
        assert now.seconds_left is not None
        assert now.seconds_left <= was.seconds_left < now.seconds_left + 10
        assert repr(now).split("seconds_left=")[0] == repr(was).split("seconds_left=")[0]
        assert (now.reason, now.headers, now.group, now.failures) == (was.reason, was.headers, was.group, was.failures)
        assert (now.expires_in is None) == (was.expires_in is None)
    assert await queue.size() == (0, 2, 0, 0)


async def test_an_ordered_queue_gives_what_came_home_its_place(two: TestCluster) -> None:
    name = name_at(FIRST)
    queue = two.queue(name)
    for number, shard in enumerate((B, FIRST, B)):
        await push_to(queue, shard, [number], group="g")
        await two.clock.advance(0.01)
    tokens = list[tuple[int, int]]()
    for claim in await all_now(queue):
        tokens.append(claim.token)
        await claim.release()
    tokens = [max(tokens)]
    await queue.set_groups(ORDERED)
    await queue.push(3, group="g")
    assert await come_home(two, name) == 2
    seen = list[int]()
    while claimed := await all_now(queue):
        (claim,) = claimed
        seen.append(claim.item)
        tokens.append(claim.token)
        await claim.ack()
    assert seen == [0, 1, 2, 3]
    assert tokens == sorted(set(tokens))


async def test_who_looks_for_an_item_finds_it_at_home(two: TestCluster) -> None:
    name = name_at(FIRST)
    queue = two.queue(name, results=zkrq.Results())
    assert isinstance(queue, ResultQueue)
    ids = await push_to(queue, B, range(4))
    await queue.set_limits(zkrq.Limits(concurrency=4))
    assert await come_home(two, name) == 4
    assert [(await queue.get(id)).item for id in ids] == [0, 1, 2, 3]  # pyright: ignore[reportOptionalMemberAccess]
    assert {(await queue.result(id, timeout=0)).state for id in ids} == {zkrq.ResultState.QUEUED}
    again = await queue.push(0, id=ids[0])
    assert (again.new, again.done) == (False, False)
    assert await queue.cancel(ids[3])
    assert not await queue.cancel(ids[3])
    claims = {claim.id: claim for claim in await all_now(queue)}
    assert list(claims) == ids[:3]
    await claims[ids[0]].ack(result="result")
    await claims[ids[1]].bury("reason")
    assert [(await queue.result(id, timeout=0)).state.value for id in ids] == ["done", "dead", "claimed", "cancelled"]
    assert await queue.redrive([ids[1]]) == 1
    assert await queue.cancel_many([ids[1], "unknown"]) == [zkrq.Cancellation.REMOVED, zkrq.Cancellation.NOT_FOUND]
    assert await queue.cancel(ids[2]) is zkrq.Cancellation.SIGNALLED


async def test_what_has_come_home_has_not_ended(two: TestCluster) -> None:
    name = name_at(FIRST)
    queue = two.queue(name)
    await queue.set_history(10)
    (id,) = await push_to(queue, B, ["x"])
    ended = len(await queue.history(10))
    await queue.set_limits(ONE)
    await come_home(two, name)
    assert len(await queue.history(10)) == ended
    (claim,) = await all_now(queue)
    await claim.ack()
    assert (await queue.history(1))[0].id == id


async def test_what_is_not_due_for_years_is_not_shown(two: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an item comes home it is shown once."""
    name = name_at(FIRST)
    queue = two.queue(name)
    (id,) = await push_to(queue, B, ["x"])
    await queue.set_limits(ONE)
    with monkeypatch.context() as patch, pytest.raises(Died):
        let_die(patch, calls.Cancel, sent=False)
        await come_home(two, name)
    assert [item.id async for item in queue.scan()] == [id]
    assert [item.id for state in ("ready", "scheduled") for item in await queue.peek(9, state)] == [id]
    assert await all_now(queue) == []


STEPS: Sequence[tuple[type[calls.Call[Any]], bool]] = [
    (calls.Adopt, True),
    (calls.Cancel, False),
    (calls.Cancel, True),
    (calls.Admit, False),
    (calls.Admit, True),
]


@pytest.mark.parametrize(("kind", "sent"), STEPS)
@pytest.mark.parametrize("ttl", [None, 1000])
async def test_another_client_goes_on(
    own: Servers, two: TestCluster, monkeypatch: pytest.MonkeyPatch, kind: type[calls.Call[Any]], sent: bool, ttl: int
) -> None:
    name = name_at(FIRST)
    queue = two.queue(name)
    ids = await push_to(queue, B, ["a", "b"], ttl=ttl)
    await queue.set_limits(zkrq.Limits(concurrency=5))
    with monkeypatch.context() as patch, pytest.raises(Died):
        let_die(patch, kind, sent=sent)
        await come_home(two, name)
    async with connect(own) as other:
        await come_home(other, name)
        await come_home(other, name)
        claims = await all_now(other.queue(name))
        assert sorted(claim.id for claim in claims) == sorted(ids)
        for claim in claims:
            await claim.ack()
    assert sum(await queue.size()) == 0


async def test_what_only_the_primary_has_adopted_is_everywhere_before_it_leaves(
    own: Servers, two: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name_at(FIRST)
    queue = two.queue(name)
    (id,) = await push_to(queue, B, ["a"])
    await queue.set_limits(ONE)

    def die(self: Deciding, view: View, call: calls.Decision[Any], *rest: object) -> NoReturn:
        raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(Deciding, "spread", die)
        await come_home(two, name)
    async with connect(own) as other:
        with monkeypatch.context() as patch, pytest.raises(Died):
            let_die(patch, calls.Admit, sent=False)
            await come_home(other, name)
        home = client_of(other).shards.first
        answers = await home.fleet.ask(home.view.epoch, home.view.members, calls.Read(name, [id.encode()]), once=True)
    found = [calls.Read(name, []).read(answer.body).items for answer in answers.values()]
    assert [[copied.id for copied in items] for items in found] == [[id.encode()]] * len(home.view.members)
    assert len(found) > 1


REMOVALS: Sequence[Callable[[zkrq.Queue[Any], str], Awaitable[object]]] = [
    lambda queue, named: queue.cancel(named),
    lambda queue, _: queue.clear(),
]


@pytest.mark.parametrize(("kind", "sent"), STEPS)
@pytest.mark.parametrize("remove", REMOVALS, ids=["cancel", "clear"])
async def test_what_was_removed_meanwhile_does_not_come(
    two: TestCluster,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[calls.Call[Any]],
    sent: bool,
    remove: Callable[[zkrq.Queue[Any], str], Awaitable[object]],
) -> None:
    name = name_at(FIRST)
    queue = two.queue(name)
    (id,) = await push_to(queue, B, ["x"])
    await queue.set_limits(ONE)
    with monkeypatch.context() as patch, pytest.raises(Died):
        let_die(patch, kind, sent=sent)
        await come_home(two, name)
    assert await remove(queue, id)
    await come_home(two, name)
    await come_home(two, name)
    assert await all_now(queue) == []
    assert sum(await queue.size()) == 0


async def test_what_a_consumer_has_after_the_limits_are_removed_does_not_come(
    two: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name_at(FIRST)
    queue = two.queue(name)
    (id,) = await push_to(queue, B, ["x"])
    await queue.set_limits(ONE)
    with monkeypatch.context() as patch, pytest.raises(Died):
        let_die(patch, calls.Adopt, sent=True)
        await come_home(two, name)
    await queue.set_limits(zkrq.Limits())
    (claim,) = await all_now(queue)
    assert claim.id == id
    await come_home(two, name)
    await claim.ack()
    await come_home(two, name)
    assert await all_now(queue) == []
    assert sum(await queue.size()) == 0


async def test_a_full_home_takes_what_it_has_room_for(two: TestCluster) -> None:
    name = name_at(FIRST)
    queue = two.queue(name)
    await push_to(queue, B, range(5))
    await queue.set_max_size(3)
    await queue.set_limits(zkrq.Limits(concurrency=9))
    assert await come_home(two, name) == 3
    claims = await all_now(queue)
    assert len(claims) == 3
    assert await come_home(two, name) == 0
    for claim in claims:
        await claim.ack()
    assert await come_home(two, name) == 2


async def test_a_shard_that_is_away_stops_only_its_own_items(own: Servers, two: TestCluster) -> None:
    name = name_at(FIRST)
    queue = two.queue(name)
    await push_to(queue, B, ["x"])
    await queue.set_limits(ONE)
    for server in ("redis-3", "redis-4"):
        own.kill(server)
    await queue.push("y")
    claim = await anext(aiter(queue.pop()))
    assert claim.item == "y"
    await claim.ack()
