"""What an item keeps of its failures, as users read it."""

from __future__ import annotations

from typing import Any

import pytest

import zkrq
from zkrq.client.inner import client_of

pytestmark = pytest.mark.anyio

RETRY = zkrq.Retry(max_attempts=7, backoff=lambda failures, chance: 0.0)


async def fail_with(queue: zkrq.Queue[Any], error: BaseException) -> None:
    claim = await queue.pop_one(timeout=10)
    assert claim
    with pytest.raises(type(error)):
        async with claim:
            raise error


async def the_item(queue: zkrq.Queue[Any], id: str) -> zkrq.Item[Any]:
    item = await queue.get(id)
    assert item
    return item


async def test_last_five_failures_are_kept_until_the_item_is_done(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, retry=RETRY)
    await queue.push("x", id="a")
    assert (await the_item(queue, "a")).last_failures == ()
    for number in range(7):
        await fail_with(queue, ValueError(f"number {number}"))
    letter = await the_item(queue, "a")
    assert letter.state == "dead"
    assert [each.reason for each in letter.last_failures] == [
        "failed in delivery 7 of 7: ValueError: number 6",
        *(f"ValueError: number {number}" for number in (5, 4, 3, 2)),
    ]
    assert (letter.reason, letter.traceback) == (letter.last_failures[0].reason, letter.last_failures[0].traceback)
    (letter,) = await queue.dead_letters()
    me = client_of(cluster).identity.description
    assert {each.where for each in letter.last_failures} == {me}
    for each in letter.last_failures:
        assert each.took is not None
        assert each.took >= 0
        assert each.at
        assert each.at.tzinfo
    assert "test_last_failures.py" in (letter.last_failures[0].traceback or "")
    assert await queue.redrive(["a"]) == 1
    assert len((await the_item(queue, "a")).last_failures) == 5
    claim = await queue.pop_one(timeout=10)
    assert claim
    await claim.bury("by hand")
    assert [each.reason for each in (await the_item(queue, "a")).last_failures][:2] == ["by hand", letter.reason]
    await queue.discard(["a"])
    await queue.push("x", id="b")
    assert (await the_item(queue, "b")).last_failures == ()


async def test_reason_alone_is_kept_at_level_1(
    cluster: zkrq.Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = cluster.queue(name, retry=RETRY)
    monkeypatch.setattr(type(client_of(cluster).shard.replicas), "level", 1)
    await queue.push("x", id="a")
    for number in range(2):
        await fail_with(queue, ValueError(f"number {number}"))
    (failure,) = (await the_item(queue, "a")).last_failures
    assert (failure.reason, failure.at, failure.where, failure.took) == ("ValueError: number 1", None, None, None)
    assert "test_last_failures.py" in (failure.traceback or "")
