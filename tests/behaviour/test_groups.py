"""``group=``: groups take turns, however many items one of them has."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.behaviour.helpers import working
from tests.harness import HANG, until
from zkrq.client.inner import client_of
from zkrq.consuming.core import dispatch

pytestmark = pytest.mark.anyio


async def drain(queue: zkrq.Queue[Any], count: int) -> list[str]:
    """Items in the order in which they are claimed one by one."""
    items: list[str] = []
    async for claim in queue.pop(prefetch=0, limit=count, wait=False):
        items.append(claim.item)
        await claim.ack()
    return items


async def test_groups_take_turns(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many([f"a{n}" for n in range(200)], group="a")
    await queue.push_many(["b0", "b1"], group="b")
    await queue.push("c0", group="c")
    assert await drain(queue, 7) == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]
    assert await queue.clear() == 196


async def test_a_claim_names_its_group(queue: zkrq.Queue[Any]) -> None:
    await queue.push("x", group="tenant-42")
    await queue.push("y")
    claims = await queue.pop_many(2, timeout=0)
    assert {claim.item: claim.group for claim in claims} == {"x": "tenant-42", "y": None}
    items = [await queue.get(claim.id) for claim in claims]
    assert {item.item: item.group for item in items if item} == {"x": "tenant-42", "y": None}
    assert await queue.ack_many(claims) == []


async def test_a_share_of_each_group(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many([f"a{n}" for n in range(90)], group="a")
    await queue.push_many([f"b{n}" for n in range(9)], group="b")
    await queue.push_many([f"c{n}" for n in range(2)], group="c")
    claims = await queue.pop_many(12, timeout=0)
    assert sorted(claim.item for claim in claims) == [
        "a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2", "b3", "b4", "c0", "c1",
    ]  # fmt: skip
    assert await queue.ack_many(claims) == []
    await queue.clear()


async def test_with_groups_items_without_one_are_one_group(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, groups=zkrq.Groups())
    await queue.push_many(["x0", "x1", "x2"])
    await queue.push("y0", group="y")
    assert await drain(queue, 4) == ["x0", "y0", "x1", "x2"]


async def test_pushes_of_one_moment_make_a_bundle_of_each_group(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many([])
    receipts = [await queue.push(f"{group}", group=group) for group in "abab"]
    assert len({receipt.id for receipt in receipts}) == 4
    assert sorted(await drain(queue, 4)) == ["a", "a", "b", "b"]


async def test_looking_at_one_group(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(["a0", "a1"], group="a")
    await queue.push_many(["b0", "b1"], group="b")
    await queue.push("b2", group="b", delay=600)
    assert [item.item for item in await queue.peek(group="b")] == ["b0", "b1"]
    assert sorted([str(item.item) async for item in queue.scan(group="b")]) == ["b0", "b1", "b2"]
    told = await queue.statistics()
    assert (told.groups, told.groups_in_line, told.groups_blocked) == (2, 2, 0)
    with pytest.raises(zkrq.ConfigError, match="only the ready items"):
        await queue.peek(group="b", state="dead")
    assert await queue.clear(group="b") == 3
    assert await drain(queue, 9) == ["a0", "a1"]
    assert (await queue.statistics()).groups == 0


async def test_finding_and_redriving_one_group(queue: zkrq.Queue[Any]) -> None:
    for group in ("a", "b"):
        await queue.push_many([f"{group}{number}" for number in range(3)], group=group)
    for claim in await queue.pop_many(4, timeout=0):
        await claim.bury("bad")
    assert sorted([str(item.item) async for item in queue.find(group="a")]) == ["a0", "a1", "a2"]
    assert sorted([str(item.item) async for item in queue.find(group="b", state="dead")]) == ["b0", "b1"]
    page = await queue.find_page(group="b", state="ready")
    assert [item.item for item in page.items] == ["b2"]
    assert await queue.redrive(group="b") == 2
    assert {item.group for item in await queue.dead_letters()} == {"a"}
    with pytest.raises(zkrq.ConfigError, match="either ids or a group"):
        await queue.redrive(["x"], group="a")
    ids = [item.id async for item in queue.find(group="b")]
    assert await queue.cancel_many(ids) == [zkrq.Cancellation.REMOVED] * 3


async def test_what_fails_comes_back_to_its_group(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(["a0", "a1"], group="a")
    await queue.push("b0", group="b")
    (claim,) = await queue.pop_many(1, timeout=0)
    await claim.nack(delay=0)
    (claim,) = await queue.pop_many(1, timeout=0)
    assert claim.item == "b0"
    await claim.ack()
    (claim,) = await queue.pop_many(1, timeout=0)
    assert (claim.item, claim.group, claim.failures) == ("a0", "a", 1)
    await claim.bury("why")
    assert await queue.redrive() == 1
    assert await drain(queue, 9) == ["a0", "a1"]


async def test_no_more_of_a_group_are_worked_on_than_its_limit(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, groups=zkrq.Groups(concurrency=2))
    await queue.push_many([f"a{n}" for n in range(20)], group="a")
    await queue.push_many([f"b{n}" for n in range(3)], group="b")
    await queue.push_many([f"x{n}" for n in range(3)])
    running: Counter[str | None] = Counter()
    most: Counter[str | None] = Counter()
    done: list[str] = []
    everything = asyncio.Event()

    async def handle(item: str, claim: zkrq.Claim[str]) -> None:
        running[claim.group] += 1
        most[claim.group] = max(most[claim.group], running[claim.group])
        await asyncio.sleep(0.01)
        running[claim.group] -= 1
        done.append(item)
        if len(done) == 26:
            everything.set()

    async with working(queue, handle, concurrency=10):
        await everything.wait()
    assert most == {"a": 2, "b": 2, None: 2}
    assert len(set(done)) == 26


async def test_a_blocked_group_keeps_nobody_waiting(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, groups=zkrq.Groups(concurrency=1))
    await queue.push_many(["a0", "a1", "a2"], group="a")
    await queue.push("b0", group="b")
    first = await queue.pop_many(9, timeout=0)
    assert {claim.item for claim in first} == {"a0", "b0"}
    told = await queue.statistics()
    assert (told.groups_blocked, told.groups_in_line, told.group_limits) == (1, 0, zkrq.Groups(concurrency=1))
    waiting = asyncio.create_task(queue.pop_one(timeout=30))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await next(claim for claim in first if claim.item == "a0").ack()
    claim = await waiting
    assert claim
    assert claim.item == "a1"
    await queue.set_groups(zkrq.Groups())
    await claim.ack()
    assert await queue.clear() == 1
    assert await queue.ack_many(first) == []


@pytest.mark.parametrize("concurrency", [0, -1, 1_000_001, 1.5, True])
def test_bad_limits_of_groups_are_refused(concurrency: Any) -> None:
    with pytest.raises(zkrq.ConfigError, match="concurrency"):
        zkrq.Groups(concurrency=concurrency)


# -- rates -----------------------------------------------------------------------------------------------------------


async def test_no_more_claims_of_a_group_begin_than_its_rate_and_it_goes_on_by_itself(
    cluster: zkrq.Cluster, name: str, pass_time: PassTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer asks when the rate allows it, without a push that wakes it; other groups go on."""
    monkeypatch.setattr(dispatch, "SWEEP_SECONDS", 10 * HANG)
    queue = cluster.queue(name, groups=zkrq.Groups(rate=(4, 0.4)))
    await queue.push_many([f"a{n}" for n in range(7)], group="a")
    await queue.push_many([f"b{n}" for n in range(3)], group="b")
    seen = list[str]()

    async def handle(item: str) -> None:
        seen.append(item)

    async with working(queue, handle, concurrency=10):
        while len(seen) < 7:
            await pass_time(0.01)
        assert sorted(seen) == ["a0", "a1", "a2", "a3", "b0", "b1", "b2"]
        while len(seen) < 10:
            await pass_time(0.05)
    assert seen[7:] == ["a4", "a5", "a6"]
    assert (await queue.statistics()).group_limits == zkrq.Groups(rate=(4, 0.4))


