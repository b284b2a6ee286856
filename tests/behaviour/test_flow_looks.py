"""Flows whose client dies: the leader ends them; queues with flows are known to it; homes on other shards."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

import zkrq
import zkrq.testing
from tests.behaviour.homes import SECOND, B, connect, name_at, there
from tests.harness import HANG, settled, take
from zkrq.base import clock
from zkrq.base.flows import FlowName
from zkrq.base.settings import Settings
from zkrq.base.tasks import Tasks
from zkrq.client import flow_register
from zkrq.client.flow_ends import FIRST_REST, LAST_REST, Ends, Rest, Shared
from zkrq.client.flow_looks import FlowLooks
from zkrq.client.flow_register import KEPT_SECONDS, QUEUES_MAX, REGISTER, FlowRegister, decode, encode
from zkrq.client.inner import client_of
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.protocol.flows import Look
from zkrq.protocol.shards import FIRST
from zkrq.testing import Servers, in_process

pytestmark = pytest.mark.anyio

SERVERS = 4


def _nothing(*_: object) -> None:
    pass


def die_before_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client looks by itself."""
    monkeypatch.setattr(Ends, "look_soon", _nothing)


async def test_the_leader_ends_a_flow_whose_client_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    die_before_looks(monkeypatch)
    events = list[zkrq.Event]()
    async with zkrq.testing.cluster(on_event=events.append) as cluster:
        queue, other = cluster.queue("rows"), cluster.queue("other")
        async with queue.flow("import") as flow:
            await flow.push("a", queue=other)
            await flow.then("after")
        async with await take(other):
            pass
        assert await queue.pop_one(timeout=0) is None
        await cluster.clock.advance(11.0)
        assert (await take(queue)).item == "after"
        assert [(event.name, event.outcome) for event in events if isinstance(event, zkrq.FlowClosed)] == [
            ("import", "done")
        ]


async def test_an_end_that_was_not_told_everywhere_is_told_by_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Home has decided, and the client died before the other queue opened what it holds."""
    die_before_looks(monkeypatch)
    async with zkrq.testing.cluster() as cluster:
        queue, other = cluster.queue("rows"), cluster.queue("other")
        async with queue.flow("import") as flow:
            await flow.then("after", queue=other)
        with monkeypatch.context() as patched:
            patched.setattr(Ends, "look", _fail)
            with pytest.raises(zkrq.Unavailable):
                await flow.finish()
        assert await other.pop_one(timeout=0) is None
        await client_of(cluster).flows.looks.look()
        assert (await take(other)).item == "after"


@pytest.mark.parametrize("hinders", ["fails", "does not answer"])
async def test_a_flow_that_cannot_be_ended_hinders_no_other(monkeypatch: pytest.MonkeyPatch, hinders: str) -> None:
    die_before_looks(monkeypatch)
    look, answered = Ends.look, asyncio.Event()
    asked = list[str]()

    async def look_at_others(self: Ends, flow: FlowName, **options: Any) -> Any:
        asked.append(flow.name)
        if flow.name != "a":
            return await look(self, flow, **options)
        if hinders == "does not answer":
            await answered.wait()
        raise zkrq.Unavailable

    async with zkrq.testing.cluster() as cluster:
        first, queue = cluster.queue("a"), cluster.queue("b")
        for home, name in ((first, "a"), (first, "b"), (queue, "c")):
            async with home.flow(name) as flow:
                await flow.then(name)
        with monkeypatch.context() as patched:
            patched.setattr(Ends, "look", look_at_others)
            round_ = asyncio.create_task(client_of(cluster).flows.looks.look())
            assert {(await take(first)).item, (await take(queue)).item} == {"b", "c"}
            answered.set()
            await round_
        assert {*asked} == {"a", "b", "c"}
        await client_of(cluster).flows.looks.look()
        assert (await take(first)).item == "a"


async def test_the_leader_lets_a_member_go_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client died after the ack that it waited for."""
    die_before_looks(monkeypatch)
    async with zkrq.testing.cluster() as cluster:
        queue, other = cluster.queue("rows"), cluster.queue("other")
        flow = await queue.flow("import").begin()
        await flow.push("a", name="a")
        await flow.push("b", after="a", queue=other)
        await (await take(queue)).ack()
        assert await other.pop_one(timeout=0) is None
        await cluster.clock.advance(11.0)
        assert (await take(other)).item == "b"


