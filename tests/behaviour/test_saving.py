"""What handlers save of their work: each later delivery is given it, and a step that was saved is not run again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import PassTime
from tests.behaviour.helpers import FEW_ATTEMPTS, Outcomes, working
from tests.harness import HANG, take, until
from zkrq.client.inner import client_of
from zkrq.client.queue import push_encoded
from zkrq.consuming.claims import lease_of

pytestmark = pytest.mark.anyio

KIB = 1024


async def bury_and_redrive(queue: zkrq.Queue[Any], claim: zkrq.Claim[Any]) -> None:
    await claim.bury("why")
    assert await queue.redrive([claim.id]) == 1


PUT_BACK: Mapping[str, Callable[[zkrq.Queue[Any], zkrq.Claim[Any]], Awaitable[object]]] = {
    "nack": lambda queue, claim: claim.nack(0),
    "release": lambda queue, claim: claim.release(),
    "bury and redrive": bury_and_redrive,
}


@pytest.mark.parametrize("how", PUT_BACK)
async def test_the_next_delivery_is_given_what_was_saved(queue: zkrq.Queue[Any], how: str) -> None:
    await queue.push("a book")
    claim = await take(queue)
    assert claim.saved is None
    await claim.save({"page": 1})
    await claim.save({"page": 12, "of": [1, 2]})
    assert claim.saved == {"page": 12, "of": [1, 2]}
    await PUT_BACK[how](queue, claim)
    again = await take(queue)
    assert again.saved == {"page": 12, "of": [1, 2]}
    await again.ack()


async def test_what_is_saved_outlives_its_lease(queue: zkrq.Queue[Any], name: str, cluster: zkrq.Cluster) -> None:
    """As a holder that dies, or one that hangs."""
    await queue.push("a")
    claim = await take(queue)
    await claim.save("half", extend=False)
    lease = lease_of(claim)
    lease.stop_extending()
    await lease.extend(0.001)
    again = await take(queue)
    assert (again.id, again.saved) == (claim.id, "half")
    with pytest.raises(zkrq.ClaimLost):
        await claim.save("the zombie's")
    assert claim.lost
    await again.save("whole")
    await again.nack(0)
    assert (await take(queue)).saved == "whole"


async def test_what_is_saved_goes_with_its_item(queue: zkrq.Queue[Any]) -> None:
    await queue.push("a", id="mine")
    async with await take(queue) as claim:
        await claim.save("half")
    await queue.push("b", id="other")
    async with await take(queue) as claim:
        assert claim.saved is None


async def test_items_pushed_together_save_each_its_own(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(5))
    claims = await queue.pop_many(5, timeout=HANG)
    await asyncio.gather(*(claim.save({"of": claim.item}) for claim in claims if claim.item % 2))
    await asyncio.gather(*(claim.nack(0) for claim in claims))
    again = await queue.pop_many(5, timeout=HANG)
    while len(again) < 5:
        again += await queue.pop_many(5 - len(again), timeout=HANG)
    assert {claim.item: claim.saved for claim in again} == {0: None, 1: {"of": 1}, 2: None, 3: {"of": 3}, 4: None}
    await queue.ack_many(again)


async def test_saves_of_one_claim_follow_one_another(queue: zkrq.Queue[Any]) -> None:
    await queue.push("a")
    claim = await take(queue)
    await asyncio.gather(*(claim.save(number) for number in range(20)))
    assert claim.saved == 19
    await claim.release()
    assert (await take(queue)).saved == 19


async def test_a_save_holds_the_item_for_longer_unless_told_not_to(queue: zkrq.Queue[Any]) -> None:
    await queue.push("a")
    claim = await take(queue)
    await claim.extend(5)
    before = claim.deadline
    await claim.save(1, extend=False)
    assert abs((claim.deadline - before).total_seconds()) < 5
    await claim.save(2)
    assert (claim.deadline - before).total_seconds() > 15
    await claim.ack()


# -- steps -----------------------------------------------------------------------------------------------------------


class Shop:
    """Handles orders, and fails after each step once."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.keys: list[str] = []
        self.told: list[object] = []

    async def charge(self, order: str, *, times: int) -> list[object]:
        self.calls.append(f"charge {order}")
        return [order, times]

    def ship(self, order: str) -> dict[str, str]:
        self.calls.append(f"ship {order}")
        return {"shipped": order}

    async def handle(self, order: str, claim: zkrq.Claim[str]) -> None:
        self.told.append(await claim.step("charge", self.charge, order, times=2))
        if claim.attempts == 1:
            raise ValueError("after the first")
        self.told.append(await claim.step("ship", self.ship, order))
        if claim.attempts == 2:
            raise ValueError("after the second")
        async with claim.step("mail") as step:
            self.keys.append(step.key)
            if not step.done:
                if claim.attempts == 3:
                    raise ValueError("within the third")
                step.value = "mailed"
        assert step.done
        self.told.append(step.value)


