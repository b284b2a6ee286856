"""``quiet`` and ``unquiet``: named consumers claim nothing more, and finish what they have."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.behaviour.helpers import are_sizes, is_empty, working
from tests.harness import HANG, settled, take
from zkrq.base.events import ConsumerQuiet
from zkrq.client import quieting

pytestmark = pytest.mark.anyio


async def test_a_quiet_consumer_claims_nothing_and_others_go_on(queue: zkrq.Queue[Any], connect: Connect) -> None:
    async with connect() as one, connect() as other:
        here, there = one.queue(queue.name), other.queue(queue.name)
        await queue.push_many(range(2))
        claim, theirs = await take(here), await take(there)
        assert await other.quiet(claim.owner) == zkrq.Quieted((claim.owner,))
        await queue.push("x")
        for timeout in (0, 0.1):
            assert await here.pop_one(timeout=timeout) is None
        consumers = await other.consumers()
        assert [consumers[owner].quiet for owner in (claim.owner, theirs.owner)] == [True, False]
        assert consumers[claim.owner].claims == {queue.name: 1}
        await claim.ack()
        assert (await take(there)).item == "x"
        assert (await other.consumers())[claim.owner].claims == {}
        assert await other.unquiet(claim.owner) == zkrq.Quieted((claim.owner,))
        await queue.push("y")
        assert (await take(here)).item == "y"


async def test_a_worker_finishes_and_gives_back_what_it_claimed_ahead(
    queue: zkrq.Queue[Any], connect: Connect, pass_time: PassTime
) -> None:
    told = list[Any]()
    gate, seen = asyncio.Event(), list[int]()

    async def handle(item: int) -> None:
        await gate.wait()
        seen.append(item)

    await queue.push_many(range(10))
    async with connect(on_event=told.append) as other, working(other.queue(queue.name), handle, concurrency=2):
        await settled(lambda: are_sizes(queue, 8, 2))
        (owner,) = [id for id, each in (await other.consumers()).items() if each.claims]
        await other.quiet(owner)
        gate.set()
        await settled(lambda: are_sizes(queue, 8, 0))
        await pass_time(0.2)
        assert len(seen) == 2
        assert not (await other.consumers())[owner].claims
        await other.unquiet(owner)
        await settled(lambda: is_empty(queue))
    assert sorted(seen) == list(range(10))
    assert [event.is_quiet for event in told if isinstance(event, ConsumerQuiet)] == [True, False]


async def test_a_consumer_that_waits_is_served_once_it_is_quiet_no_more(
    queue: zkrq.Queue[Any], connect: Connect, pass_time: PassTime
) -> None:
    async with connect() as one, connect() as other:
        waiting = asyncio.create_task(one.queue(queue.name).pop_one(timeout=HANG))
        (owner,) = await _consumers(other, 1)
        await other.quiet(owner)
        await queue.push("x")
        await pass_time(0.2)
        assert not waiting.done()
        await other.unquiet(owner)
        claim = await waiting
        assert claim
        assert claim.item == "x"


async def test_all_of_a_host_are_quiet_and_one_that_comes_later_is_not(
    queue: zkrq.Queue[Any], connect: Connect
) -> None:
    async with connect() as one, connect() as operator:
        assert await one.queue(queue.name).pop_one(timeout=0) is None
        (owner,) = await _consumers(operator, 1)
        host = (await operator.consumers())[owner].host
        assert await operator.quiet(host=host) == zkrq.Quieted((owner,))
        async with connect() as later:
            await queue.push("x")
            assert (await take(later.queue(queue.name))).item == "x"


async def test_what_was_written_of_those_that_ended_goes_after_a_time() -> None:
    hour = round(quieting.KEPT_SECONDS * 1000)
    known = {"ended": 0, "between sessions": hour, "there": 0, "from the future": 9 * hour}
    assert quieting.changed(known, ["new"], ["there", "new"], hour + 1) == {
        "between sessions": hour,
        "there": 0,
        "new": hour + 1,
    }
    with pytest.raises(zkrq.ConfigError, match="at most 5000 can be; nothing was changed"):
        quieting.changed({}, [str(n) for n in range(quieting.QUIET_MAX + 1)], [], 0)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"clients": 5}', b'{"clients": {"a": -1}}', b"\xff", None])
async def test_a_damaged_register_quiets_nobody(data: bytes | None) -> None:
    assert quieting.decode(data) == {}


async def test_consumers_that_are_not_there_are_named(queue: zkrq.Queue[Any], connect: Connect) -> None:
    async with connect() as cluster:
        with pytest.raises(zkrq.ConfigError, match=r"no live consumer has the owner id 'nobody'.*nothing was changed"):
            await cluster.quiet("nobody")
        with pytest.raises(zkrq.ConfigError, match="no consumer is on host 'mars'"):
            await cluster.quiet(host="mars")
        for owners, host in (((), None), (("a",), "mars")):
            with pytest.raises(zkrq.ConfigError, match=r"either owner ids .* or a host"):
                await cluster.unquiet(*owners, host=host)


async def _consumers(cluster: zkrq.Cluster, count: int) -> list[str]:
    """Return the owner ids of the consumers, once there are so many."""
    found = list[str]()

    async def are_there() -> bool:
        found[:] = await cluster.consumers()
        return len(found) == count

    await settled(are_there)
    return found
