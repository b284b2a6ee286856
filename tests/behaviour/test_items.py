"""Looking at items, cancelling them, dead letters."""

from __future__ import annotations

import asyncio
import re
import threading
from datetime import timedelta
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.behaviour.helpers import FEW_ATTEMPTS, Careless, Outcomes, bury, working
from tests.harness import HANG, settled, take, until
from zkrq.consuming.leases import Leases
from zkrq.protocol import calls
from zkrq.protocol.calls import Decision
from zkrq.protocol.deciding import Decided
from zkrq.replication.replicas import Replicas
from zkrq.working.outcomes import Ending

pytestmark = pytest.mark.anyio


async def test_get_and_peek(queue: zkrq.Queue[Any]) -> None:
    ready = await queue.push("ready", priority=3)
    later = await queue.push("later", delay=3600)
    assert (await queue.get(ready.id), await queue.get("nobody")) == ((await queue.peek())[0], None)
    (item,) = await queue.peek()
    assert (item.id, item.item, item.payload, item.state, item.priority) == (ready.id, "ready", b'"ready"', "ready", 3)
    assert (item.seconds_left, item.owner, item.reason, item.attempts) == (None, None, None, 0)
    (scheduled,) = await queue.peek(state="scheduled")
    assert scheduled.id == later.id
    assert scheduled.seconds_left is not None
    assert 3000 < scheduled.seconds_left <= 3600
    claim = await take(queue)
    (held,) = await queue.peek(state="claimed")
    assert (held.id, held.owner, held.attempts) == (claim.id, claim.owner, 1)
    assert await queue.peek() == []


async def test_scan_sees_everything_in_pages(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, codec=zkrq.RAW)
    receipts = await queue.push_many([b"x"] * 1200)
    large = await queue.push_many([bytes(400_000)] * 5)
    seen = [item.id async for item in queue.scan()]
    assert sorted(seen) == sorted(receipt.id for receipt in receipts + large)
    await queue.push(b"later", delay=3600)
    assert [item.payload async for item in queue.scan("scheduled")] == [b"later"]


async def test_what_cannot_be_decoded_is_shown_as_bytes(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, codec=Careless())
    await queue.push(b"\xff no JSON")
    (item,) = await queue.peek()
    assert (item.item, item.payload) == (None, b"\xff no JSON")


async def test_cancel(cluster: zkrq.Cluster, name: str, pass_time: PassTime) -> None:
    queue = cluster.queue(name, claim_timeout=1)
    ready, later = await queue.push("a"), await queue.push("b", delay=3600)
    assert await queue.cancel(ready.id)
    assert await queue.cancel(later.id)
    assert not await queue.cancel(ready.id)
    assert not await queue.cancel("nobody")
    await queue.push("c")
    claim = await take(queue)
    assert await queue.cancel(claim.id)
    with pytest.raises(zkrq.ClaimLost):
        async with claim:
            await pass_time(HANG)  # the holder learns of it when the claim is extended, at the latest
    assert await queue.size() == (0, 0, 0, 0)


async def test_cancel_tells_what_it_found(queue: zkrq.Queue[Any], connect: Connect) -> None:
    """From any process, in any state."""
    await bury(queue, 1)
    claimed = await queue.push("claimed")
    claim = await take(queue)
    ready, later = await queue.push("ready"), await queue.push("later", delay=60)
    (letter,) = await queue.dead_letters()
    async with connect() as other:
        cancel = other.queue(queue.name).cancel
        for id in (ready.id, later.id, letter.id):
            assert await cancel(id) is zkrq.Cancellation.REMOVED
            assert await cancel(id) is zkrq.Cancellation.NOT_FOUND
        assert await cancel(claimed.id) is zkrq.Cancellation.SIGNALLED
        assert await cancel(claimed.id) is zkrq.Cancellation.NOT_FOUND
        assert await cancel("nobody") is zkrq.Cancellation.NOT_FOUND
    assert await queue.size() == (0, 0, 0, 0)
    for settle in (claim.ack, claim.nack, claim.release, claim.extend):
        with pytest.raises(zkrq.ClaimLost):
            await settle()
    assert await queue.size() == (0, 0, 0, 0), "what is gone stays gone"


async def test_cancel_stops_the_body_of_the_holder(cluster: zkrq.Cluster, name: str, connect: Connect) -> None:
    """At once, from another process: its claim would not be extended for long."""
    queue = cluster.queue(name, claim_timeout=10 * HANG)
    await queue.push("x")
    claim = await take(queue)
    async with connect() as other:
        cancelling = asyncio.create_task(other.queue(name).cancel(claim.id))
        with pytest.raises(zkrq.ClaimLost, match="cancelled"):
            async with claim:
                await asyncio.sleep(HANG)
        assert await cancelling is zkrq.Cancellation.SIGNALLED
    assert claim.lost
    assert claim.lost.reason == "its item was cancelled"
    assert await queue.size() == (0, 0, 0, 0)