async def test_the_last_ack_while_a_flow_is_looked_at_has_it_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first look has asked the servers before the ack."""

    async def never(self: FlowLooks) -> None: ...

    monkeypatch.setattr(FlowLooks, "look", never)
    async with zkrq.testing.cluster() as cluster:
        queue = cluster.queue("rows")
        async with queue.flow() as flow:
            await flow.push("a")
            await flow.then("after")
        claim = await take(queue)
        drive, asked, told = Ends.drive, asyncio.Event(), asyncio.Event()

        async def drive_slowly(self: Ends, *given: Any) -> Any:
            found = await drive(self, *given)
            if isinstance(found, Look):
                asked.set()
                await told.wait()
            return found

        monkeypatch.setattr(Ends, "drive", drive_slowly)
        look = asyncio.create_task(flow.result(timeout=0))
        await asked.wait()
        await claim.ack()
        for _ in range(10):
            await asyncio.sleep(0)
        told.set()
        assert (await look).state is zkrq.FlowState.RUNNING
        assert (await take(queue)).item == "after"


async def test_what_is_asked_for_anew_is_shared_until_it_has_begun() -> None:
    begun, go_on = list[int](), asyncio.Event()

    async def act() -> int:
        begun.append(len(begun))
        await go_on.wait()
        return begun[-1]

    async with Tasks("test") as tasks:
        shared = Shared[str, int](tasks)
        first = [asyncio.create_task(shared.do("a", act, "act", anew=True)) for _ in range(3)]
        while not begun:
            await asyncio.sleep(0)
        later = [asyncio.create_task(shared.do("a", act, "act", anew=True)) for _ in range(3)]
        joined = asyncio.create_task(shared.do("a", act, "act"))
        await asyncio.sleep(0)
        assert begun == [0]
        go_on.set()
        assert await asyncio.gather(*first, joined, *later) == [0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("pauses", [[], [0.1], [0.1, 0.2, 0.4], [0.1, 0.2, 0.4, 0.8, 1.6, LAST_REST, LAST_REST]])
def test_looks_rest_for_longer_while_they_follow_one_another(pauses: list[float]) -> None:
    now, rest = 50.0, Rest(50.0, FIRST_REST)
    for pause in pauses:
        rest = rest.after(now)
        assert rest.until == pytest.approx(now + pause)
        now = rest.until
    rest = rest.after(now + 2 * LAST_REST)
    assert rest.until == pytest.approx(now + 2 * LAST_REST + FIRST_REST)


async def test_a_stuck_flow_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    events = list[zkrq.Event]()
    async with zkrq.testing.cluster(on_event=events.append) as cluster:
        queue = cluster.queue("rows")
        async with queue.flow("import") as flow:
            await flow.push("bad")
        await (await take(queue)).bury("why")
        for _ in range(3):
            await cluster.clock.advance(11.0)
        (stuck,) = [event for event in events if isinstance(event, zkrq.FlowStuck)]
        assert (stuck.queue, stuck.name, stuck.dead, stuck.missed) == ("rows", "import", 1, 0)
        assert "redrive them" in str(stuck)
        await flow.redrive()
        async with await take(queue):
            pass
        assert (await flow.result(timeout=HANG)).state is zkrq.FlowState.DONE


@pytest.mark.parametrize("way", ["its letter is discarded", "its letter is acked by a client that dies"])
async def test_a_stuck_flow_that_may_end_is_ended_by_the_next_look(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    async with zkrq.testing.cluster() as cluster:
        queue, looks = cluster.queue("rows"), client_of(cluster).flows.looks
        async with queue.flow("import", ignore_missed=True) as flow:
            await flow.push("bad")
            await flow.then("after")
        await (await take(queue)).bury("why")
        for _ in range(2):
            await looks.look()
        die_before_looks(monkeypatch)
        if "discarded" in way:
            await queue.discard()
        else:
            await queue.redrive()
            await (await take(queue)).ack()
        await looks.look()
        assert (await take(queue)).item == "after"


async def test_a_flow_whose_maker_is_gone_fails_and_one_that_is_made_does_not() -> None:
    async with zkrq.testing.cluster() as cluster:
        queue = cluster.queue("rows")
        kept = await queue.flow("kept").begin()
        left = await queue.flow("left").begin()
        await left.on_failure("left")
        del left
        for _ in range(7):
            await cluster.clock.advance(600.0)
        assert (await take(queue)).item == "left"
        assert (await queue.flow("left").status()).state is zkrq.FlowState.FAILED
        assert (await kept.status()).state is zkrq.FlowState.OPEN
        await kept.seal()
        assert (await kept.result(timeout=HANG)).state is zkrq.FlowState.DONE


async def _fail(*_: object, **__: object) -> None:
    raise zkrq.Unavailable


# -- the register ------------------------------------------------------------------------------------------------------


async def test_a_queue_is_entered_once_and_removed_when_its_entry_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    async with MemoryCoordinator(hub) as one, MemoryCoordinator(hub) as two:
        register, another = FlowRegister(one), FlowRegister(two)
        for each in (register, another, register):
            await each.enter("rows")
        assert [*await another.read()] == ["rows"]
        assert hub.registers[REGISTER].version == 0, "written once"
        read = await register.read()
        await register.remove(["rows"], read)
        assert [*await register.read()] == ["rows"], "it was entered just now"
        later = clock.now_ms() + int(1000 * KEPT_SECONDS) + 1
        monkeypatch.setattr(clock, "now_ms", lambda: later)
        await register.remove(["rows"], {"rows": read["rows"] - 1})
        assert [*await register.read()] == ["rows"], "it was entered again since it was read"
        await register.remove(["rows"], read)
        assert await register.read() == {}


async def test_a_register_that_cannot_be_read_is_written_anew() -> None:
    hub = Hub()
    async with MemoryCoordinator(hub) as one:
        assert await one.swap(REGISTER, b"nonsense", -1)
        register = FlowRegister(one)
        assert await register.read() == {}
        await register.enter("rows")
        assert [*await register.read()] == ["rows"]
    assert decode(encode({"a": 1})) == {"a": 1}
    for bad in (b"", b"{}", b"[]", b'{"queues": {"a": "b"}}', b'{"queues": [1]}', b"\xff"):
        assert decode(bad) == {}


async def test_no_more_queues_have_flows_than_a_register_has_room_for() -> None:
    hub = Hub()
    async with MemoryCoordinator(hub) as one:
        full = {f"queue-{n}": clock.now_ms() for n in range(QUEUES_MAX)}
        assert await one.swap(REGISTER, encode(full), -1)
        register = FlowRegister(one)
        await register.enter("queue-7")
        with pytest.raises(zkrq.ConfigError, match="nothing was begun"):
            await register.enter("rows")


async def test_queues_without_flows_cost_the_leader_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async with zkrq.testing.cluster() as cluster:
        await cluster.queue("rows").push("a")
        monkeypatch.setattr(FlowLooks, "_look_at", _fail)
        await client_of(cluster).flows.looks.look()
        assert (await client_of(cluster).coordinator.read(flow_register.REGISTER)).version == -1


async def test_a_queue_that_cannot_be_asked_keeps_no_other_in_the_register(monkeypatch: pytest.MonkeyPatch) -> None:
    has_ended = FlowLooks._has_ended  # pyright: ignore[reportPrivateUsage]

    async def fail_for_one(self: FlowLooks, queue: str) -> bool:
        if queue == "b":
            raise zkrq.Unavailable
        return await has_ended(self, queue)

    monkeypatch.setattr(FlowLooks, "_has_ended", fail_for_one)
    async with zkrq.testing.cluster() as cluster:
        client, old = client_of(cluster), int(clock.now_ms() - 1000 * KEPT_SECONDS - 1)
        flow = await cluster.queue("d").flow("import").begin()
        await flow.finish()
        entered = {"a": old, "b": old, "c": old, "d": old, "new": clock.now_ms()}
        version = (await client.coordinator.read(REGISTER)).version
        assert await client.coordinator.swap(REGISTER, encode(entered), version)
        await client.flows.looks.look()
        assert {*decode((await client.coordinator.read(REGISTER)).data)} == {"b", "d", "new"}


# -- shards ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_first", [True, False])
async def test_home_and_another_queue_are_on_two_shards(own: Servers, is_first: bool) -> None:
    async with connect(own) as cluster:
        await cluster.add_shard(B, own.urls(*SECOND))
        at, beside = (FIRST, B) if is_first else (B, FIRST)
        queue, other = cluster.queue(name_at(at)), cluster.queue(name_at(beside))
        async with queue.flow("import") as flow:
            await flow.push_many(range(10))
            await flow.push_many(range(5), queue=other)
            await flow.then("after", queue=other)
        assert (await there(cluster, queue.name, at), await there(cluster, queue.name, beside)) == (10, 0)
        claim = await take(queue)
        assert claim.flow
        await claim.flow.push("more", queue=other)
        await claim.ack()
        for each, count in ((queue, 9), (other, 6)):
            for _ in range(count):
                await (await take(each)).ack()
        assert (await take(other)).item == "after"
        assert (await flow.result(timeout=HANG)).state is zkrq.FlowState.DONE


async def test_a_member_waits_for_another_shard(own: Servers) -> None:
    async with connect(own) as cluster:
        await cluster.add_shard(B, own.urls(*SECOND))
        queue, other = cluster.queue(name_at(FIRST)), cluster.queue(name_at(B))
        async with queue.flow("import") as flow:
            for number, each in enumerate((queue, other, queue, other)):
                after = str(number - 1) if number else ()
                await flow.push(number, name=str(number), queue=each, after=after)
        for number, each in enumerate((queue, other, queue, other)):
            claim = await take(each)
            assert claim.item == number
            await claim.ack()
        assert (await flow.result(timeout=HANG)).state is zkrq.FlowState.DONE


async def test_a_shard_that_is_added_while_members_are_pushed(own: Servers) -> None:
    async with connect(own) as cluster:
        queue: zkrq.Queue[Any] = cluster.queue(name_at(B))
        async with queue.flow("import") as flow:
            await flow.push("a")
            await flow.then("after")
            await cluster.add_shard(B, own.urls(*SECOND))
            await flow.push("b")
        for _ in range(2):
            await (await take(queue)).ack()
        assert (await take(queue)).item == "after"
        await settled(lambda: _has_ended(flow))


async def _has_ended(flow: zkrq.Flow) -> bool:
    return (await flow.status()).state.has_ended


async def test_a_shard_that_is_away_hides_the_flows_of_its_own_queues_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "Settings", partial(Settings, operation_timeout=1.0))
    async with zkrq.testing.servers(SERVERS) as own, connect(own) as cluster:
        await cluster.add_shard(B, own.urls(*SECOND))
        away, here = cluster.queue(name_at(B, "a")), cluster.queue(name_at(FIRST, "z"))
        for queue in (away, here):
            await queue.flow("import").begin()
        for server in SECOND:
            own.kill(server)
        listed = list[str]()
        with pytest.raises(zkrq.Unavailable):
            async for status in cluster.flows():
                listed.append(status.queue)
        assert listed == [here.name]
        assert [*await client_of(cluster).flows.count()] == [here.name]
