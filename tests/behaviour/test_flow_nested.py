"""Flows within flows: to the outer one an inner one is a member, which ends as that does."""

from __future__ import annotations

from typing import Any

import pytest

import zkrq
from tests.harness import HANG, take

pytestmark = pytest.mark.anyio

Queue = zkrq.Queue[Any]


@pytest.fixture
async def pages(cluster: zkrq.Cluster, name: str) -> Queue:
    """A queue that is the home of inner flows."""
    return cluster.queue(f"{name}-pages")


async def ends(flow: zkrq.Flow) -> zkrq.FlowState:
    """How a flow ends."""
    return (await flow.result(timeout=HANG)).state


async def test_the_outer_flow_ends_after_the_inner_one(queue: Queue, pages: Queue) -> None:
    async with queue.flow("book") as outer:
        await outer.then("after")
        async with outer.flow("one", queue=pages) as inner:
            await inner.push("a")
            await inner.then("then")
    assert (inner.name, inner.queue) == ("one", pages.name)
    assert ((await outer.status()).state, (await outer.status()).left) == ("running", 1)
    await (await take(pages)).ack()
    assert await ends(inner) == "done"
    assert await ends(outer) == "done"
    assert (await outer.status()).done == 1
    assert (await take(queue)).item == "after"
    assert (await take(pages)).item == "then"
    assert await pages.pop_one(timeout=0) is None


async def test_a_handler_makes_inner_flows_at_the_home_of_the_outer_one(queue: Queue) -> None:
    async with queue.flow() as outer:
        await outer.push("start")
        await outer.then("after")
    claim = await take(queue)
    assert claim.flow
    async with claim.flow.flow("part") as inner:
        await inner.push("a")
    await claim.ack()
    part = await take(queue)
    assert part.flow
    assert (part.item, part.flow.name) == ("a", "part")
    assert await queue.pop_one(timeout=0) is None
    await part.ack()
    assert await ends(outer) == "done"
    assert (await take(queue)).item == "after"


async def test_an_inner_flow_without_members_is_done(queue: Queue, pages: Queue) -> None:
    async with queue.flow() as outer, outer.flow(queue=pages):
        pass
    assert await ends(outer) == "done"


async def test_a_maker_that_comes_again_goes_on(queue: Queue, pages: Queue) -> None:

    async def make() -> tuple[zkrq.Flow, zkrq.Flow]:
        outer = await queue.flow("book").begin()
        inner = await outer.flow("one", queue=pages).begin()
        await inner.push("a", name="a")
        return outer, inner

    await make()
    outer, inner = await make()
    await inner.seal()
    await outer.seal()
    assert (await outer.status()).left == 1
    await (await take(pages)).ack()
    assert await ends(outer) == "done"


async def test_a_failed_inner_flow_is_a_dead_letter_that_is_not_redriven(queue: Queue, pages: Queue) -> None:
    async with queue.flow("book") as outer:
        await outer.then("after")
        async with outer.flow("one", queue=pages) as inner:
            await inner.push("a")
            await inner.on_failure("undo")
    await (await take(pages)).bury("why")
    assert await ends(inner) == "failed"
    status = await outer.status()
    assert (status.state, status.left, status.dead) == ("running", 0, 1)
    assert status.ids["dead"] == ("book.one",)
    assert (status.queues, status.nested) == ({"book.one": pages.name}, {"book.one": "one"})
    (letter,) = [letter for letter in await pages.dead_letters() if letter.id == "book.one"]
    assert (letter.reason, letter.item) == (f"flow 'one' of queue '{pages.name}' has failed", None)
    assert await outer.redrive() == 0
    assert await pages.redrive(["book.one"]) == 0
    assert (await outer.status()).dead == 1
    assert (await take(pages)).item == "undo"
    await outer.finish()
    assert (await take(queue)).item == "after"


