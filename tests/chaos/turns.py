"""Groups and limits on real servers: workers are killed at random, and the queue's primary now and then.

    python -m tests.chaos.turns --seconds 600

What is promised is declared once, before the load; every second worker declares it again, and the others and the
producer know nothing of it.  Each promise has a run of its own: a limit of each group, a limit of the whole queue, the
order of each group, a rate, the same where no worker dies, and a rate of each group.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import zkrq
from tests.chaos.crew import Crew, bounce
from tests.chaos.record import CONTROLLER, Entry, Journal, Kind
from tests.chaos.turns_checker import Findings, check_concurrency, check_lost, check_order, check_rate, merged, named
from tests.chaos.turns_process import QUEUE, Orders
from tests.harness import new_namespace, push_surely
from zkrq import local
from zkrq.client.cluster import Cluster

SESSION_TIMEOUT, CLAIM_TIMEOUT = 4.0, 6.0

DRAIN_SECONDS = 90.0
"""Seconds within which the queue has to shrink after the last fault."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run.  ``kill_worker``, ``kill_primary``: seconds between two of them; ``pace``: pushes a second."""

    name: str
    check: Callable[[Sequence[Entry], int], Findings]
    """Given the number of workers, too."""
    group_options: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    workers: int = 8
    groups: int = 20
    pace: float = 100.0
    kill_worker: float = 1.5
    kill_primary: float = 10.0


NEVER = 1e9
"""Seconds between two faults that do not happen."""

GROUP_MOST, QUEUE_MOST, RATE_MOST = 2, 5, 50
GROUP_RATE_MOST, GROUP_IN_FLIGHT = 10, 3

RATE = Plan(
    "rate",
    lambda entries, workers: check_rate(entries, RATE_MOST, 1.0, in_flight=workers),
    limits={"rate": [RATE_MOST, 1.0]},
    pace=60.0,
)

PLANS: Mapping[str, Plan] = {
    plan.name: plan
    for plan in (
        Plan(
            "groups",
            lambda entries, _: check_concurrency(entries, GROUP_MOST, of_each_group=True),
            group_options={"concurrency": GROUP_MOST},
            groups=3,
        ),
        Plan(
            "concurrency",
            lambda entries, _: check_concurrency(entries, QUEUE_MOST, of_each_group=False),
            limits={"concurrency": QUEUE_MOST},
        ),
        Plan("ordered", lambda entries, _: check_order(entries), group_options={"ordered": True}, groups=40),
        RATE,
        replace(RATE, name="failover", kill_worker=NEVER, kill_primary=15.0),
        Plan(
            "group-rate",
            lambda entries, _: check_rate(entries, GROUP_RATE_MOST, 1.0, in_flight=GROUP_IN_FLIGHT, of_each_group=True),
            group_options={"concurrency": GROUP_IN_FLIGHT, "rate": [GROUP_RATE_MOST, 1.0]},
            groups=4,
            pace=36.0,
        ),
    )
}


@dataclass(slots=True)
class _Stage:
    servers: local.Servers
    namespace: str
    plan: Plan
    journal: Journal

    def orders(self, who: str, number: int) -> str:
        """Return what a worker is told."""
        return Orders(
            who,
            self.servers.redis_urls,
            self.servers.zookeeper_hosts,
            self.namespace,
            str(self.journal.file(who)),
            SESSION_TIMEOUT,
            CLAIM_TIMEOUT,
            *((self.plan.group_options, self.plan.limits) if number % 2 else (None, None)),
        ).text()