async def test_a_waiting_consumer_comes_for_a_group_that_rests_while_the_other_is_busy(
    cluster: zkrq.Cluster, name: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told that a group rests, and asks when that ends; nobody looks again by itself here."""
    monkeypatch.setattr(dispatch, "SWEEP_SECONDS", 10 * HANG)
    queue = cluster.queue(name, groups=zkrq.Groups(rate=(1, 0.3)))
    async with connect() as other:
        waiting = [asyncio.create_task(each.queue(name).pop_one(timeout=HANG)) for each in (cluster, other)]
        await asyncio.sleep(0.1)
        await queue.push_many(["a0", "a1"], group="a")
        claims = [claim for claim in await asyncio.gather(*waiting) if claim]
        assert {claim.item for claim in claims} == {"a0", "a1"}
        for claim in claims:
            await claim.ack()


async def test_with_an_order_and_a_rate(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, groups=zkrq.Groups(ordered=True, rate=(2, 3600)))
    await queue.push_many(["a0", "a1", "a2"], group="a")
    await queue.push("b0", group="b")
    assert await drain(queue, 9) == ["a0", "b0", "a1"]
    told = await queue.statistics()
    assert (told.groups_blocked, str(told.group_limits)) == (1, "in order, 2 in 3600 s within each group")
    await queue.set_groups(zkrq.Groups(ordered=True))
    assert await drain(queue, 9) == ["a2"]


@pytest.mark.parametrize("rate", [(0, 1.0), (-1, 1.0), (1, 0), (1, 3601), (1.5, 1), (1,), "1/s", 5, (1_000_001, 1)])
def test_bad_rates_of_groups_are_refused(rate: Any) -> None:
    with pytest.raises(zkrq.ConfigError, match="rate"):
        zkrq.Groups(rate=rate)


def test_an_order_is_asked_for_by_a_truth_value() -> None:
    with pytest.raises(zkrq.ConfigError, match="ordered must be a bool, not str"):
        zkrq.Groups(ordered="no")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "groups",
    [
        zkrq.Groups(),
        zkrq.Groups(3),
        zkrq.Groups(ordered=True),
        zkrq.Groups(3, rate=(5, 0.5)),
        zkrq.Groups(ordered=True, rate=(5, timedelta(minutes=1))),
        zkrq.Groups(ordered=True, named={"a": zkrq.Limits(rate=(5, 0.5)), "b,:;/ =%41ä": zkrq.Limits()}),
        zkrq.Groups(3, named={"concurrency=7": zkrq.Limits(1), "x": zkrq.Limits(2, (7, 60))}),
    ],
)
def test_what_is_stored_is_read_again(groups: zkrq.Groups) -> None:
    assert zkrq.Groups.of(groups.settings) == groups
    assert zkrq.Groups.read(f"groups:{groups.settings} limits:concurrency=7,rate=9/1000") == groups


# -- limits of single groups -------------------------------------------------------------------------------------------


async def test_a_group_may_have_limits_of_its_own(cluster: zkrq.Cluster, name: str) -> None:
    """At most two of one kind of work at once, and any number of the other, of which nobody waits for the first."""
    queue = cluster.queue(name, groups=zkrq.Groups(named={"digest": zkrq.Limits(concurrency=2)}))
    running, most, done = Counter[str](), Counter[str](), Counter[str]()
    go_on = asyncio.Event()

    async def handle(item: str) -> None:
        running[item] += 1
        most[item] = max(most[item], running[item])
        if item == "welcome" and running[item] == 6:
            go_on.set()
        await go_on.wait()
        running[item] -= 1
        done[item] += 1

    await queue.push_many(["digest"] * 10, group="digest")
    await queue.push_many(["welcome"] * 6, group="welcome")
    async with working(queue, handle, concurrency=10):
        await until(lambda: done == {"digest": 10, "welcome": 6})
    assert most == {"digest": 2, "welcome": 6}


async def test_limits_of_single_groups_are_changed_and_taken_away(queue: zkrq.Queue[Any]) -> None:
    groups = zkrq.Groups(1, named={"a": zkrq.Limits(rate=(2, 3600)), "b": zkrq.Limits()})
    await queue.set_groups(groups)
    for group in "abc":
        await queue.push_many([group] * 3, group=group)
    claims = await queue.pop_many(9, timeout=0)
    assert Counter(claim.item for claim in claims) == {"a": 2, "b": 3, "c": 1}
    told = await queue.statistics()
    assert told.group_limits == groups
    assert str(told.group_limits) == "1 at once in each group, but 2 in 3600 s in group 'a', no limits in group 'b'"
    rests = {group.name for group in (await queue.groups()).groups if group.is_held_by_rate(groups)}
    assert rests == {"a"}, "a claim of its own holds the other one"
    await queue.set_groups(zkrq.Groups())
    assert await queue.ack_many(claims) == []
    assert sorted(await drain(queue, 9)) == ["a", "c", "c"]


async def test_at_a_level_without_them_no_group_has_limits_of_its_own(
    cluster: zkrq.Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = cluster.queue(name)
    groups = zkrq.Groups(named={"a": zkrq.Limits(concurrency=1)})
    monkeypatch.setattr(type(client_of(cluster).shard.replicas), "level", 1)
    with pytest.raises(zkrq.ConfigError, match=r"limits of named groups: this needs level 2.*`zkrq upgrade`"):
        await queue.set_groups(groups)
    with pytest.raises(zkrq.ConfigError, match="limits of named groups: this needs level 2"):
        await cluster.queue(f"{name}-declared", groups=groups).push(1)


WRONG: dict[str, Any] = {
    "the name of a group is ''": {"named": {"": zkrq.Limits()}},
    "the limits of group 'a' must be a Limits, not int": {"named": {"a": 5}},
    "named must be a mapping of limits, not list": {"named": ["a"]},
    "concurrency of group 'a' is 2, but with ordered=True": {"ordered": True, "named": {"a": zkrq.Limits(2)}},
    "the number of named groups is 51": {"named": {str(n): zkrq.Limits() for n in range(51)}},
    "the named groups take": {"named": {f"{n}{'ä' * 50}": zkrq.Limits() for n in range(50)}},
}


@pytest.mark.parametrize("text", WRONG)
def test_bad_limits_of_single_groups_are_refused(text: str) -> None:
    with pytest.raises(zkrq.ConfigError, match=text):
        zkrq.Groups(**WRONG[text])


async def test_tasks_may_be_groups(cluster: zkrq.Cluster, name: str) -> None:
    """Of a program that says so; a group that is named stays."""
    digests = zkrq.Limits(concurrency=1)
    queue = cluster.queue(name, groups=zkrq.Groups(by_task=True, named={"digest": digests}))
    for item in ("d1", "d2"):
        await queue.push(item, task="digest")
    await queue.push_many(["w1", "w2"], task="welcome")
    await queue.push("t", task="digest", group="tenant")
    await queue.push("none")
    claims = await queue.pop_many(9, timeout=0)
    groups: dict[str, str | None] = {"d1": "digest", "w1": "welcome", "w2": "welcome", "t": "tenant", "none": None}
    assert {claim.item: claim.group for claim in claims} == groups
    assert await queue.ack_many(claims) == []
    assert await drain(queue, 9) == ["d2"]
    assert (await queue.settings()).groups == zkrq.Groups(named={"digest": digests}), "it belongs to the program"
