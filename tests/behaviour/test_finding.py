"""Finding items by key, header and reason, and cancelling what was found."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import datetime
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import PassTime
from tests.behaviour.helpers import bury
from tests.harness import HANG, take, until
from zkrq.client import finding
from zkrq.client.cursors import Cursor

pytestmark = pytest.mark.anyio

SPRING = ("campaign", "spring")


async def ids_of(queue: zkrq.Queue[Any], **conditions: Any) -> list[str]:
    return sorted([item.id async for item in queue.find(**conditions)])


async def pages_of(cluster: zkrq.Cluster, queue: zkrq.Queue[Any], limit: int, **conditions: Any) -> list[str]:
    """The ids that all pages have, each of at most ``limit``; only another primary makes a search begin again."""
    epoch, found = cluster.view.epoch, list[str]()
    page = await queue.find_page(limit=limit, **conditions)
    while True:
        assert len(page.items) <= limit
        if page.restarted:
            await until(lambda: cluster.view.epoch > epoch)
            return await pages_of(cluster, queue, limit, **conditions)
        found += [item.id for item in page.items]
        if page.next is None:
            return sorted(found)
        page = await queue.find_page(limit=limit, after=page.next, **conditions)


async def test_by_key_in_every_state(queue: zkrq.Queue[Any]) -> None:
    dead = (await queue.push("dead", key="a")).id
    await (await take(queue)).bury("bad")
    claimed = (await queue.push("claimed", key="a")).id
    claim = await take(queue)
    later = (await queue.push("later", key="b", delay=3600)).id
    await queue.push("other", key="other")
    assert await ids_of(queue, key="a") == sorted([dead, claimed])
    assert await ids_of(queue, key="a", state="claimed") == [claimed]
    assert await ids_of(queue, key="a", state="dead") == [dead]
    assert await ids_of(queue, key="a", state="ready") == []
    assert await ids_of(queue, key="b") == [later]
    assert await ids_of(queue, key="nobody") == []
    await claim.ack()
    assert await ids_of(queue, key="a") == [dead]


async def test_by_header_of_single_items_and_bundles(queue: zkrq.Queue[Any]) -> None:
    many = await queue.push_many(range(250), headers={"campaign": "spring", "kind": "mail"})
    alone = await queue.push("alone", headers={"campaign": "spring"}, delay=3600)
    await queue.push_many(range(250), headers={"campaign": "autumn"})
    await queue.push_many(range(150))
    wanted = sorted([alone.id, *(receipt.id for receipt in many)])
    assert await ids_of(queue, header=SPRING) == wanted
    assert await ids_of(queue, header=SPRING, state="scheduled") == [alone.id]
    assert await ids_of(queue, header=("campaign", "winter")) == []
    assert await ids_of(queue, header=("kind", "spring")) == []


async def test_by_reason_in_any_case(queue: zkrq.Queue[Any]) -> None:
    ids = await bury(queue, 120)  # their reasons: bad 0 ... bad 119
    reasons = {item.id: item.reason async for item in queue.scan()}
    assert await ids_of(queue, error="BAD 11") == sorted(id for id in ids if "bad 11" in (reasons[id] or ""))
    assert await ids_of(queue, error="bad", state="dead") == sorted(ids)
    assert await ids_of(queue, error="good") == []
    await queue.push("once more")
    claim = await take(queue)
    await claim.nack(delay=3600, reason="Connection refused")
    assert await ids_of(queue, error="connection") == [claim.id], "also of items that are tried again"
    assert await ids_of(queue, error="connection", state="dead") == []


async def test_by_the_task(queue: zkrq.Queue[Any]) -> None:
    for id, task in (("a", "welcome"), ("b", "digest"), ("c", None)):
        await queue.push(id, id=id, task=task, delay=60)
    assert await ids_of(queue, task="welcome") == ["a"]
    assert await ids_of(queue, task="welcome", state="dead") == []
    assert await queue.advance(task="digest") == 1
    assert await ids_of(queue, task="digest", state="ready") == ["b"]


async def test_by_the_beginning_of_the_id(queue: zkrq.Queue[Any]) -> None:
    for id in ("order-1", "order-2", "refund-1"):
        await queue.push(id, id=id)
    (bundled, *_) = await queue.push_many(range(20))
    assert await ids_of(queue, id_prefix="order-") == ["order-1", "order-2"]
    assert await ids_of(queue, id_prefix="order-2", state="ready") == ["order-2"]
    assert await ids_of(queue, id_prefix=bundled.id) == [bundled.id]
    assert await ids_of(queue, id_prefix="rder-") == []


async def test_by_a_text_of_the_payload_in_any_case(queue: zkrq.Queue[Any]) -> None:
    for number, item in enumerate(({"to": "Ann@Example.org"}, ["Straße 5"], 'say "no"', "campaign")):
        await queue.push(item, id=f"item-{number}", headers={"campaign": "spring"})
    await queue.push_many([f"many {number}" for number in range(50)])
    for text, found in (("ann@example", [0]), ("strasse", [1]), ('Y "NO', [2]), ("spring", []), ("Campaign", [3])):
        assert await ids_of(queue, text=text) == [f"item-{number}" for number in found], text
    assert len(await ids_of(queue, text="many 4")) == 11
    assert await ids_of(queue, text="item", header=SPRING) == []


async def test_bytes_that_are_no_text_are_searched_too(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, codec=zkrq.RAW)
    found = (await queue.push(b"\xff\x00\x93 sought \x00")).id
    await queue.push(b"\xff\xfe")
    assert await ids_of(queue, text="SOUGHT") == [found]


async def test_by_moment_of_push_and_of_death(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    """A dead letter counts by its death, however long ago it was pushed."""
    pushed: list[str] = []
    for number in range(3):
        pushed.append((await queue.push(number)).id)
        await pass_time(0.05)
    first, second, third = [item for id in pushed if (item := await queue.get(id))]
    assert await ids_of(queue, since=second.pushed_at) == sorted([second.id, third.id])
    assert await ids_of(queue, until=second.pushed_at) == [first.id]
    assert await ids_of(queue, since=second.pushed_at, until=third.pushed_at) == [second.id]
    claim = await take(queue)
    assert claim.id == first.id
    await claim.bury("bad")
    assert await ids_of(queue, since=second.pushed_at) == sorted(pushed)
    assert await ids_of(queue, until=second.pushed_at) == []


async def test_what_was_found_by_text_is_advanced(queue: zkrq.Queue[Any]) -> None:
    for number in range(6):
        await queue.push({"campaign": "spring" if number % 2 else "autumn"}, delay=3600)
    assert await queue.advance(text="spring") == 3
    assert (await queue.size())[:2] == (3, 3)
    with pytest.raises(zkrq.ConfigError, match="either ids or conditions"):
        await queue.advance(["x"], text="spring")
    with pytest.raises(zkrq.ConfigError, match=r"ids=, or one of key=, .*since=, until="):
        await queue.advance()


async def test_all_conditions_hold_together(queue: zkrq.Queue[Any]) -> None:
    for key, campaign in (("a", "spring"), ("b", "spring"), ("c", "autumn")):
        await queue.push(key, key=key, headers={"campaign": campaign})
        await (await take(queue)).bury(f"no {key}")
    assert [item.item async for item in queue.find(key="b", header=SPRING, error="NO B", state="dead")] == ["b"]
    assert await ids_of(queue, key="c", header=SPRING) == []
    assert await ids_of(queue, key="a", error="no b") == []


async def test_what_is_not_a_search_is_refused(queue: zkrq.Queue[Any]) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, r"scan\(\)"),
        ({"state": "dead"}, r"scan\('dead'\)"),
        ({"key": ""}, "key"),
        ({"key": 7}, "key must be a str"),
        ({"header": "campaign"}, "name and a value"),
        ({"header": ("campaign", 7)}, "header must be a str"),
        ({"error": ""}, "error is empty"),
        ({"text": ""}, "text is empty"),
        ({"id_prefix": ""}, "id_prefix is empty: must be a text that the id begins with"),
        ({"text": 7}, "text must be a str"),
        ({"task": "a b"}, "task is 'a b'"),
        ({"since": "today"}, "since must be a datetime"),
        ({"until": datetime(2030, 1, 1)}, "until is 2030-01-01 00:00:00: give it a time zone"),  # noqa: DTZ001
        ({"error": "x", "state": "lost"}, "state is 'lost'"),
    ]
    for conditions, says in wrong:
        with pytest.raises(zkrq.ConfigError, match=says):
            await ids_of(queue, **conditions)
    with pytest.raises(TypeError, match=r"find\(\) has no option 'txt', .*did you mean 'text'"):
        await ids_of(queue, txt="x")
    for page, says in (({"limit": 0}, "limit"), ({"limit": 501}, "limit"), ({"after": "x"}, "after is 'x'")):
        with pytest.raises(zkrq.ConfigError, match=says):
            await queue.find_page(**page)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("limit", [1, 7, 60, 500])
async def test_pages_have_each_item_once(cluster: zkrq.Cluster, queue: zkrq.Queue[Any], limit: int) -> None:
    """Bundles are larger than a page, and a server's page holds several of them."""
    count = 60 if limit == 1 else 230
    receipts = await queue.push_many(range(count), headers={"campaign": "spring"})
    receipts = [*receipts, *[await queue.push(n, headers={"campaign": "autumn"}) for n in range(40)]]
    assert await pages_of(cluster, queue, limit) == sorted(receipt.id for receipt in receipts)
    assert await pages_of(cluster, queue, limit, header=SPRING) == sorted(receipt.id for receipt in receipts[:count])


