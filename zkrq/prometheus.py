"""Metrics for Prometheus: what this process does, and what the servers say of its queues.

::

    metrics = zkrq.prometheus.instrument(cluster)   # in prometheus_client's registry
    prometheus_client.start_http_server(9464)       # or the application's own `/metrics`

Needs the extra ``prometheus``.  ``docs/observability.md`` lists the metrics.  Names and units follow Prometheus'
conventions; labels have few values: the namespace (``cluster``), the queue, the shard, the server, and words of this
module.  What is counted in this process costs a call per batch, or two per delivery.  The depth of the queues is asked
for at each scrape.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.base.events import ClaimsLost, DeadLettersDropped, Event, LoopBlocked, MomentsLost, ServerEvicted, event_types
from zkrq.base.flows import FlowState
from zkrq.base.loop import running_loop
from zkrq.base.retry import NoHandler
from zkrq.base.version import __version__
from zkrq.client.inner import client_of, opened_of, remembered_queues
from zkrq.client.throughput import Passed, Throughput
from zkrq.consuming.claims import Claim, lease_of
from zkrq.consuming.observing import Observer
from zkrq.coordination.coordinator import SessionState
from zkrq.operations.flows import LASTING
from zkrq.pool import counts
from zkrq.protocol.records import attempts_of
from zkrq.protocol.shards import ShardState

if TYPE_CHECKING:
    from zkrq import sync
    from zkrq.client import cluster as asynchronous
    from zkrq.client.health import Health
    from zkrq.client.inspection import Statistics
    from zkrq.client.shards import ShardStatus
    from zkrq.consuming.lease import Verb
    from zkrq.pool.counts import PoolStatistics

try:
    from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise ConfigError("zkrq.prometheus needs prometheus_client: pip install 'zkrq[prometheus]'") from error

LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets for calls to the servers, in seconds."""

DURATIONS = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds of the buckets for handlers, in seconds."""

SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
"""Upper bounds of the buckets for the number of items in one call."""

ATTEMPTS = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0)
"""Upper bounds of the buckets for the number of deliveries of an item."""

MAX_QUEUES = 200
"""Queues with a label of their own.  Counts of others are added up under ``OTHER``; their depths are left out."""

MAX_TASKS = 100
"""Tasks of a queue with a label of their own.  Handlers of others are counted under ``OTHER``."""

OTHER = "(other)"

READ_SECONDS = 3.0
"""Seconds that a scrape waits for the servers; then it reports only what this process knows."""

PLACES = ("member", "learner", "eligible", "out")
"""Places of a server in the view."""

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""Content type of what ``Metrics.expose`` returns."""


class _Counted(NamedTuple):
    """Describe a counter: its text, and its labels beside ``cluster``."""

    text: str
    labels: tuple[str, ...] = ()


class _Distributed(NamedTuple):
    """Describe a histogram: its text, the bounds of its buckets, and its labels beside ``cluster``."""

    text: str
    bounds: Sequence[float]
    labels: tuple[str, ...] = ("queue",)


COUNTERS: Final = {
    "pushes": _Counted(
        "Items that this process pushed, by outcome: an error's name if nothing was.", ("queue", "outcome")
    ),
    "settlements": _Counted(
        "Claims that this process settled or extended, by outcome: done, lost, or an error's name.",
        ("queue", "verb", "outcome"),
    ),
    "handler_errors": _Counted("Handlers of this process that ended with an exception.", ("queue", "task")),
    "claims_lost": _Counted("Claims of this process that were lost before they were settled.", ("queue",)),
    "dead_letters_dropped": _Counted("Dead letters beyond the queue's limits that this process removed.", ("queue",)),
    "moments_lost": _Counted("Moments of schedules that were not pushed, as this process has found.", ("queue",)),
    "events": _Counted("Events of this client, by type.", ("event",)),
    "evictions": _Counted("Servers that this client evicted from the view.", ("server",)),
    "event_loop_blocked_seconds": _Counted(
        "Seconds for which the event loop did not run, in stalls of two seconds or more."
    ),
}

