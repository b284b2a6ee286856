"""The worker: handlers of all kinds, their failures, several queues by weight, and how it ends."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any

import anyio
import anyio.from_thread
import pytest

import zkrq
import zkrq.working.worker
from tests.behaviour.helpers import FEW_ATTEMPTS, Outcomes, are_sizes, is_empty, stop, working
from tests.harness import HANG, in_process, new_namespace, settled, stolen, take, until
from zkrq import local
from zkrq.base.checks import Duration
from zkrq.client.cluster import Cluster
from zkrq.coordination.memory import Hub
from zkrq.working.outcomes import Counts, Ending, WorkerStatistics
from zkrq.working.worker import Worker, work

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(servers: local.Servers) -> AsyncGenerator[Cluster, None]:
    async with in_process(servers, new_namespace()) as opened:
        yield opened


class Tapped:
    """A queue for a worker that calls ``then`` whenever it has handed out claims, before their handlers begin."""

    def __init__(self, queue: zkrq.Queue[Any], then: Callable[[], object]) -> None:
        self.name = queue.name
        self._queue = queue
        self._then = then
        self.waiting = asyncio.Event()
        """Somebody waits until there are items."""

    async def pop_many(self, n: int, *, timeout: Duration | None = None) -> list[zkrq.Claim[Any]]:
        if timeout is None:
            self.waiting.set()
        claims = await self._queue.pop_many(n, timeout=timeout)
        if claims:
            asyncio.get_running_loop().call_soon(self._then)
        return claims


# -- handlers ----------------------------------------------------------------------------------------------------------


class Callables:
    """The kinds of handlers that people write; each notes the item and whether it runs in a thread."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, bool]] = []
        self.thread = threading.get_ident()

    def note(self, item: Any) -> None:
        self.seen.append((item, threading.get_ident() != self.thread))

    async def note_on_the_loop(self, item: Any) -> None:
        self.note(item)

    async def note_with_claim(self, item: Any, claim: zkrq.Claim[Any]) -> None:
        assert claim.item == item
        self.note(item)

    def note_with_claim_in_a_thread(self, item: Any, claim: zkrq.Claim[Any]) -> None:
        assert claim.attempts == 1
        self.note(item)

    async def note_with_option(self, item: Any, option: int = 3, *, other: int = 4) -> None:
        assert option == 3
        self.note(item)

    async def note_options(self, *args: Any) -> None:
        self.note(*args)

    async def __call__(self, item: Any) -> None:
        self.note(item)


async def test_handlers_of_all_kinds(cluster: Cluster) -> None:
    kinds = Callables()

    def returns_a_coroutine(item: Any) -> object:
        return kinds.note_on_the_loop(item)

    expected: list[tuple[Callable[..., object], bool]] = [
        (kinds.note, True),
        (kinds.note_on_the_loop, False),
        (kinds.note_with_claim, False),
        (kinds.note_with_claim_in_a_thread, True),
        (kinds.note_with_option, False),
        (kinds.note_options, False),
        (partial(kinds.note_with_option, option=3), False),
        (kinds, False),
        (returns_a_coroutine, False),
    ]
    for number, (handler, in_thread) in enumerate(expected):
        queue = cluster.queue(f"jobs{number}")
        await queue.push(number)
        async with working(queue, handler):
            await settled(lambda queue=queue: is_empty(queue))
        assert kinds.seen[-1] == (number, in_thread)
    assert len(kinds.seen) == len(expected)


