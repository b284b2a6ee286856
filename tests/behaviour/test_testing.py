"""``zkrq.testing`` itself: the clock that a test moves, clients of the same servers, servers that die."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import zkrq
import zkrq.testing.clock
from zkrq.base import clock as wall
from zkrq.testing import Clock, TestCluster, cluster, servers
from zkrq.testing.redis import lua

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]

MINUTE, HOUR = 60, 3600


async def taken(queue: zkrq.Queue[Any]) -> zkrq.Claim[Any]:
    """A claim that is there already."""
    claim = await queue.pop_one(timeout=0)
    assert claim is not None
    return claim


# -- the clock ---------------------------------------------------------------------------------------------------------


async def test_time_passes_for_servers_timers_and_the_wall_alike() -> None:
    loop, real = asyncio.get_running_loop(), time.monotonic()
    async with cluster() as jobs_cluster:
        queue = jobs_cluster.queue("jobs")
        receipt = await queue.push("later", delay=HOUR)
        began, shown = loop.time(), jobs_cluster.clock.now()
        sleeping = asyncio.create_task(asyncio.sleep(HOUR, "slept"))
        await jobs_cluster.clock.advance(timedelta(minutes=59))
        assert not sleeping.done()
        assert await queue.size() == (0, 1, 0, 0)
        await jobs_cluster.clock.advance(MINUTE)
        assert await sleeping == "slept"
        claim = await taken(queue)
        assert claim.id == receipt.id
        for passed in (loop.time() - began, (jobs_cluster.clock.now() - shown).total_seconds()):
            assert HOUR <= passed < HOUR + MINUTE
        assert timedelta(0) < claim.deadline - jobs_cluster.clock.now() <= timedelta(seconds=30)
        assert jobs_cluster.clock.now() - claim.pushed_at >= timedelta(hours=1)
        assert zkrq.new_id() > receipt.id
    assert time.monotonic() - real < MINUTE


async def test_it_runs_by_itself_too() -> None:
    """So a time-out ends although nobody moves the clock."""
    async with cluster() as idle:
        assert await idle.queue("jobs").pop_one(timeout=0.5) is None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await idle.queue("jobs").pop_one()


async def test_a_live_handlers_claim_is_extended_by_itself() -> None:
    async with servers() as own, own.connect() as here, own.connect() as there:
        queue = here.queue("jobs", claim_timeout=30)
        await queue.push("long")

        async def handle(item: str) -> None:
            await asyncio.sleep(10 * MINUTE)

        working = asyncio.create_task(queue.work(handle))
        for _ in range(9):
            await own.clock.advance(MINUTE)
            assert await there.queue("jobs").pop_one(timeout=0) is None
            assert await queue.size() == (0, 0, 1, 0)
        await own.clock.advance(MINUTE)
        assert await queue.size() == (0, 0, 0, 0)
        working.cancel()
        await asyncio.wait([working])


@pytest.mark.parametrize("lease", [0.5, 30, 300])
async def test_what_a_stuck_holder_had_comes_back_when_its_time_is_over(lease: float) -> None:
    """Also where that is longer than the silence that a server takes for a jump of its clock: it is not silent."""
    async with servers() as own, own.connect() as here, own.connect() as there:
        await here.queue("jobs", claim_timeout=lease).push("forgotten")
        claim = await taken(here.queue("jobs", claim_timeout=lease))
        queue = there.queue("jobs")
        await own.clock.advance(lease / 2)
        assert await queue.pop_one(timeout=0) is None
        id = claim.id
        del claim  # as a handler would that hangs without its claim: nobody extends it
        await own.clock.advance(lease)
        again = await taken(queue)
        assert (again.id, again.attempts) == (id, 2)


async def test_retries_and_schedules_come_at_their_moments() -> None:
    start = datetime(2030, 3, 1, 6, 59, 30, tzinfo=UTC)
    async with cluster(start=start) as daily:
        assert timedelta(0) <= daily.clock.now() - start < timedelta(seconds=10)
        queue = daily.queue("reports", retry=zkrq.Retry(max_attempts=3, backoff=zkrq.constant(MINUTE)))
        calls: list[tuple[str, datetime]] = []

        async def handle(item: str) -> None:
            calls.append((item, daily.clock.now()))
            raise ZeroDivisionError

        daily.every(HOUR, queue, datetime.isoformat, name="report")
        working = asyncio.create_task(queue.work(handle))
        await daily.clock.advance(HOUR + 5 * MINUTE)
        working.cancel()
        await asyncio.wait([working])
        seven, eight = (datetime(2030, 3, 1, hour, tzinfo=UTC) for hour in (7, 8))
        assert [item for item, _ in calls] == [moment.isoformat() for moment in (seven, eight) for _ in range(3)]
        for number, (_, called) in enumerate(calls):
            due = (seven, eight)[number // 3] + timedelta(seconds=MINUTE * (number % 3))
            assert timedelta(0) <= called - due < timedelta(seconds=1)
        assert (await queue.size()).dead == 2


async def test_at_goes_by_the_clock() -> None:
    async with cluster() as moved:
        await moved.clock.advance(HOUR)
        queue = moved.queue("jobs")
        await queue.push("x", at=moved.clock.now() + timedelta(minutes=10))
        assert await queue.size() == (0, 1, 0, 0)
        await moved.clock.advance(10 * MINUTE)
        assert await queue.size() == (1, 0, 0, 0)


async def test_all_that_is_due_has_run_when_advance_returns() -> None:
    async with cluster() as busy:
        first, second, seen = busy.queue("first"), busy.queue("second"), list[int]()

        async def pass_on(item: int) -> None:
            await second.push(item, delay=5)

        async def note(item: int) -> None:
            seen.append(item)

        async with zkrq.Worker(concurrency=3).add(first, pass_on).add(second, note):
            await first.push_many(range(50))
            await busy.clock.advance(0)
            assert await second.size() == (0, 50, 0, 0)
            await busy.clock.advance(6)
            assert sorted(seen) == list(range(50))


async def test_it_stands_still_while_it_is_moved() -> None:
    """So a chain of waits takes exactly as long as they sum up to."""
    async with cluster() as still:

        async def chain() -> datetime:
            began = still.clock.now()
            for seconds in (20, 15, 24.9, 0.1):
                await asyncio.sleep(seconds)
            assert still.clock.now() - began == timedelta(minutes=1)
            return began

        chained = asyncio.create_task(chain())
        await still.clock.advance(MINUTE)
        assert chained.done()
        assert still.clock.now() >= await chained + timedelta(minutes=1)


async def test_handlers_in_threads_are_waited_for() -> None:
    gate = threading.Event()
    async with cluster() as threaded:
        queue, seen = threaded.queue("jobs"), list[str]()

        def handle(item: str) -> None:
            if item == "slow":
                gate.wait(MINUTE)
            else:
                time.sleep(0.05)
            seen.append(item)

        await queue.push_many(["quick", "later"])
        async with zkrq.Worker().add(queue, handle):
            await threaded.clock.advance(1)
            assert sorted(seen) == ["later", "quick"]
            await queue.push("slow")
            began = time.monotonic()
            await threaded.clock.advance(HOUR)
            assert time.monotonic() - began < MINUTE / 2, "it was waited for once, and no more"
            assert await queue.size() == (0, 0, 1, 0)
            gate.set()


async def test_two_who_advance_it_take_turns() -> None:
    async with cluster() as shared:
        began = shared.clock.now()

        async def handle() -> None:
            await asyncio.sleep(10)
            await shared.clock.advance(5)

        handling = asyncio.create_task(handle())
        await shared.clock.advance(MINUTE)
        await handling
        assert 65 <= (shared.clock.now() - began).total_seconds() < 75


async def test_a_loop_that_never_rests_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zkrq.testing.clock, "REST_TIMEOUT", 0.1)

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    async with cluster() as spun:
        spinning = asyncio.create_task(spin())
        with pytest.raises(TimeoutError, match="busy"):
            await spun.clock.advance(1)
        spinning.cancel()


async def test_bad_arguments_are_refused() -> None:
    async with servers(2) as own, own.connect() as first:
        for seconds in (-1, float("nan")):
            with pytest.raises(zkrq.ConfigError, match="seconds"):
                await own.clock.advance(seconds)
        with pytest.raises(zkrq.ConfigError, match="start"):
            async with cluster(start=datetime.now(UTC)):
                pass
        with pytest.raises(zkrq.ConfigError, match="min_replicas"):
            own.connect(min_replicas=3)
        for call in (own.kill, own.start):
            with pytest.raises(zkrq.ConfigError, match="redis-1, redis-2"):
                call("redis-3")
        with pytest.raises(zkrq.Unavailable):
            await first.add_server("redis://elsewhere")
    for opened in (cluster(0), cluster(start=datetime.now())):  # noqa: DTZ005
        with pytest.raises(zkrq.ConfigError):
            async with opened:
                pass


async def test_afterwards_time_is_as_before_and_a_loop_never_goes_back() -> None:
    loop = asyncio.get_running_loop()
    async with cluster() as outer:
        clock = outer.clock
        before = loop.time()
        async with cluster() as inner:
            assert inner.clock is clock
            await inner.clock.advance(HOUR)
        assert loop.time() >= before + HOUR
        assert clock.now() - datetime.now(UTC) > timedelta(minutes=59), "the outer one is still there"
    assert abs(wall.now() - datetime.now(UTC)) < timedelta(minutes=1)
    assert loop.time() >= before + HOUR


def test_a_clock_that_was_not_moved_leaves_nothing_behind() -> None:
    async def main() -> bool:
        async with cluster() as unmoved:
            await unmoved.queue("jobs").push(1)
        return "time" in vars(asyncio.get_running_loop())

    assert not asyncio.run(main())


def test_a_loop_whose_clock_cannot_be_moved() -> None:
    """As uvloop's."""

    class Foreign(asyncio.AbstractEventLoop):
        pass

    with pytest.raises(zkrq.ConfigError, match="the event loop of tests cannot be moved"):
        Clock(Foreign())


