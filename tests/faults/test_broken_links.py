"""A client that does not reach a server which others reach: it fails, and does not evict again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

import zkrq
from tests.faults.stage import Actor, Stage
from tests.harness import HANG, until
from tests.proxy import Connection, Proxy

pytestmark = pytest.mark.anyio

BROKEN = "redis-2"

CHECK = f"{BROKEN}: it does not answer this client, but it does answer others: check the network between them"

PATIENCE = 2.5
"""Seconds for which the client behind the proxy retries a call; more than its two time-outs."""

OTHER = {"name": "other"}
"""A queue beside that of the load."""


def refuse(proxy: Proxy) -> None:
    proxy.refuse()
    proxy.cut(reset=True)


@pytest.mark.parametrize("harm", [refuse, Proxy.stall])
async def test_a_newcomer_behind_a_broken_link_evicts_nobody(hub_stage: Stage, harm: Callable[[Proxy], None]) -> None:
    """It accuses, the others refute it; it takes part as soon as its link works."""
    healthy = await hub_stage.enter()
    async with proxy_for(hub_stage) as proxy:
        harm(proxy)
        async with hub_stage.load(producers=2, consumers=2) as load, behind(hub_stage, proxy) as newcomer:
            await push_in_vain(newcomer)
            assert f"server {CHECK}" in newcomer.cluster.health().trouble
            assert not newcomer.cluster.health().ok
            assert [event.server for event in newcomer.events(zkrq.ServerUnusableHere)] == [BROKEN]
            await until(load.progress(100))
            await proxy.accept()
            proxy.flow()
            proxy.cut()
            await until(lambda: newcomer.cluster.health().ok)
            assert (await newcomer.push("at last")).replicas == 3
        assert not load.uncertain
        assert healthy.view.epoch == 1, "nobody was evicted, and no claim got another lease for it"
        assert not newcomer.events(zkrq.ServerEvicted)


async def test_a_link_that_breaks_again_and_again_costs_one_eviction(hub_stage: Stage) -> None:
    """The first one is made in good faith; after the server was admitted again, its client has to be borne out."""
    healthy = await hub_stage.enter()
    async with proxy_for(hub_stage) as proxy:
        async with hub_stage.load(producers=2, consumers=2) as load, behind(hub_stage, proxy) as broken:
            for round in range(3):
                await until(lambda: BROKEN in broken.view.members)
                await until(lambda: broken.cluster.health().ok)
                await broken.push("well")
                refuse(proxy)
                if round == 0:
                    await broken.push("with the two others")
                    assert len(broken.events(zkrq.ServerEvicted)) == 1
                else:
                    await push_in_vain(broken)
                await proxy.accept()
            await until(lambda: BROKEN in healthy.view.members)
            assert len(broken.events(zkrq.ServerEvicted)) == 1
            assert healthy.view.epoch == 4, "evicted, a learner, a member"
        assert not load.uncertain


async def test_a_newcomer_alone_with_a_dead_server(hub_stage: Stage) -> None:
    """Nobody refutes it, so after some seconds it goes on without that server."""
    await leave_one_dead(hub_stage)
    newcomer = await hub_stage.enter()
    assert (await newcomer.push("after")).replicas == 2
    assert len(newcomer.events(zkrq.ServerEvicted)) == 1


async def test_newcomers_together_with_a_dead_server(hub_stage: Stage) -> None:
    """One accuses, another bears witness."""
    await leave_one_dead(hub_stage)
    one, other = await hub_stage.enter(), await hub_stage.enter()
    receipts = await asyncio.gather(one.push("after"), other.push("after"))
    assert [receipt.replicas for receipt in receipts] == [2, 2]
    assert one.view.epoch == 2


async def test_a_dead_server_is_evicted_at_once_by_those_that_knew_it(hub_stage: Stage) -> None:
    """A newcomer that accuses is borne out by the first who is asked."""
    old = await hub_stage.enter()
    await old.push("before")
    async with proxy_for(hub_stage) as proxy, behind(hub_stage, proxy, {}) as newcomer:
        await hub_stage.kill(hub_stage.server(BROKEN))
        assert (await newcomer.push("after")).replicas == 2
        assert old.view.epoch == newcomer.view.epoch == 2


async def test_an_accuser_that_hears_from_the_server_withdraws(hub_stage: Stage) -> None:
    """Also where no other client is there to refute it; else the next silence would find the time of grace over."""
    hanging = hub_stage.server(BROKEN)
    alone = await hub_stage.enter(command_timeout=0.3)
    await alone.push("well")
    hanging.pause()
    await alone.push("without it")  # it had answered this client, and is evicted
    hanging.resume()
    await until(lambda: BROKEN in alone.view.members)
    hanging.pause()
    pushing = asyncio.create_task(alone.push("accused"))
    await until(lambda: BROKEN in alone.view.accusations)
    hanging.resume()
    assert (await pushing).replicas == 3
    await until(lambda: not alone.view.accusations)


@pytest.mark.parametrize("max_size", [None, 100], ids=["plain", "limited"])
async def test_a_push_whose_reply_is_lost_does_not_take_its_own_item_for_anothers(
    hub_stage: Stage, max_size: int | None
) -> None:
    """It is repeated, and whether the id is new remains open if the primary's reply was lost; an id that zkrq has made
    is new whatever becomes of the replies."""
    async with proxy_for(hub_stage) as proxy, behind(hub_stage, proxy) as client:
        names = {client.view.primary(name): name for name in map("jobs-{}".format, range(30))}
        for primary, name in names.items():
            queue = client.cluster.queue(name, max_size=max_size)
            await queue.push("so that the server knows the script")
            proxy.lose_reply_to(b"order 17")
            first = await queue.push("x", id="order 17")
            assert (first.replicas, first.new) == (3, None if primary == BROKEN else True)
            assert (await queue.push("x", id="order 17")).new is False
            proxy.lose_reply_to(b"the payload")
            assert (await queue.push("the payload", ttl=60)).new
            assert await queue.size() == (3, 0, 0, 0)


@pytest.mark.parametrize("reset", [False, True])
async def test_replies_that_are_cut_in_the_middle(hub_stage: Stage, *, reset: bool) -> None:
    """The calls are repeated over a new connection, where no half of a reply is left; nobody is evicted for it."""
    async with proxy_for(hub_stage) as proxy, behind(hub_stage, proxy) as client:
        cuts = cut_replies(proxy, reset=reset)
        async with hub_stage.load(producers=2, consumers=2) as load:
            await until(lambda: len(cuts) >= 10)
            await until(load.progress(100))
        assert not load.uncertain
        assert not client.events(zkrq.ServerEvicted)


# -- what the scenarios have in common ---------------------------------------------------------------------------------


@asynccontextmanager
async def proxy_for(stage: Stage) -> AsyncGenerator[Proxy]:
    server = stage.server(BROKEN)
    async with Proxy(server.host, server.port) as proxy:
        yield proxy


@asynccontextmanager
async def behind(stage: Stage, proxy: Proxy, queue: dict[str, str] = OTHER) -> AsyncGenerator[Actor]:
    """A client whose way to one server leads through the proxy."""
    urls = {BROKEN: f"redis://{proxy.address}"}
    async with stage.visit(queue, urls=urls, command_timeout=1.0, operation_timeout=PATIENCE) as actor:
        yield actor


async def leave_one_dead(stage: Stage) -> None:
    """A namespace with one item, all clients gone, and a dead server that nobody has evicted."""
    async with stage.visit() as first:
        await first.push("before")
    await stage.kill(stage.server(BROKEN))


async def push_in_vain(client: Actor) -> None:
    """Push until that was retried for its whole time; from then on the client says what is wrong without retrying."""
    while f"server {CHECK}" not in client.cluster.health().trouble:
        with pytest.raises((zkrq.OutcomeUnknown, zkrq.Unavailable)):
            await client.push("in vain")
    with pytest.raises(zkrq.Unavailable, match=CHECK):
        await client.push("in vain")
    async with asyncio.timeout(HANG / 2):
        for _ in range(20):
            with pytest.raises(zkrq.Unavailable, match=CHECK):
                await client.push("in vain")
            await asyncio.sleep(0.05)


def cut_replies(proxy: Proxy, *, reset: bool) -> list[bytes]:
    """Cut the connection in the middle of every sixtieth reply; return those replies, to which they are added."""
    replies, cuts = 0, list[bytes]()

    def cut_some(connection: Connection, data: bytes) -> bytes:
        nonlocal replies
        replies += 1
        if replies % 60:
            return data
        cuts.append(data)
        asyncio.get_running_loop().call_later(0.002, partial(connection.cut, reset=reset))
        return data[: len(data) // 2]

    proxy.on_reply = cut_some
    return cuts