HISTOGRAMS: Final = {
    "push_seconds": _Distributed("From the call of push to its result.", LATENCIES),
    "push_batch_items": _Distributed("Items that this process pushed together.", SIZES),
    "claim_request_seconds": _Distributed("From a claim request to its answer.", LATENCIES),
    "claim_batch_items": _Distributed("Items of one claim request that got any.", SIZES),
    "claim_attempts": _Distributed("Deliveries of each claimed item, including this one.", ATTEMPTS),
    "settle_seconds": _Distributed("From the call of ack, nack ... to its result.", LATENCIES, ("queue", "verb")),
    "handler_seconds": _Distributed(
        "How long handlers worked on an item, without settling it.", DURATIONS, ("queue", "task")
    ),
}


def instrument(
    cluster: asynchronous.Cluster | sync.Cluster, registry: CollectorRegistry = REGISTRY, *, every_queue: bool = False
) -> Metrics:
    """Collect the metrics of a cluster in a registry of ``prometheus_client``; see ``Metrics``.

    The cluster need not be open yet.  Two clusters of one process must have different namespaces.
    """
    metrics = Metrics(cluster, registry, every_queue=every_queue)
    registry.register(metrics)
    cluster.observe(metrics)
    return metrics


class _Histogram:
    """Count values in buckets.  ``counts`` has one element more than there are bounds."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, values: Sequence[float]) -> None:
        counts, bounds = self._counts, self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self._sum += sum(values)

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        bounds = [*map(str, self._bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, itertools.accumulate(self._counts), strict=True)), self._sum)


class _Reading(NamedTuple):
    """What a scrape has read from the servers: the statistics of each queue, the number of all queues, what has passed
    through each since the first look, and its flows, as far as their home has answered."""

    queues: Mapping[str, Statistics]
    every: int
    passed: Mapping[str, Passed]
    flows: Mapping[str, Counter[FlowState]] = MappingProxyType({})


class _Known(NamedTuple):
    """What this client knows without asking a server."""

    health: Health
    trouble: int
    shards: Mapping[str, ShardStatus]
    pool: PoolStatistics | None


def _know(cluster: asynchronous.Cluster) -> _Known:
    pool = counts.of_cluster(cluster.namespace)
    return _Known(cluster.health(), len(client_of(cluster).trouble()), cluster.shards, pool)


class Metrics(Observer, Collector):
    """Collect the metrics of one cluster.  Made by ``instrument``.

    The depths are those of the queues that this process uses; ``every_queue``: of all queues of the namespace, which
    suits one process of many.  A scrape in another thread asks the servers itself.  An application that renders the
    registry on the cluster's event loop awaits ``refresh`` first, or calls ``expose``.
    """

    def __init__(
        self, cluster: asynchronous.Cluster | sync.Cluster, registry: CollectorRegistry, *, every_queue: bool
    ) -> None:
        self._cluster = cluster
        self._registry = registry
        self._every_queue = every_queue
        self._labels = dict[str, str]()
        self._tasks: Final = defaultdict[str, set[str]](set)
        self._reading: _Reading | None = None
        self._flows = dict[str, Throughput]()
        self._passed = dict[str, Passed]()
        self._counted_at = -math.inf
        self._began = dict[int, float]()
        self._counters: Final = {name: defaultdict[tuple[str, ...], float](float) for name in COUNTERS}
        self._histograms: Final = {name: dict[tuple[str, ...], _Histogram]() for name in HISTOGRAMS}
        for event in event_types():
            self._count("events", event.__name__, by=0)
        self._count("event_loop_blocked_seconds", by=0)

    def __repr__(self) -> str:
        return f"<Metrics of {self._cluster!r}>"

    # -- what this process does ------------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        self._count("events", type(event).__name__)
        match event:
            case ServerEvicted(server=server):
                self._count("evictions", server)
            case ClaimsLost(queue=queue, ids=ids):
                self._count("claims_lost", self._label(queue), by=len(ids))
            case DeadLettersDropped(queue=queue, items=items):
                self._count("dead_letters_dropped", self._label(queue), by=items)
            case MomentsLost(queue=queue, count=count):
                self._count("moments_lost", self._label(queue), by=count)
            case LoopBlocked(seconds=seconds):
                self._count("event_loop_blocked_seconds", by=seconds)
            case _:
                pass

    def pushed(self, queue: str, seconds: Sequence[float], outcomes: Mapping[str, int]) -> None:
        label = self._label(queue)
        for outcome, count in outcomes.items():
            self._count("pushes", label, outcome, by=count)
        self._histogram("push_seconds", label).add(seconds)
        self._histogram("push_batch_items", label).add((len(seconds),))

    def claimed(self, queue: str, claims: Sequence[Claim[Any]], seconds: float) -> None:
        label = self._label(queue)
        self._histogram("claim_request_seconds", label).add((seconds,))
        if claims:
            self._histogram("claim_batch_items", label).add((len(claims),))
            leases = list(map(lease_of, claims))
            attempts = {grant: attempts_of(grant.packed) for grant in {lease.grant for lease in leases}}
            self._histogram("claim_attempts", label).add([attempts[each.grant][each.position] for each in leases])

    def settled(self, queue: str, verb: Verb, seconds: Sequence[float], outcomes: Mapping[str, int]) -> None:
        label = self._label(queue)
        for outcome, count in outcomes.items():
            self._count("settlements", label, verb.value, outcome, by=count)
        self._histogram("settle_seconds", label, verb.value).add(seconds)

    def before_delivery(self, claim: Claim[Any]) -> None:
        self._began[id(claim)] = asyncio.get_running_loop().time()  # by id, because a claim must not be kept

    def after_delivery(self, claim: Claim[Any], error: BaseException | None) -> None:
        began = self._began.pop(id(claim), None)
        if began is None or isinstance(error, NoHandler):  # entered before this was observed, or no handler was called
            return
        label = self._label(lease_of(claim).grant.issuer.queue)
        task = self._task_label(label, claim.task or "")
        self._histogram("handler_seconds", label, task).add((asyncio.get_running_loop().time() - began,))
        if error is not None:
            self._count("handler_errors", label, task)

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        self._counters[name][labels] += by

    def _histogram(self, name: str, *labels: str) -> _Histogram:
        known = self._histograms[name]
        found = known.get(labels)
        if found is None:
            found = known[labels] = _Histogram(HISTOGRAMS[name].bounds)
        return found

    def _task_label(self, label: str, task: str) -> str:
        known = self._tasks[label]
        if task and task not in known:
            if len(known) >= MAX_TASKS:
                return OTHER
            known.add(task)
            self._count("handler_errors", label, task, by=0)
        return task

    def _label(self, queue: str) -> str:
        label = self._labels.get(queue)
        if label is None:
            if len(self._labels) >= MAX_QUEUES:
                return OTHER
            label = self._labels[queue] = queue
            self._count("handler_errors", label, "", by=0)
            for name in ("claims_lost", "dead_letters_dropped", "moments_lost"):
                self._count(name, label, by=0)  # so that the first one is a change from zero
            self._count("pushes", label, "pushed", by=0)
        return label

    # -- what the servers say ----------------------------------------------------------------------------------------

    async def expose(self) -> bytes:
        """Ask the servers, then render the whole registry: the body of ``/metrics``, of type ``CONTENT_TYPE``."""
        await self.refresh()
        return generate_latest(self._registry)

    async def refresh(self) -> None:
        """Ask the servers for the depth of the queues, within ``READ_SECONDS``.  Without an answer there is none."""
        cluster = self._opened()
        if cluster is not None:
            self._reading = await self._read(cluster)

    async def _read(self, cluster: asynchronous.Cluster) -> _Reading | None:
        """Ask the servers; None if they do not answer."""
        started, reading = time.monotonic(), None
        with suppress(TimeoutError, ZkrqError):
            async with asyncio.timeout(READ_SECONDS):
                names = sorted(await remembered_queues(cluster) if self._every_queue else cluster.queues_in_use)
                shown = [name for name in names if self._label(name) is not OTHER]
                found = await cluster.statistics(shown)
                queues = {name: told for name, told in found.items() if not (told.deleted and self._every_queue)}
                if started >= self._counted_at:  # otherwise the figures of an overlapping scrape may be newer
                    self._count_passed(queues)
                reading = _Reading(queues, len(names), {name: self._passed[name] for name in queues})
                reading = reading._replace(flows=await client_of(cluster).flows.count())  # needs ZooKeeper, too
        return reading

    def _count_passed(self, queues: Mapping[str, Statistics]) -> None:
        """Add what has passed through each queue since the last look to what had before."""
        self._counted_at = time.monotonic()
        for queue, statistics in queues.items():
            flow, so_far = statistics.flow, self._passed.get(queue, Passed(0, 0))
            passed = flow.since(self._flows.get(queue, flow)) or Passed(0, 0)
            self._flows[queue] = flow
            self._passed[queue] = Passed(so_far.pushed + passed.pushed, so_far.removed + passed.removed)

    def _opened(self) -> asynchronous.Cluster | None:
        """Return the cluster on its event loop, None while it is not open."""
        found = opened_of(self._cluster)
        return found if found is not None and client_of(found).is_open else None

    def _ask(self, cluster: asynchronous.Cluster) -> tuple[_Known | None, _Reading | None]:
        """Read what there is to know, from any thread; None while the event loop is blocked.

        Each scrape in a thread has a reading of its own: two that overlap must not take each other's away.
        """
        loop = client_of(cluster).own_loop.loop
        if loop is None or running_loop() is loop:
            return _know(cluster), self._reading

        async def read() -> tuple[_Known, _Reading | None]:
            reading = await self._read(cluster)
            return _know(cluster), reading

        asked = asyncio.run_coroutine_threadsafe(read(), loop)
        try:
            return asked.result(READ_SECONDS + 1)
        except NotInTime:
            return None, None
        finally:
            asked.cancel()

    # -- what Prometheus sees --------------------------------------------------------------------------------------

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry would collect instead, before the cluster is open."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics; called by the registry at a scrape."""
        cluster = self._opened()
        if cluster is None:
            return
        known, reading = self._ask(cluster)
        namespace = cluster.namespace
        for server in known.health.servers if known else ():
            self._counters["evictions"].setdefault((server,), 0.0)  # so that the first one is a change from zero
        yield from self._counted(namespace)
        yield from self._asked(namespace, reading)
        if known is not None:
            yield from _healthy(namespace, known.health, known.trouble)
            yield from _shards(namespace, known.shards)
            yield from _servers(namespace, known.health)
            yield from _children(namespace, known.pool)

    def _counted(self, namespace: str) -> Iterable[Metric]:
        for name, (text, labels) in COUNTERS.items():
            family = CounterMetricFamily(f"zkrq_{name}", text, labels=("cluster", *labels))
            for values, count in list(self._counters[name].items()):
                family.add_metric((namespace, *values), count)
            yield family
        for name, (text, _, labels) in HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"zkrq_{name}", text, labels=("cluster", *labels))
            for values, counted in list(self._histograms[name].items()):
                counted.add_to(histogram, (namespace, *values))
            yield histogram
        running = GaugeMetricFamily("zkrq_handlers_running", "Items that this process works on.", labels=("cluster",))
        running.add_metric((namespace,), len(self._began))
        yield running

    def _asked(self, namespace: str, reading: _Reading | None) -> Iterable[Metric]:
        up = GaugeMetricFamily("zkrq_up", "Whether the servers answered this scrape in time.", labels=("cluster",))
        up.add_metric((namespace,), reading is not None)
        yield up
        if reading is None:
            return
        yield from _of_queues(namespace, reading)
        queues = GaugeMetricFamily(
            "zkrq_queues", f"Queues that are looked at; at most {MAX_QUEUES} are reported.", labels=("cluster",)
        )
        queues.add_metric((namespace,), reading.every)
        yield queues


