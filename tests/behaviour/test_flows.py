"""Flows: what comes after is handed out once every member is done; bad input writes nothing, and nothing waits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.behaviour.helpers import is_empty, working
from tests.harness import HANG, settled, take
from zkrq.base.flows import FlowName
from zkrq.client.flow_ends import Ends
from zkrq.client.flows import Flows
from zkrq.client.inner import client_of
from zkrq.protocol.operations import Operations

pytestmark = pytest.mark.anyio

Queue = zkrq.Queue[Any]


async def is_held(queue: Queue) -> bool:
    """Whether nothing is handed out."""
    return await queue.pop_one(timeout=0) is None


async def test_what_follows_is_handed_out_once_every_member_is_done(queue: Queue) -> None:
    async with queue.flow("import") as flow:
        assert (flow.name, flow.queue) == ("import", queue.name)
        receipt = await flow.push("one")
        receipts = await flow.push_many(["two", "three"])
        follows = await flow.then("report")
    assert all(each.new for each in (receipt, *receipts, follows))
    claims = [await take(queue) for _ in range(3)]
    assert sorted(claim.item for claim in claims) == ["one", "three", "two"]
    assert (await flow.status()).state is zkrq.FlowState.RUNNING
    for claim in claims:
        assert await is_held(queue)
        await claim.ack()
    status = await flow.result(timeout=HANG)
    assert (status.name, status.queue, status.state) == ("import", queue.name, "done")
    last = await take(queue)
    assert (last.item, last.id) == ("report", follows.id)
    await last.ack()
    assert await flow.result() == status
    assert await settled_empty(queue)


async def settled_empty(queue: Queue) -> bool:
    await settled(lambda: is_empty(queue))
    return True


async def test_an_open_flow_does_not_end(queue: Queue) -> None:
    flow = await queue.flow().begin()
    await flow.then("after")
    await flow.push("a")
    await (await take(queue)).ack()
    assert (await flow.status()).state is zkrq.FlowState.OPEN
    assert (await flow.result(timeout=0)).state is zkrq.FlowState.OPEN
    assert await is_held(queue)
    await flow.seal()
    assert (await flow.result(timeout=HANG)).state.has_ended
    assert (await take(queue)).item == "after"


async def test_a_flow_without_members_ends_immediately(queue: Queue) -> None:
    async with queue.flow() as flow:
        await flow.then("after")
    assert (await take(queue)).item == "after"
    assert (await flow.status()).state is zkrq.FlowState.DONE


async def test_members_push_members(queue: Queue) -> None:
    """Items add items to a sealed flow until none is left."""
    async with queue.flow("crawl") as flow:
        await flow.push(3)
        await flow.then("end")
    seen = list[Any]()

    async def crawl(depth: Any, claim: zkrq.Claim[Any]) -> None:
        assert claim.flow
        assert (claim.flow.queue, claim.flow.name) == (queue.name, "crawl")
        if isinstance(depth, int) and depth:
            await claim.flow.push_many([depth - 1] * 2)
        seen.append(depth)

    async with working(queue, crawl, concurrency=4):
        assert (await flow.result(timeout=HANG)).state is zkrq.FlowState.DONE
        await settled(lambda: is_empty(queue))
    assert seen.pop() == "end"
    assert sorted(seen) == [0] * 8 + [1] * 4 + [2] * 2 + [3]


async def test_a_flow_that_is_cancelled_drops_what_follows(queue: Queue) -> None:
    flow = await queue.flow().begin()
    await flow.push_many(["queued", "claimed"], priority=1)
    await flow.then("after")
    claim = await take(queue)
    await flow.cancel()
    await flow.cancel()
    assert claim.holds
    await claim.ack()
    assert (await flow.status()).state is zkrq.FlowState.CANCELLED
    assert await settled_empty(queue)


async def test_a_flow_that_is_finished_is_done_whatever_is_left(queue: Queue) -> None:
    async with queue.flow() as flow:
        await flow.push("bad")
        await flow.then("after")
    await (await take(queue)).bury("why")
    assert (await flow.status()).state is zkrq.FlowState.RUNNING
    await flow.finish()
    assert (await take(queue)).item == "after"
    with pytest.raises(zkrq.FlowEnded, match=r"has ended \(done\)"):
        await flow.cancel()


async def test_an_exception_cancels_a_flow_unless_it_says_that_the_work_is_repeated(queue: Queue) -> None:
    flow = queue.flow("a")
    with pytest.raises(ZeroDivisionError):
        async with flow:
            await flow.push("member")
            raise ZeroDivisionError
    assert (await flow.status()).state is zkrq.FlowState.CANCELLED
    flow = queue.flow("b")
    with pytest.raises(zkrq.Unavailable):
        async with flow:
            await flow.push("member")
            raise zkrq.Unavailable
    assert (await flow.status()).state is zkrq.FlowState.OPEN
    async with queue.flow("b") as flow:
        await flow.push("another")
    assert (await flow.status()).state is zkrq.FlowState.RUNNING


async def test_nothing_comes_into_a_flow_that_has_ended(queue: Queue) -> None:
    async with queue.flow("once") as flow:
        pass
    await flow.result(timeout=HANG)
    with pytest.raises(zkrq.FlowEnded):
        await flow.push("late")
    with pytest.raises(zkrq.FlowEnded):
        await flow.then("late")
    with pytest.raises(zkrq.FlowEnded) as caught:
        await flow.push_many(["late", "later"])
    assert caught.value.outcomes is not None
    assert [type(error) for error in caught.value.outcomes.errors] == [zkrq.FlowEnded] * 2
    with pytest.raises(zkrq.FlowEnded, match="done") as caught:
        await queue.flow("once").begin()
    assert caught.value.outcome == "done"
    assert await is_empty(queue)


async def test_a_flow_that_was_not_begun_takes_nothing(queue: Queue) -> None:
    flow = queue.flow("never")
    with pytest.raises(zkrq.ConfigError, match="was not begun"):
        await flow.push("a")
    with pytest.raises(zkrq.ConfigError, match="was not begun"):
        await flow.push_many(["a"])
    with pytest.raises(zkrq.ConfigError, match="was not begun"):
        await flow.then("a")
    assert (await flow.status()).state is zkrq.FlowState.UNKNOWN
    for call in (flow.seal, flow.cancel, flow.finish, flow.result):
        with pytest.raises(zkrq.FlowEnded, match="unknown"):
            await call()
    assert await is_empty(queue)


@pytest.mark.parametrize("bad", ["", "a/b", "a b", "x" * 65, ".a", 7])
async def test_a_bad_name_is_refused(queue: Queue, bad: Any) -> None:
    with pytest.raises(zkrq.ConfigError, match="the flow's name"):
        queue.flow(bad)


@pytest.mark.parametrize("options", [{"keep": 0}, {"keep": 10**9}, {"deadline": -1}, {"deadline": 0}])
async def test_a_bad_policy_is_refused(queue: Queue, options: Any) -> None:
    with pytest.raises(zkrq.ConfigError):
        queue.flow("a", **options)


async def test_options_of_members_are_those_of_pushes(queue: Queue) -> None:
    async with queue.flow() as flow:
        with pytest.raises(TypeError, match="'delay'"):
            await flow.push("a", countdown=3)  # pyright: ignore[reportCallIssue]
        with pytest.raises(TypeError, match="push_many"):
            await flow.push_many(["a"], id="b")  # pyright: ignore[reportCallIssue]
        with pytest.raises(zkrq.ConfigError, match="priority"):
            await flow.push("a", priority=10)
        with pytest.raises(zkrq.ConfigError, match="not a str"):
            await flow.push_many("abc")
        assert (await flow.push("a", id="mine", priority=3, headers={"trace": "1"})).id == "mine"
        assert (await flow.push("a", id="mine")).new is False
        assert (await flow.push("b", key="k")).new
        assert (await flow.push("b", key="k")).duplicate
    claim = await take(queue)
    assert (claim.id, claim.priority, claim.headers) == ("mine", 3, {"trace": "1"})
    await claim.ack()
    await (await take(queue)).ack()
    assert (await flow.result(timeout=HANG)).state == "done"


async def test_what_is_held_has_no_moment_of_its_own(queue: Queue) -> None:
    flow = await queue.flow().begin()
    with pytest.raises(zkrq.ConfigError, match="at of what is held would mean nothing"):
        await flow.then("after", at=datetime(2100, 1, 1, tzinfo=UTC))
    assert (await flow.then("after", id="mine")).new
    assert (await flow.then("after", id="mine")).new is False
    await flow.seal()
    assert (await take(queue)).id == "mine"
    assert await queue.pop_one(timeout=0) is None


async def test_a_maker_that_comes_again_repeats_its_pushes_by_name(
    cluster: zkrq.Cluster, queue: Queue, name: str
) -> None:
    other, flow = cluster.queue(f"{name}-other"), queue.flow("order-7")
    for delivery in range(3):
        flow = queue.flow("order-7")
        async with flow:
            receipts = [await flow.push("price", name="a"), await flow.push("stock", queue=other, name="a:b")]
        assert [receipt.id for receipt in receipts] == ["order-7.a", "order-7.a:b"]
        # None: the call was slow, and was repeated by itself, so it may have found its own item.
        assert all(receipt.new in (not delivery, None) for receipt in receipts)
        if delivery == 1:
            await (await take(queue)).ack()
    assert await is_held(queue)
    with pytest.raises(zkrq.ConfigError, match="exclude each other"):
        await flow.push("b", name="b", id="c")
    with pytest.raises(zkrq.ConfigError, match="name is 'b/c'"):
        await flow.push("b", name="b/c")
    with pytest.raises(TypeError, match="'delay'"):
        await flow.push("b", name="b", countdown=3)  # pyright: ignore[reportCallIssue]
    await (await take(other)).ack()
    assert (await flow.result(timeout=HANG)).done == 2


async def test_nothing_is_held_in_a_queue_that_keeps_an_order(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, groups=zkrq.Groups(ordered=True))
    async with queue.flow() as flow:
        await flow.push("a", group="g")
        with pytest.raises(zkrq.ConfigError, match="keeps the order"):
            await flow.then("b")
    await (await take(queue)).ack()
    assert (await flow.result(timeout=HANG)).state == "done"


async def test_many_pushes_share_calls(queue: Queue) -> None:
    async with queue.flow() as flow:
        receipts = await asyncio.gather(*(flow.push(number) for number in range(100)))
        await flow.then("after")
    assert len({receipt.id.partition("~")[0] for receipt in receipts}) < 10
    for claim in await queue.pop_many(100, timeout=HANG):
        await claim.ack()
    assert (await flow.result(timeout=HANG)).state == "done"
    assert (await take(queue)).item == "after"


async def test_the_item_that_follows_names_its_flow(queue: Queue) -> None:
    async with queue.flow("import") as flow:
        await flow.then("report")
    claim = await take(queue)
    assert claim.flow
    assert (await claim.flow.status()).state == "done"
    with pytest.raises(zkrq.FlowEnded):
        await claim.flow.push("late")
    await claim.ack()
    await queue.push("alone")
    assert (await take(queue)).flow is None


async def test_a_maker_that_cancels_its_flow_leaves_its_block(queue: Queue) -> None:
    async with queue.flow() as flow:
        await flow.push("a")
        await flow.cancel()
    assert (await flow.status()).state is zkrq.FlowState.CANCELLED


# -- several queues ----------------------------------------------------------------------------------------------------


async def test_members_and_what_follows_are_in_other_queues(cluster: zkrq.Cluster, queue: Queue, name: str) -> None:
    other, last = cluster.queue(f"{name}-other"), cluster.queue(f"{name}-last")
    async with queue.flow("order") as flow:
        await flow.push("a")
        await flow.push("b", queue=other)
        await flow.push_many(["c", "d"], queue=other)
        await flow.then("after", queue=last)
    await (await take(queue)).ack()
    claims = [await take(other) for _ in range(3)]
    for claim in claims:
        assert claim.flow
        assert (claim.flow.queue, claim.flow.name) == (queue.name, "order")
        assert await last.pop_one(timeout=0) is None
        await claim.ack()
    status = await flow.result(timeout=HANG)
    assert (status.state, status.left, status.dead, status.missed) == ("done", 0, 0, 0)
    assert (await take(last)).item == "after"


async def test_members_push_into_another_queue_after_the_seal(cluster: zkrq.Cluster, queue: Queue, name: str) -> None:
    other = cluster.queue(f"{name}-other")
    async with queue.flow() as flow:
        await flow.push("a")
        await flow.then("after")
    claim = await take(queue)
    assert claim.flow
    await claim.flow.push("b", queue=other)
    await claim.flow.push("c", queue=other, id="mine")
    await claim.flow.push_many(["d", "e"], queue=other)
    await claim.ack()
    for _ in range(4):
        one = await take(other)
        assert (await flow.status()).state is zkrq.FlowState.RUNNING
        await one.ack()
    assert (await take(queue)).item == "after"
    with pytest.raises(zkrq.FlowEnded):
        await flow.push("late", queue=other)
    assert await settled_empty(other)


async def test_a_failed_flow_hands_out_what_is_held_for_that(cluster: zkrq.Cluster, queue: Queue, name: str) -> None:
    other = cluster.queue(f"{name}-other")
    async with queue.flow() as flow:
        await flow.push("bad", queue=other)
        await flow.push("good")
        await flow.then("then")
        await flow.on_failure("failed", queue=other)
        await flow.always("always")
    await (await take(other)).bury("why")
    await (await take(queue)).ack()
    status = await flow.result(timeout=HANG)
    assert (status.state, status.dead) == ("failed", 1)
    assert (await take(other)).item == "failed"
    assert (await take(queue)).item == "always"
    assert await queue.pop_one(timeout=0) is None


async def test_a_stuck_flow_goes_on_after_a_redrive(cluster: zkrq.Cluster, queue: Queue, name: str) -> None:
    other = cluster.queue(f"{name}-other")
    async with queue.flow() as flow:
        for each in (queue, other):
            await flow.push("bad", queue=each)
        await flow.then("after")
    letters = [await take(each) for each in (queue, other)]
    for claim in letters:
        await claim.bury("why")
    status = await flow.result(timeout=0)
    assert (status.state, status.dead, status.ids["dead"]) == ("running", 2, tuple(claim.id for claim in letters))
    assert await flow.redrive() == 2
    for each in (queue, other):
        await (await take(each)).ack()
    assert (await take(queue)).item == "after"
    assert await flow.redrive() == 0


async def test_many_first_pushes_into_another_queue_join_it_once(
    cluster: zkrq.Cluster, queue: Queue, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, joined = cluster.queue(f"{name}-other"), list[str]()
    join = Operations.join_leg

    def note(self: Operations, queue: str, flow: str, **options: Any) -> Any:
        joined.append(queue)
        return join(self, queue, flow, **options)

    monkeypatch.setattr(Operations, "join_leg", note)
    async with queue.flow() as flow:
        await asyncio.gather(*(flow.push(number, queue=other) for number in range(20)))
    assert joined == [other.name]
    for _ in range(20):
        await (await take(other)).ack()
    assert (await flow.result(timeout=HANG)).state is zkrq.FlowState.DONE


async def test_a_flow_is_begun_again_under_a_name_that_is_forgotten(
    cluster: zkrq.Cluster, queue: Queue, name: str, pass_time: PassTime
) -> None:
    """What this client remembers of the other queue is of the earlier flow."""
    other = cluster.queue(f"{name}-other")
    for _ in range(2):
        async with queue.flow("daily", keep=1) as flow:
            await flow.push("a", queue=other)
        await (await take(other)).ack()
        assert (await flow.result(timeout=HANG)).state is zkrq.FlowState.DONE
        await pass_time(2.0)


async def test_a_removed_member_is_missed(queue: Queue) -> None:
    async with queue.flow("a") as flow:
        receipt = await flow.push("a")
        await flow.then("after")
    assert await queue.cancel(receipt.id)
    status = await flow.result(timeout=0)
    assert (status.state, status.missed, status.ids["missed"]) == ("running", 1, (receipt.id,))
    await flow.finish()
    assert (await take(queue)).item == "after"
    async with queue.flow("b", ignore_missed=True) as flow:
        receipt = await flow.push("a")
    assert await queue.cancel(receipt.id)
    assert (await flow.result(timeout=HANG)).state is zkrq.FlowState.DONE


async def test_a_flow_fails_fast(queue: Queue) -> None:
    async with queue.flow(fail_fast=True) as flow:
        await flow.push("bad", priority=2)
        await flow.push("claimed", priority=1)
        await flow.push("queued")
        await flow.on_failure("refund")
    bad, claimed = await take(queue), await take(queue)
    await bad.bury("why")
    assert (await flow.result(timeout=0)).state is zkrq.FlowState.FAILING
    assert await queue.pop_one(timeout=0) is None
    await claimed.ack()
    assert (await take(queue)).item == "refund"
    assert (await flow.status()).state is zkrq.FlowState.FAILED


async def test_a_flow_that_fails_before_its_maker_is_done_is_not_cancelled(queue: Queue) -> None:
    """Neither by what it pushes nor by leaving the block."""
    async with queue.flow("quiet", fail_fast=True) as flow:
        await flow.on_failure("refund")
        await flow.push("bad")
        await (await take(queue)).bury("why")
        assert (await flow.result(timeout=HANG)).state is zkrq.FlowState.FAILED
    async with await take(queue) as claim:
        assert claim.item == "refund"
    flow = queue.flow("loud", fail_fast=True)
    await flow.begin()
    await flow.push_many(["bad", "claimed"])
    bad, claimed = await take(queue), await take(queue)
    with pytest.raises(zkrq.FlowEnded):
        async with flow:
            await flow.on_failure("another refund")
            await bad.bury("why")
            assert (await flow.result(timeout=0)).state is zkrq.FlowState.FAILING
            await flow.push("late")
    await claimed.ack()
    assert (await take(queue)).item == "another refund"
    assert (await flow.status()).state is zkrq.FlowState.FAILED


async def test_a_flow_fails_at_its_deadline(queue: Queue, pass_time: PassTime) -> None:
    async with queue.flow(deadline=0.5) as flow:
        await flow.push("slow")
        await flow.on_failure("late")
    claim = await take(queue)
    await pass_time(1.0)
    assert (await flow.result(timeout=0)).state is zkrq.FlowState.FAILING
    await claim.ack()
    assert (await take(queue)).item == "late"


async def test_the_ack_of_the_last_member_ends_the_flow(queue: Queue) -> None:
    """Nobody waits for the result."""
    async with queue.flow() as flow:
        await flow.push_many(range(3))
        await flow.then("after")
    claims = [await take(queue) for _ in range(3)]
    for claim in claims:
        await claim.ack()
    last = await take(queue)
    assert last.item == "after"
    await last.ack()


async def test_flows_are_listed(cluster: zkrq.Cluster, queue: Queue, name: str) -> None:
    other = cluster.queue(f"{name}-other")
    flow = await queue.flow("open").begin()
    async with other.flow("running") as running:
        await running.push_many(["a", "b"], queue=queue)
    async with queue.flow("ended"):
        pass
    await queue.flow("ended").result(timeout=HANG)
    found = {status.name: status async for status in cluster.flows() if status.queue.startswith(name)}
    assert {each: status.state.value for each, status in found.items()} == {
        "open": "open",
        "running": "running",
        "ended": "done",
    }
    assert [*found][-1] == "ended"
    assert found["running"].left == 2
    assert [status.name async for status in cluster.flows("running") if status.queue == other.name] == ["running"]
    with pytest.raises(zkrq.ConfigError, match="must be one of"):
        cluster.flows("over")
    await flow.cancel()


async def test_a_queue_that_is_deleted_cancels_its_flows(cluster: zkrq.Cluster, queue: Queue, name: str) -> None:
    other = cluster.queue(f"{name}-other")
    async with queue.flow() as flow:
        await flow.push("a")
        await flow.push("b", queue=other)
        await flow.then("after", queue=other)
    await queue.delete()
    assert await settled_empty(queue)
    assert await settled_empty(other)
    assert (await flow.status()).state in ("cancelled", "unknown")
    await queue.push("again")
    assert (await take(queue)).item == "again"


async def test_a_queue_of_another_cluster_is_refused(queue: Queue, connect: Connect) -> None:
    flow = await queue.flow().begin()
    async with connect() as another:
        with pytest.raises(zkrq.ConfigError, match="another cluster"):
            await flow.push("a", queue=another.queue(queue.name))
    await flow.cancel()


async def test_no_flow_is_begun_at_a_level_that_lacks_them(
    queue: Queue, cluster: zkrq.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(client_of(cluster).shard.replicas), "level", 1)
    with pytest.raises(zkrq.ConfigError, match=r"flows: this needs level 2, and .* level 1.*`zkrq upgrade`"):
        async with queue.flow("early"):
            raise AssertionError
    assert (await queue.flow("early").status()).state is zkrq.FlowState.UNKNOWN


async def test_a_push_of_which_home_may_not_know_is_repeated(
    cluster: zkrq.Cluster, queue: Queue, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member in another queue, after the seal: it was pushed, and home could not be told."""
    other = cluster.queue(f"{name}-other")
    async with queue.flow() as flow:
        await flow.push("a")
        await flow.push("b", queue=other)
    await flow.result(timeout=0)  # which seals it in the other queue, too
    with monkeypatch.context() as patched:
        patched.setattr(Flows, "tell_home", _fail)
        with pytest.raises(zkrq.OutcomeUnknown, match="may not know of it") as caught:
            await flow.push("c", queue=other, id="mine")
    assert caught.value.ids == ("mine",)
    told, tell = list[FlowName](), Flows.tell_home

    def note(self: Flows, flow: FlowName) -> Any:
        told.append(flow)
        return tell(self, flow)

    monkeypatch.setattr(Flows, "tell_home", note)
    assert (await flow.push("c", queue=other, id="mine")).new is False
    assert told, "home knows of it now"
    assert (await flow.status()).left == 3