async def test_bad_handlers_and_options_are_refused(cluster: Cluster) -> None:
    queue = cluster.queue("jobs")

    def generator(item: Any) -> Any:
        yield item

    async def nothing() -> None: ...

    async def three(item: Any, claim: Any, more: Any) -> None: ...

    bad: list[Any] = [generator, nothing, three, None]
    for handler in bad:
        with pytest.raises(zkrq.ConfigError, match="handler"):
            Worker().add(queue, handler)
    worker = Worker().add(queue, print)
    with pytest.raises(zkrq.ConfigError, match="already"):
        worker.add(queue, print)
    for weight in (0, -1, float("nan")):
        with pytest.raises(zkrq.ConfigError, match="weight"):
            Worker().add(queue, print, weight=weight)
    with pytest.raises(zkrq.ConfigError, match="time_limit"):
        Worker().add(queue, print, time_limit=0)
    with pytest.raises(zkrq.ConfigError, match="concurrency"):
        Worker(concurrency=0)
    with pytest.raises(zkrq.ConfigError, match="no queue"):
        await Worker().run()
    async with worker:
        await asyncio.sleep(0)
        with pytest.raises(zkrq.ConfigError, match="already running"):
            await worker.run()
        with pytest.raises(zkrq.ConfigError, match="is running"):
            worker.add(cluster.queue("other"), print)


# -- failures ----------------------------------------------------------------------------------------------------------


async def test_a_thread_beyond_its_time_keeps_its_slot_but_not_its_item(cluster: Cluster) -> None:
    queue, outcomes, gate = cluster.queue("jobs", retry=FEW_ATTEMPTS), Outcomes(), threading.Event()
    begun: list[str] = []

    def handle(item: str) -> None:
        begun.append(item)
        if item == "slow":
            gate.wait(HANG)

    await queue.push("slow")
    async with working(queue, handle, time_limit=0.2, after=outcomes, concurrency=2):
        try:
            await until(lambda: len(outcomes.list) == 2)
            assert outcomes.endings == [Ending.RETRIED, Ending.BURIED], "nobody waited for the threads"
            await queue.push("next")
            await asyncio.sleep(0.2)
            assert begun == ["slow", "slow"], "there is no third thread"
        finally:
            gate.set()
        await until(lambda: begun == ["slow", "slow", "next"])
        await settled(lambda: are_sizes(queue, 0, 0))


async def test_a_thread_that_asks_is_told_to_stop(cluster: Cluster) -> None:
    queue, outcomes, stopped = cluster.queue("jobs"), Outcomes(), threading.Event()
    await queue.push("slow")

    def handle(item: str) -> None:
        try:
            while not stopped.wait(0.01):
                anyio.from_thread.check_cancelled()
        except asyncio.CancelledError:
            stopped.set()
            raise

    async with working(queue, handle, time_limit=0.1, after=outcomes):
        await until(stopped.is_set)
        await until(lambda: bool(outcomes.list))
    assert outcomes.endings == [Ending.RETRIED]


async def test_a_lost_claim_stops_the_handler_and_the_loop_goes_on(cluster: Cluster) -> None:
    queue, outcomes, stopped = cluster.queue("jobs", claim_timeout=0.5), Outcomes(), list[str]()
    await queue.push_many(["stolen", "other"])

    async def handle(item: str, claim: zkrq.Claim[str]) -> None:
        if item == "other" or claim.attempts > 1:
            return
        try:
            # Behind its back, as by an operator: the claim's request is shown by somebody else.
            await stolen(claim).nack(delay=0)
            await asyncio.sleep(HANG)
        except asyncio.CancelledError:
            stopped.append(item)
            raise

    worker = Worker(concurrency=1, after=outcomes).add(queue, handle)
    async with worker:
        await settled(lambda: is_empty(queue))
    assert stopped == ["stolen"]
    assert Counter(outcomes.endings) == {Ending.LOST: 1, Ending.ACKED: 2}
    assert isinstance(next(o.error for _, o in outcomes.list if o.error), zkrq.ClaimLost)
    assert worker.statistics() == WorkerStatistics(0, 2, 0, 1, 0, {"jobs": Counts(0, 2, 0, 1, 0)})


