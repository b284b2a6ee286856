"""A NAT or a load balancer forgets an idle connection: neither end learns of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import zkrq
from tests.faults.stage import Actor, Stage
from tests.harness import HANG, until
from tests.proxy import Nat, Proxy
from zkrq.consuming.wakeups import Wakeups
from zkrq.protocol.view import ServerId
from zkrq.replication import server

pytestmark = pytest.mark.anyio

SILENT_AFTER = 0.3
"""Seconds without a message until a subscription asks."""


@asynccontextmanager
async def behind(stage: Stage, nat: Nat) -> AsyncGenerator[Actor]:
    """A client whose connections lead through a NAT."""
    async with AsyncExitStack() as stack:
        urls: dict[str, str] = {}
        for each in stage.servers.redis:
            proxy = await stack.enter_async_context(Proxy(each.host, each.port))
            proxy.on_request = nat.see
            urls[each.name] = f"redis://{proxy.address}"
        yield await stack.enter_async_context(stage.visit(urls=urls, command_timeout=1.0))


def silences(client: Actor) -> list[str]:
    return sorted(event.server for event in client.events(zkrq.SubscriptionSilent))


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What clients hear of queues."""
    heard, hear = list[bytes](), Wakeups._heard  # pyright: ignore[reportPrivateUsage]

    def noted(wakeups: Wakeups, message: bytes) -> None:
        heard.append(message)
        hear(wakeups, message)

    monkeypatch.setattr(Wakeups, "_heard", noted)
    return heard


async def test_a_consumer_is_woken_again(
    hub_stage: Stage, messages: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It notices that its subscription is silent, and subscribes again."""
    monkeypatch.setattr(server, "PING_SECONDS", SILENT_AFTER)
    nat, other = Nat(), await hub_stage.enter()
    async with behind(hub_stage, nat) as client:
        waiting = asyncio.create_task(client.claim())
        await until(lambda: bool(nat.subscriptions))
        primary = client.view.primary("jobs")
        await until(lambda: is_listening(client, primary))
        forgotten = len(nat.forget())
        await until(lambda: len(silences(client)) == forgotten)
        await until(lambda: bool(nat.subscriptions) and is_listening(client, primary))
        assert str(primary) in silences(client)
        messages.clear()
        await other.push("ready")
        await until(lambda: bool(messages))
        await (await waiting).ack()
        assert len(client.view.members) == 3, "its silence says nothing about the server's calls"
        assert client.cluster.health().ok


def is_listening(client: Actor, primary: ServerId) -> bool:
    wakeups = client.cluster._client.shard.wakeups  # pyright: ignore[reportPrivateUsage]
    return wakeups._subscriptions.is_listening(primary)  # pyright: ignore[reportPrivateUsage]


async def test_a_topic_is_heard_again(
    hub_stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each silent subscription is told once."""
    monkeypatch.setattr(server, "PING_SECONDS", SILENT_AFTER)
    nat, other = Nat(), await hub_stage.enter()
    async with behind(hub_stage, nat) as client:
        async with client.cluster.listen("news") as news:
            assert len(nat.forget()) == 3
            await until(lambda: len(silences(client)) == 3)
            await until(lambda: all(map(news._subscriptions.is_listening, client.view.members)))  # pyright: ignore[reportPrivateUsage]
            assert await other.cluster.broadcast("news", "at last")
            async with asyncio.timeout(HANG):
                assert await anext(news) == "at last"
        told = [record for record in caplog.records if "went silent" in record.message]
        assert sorted(getattr(record, "server", "") for record in told) == silences(client)


async def test_an_idle_subscription_stays(hub_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers keeps it, whatever else it does not say."""
    monkeypatch.setattr(server, "PING_SECONDS", 0.01)
    nat = Nat()
    async with behind(hub_stage, nat) as client, client.cluster.listen("news"):
        await until(lambda: nat.asked > 30)
        assert silences(client) == []
        assert len(nat.subscriptions) == 3