# -- servers and clients -----------------------------------------------------------------------------------------------


async def test_servers_die_and_come_back() -> None:
    events: list[zkrq.Event] = []
    async with cluster(on_event=events.append) as failing:
        queue, own = failing.queue("jobs"), failing.servers
        await queue.push_many(range(20))
        primary = failing.view.primary("jobs")
        own.kill(primary)
        assert (await queue.push(20)).replicas == 2
        assert [type(event) for event in events if not isinstance(event, zkrq.ViewChanged)] == [zkrq.ServerEvicted]
        own.start(primary, wipe=True)
        await failing.clock.advance(30)
        assert sorted(failing.view.members) == list(own.names)
        assert (await queue.push(21)).replicas == 3
        for name in own.names[:2]:
            own.kill(name)
        with pytest.raises((zkrq.NotEnoughReplicas, zkrq.OutcomeUnknown)):
            await _meanwhile(failing, queue.push(22))
        assert (await taken(queue)).item == 0
        for name in own.names:
            own.start(name)
        await failing.clock.advance(30)
        assert (await queue.push(23)).replicas == 3
        assert sum(await queue.size()) in (23, 24)


async def test_all_servers_are_restarted() -> None:
    async with cluster() as failing:
        queue = failing.queue("jobs")
        await queue.push_many(range(10))
        for act in (failing.servers.kill, failing.servers.start):
            for name in failing.servers.names:
                act(name)
        await failing.clock.advance(30)
        assert [claim.item for claim in await queue.pop_many(100, timeout=0)] == list(range(10))