async def test_an_ack_is_repeated_while_the_claim_holds(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, ack, troubles, calls = cluster.queue("jobs"), zkrq.Claim[Any].ack, list[Exception](), list[str]()
    troubles += [zkrq.Unavailable(), zkrq.OutcomeUnknown()]

    async def flaky(claim: zkrq.Claim[Any]) -> None:
        if troubles:
            raise troubles.pop()
        await ack(claim)

    monkeypatch.setattr(zkrq.Claim, "ack", flaky)
    await queue.push("x")

    async def handle(item: str) -> None:
        calls.append(item)

    async with working(queue, handle):
        await settled(lambda: is_empty(queue))
    assert calls == ["x"]
    assert not troubles


# -- hooks -------------------------------------------------------------------------------------------------------------


# -- several queues ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 3, 8])
async def test_under_load_queues_are_served_by_weight(cluster: Cluster, concurrency: int) -> None:
    """Counted once both are served, and in parts: while one of them waits for a server, the other has all slots."""
    heavy, light = cluster.queue("heavy"), cluster.queue("light")
    await heavy.push_many(["heavy"] * 400)
    await light.push_many(["light"] * 1000)
    seen: list[str] = []

    async def handle(item: str) -> None:
        await asyncio.sleep(0.002)
        seen.append(item)

    def since_both() -> list[str]:
        return seen[seen.index("heavy") :] if "heavy" in seen else []

    async with Worker(concurrency=concurrency).add(light, handle).add(heavy, handle, weight=3):
        await until(lambda: len(since_both()) >= 300)
    parts = [since_both()[at : at + 30].count("heavy") for at in range(0, 300, 30)]
    assert 20 < median(parts) < 25, parts


async def test_an_idle_queue_leaves_its_slots_to_the_others_and_gets_them_back(cluster: Cluster) -> None:
    one, two = cluster.queue("one"), cluster.queue("two")
    running: Counter[str] = Counter()
    gates = {"one": asyncio.Semaphore(0), "two": asyncio.Semaphore(0)}

    async def handle(item: str) -> None:
        running[item] += 1
        await gates[item].acquire()
        running[item] -= 1

    worker = Worker(concurrency=6, grace=0).add(one, handle).add(two, handle)
    async with worker:
        await one.push_many(["one"] * 50)
        await until(lambda: running["one"] == 6)
        await two.push_many(["two"] * 50)
        for _ in range(3):  # slots become free only as items are done
            gates["one"].release()
        await until(lambda: running == {"one": 3, "two": 3})
        for _ in range(5):  # from here on each keeps its part
            gates["two"].release()
        await until(lambda: worker.statistics().by_queue["two"].done == 5)
        await until(lambda: running == {"one": 3, "two": 3})


async def test_a_busy_worker_keeps_no_item_of_an_idle_queue_waiting(servers: local.Servers) -> None:
    namespace, hub = new_namespace(), Hub()
    async with in_process(servers, namespace, hub) as busy, in_process(servers, namespace, hub) as other:
        started, claimed = asyncio.Event(), asyncio.Event()
        one, two = (busy.queue(name, claim_timeout=1000) for name in ("one", "two"))

        async def handle(item: str) -> None:
            started.set()
            await asyncio.sleep(HANG)

        tapped = Tapped(two, claimed.set)
        async with Worker(concurrency=1, grace=0).add(one, handle).add(tapped, handle), asyncio.timeout(HANG):
            await tapped.waiting.wait()
            await one.push("long")
            await started.wait()
            await two.push("x")
            await claimed.wait()
            claim = await take(other.queue("two"))
            assert (claim.item, claim.attempts) == ("x", 1), "that it was claimed in vain does not count"
            await claim.ack()


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_thread", [False, True])
async def test_after_the_grace_the_rest_goes_back_at_once(servers: local.Servers, in_thread: bool) -> None:
    namespace, hub, outcomes = new_namespace(), Hub(), Outcomes()
    begun: list[int] = []
    gate = threading.Event()

    async def handle(item: int) -> None:
        begun.append(item)
        await asyncio.sleep(HANG)

    def handle_in_thread(item: int) -> None:
        begun.append(item)
        gate.wait(HANG)

    async with in_process(servers, namespace, hub) as first, in_process(servers, namespace, hub) as second:
        # Far longer than the test: nothing comes back by a deadline.
        queue = first.queue("jobs", claim_timeout=1000)
        await queue.push_many(range(6))
        handler = handle_in_thread if in_thread else handle
        task = asyncio.create_task(work(queue, handler, concurrency=4, grace=0.1, after=outcomes))
        try:
            await until(lambda: len(begun) == 4)
            await stop(task)
            claims = [await take(second.queue("jobs")) for _ in range(6)]
        finally:
            gate.set()
        assert sorted(claim.item for claim in claims) == list(range(6))
        assert {claim.failures for claim in claims} == {0}
        assert outcomes.endings == [Ending.RELEASED] * 4


async def test_a_second_cancellation_ends_the_grace(cluster: Cluster) -> None:
    queue, begun = cluster.queue("jobs", claim_timeout=1000), asyncio.Event()
    await queue.push("x")

    async def handle(item: str) -> None:
        begun.set()
        await asyncio.sleep(1000)

    task = asyncio.create_task(work(queue, handle, grace=1000))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    await stop(task)
    assert (await take(queue)).failures == 0


async def test_a_cancelled_scope_of_anyio_leaves_the_grace(cluster: Cluster) -> None:
    queue, begun, done = cluster.queue("jobs"), asyncio.Event(), list[str]()
    await queue.push("x")

    async def handle(item: str) -> None:
        begun.set()
        await asyncio.sleep(0.1)
        done.append(item)

    async with anyio.create_task_group() as group:
        group.start_soon(partial(work, queue, handle, grace=HANG))
        await begun.wait()
        group.cancel_scope.cancel()
    assert done == ["x"]
    assert await is_empty(queue)


async def test_a_handler_that_will_not_end_is_left_behind_and_its_item_goes_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zkrq.working.worker, "STOP_SECONDS", 0.2)
    queue, begun, gate = cluster.queue("jobs", claim_timeout=1000), asyncio.Event(), asyncio.Event()
    await queue.push("x")

    async def handle(item: str) -> None:
        begun.set()
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()

    task = asyncio.create_task(work(queue, handle, grace=0))
    await begun.wait()
    await stop(task)
    assert (await take(queue)).failures == 0
    assert "abandoned" in caplog.text
    left = [task for task in asyncio.all_tasks() if task.get_name().startswith("zkrq worker")]
    gate.set()
    await asyncio.wait(left)