async def test_the_outer_flow_fails_with_an_inner_one(queue: Queue, pages: Queue) -> None:
    async with queue.flow(fail_fast=True) as outer:
        await outer.on_failure("undo")
        await outer.push("other")
        async with outer.flow(queue=pages, fail_fast=True) as inner:
            await inner.push("a")
    await (await take(pages)).bury("why")
    assert await ends(inner) == "failed"
    assert await ends(outer) == "failed"
    assert (await take(queue)).item == "undo"


async def test_a_cancelled_inner_flow_is_a_missed_member(queue: Queue, pages: Queue) -> None:
    async with queue.flow(ignore_missed=True) as mild, mild.flow(queue=pages) as inner:
        await inner.push("a")
    await inner.cancel()
    assert await ends(mild) == "done"
    assert (await mild.status()).missed == 1
    async with queue.flow() as strict, strict.flow("two", queue=pages) as inner:
        await inner.push("a")
    await inner.cancel()
    status = await strict.status()
    assert (status.state, status.missed) == ("running", 1)
    await strict.cancel()


async def test_a_cancel_goes_into_inner_flows(queue: Queue, pages: Queue) -> None:
    async with queue.flow("a") as first, first.flow("b", queue=pages) as second:
        async with second.flow("c") as third:
            await third.push("x")
            await third.then("never")
        await second.push("y")
    await first.cancel()
    for flow in (first, second, third):
        assert await ends(flow) == "cancelled"
    assert await pages.pop_one(timeout=0) is None
    assert not any(await queue.size())
    assert not any(await pages.size())


async def test_a_cancel_that_stops_goes_into_inner_flows(queue: Queue, pages: Queue) -> None:
    async with queue.flow() as outer, outer.flow(queue=pages) as inner:
        await inner.push("x")
    claim = await take(pages)
    await outer.cancel(stop=True)
    assert await ends(inner) == "cancelled"
    with pytest.raises(zkrq.ClaimLost):
        await claim.ack()


async def test_a_failure_awaits_what_inner_flows_have_claimed(queue: Queue, pages: Queue) -> None:
    async with queue.flow(fail_fast=True) as outer:
        await outer.on_failure("undo all")
        await outer.push("a")
        async with outer.flow(queue=pages) as inner:
            await inner.on_failure("undo")
            await inner.push("x")
            await inner.push("y")
    claim = await take(pages)
    await (await take(queue)).bury("why")
    status = await outer.result(timeout=0.3)
    assert (status.state, (await inner.status()).state) == ("failing", "failing")
    assert await queue.pop_one(timeout=0) is None
    await claim.ack()
    assert await ends(inner) == "failed"
    assert await ends(outer) == "failed"
    assert (await take(queue)).item == "undo all"
    assert (await take(pages)).item == "undo"
    assert await pages.pop_one(timeout=0) is None


async def test_a_redrive_goes_into_inner_flows(queue: Queue, pages: Queue) -> None:
    async with queue.flow() as outer:
        await outer.push("a")
        async with outer.flow(queue=pages) as inner, inner.flow() as innermost:
            await innermost.push("x")
    await (await take(pages)).bury("why")
    await (await take(queue)).bury("why")
    assert (await outer.status()).left == 1
    assert await outer.redrive() == 2
    await (await take(pages)).ack()
    await (await take(queue)).ack()
    assert await ends(outer) == "done"


async def test_a_finish_leaves_inner_flows_alone(queue: Queue, pages: Queue) -> None:
    async with queue.flow() as outer:
        await outer.then("after")
        async with outer.flow(queue=pages) as inner:
            await inner.push("x")
    await outer.finish()
    assert (await take(queue)).item == "after"
    assert (await inner.status()).state == "running"
    await (await take(pages)).ack()
    assert await ends(inner) == "done"
    assert await ends(outer) == "done"


async def test_a_member_waits_for_an_inner_flow(queue: Queue, pages: Queue) -> None:
    async with queue.flow() as outer:
        async with outer.flow("one", queue=pages) as inner:
            await inner.push("x")
        await outer.push("later", after="one")
    assert await queue.pop_one(timeout=0) is None
    await (await take(pages)).ack()
    later = await take(queue)
    assert later.item == "later"
    await later.ack()
    assert await ends(outer) == "done"