def _of_queues(namespace: str, reading: _Reading) -> Iterable[Metric]:
    """Return the families with a figure of each queue."""
    of_queue = ("cluster", "queue")
    items = GaugeMetricFamily("zkrq_queue_items", "Items of the queue, by state.", labels=(*of_queue, "state"))
    oldest = GaugeMetricFamily(
        "zkrq_queue_oldest_ready_seconds", "How long the oldest ready item has waited; 0: none is.", labels=of_queue
    )
    paused = GaugeMetricFamily("zkrq_queue_paused", "Whether the queue is paused.", labels=of_queue)
    groups = GaugeMetricFamily(
        "zkrq_queue_groups", "Groups with items that are ready or claimed.", labels=(*of_queue, "standing")
    )
    limited = GaugeMetricFamily(
        "zkrq_queue_limited", "Whether a limit keeps items from being claimed now.", labels=of_queue
    )
    damaged = GaugeMetricFamily(
        "zkrq_queue_damaged_entries", "Entries that no server could read and that are set aside.", labels=of_queue
    )
    held = GaugeMetricFamily("zkrq_held_claims", "Claims that this process holds.", labels=of_queue)
    pushed = CounterMetricFamily(
        "zkrq_queue_pushed_items",
        "Items that came since this process first looked, from all clients.",
        labels=of_queue,
    )
    removed = CounterMetricFamily(
        "zkrq_queue_removed_items",
        "Items that left since this process first looked: acked, cancelled, discarded, dropped, expired.",
        labels=of_queue,
    )
    flows = GaugeMetricFamily(
        "zkrq_flows", "Flows begun on the queue that have not ended, by state.", labels=(*of_queue, "state")
    )
    for queue, statistics in reading.queues.items():
        if counted := reading.flows.get(queue):
            for state in LASTING:
                flows.add_metric((namespace, queue, state), counted[FlowState(state)])
        for state, count in statistics.sizes._asdict().items():
            items.add_metric((namespace, queue, state), count)
        oldest.add_metric((namespace, queue), statistics.oldest_ready or 0)
        paused.add_metric((namespace, queue), statistics.paused)
        limited.add_metric((namespace, queue), statistics.limited is not None)
        if statistics.groups:
            in_line, blocked = statistics.groups_in_line, statistics.groups_blocked
            rest = max(0, statistics.groups - in_line - blocked)
            for standing, count in (("in line", in_line), ("blocked", blocked), ("idle", rest)):
                groups.add_metric((namespace, queue, standing), count)
        damaged.add_metric((namespace, queue), statistics.damaged)
        held.add_metric((namespace, queue), statistics.held)
        pushed.add_metric((namespace, queue), reading.passed[queue].pushed)
        removed.add_metric((namespace, queue), reading.passed[queue].removed)
    return (items, oldest, paused, limited, groups, damaged, held, pushed, removed, flows)


