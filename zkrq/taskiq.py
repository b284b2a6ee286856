"""Run taskiq's tasks over zkrq: a broker, a source of schedules, and a result backend.  Needs the extra ``taskiq``.

::

    broker = ZkrqBroker(partial(zkrq.connect, redis=[...], zookeeper="zk1,zk2,zk3", namespace="shop"))

    @broker.task
    async def send(address: str) -> None: ...

    await send.kiq("ann@example.org")

An item of the queue is a message of taskiq.  The id of the task travels in the item's headers, because taskiq gives a
retry the id of the task that failed, and as the item's id it would make the retry a repeated push.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack
from weakref import WeakKeyDictionary, WeakValueDictionary

from zkrq.base.checks import as_task
from zkrq.base.codecs import RAW
from zkrq.base.errors import ClaimLost, Closed, ConfigError, NoResult, ZkrqError, reason_of
from zkrq.base.limits import Results
from zkrq.base.settings import QUEUE_DEFAULTS, QueueOptions
from zkrq.client.connecting import connect
from zkrq.client.moments import moment_id, next_moments
from zkrq.client.queue import Queue, check_pop
from zkrq.client.stored import StoredResult, StoredResults
from zkrq.client.timetable import StoredSchedule
from zkrq.consuming.claims import Claim
from zkrq.operations.labels import Labels
from zkrq.operations.push import PUSH
from zkrq.operations.queues import QUEUE_PLACE
from zkrq.operations.schedules import ID_CATCH_UP
from zkrq.working.delivery import settle_while_held

if TYPE_CHECKING:
    from zkrq.base.checks import Duration
    from zkrq.client.cluster import Cluster

try:
    from taskiq import (
        AckableMessage,
        AsyncBroker,
        AsyncResultBackend,
        BrokerMessage,
        ScheduledTask,
        TaskiqMessage,
        TaskiqMiddleware,
        TaskiqResult,
    )
    from taskiq.abc.serializer import TaskiqSerializer
    from taskiq.depends.progress_tracker import TaskProgress  # pyright: ignore[reportMissingTypeStubs]
    from taskiq.exceptions import NoResultError, ScheduledTaskCancelledError
    from taskiq.kicker import AsyncKicker
    from taskiq.schedule_sources import LabelScheduleSource
    from taskiq.serializers import JSONSerializer
except ModuleNotFoundError as error:
    raise ConfigError("zkrq.taskiq needs taskiq: pip install 'zkrq[taskiq]'") from error

__all__ = ["ZkrqBroker", "ZkrqResultBackend", "ZkrqRetryMiddleware", "ZkrqScheduleSource"]

T = TypeVar("T")
R = TypeVar("R")

RESULTS = "taskiq-results"
"""Name under which results are kept, as of a queue without items."""

TASK_ID = "taskiq-id"
"""Header with the id of the task."""

TASK_NAME = "taskiq-name"
"""Header with the name of the task."""

MARK = "taskiq"
"""Mark of a stored schedule that taskiq's schedulers push."""

LABELS = Labels(
    PUSH,
    "label",
    {
        "id": "a retry has the labels of the task that failed, and is no repeated push",
        "task": "it is the name of the task",
    },
)
"""Labels that are options of the push."""

_RETRIES = "_retries"
"""Label by which taskiq's middlewares count retries."""

AHEAD_SECONDS = 180
"""Seconds for which a scheduler is given the moments of an interval; it asks once a minute, unless told otherwise."""

_log = logging.getLogger("zkrq.taskiq")


@dataclass(frozen=True, slots=True)
class _Appointment:
    """The push of a schedule: the item's id, and when it is due, None: immediately."""

    schedule: str
    id: str
    at: datetime | None = None


_appointment: ContextVar[_Appointment | None] = ContextVar("appointment", default=None)
"""Handed from a schedule source to ``kick``, through taskiq's code between them."""