async def test_an_item_whose_task_is_cancelled_before_it_begins_goes_back(cluster: Cluster) -> None:
    """As when the event loop is shut down: the handler's task never runs."""
    queue, begun = cluster.queue("jobs", claim_timeout=1000), list[int]()
    id = (await queue.push("x")).id

    def cancel_once() -> None:
        tasks = [task for task in asyncio.all_tasks() if id in task.get_name()]
        for task in tasks if not begun else []:
            task.cancel()
        begun.append(len(tasks))

    async def handle(item: str) -> None:
        begun.append(0)

    async with working(Tapped(queue, cancel_once), handle):
        await settled(lambda: is_empty(queue))
    assert begun == [1, 1, 0], "cancelled, claimed again, handled"


async def test_whenever_it_is_cancelled_nothing_is_left_lying_about(cluster: Cluster) -> None:
    """From before the claim to the middle of the handler."""
    queue = cluster.queue("jobs", claim_timeout=1000)
    other = cluster.queue("other", claim_timeout=1000)
    begun: list[int] = []

    async def handle(item: int) -> None:
        begun.append(item)
        await asyncio.sleep(HANG)

    for turns in range(0, 400, 8):
        await queue.push(turns)

        worker = Worker(concurrency=1, grace=0).add(queue, handle).add(other, handle)
        task = asyncio.create_task(worker.run())
        for _ in range(turns):
            await asyncio.sleep(0)
        await stop(task)
        await settled(lambda: are_sizes(queue, 1, 0))
        async with await take(queue) as claim:
            assert claim.failures == 0
    assert begun, "some were cancelled after the handler had begun, the others before"