def _healthy(namespace: str, health: Health, trouble: int) -> Iterable[Metric]:
    """Yield what a client knows of itself and its session."""
    for name, text, value in (
        ("zkrq_healthy", "Whether a push and a claim would succeed, as far as this client knows.", health.ok),
        ("zkrq_trouble", "Servers and shards that this client, and perhaps no other, cannot use.", trouble),
    ):
        family = GaugeMetricFamily(name, text, labels=("cluster",))
        family.add_metric((namespace,), value)
        yield family
    session = GaugeMetricFamily(
        "zkrq_session", "1 for the state of the ZooKeeper session, 0 for the others.", labels=("cluster", "state")
    )
    for state in SessionState:
        session.add_metric((namespace, state.value), state.value == health.session)
    yield session


def _shards(namespace: str, shards: Mapping[str, ShardStatus]) -> Iterable[Metric]:
    """Yield what a client knows of each shard; nothing of the view of one that it could not open."""
    of_shard = ("cluster", "shard")
    state = GaugeMetricFamily(
        "zkrq_shard_state", "1 for the shard's state, 0 for the others.", labels=(*of_shard, "state")
    )
    away = GaugeMetricFamily("zkrq_shard_away", "Whether this client can have nothing of the shard.", labels=of_shard)
    epoch = GaugeMetricFamily(
        "zkrq_view_epoch", "Number of the view; it grows with each change of the servers in sync.", labels=of_shard
    )
    members = GaugeMetricFamily("zkrq_in_sync_servers", "Servers in sync.", labels=of_shard)
    needed = GaugeMetricFamily(
        "zkrq_min_replicas", "Servers in sync without which pushes are refused.", labels=of_shard
    )
    level = GaugeMetricFamily(
        "zkrq_level", "The active level: what is written, and every client must speak.", labels=of_shard
    )
    client = GaugeMetricFamily("zkrq_client_info", "1 for the release of this client.", labels=("cluster", "version"))
    client.add_metric((namespace, __version__), 1)
    for name, shard in shards.items():
        for each in ShardState:
            state.add_metric((namespace, name, each.value), each.value == shard.state)
        away.add_metric((namespace, name), shard.away is not None)
        if shard.view is not None:
            epoch.add_metric((namespace, name), shard.view.epoch)
            members.add_metric((namespace, name), len(shard.view.members))
            needed.add_metric((namespace, name), shard.view.min_replicas)
            level.add_metric((namespace, name), shard.view.level)
    yield from (state, away, epoch, members, needed, level, client)


