"""Run zkrq and its peers under the same load: same payload, same machine, each right after a run of zkrq.

Every contestant is a program of its own, with producer and worker in one process: many tasks push ``items``, which are
then consumed and acked by a handler that does nothing.  Ratios are computed from neighbouring runs, so that slower
disturbances of the machine cancel out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from benchmarks import bare, brokers, environments, load, places, processes, programs, server_time
from benchmarks.peers.common import Job, Rates
from benchmarks.places import Place
from benchmarks.plan import Plan
from benchmarks.raw import RawRedis
from benchmarks.sheet import Sheet, Topic
from zkrq.local import Servers

PEERS = Topic(
    "peers",
    "Against peers",
    f"100-byte items. One process pushes by {load.TASKS} tasks that await one push at a time, then consumes and acks "
    "everything with a handler that does nothing; the whole cycle is both, one after the other. Redis: `appendonly "
    "yes`, `appendfsync everysec`, for all. zkrq: three Redis and three ZooKeeper servers, as are those of "
    "the znodes.",
    "items/s",
    "system",
    plot="dots",
    log=True,
)
RATIOS = Topic(
    "peer-ratios",
    "zkrq / peer",
    "Each repetition's run of zkrq divided by the peer's run right after it.",
    "ratio",
    "system",
)

SERVERS = Topic(
    "peer-servers",
    "Processor time of the servers",
    "Of all servers of a system together, ZooKeeper's among zkrq's, from the start of the run's client to its end, for "
    "each item that is pushed, claimed and acked. Three copies of zkrq, NATS and RabbitMQ; one of all others but the "
    "znodes.",
    "µs per item",
    "system",
    plot="dots",
    log=True,
)

ZKRQ, LIMIT_TITLE = "zkrq", "zkrq's scripts, bare"
LIMIT_BATCH = 250
"""Calls in one batch of the bare scripts: about as many as zkrq gathers from 256 tasks."""

ITEMS = 20_000
PATIENCE = 150.0

R = TypeVar("R")

Kind = places.Kind | Literal["zookeeper"]


@dataclass(frozen=True, slots=True)
class Peer:
    """A program in ``peers``, its servers, and its number of items, enough for a second or more."""

    title: str
    program: str
    place: Kind
    items: int
    environment: str = "main"


PEER_LIST: Sequence[Peer] = (
    Peer("arq", "arq_queue", "redis", 3_000),
    Peer("SAQ", "saq_queue", "redis", 3_000),
    Peer("streaQ", "streaq_queue", "redis", 2_500),
    Peer("taskiq-redis", "taskiq_queue", "redis", 3_000, "taskiq"),
    Peer("RQ", "rq_queue", "redis", 400),
    Peer("Redis stream, plain", "stream", "redis", 10_000),
    Peer("Redis stream, pipelined", "stream_pipelined", "redis", 40_000),
    Peer("NATS JetStream R3, awaited", "nats_queue", "nats", 10_000),
    Peer("NATS JetStream R3, pipelined", "nats_pipelined", "nats", 20_000),
    Peer("RabbitMQ quorum queue", "rabbitmq_queue", "rabbitmq", 5_000),
    Peer("a znode per item", "znodes", "zookeeper", 2_000),
)


@dataclass(slots=True)
class _Arena:
    """Servers of all contestants; ``places`` lacks those that could not be started."""

    ours: Servers
    places: Mapping[Kind, Place]
    pythons: Mapping[str, Path]
    sheet: Sheet

    async def measure(self, row: str, items: int, place: Place, work: Awaitable[R]) -> R:
        """Await a run, and write down what it cost the servers."""
        groups = place.groups
        before = server_time.of_groups(groups)
        result = await work
        if server_time.available():
            self.sheet.add(SERVERS, row, all_servers=(server_time.of_groups(groups) - before) / items * 1e6)
        return result


async def run(plan: Plan, sheet: Sheet, folder: Path) -> None:
    pythons = environments.prepare(folder, sheet)
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(load.servers())
        arena = _Arena(ours, await _places(stack, sheet, ours), pythons, sheet)
        if not server_time.available():
            sheet.remark("processor time of the servers: not measured, this system has no /proc")
        failed: set[Peer] = set()
        for _ in range(plan.repetitions):
            await _limit(plan, sheet, arena)
            for peer in PEER_LIST:
                if peer.place not in arena.places or peer in failed:
                    continue
                zkrq = await _zkrq(plan, sheet, arena)
                try:
                    rates = await _peer(plan, arena, peer)
                except programs.ProgramFailed as error:
                    sheet.remark(f"{peer.title}: not measured: {error}")
                    failed.add(peer)
                    continue
                _note(sheet, peer.title, rates, zkrq)
                sheet.note(PEERS, peer.title, rates.settings)


async def _places(stack: AsyncExitStack, sheet: Sheet, ours: Servers) -> Mapping[Kind, Place]:
    found: dict[Kind, Place] = {}
    if ours.zookeeper:
        found["zookeeper"] = places.of_servers(ours)
    else:
        sheet.remark("a znode per item: not measured, ZooKeeper is not installed")
    kinds: Sequence[places.Kind] = ("redis", "nats", "rabbitmq")
    for kind in kinds:
        try:
            found[kind] = await stack.enter_async_context(places.opened(kind))
        except brokers.BrokerFailed as error:
            sheet.remark(f"{kind}: not measured: {error}")
    return found


async def _zkrq(plan: Plan, sheet: Sheet, arena: _Arena) -> Rates:
    items = plan.items(ITEMS)
    rates = await arena.measure(ZKRQ, items, places.of_servers(arena.ours), processes.together(arena.ours, 1, items))
    found = Rates(
        rates.push, rates.consume, rates.cycle, f"{load.TASKS} tasks, JSON, every setting as it is by default"
    )
    _note(sheet, ZKRQ, found)
    sheet.note(PEERS, ZKRQ, found.settings)
    return found


async def _limit(plan: Plan, sheet: Sheet, arena: _Arena) -> None:
    tape = await bare.capture(arena.ours, bare.Sizes(LIMIT_BATCH, LIMIT_BATCH, LIMIT_BATCH), plan.items(ITEMS))
    zkrq = await _zkrq(plan, sheet, arena)
    async with load.meter(arena.ours.redis_urls.values()) as meter:
        limit = await arena.measure(
            LIMIT_TITLE, plan.items(ITEMS), places.of_servers(arena.ours), bare.replay(arena.ours, tape, meter)
        )
    settings = f"no library: three servers in parallel, batches of {LIMIT_BATCH}, {len(bare.QUEUES)} queues, hiredis"
    _note(sheet, LIMIT_TITLE, Rates(limit.push, limit.consume, limit.cycle, settings), zkrq)
    sheet.note(PEERS, LIMIT_TITLE, settings)


async def _peer(plan: Plan, arena: _Arena, peer: Peer) -> Rates:
    place, items = arena.places[peer.place], plan.items(peer.items)
    if peer.place == "redis":
        wire = await RawRedis.open(place.urls[0])
        await wire.ask("FLUSHALL")
        wire.close()
    python = arena.pythons[peer.environment]
    job = Job(place.urls, items, load.TASKS, arena.ours.zookeeper_hosts)

    async def rates() -> Rates:
        program = await programs.start(python, f"benchmarks.peers.{peer.program}", job._asdict())
        return Rates(**await programs.last_words(program, PATIENCE))

    return await arena.measure(peer.title, items, place, rates())


def _note(sheet: Sheet, row: str, rates: Rates, zkrq: Rates | None = None) -> None:
    sheet.add(PEERS, row, push=rates.push, claim_and_ack=rates.consume, whole_cycle=rates.cycle)
    if zkrq:
        sheet.add(
            RATIOS,
            row,
            push=zkrq.push / rates.push,
            claim_and_ack=zkrq.consume / rates.consume,
            whole_cycle=zkrq.cycle / rates.cycle,
        )
