"""``key=``: one item per key at a time, from its push until it is done or dead."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from typing import Any
from unittest.mock import patch

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.harness import take
from zkrq.protocol.operations import Operations
from zkrq.protocol.steps import Unknown

pytestmark = pytest.mark.anyio


async def push(queue: zkrq.Queue[Any], key: str = "k", **options: Any) -> zkrq.Receipt:
    return await queue.push("x", key=key, **options)


async def is_duplicate(queue: zkrq.Queue[Any], first: zkrq.Receipt, key: str = "k") -> bool:
    """Whether a push of this key names the first one, and changes nothing."""
    before = await queue.size()
    receipt = await push(queue, key)
    if receipt.duplicate:
        assert receipt == (first.id, first.replicas, True, False, False, ())
        assert await queue.size() == before
    return receipt.duplicate


@pytest.mark.parametrize("state", ["ready", "scheduled", "claimed"])
async def test_second_push_of_a_key_names_the_first(queue: zkrq.Queue[Any], state: str) -> None:
    first = await push(queue, delay=60 if state == "scheduled" else None)
    assert (first.replicas, first.duplicate) == (3, False)
    claim = await take(queue) if state == "claimed" else None
    (item,) = await queue.peek(state=state)  # pyright: ignore[reportArgumentType]
    assert item.key == "k"
    assert await is_duplicate(queue, first)
    assert not await is_duplicate(queue, first, "another")
    assert claim is None or claim.key == "k"


async def test_key_belongs_to_one_queue(cluster: zkrq.Cluster, name: str) -> None:
    for queue in (cluster.queue(f"{name}-1"), cluster.queue(f"{name}-2")):
        assert not (await push(queue)).duplicate


@pytest.mark.parametrize("end", ["ack", "cancel", "cancel while claimed", "clear", "bury", "discard", "expire"])
async def test_key_is_free_again(queue: zkrq.Queue[Any], pass_time: PassTime, end: str) -> None:
    first = await push(queue, ttl=0.2 if end == "expire" else None)
    match end:
        case "cancel":
            assert await queue.cancel(first.id) is zkrq.Cancellation.REMOVED
        case "clear":
            assert await queue.clear() == 1
        case "expire":
            await pass_time(0.25)  # nobody has claimed from the queue since: it is there, and never delivered
        case "ack":
            await (await take(queue)).ack()
        case "cancel while claimed":
            claim = await take(queue)
            assert await queue.cancel(claim.id) is zkrq.Cancellation.SIGNALLED
        case _:
            await (await take(queue)).bury("bad")
            if end == "discard":
                assert await queue.discard() == 1
    second = await push(queue)
    assert not second.duplicate
    assert (await take(queue)).id == second.id
    assert await queue.pop_one(timeout=0) is None


async def test_key_is_kept_while_its_item_comes_back(cluster: zkrq.Cluster, name: str, pass_time: PassTime) -> None:
    queue = cluster.queue(name, claim_timeout=0.5)
    first = await push(queue)
    await (await take(queue)).release()
    assert await is_duplicate(queue, first)
    await (await take(queue)).nack(delay=0)
    assert await is_duplicate(queue, first)
    claim = await take(queue)
    del claim  # as if its process had died
    await pass_time(0.5)
    assert await is_duplicate(queue, first)
    assert (await take(queue)).attempts == 3, "the released delivery does not count"


async def test_pushes_of_one_key_at_once_agree(queue: zkrq.Queue[Any], connect: Connect) -> None:
    async with connect() as other:
        producers = [queue, other.queue(queue.name)]
        receipts = await asyncio.gather(
            *(producers[n % 2].push(n, key=f"k{n % 5}") for n in range(50)),
        )
    told = Counter((receipt.id, receipt.duplicate) for receipt in receipts)
    ids = {receipt.id for receipt in receipts}
    assert len(ids) == 5
    assert all(told[id, False] == 1 and told[id, True] == 9 for id in ids)
    assert {item.id for item in await queue.peek(50)} == ids


async def test_same_id_and_key_again_is_no_duplicate(queue: zkrq.Queue[Any]) -> None:
    """A push that is repeated after ``OutcomeUnknown`` does not stand in its own way."""
    for new in (True, False):
        assert await push(queue, id="a") == ("a", 3, False, False, new, ())
    assert await push(queue, id="b") == ("a", 3, True, False, False, ())
    assert await queue.size() == (1, 0, 0, 0)
    await (await take(queue)).ack()
    assert await push(queue, id="a") == ("a", 3, False, True, False, ()), "there once, and done"
    assert await queue.size() == (0, 0, 0, 0)
    assert await push(queue, id="b") == ("b", 3, False, False, True, ()), "what was refused before may be pushed later"
    assert await queue.size() == (1, 0, 0, 0)


async def test_letter_whose_key_is_in_use_stays_where_it_is(queue: zkrq.Queue[Any]) -> None:
    letter, free = await push(queue), await push(queue, "another")
    for claim in await queue.pop_many(2):
        await claim.bury("bad")
    first = await push(queue)
    assert await queue.redrive([letter.id]) == 0
    assert await queue.redrive() == 1, "the other one; it does not go round for ever"
    assert {item.id for item in await queue.peek()} == {first.id, free.id}
    assert [item.id for item in await queue.dead_letters()] == [letter.id]
    await queue.cancel(first.id)
    assert await queue.redrive([letter.id]) == 1
    assert await is_duplicate(queue, letter), "it has its key again"


async def test_letters_of_one_key_are_redriven_one_at_a_time(queue: zkrq.Queue[Any]) -> None:
    for _ in range(3):
        await push(queue)
        await (await take(queue)).bury("bad")
    for left in (2, 1, 0):
        assert await queue.redrive() == 1
        assert await queue.size() == (1, 0, 0, left)
        await (await take(queue)).ack()


async def test_each_push_with_an_unknown_outcome_tells_its_own_id(queue: zkrq.Queue[Any]) -> None:
    """Pushes that left together share their trouble, not their error: under another one's id they would be lost."""

    def give_up(*_: object, **__: object) -> Generator[object]:
        raise Unknown("no answer")
        yield

    with patch.object(Operations, "push_decided", give_up):
        told = await asyncio.gather(*(queue.push(n, key=f"k{n}") for n in range(4)), return_exceptions=True)
    ids = [error.id for error in told if isinstance(error, zkrq.OutcomeUnknown)]
    assert None not in ids
    assert len(set(ids)) == 4
    for n, id in enumerate(ids):
        assert (await queue.push(n, id=id, key=f"k{n}")).new
    assert sorted([claim.item for claim in await queue.pop_many(4)]) == [0, 1, 2, 3]