@pytest.mark.parametrize("limit", [3, 40])
async def test_pages_of_dead_letters_are_in_their_order(
    cluster: zkrq.Cluster, queue: zkrq.Queue[Any], limit: int
) -> None:
    ids = await bury(queue, 75)
    await queue.push_many(range(30))
    assert await pages_of(cluster, queue, limit, state="dead") == sorted(ids)
    assert await pages_of(cluster, queue, limit, error="bad 2") == await ids_of(queue, error="bad 2", state="dead")
    first = await queue.find_page(state="dead", limit=limit)
    assert {item.id for item in first.items} == {item.id for item in await queue.peek(limit, "dead")}


async def test_pages_go_on_while_items_come_and_go(queue: zkrq.Queue[Any]) -> None:
    """What is there during the whole search is found, whatever else happens; each page is asked for by its text."""
    staying = {(await queue.push(n, delay=3600)).id for n in range(150)}
    found: Counter[str] = Counter()
    after, chance, others = None, random.Random(7), list[str]()
    while True:
        page = await queue.find_page(limit=9, after=after)
        found.update(item.id for item in page.items)
        others += [receipt.id for receipt in await queue.push_many(range(chance.randrange(30)))]
        chance.shuffle(others)
        await queue.cancel_many([others.pop() for _ in range(min(len(others), 12))])
        if page.next is None:
            break
        after = page.next
    assert staying <= found.keys()