async def test_a_step_that_was_saved_is_not_run_again(own_cluster: zkrq.Cluster, name: str) -> None:
    queue = own_cluster.queue(name, retry=zkrq.Retry(backoff=zkrq.constant(0)))
    shop, outcomes = Shop(), Outcomes()
    receipt = await queue.push("order")
    async with working(queue, shop.handle, after=outcomes):
        await until(lambda: len(outcomes.list) == 4)
    charged, shipped = ["order", 2], {"shipped": "order"}
    assert shop.calls == ["charge order", "ship order"]
    assert shop.told == [charged, charged, shipped, charged, shipped, charged, shipped, "mailed"]
    assert shop.keys == [f"{receipt.id}/mail"] * 2, "the same at each delivery"


async def test_steps_and_a_state_of_its_own_stand_beside_each_other(queue: zkrq.Queue[Any]) -> None:
    await queue.push("a")
    claim = await take(queue)
    assert await claim.step("one", lambda: (1, 2)) == [1, 2], "as later deliveries are told"
    await claim.save("state")
    assert await claim.step("two", _none) is None
    await claim.nack(0)
    again = await take(queue)
    assert again.saved == "state"
    assert [await again.step(name, _fail) for name in ("one", "two")] == [[1, 2], None]
    await again.ack()


def _fail() -> None:
    raise AssertionError("it is done")


async def _none() -> None:
    """Return nothing, as a step may."""


async def test_steps_of_one_delivery_may_be_done_at_the_same_time(queue: zkrq.Queue[Any]) -> None:
    await queue.push("a")
    claim = await take(queue)

    async def work(number: int) -> int:
        await asyncio.sleep(0)
        return number

    assert await asyncio.gather(*(claim.step(f"n{number}", work, number) for number in range(9))) == [*range(9)]
    await claim.release()
    again = await take(queue)
    assert await asyncio.gather(*(again.step(f"n{number}", _fail) for number in range(9))) == [*range(9)]


async def test_attempts_may_be_counted_for_each_step(own_cluster: zkrq.Cluster, name: str) -> None:
    queue = own_cluster.queue(name, retry=zkrq.Retry(max_attempts=2, backoff=zkrq.constant(0), per_step=True))
    seen, outcomes = list[tuple[int, int]](), Outcomes()

    async def handle(item: str, claim: zkrq.Claim[str]) -> None:
        seen.append((claim.attempts, claim.failures))
        done = claim.saved or 0
        if claim.attempts == 2 and done < 3:
            await claim.save(done + 1)
            assert (claim.attempts, claim.failures) == (1, 0)
        raise ValueError("again")

    await queue.push("a")
    async with working(queue, handle, after=outcomes):
        await until(lambda: bool(outcomes.endings) and outcomes.endings[-1] is zkrq.Ending.BURIED)
    assert seen == [(1, 0), *[(2, 1)] * 4]
    assert (await queue.size()).dead == 1


# -- codecs ------------------------------------------------------------------------------------------------------------


async def test_states_have_a_codec_of_their_own(own_cluster: zkrq.Cluster, name: str) -> None:
    queue = own_cluster.queue(name, saved=zkrq.RAW)
    await queue.push("a")
    claim = await take(queue)
    await claim.save(b"\0\xff")
    await claim.nack(0)
    assert (await take(queue)).saved == b"\0\xff"