async def test_an_older_disk_brings_nothing_back_that_was_deleted() -> None:
    async with servers() as own, own.connect() as failing:
        queue = failing.queue("jobs")
        id = zkrq.new_id()
        await queue.push("x", id=id)
        await queue.push("y", id="mine")
        oldest = own._servers["redis-1"].redis  # pyright: ignore[reportPrivateUsage]
        disk = oldest.dump()
        claim = await taken(queue)
        await claim.release()
        assert await queue.delete() == 2
        for name in own.names:
            own.kill(name)
        await failing.clock.advance(3)
        oldest.restore(disk)
        for name in own.names:
            own.start(name)
        await failing.clock.advance(MINUTE)
        assert sum(await queue.size()) == 0
        assert (await queue.push("x", id=id)).done
        assert (await queue.push("again", id="mine")).new
        again = await taken(queue)
        assert again.item == "again"
        assert again.token > claim.token


async def _meanwhile(moved: TestCluster, work: Any) -> Any:
    """The result of ``work``, while time passes."""
    task = asyncio.ensure_future(work)
    await moved.clock.advance(MINUTE)
    assert task.done()
    return await task


async def test_a_lost_session_gives_the_items_to_others_and_stops_the_handler() -> None:
    async with servers() as own, own.connect(description="ann") as ann, own.connect(description="bob") as bob:
        queue = ann.queue("jobs", claim_timeout=HOUR)
        await queue.push("x")
        claim = await taken(queue)
        with pytest.raises(zkrq.ClaimLost):
            async with claim:
                ann.lose_session()
                await asyncio.sleep(HOUR)
        await own.clock.advance(1)
        assert (await taken(bob.queue("jobs"))).id == claim.id


async def test_one_client_wakes_another() -> None:
    async with servers() as own, own.connect() as producing, own.connect() as consuming:
        waiting = asyncio.create_task(consuming.queue("jobs").pop_one())
        await own.clock.advance(0)
        assert not waiting.done()
        await producing.queue("jobs").push("x")
        await own.clock.advance(0)
        assert waiting.done()


# -- what it needs -----------------------------------------------------------------------------------------------------


async def test_without_lupa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lupa.lua51", None)
    monkeypatch.setattr(lua, "interpreter", lua.interpreter.__wrapped__)
    with pytest.raises(zkrq.ConfigError, match=r"zkrq\[testing\]"):
        async with cluster():
            pass


def test_nobody_who_does_not_test_imports_it() -> None:
    code = """
import sys, zkrq
assert not {"zkrq.testing", "lupa"} & sys.modules.keys()
assert zkrq.testing.cluster and "zkrq.testing" in sys.modules
try:
    zkrq.nothing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"module 'zkrq' has no attribute 'nothing'\n", b"")