async def run(servers: local.Servers, plan: Plan, directory: Path, *, seconds: float, seed: int = 0) -> Findings:
    """Play one run; return what is broken, and counts of what happened."""
    directory.mkdir(parents=True, exist_ok=True)
    journal, chance = Journal(directory), random.Random(seed)
    stage = _Stage(servers, new_namespace(), plan, journal)
    crew = Crew("tests.chaos.turns_process", directory, stage.orders)
    async with zkrq.connect(
        servers.redis_urls, servers.zookeeper_hosts, namespace=stage.namespace, found=True, min_replicas=2
    ) as cluster:
        await _declare(plan, cluster)
        pushed: list[str] = []
        async with crew.hired(plan.workers):
            async with asyncio.TaskGroup() as lanes:
                faults = [
                    lanes.create_task(crew.lose(journal.recorder(CONTROLLER), chance, plan.kill_worker)),
                    lanes.create_task(_kill_primaries(stage, cluster, chance)),
                ]
                await _push(stage, cluster, seconds, pushed)
                for fault in faults:
                    fault.cancel()
            await servers.start()
            left = await _drain(stage, cluster)
    journal.poll()
    found = merged(plan.check(journal.entries, plan.workers), check_lost(journal.entries, pushed))
    found.counts.update({"workers": crew.started, "primaries killed": _count(journal.entries, Kind.FAULT_BEGUN)})
    if left:
        found.broken.append(f"left in the queue: {left}")
    return found


def _count(entries: Iterable[Entry], kind: Kind) -> int:
    return sum(entry.kind is kind for entry in entries)


async def _declare(plan: Plan, cluster: Cluster) -> None:
    """Set the settings of the queue, as an operator does."""
    queue, told = cluster.queue(QUEUE), Orders("", {}, "", "", "", 0, 0, plan.group_options, plan.limits)
    await queue.set_groups(zkrq.Groups(**plan.group_options or {}))
    await queue.set_limits(told.queue_limits() or zkrq.Limits())


async def _push(stage: _Stage, cluster: Cluster, seconds: float, pushed: list[str]) -> None:
    """Push to all groups; to each the next item only when the push of the one before has returned."""
    loop = asyncio.get_running_loop()
    plan, numbers = stage.plan, dict[str, int]()
    queue = cluster.queue(QUEUE)
    began, end = loop.time(), loop.time() + seconds
    while loop.time() < end:
        groups = [f"g{number}" for number in range(plan.groups)]
        items = [(group, numbers.get(group, 0)) for group in groups]
        await asyncio.gather(*(_push_one(queue, group, number) for group, number in items))
        numbers.update((group, number + 1) for group, number in items)
        pushed += [named(group, number) for group, number in items]
        await asyncio.sleep(max(0.0, began + len(pushed) / plan.pace - loop.time()))


async def _push_one(queue: zkrq.Queue[Any], group: str, number: int) -> None:
    item = named(group, number)
    await push_surely(queue, item, item, group=group)


async def _kill_primaries(stage: _Stage, cluster: Cluster, chance: random.Random) -> None:
    recorder = stage.journal.recorder("faults")
    while True:
        await asyncio.sleep(stage.plan.kill_primary)
        await bounce(stage.servers, cluster.view.primary(QUEUE), recorder, chance)


async def _drain(stage: _Stage, cluster: Cluster) -> int:
    """Wait until the queue is empty; return what is left when it has not shrunk for ``DRAIN_SECONDS``.

    A rate below the pace of the pushes leaves minutes of work at the end of a long run.
    """
    queue, loop = cluster.queue(QUEUE), asyncio.get_running_loop()
    end, left, least = loop.time() + DRAIN_SECONDS, 1, math.inf
    while left and loop.time() < end:
        await asyncio.sleep(0.2)
        try:
            left = sum(await queue.size())
        except zkrq.Unavailable:
            continue
        if left < least:
            end, least = loop.time() + DRAIN_SECONDS, left
    return left


async def _main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load and faults in each run (%(default)s)")
    parser.add_argument("--plans", default=",".join(PLANS), help="of these, separated by commas: %(default)s")
    parser.add_argument("--workers", type=int, help="worker processes")
    parser.add_argument("--groups", type=int, help="groups to which is pushed")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    is_fine = True
    async with local.servers(redis=3, zookeeper=3) as servers:
        for name in args.plans.split(","):
            given = {key: value for key in ("workers", "groups") if (value := getattr(args, key))}
            plan = replace(PLANS[name], **given)
            with tempfile.TemporaryDirectory(prefix="zkrq-turns-") as folder:
                found = await run(servers, plan, Path(folder), seconds=args.seconds, seed=args.seed)
            is_fine = is_fine and not found.broken
            print(f"{name}: {len(found.broken)} broken", dict(found.counts), *found.broken[:10], sep="\n  ", flush=True)
    return is_fine


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(_main()) else 1)