async def _fail(*_: object) -> None:
    raise zkrq.Unavailable


async def test_a_look_that_fails_is_told_to_its_callers_and_not_logged(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    flow = await queue.flow().begin()

    async def fail(*_: object) -> None:
        raise zkrq.ConfigError("the password is wrong")

    monkeypatch.setattr(Ends, "drive", fail)
    looks = await asyncio.gather(flow.status(), flow.status(), return_exceptions=True)
    assert [str(each) for each in looks] == ["the password is wrong"] * 2
    assert looks[0] is not looks[1], "each adds to its own"
    assert [record for record in caplog.records if record.exc_info] == []
    monkeypatch.undo()
    assert (await flow.status()).state is zkrq.FlowState.OPEN


async def test_what_follows_reads_the_results_of_members(cluster: zkrq.Cluster, name: str, pass_time: PassTime) -> None:
    results = zkrq.Results[Any](ttl=1)
    queue, other = (cluster.queue(f"{name}{end}", results=results) for end in ("", "-other"))
    async with queue.flow("trip") as flow:
        await flow.push_many([1, 2])
        await flow.push(3, name="hotel")
        await flow.push(4, name="car", queue=other)
        await flow.then("report")
    assert (await flow.result_of("hotel")).state == "queued"
    claims = [*await queue.pop_many(3, timeout=HANG), *await other.pop_many(1, timeout=HANG)]
    for claim in claims:
        await claim.ack(result=claim.item * 10)
    assert (await flow.result(timeout=HANG)).state == "done"
    await pass_time(2)
    claim = await take(queue)
    after = claim.flow
    assert after
    found = {result.id: result.get() async for result in after.results()}
    assert found == {claim.id: claim.item * 10 for claim in claims}
    assert (await after.result_of("hotel")).get() == 30
    assert (await after.result_of("car")).get() == 40
    assert (await after.result_of("flight")).state == "unknown"
    with pytest.raises(zkrq.ConfigError, match="name is"):
        await after.result_of("a/b")
    assert [result async for result in queue.flow("never").results()] == []
