"""Two deployments of one namespace on the same Redis servers: other database numbers, other chroots of ZooKeeper.

Pub/sub is the only thing of Redis that is the same in every database, so each channel names its deployment.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import zkrq
from tests.harness import HANG, SESSION_TIMEOUT, command, new_namespace, take, until
from zkrq import local
from zkrq.base.settings import Settings
from zkrq.client.cluster import Cluster
from zkrq.client.inner import client_of
from zkrq.coordination.memory import Hub, MemoryCoordinator

pytestmark = pytest.mark.anyio

Deploy = Callable[[str], Cluster]


def urls(servers: local.Servers, deployment: str) -> Mapping[str, str]:
    database = {"production": 0, "staging": 1}[deployment]
    return {name: f"{url}/{database}" for name, url in servers.redis_urls.items()}


@pytest.fixture
def deploy(servers: local.Servers) -> Deploy:
    """Makes a client of a deployment."""
    namespace = new_namespace()

    def deploy(deployment: str) -> Cluster:
        zookeeper = f"{servers.zookeeper_hosts}/{deployment}"
        options: dict[str, Any] = {"namespace": namespace, "found": True, "session_timeout": SESSION_TIMEOUT}
        return zkrq.connect(urls(servers, deployment), zookeeper, **options)

    return deploy


@pytest.fixture
def deploy_alike(servers: local.Servers) -> Deploy:
    """The same with a coordinator of its own for each, and sessions that have the same ids in both."""
    namespace = new_namespace()

    def deploy(deployment: str) -> Cluster:
        hub, settings = Hub(random=random.Random(1)), Settings(namespace=namespace, found=True)
        return Cluster(urls(servers, deployment), MemoryCoordinator(hub), settings)

    return deploy


async def test_a_broadcast_stays_in_its_deployment(deploy: Deploy) -> None:
    async with (
        deploy("production") as production,
        deploy("staging") as staging,
        production.listen("prices") as here,
        staging.listen("prices") as there,
    ):
        assert await staging.broadcast("prices", "of staging") == 1
        assert await production.broadcast("prices", "of production") == 1
        async with asyncio.timeout(HANG):
            assert await anext(there) == "of staging"
            assert await anext(here) == "of production", "and nothing before it"


async def waiting_claim(cluster: Cluster, id: str) -> zkrq.Claim[object]:
    """The claim of a consumer that has waited for its item, and so listens on its own channel."""
    queue, shard = cluster.queue("jobs"), client_of(cluster).shard
    waiting, identity = asyncio.create_task(take(queue)), client_of(cluster).identity
    await until(lambda: shard.wakeups.hears(shard.view.primary("jobs"), identity.owner or "none yet"))
    await queue.push("x", id=id)
    return await waiting


async def test_a_cancellation_stops_no_handler_of_another_deployment(deploy_alike: Deploy) -> None:
    """Not even one whose consumer, claim and item are called the same."""
    async with deploy_alike("production") as production, deploy_alike("staging") as staging:
        here, there = await waiting_claim(production, "the-same"), await waiting_claim(staging, "the-same")
        assert (here.id, here.owner) == (there.id, there.owner)
        async with here:
            assert await staging.queue("jobs").cancel("the-same")
            with pytest.raises(zkrq.ClaimLost):
                async with asyncio.timeout(HANG), there:
                    await asyncio.sleep(HANG)
            assert await production.queue("jobs").get("the-same")
        assert await production.queue("jobs").get("the-same") is None


async def test_every_channel_names_its_deployment(servers: local.Servers, deploy_alike: Deploy) -> None:
    async with (
        deploy_alike("production") as production,
        deploy_alike("staging") as staging,
        production.listen("news"),
        staging.listen("news"),
    ):
        waiting = [asyncio.create_task(take(each.queue("jobs"))) for each in (production, staging)]
        begin = f"{{{production.namespace}}}"
        deployments = [each.view.deployment[:8] for each in (production, staging)]
        expected = {f"{begin}:{kind}:{deployment}" for kind in ("topic", "wake") for deployment in deployments}
        seen = set[str]()
        async with asyncio.timeout(HANG):
            while seen != expected:
                for server in servers.redis:
                    reply = (await command(server, "PUBSUB", "CHANNELS", f"{begin}:*")).decode()
                    seen |= set(re.findall(r"^(\{.*?\}:.*?:.{8})", reply, re.MULTILINE))
                    assert seen <= expected
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_a_wake_up_channel_is_one_of_the_deployment(servers: local.Servers) -> None:
    settings = Settings(namespace=new_namespace(), found=True)
    async with Cluster(servers.redis_urls, MemoryCoordinator(Hub()), settings) as cluster:
        wakeups = client_of(cluster).shard.wakeups
        claim = await waiting_claim(cluster, "one")
        assert wakeups.channel == f"{{{cluster.namespace}}}:wake:{cluster.view.deployment[:8]}:{claim.owner}"
        await cancelled(cluster, claim)


async def cancelled(cluster: Cluster, claim: zkrq.Claim[object]) -> None:
    """Cancel an item, of which its holder is notified."""
    with pytest.raises(zkrq.ClaimLost):
        async with asyncio.timeout(HANG), claim:
            assert await cluster.queue("jobs").cancel(claim.id)
            await asyncio.sleep(HANG)