async def test_states_may_be_encrypted(own_cluster: zkrq.Cluster, name: str) -> None:
    typed = pytest.importorskip("zkrq.typed")
    pytest.importorskip("cryptography")
    queue = own_cluster.queue(name, saved=typed.Encrypted(zkrq.JSON, [typed.new_key()]))
    await queue.push("a")
    claim = await take(queue)
    await claim.save("a secret")
    await claim.step("known", lambda: "another")
    await claim.nack(0)
    again = await take(queue)
    assert b"secret" not in lease_of(again).grant.notes
    assert (again.saved, await again.step("known", _fail)) == ("a secret", "another")


# -- what is seen of an item -----------------------------------------------------------------------------------------


async def test_what_is_saved_is_seen_wherever_an_item_is(queue: zkrq.Queue[Any]) -> None:
    await queue.push("a", key="user-42", headers={"by": "ann"})
    assert await _seen(queue) == (None, {}, None)
    claim = await take(queue)
    await claim.save({"page": 12})
    await claim.step("charge", lambda: "paid")
    (id,), known = [claim.id], ({"page": 12}, {"charge": "paid"})
    assert (await _seen(queue, id))[:2] == known
    await claim.bury("why")
    found = [
        await queue.get(id),
        *await queue.dead_letters(),
        *[item async for item in queue.scan()],
        *[item async for item in queue.find(key="user-42")],
        *(await queue.find_page(header=("by", "ann"))).items,
    ]
    assert [(item.saved, item.steps) for item in found if item] == [known] * 5
    assert await queue.redrive([id]) == 1
    assert (await _seen(queue, id))[:2] == known


async def _seen(queue: zkrq.Queue[Any], id: str = "") -> tuple[Any, Any, bytes | None]:
    item = await queue.get(id) if id else (await queue.peek(1))[0]
    assert item
    return item.saved, item.steps, item.saved_bytes


class ReadsOnlyOne:
    """A codec that cannot read everything it writes."""

    name = "reads only 1"

    def encode(self, item: Any) -> bytes:
        return zkrq.JSON.encode(item)

    def decode(self, data: bytes) -> Any:
        return {b"1": 1}[data]


async def test_what_cannot_be_decoded_is_seen_as_bytes(own_cluster: zkrq.Cluster, name: str) -> None:
    queue = own_cluster.queue(name, saved=ReadsOnlyOne())
    await queue.push("a")
    claim = await take(queue)
    await claim.save("two")
    async with claim.step("one") as step:
        step.value = 1
    async with claim.step("two") as step:
        step.value = 2
    saved, steps, text = await _seen(queue, claim.id)
    assert (saved, steps) == (None, {"one": 1, "two": None})
    assert text is not None
    assert b'"two"' in text
    with pytest.raises(zkrq.CodecError):
        _ = claim.saved
    await claim.ack()


# -- bad input -----------------------------------------------------------------------------------------------------


async def test_what_cannot_be_saved_is_refused_and_nothing_is_saved(queue: zkrq.Queue[Any]) -> None:
    await queue.push("a")
    claim = await take(queue)
    await claim.save("before")
    with pytest.raises(zkrq.CodecError, match=r"the state cannot be saved: .*; nothing was saved"):
        await claim.save({1, 2})
    with pytest.raises(zkrq.PayloadTooLarge, match=r"the state has \d+ bytes, at most 32768 .*nothing was saved"):
        await claim.save("x" * 33 * KIB)
    with pytest.raises(zkrq.PayloadTooLarge, match=r"what is saved of the item has \d+ bytes, at most 32768"):
        await asyncio.gather(*(claim.step(name, lambda: "x" * 20 * KIB) for name in ("one", "two")))
    with pytest.raises(zkrq.CodecError, match="the value of step 'three' cannot be saved"):
        await claim.step("three", lambda: object())
    assert claim.saved == "before"
    await claim.nack(0)
    assert (await take(queue)).saved == "before"


@pytest.mark.parametrize("bad", ["", " x", "x" * 129, "a\nb", 7])
async def test_a_step_needs_a_name(queue: zkrq.Queue[Any], bad: Any) -> None:
    await queue.push("a")
    claim = await take(queue)
    with pytest.raises(zkrq.ConfigError, match="the name of a step"):
        claim.step(bad)


