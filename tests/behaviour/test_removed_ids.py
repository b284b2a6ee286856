"""The servers' memory of removed items: how long it lasts, and the outcome of a push of such an id."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

import zkrq
from tests.harness import take
from zkrq.protocol.calls import PushDecided, Put
from zkrq.protocol.clocks import PUT_WINDOW
from zkrq.protocol.keys import key
from zkrq.protocol.operations import Operations
from zkrq.protocol.payloads import join, with_headers
from zkrq.protocol.pushing import Full
from zkrq.protocol.records import fresh
from zkrq.protocol.scripts import SCRIPTS
from zkrq.protocol.steps import NothingDone
from zkrq.repair.repairer import SCRUB_SECONDS
from zkrq.replication.cutting import CUT_SECONDS, LARGE_CUT_SECONDS
from zkrq.testing import Servers, TestCluster, cluster, servers

pytestmark = pytest.mark.anyio

End = Callable[[zkrq.Queue[Any], str], Awaitable[object]]


async def ack(queue: zkrq.Queue[Any], id: str) -> None:
    claim = await take(queue)
    assert claim.id == id
    await claim.ack()


async def cancel(queue: zkrq.Queue[Any], id: str) -> None:
    assert await queue.cancel(id)


async def clear(queue: zkrq.Queue[Any], id: str) -> None:
    assert await queue.clear() == 1


async def discard(queue: zkrq.Queue[Any], id: str) -> None:
    await (await take(queue)).bury("bad")
    assert await queue.discard([id]) == 1


every_end = pytest.mark.parametrize("end", [ack, cancel, clear, discard])
every_way = pytest.mark.parametrize("options", [{}, {"key": "k"}], ids=["plain", "keyed"])


def execute(own: Servers, server: str, *command: str) -> object:
    """A command on one of the servers."""
    return own._servers[server].redis.execute(*(word.encode() for word in command))  # pyright: ignore[reportPrivateUsage]


def forget(own: Servers, server: str, queue: str, id: str) -> None:
    """Have a server drop its tombstone of this id, earlier than the others."""
    assert execute(own, server, "HDEL", key("zkrq", queue, "records"), id) == 1


@contextmanager
def held_back(own: Servers, server: str, script: str) -> Generator[Callable[[], None]]:
    """A server takes a call of this script, and what comes after it on its connection, only when what this yields is
    called."""
    held = own._servers[server]  # pyright: ignore[reportPrivateUsage]
    take, name, waiting = held.take, SCRIPTS[script].function.encode(), list[tuple[Any, list[bytes]]]()

    def hold(wire: Any, command: list[bytes]) -> None:
        if command[:2] == [b"FCALL", name] or any(wire is other for other, _ in waiting):
            waiting.append((wire, command))
        else:
            take(wire, command)

    def go_on() -> None:
        held.take = take
        for wire, command in waiting:
            take(wire, command)

    held.take = hold
    yield go_on


def primary_of(one: TestCluster, queue: str) -> str:
    return one.view.primary(queue)


# -- the same id, again --------------------------------------------------------------------------------------------


@every_end
@every_way
async def test_id_of_an_item_that_is_done_says_so(end: End, options: dict[str, Any]) -> None:
    async with cluster() as one:
        queue = one.queue("jobs")
        first = await queue.push("x", id="report", **options)
        assert (first.replicas, first.done) == (3, False)
        assert await queue.push("x", id="report", **options) == first._replace(new=False)
        await end(queue, "report")
        assert await queue.push("x", id="report", **options) == ("report", 3, False, True, False, ())
        await one.clock.advance(PUT_WINDOW)
        assert await queue.push("x", id="report", **options) == ("report", 3, False, True, False, ())
        assert await queue.size() == (0, 0, 0, 0)


@every_end
@every_way
async def test_id_is_as_good_as_new_after_its_time(end: End, options: dict[str, Any]) -> None:
    """The queue is quiet: nothing has dropped the tombstone by then."""
    async with servers() as own, own.connect() as one:
        queue = one.queue("jobs")
        await queue.push("x", id="report", **options)
        await end(queue, "report")
        await one.clock.advance(2 * PUT_WINDOW + 1)
        assert await queue.push("y", id="report", **options) == ("report", 3, False, False, True, ())
        claim = await take(queue)
        assert (claim.id, claim.item, claim.attempts) == ("report", "y", 1)
        await claim.ack()
        assert (await queue.push("z", id="report", **options)).done
        own.kill(primary_of(one, "jobs"))
        assert (await queue.push("z", id="report", **options)).done
        assert await queue.size() == (0, 0, 0, 0)


async def test_id_that_recurs_is_delivered_every_time() -> None:
    async with cluster() as one:
        queue = one.queue("reports")
        for day in range(4):
            receipt = await queue.push({"day": day}, id="daily-report")
            assert (receipt.replicas, receipt.done) == (3, False)
            claim = await take(queue)
            assert claim.item == {"day": day}
            await claim.ack()
            await one.clock.advance(2 * PUT_WINDOW + 1)


async def test_id_of_a_full_queue_is_remembered_alike() -> None:
    async with cluster() as one:
        queue = one.queue("jobs", max_size=1)
        await queue.push("x", id="report")
        await ack(queue, "report")
        assert (await queue.push("x", id="report")).done
        await one.clock.advance(2 * PUT_WINDOW + 1)
        assert not (await queue.push("x", id="report")).done
        await ack(queue, "report")


async def test_others_of_the_same_batch_are_not_disturbed() -> None:
    async with cluster() as one:
        queue = one.queue("jobs")
        await queue.push("old", id="old")
        await ack(queue, "old")
        await one.clock.advance(2 * PUT_WINDOW + 1)
        await queue.push("young", id="young")
        await ack(queue, "young")
        ids = ["a", "old", "b", "young", "c", "young"]
        receipts = await asyncio.gather(*(queue.push(f"new {id}", id=id) for id in ids))
        assert receipts == [(id, 3, False, id == "young", id != "young", ()) for id in ids]
        claims = await queue.pop_many(10, timeout=0)
        assert sorted(claim.item for claim in claims) == ["new a", "new b", "new c", "new old"]
        assert await queue.ack_many(claims) == []


# -- servers that remember different things ------------------------------------------------------------------------


@patch("zkrq.repair.repairer.SCRUB_SECONDS", 1e6)  # a scrub at the moment would drop what has expired
@pytest.mark.parametrize("forgetful", ["the primary", "a follower"])
@pytest.mark.parametrize("later", [0.0, 2 * PUT_WINDOW + 1], ids=["fresh", "expired"])
async def test_servers_drop_their_tombstones_at_different_times(forgetful: str, later: float) -> None:
    """No push may return that one server's tombstone swallows."""
    async with servers() as own, own.connect() as one:
        queue = one.queue("jobs")
        await queue.push("x", id="report")
        await ack(queue, "report")
        await one.clock.advance(later)
        primary = primary_of(one, "jobs")
        follower = next(name for name in own.names if name != primary)
        forget(own, primary if forgetful == "the primary" else follower, "jobs", "report")
        done = (await queue.push("y", id="report")).done
        assert done == ((forgetful, later) == ("a follower", 0.0)), "what the primary remembers counts"
        assert await queue.size() == (int(not done), 0, 0, 0)
        own.kill(primary)
        assert await queue.size() == (int(not done), 0, 0, 0)
        if not done:
            await ack(queue, "report")
        assert (await queue.push("z", id="report")).done


