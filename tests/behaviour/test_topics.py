"""``broadcast`` and ``listen``: each present listener hears each message once."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect
from zkrq.client.topics import MESSAGE_BYTES, UNREAD_MAX
from zkrq.testing import servers

pytestmark = pytest.mark.anyio


async def heard(listener: zkrq.Listener[Any], count: int) -> list[Any]:
    return [await anext(listener) for _ in range(count)]


async def test_each_listener_hears_each_message_once(cluster: zkrq.Cluster, connect: Connect) -> None:
    async with (
        connect() as other,
        cluster.listen("news") as here,
        other.listen("news") as there,
        other.listen("sports") as elsewhere,
    ):
        for number in range(20):
            assert await cluster.broadcast("news", {"number": number}) == 2
        expected = [{"number": number} for number in range(20)]
        assert await heard(here, 20) == await heard(there, 20) == expected
        assert await other.broadcast("sports", "goal") == 1
        assert await heard(elsewhere, 1) == ["goal"]


async def test_nothing_is_stored(cluster: zkrq.Cluster) -> None:
    assert await cluster.broadcast("news", "early") == 0
    async with cluster.listen("news") as listener:
        await cluster.broadcast("news", "late")
        assert await heard(listener, 1) == ["late"]
    while await cluster.broadcast("news", "too late"):
        await asyncio.sleep(0.01)
    assert [message async for message in listener] == []


async def test_a_loop_listens_without_a_block(cluster: zkrq.Cluster) -> None:
    messages: list[Any] = []

    async def follow() -> None:
        async for message in cluster.listen("news"):
            messages.append(message)
            if len(messages) == 2:
                return

    following = asyncio.create_task(follow())
    while not following.done():
        await cluster.broadcast("news", len(messages))
        await asyncio.sleep(0.01)
    assert messages == [0, 1] or messages == [0, 0]
    await following
    gc.collect()
    while await cluster.broadcast("news", "nobody"):
        await asyncio.sleep(0.01)


async def test_a_server_dies_and_comes_back() -> None:
    async with servers() as three, three.connect() as own, own.listen("news") as listener:
        three.kill("redis-1")
        for number in range(3):
            await own.broadcast("news", number)
        assert await heard(listener, 3) == [0, 1, 2]
        three.start("redis-1")
        await own.clock.advance(30)
        three.kill("redis-2")
        three.kill("redis-3")
        await own.broadcast("news", "from the one that came back")
        assert await heard(listener, 1) == ["from the one that came back"]


async def test_a_listener_that_is_far_behind_loses_the_oldest(
    cluster: zkrq.Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.listen("news") as listener:
        for number in range(UNREAD_MAX + 5):
            await cluster.broadcast("news", number)
        messages = await heard(listener, UNREAD_MAX)
    assert messages[-1] == UNREAD_MAX + 4
    assert messages == sorted(set(messages))
    records = [record for record in caplog.records if "messages behind" in record.message]
    assert [record.levelno for record in records] == [logging.WARNING]


async def test_a_message_that_cannot_be_decoded_is_left_out(
    cluster: zkrq.Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.listen("news") as listener:
        await cluster.broadcast("news", b"\xff", codec=zkrq.RAW)
        await cluster.broadcast("news", "next")
        assert await heard(listener, 1) == ["next"]
    assert "was left out" in caplog.text


async def test_what_is_wrong_is_not_sent(cluster: zkrq.Cluster) -> None:
    with pytest.raises(zkrq.ConfigError):
        await cluster.broadcast("", "x")
    with pytest.raises(zkrq.ConfigError):
        cluster.listen("a b\0")
    with pytest.raises(zkrq.CodecError, match="nothing was sent"):
        await cluster.broadcast("news", object())
    with pytest.raises(zkrq.PayloadTooLarge):
        await cluster.broadcast("news", "x" * MESSAGE_BYTES)


async def test_closing_the_cluster_ends_the_loop(connect: Connect) -> None:
    async with connect() as other:
        listener = await other.listen("news").__aenter__()
        await other.broadcast("news", "last")
        assert await anext(listener) == "last"
    assert [message async for message in listener] == []
    with pytest.raises(zkrq.Closed):
        other.listen("news")