async def test_a_step_is_used_in_one_way(queue: zkrq.Queue[Any]) -> None:
    await queue.push("a")
    claim = await take(queue)
    assert await claim.step("one", lambda: 1) == 1
    with pytest.raises(zkrq.ConfigError, match="step 'one' was named twice in one delivery: give each step a name"):
        claim.step("one")
    with pytest.raises(zkrq.ConfigError, match="step 'two' has no function: give one after its name, or enter it"):
        await claim.step("two")
    with pytest.raises(zkrq.ConfigError, match="step 'three' has a function: await it, or enter it without one"):
        async with claim.step("three", _fail):
            pass
    async with claim.step("four") as step:
        assert (step.done, step.value) == (False, None)
        step.value = 4
    with pytest.raises(zkrq.ConfigError, match=r"step .four. is done, its value stays: look at step\.done first"):
        step.value = 5
    assert step.value == 4
    assert repr(step) == "<Step 'four'>"


async def test_an_item_of_a_batch_saves_and_has_no_steps(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(3))
    async for batch in queue.pop_batches(3, limit=3):
        async with batch:
            with pytest.raises(zkrq.ConfigError, match=r"an item of a batch has no steps.*; use claim\.save"):
                batch[0].step("one", _none)
            for claim in batch:
                await claim.save({"seen": claim.item})
            await batch.nack(0)
    again = list[zkrq.Claim[Any]]()
    while len(again) < 3:
        again += await queue.pop_many(3 - len(again), timeout=HANG)
    assert {claim.item: claim.saved["seen"] for claim in again} == {0: 0, 1: 1, 2: 2}


async def test_a_claim_that_is_settled_saves_no_more(queue: zkrq.Queue[Any]) -> None:
    await queue.push("a")
    claim = await take(queue)
    await claim.ack()
    with pytest.raises(zkrq.ClaimLost, match="was settled before"):
        await claim.save("late")
    with pytest.raises(zkrq.ClaimLost, match="was settled before"):
        await claim.step("late", _fail)


async def test_nothing_is_saved_at_a_level_that_lacks_it(
    queue: zkrq.Queue[Any], cluster: zkrq.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no step is run."""
    await queue.push("a")
    claim = await take(queue)
    monkeypatch.setattr(type(client_of(cluster).shard.replicas), "level", 1)
    told = r"saved states: this needs level 2, and the namespace is at level 1.*`zkrq upgrade`"
    with pytest.raises(zkrq.ConfigError, match=told):
        await claim.save("early")
    with pytest.raises(zkrq.ConfigError, match=told):
        await claim.step("early", _fail)
    with pytest.raises(zkrq.ConfigError, match=told):
        async with claim.step("as early"):
            pass
    with pytest.raises(zkrq.ConfigError, match=told):
        await push_encoded(queue, b'"a copy"', saved=b"\1")
    await claim.nack(0)
    assert (await take(queue)).saved is None
    assert await queue.size() == (0, 0, 1, 0)


async def test_what_another_codec_has_saved_is_an_error_and_no_other_item_suffers(
    own_cluster: zkrq.Cluster, name: str
) -> None:
    queue = own_cluster.queue(name, saved=zkrq.RAW, retry=FEW_ATTEMPTS)
    await queue.push("a")
    claim = await take(queue)
    await claim.save(b"\xff")
    await claim.nack(0)
    claim = await take(queue)
    lease_of(claim).grant.issuer.saved_codec = zkrq.JSON  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(zkrq.CodecError, match="what is saved of the item cannot be decoded"):
        _ = claim.saved
    await claim.ack()


@pytest.mark.parametrize("bad", [b"", b"\x02", b"\x01\x05", b"\x01\x00\x00\x09x", b"\x01\x01\xff\x00\x00"])
async def test_damaged_states_are_an_error(queue: zkrq.Queue[Any], bad: bytes) -> None:
    await queue.push("a")
    claim = await take(queue)
    lease = lease_of(claim)
    assert not await lease.grant.issuer.save(lease, 1, bad, 0)
    await claim.nack(0)
    claim = await take(queue)
    with pytest.raises(zkrq.CodecError, match="what is saved of the item is"):
        _ = claim.saved
    with pytest.raises(zkrq.CodecError, match="what is saved of the item is"):
        await claim.step("one", _fail)


async def test_an_item_without_a_state_has_no_text(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    await queue.push("a")
    claim = await take(queue)
    assert not hasattr(lease_of(claim).grant, "notes")
    assert not hasattr(claim, "_saving")