def again(call: PushDecided, **_: bool) -> PushDecided:
    """As after a change of the view, when another primary may have decided the same push before."""
    return replace(call, again=True)


@pytest.mark.parametrize("refusing", ["primary", "every server"])
async def test_tombstone_of_a_refused_push_does_not_swallow_a_later_one(refusing: str) -> None:
    """``QueueFull``: retry later, also once there is no limit."""
    async with servers() as own, own.connect() as one:
        queue = one.queue("jobs")
        await queue.push("x")
        await queue.set_max_size(1)
        put = Put("report", fresh(0, int(one.clock.now().timestamp() * 1000)), join([with_headers(b"{}", {})]))
        with patch.object(PushDecided, "under", again):
            replicas = one._client.shard.replicas  # pyright: ignore[reportPrivateUsage]
            pushed = await replicas.push_decided(PushDecided("jobs", [put]))
        assert pushed.exceptional == {(0, 0): Full()}
        await queue.set_max_size(None)
        if refusing == "primary":
            for name in set(own.names) - {primary_of(one, "jobs")}:
                forget(own, name, "jobs", "report")
        assert await queue.push("y", id="report") == ("report", 3, False, False, True, ())
        own.kill(primary_of(one, "jobs"))
        claims = await queue.pop_many(2, timeout=5)
        assert [claim.item for claim in claims] == ["x", "y"]
        assert await queue.ack_many(claims) == []