@pytest.mark.parametrize("how", ["cancel", "delete"])
async def test_what_is_cancelled_before_its_claim_is_known_reaches_no_handler(
    how: str, cluster: zkrq.Cluster, name: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is decided, and its holder's process has heard of the cancellation, but not of the claim."""
    decide, decided, told, handled = Replicas.decide, asyncio.Event(), asyncio.Event(), list[str]()
    cancelled = Leases.cancelled

    async def answer_late(replicas: Replicas, call: Decision[Any], **options: Any) -> Decided[Any]:
        answer = await decide(replicas, call, **options)
        if isinstance(call, calls.Claim | calls.Turn) and answer.reply.handed and not decided.is_set():
            decided.set()
            await asyncio.wait_for(told.wait(), HANG)
        return answer

    def note(leases: Leases, request: str, id: str) -> None:
        cancelled(leases, request, id)
        told.set()

    monkeypatch.setattr(Replicas, "decide", answer_late)
    monkeypatch.setattr(Leases, "cancelled", note)
    queue = cluster.queue(name, claim_timeout=10 * HANG)
    async with connect() as other, working(queue, handled.append):
        receipt = await other.queue(name).push("cancelled")
        await asyncio.wait_for(decided.wait(), HANG)
        if how == "cancel":
            assert await other.queue(name).cancel(receipt.id) is zkrq.Cancellation.SIGNALLED
        else:
            assert await other.queue(name).delete() == 1
        await other.queue(name).push("next")
        await until(lambda: "next" in handled)
    assert handled == ["next"]


@pytest.mark.parametrize("in_thread", [False, True])
async def test_cancel_stops_a_workers_handler(cluster: zkrq.Cluster, name: str, in_thread: bool) -> None:
    queue = cluster.queue(name, claim_timeout=10 * HANG)
    outcomes, begun, done = Outcomes(), asyncio.Event(), list[str]()
    loop = asyncio.get_running_loop()
    leave = threading.Event()

    async def handle(item: str) -> None:
        if item == "long":
            begun.set()
            await asyncio.sleep(HANG)
        done.append(item)

    def handle_in_a_thread(item: str) -> None:
        if item == "long":
            loop.call_soon_threadsafe(begun.set)
            leave.wait(HANG)  # nobody can stop a thread; what it returns counts for nothing
        done.append(item)

    receipt = await queue.push("long")
    async with working(queue, handle_in_a_thread if in_thread else handle, after=outcomes, concurrency=1):
        await begun.wait()
        assert await queue.cancel(receipt.id) is zkrq.Cancellation.SIGNALLED
        leave.set()
        await queue.push("next")
        await until(lambda: len(outcomes.list) == 2)
    assert outcomes.endings == [Ending.LOST, Ending.ACKED]
    assert done[-1] == "next"
    assert await queue.size() == (0, 0, 0, 0)


async def test_letter_keeps_reason_traceback_attempts_and_times(
    cluster: zkrq.Cluster, name: str, pass_time: PassTime
) -> None:
    queue = cluster.queue(name, retry=FEW_ATTEMPTS)
    receipt = await queue.push({"to": "ann"}, key="k", priority=3, ttl=60)

    def fail() -> None:
        raise LookupError("no such address\0")

    for _ in range(2):
        with pytest.raises(LookupError):
            async with await take(queue):
                await pass_time(0.02)
                fail()
        item = await queue.get(receipt.id)
        assert item is not None
        assert "LookupError: no such address" in (item.reason or ""), "also while it waits to be tried again"
    (letter,) = await queue.dead_letters()
    assert letter.reason == "failed in delivery 2 of 2: LookupError: no such address "
    assert letter.traceback is not None
    inner, outer = letter.traceback.splitlines()
    assert re.fullmatch(r"behaviour/test_items\.py:\d+ in fail", inner)
    assert re.fullmatch(r"behaviour/test_items\.py:\d+ in test_letter_keeps_\w+", outer)
    assert (letter.item, letter.key, letter.priority) == ({"to": "ann"}, "k", 3)
    assert (letter.attempts, letter.failures, letter.expires_in) == (2, 2, None), "the last one counts"
    assert letter.died_at is not None
    assert timedelta(seconds=0.03) < letter.died_at - letter.pushed_at < timedelta(seconds=HANG)
    assert await queue.redrive() == 1
    (item,) = await queue.peek()
    assert (item.attempts, item.failures, item.died_at) == (0, 0, None)
    assert item.expires_in is not None


async def test_letter_of_who_gave_a_reason_has_no_traceback(queue: zkrq.Queue[Any]) -> None:
    await queue.push("x")
    async with await take(queue):
        raise zkrq.Reject("bad address")
    await queue.push("y")
    await (await take(queue)).bury("")
    assert [(letter.reason, letter.traceback) for letter in await queue.dead_letters()] == [
        ("bad address", None),
        (None, None),
    ]


async def test_dead_letters_are_listed_redriven_and_discarded(queue: zkrq.Queue[Any]) -> None:
    ids = await bury(queue, 5)
    letters = await queue.dead_letters()
    assert sorted(letter.id for letter in letters) == sorted(ids)
    assert {letter.reason for letter in letters} == {f"bad {n}" for n in range(5)}
    assert await queue.redrive([ids[0], "nobody"]) == 1
    claim = await take(queue)
    assert (claim.id, claim.attempts, claim.failures) == (ids[0], 1, 0)
    assert await queue.redrive([claim.id]) == 0, "it is no dead letter any more"
    await claim.ack()
    assert await queue.discard([ids[1]]) == 1
    assert await queue.discard() == 3
    assert await queue.size() == (0, 0, 0, 0)


async def test_what_waits_is_advanced_by_id(queue: zkrq.Queue[Any]) -> None:
    later = (await queue.push("later", delay=3600)).id
    await queue.push("hard")
    claim = await take(queue)
    await claim.nack(delay=3600, reason="no answer")
    ready = (await queue.push("ready")).id
    assert await queue.size() == (1, 2, 0, 0)
    assert await queue.advance([later, claim.id, ready, "nobody"]) == 2
    assert await queue.size() == (3, 0, 0, 0)
    assert await queue.advance([later, claim.id, ready]) == 0, "they are ready by now"
    again = {each.item: each for each in await queue.pop_many(3, timeout=0)}
    assert (again["hard"].attempts, again["hard"].failures) == (2, 1)
    assert (again["later"].attempts, again["later"].failures) == (1, 0)


async def test_what_waits_is_advanced_by_conditions(queue: zkrq.Queue[Any]) -> None:
    for campaign in ("spring", "autumn"):
        for number in range(3):
            await queue.push(f"{campaign} {number}", delay=3600, headers={"campaign": campaign})
    await queue.push("at once", headers={"campaign": "spring"})
    assert await queue.advance(header=("campaign", "spring")) == 3
    items = {item.item async for item in queue.scan("ready")}
    assert items == {"spring 0", "spring 1", "spring 2", "at once"}
    assert await queue.advance(error="no answer") == 0
    with pytest.raises(zkrq.ConfigError, match="needs ids="):
        await queue.advance()
    with pytest.raises(zkrq.ConfigError, match="either ids or conditions"):
        await queue.advance(["a"], key="k")
    with pytest.raises(zkrq.ConfigError, match="list of ids"):
        await queue.advance("a")
    assert (await queue.size()).scheduled == 3


async def test_redrive_everything_at_a_rate(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    await bury(queue, 30)
    redriving = asyncio.create_task(queue.redrive(rate=100))
    await pass_time(0.15)
    assert not redriving.done()
    await pass_time(0.25)
    assert await redriving == 30
    assert await queue.size() == (30, 0, 0, 0)
    with pytest.raises(zkrq.ConfigError, match="rate"):
        await queue.redrive(rate=0)


async def test_an_item_that_kills_its_consumers_becomes_a_dead_letter(
    cluster: zkrq.Cluster, name: str, pass_time: PassTime
) -> None:
    """Nobody lives to count a failure, so deliveries are counted."""
    queue = cluster.queue(name, claim_timeout=0.5, retry=zkrq.Retry(max_attempts=3))
    await queue.push("poison")
    for attempt in (1, 2, 3):
        claim = await take(queue)
        assert claim.attempts == attempt
        del claim  # as if the process had died: it is extended no more
        await pass_time(0.5)
    await settled(lambda: _is_dead(queue))
    (letter,) = await queue.dead_letters()
    assert letter.attempts == 3
    assert letter.reason == "delivered 3 times, and settled by none of those consumers"


async def test_items_that_die_together_are_told_together(
    cluster: zkrq.Cluster, connect: Connect, name: str, pass_time: PassTime
) -> None:
    """One that kills its process takes its neighbours along: an operator has to learn which they were."""
    seen: list[zkrq.Event] = []
    async with connect(on_event=seen.append) as client:
        queue = client.queue(name, claim_timeout=0.5, retry=zkrq.Retry(max_attempts=2))
        await queue.push_many(["poison", "innocent"])
        await queue.push("alone")
        for _ in range(2):
            claims = await queue.pop_many(3, timeout=HANG)
            while len(claims) < 3:
                claims += await queue.pop_many(3 - len(claims), timeout=HANG)
            del claims
            await pass_time(0.5)
        await settled(lambda: _have_died(queue, 3))
        dead = {letter.id async for letter in queue.scan("dead")}
    told = [event for event in seen if isinstance(event, zkrq.ItemsGivenUp)]
    assert [(event.queue, set(event.ids)) for event in told] == [(name, dead)]
    assert str(told[0]).startswith(f"3 items of queue {name} are dead letters now, one that kills its process takes ")


async def _have_died(queue: zkrq.Queue[Any], count: int) -> bool:
    assert await queue.pop_one(timeout=0) is None
    return (await queue.size()).dead == count


async def _is_dead(queue: zkrq.Queue[Any]) -> bool:
    assert await queue.pop_one(timeout=0) is None
    return (await queue.size()).dead == 1