# -- in the place of others ----------------------------------------------------------------------------------------


async def items_of(queue: zkrq.Queue[Any]) -> list[Any]:
    return [claim.item async for claim in queue.pop(wait=False) if await claim.ack() is None]


@pytest.mark.parametrize("delay", [None, 30])
async def test_an_item_takes_the_place_of_a_queued_one(queue: zkrq.Queue[Any], delay: float | None) -> None:
    first = await queue.push("old", key="k", delay=delay)
    await queue.push("later")
    second = await queue.push("new", key="k", replace=True)
    assert second == (second.id, 3, False, False, True, (first.id,))
    assert await queue.get(first.id) is None
    assert sum(await queue.size()) == 2
    expected = ["later", "new"] if delay else ["new", "later"]
    assert await items_of(queue) == expected, "it keeps the place of the other one"


async def test_a_debounced_item_comes_after_its_own_delay(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    ids: tuple[str, ...] = ()
    for number in range(3):
        receipt = await queue.push(number, key="k", replace=True, delay=0.5)
        assert receipt.replaced == ids
        ids = (receipt.id,)
        await pass_time(0.3)
    assert await items_of(queue) == []
    await pass_time(0.3)
    assert await items_of(queue) == [2]


async def test_a_debounced_item_comes_at_its_end(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    """Also where every push has its delay begin anew."""
    for number in range(4):
        await queue.push(number, key="k", replace=True, delay=2.0, at_latest=2.5)
        if number < 3:
            await pass_time(1.0)
    assert await items_of(queue) == [3]


async def test_a_claimed_item_goes_on_beside_the_one_that_replaces(queue: zkrq.Queue[Any]) -> None:
    first = await queue.push("old", key="k")
    claim = await take(queue)
    second = await queue.push("new", key="k", replace=True)
    assert (second.duplicate, second.replaced) == (False, ())
    third = await queue.push("newest", key="k", replace=True)
    assert third.replaced == (second.id,)
    await claim.nack(0)
    fourth = await queue.push("last", key="k", replace=True)
    assert sorted(fourth.replaced) == sorted([first.id, third.id]), "it failed meanwhile, and is queued again"
    assert await items_of(queue) == ["last"]
    assert not (await push(queue)).duplicate


async def test_a_full_queue_has_room_for_what_replaces(cluster: zkrq.Cluster, name: str) -> None:
    queue: zkrq.Queue[Any] = cluster.queue(name, max_size=2)
    await queue.push("a", key="a")
    await queue.push("b", key="b")
    assert (await queue.push("c", key="b", replace=True)).replaced
    with pytest.raises(zkrq.QueueFull):
        await queue.push("d", key="d", replace=True)
    assert await items_of(queue) == ["a", "c"]


async def test_pushes_that_leave_together_replace_each_other(queue: zkrq.Queue[Any]) -> None:
    receipts = await asyncio.gather(*(queue.push(number, key="k", replace=True) for number in range(20)))
    assert [receipt.replaced for receipt in receipts] == [(), *((receipt.id,) for receipt in receipts[:-1])]
    assert await items_of(queue) == [19]


async def test_a_repeated_push_names_again_what_it_replaced(queue: zkrq.Queue[Any]) -> None:
    first = await queue.push("old", key="k")
    second = await queue.push("new", key="k", id="own", replace=True)
    again = await queue.push("new", key="k", id="own", replace=True)
    assert (again.new, again.replaced, second.replaced) == (False, (first.id,), (first.id,))
    assert await items_of(queue) == ["new"]
    done = await queue.push("new", key="k", id="own", replace=True)
    assert (done.done, done.replaced) == (True, (first.id,))


async def test_replacing_needs_a_key(queue: zkrq.Queue[Any]) -> None:
    with pytest.raises(zkrq.ConfigError, match="key"):
        await queue.push("x", replace=True)
    assert sum(await queue.size()) == 0