async def test_large_items_end_a_page_early(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, codec=zkrq.RAW)
    large = await queue.push_many([bytes(400_000)] * 7)
    page = await queue.find_page(limit=100)
    assert 0 < len(page.items) < 7
    assert page.next is not None
    assert await pages_of(cluster, queue, 100) == sorted(receipt.id for receipt in large)


async def test_a_page_reads_a_bounded_part_of_the_queue(
    cluster: zkrq.Cluster, queue: zkrq.Queue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "CALLS_MAX", 2)
    monkeypatch.setattr(finding, "SEARCH_PAGE", 20)
    await asyncio.gather(*(queue.push(n) for n in range(700)))
    wanted = (await queue.push("wanted", headers={"campaign": "spring"})).id
    page = await queue.find_page(header=SPRING)
    assert page.next is not None or page.items, "the rest of the queue is left for the next page"
    assert await pages_of(cluster, queue, 10, header=SPRING) == [wanted]


async def test_a_cursor_of_another_life_of_the_primary_starts_over(queue: zkrq.Queue[Any]) -> None:
    receipts = await queue.push_many(range(150))
    page = await queue.find_page(limit=50)
    assert page.next is not None
    cursor = Cursor.read(page.next)
    elsewhere = Cursor(cursor.done, cursor.shard, cursor.source, cursor.at, "another one", cursor.rest)
    again = await queue.find_page(limit=500, after=elsewhere.text())
    assert again.restarted
    assert {item.id for item in again.items} == {receipt.id for receipt in receipts}


async def test_a_cursor_of_another_search_starts_over(queue: zkrq.Queue[Any]) -> None:
    ids = await bury(queue, 60)
    page = await queue.find_page(limit=10)
    again = await queue.find_page(state="dead", limit=500, after=page.next)
    assert again.restarted
    assert {item.id for item in again.items} == set(ids)


async def test_cancel_many_tells_of_each(queue: zkrq.Queue[Any]) -> None:
    await queue.push("claimed")
    claim = await take(queue)
    (dead,) = await bury(queue, 1)
    later = (await queue.push("later", delay=3600)).id
    many = [receipt.id for receipt in await queue.push_many(range(400))]
    outcomes = await queue.cancel_many([claim.id, "nobody", dead, later, *many, later])
    removed, signalled, missing = zkrq.Cancellation.REMOVED, zkrq.Cancellation.SIGNALLED, zkrq.Cancellation.NOT_FOUND
    assert outcomes == [signalled, missing, removed, removed, *[removed] * 400, removed]
    assert await queue.cancel_many([*many, later]) == [missing] * 401
    assert await queue.cancel_many([]) == []
    assert await queue.size() == (0, 0, 0, 0)
    with pytest.raises(zkrq.ClaimLost):
        await claim.ack()


async def test_a_campaign_is_cancelled(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(300), headers={"campaign": "spring"})
    await queue.push_many(range(20), headers={"campaign": "autumn"})
    found = await ids_of(queue, header=SPRING)
    assert len(found) == 300
    assert all(await queue.cancel_many(found))
    assert (await queue.size()).ready == 20
    assert await queue.pop_one(timeout=HANG)
