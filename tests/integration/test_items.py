"""What ``behaviour/test_items.py`` does, with the primary killed in the middle."""

from __future__ import annotations

import asyncio

import pytest

from tests.behaviour.helpers import bury
from tests.harness import new_namespace, over_zookeeper
from zkrq import local

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("operation", ["cancel", "discard", "redrive", "scan"])
async def test_with_the_primary_killed_in_the_middle(servers: local.Servers, operation: str) -> None:
    async with over_zookeeper(servers, new_namespace()) as cluster:
        queue = cluster.queue("jobs")
        ids = await bury(queue, 400)
        primary = next(server for server in servers.redis if server.name == cluster.view.primary("jobs"))
        killing = asyncio.create_task(primary.kill())
        match operation:
            case "cancel":
                assert all(await asyncio.gather(*map(queue.cancel, ids)))
            case "discard":
                assert await queue.discard() == 400
            case "redrive":
                assert await queue.redrive(rate=4000) == 400
            case _:
                assert {item.id async for item in queue.scan()} == set(ids)
        await killing
        left = {"cancel": (0, 0, 0, 0), "discard": (0, 0, 0, 0), "redrive": (400, 0, 0, 0)}
        assert await queue.size() == left.get(operation, (0, 0, 0, 400))
