"""Makers of flows that fail, or are delivered again: many members that are pushed under one name are not doubled."""

from __future__ import annotations

from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect
from tests.harness import HANG, take

pytestmark = pytest.mark.anyio

Queue = zkrq.Queue[Any]


async def take_all(queue: Queue, count: int) -> list[Any]:
    """Take and ack this many items, and see that no more is there; return them, sorted."""
    items = list[Any]()
    while len(items) < count:
        for claim in await queue.pop_many(100, timeout=HANG):
            items.append(claim.item)
            await claim.ack()
    assert await queue.pop_one(timeout=0) is None
    return sorted(items)


def news(receipts: zkrq.Receipts) -> set[bool | None]:
    return {receipt.new for receipt in receipts}


async def test_a_repeated_push_of_many_doubles_nothing(queue: Queue) -> None:
    flow = await queue.flow("import").begin()
    first = await flow.push_many(range(1234), name="page-1")
    ids = [receipt.id for receipt in first]
    assert (ids[0], ids[1], ids[100]) == (
        "zkrq-import.page-1.0~00",
        "zkrq-import.page-1.0~01",
        "zkrq-import.page-1.1~00",
    )
    assert len(set(ids)) == 1234
    again = await flow.push_many(range(1234), name="page-1")
    assert ([receipt.id for receipt in again], news(first), news(again)) == (ids, {True}, {False})
    await flow.push_many([9], name="page-2")
    await flow.seal()
    sealed = await flow.push_many(range(1234), name="page-1")
    assert ([receipt.id for receipt in sealed], news(sealed)) == (ids, {False})
    assert await take_all(queue, 1235) == sorted([*range(1234), 9])
    assert (await flow.result(timeout=HANG)).state == "done"


async def test_it_doubles_nothing_that_was_acked(queue: Queue) -> None:
    flow = await queue.flow().begin()
    await flow.push_many(range(150), name="a")
    for claim in await queue.pop_many(120, timeout=HANG):
        await claim.ack()
    again = await flow.push_many(range(150), name="a")
    assert (sum(receipt.done for receipt in again), news(again)) == (120, {False})
    await flow.seal()
    assert sum(receipt.done for receipt in await flow.push_many(range(150), name="a")) == 120
    assert await take_all(queue, 30) == list(range(120, 150))
    assert (await flow.result(timeout=HANG)).state == "done"


async def test_a_handler_that_adds_many_is_delivered_again(queue: Queue) -> None:
    async with queue.flow("crawl") as flow:
        await flow.push("root")
    root = await take(queue)
    assert root.flow
    first = await root.flow.push_many(range(300), name="links")
    again = await root.flow.push_many(range(300), name="links")
    assert ([each.id for each in first], news(first), news(again)) == ([each.id for each in again], {True}, {False})
    await root.ack()
    assert await take_all(queue, 300) == list(range(300))
    assert (await flow.result(timeout=HANG)).state == "done"


async def test_the_first_item_of_a_place_wins(queue: Queue) -> None:
    async with queue.flow() as flow:
        await flow.push_many(["a", "b"], name="x")
        await flow.push_many(["c", "d", "e"], name="x")
        await flow.push_many(["f"], name="y")
    assert await take_all(queue, 4) == ["a", "b", "e", "f"]
    assert (await flow.result(timeout=HANG)).state == "done"


async def test_large_items_and_headers_make_no_difference(queue: Queue) -> None:
    items = ["x" * size for size in (10, 9_000, 9_000, 20_000, *range(100, 120))]
    async with queue.flow("large") as flow:
        first = await flow.push_many(items, name="x")
        again = await flow.push_many(items, name="x", headers={"trace": "1" * 3000}, task="import")
        assert [each.id for each in first] == [each.id for each in again]
        assert {each.id.partition("~")[0][-1] for each in first} == {"0", "1", "2", "3"}
    assert await take_all(queue, len(items)) == sorted(items)


async def test_a_maker_that_fails_in_its_items_goes_on(queue: Queue) -> None:
    def failing(upto: int) -> Any:
        yield from range(upto)
        raise ValueError("the file has ended early")

    flow = await queue.flow().begin()
    for _ in range(2):
        with pytest.raises(ValueError, match="early"):
            await flow.push_many(failing(130), name="x")
    await flow.push_many(range(200), name="x")
    await flow.seal()
    assert await take_all(queue, 200) == list(range(200))


