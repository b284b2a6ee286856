"""Figures while servers die and come back, over shards, and with clocks that are wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

import zkrq
from tests.behaviour.two_shards import both
from tests.harness import take
from zkrq.base import clock
from zkrq.client.inner import client_of
from zkrq.client.queue import parts_of
from zkrq.consuming.figures import REPORT_SECONDS, Figuring
from zkrq.protocol.figures import keepers
from zkrq.testing import Servers, TestCluster

pytestmark = pytest.mark.anyio

SERVERS = 6


def done(found: Sequence[zkrq.Figures]) -> int:
    return sum(each.done for each in found)


async def finish(queue: zkrq.Queue[Any], count: int) -> None:
    await queue.push_many(range(count))
    for _ in range(count):
        await (await take(queue)).ack()


async def reported(cluster: TestCluster, queue: zkrq.Queue[Any], count: int) -> None:
    await cluster.clock.advance(REPORT_SECONDS)
    assert done(await queue.figures(timedelta(hours=1))) == count


async def is_member(cluster: TestCluster, server: str, wanted: bool) -> None:
    """Let time pass until a server is in sync, or is not."""
    for _ in range(120):
        if (server in cluster.view.members) is wanted:
            return
        await cluster.clock.advance(1)
    raise AssertionError(f"{server}: {cluster.view}")


async def test_either_of_two_servers_may_die(own: Servers) -> None:
    async with own.connect(first=4) as cluster:
        queue = cluster.queue("mail")
        await finish(queue, 3)
        await reported(cluster, queue, 3)
        first, second = keepers(cluster.view, "mail")
        own.kill(first)
        await is_member(cluster, first, False)
        assert done(await queue.figures()) == 3, "the second one has it"
        await finish(queue, 2)
        await reported(cluster, queue, 5)
        own.kill(second)
        await is_member(cluster, second, False)
        assert done(await queue.figures()) == 2, "what came after the first one had died is on a third one"
        own.start(second)
        await is_member(cluster, second, True)
        assert done(await queue.figures()) == 5, "it keeps what it has on its disk"


async def test_a_report_that_reaches_no_server_is_lost_and_hinders_nothing(
    own: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    async with own.connect(first=2, min_replicas=1) as cluster:
        queue = cluster.queue("mail")
        await finish(queue, 3)
        for name in own.names:
            own.kill(name)
        with caplog.at_level(logging.WARNING):
            await cluster.clock.advance(REPORT_SECONDS)
        assert not [record for record in caplog.records if "figures" in record.getMessage()]
        asking = asyncio.create_task(queue.figures())
        while not asking.done():
            await cluster.clock.advance(1)
        with pytest.raises(zkrq.Unavailable):
            await asking


async def test_shards_are_added_up(own: Servers) -> None:
    async with both(own) as cluster:
        queue = cluster.queue("mail")
        await finish(queue, 40)
        assert all(shard.leases.figuring is not None for shard in parts_of(queue).shards)
        await reported(cluster, queue, 40)


async def test_the_clock_of_a_process_may_be_wrong(own: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reports stand where the servers' clocks say."""
    async with own.connect(first=3) as cluster:
        queue = cluster.queue("mail")
        await finish(queue, 3)
        right = clock.now_ms
        monkeypatch.setattr("zkrq.consuming.figures.clock.now_ms", lambda: right() + 7_200_000)
        await cluster.clock.advance(REPORT_SECONDS)
        monkeypatch.undo()
        await reported(cluster, queue, 3)


async def test_a_level_that_lacks_figures_has_none(own: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    async with own.connect(first=3) as cluster:
        queue = cluster.queue("mail")
        with monkeypatch.context() as before:
            before.setattr(type(client_of(cluster).shard.replicas), "level", 1)
            await finish(queue, 3)
            await cluster.clock.advance(REPORT_SECONDS)
            with pytest.raises(zkrq.ConfigError, match=r"figures: this needs level 2, and .* level 1.*`zkrq upgrade`"):
                await queue.figures()
        await finish(queue, 2)
        await reported(cluster, queue, 2)


async def test_a_report_that_fails_ends_no_work(own: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    async with own.connect(first=3) as cluster:
        queue = cluster.queue("mail")
        fails = True
        report = Figuring._report  # pyright: ignore[reportPrivateUsage]

        async def may_fail(figuring: Figuring) -> None:
            if fails:
                raise RuntimeError("a mistake")
            await report(figuring)

        monkeypatch.setattr(Figuring, "_report", may_fail)
        await finish(queue, 3)
        await cluster.clock.advance(REPORT_SECONDS)
        fails = False
        await finish(queue, 2)
        await cluster.clock.advance(REPORT_SECONDS)
        assert done(await queue.figures()) == 5
