"""Windows of keys on real servers, while the primaries that decide about them are killed."""

from __future__ import annotations

import asyncio

import pytest

import zkrq
from tests.harness import new_namespace, over_zookeeper, take, until
from zkrq import local

pytestmark = pytest.mark.anyio

KEYS = 20


async def test_one_in_a_window_while_primaries_are_killed(servers: local.Servers) -> None:
    """Of each key one push is accepted, whichever server leads, and whatever becomes of the item."""
    new = dict.fromkeys(range(KEYS), 0)

    async def push(queue: zkrq.Queue[int], number: int) -> None:
        id = zkrq.new_id()
        while True:
            try:
                receipt = await queue.push(number, id=id, key=f"k{number}", key_window=300)
            except (zkrq.OutcomeUnknown, zkrq.Unavailable):
                await asyncio.sleep(0.05)
            else:
                new[number] += not receipt.duplicate
                return

    namespace = new_namespace()
    async with over_zookeeper(servers, namespace) as one, over_zookeeper(servers, namespace) as two:
        queues = [cluster.queue("digests") for cluster in (one, two)]
        leading = one.view.primary("digests")
        async with asyncio.TaskGroup() as group:
            for number in range(KEYS):
                for queue in queues:
                    group.create_task(push(queue, number))
            await asyncio.sleep(0.01)
            await next(server for server in servers.redis if server.name == leading).kill()
        await until(lambda: one.view.primary("digests") != leading)
        assert sorted([(await take(queues[0])).item for _ in range(KEYS)]) == list(range(KEYS))
        await asyncio.gather(*(push(queue, number) for queue in queues for number in range(KEYS)))
        assert set(new.values()) == {1}