class ZkrqBroker(AsyncBroker):
    """A broker of taskiq whose tasks survive the loss of servers, and come back within seconds from killed workers.

    Labels of a task, or of one call by ``with_labels``: ``queue_name``, and the options of ``Queue.push`` except
    ``id``. A retry has the labels of the task that failed, but takes the place of no other task (``replace``), and no
    window of its key keeps it away.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Cluster]] = connect,
        *,
        queue_name: str = "taskiq",
        additional_queues: Iterable[str] = (),
        prefetch: int | None = None,
        **options: Unpack[QueueOptions],
    ) -> None:
        """Connect to nothing yet: ``startup`` calls ``connect`` and opens the cluster, ``shutdown`` closes it.

        ``connect`` returns a new cluster at each call: ``zkrq.connect`` takes everything from the environment,
        ``zkrq.embedded`` is for development.
        ``queue_name``: the queue of tasks without that label.  A worker serves it and ``additional_queues``, which take
        turns. ``prefetch``: see ``Queue.pop``; how many tasks a worker holds is otherwise decided by taskiq's own
        ``--max-async-tasks`` and ``--max-prefetch``.  ``options`` are those of ``Cluster.queue``; ``retry`` counts
        deliveries to workers that died, and a task that kills its worker each time becomes a dead letter.  A task that
        fails is retried by taskiq's middlewares.  Raises ``ConfigError`` for bad arguments.
        """
        super().__init__()
        if isinstance(connect, AbstractAsyncContextManager):
            raise ConfigError("connect must make a cluster at each call: partial(zkrq.connect, ...), not its result")
        check_pop(prefetch, None)
        QUEUE_DEFAULTS.updated({**options})  # finds bad values now
        names = dict.fromkeys((queue_name, *additional_queues))
        self.queue_names: Sequence[str] = tuple(QUEUE_PLACE.kind.check("queue", name) for name in names)
        self._connect = connect
        self._prefetch = prefetch
        self._settings = options
        self._context: AbstractAsyncContextManager[Cluster] | None = None
        self._cluster: Cluster | None = None
        self._held: WeakValueDictionary[str, Claim[bytes]] = WeakValueDictionary()
        self._failed: WeakKeyDictionary[Claim[bytes], str] = WeakKeyDictionary()

    @property
    def cluster(self) -> Cluster:
        """The open cluster.  Raises ``Closed`` unless the broker is started."""
        if self._cluster is None:
            raise Closed("the broker is not started: `await broker.startup()`")
        return self._cluster

    def queue(self, name: str | None = None) -> Queue[bytes]:
        """Return a queue of tasks, None: that of tasks without the label ``queue_name``.

        Raises ``Closed`` unless the broker is started, ``ConfigError`` for a bad name.
        """
        return self.cluster.queue(self.queue_names[0] if name is None else name, codec=RAW, **self._settings)

    async def startup(self) -> None:
        """Open the cluster; does nothing about that if it is open.

        Raises ``Unavailable`` if the servers do not answer, ``ConfigError`` for problems to correct.
        """
        if self._cluster is None:
            context = self._connect()
            self._cluster = await context.__aenter__()
            self._context = context
        await super().startup()

    async def shutdown(self) -> None:
        """Close the cluster: tasks that were received and not acknowledged go back.

        The broker may be started again.
        """
        try:
            await super().shutdown()
        finally:
            context, self._context, self._cluster = self._context, None, None
            if context is not None:
                await context.__aexit__(None, None, None)

    async def kick(self, message: BrokerMessage) -> None:
        """Queue a task; when this returns, every in-sync server has it.

        Raises as ``Queue.push`` does, ``ConfigError`` for a label that cannot be read.
        """
        labels = message.labels
        queue = self.queue(labels.get("queue_name") or None)
        push: dict[str, Any] = LABELS.read(labels)
        if str(labels.get(_RETRIES) or 0) != "0":
            # A retry is no other task of its key: no window keeps it away, and it takes the place of no newer task.
            push = LABELS.but(push, *PUSH.needing("key"))
        appointment = _appointment.get()
        if appointment and appointment.schedule == labels.get("schedule_id"):
            push = {**LABELS.but(push, "delay"), "id": appointment.id, "at": appointment.at}
        push["headers"] = {**push.get("headers", {}), TASK_ID: message.task_id, TASK_NAME: message.task_name}
        push["task"] = as_task(message.task_name)
        receipt = await queue.push(message.message, **push)
        if receipt.duplicate:
            former = self._held.get(receipt.id)
            if former is not None and former.headers.get(TASK_ID) == message.task_id:
                # The retry of a task that fails just now and still has the key.
                await queue.push(message.message, **LABELS.but(push, "key"))
            else:
                _log.info(
                    "task %s was not queued: item %s has its key %r",
                    message.task_id,
                    receipt.id,
                    push["key"],
                    extra=self._extra(queue.name),
                )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield messages until the broker is shut down; whatever the servers do meanwhile, it continues.

        A message that is not acknowledged goes back ``claim_timeout`` seconds after taskiq has dropped it, or when the
        broker is shut down.
        """
        queues = map(self.queue, self.queue_names)
        async with self.cluster.pop(*queues, prefetch=self._prefetch) as claims:
            async for claim in claims:
                self._held[claim.id] = claim
                claim.on_lost(partial(self._report_lost, claim.queue, claim.id, claim.headers.get(TASK_ID)))
                yield AckableMessage(data=claim.item, ack=self._ack_of(claim))

    def _ack_of(self, claim: Claim[bytes]) -> Callable[[], Awaitable[None]]:
        name = claim.headers.get(TASK_NAME)

        async def ack() -> None:
            reason = self._failed.pop(claim, None)
            if name and self.is_worker_process and self.find_task(name) is None:  # so taskiq drops it
                reason = f"this worker does not know the task {name!r}"
            try:
                if reason is not None:
                    await settle_while_held(claim, partial(_nack, reason))
                else:
                    await settle_while_held(claim, Claim[bytes].ack)
            except (ClaimLost, Closed) as error:  # taskiq has no use for it, and the loss was reported
                _log.info("item %s could not be settled: %s", claim.id, error, extra=self._extra(claim.queue))

        return ack

    def retry(self, task_id: str, reason: str) -> bool:
        """Have a task that this worker runs retried in its place, by the policy ``retry``, once taskiq acknowledges it.

        Returns whether it is held here and not acknowledged yet.
        """
        held = [claim for claim in list(self._held.values()) if claim.headers.get(TASK_ID) == task_id]
        failed = [claim for claim in held if claim.settled is None]
        self._failed.update(dict.fromkeys(failed, reason))
        return bool(failed)

    def _report_lost(self, queue: str, id: str, task: str | None, reason: str) -> None:
        _log.warning(
            "task %s (item %s) is no longer this worker's and may run elsewhere, too: %s",
            task,
            id,
            reason,
            extra=self._extra(queue),
        )

    def _extra(self, queue: str) -> dict[str, str]:
        return {"cluster": self._cluster.namespace if self._cluster else "", "queue": queue}