def _servers(namespace: str, health: Health) -> Iterable[Metric]:
    """Yield what a client knows of each server."""
    of_server = ("cluster", "shard", "server")
    place = GaugeMetricFamily(
        "zkrq_server_place", "1 for the server's place in the view, 0 for the others.", labels=(*of_server, "place")
    )
    connected = GaugeMetricFamily("zkrq_server_connected", "Whether this client is connected to it.", labels=of_server)
    copied = GaugeMetricFamily(
        "zkrq_catch_up_copied_items", "Items copied to a server that this client catches up.", labels=of_server
    )
    total = GaugeMetricFamily("zkrq_catch_up_items", "Items to copy to that server, about.", labels=of_server)
    for server, known in health.servers.items():
        for each in PLACES:
            place.add_metric((namespace, known.shard, server, each), each == known.place)
        connected.add_metric((namespace, known.shard, server), known.connected)
        if known.catching_up:
            copied.add_metric((namespace, known.shard, server), known.catching_up.copied)
            total.add_metric((namespace, known.shard, server), known.catching_up.total)
    yield from (place, connected, copied, total)


def _children(namespace: str, pool: PoolStatistics | None) -> Iterable[Metric]:
    """Return the families of the processes that handlers run in; without figures if there are none."""
    now = GaugeMetricFamily(
        "zkrq_pool_processes", "Processes that handlers run in, by state.", labels=("cluster", "state")
    )
    died = CounterMetricFamily(
        "zkrq_pool_died", "Such processes that ended without being told to.", labels=("cluster", "by")
    )
    memory = GaugeMetricFamily(
        "zkrq_pool_resident_memory_bytes", "Resident memory of such processes.", labels=("cluster",)
    )
    counted = {
        name: CounterMetricFamily(f"zkrq_pool_{name}", text, labels=("cluster",))
        for name, text in (
            ("started", "Such processes that were started."),
            ("killed", "Such processes that were killed, because their handler did not stop."),
            ("replaced", "Such processes that were replaced after max_items or above max_memory."),
            ("cpu_seconds", "Processor time of such processes."),
        )
    }
    if pool is not None:
        for state in ("starting", "idle", "working", "stopping"):
            now.add_metric((namespace, state), getattr(pool, state))
        for by, count in pool.died_by.items():
            died.add_metric((namespace, by), count)
        memory.add_metric((namespace,), pool.memory)
        for name, family in counted.items():
            family.add_metric((namespace,), getattr(pool, name))
    return (now, died, memory, *counted.values())
