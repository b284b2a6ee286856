"""taskiq over zkrq on real servers: its broker, as taskiq-redis tests its own, and labels, retries, schedules."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from taskiq import (
    AckableMessage,
    BrokerMessage,
    Context,
    SimpleRetryMiddleware,
    SmartRetryMiddleware,
    TaskiqDepends,
    TaskiqMessage,
    TaskiqMiddleware,
    TaskiqResult,
    TaskiqScheduler,
)
from taskiq.acks import AcknowledgeType
from taskiq.exceptions import SendTaskError
from taskiq.middlewares import TaskiqAdminMiddleware
from taskiq.scheduler.scheduled_task import CronSpec

import zkrq
from tests import odd
from tests.frameworks.receiving import working
from tests.harness import HANG, settled, until
from zkrq.operations.kinds import Text
from zkrq.operations.operation import Parameter
from zkrq.operations.push import PUSH
from zkrq.taskiq import AHEAD_SECONDS, LABELS, TASK_ID, TASK_NAME, ZkrqBroker, ZkrqRetryMiddleware, ZkrqScheduleSource

pytestmark = pytest.mark.anyio


@pytest.fixture
async def broker(connect: Callable[[], zkrq.Cluster]) -> AsyncGenerator[ZkrqBroker]:
    broker = ZkrqBroker(connect)
    await broker.startup()
    yield broker
    await broker.shutdown()


def message(text: bytes = b"my_msg", **labels: Any) -> BrokerMessage:
    return BrokerMessage(task_id=zkrq.new_id(), task_name="task", message=text, labels=labels)


async def heard(broker: ZkrqBroker) -> AckableMessage:
    """The first message that ``listen`` yields."""
    async with asyncio.timeout(HANG):
        async for each in broker.listen():
            return each
    raise AssertionError("the broker listens no more")


def is_done(broker: ZkrqBroker, name: str = "taskiq") -> Callable[[], Any]:
    async def ask() -> bool:
        return not any(await broker.queue(name).size())

    return ask


# -- the broker, after taskiq-redis' own tests -------------------------------------------------------------------------


async def test_one_of_two_listeners_gets_the_message(broker: ZkrqBroker) -> None:
    listeners = {asyncio.create_task(heard(broker)) for _ in range(2)}
    sent = message()
    await broker.kick(sent)
    done, waiting = await asyncio.wait(listeners, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    received = done.pop().result()
    assert isinstance(received, AckableMessage)
    assert received.data == sent.message
    await received.ack()  # type: ignore[misc]
    for listener in waiting:
        listener.cancel()
    await asyncio.wait(waiting)
    await settled(is_done(broker))


async def test_a_message_that_is_not_acked_comes_back(connect: Callable[[], zkrq.Cluster]) -> None:
    first, second = ZkrqBroker(connect), ZkrqBroker(connect)
    for each in (first, second):
        await each.startup()
    await first.kick(message(b"again"))
    held = await heard(first)
    await first.shutdown()  # as a worker that stops in the middle
    received = await heard(second)
    assert received.data == held.data == b"again"
    await received.ack()  # type: ignore[misc]
    await held.ack()  # type: ignore[misc]
    await second.shutdown()


async def acked(broker: ZkrqBroker, count: int) -> set[bytes]:
    """The next messages that are not alike, each acknowledged."""
    seen: set[bytes] = set()
    async with asyncio.timeout(HANG):
        async for received in broker.listen():
            seen.add(received.data)
            await received.ack()  # type: ignore[misc]
            if len(seen) == count:
                break
    return seen


async def test_fifty_at_the_same_time(broker: ZkrqBroker) -> None:
    await asyncio.gather(*(broker.kick(message(b"%d" % number)) for number in range(50)))
    assert await acked(broker, 50) == {b"%d" % number for number in range(50)}


async def test_several_queues(connect: Callable[[], zkrq.Cluster]) -> None:
    broker = ZkrqBroker(connect, queue_name="first", additional_queues=["second"])
    await broker.startup()
    await broker.kick(message(b"1"))
    await broker.kick(message(b"2", queue_name="second"))
    await broker.kick(message(b"3", queue_name="elsewhere"))
    assert await acked(broker, 2) == {b"1", b"2"}
    assert (await broker.queue("elsewhere").size()).ready == 1
    await broker.shutdown()


async def test_it_is_started_again_and_says_when_it_is_not(connect: Callable[[], zkrq.Cluster]) -> None:
    broker = ZkrqBroker(connect)

    @broker.task
    async def task() -> None: ...

    for _ in range(2):
        with pytest.raises(SendTaskError) as raised:
            await task.kiq()
        assert isinstance(raised.value.__cause__, zkrq.Closed)
        assert "await broker.startup()" in str(raised.value.__cause__)
        await broker.startup()
        await task.kiq()
        await broker.shutdown()
    await broker.shutdown()


@pytest.mark.parametrize(
    "options",
    [{"queue_name": "*"}, {"additional_queues": ["a b"]}, {"claim_timeout": -1}, {"prefetch": -1}, {"retry": 3}],
)
def test_bad_arguments_are_errors(options: dict[str, Any]) -> None:
    with pytest.raises(zkrq.ConfigError):
        ZkrqBroker(**options)


def test_a_cluster_instead_of_what_makes_one_is_an_error() -> None:
    with pytest.raises(zkrq.ConfigError, match="partial"):
        ZkrqBroker(zkrq.connect(redis=["redis://x"], zookeeper="x"))  # type: ignore[arg-type]


# -- labels ------------------------------------------------------------------------------------------------------------


async def test_labels_are_options_of_the_push(broker: ZkrqBroker) -> None:
    @broker.task(priority=7)
    async def task() -> None: ...

    kicker = task.kicker().with_labels(delay=3600.0, ttl=7200, key="k", headers={"traceparent": "00-ab"})  # type: ignore[arg-type]
    sent = await kicker.with_task_id("the-id").kiq()
    (item,) = [item async for item in broker.queue().scan()]
    assert sent.task_id == "the-id" != item.id
    assert (item.state, item.priority, item.key) == ("scheduled", 7, "k")
    assert item.expires_in is not None
    assert item.headers == {"traceparent": "00-ab", TASK_ID: "the-id", TASK_NAME: task.task_name}
    again = await task.kicker().with_labels(key="k").kiq()
    assert again.task_id != "the-id"
    assert sum(await broker.queue().size()) == 1, "the key is taken"
    await task.kicker().with_labels(key="k", replace=True).with_task_id("another").kiq()
    (item,) = [item async for item in broker.queue().scan()]
    assert item.headers[TASK_ID] == "another", "it took the place of the first"


async def test_every_option_of_a_push_is_a_label(broker: ZkrqBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LABELS.without.keys() == {"id", "task"}
    colour = Parameter("colour", Text(10), "Of the item.")
    added = replace(PUSH, parameters=(*PUSH.parameters, colour))
    monkeypatch.setattr("zkrq.taskiq.LABELS", replace(LABELS, operation=added))
    with pytest.raises(TypeError, match="push\\(\\) has no option 'colour'"):
        await broker.kick(message(colour="red"))


async def test_an_item_has_the_name_of_its_task(broker: ZkrqBroker) -> None:
    named = message(task="a label")
    await broker.kick(named)
    assert [item.task async for item in broker.queue().scan()] == [named.task_name]


async def test_a_retry_does_not_replace_a_newer_task(broker: ZkrqBroker) -> None:
    await broker.kick(message(b"newer", key="k", replace="True"))
    await broker.kick(message(b"retried", key="k", replace="True", _retries="1"))
    assert [item.item async for item in broker.queue().scan()] == [b"newer"]
    await broker.kick(message(b"newest", key="k", replace="True"))
    assert [item.item async for item in broker.queue().scan()] == [b"newest"]


@pytest.mark.parametrize(
    "labels", [{"delay": "soon"}, {"priority": 10}, {"headers": "{1"}, {"queue_name": "*"}, {"replace": "True"}]
)
async def test_bad_labels_are_errors(broker: ZkrqBroker, labels: dict[str, Any]) -> None:
    with pytest.raises(zkrq.ConfigError):
        await broker.kick(message(**labels))
    assert sum(await broker.queue().size()) == 0


# -- running tasks -----------------------------------------------------------------------------------------------------


async def test_tasks_run_with_middlewares_and_results(broker: ZkrqBroker) -> None:
    steps: list[str] = []

    class Witness(TaskiqMiddleware):
        def pre_send(self, message: TaskiqMessage) -> TaskiqMessage:
            steps.append("send")
            message.labels["traceparent"] = "00-ab"  # as instrumentation does
            return message

        def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
            steps.append(f"execute {message.task_id} {message.labels['traceparent']}")
            return message

        def post_execute(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
            steps.append(f"result {result.return_value}")

    broker.add_middlewares(Witness())

    @broker.task
    async def add(a: int, b: int) -> int:
        return a + b

    sent = await add.kiq(1, b=2)
    async with working(broker):
        await settled(is_done(broker))
    assert steps == ["send", f"execute {sent.task_id} 00-ab", "result 3"]


RETRIES: dict[str, Callable[[ZkrqBroker], TaskiqMiddleware]] = {
    "simple": lambda _: SimpleRetryMiddleware(),
    "smart": lambda _: SmartRetryMiddleware(default_delay=0.01),
    "with jitter": lambda _: SmartRetryMiddleware(default_delay=0.01, use_jitter=True, use_delay_exponent=True),
    "by a schedule source": lambda broker: SmartRetryMiddleware(
        default_delay=0.01, schedule_source=ZkrqScheduleSource(broker)
    ),
}


@pytest.mark.parametrize("middleware", RETRIES)
@pytest.mark.parametrize("labels", [{}, {"key": "one at a time"}])
async def test_a_retry_keeps_its_id_and_is_not_swallowed(
    broker: ZkrqBroker, middleware: str, labels: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.05)  # seconds of jitter, instead of up to one
    broker.add_middlewares(RETRIES[middleware](broker))
    tries: list[str] = []

    @broker.task(retry_on_error=True, **labels)
    async def fails(context: Context = TaskiqDepends()) -> None:  # noqa: B008
        tries.append(context.message.task_id)
        if len(tries) < 3:
            raise OSError

    sent = await fails.kiq()
    async with working(broker):
        await until(lambda: len(tries) == 3)
        await settled(is_done(broker))
    assert tries == [sent.task_id] * 3


async def test_the_admin_is_told_what_became_of_tasks(broker: ZkrqBroker) -> None:
    told: list[tuple[str, str]] = []

    async def take(request: web.Request) -> web.Response:
        told.append((request.match_info["task"], request.match_info["what"]))
        return web.json_response({})

    admin = web.Application()
    admin.router.add_post("/api/tasks/{task}/{what}", take)
    async with TestServer(admin) as server:
        broker.add_middlewares(TaskiqAdminMiddleware(str(server.make_url("/")), "token", taskiq_broker_name="zkrq"))

        @broker.task
        async def add(a: int, b: int) -> int:
            return a + b

        sent = await add.kiq(1, 2)
        async with working(broker):
            await until(lambda: len(told) == 3)
        await broker.shutdown()  # closes the middleware's connection
    assert sorted(told) == [(sent.task_id, what) for what in ("executed", "queued", "started")]


async def test_groups_keep_their_order_though_tasks_fail(connect: Callable[[], zkrq.Cluster]) -> None:
    policy = zkrq.Retry(max_attempts=3, backoff=zkrq.constant(0.05))
    broker = ZkrqBroker(connect, retry=policy)
    broker.add_middlewares(ZkrqRetryMiddleware())
    await broker.startup()
    await broker.queue().set_groups(zkrq.Groups(ordered=True))
    ran: dict[int, list[int]] = {0: [], 1: []}

    @broker.task
    async def change(order: int, number: int) -> None:
        ran[order].append(number)
        if (order, number) == (0, 1) and ran[0].count(1) < 3:
            raise OSError("not yet")
        if (order, number) == (1, 0):
            raise OSError("never")

    for number in range(4):
        for order in ran:
            await change.kicker().with_labels(group=f"order {order}").kiq(order, number)
    with pytest.raises(SendTaskError) as refused:
        await change.kicker().with_labels(group="order 0", delay=1).kiq(0, 9)
    assert isinstance(refused.value.__cause__, zkrq.ConfigError)
    async with working(broker):
        await until(lambda: [len(each) for each in ran.values()] == [6, 6])
    assert ran == {0: [0, 1, 1, 1, 2, 3], 1: [0, 0, 0, 1, 2, 3]}, "a failed task holds its group, until it is dead"
    (letter,) = await broker.queue().dead_letters()
    assert letter.reason == "failed in delivery 3 of 3: OSError: never"
    await broker.shutdown()


async def test_a_key_with_a_window(broker: ZkrqBroker) -> None:
    runs: list[str] = []
    broker.add_middlewares(SimpleRetryMiddleware())

    @broker.task(key="k", key_window=60, retry_on_error=True)
    async def fails_once(context: Context = TaskiqDepends()) -> None:  # noqa: B008
        runs.append(context.message.task_id)
        if len(runs) == 1:
            raise OSError

    sent = await fails_once.kiq()
    async with working(broker, ack_type=AcknowledgeType.WHEN_RECEIVED):
        await until(lambda: len(runs) == 2)
        await settled(is_done(broker))
        await fails_once.kiq()
        await settled(is_done(broker))
    assert runs == [sent.task_id] * 2, "its retry ran, and no other of its key"


async def test_a_task_acknowledges_itself(broker: ZkrqBroker) -> None:
    sizes: list[tuple[int, ...]] = []

    @broker.task(ack_type=AcknowledgeType.MANUAL.value)
    async def careful(context: Context = TaskiqDepends()) -> None:  # noqa: B008
        sizes.append(await broker.queue().size())
        await context.ack()
        sizes.append(await broker.queue().size())

    await careful.kiq()
    async with working(broker):
        await until(lambda: len(sizes) == 2)
    assert sizes == [(0, 0, 1, 0), (0, 0, 0, 0)]


async def test_a_task_that_its_worker_does_not_know_is_kept(connect: Callable[[], zkrq.Cluster]) -> None:
    broker = ZkrqBroker(connect, retry=zkrq.Retry(max_attempts=2, backoff=zkrq.constant(0)))
    broker.is_worker_process = True
    await broker.startup()

    @broker.task
    async def known() -> None: ...

    await known.kiq()
    await broker.kick(message())

    async def is_settled() -> bool:
        return await broker.queue().size() == (0, 0, 0, 1)

    async with working(broker):
        await settled(is_settled)
    (letter,) = await broker.queue().dead_letters()
    assert (letter.attempts, letter.headers[TASK_NAME]) == (2, "task")
    await broker.shutdown()


async def test_a_lost_claim_is_reported(connect: Callable[[], zkrq.Cluster], caplog: pytest.LogCaptureFixture) -> None:
    broker = ZkrqBroker(connect)
    await broker.startup()
    await broker.kick(message())
    received = await heard(broker)
    (item,) = [item async for item in broker.queue().scan()]
    await broker.queue().cancel(item.id)
    await until(lambda: "may run elsewhere" in caplog.text)
    (record,) = [each for each in caplog.records if each.name == "zkrq.taskiq"]
    assert (record.levelno, record.queue) == (logging.WARNING, "taskiq")  # type: ignore[attr-defined]
    await received.ack()  # type: ignore[misc]
    await broker.shutdown()


# -- schedules ---------------------------------------------------------------------------------------------------------


async def test_two_schedulers_fire_a_moment_once(connect: Callable[[], zkrq.Cluster]) -> None:
    present = datetime.now(UTC)
    schedules = [
        {"interval": 3600, "args": [1]},
        {"time": present, "args": [2]},
        {"time": present.replace(year=2000), "args": [3]},  # long past
    ]
    seen: list[int] = []
    pairs: list[tuple[TaskiqScheduler, ZkrqScheduleSource]] = []
    brokers = [ZkrqBroker(connect) for _ in range(2)]  # as in two processes
    for broker in brokers:

        @broker.task(task_name="report", schedule=[dict(each) for each in schedules])
        async def report(what: int) -> None:
            seen.append(what)

        source = ZkrqScheduleSource(broker)
        await source.startup()
        await broker.startup()
        pairs.append((TaskiqScheduler(broker, [source]), source))

    async def fire() -> None:
        for scheduler, source in pairs:
            for schedule in known[source]:
                await scheduler.on_ready(source, schedule)

    broker = brokers[0]
    known = {source: await source.get_schedules() for _, source in pairs}
    for fired in known.values():
        for schedule in fired:
            if schedule.args == [1]:
                assert schedule.time
                assert schedule.time.minute == schedule.time.second == 0
        (first, *later) = (
            schedule for schedule in fired if schedule.args == [1]
        )  # shortly after an hour there are two
        first.time = present
        fired[:] = [schedule for schedule in fired if schedule not in later]
    await fire()
    assert sum(await broker.queue().size()) == 2
    async with working(broker):
        await settled(is_done(broker))
        await fire()
    assert sorted(seen) == [1, 2]
    assert not any(await broker.queue().size())
    for scheduler, _ in pairs:
        await scheduler.shutdown()


async def test_a_task_for_a_given_time_needs_no_scheduler(broker: ZkrqBroker) -> None:
    source = ZkrqScheduleSource(broker)

    @broker.task
    async def report(what: int) -> None: ...

    at = datetime.now(UTC) + timedelta(hours=1)
    created = await report.kicker().with_task_id("t").schedule_by_time(source, at, 1)
    (item,) = [item async for item in broker.queue().scan()]
    assert (item.state, item.headers[TASK_ID]) == ("scheduled", "t")
    await created.unschedule()
    assert await is_done(broker)()
    await report.kicker().schedule_by_time(source, datetime.now(UTC), 1)
    async with working(broker):
        await settled(is_done(broker))


async def test_recurring_schedules_are_added_at_run_time(connect: Callable[[], zkrq.Cluster]) -> None:
    brokers = [ZkrqBroker(connect) for _ in range(2)]  # as in two processes
    sources = [ZkrqScheduleSource(broker) for broker in brokers]
    for broker in brokers:
        await broker.startup()

    @brokers[0].task(task_name="report")
    async def report(what: int) -> None: ...

    async def known() -> list[tuple[str, str | None, Any]]:
        found = await sources[1].get_schedules()
        return [(each.task_name, each.cron, each.cron_offset) for each in found if each.args == [1]]

    kicker = report.kicker()
    daily = await kicker.schedule_by_cron(sources[0], CronSpec(hours=7, minutes=0, offset="Europe/Berlin"), 1)
    assert await known() == [("report", "0 7 * * *", "Europe/Berlin")]
    operator = brokers[1].cluster.schedules()
    await operator.pause("taskiq", daily.schedule_id)
    assert await known() == []
    await operator.change(brokers[1].queue(), daily.schedule_id, when="0 8 * * *")
    await operator.resume("taskiq", daily.schedule_id)
    assert await known() == [("report", "0 8 * * *", None)]
    await operator.change(brokers[1].queue(), daily.schedule_id, item=b"something else")
    assert await known() == []
    await daily.unschedule()
    assert await known() == []

    often = await kicker.schedule_by_interval(sources[0], 60, 2)
    moments = await sources[1].get_schedules()
    (entry,) = await operator.list()
    assert entry.since
    assert moments
    assert all(each.time and each.time > entry.since for each in moments)
    assert [each.schedule_id for each in await sources[0].get_schedules()] == [each.schedule_id for each in moments]
    other = ZkrqBroker(connect, queue_name="others")
    await other.startup()
    assert await ZkrqScheduleSource(other).get_schedules() == [], "they are of one broker"
    await other.shutdown()
    for broker, source in zip(brokers, sources, strict=True):  # both schedulers fire the first moment
        await TaskiqScheduler(broker, [source]).on_ready(source, moments[0])
    assert sum(await brokers[0].queue().size()) == 1
    await often.unschedule()
    assert not await operator.list()
    with pytest.raises(zkrq.ConfigError, match="Europe/Berlin"):
        await kicker.schedule_by_cron(sources[0], CronSpec(offset=timedelta(hours=2)), 1)
    for broker in brokers:
        await broker.shutdown()


async def test_schedules_are_kept_while_they_cannot_be_read(broker: ZkrqBroker) -> None:
    @broker.task(task_name="report")
    async def report() -> None: ...

    source = ZkrqScheduleSource(broker)
    await report.kicker().schedule_by_cron(source, "0 7 * * *")
    before = await source.get_schedules()
    await broker.shutdown()
    assert await source.get_schedules() == before
    assert before


async def test_moments_of_an_interval_are_the_same_everywhere(broker: ZkrqBroker) -> None:
    @broker.task(schedule=[{"interval": 60}])
    async def often() -> None: ...

    @broker.task(schedule=[{"interval": timedelta(days=1)}])
    async def daily() -> None: ...

    source = ZkrqScheduleSource(broker)
    await source.startup()
    times: dict[str, list[datetime]] = {}
    for schedule in await source.get_schedules():
        assert schedule.time
        assert schedule.schedule_id.endswith(schedule.time.isoformat())
        times.setdefault(schedule.task_name, []).append(schedule.time)
    (of_often, of_daily) = times.values()
    assert len(of_often) >= AHEAD_SECONDS // 60
    assert all(later - former == timedelta(minutes=1) for former, later in pairwise(of_often))
    assert {(time.second, time.microsecond) for time in of_often} == {(0, 0)}
    assert {(time.hour, time.minute, time.second) for time in of_daily} == {(0, 0, 0)}
    assert of_daily[-1] > datetime.now(UTC) - timedelta(seconds=1)


@pytest.mark.parametrize("kind", ["on the loop", "in a thread"])
async def test_a_task_may_raise_anything(broker: ZkrqBroker, unheard: None, kind: str) -> None:
    """Each is done once, as taskiq has it with any error, and so are the others."""
    chance, calls = random.Random(47), Counter[int]()
    errors = [make("text") for make in odd.CLASSES]
    errors += [odd.some(chance, [*odd.CLASSES, *odd.WISHES, *odd.LATER]) for _ in range(30)]
    if kind == "in a thread":  # asyncio hands on neither of these from a thread: taskiq waits, or drops the message
        errors = [error for error in errors if not isinstance(error, StopIteration | GeneratorExit)]
    total = len(errors) + 20

    def run(number: int) -> None:
        calls[number] += 1
        if number < len(errors):
            raise errors[number]

    async def run_on_the_loop(number: int) -> None:
        run(number)

    task = broker.register_task(run if kind == "in a thread" else run_on_the_loop, task_name="run")
    for number in range(total):
        await task.kiq(number)
    async with working(broker):
        await settled(is_done(broker))
    assert calls == dict.fromkeys(range(total), 1)