class ZkrqRetryMiddleware(TaskiqMiddleware):
    """Retry tasks that failed, in their places in the queue, by the policy ``retry`` of the ``ZkrqBroker``.

    Other middlewares push a failed task anew.  With this one its item is delivered again after the backoff, and is a
    dead letter after ``max_attempts``, so it holds its group if that keeps the order (``Groups(ordered=True)``).  A
    task that was acknowledged before it ran (``when_received``) is not retried.  No result is kept until a try
    succeeds.
    """

    def on_error(self, message: TaskiqMessage, result: TaskiqResult[Any], exception: BaseException) -> None:
        """Mark the task as failed."""
        broker = self.broker
        if isinstance(broker, ZkrqBroker) and broker.retry(message.task_id, reason_of(exception)):
            result.error = NoResultError()


class ZkrqScheduleSource(LabelScheduleSource):
    """Schedules from the labels of tasks and those that were added at run time, each moment of which is fired once,
    however many schedulers run.

    So run several schedulers, without a lock: each pushes at every moment under the same id.  A schedule of a task
    (``@broker.task(schedule=[{"cron": "0 7 * * *"}])``) is identified by its ``schedule_id``, or else by the task's
    name and what the schedule says, so all schedulers must have the same code.  An ``interval`` fires at its multiples
    since 1970 instead of counting from the start of a scheduler; with one below ``AHEAD_SECONDS`` keep taskiq's
    ``--update-interval`` below that.  A moment that no scheduler fired in time is fired up to four minutes late, and
    the last one only.  ``schedule_by_time`` needs no scheduler: the task is queued immediately, due at its time.
    ``schedule_by_cron`` and ``schedule_by_interval`` are stored in ZooKeeper (``Cluster.schedules``).
    """

    def __init__(self, broker: ZkrqBroker) -> None:
        super().__init__(broker)
        self._broker = broker
        self._queue = broker.queue_names[0]
        self._added: Sequence[StoredSchedule] = ()
        """Schedules that were added at run time, as they were read last."""

    async def startup(self) -> None:
        """Read the labels, and give each schedule an id that is the same in every process."""
        for name, task in self._broker.get_all_tasks().items():
            for schedule in task.labels.get("schedule", []):
                schedule.setdefault("schedule_id", _schedule_id(name, schedule))
        await super().startup()

    async def get_schedules(self) -> list[ScheduledTask]:
        """Return the schedules, those with an interval as their next moments.

        Without ZooKeeper those that were added at run time are what this process read last.
        """
        known, present = await super().get_schedules(), datetime.now(UTC)
        declared = [
            each for schedule in known for each in (_moments(schedule, present) if schedule.interval else [schedule])
        ]
        try:
            self._added = await self._broker.cluster.schedules().list()
        except ZkrqError as error:
            _log.warning("schedules that were added or changed since are not noticed at present: %s", error)
        return declared + [task for entry in self._added if self._owns(entry) for task in _tasks_of(entry, present)]

    def pre_send(self, task: ScheduledTask) -> None:
        """Let the push name the moment.  Raises ``ScheduledTaskCancelledError`` for a time that is long past."""
        present = datetime.now(UTC)
        moment = _aware(task.time) if task.time else present.replace(second=0, microsecond=0)  # cron: once a minute
        if present - moment > timedelta(seconds=ID_CATCH_UP):
            raise ScheduledTaskCancelledError
        _appointment.set(_Appointment(task.schedule_id, moment_id(task.schedule_id, moment)))

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Queue the task of ``schedule_by_time``, due at its time; store a recurring one, or replace that of its id.

        Raises as ``Queue.push`` does, and of a recurring one as ``StoredSchedules.add``.
        """
        if schedule.time is None:
            await self._broker.cluster.schedules().keep(self._entry_of(schedule))
            return
        item = _item_id(schedule.schedule_id)
        before = _appointment.set(_Appointment(schedule.schedule_id, item, _aware(schedule.time)))
        try:
            await (
                AsyncKicker[..., Any](schedule.task_name, self._broker, schedule.labels)
                .with_labels(schedule_id=schedule.schedule_id)
                .with_task_id(schedule.task_id)
                .kiq(*schedule.args, **schedule.kwargs)
            )
        finally:
            _appointment.reset(before)

    def _entry_of(self, schedule: ScheduledTask) -> StoredSchedule:
        """Return what is stored of a recurring schedule.  Raises ``ConfigError``."""
        zone = schedule.cron_offset
        if isinstance(zone, timedelta):
            raise ConfigError("give the name of a time zone as `cron_offset`, such as 'Europe/Berlin'")
        when = schedule.cron if schedule.interval is None else _interval(schedule) / timedelta(seconds=1)
        assert when is not None
        payload = schedule.model_dump_json().encode()
        return StoredSchedule(self._queue, schedule.schedule_id, when, zone=zone, payload=payload, mark=MARK)

    def _owns(self, entry: StoredSchedule) -> bool:
        """Tell whether a stored schedule is of this broker: stored with its first queue, wherever its tasks go."""
        return entry.mark == MARK and entry.queue == self._queue

    async def delete_schedule(self, schedule_id: str) -> None:
        """Remove a schedule that was added: a recurring one, or else the task of ``schedule_by_time`` from the broker's
        queues, unless it is done.  Raises as ``StoredSchedules.remove`` and ``Queue.cancel`` do."""
        schedules = self._broker.cluster.schedules()
        entry = await schedules.get(self._queue, schedule_id)
        if entry and self._owns(entry):
            await schedules.remove(self._queue, schedule_id)
            return
        for name in self._broker.queue_names:
            await self._broker.queue(name).cancel(_item_id(schedule_id))


class ZkrqResultBackend(AsyncResultBackend[R]):
    """Keep the results of tasks on every in-sync server, so that no single one can lose them.

    ``broker.with_result_backend(ZkrqResultBackend(broker))`` uses the broker's connection.
    """

    def __init__(
        self,
        source: ZkrqBroker | Callable[[], AbstractAsyncContextManager[Cluster]] = connect,
        *,
        ttl: Duration = 3600.0,
        keep_results: bool = True,
        serializer: TaskiqSerializer | None = None,
    ) -> None:
        """Connect to nothing yet.

        ``source``: the broker, or what makes a cluster, as for ``ZkrqBroker``.  ``ttl``: seconds for which a result is
        kept, 1 second to 30 days.  ``keep_results``: False: forget a result when it is read.  ``serializer``: how
        results become bytes, at most 1 MiB, None: JSON.  Raises ``ConfigError`` for a bad ``ttl``.
        """
        self._source = source
        self._ttl = Results(ttl=ttl).ttl
        self._keeps = keep_results
        self._serializer = serializer or JSONSerializer()
        self._context: AbstractAsyncContextManager[Cluster] | None = None
        self._cluster: Cluster | None = None

    async def startup(self) -> None:
        """Open a cluster, unless the broker has one.  Raises as ``ZkrqBroker.startup`` does."""
        if not isinstance(self._source, ZkrqBroker) and self._cluster is None:
            context = self._source()
            self._cluster = await context.__aenter__()
            self._context = context

    async def shutdown(self) -> None:
        """Close the cluster, unless it is the broker's.  The backend may be started again."""
        context, self._context, self._cluster = self._context, None, None
        if context is not None:
            await context.__aexit__(None, None, None)

    async def set_result(self, task_id: str, result: TaskiqResult[R]) -> None:
        """Keep a result; when this returns, every in-sync server has it.

        Raises ``PayloadTooLarge``, ``Unavailable``, ``OutcomeUnknown``: it may be kept.
        """
        value = self._serializer.dumpb(result.model_dump(mode="json"))
        await self._stored.store(task_id, value, ttl=self._ttl)

    async def is_result_ready(self, task_id: str) -> bool:
        """Tell whether a task has ended and its result is kept.  Raises ``Unavailable``, ``OutcomeUnknown``."""
        return await self._find(task_id) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[R]:
        """Return the result of a task.  Raises ``NoResult`` if none is kept, ``Unavailable``, ``OutcomeUnknown``."""
        found = await self._find(task_id)
        if found is None:
            raise NoResult(f"task {task_id} has no result: it has not ended, or its result is not kept", id=task_id)
        result = TaskiqResult[R].model_validate(self._serializer.loadb(found.value))
        if not self._keeps:
            try:
                await self._stored.forget([task_id])
            except ZkrqError as error:  # it may be forgotten, so this caller is the last one that can have it
                _log.warning("the result of task %s may be kept until its ttl is over: %s", task_id, error)
        if not with_logs:
            result.log = None
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """Keep the progress of a task, as a result is kept.  Raises as ``set_result`` does."""
        value = self._serializer.dumpb(progress.model_dump(mode="json"))
        await self._stored.store(_progress_id(task_id), value, ttl=self._ttl)

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        """Return the progress of a task, None if it has told none.  Raises ``Unavailable``, ``OutcomeUnknown``."""
        found = await self._find(_progress_id(task_id))
        return TaskProgress[Any].model_validate(self._serializer.loadb(found.value)) if found else None

    async def _find(self, id: str) -> StoredResult | None:
        return (await self._stored.get([id]))[0]

    @property
    def _stored(self) -> StoredResults:
        """The results in the open cluster.  Raises ``Closed`` unless it is started."""
        cluster = self._source.cluster if isinstance(self._source, ZkrqBroker) else self._cluster
        if cluster is None:
            raise Closed("the result backend is not started: `await broker.startup()`")
        return StoredResults(cluster.queue(RESULTS, codec=RAW))


