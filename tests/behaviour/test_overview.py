"""Statistics of queues, and lists of consumers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.behaviour.helpers import bury
from tests.harness import settled, take
from zkrq.client.throughput import NO_THROUGHPUT

pytestmark = pytest.mark.anyio


async def test_statistics_of_a_queue(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    nothing = zkrq.Statistics(zkrq.Sizes(0, 0, 0, 0), False, None, 0, 0, 0, 0)
    assert (await queue.statistics())._replace(flow=NO_THROUGHPUT) == nothing
    await bury(queue, 2)
    await queue.push_many(range(4))
    await pass_time(0.1)
    await queue.push("keyed", key="k", priority=5)
    await queue.push("mortal", ttl=60, delay=30)
    await queue.push("both", key="another", ttl=60, priority=9)
    claim = await take(queue)
    assert claim.item == "both"
    await queue.pause()
    told = await queue.statistics()
    assert told.oldest_ready is not None
    assert told.oldest_ready >= 0.1, "of whatever priority"
    assert told._replace(oldest_ready=None)[:10] == (
        zkrq.Sizes(5, 1, 1, 2),
        True,
        None,
        2,
        2,
        0,
        1,
        told.flow,
        (),
        False,
    )
    await claim.ack()
    await queue.clear()
    flow = (await queue.statistics()).flow
    assert (await queue.statistics())[:10] == (zkrq.Sizes(0, 0, 0, 2), True, None, 0, 0, 4, 0, flow, (), False)
    assert flow.since(told.flow) == (0, 7)


async def test_what_passes_between_two_looks(cluster: zkrq.Cluster, queue: zkrq.Queue[Any]) -> None:
    """Whoever pushes, however an item goes, and whatever happens to it before."""
    first = (await queue.statistics()).flow
    await queue.push_many(range(30))
    await queue.push("keyed", key="k")
    await queue.push("keyed", key="k")
    claims = await queue.pop_many(20, timeout=60)
    second = (await queue.statistics()).flow
    assert second.since(first) == (31, 0)
    await claims[0].nack()
    await claims[1].release()
    await claims[2].bury("bad")
    await claims[3].bury("bad")
    await queue.redrive([claims[3].id])
    assert (await queue.statistics()).flow.since(second) == (0, 0)
    assert not await queue.ack_many(claims[4:])
    await queue.cancel(claims[0].id)
    await queue.discard()
    assert (await queue.statistics()).flow.since(second) == (0, len(claims) - 4 + 2)
    await queue.clear()
    last = (await queue.statistics()).flow
    assert last.since(first) == (31, 31)
    assert first.since(last) is None, "counted anew"
    assert last._replace(server="another").since(first) is None


async def test_statistics_of_all_queues(cluster: zkrq.Cluster, name: str) -> None:
    one, two = cluster.queue(f"{name}-1"), cluster.queue(f"{name}-2")
    await one.push("x", delay=60)
    await two.push_many(["y", "z"])
    claim = await take(two)
    told = await cluster.statistics()
    assert list(told) == await cluster.queues()
    assert told[one.name] == await one.statistics()
    assert told[one.name]._replace(flow=NO_THROUGHPUT)[:10] == (
        zkrq.Sizes(0, 1, 0, 0),
        False,
        None,
        0,
        0,
        0,
        0,
        NO_THROUGHPUT,
        (),
        False,
    )
    assert (told[two.name].sizes, told[two.name].held) == (zkrq.Sizes(1, 0, 1, 0), 1)
    await claim.ack()


async def test_consumers_and_what_each_holds(cluster: zkrq.Cluster, name: str, connect: Connect) -> None:
    one, two = f"{name}-1", f"{name}-2"
    await cluster.queue(one).push_many(range(700))
    await cluster.queue(two).push_many(range(3))
    held: Counter[str] = Counter()
    async with connect(description="mailer on host 7") as other:
        claims = await cluster.queue(one).pop_many(4)
        for queue, most in ((one, 600), (two, 2)):
            while held[queue] < most:
                more = await other.queue(queue).pop_many(most - held[queue])
                held[queue] += len(more)
                claims += more
        mine, theirs = claims[0].owner, claims[-1].owner
        consumers = await other.consumers()
        found = consumers[theirs]
        assert found[:3] == ("mailer on host 7", {one: 600, two: 2}, zkrq.__version__)
        assert (found.release, found.slots) == (zkrq.__version__, 0)
        assert {queue: consumers[mine].claims.get(queue) for queue in (one, two)} == {one: 4, two: None}
        assert consumers == await cluster.consumers()
        await other.queue(one).ack_many(claims[4:604])
        assert (await cluster.consumers())[theirs].claims == {two: 2}

    async def has_left() -> bool:
        return theirs not in await cluster.consumers()

    await settled(has_left)
    assert await cluster.queue(two).size() == (3, 0, 0, 0), "what it held is ready again"