async def test_push_whose_item_was_taken_in_the_middle_counts_as_pushed() -> None:
    """A server that was slow hears of the push after the item's ack."""
    async with servers() as own, own.connect() as one, own.connect() as other:
        queue = one.queue("jobs")
        slow = next(name for name in own.names if name != primary_of(one, "jobs"))
        with held_back(own, slow, "push_plain") as go_on:
            pushing = asyncio.create_task(queue.push("x", id="report"))
            await ack(other.queue("jobs"), "report")
            assert not pushing.done()
            go_on()
            assert await pushing == ("report", 3, False, False, True, ())
        assert await queue.size() == (0, 0, 0, 0)
        assert (await queue.push("x", id="report")).done


@pytest.mark.parametrize("taken", [False, True], ids=["nowhere", "on a follower"])
async def test_push_that_ends_in_the_middle_is_told_truly(taken: bool) -> None:
    """The second part of such a push does not come to its end, and the others of its batch have."""
    async with servers() as own, own.connect() as one:
        queue = one.queue("jobs")
        await queue.push("x", id="report")
        await ack(queue, "report")
        if taken:
            forget(own, next(name for name in own.names if name != primary_of(one, "jobs")), "jobs", "report")

        def fail(*_: object, **__: object) -> None:
            raise NothingDone("no time left")

        with patch.object(Operations, "push_decided", fail):
            told = asyncio.gather(queue.push("y", id="report"), queue.push("z", id="other"), return_exceptions=True)
            failed, other = await told
        assert isinstance(failed, zkrq.OutcomeUnknown if taken else zkrq.Unavailable)
        assert other == ("other", 3, False, False, True, ())


# -- payloads --------------------------------------------------------------------------------------------------------


def payloads(own: Servers, queue: str) -> list[object]:
    """How many payloads each server has."""
    return [execute(own, name, "HLEN", key("zkrq", queue, "payloads")) for name in own.names]


@every_end
async def test_payloads_of_what_is_gone_are_dropped_everywhere(end: End) -> None:
    async with servers() as own, own.connect() as one:
        queue = one.queue("jobs")
        await queue.push("x", id="report")
        await end(queue, "report")
        assert payloads(own, "jobs") == [1, 1, 1]
        await queue.push("y", delay=600)
        await one.clock.advance(2 * CUT_SECONDS)
        assert payloads(own, "jobs") == [1, 1, 1], "that of the other one"


async def test_calls_that_are_made_anyway_drop_them() -> None:
    """A queue in use pays no call for it: each server hears of it with the next push, settlement or record."""
    async with servers() as own, own.connect() as one:
        queue = one.queue("jobs")
        for item in range(3):
            await queue.push(item)
        for kept in (3, 2, 1):
            await (await take(queue)).ack()
            assert payloads(own, "jobs") == [kept] * 3, "that of the last item, until the next call"
        await queue.push("another")
        assert payloads(own, "jobs") == [1, 1, 1]