def _progress_id(task_id: str) -> str:
    return f"{task_id}:progress"


async def _nack(reason: str, claim: Claim[bytes]) -> None:
    await claim.nack(reason=reason)


def _schedule_id(task: str, schedule: dict[str, Any]) -> str:
    text = repr((task, sorted(schedule.items(), key=str)))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _item_id(schedule_id: str) -> str:
    return f"schedule:{schedule_id}"


def _tasks_of(entry: StoredSchedule, present: datetime) -> Iterator[ScheduledTask]:
    """Yield what taskiq is to know of a stored schedule: nothing while it is paused, and no moment from before it."""
    if entry.paused:
        return
    try:
        task = ScheduledTask.model_validate_json(entry.payload or b"")
    except ValueError as error:  # an operator has given it another item
        _log.error("%s is not run: its item is no schedule of taskiq: %s", entry.key, error)
        return
    if isinstance(entry.when, str):  # an operator may have changed it
        yield task.model_copy(update={"cron": entry.when, "cron_offset": entry.zone, "interval": None})
        return
    every = task.model_copy(update={"cron": None, "interval": timedelta(seconds=entry.when)})
    for moment in _moments(every, present):
        if entry.since is None or (moment.time and moment.time > entry.since):
            yield moment


def _interval(task: ScheduledTask) -> timedelta:
    assert task.interval is not None
    return timedelta(seconds=task.interval) if isinstance(task.interval, int) else task.interval


def _moments(task: ScheduledTask, present: datetime) -> Iterator[ScheduledTask]:
    """Yield a schedule's last moment, if it is not long past, and those of the next time, at least one."""
    seconds = _interval(task) / timedelta(seconds=1)
    count = int((ID_CATCH_UP + AHEAD_SECONDS) / seconds) + 2
    found = next_moments(seconds, present - timedelta(seconds=ID_CATCH_UP), count)
    first = max(0, sum(moment <= present for moment in found) - 1)
    for moment in found[first:]:
        id = f"{task.schedule_id}@{moment.isoformat()}"
        yield task.model_copy(update={"interval": None, "time": moment, "schedule_id": id})
        if moment > present + timedelta(seconds=AHEAD_SECONDS):
            break


def _aware(moment: datetime) -> datetime:
    """Give a naive moment the time zone that taskiq means: UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
