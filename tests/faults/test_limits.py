"""Limits of a queue on real servers, through the death of the primary that counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

import zkrq
from tests.harness import new_namespace, over_zookeeper, until
from zkrq import local

pytestmark = pytest.mark.anyio

AT_ONCE, IN_A_SECOND = 5, 50
ITEMS = 250


async def test_limits_hold_while_the_primary_is_killed(servers: local.Servers) -> None:
    """Four clients with eight slots each.

    At most ``AT_ONCE`` claims are decided and not begun yet by their handlers.  So in a second that many more handlers
    may start than claims are decided.
    """
    namespace = new_namespace()
    running = most = 0
    done, starts = set[int](), list[float]()

    async def handle(item: int) -> None:
        nonlocal running, most
        starts.append(asyncio.get_running_loop().time())
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        done.add(item)

    async with AsyncExitStack() as stack:
        clusters = [await stack.enter_async_context(over_zookeeper(servers, namespace)) for _ in range(4)]
        limits = zkrq.Limits(concurrency=AT_ONCE, rate=(IN_A_SECOND, 1.0))
        queue = clusters[0].queue("emails", limits=limits)
        await queue.push_many(range(ITEMS))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        workers = [group.create_task(each.queue("emails").work(handle, concurrency=8)) for each in clusters]
        await until(lambda: len(done) > ITEMS // 4)
        leading = clusters[0].view.primary("emails")
        await next(server for server in servers.redis if server.name == leading).kill()
        await until(lambda: len(done) == ITEMS)
        assert clusters[0].view.primary("emails") != leading
        assert await queue.limits() == limits
        for worker in workers:
            worker.cancel()
    assert most == AT_ONCE, "no more, and all slots were used"
    for first, behind in zip(starts, starts[IN_A_SECOND + AT_ONCE :], strict=False):
        assert behind - first >= 1.0


async def test_the_limit_of_each_group_holds_while_the_primary_is_killed(servers: local.Servers) -> None:
    namespace, running, most = new_namespace(), Counter[str | None](), Counter[str | None]()
    done = set[int]()

    async def handle(item: int, claim: zkrq.Claim[int]) -> None:
        running[claim.group] += 1
        most[claim.group] = max(most[claim.group], running[claim.group])
        await asyncio.sleep(0.02)
        running[claim.group] -= 1
        done.add(item)

    async with AsyncExitStack() as stack:
        clusters = [await stack.enter_async_context(over_zookeeper(servers, namespace)) for _ in range(4)]
        queue = clusters[0].queue("emails", groups=zkrq.Groups(concurrency=2))
        for tenant in range(4):
            await queue.push_many(range(tenant * 100, tenant * 100 + 60), group=f"tenant-{tenant}")
        group = await stack.enter_async_context(asyncio.TaskGroup())
        workers = [group.create_task(each.queue("emails").work(handle, concurrency=8)) for each in clusters]
        await until(lambda: len(done) > 60)
        leading = clusters[0].view.primary("emails")
        await next(server for server in servers.redis if server.name == leading).kill()
        await until(lambda: len(done) == 240)
        for worker in workers:
            worker.cancel()
    assert most == {f"tenant-{tenant}": 2 for tenant in range(4)}, "no more, and all slots were used"


async def test_the_rate_of_each_group_holds_while_the_primary_is_killed(servers: local.Servers) -> None:
    """At most ``at_once`` claims of a group are decided and not begun yet by their handlers."""
    namespace, most, seconds, at_once = new_namespace(), 8, 0.25, 2
    starts = dict[str | None, list[float]]()
    done = set[int]()

    async def handle(item: int, claim: zkrq.Claim[int]) -> None:
        starts.setdefault(claim.group, []).append(asyncio.get_running_loop().time())
        done.add(item)

    async with AsyncExitStack() as stack:
        clusters = [await stack.enter_async_context(over_zookeeper(servers, namespace)) for _ in range(4)]
        queue = clusters[0].queue("emails", groups=zkrq.Groups(at_once, rate=(most, seconds)))
        for tenant in range(3):
            await queue.push_many(range(tenant * 100, tenant * 100 + 40), group=f"tenant-{tenant}")
        group = await stack.enter_async_context(asyncio.TaskGroup())
        workers = [group.create_task(each.queue("emails").work(handle, concurrency=8)) for each in clusters]
        await until(lambda: len(done) > 40)
        leading = clusters[0].view.primary("emails")
        await next(server for server in servers.redis if server.name == leading).kill()
        await until(lambda: len(done) == 120)
        for worker in workers:
            worker.cancel()
    for begun in starts.values():
        for first, behind in zip(begun, begun[most + at_once :], strict=False):
            assert behind - first >= seconds