async def test_in_another_queue(queue: Queue, cluster: zkrq.Cluster, name: str) -> None:
    other = cluster.queue(f"{name}-other")
    async with queue.flow("legs") as flow:
        for _ in range(2):
            await flow.push_many(range(50), name="x", queue=other)
        await flow.push_many(range(50), name="x", priority=3)
    await flow.push_many(range(50), name="x", queue=other)
    assert await take_all(other, 50) == list(range(50))
    assert await take_all(queue, 50) == list(range(50))
    assert (await flow.result(timeout=HANG)).state == "done"


async def test_dead_letters_are_found_by_the_ids(queue: Queue) -> None:
    async with queue.flow("dead") as flow:
        await flow.push_many(["a", "b"], name="x")
        await flow.then("after")
    await (await take(queue)).bury("why")
    await (await take(queue)).ack()
    assert (await flow.status()).ids["dead"] == ("zkrq-dead.x.0~00",)
    assert await queue.redrive(["zkrq-dead.x.0~00"]) == 1
    await (await take(queue)).ack()
    assert (await take(queue)).item == "after"


async def test_bad_names_of_many_write_nothing(cluster: zkrq.Cluster, queue: Queue, name: str) -> None:
    ordered = cluster.queue(f"{name}-ordered", groups=zkrq.Groups(ordered=True))
    async with queue.flow() as flow:
        for bad in ("", "a b", "x" * 49, "ä", 7):
            with pytest.raises(zkrq.ConfigError, match="name"):
                await flow.push_many(["a"], name=bad)  # pyright: ignore[reportArgumentType]
        for options in ({"delay": 1}, {"ttl": 60}):
            with pytest.raises(zkrq.ConfigError, match="exclude each other"):
                await flow.push_many(["a"], name="x", **options)  # pyright: ignore[reportArgumentType]
        with pytest.raises(zkrq.ConfigError, match="keep the order"):
            await flow.push_many(["a"], name="x", queue=ordered)
        with pytest.raises(zkrq.ConfigError, match="only ids that zkrq makes"):
            await flow.push("a", id="zkrq-flow.x.0~00")
    assert (await flow.result(timeout=HANG)).done == 0
    assert not any(await queue.size())


async def test_members_with_a_time_to_live_have_names_of_their_own(queue: Queue) -> None:
    async with queue.flow() as flow:
        with pytest.raises(zkrq.ConfigError, match="push each under a name of its own"):
            await flow.push_many(["a", "b"], name="x", ttl=60)
        for number, item in enumerate(["a", "b", "a", "b"]):
            await flow.push(item, name=f"x-{number % 2}", ttl=60)
    assert await take_all(queue, 2) == ["a", "b"]


async def test_a_queue_that_orders_its_groups_is_found_out(
    queue: Queue, cluster: zkrq.Cluster, name: str, connect: Connect
) -> None:
    """The maker does not know of the order: the servers say so, and nothing was written."""
    ordered = cluster.queue(f"{name}-ordered", groups=zkrq.Groups(ordered=True))
    await ordered.push("first")
    await (await take(ordered)).ack()
    async with connect() as unaware:
        async with unaware.queue(queue.name).flow() as flow:
            with pytest.raises(zkrq.ConfigError, match="keep the order"):
                await flow.push_many(["a"], name="x", queue=unaware.queue(ordered.name))
        assert (await flow.result(timeout=HANG)).done == 0
    assert not any(await ordered.size())


async def test_with_a_limit_of_the_size(cluster: zkrq.Cluster, name: str) -> None:
    limited = cluster.queue(name, max_size=150)
    async with limited.flow() as flow:
        with pytest.raises(zkrq.QueueFull):
            await flow.push_many(range(200), name="x")
        assert await take_all(limited, 150) == list(range(150))
        again = await flow.push_many(range(200), name="x")
        assert [each.new for each in again] == [False] * 150 + [True] * 50
    assert await take_all(limited, 50) == list(range(150, 200))


async def test_the_error_of_a_block_is_raised_if_its_flow_cannot_be_cancelled(queue: Queue, connect: Connect) -> None:
    async with connect() as other:
        with pytest.raises(ValueError, match="the file is bad") as caught:
            async with other.queue(queue.name).flow("import"):
                await other.aclose()
                raise ValueError("the file is bad")
    assert "flow 'import' was not cancelled" in caught.value.__notes__[0]
    assert (await queue.flow("import").status()).state == "open"
