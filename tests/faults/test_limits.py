"""Limits of a queue on real servers, through the death of the primary that counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

import zkrq
from tests.faults.stage import Stage
from tests.harness import until
from zkrq import local

pytestmark = pytest.mark.anyio

AT_ONCE, IN_A_SECOND = 5, 50
ITEMS = 250


async def test_limits_hold_while_the_primary_is_killed(stage: Stage) -> None:
    """At most ``AT_ONCE`` claims are decided and not begun yet by their handlers.  So in a second that many more
    handlers may start than claims are decided."""
    limits = zkrq.Limits(concurrency=AT_ONCE, rate=(IN_A_SECOND, 1.0))
    handled = Handled(seconds=0.02)
    async with four_clients(stage, handled, limits=limits) as queue:
        await queue.push_many(range(ITEMS))
        leading = await kill_primary_after(stage, handled, ITEMS // 4)
        await until(lambda: len(handled.done) == ITEMS)
        assert stage.primary("emails") is not leading
        assert await queue.limits() == limits
    assert handled.most == {None: AT_ONCE}, "no more, and all slots were used"
    handled.expect_rate(IN_A_SECOND + AT_ONCE, 1.0)


async def test_the_limit_of_each_group_holds_while_the_primary_is_killed(stage: Stage) -> None:
    """Each of four groups has two slots, whatever the others do."""
    handled = Handled(seconds=0.02)
    async with four_clients(stage, handled, groups=zkrq.Groups(concurrency=2)) as queue:
        for tenant in range(4):
            await queue.push_many(range(tenant * 100, tenant * 100 + 60), group=f"tenant-{tenant}")
        await kill_primary_after(stage, handled, 60)
        await until(lambda: len(handled.done) == 240)
    assert handled.most == {f"tenant-{tenant}": 2 for tenant in range(4)}, "no more, and all slots were used"


async def test_the_rate_of_each_group_holds_while_the_primary_is_killed(stage: Stage) -> None:
    """At most ``at_once`` claims of a group are decided and not begun yet by their handlers."""
    most, seconds, at_once = 8, 0.25, 2
    handled = Handled(seconds=0.0)
    async with four_clients(stage, handled, groups=zkrq.Groups(at_once, rate=(most, seconds))) as queue:
        for tenant in range(3):
            await queue.push_many(range(tenant * 100, tenant * 100 + 40), group=f"tenant-{tenant}")
        await kill_primary_after(stage, handled, 40)
        await until(lambda: len(handled.done) == 120)
    handled.expect_rate(most + at_once, seconds)


class Handled:
    """What the handlers of all clients did, by group."""

    def __init__(self, *, seconds: float) -> None:
        self.done = set[int]()
        self.most = Counter[str | None]()
        """Handlers that ran at the same time."""
        self._seconds = seconds
        self._running = Counter[str | None]()
        self._starts = dict[str | None, list[float]]()

    async def handle(self, item: int, claim: zkrq.Claim[int]) -> None:
        self._starts.setdefault(claim.group, []).append(asyncio.get_running_loop().time())
        self._running[claim.group] += 1
        self.most[claim.group] = max(self.most[claim.group], self._running[claim.group])
        if self._seconds:
            await asyncio.sleep(self._seconds)
        self._running[claim.group] -= 1
        self.done.add(item)

    def expect_rate(self, starts: int, seconds: float) -> None:
        """Expect at most ``starts`` handlers of a group to start within any ``seconds``."""
        for begun in self._starts.values():
            for first, behind in zip(begun, begun[starts:], strict=False):
                assert behind - first >= seconds


@asynccontextmanager
async def four_clients(
    stage: Stage,
    handled: Handled,
    *,
    limits: zkrq.Limits | None = None,
    groups: zkrq.Groups | None = None,
) -> AsyncGenerator[zkrq.Queue[int]]:
    """Clients with eight slots each work on a queue, which the first of them declares."""
    clients = [await stage.enter() for _ in range(4)]
    queue: zkrq.Queue[int] = clients[0].cluster.queue("emails", limits=limits, groups=groups)
    async with asyncio.TaskGroup() as group:
        working = [each.cluster.queue("emails").work(handled.handle, concurrency=8) for each in clients]
        workers = [group.create_task(each) for each in working]
        yield queue
        for worker in workers:
            worker.cancel()


async def kill_primary_after(stage: Stage, handled: Handled, items: int) -> local.LocalRedis:
    """Kill the primary of the queue once more than this number of items are done."""
    await until(lambda: len(handled.done) > items)
    leading = stage.primary("emails")
    await stage.kill(leading)
    return leading