async def test_large_payloads_do_not_wait_for_other_calls() -> None:
    async with servers() as own, own.connect() as one:
        queue = one.queue("jobs")
        await queue.push("x" * 100_000, id="report")
        await (await take(queue)).ack()
        assert payloads(own, "jobs") == [1, 1, 1]
        await one.clock.advance(2 * LARGE_CUT_SECONDS)
        assert payloads(own, "jobs") == [0, 0, 0]


async def test_closing_drops_them_too() -> None:
    async with servers() as own:
        async with own.connect() as one:
            queue = one.queue("jobs")
            await queue.push_many(range(1200))
            assert await queue.clear() == 1200
        assert payloads(own, "jobs") == [0, 0, 0]


async def test_server_that_is_down_does_not_keep_the_others_from_it() -> None:
    async with servers() as own, own.connect() as one:
        queue = one.queue("jobs")
        await queue.push("x", id="report")
        own.kill("redis-1")
        await ack(queue, "report")
        own.kill("redis-2" if primary_of(one, "jobs") == "redis-3" else "redis-3")
        await one.clock.advance(2 * CUT_SECONDS)
        assert execute(own, primary_of(one, "jobs"), "HLEN", key("zkrq", "jobs", "payloads")) == 0


async def test_idle_queue_keeps_nothing() -> None:
    """Items that expire or are buried and dropped: no ack ever drops their tombstones."""
    async with servers() as own, own.connect() as one:
        queue = one.queue("jobs")
        for id in ("acked", "left"):
            await queue.push("x", id=id)
        claims = await queue.pop_many(2, timeout=0)
        assert await queue.ack_many(claims) == []
        await one.clock.advance(2 * CUT_SECONDS)
        for name in own.names:  # what a client leaves that dies before it drops a payload
            execute(own, name, "HSET", key("zkrq", "jobs", "payloads"), "left", "x")
        await one.clock.advance(2 * PUT_WINDOW + 1.3 * SCRUB_SECONDS)
        for name in own.names:
            for kind in ("records", "payloads", "tombstones"):
                assert execute(own, name, "EXISTS", key("zkrq", "jobs", kind)) == 0, (name, kind)


async def test_nothing_is_dropped_while_a_server_may_lack_it() -> None:
    async with servers() as own, own.connect(min_replicas=2) as one:
        queue = one.queue("jobs")
        await queue.push("x", id="report")
        await ack(queue, "report")
        for name in [name for name in own.names if name != primary_of(one, "jobs")]:
            own.kill(name)
        await one.clock.advance(2 * PUT_WINDOW + 1.3 * SCRUB_SECONDS)
        assert one.view.eligible
        assert execute(own, primary_of(one, "jobs"), "HLEN", key("zkrq", "jobs", "records")) == 1


async def test_shortened_memory_is_told_once() -> None:
    told: list[zkrq.MemoryShortened] = []

    def note(event: zkrq.Event) -> None:
        if isinstance(event, zkrq.MemoryShortened):
            told.append(event)

    async with servers() as own, own.connect(on_event=note) as one:
        queue = one.queue("jobs")
        await queue.push("x")
        forgot_ms = int(one.clock.now().timestamp() * 1000) - 90_000
        execute(own, primary_of(one, "jobs"), "HSET", key("zkrq", "jobs", "lead"), "forgot_ms", str(forgot_ms))
        await one.clock.advance(1.3 * SCRUB_SECONDS)
        assert [event.queue for event in told] == ["jobs"]
        assert told[0].seconds is not None
        assert 90 <= told[0].seconds <= 90 + 1.3 * SCRUB_SECONDS
        await one.clock.advance(2 * PUT_WINDOW + 1.3 * SCRUB_SECONDS)
        assert [event.seconds is None for event in told] == [False, True]