async def test_it_ends_when_the_cluster_is_closed(cluster: Cluster) -> None:
    queue, begun, outcomes = cluster.queue("jobs"), asyncio.Event(), Outcomes()
    await queue.push("x")

    async def handle(item: str) -> None:
        begun.set()
        await asyncio.sleep(HANG)

    task = asyncio.create_task(work(queue, handle, after=outcomes))
    await begun.wait()
    await cluster.aclose()
    await task
    assert outcomes.endings == [Ending.LOST]


async def test_statistics_are_a_frozen_picture(cluster: Cluster) -> None:
    queue, gate, begun = cluster.queue("jobs", retry=FEW_ATTEMPTS), asyncio.Event(), asyncio.Event()
    await queue.push_many(["good", "bad", "wait"])

    async def handle(item: str) -> None:
        if item == "bad":
            raise ZeroDivisionError
        if item == "wait":
            begun.set()
            await gate.wait()

    worker = Worker(concurrency=3).add(queue, handle)
    async with worker:
        await begun.wait()
        # A delivery is counted a moment before its slot is free.
        await until(lambda: dataclasses.astuple(worker.statistics())[:5] == (1, 1, 2, 0, 0))
        before = worker.statistics()
        assert before.by_queue["jobs"] == Counts(running=1, done=1, failed=2)
        assert "1 of 3 running" in repr(worker)
        gate.set()
    assert before.running == 1
    assert worker.statistics().done == 2


# -- a burst -----------------------------------------------------------------------------------------------------------


async def test_a_burst_takes_what_is_ready_and_what_its_handlers_push(cluster: Cluster) -> None:
    numbers, letters = cluster.queue("numbers"), cluster.queue("letters")
    seen: list[Any] = []

    async def count(item: int) -> None:
        seen.append(item)
        await letters.push("x" * item)

    async def shorten(item: str) -> None:
        seen.append(item)
        if item:
            await letters.push(item[1:])

    await numbers.push_many([1, 2, 3])
    await numbers.push(4, delay=600)
    worker = Worker(concurrency=2).add(numbers, count).add(letters, shorten)
    async with asyncio.timeout(HANG):
        await worker.run(burst=True)
    assert Counter(seen) == Counter([1, 2, 3, "x", "xx", "xxx", "x", "xx", "x", "", "", ""])
    assert worker.statistics().done == len(seen)
    assert (await numbers.size())[:3] == (0, 1, 0)
    async with asyncio.timeout(HANG):
        await worker.run(burst=True)  # nothing is ready
    assert worker.statistics().done == len(seen)


async def test_a_burst_says_that_a_queue_could_not_be_asked(cluster: Cluster) -> None:
    """It must not take silence for emptiness."""
    empty = cluster.queue("empty")

    class Silent:
        name = "silent"

        async def pop_many(self, n: int, *, timeout: Duration | None = None) -> list[zkrq.Claim[Any]]:
            raise zkrq.Unavailable("no server answers")

    async def never(item: Any) -> None:
        pytest.fail("there is no item")

    with pytest.raises(zkrq.Unavailable, match="no server answers"):
        await Worker().add(empty, never).add(Silent(), never).run(burst=True)


async def test_what_was_cut_off_is_counted(cluster: Cluster) -> None:
    queue = cluster.queue("jobs")
    await queue.push_many([1, 2])
    hanging = asyncio.Event()

    async def endless(item: int) -> None:
        if item == 2:
            hanging.set()
            await asyncio.sleep(HANG)

    worker = Worker(concurrency=1).add(queue, endless)
    running = asyncio.create_task(worker.run(grace=0))
    async with asyncio.timeout(HANG):
        await hanging.wait()
    assert worker.statistics().done == 1
    await stop(running)
    assert (worker.statistics().cut_off, worker.statistics().released) == (1, 1)
    assert (await queue.size())[:3] == (1, 0, 0)