async def test_status_names_both_flows(queue: Queue, pages: Queue) -> None:
    async with queue.flow("book") as outer:
        await outer.push("a", id="a")
        async with outer.flow("one", queue=pages) as inner:
            await inner.push("x")
    status = await outer.status()
    assert (status.nested, status.outer) == ({"book.one": "one"}, "")
    assert (status.queues["book.one"], set(status.ids["left"])) == (pages.name, {"a", "book.one"})
    assert (await inner.status()).outer == f"{queue.name}/book"
    await outer.cancel()
    assert (await inner.status()).outer == f"{queue.name}/book"


async def test_what_stands_for_a_flow_is_in_no_list(queue: Queue) -> None:
    async with queue.flow("book") as outer, outer.flow("one") as inner:
        await inner.push("x", id="x")
    assert [item.id async for item in queue.scan()] == ["x"]
    assert await queue.advance(["book.one"]) == 0
    assert (await queue.get("book.one")) is None
    assert await queue.pop_one(timeout=0)


async def test_a_flow_cannot_be_in_itself_or_in_two(cluster: zkrq.Cluster, queue: Queue, pages: Queue) -> None:
    async with queue.flow("a") as first, first.flow("b", queue=pages) as second:
        for outer, name, home in ((first, "a", queue), (second, "a", queue), (second, "b", pages)):
            with pytest.raises(zkrq.ConfigError, match="cannot be in"):
                await outer.flow(name, queue=home).begin()
        async with queue.flow("c") as other:
            for name, home in (("a", queue), ("b", pages)):
                with pytest.raises(zkrq.ConfigError, match="runs already"):
                    await other.flow(name, queue=home).begin()
        assert await ends(other) == "done"
        assert (await first.status()).left == 1


async def test_flows_nest_eight_deep(queue: Queue) -> None:
    flows = [await queue.flow("n0").begin()]
    for number in range(1, 8):
        flows.append(await flows[-1].flow(f"n{number}").begin())
    with pytest.raises(zkrq.ConfigError, match="no more than 8"):
        await flows[-1].flow("n8").begin()
    assert (await queue.flow("n8").status()).state == "unknown"
    for flow in reversed(flows):
        await flow.seal()
    assert await ends(flows[0]) == "done"


async def test_bad_input_begins_nothing(cluster: zkrq.Cluster, queue: Queue, pages: Queue, name: str) -> None:
    outer = queue.flow("book")
    with pytest.raises(zkrq.ConfigError, match="was not begun"):
        outer.flow("one")
    async with outer:
        for bad in ("x" * 64, "a b", ""):
            with pytest.raises(zkrq.ConfigError, match="name"):
                outer.flow(bad)
        with pytest.raises(zkrq.ConfigError, match="deadline"):
            outer.flow("one", deadline=-1)
        ordered: Queue = cluster.queue(f"{name}-ordered", groups=zkrq.Groups(ordered=True))
        with pytest.raises(zkrq.ConfigError, match="keeps the order"):
            await outer.flow("one", queue=ordered).begin()
        assert (await ordered.flow("one").status()).state == "unknown"
        await outer.push("item", name="one", queue=pages)
        with pytest.raises(zkrq.ConfigError, match="another member"):
            await outer.flow("one", queue=pages).begin()
        inner = outer.flow("two", queue=pages)
        await outer.cancel()
    with pytest.raises(zkrq.FlowEnded):
        await inner.begin()
    assert (await inner.status()).state == "unknown"


async def test_a_name_is_not_used_twice_in_one_outer_flow(queue: Queue, pages: Queue) -> None:
    async with queue.flow() as outer:
        async with outer.flow("one", queue=pages) as inner:
            pass
        assert await ends(inner) == "done"
        with pytest.raises(zkrq.FlowEnded):
            await outer.flow("one", queue=pages).begin()


async def test_a_deleted_queue_cancels_inner_flows(queue: Queue, pages: Queue) -> None:
    async with queue.flow(ignore_missed=True) as outer, outer.flow(queue=pages) as inner:
        await inner.push("x")
    await pages.delete()
    assert await ends(outer) == "done"
