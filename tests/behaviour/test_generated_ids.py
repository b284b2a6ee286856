"""Ids that zkrq makes are marked, so no id of a caller's is taken for one of them."""

from __future__ import annotations

from typing import Any

import pytest

import zkrq
from tests.every import every
from tests.harness import HANG
from zkrq.base import ids

pytestmark = pytest.mark.anyio

ALIKE = (
    "49151234567-20261123-01",
    "49151234567-20261123-01~00",
    "49151234567-20261123-ff@eu",
    "49151234567-20261123-ff@eu~01",
    "1-2-3",
    "1-2-3~00",
)
"""A caller's ids in the form that zkrq's own ones have, but for the mark."""


async def test_ids_of_the_caller_may_look_like_own_ones(queue: zkrq.Queue[Any]) -> None:
    for repeated in (False, True):
        for id in ALIKE:
            receipt = await queue.push(id, id=id)
            assert (receipt.id, receipt.new) == (id, not repeated)
    for id in ALIKE:
        item = await queue.get(id)
        assert item is not None
        assert (item.id, item.item) == (id, id)
    claims = await queue.pop_many(len(ALIKE), timeout=HANG)
    assert {claim.id: claim.item for claim in claims} == {id: id for id in ALIKE}
    for claim in claims:
        await claim.bury("again")
    assert await queue.redrive(ALIKE) == len(ALIKE)
    for left, id in enumerate(reversed(ALIKE)):
        assert await queue.cancel(id) is zkrq.Cancellation.REMOVED
        assert not await queue.cancel(id)
        assert sum(await queue.size()) == len(ALIKE) - left - 1


async def test_an_own_id_is_given_back_to_repeat_a_push(queue: zkrq.Queue[Any]) -> None:
    receipts = await queue.push_many(range(3))
    assert all(receipt.id.startswith(ids.MARK) for receipt in receipts)
    assert [(await queue.push(n, id=receipt.id)).new for n, receipt in enumerate(receipts)] == [False] * 3
    assert (await queue.push(3, id=zkrq.new_id())).new
    assert (await queue.size()).ready == 4


@every("id", ["zkrq-", "zkrq-17", "zkrq-49151234567-20261123", "zkrq-49151234567-20261123-01x"])
async def test_no_other_id_begins_with_the_mark(queue: zkrq.Queue[Any], id: str) -> None:
    with pytest.raises(zkrq.ConfigError, match="only ids that zkrq makes begin with 'zkrq-'"):
        await queue.push(1, id=id)
    assert not any(await queue.size())


async def test_items_without_the_mark_stay_usable(queue: zkrq.Queue[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As a former version has stored them."""
    with monkeypatch.context() as former:
        former.setattr(ids, "MARK", "")
        receipts = await queue.push_many(range(4))
    names = [receipt.id for receipt in receipts]
    assert names[1].endswith("~01")
    assert not names[0].startswith("zkrq-")
    for number, id in enumerate(names):
        item = await queue.get(id)
        assert item is not None
        assert (item.id, item.item) == (id, number)
    assert await queue.cancel(names[0]) is zkrq.Cancellation.REMOVED
    claims = await queue.pop_many(3, timeout=HANG)
    assert [claim.id for claim in claims] == names[1:]
    await claims[0].ack()
    for claim in claims[1:]:
        await claim.bury("again")
    assert await queue.redrive([names[2]]) == 1
    assert await queue.discard([names[3]]) == 1
    (claim,) = await queue.pop_many(1, timeout=HANG)
    assert (claim.id, claim.item) == (names[2], 2)
    await claim.ack()
    assert not any(await queue.size())
