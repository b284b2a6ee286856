"""Measure flows beside Celery's chord and BullMQ's flow: one run, the same work, each on Redis servers of its own.

Each system makes small flows one after the other, then a large one; then a flow of slow members whose Redis is killed
when half of them have run.  What flows cost zkrq itself is in ``flow_costs.py``.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import environments, flow_costs, load, programs
from benchmarks.latency import percentile
from benchmarks.peers.common import Job
from benchmarks.peers.fan import CONCURRENCY, SLOW
from benchmarks.plan import Plan
from benchmarks.sheet import Sheet, Topic
from zkrq import local
from zkrq.local import LocalRedis, Servers

FLOWS = Topic(
    "flows",
    "Flows beside Celery and BullMQ",
    "Members that do nothing, and one item that continues when all have ended. `late`: milliseconds from the end of "
    "the last member's handler to the begin of what continues, in flows of ten members, one after the other. "
    "`members/s`: of one large flow, from the first call of its maker to the begin of what continues. Each system runs "
    f"{CONCURRENCY} members at a time. Redis: `appendonly yes`, `appendfsync everysec`. zkrq: three Redis and three "
    "ZooKeeper servers; the others: one Redis server.",
    "",
    "system",
)
KILLED = Topic(
    "flows-killed",
    "A flow whose Redis is killed",
    f"A flow of members that take {SLOW * 1000:g} ms each. When half of them have run, kill -9 of a Redis server, for "
    "zkrq of the queue's primary; after a second it is started again, with its data or with none. `continued`: how "
    "often what continues began. `missing`: members that never ran until then, or until the time was up. `again`: "
    "members that ran more than once. `late`: seconds from the end of the last member to what continues.",
    "",
    "system, and what came back",
)

ZKRQ = "zkrq"
AWAY = 1.0
"""Seconds for which a killed server is away."""
PATIENCE = 45.0
"""Seconds for which what continues is waited for after a kill."""
TALK = 120.0
"""Seconds after which a program that does not answer is given up."""

REDIS = {"appendonly": "yes", "appendfsync": "everysec"}


@dataclass(frozen=True, slots=True)
class System:
    """A system: its command, how many Redis servers it has, and variables of its environment."""

    title: str
    command: Sequence[str]
    redis: int
    environment: Mapping[str, str]


async def run(plan: Plan, sheet: Sheet, folder: Path) -> None:
    await flow_costs.run(plan, sheet)
    for system in _systems(sheet, folder):
        try:
            for _ in range(plan.repetitions):
                await _timed(plan, sheet, system)
            for wipe in (False, True):
                await _killed(plan, sheet, system, wipe=wipe)
        except (programs.ProgramFailed, TimeoutError) as error:
            sheet.remark(f"flows: {system.title}: not measured: {error or 'no answer in time'}")


def _systems(sheet: Sheet, folder: Path) -> list[System]:
    python = [sys.executable, "-m"]
    found = [System(ZKRQ, [*python, "benchmarks.flows_client"], 3, {})]
    found.append(System("Celery, chord", [*python, "benchmarks.peers.celery_chord"], 1, {}))
    if shutil.which("node") is None or shutil.which("npm") is None:
        sheet.remark("flows: BullMQ: not measured, Node.js is not installed")
    elif modules := environments.prepare_node(folder / "node", sheet):
        command = ["node", "benchmarks/peers/bullmq_flow.cjs"]
        found.append(System("BullMQ, flow", command, 1, {"NODE_PATH": str(modules)}))
    return found


async def _timed(plan: Plan, sheet: Sheet, system: System) -> None:
    async with _running(system) as (_, program, settings):
        sheet.note(FLOWS, system.title, settings)
        small = await _ask(program, {"flows": 20 if plan.quick else 100, "members": 10})
        members = plan.items(5_000)
        large = await _ask(program, {"flows": 1, "members": members})
    late: list[float] = small["late"]
    sheet.add(
        FLOWS,
        system.title,
        **{"late, p50, ms": median(late), "late, p99, ms": percentile(late, 99)},
        **{"members/s": members / large["seconds"][0]},
    )


async def _killed(plan: Plan, sheet: Sheet, system: System, *, wipe: bool) -> None:
    members = plan.items(2_000)
    async with _running(system) as (servers, program, _):
        assert program.stdin
        await _ask(program, {"slow": members, "patience": PATIENCE})
        victim = await _primary(servers)
        await victim.kill()
        await asyncio.sleep(AWAY)
        await victim.restart(wipe=wipe)
        async with asyncio.timeout(TALK):
            told: dict[str, Any] = await programs.answer(program)
    row = f"{system.title}, {'with none' if wipe else 'with its data'}"
    late = {} if told["after"] is None else {"late, s": max(0.0, told["after"])}
    sheet.add(KILLED, row, continued=told["continued"], missing=members - told["ran"], again=told["again"], **late)
    if told["early"]:
        sheet.note(KILLED, row, "it continued before every member had ended")


async def _primary(servers: Servers) -> LocalRedis:
    """Return the server that decides for the members, or the only one there is."""
    if len(servers.redis) == 1:
        return servers.redis[0]
    async with load.cluster_of(servers.redis_urls, servers.zookeeper_hosts, namespace="flows") as cluster:
        name = cluster.view.primary("members")
    return next(server for server in servers.redis if server.name == name)


@asynccontextmanager
async def _running(system: System) -> AsyncGenerator[tuple[Servers, Process, str]]:
    """Start servers and the program of a system; yield them, with its settings.  Raises ``ProgramFailed``."""
    zookeeper = 3 if system.redis > 1 and "zookeeper" in local.available() else 0
    if system.redis > 1 and not zookeeper:
        raise programs.ProgramFailed("ZooKeeper is not installed")
    async with local.servers(redis=system.redis, zookeeper=zookeeper, redis_config=REDIS) as servers:
        job = Job([*servers.redis_urls.values()], 0, 0, servers.zookeeper_hosts)
        program = await programs.spawn(system.command, job._asdict(), environment=system.environment)
        try:
            async with asyncio.timeout(TALK):
                settings: str = await programs.answer(program)
            yield servers, program, settings
        finally:
            await programs.dismiss(program)


async def _ask(program: Process, question: object) -> Any:
    async with asyncio.timeout(TALK):
        return await programs.ask(program, question)
