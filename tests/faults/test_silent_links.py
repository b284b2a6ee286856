"""A NAT or a load balancer forgets an idle connection: neither end learns of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import zkrq
from tests.harness import HANG, in_process, new_namespace, until
from tests.proxy import Nat, Proxy
from zkrq import local
from zkrq.base.settings import Settings
from zkrq.client.cluster import Cluster
from zkrq.consuming.wakeups import Wakeups
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.replication import server

pytestmark = pytest.mark.anyio

SILENT_AFTER = 0.3
"""Seconds without a message until a subscription asks."""


@asynccontextmanager
async def behind(
    nat: Nat, servers: local.Servers, namespace: str, hub: Hub, events: list[zkrq.Event]
) -> AsyncGenerator[Cluster]:
    async with AsyncExitStack() as stack:
        urls: dict[str, str] = {}
        for each in servers.redis:
            proxy = await stack.enter_async_context(Proxy(each.host, each.port))
            proxy.on_request = nat.see
            urls[each.name] = f"redis://{proxy.address}"
        settings = Settings(namespace=namespace, found=True, command_timeout=1.0, on_event=events.append)
        yield await stack.enter_async_context(Cluster(urls, MemoryCoordinator(hub), settings))


def silences(events: list[zkrq.Event]) -> list[str]:
    return sorted(event.server for event in events if isinstance(event, zkrq.SubscriptionSilent))


async def test_a_consumer_is_woken_again(servers: local.Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PING_SECONDS", SILENT_AFTER)
    messages, hear = list[bytes](), Wakeups._heard  # pyright: ignore[reportPrivateUsage]

    def noted(wakeups: Wakeups, message: bytes) -> None:
        messages.append(message)
        hear(wakeups, message)

    monkeypatch.setattr(Wakeups, "_heard", noted)
    nat, hub, namespace, events = Nat(), Hub(), new_namespace(), list[zkrq.Event]()
    async with in_process(servers, namespace, hub) as other, behind(nat, servers, namespace, hub, events) as cluster:
        jobs = cluster.queue("jobs")
        waiting = asyncio.create_task(jobs.pop_one(timeout=HANG))
        await until(lambda: bool(nat.subscriptions))
        primary = cluster.view.primary("jobs")
        wakeups = cluster._client.shard.wakeups  # pyright: ignore[reportPrivateUsage]
        await until(lambda: wakeups._subscriptions.is_listening(primary))  # pyright: ignore[reportPrivateUsage]
        forgotten = len(nat.forget())
        await until(lambda: len(silences(events)) == forgotten)
        await until(lambda: bool(nat.subscriptions) and wakeups._subscriptions.is_listening(primary))  # pyright: ignore[reportPrivateUsage]
        assert str(primary) in silences(events)
        messages.clear()
        await other.queue("jobs").push("ready")
        await until(lambda: bool(messages))
        claim = await waiting
        assert claim is not None
        await claim.ack()
        assert len(cluster.view.members) == 3, "its silence says nothing about the server's calls"
        assert cluster.health().ok


async def test_a_topic_is_heard_again(
    servers: local.Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "PING_SECONDS", SILENT_AFTER)
    nat, hub, namespace, events = Nat(), Hub(), new_namespace(), list[zkrq.Event]()
    async with in_process(servers, namespace, hub) as other, behind(nat, servers, namespace, hub, events) as cluster:
        async with cluster.listen("news") as news:
            assert len(nat.forget()) == 3
            await until(lambda: len(silences(events)) == 3)
            await until(lambda: all(map(news._subscriptions.is_listening, cluster.view.members)))  # pyright: ignore[reportPrivateUsage]
            assert await other.broadcast("news", "at last")
            async with asyncio.timeout(HANG):
                assert await anext(news) == "at last"
        told = [record for record in caplog.records if "went silent" in record.message]
        assert sorted(getattr(record, "server", "") for record in told) == silences(events)


async def test_an_idle_subscription_stays(servers: local.Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers keeps it, whatever else it does not say."""
    monkeypatch.setattr(server, "PING_SECONDS", 0.01)
    nat, events = Nat(), list[zkrq.Event]()
    async with behind(nat, servers, new_namespace(), Hub(), events) as cluster, cluster.listen("news"):
        await until(lambda: nat.asked > 30)
        assert silences(events) == []
        assert len(nat.subscriptions) == 3
