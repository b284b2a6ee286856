"""Flows on real servers: primaries and workers, which make the flows, too, are killed, and operators cancel.

    python -m tests.chaos.flows --seconds 600

Two shards of three servers, three queues of members and one of what follows.  Most flows have a few members and some
have thousands; a part has members that die, fails fast, grows while it runs, or has members that wait for each other.
No flow may be followed too early, twice or never, no outcome may change, and what members returned is read by what
follows.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zkrq
from tests.chaos.crew import Crew, bounce
from tests.chaos.flows_checker import ALWAYS, FAILURE, FOLLOWS, THEN, check
from tests.chaos.flows_process import AFTER, MAKERS, QUEUES, RETRIED, Item, Orders, home_of
from tests.chaos.record import CONTROLLER, Journal, Kind, Recorder
from tests.chaos.turns_checker import Findings
from tests.harness import new_namespace, push_surely
from zkrq import local
from zkrq.client.cluster import Cluster

SESSION_TIMEOUT, CLAIM_TIMEOUT = 4.0, 6.0

DRAIN_SECONDS = 90.0
"""Seconds without an end after which flows that run are given up."""

SHARDS = ("main", "b")
SERVERS = 3
"""Redis servers of each shard."""

DIES = 0.7
"""Part of the deliveries that end as dead letters, of members of imports that can die: some redrive gets them done."""

ASKED = 1.0
"""Seconds between two looks of the observer at all flows."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run.  ``kill_worker``, ``kill_primary``, ``cancel``: seconds between two of them, on average."""

    seconds: float = 60.0
    flows: int = 200
    least: int = 10
    most: int = 5_000
    """Members of a flow; as many flows are between 10 and 100 as between 100 and 1,000."""
    crawl: int = 20_000
    """Members of the one flow that grows."""
    workers: int = 4
    concurrency: int = 16
    kill_worker: float = 3.0
    kill_primary: float = 10.0
    cancel: float = 20.0
    seed: int = 0


@dataclass(slots=True)
class _Stage:
    servers: local.Servers
    namespace: str
    plan: Plan
    journal: Journal
    chance: random.Random
    made: dict[str, Item] = field(default_factory=dict[str, Item])
    """Flows that were asked for."""
    ended: dict[str, str] = field(default_factory=dict[str, str])
    """The outcome that the observer was told last."""
    finished: set[str] = field(default_factory=set[str])
    """Flows that an operator has ended as done."""

    @property
    def shards(self) -> dict[str, dict[str, str]]:
        """Names and addresses of the servers of each shard."""
        urls = [*self.servers.redis_urls.items()]
        return {name: dict(urls[SERVERS * n : SERVERS * (n + 1)]) for n, name in enumerate(SHARDS)}

    def orders(self, who: str, _: int) -> str:
        """Return what a worker is told."""
        return Orders(
            who,
            self.shards,
            self.servers.zookeeper_hosts,
            self.namespace,
            str(self.journal.file(who)),
            SESSION_TIMEOUT,
            CLAIM_TIMEOUT,
            self.plan.concurrency,
        ).text()


async def run(servers: local.Servers, plan: Plan, directory: Path) -> Findings:
    """Play one run; return what is broken, and counts of what happened."""
    directory.mkdir(parents=True, exist_ok=True)
    stage = _Stage(servers, new_namespace(), plan, Journal(directory), random.Random(plan.seed))
    crew = Crew("tests.chaos.flows_process", directory, stage.orders)
    left: list[str] = []
    async with (
        zkrq.connect(
            stage.shards, servers.zookeeper_hosts, namespace=stage.namespace, found=True, min_replicas=2
        ) as cluster,
        crew.hired(plan.workers),
        asyncio.TaskGroup() as tasks,
    ):
        recorder = stage.journal.recorder(CONTROLLER)
        observing = tasks.create_task(_observe(stage, cluster, recorder))
        lanes = [
            tasks.create_task(lane)
            for lane in (
                crew.lose(recorder, stage.chance, plan.kill_worker),
                _kill_primaries(stage, cluster, recorder),
                _cancel(stage, cluster, recorder),
                _redrive(stage, cluster, recorder),
            )
        ]
        await _ask_for_flows(stage, cluster)
        for lane in lanes:
            lane.cancel()
        await servers.start()
        await _drain(stage, cluster, recorder)
        left = await _items_left(cluster)
        observing.cancel()
    stage.journal.poll()
    found = check(stage.journal.entries, {name: item["holds"] for name, item in stage.made.items()}, stage.finished)
    faults = [entry.kind for entry in stage.journal.entries]
    found.counts.update({"workers": crew.started, "primaries killed": faults.count(Kind.FAULT_BEGUN)})
    found.counts.update({"cancels": faults.count(Kind.CANCELLING), "redrives": faults.count(Kind.RESUMING)})
    found.broken += [f"left: {item}" for item in left]
    return found


# -- what is asked for -------------------------------------------------------------------------------------------------


async def _ask_for_flows(stage: _Stage, cluster: Cluster) -> None:
    """Push what makers are to make, spread over the time of the run."""
    plan, queue = stage.plan, cluster.queue(MAKERS)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(plan.flows):
        item = _crawl(stage) if number == 0 else _flow(stage, number)
        await push_surely(queue, item, f"make-{item['flow']}")
        stage.made[item["flow"]] = item
        # The last flows get some time to run, too.
        await asyncio.sleep(max(0.0, began + 0.8 * plan.seconds * (number + 1) / plan.flows - loop.time()))
    await asyncio.sleep(max(0.0, began + plan.seconds - loop.time()))


def _crawl(stage: _Stage) -> Item:
    return {"flow": "crawl", "what": "make", "members": 0, "queues": 1, "holds": [THEN], "crawl": stage.plan.crawl}


def _flow(stage: _Stage, number: int) -> Item:
    chance, plan = stage.chance, stage.plan
    if number % 4 == 1:  # a trip: each part fails with a chance of one in five
        dying = [part for part in range(3) if chance.random() < 0.2]
        return {
            "flow": f"trip-{number}",
            "what": "make",
            "members": 3,
            "queues": 1,
            "holds": [THEN, FAILURE],
            "die": dying,
            "dies": 1.0,
            "options": {"fail_fast": True},
        }
    if number % 8 == 3:  # its members wait for each other
        return {
            "flow": f"order-{number}",
            "what": "make",
            "members": 0,
            "queues": len(QUEUES),
            "holds": [THEN],
            "order": True,
        }
    members = round(plan.least * (plan.most / plan.least) ** chance.random())
    holds = [THEN, *chance.sample([FAILURE, ALWAYS], chance.randrange(3))]
    item: Item = {
        "flow": f"import-{number}",
        "what": "make",
        "members": members,
        "queues": chance.randint(1, len(QUEUES)),
        "holds": holds,
    }
    if number % 4 == 2:
        item["die"] = [chance.randrange(members)]
        item["dies"] = DIES
    return item


# -- faults and operators ----------------------------------------------------------------------------------------------


async def _kill_primaries(stage: _Stage, cluster: Cluster, recorder: Recorder) -> None:
    """Kill the primary of a queue, in one of the shards, whichever other servers are out of sync."""
    while True:
        await asyncio.sleep(stage.plan.kill_primary)
        view = cluster.shards[stage.chance.choice(SHARDS)].view
        if view is None:  # none of its servers is reached for the moment
            continue
        name = view.primary(stage.chance.choice([*QUEUES, AFTER]))
        await bounce(stage.servers, name, recorder, stage.chance)


async def _cancel(stage: _Stage, cluster: Cluster, recorder: Recorder) -> None:
    """Cancel a flow now and then, as an operator does."""
    while True:
        await asyncio.sleep(stage.chance.uniform(0, 2 * stage.plan.cancel))
        running = sorted(stage.made.keys() - stage.ended.keys() - {"crawl"})
        if not running:
            continue
        name = stage.chance.choice(running)
        recorder.note(Kind.CANCELLING, name)
        with suppress(zkrq.FlowEnded, *RETRIED):
            await _flow_of(cluster, name).cancel(stop=stage.chance.random() < 0.5)
            recorder.note(Kind.CANCELLED, name)


async def _redrive(stage: _Stage, cluster: Cluster, recorder: Recorder) -> None:
    """Redrive the dead letters of flows that wait for it, as an operator does."""
    while True:
        await asyncio.sleep(stage.chance.uniform(0, 2 * stage.plan.cancel))
        for name in sorted(stage.made.keys() - stage.ended.keys()):
            await _help(stage, cluster, recorder, name, finish=False)


async def _help(stage: _Stage, cluster: Cluster, recorder: Recorder, name: str, *, finish: bool) -> None:
    """Redrive a flow that dead members hold up, or end it as done."""
    if FAILURE in stage.made[name]["holds"]:
        return
    with suppress(zkrq.FlowEnded, *RETRIED):
        flow = _flow_of(cluster, name)
        status = await flow.status()
        if status.state != "running" or not status.dead or status.left:
            return
        if finish:
            stage.finished.add(name)
            await flow.finish()
        else:
            recorder.note(Kind.RESUMING, name, None, "redrive")
            await flow.redrive()


def _flow_of(cluster: Cluster, name: str) -> zkrq.Flow:
    return cluster.queue(home_of(name)).flow(name)


async def _observe(stage: _Stage, cluster: Cluster, recorder: Recorder) -> None:
    """Write down every state that flows have, as they are told: also of flows that have ended, whose outcome stays."""
    while True:
        for name in list(stage.made):
            with suppress(zkrq.FlowEnded, *RETRIED):
                state = str((await _flow_of(cluster, name).status()).state)
                recorder.note(Kind.EVENT, name, None, state)
                if state in FOLLOWS:
                    stage.ended[name] = state
        await asyncio.sleep(ASKED)


# -- the end -----------------------------------------------------------------------------------------------------------


async def _drain(stage: _Stage, cluster: Cluster, recorder: Recorder) -> None:
    """Wait until every flow has ended; those that a dead member holds up are ended by an operator."""
    loop = asyncio.get_running_loop()
    end, before = loop.time() + DRAIN_SECONDS, -1
    while len(stage.ended) < len(stage.made) and loop.time() < end:
        for name in sorted(stage.made.keys() - stage.ended.keys()):
            await _help(stage, cluster, recorder, name, finish=stage.chance.random() < 0.2)
        progress = len(stage.ended) * 1_000_000 - sum((await _left(cluster)).values())
        if progress != before:
            end, before = loop.time() + DRAIN_SECONDS, progress
        await asyncio.sleep(0.5)
    while any((await _left(cluster)).values()) and loop.time() < end:
        await asyncio.sleep(0.5)


async def _items_left(cluster: Cluster) -> list[str]:
    """Return what is queued, scheduled or claimed, as sentences."""
    left = list[str]()
    for name in (MAKERS, *QUEUES, AFTER):
        async for item in cluster.queue(name).scan():
            if item.state != "dead":
                left.append(f"{item.id} in {name} is {item.state}: {item.item}")
    return left


async def _left(cluster: Cluster) -> dict[str, int]:
    """Count the items that are queued, scheduled or claimed."""
    left: dict[str, int] = {}
    for name in (MAKERS, *QUEUES, AFTER):
        try:
            size = await cluster.queue(name).size()
            left[name] = size.ready + size.scheduled + size.claimed
        except zkrq.Unavailable:
            left[name] = 1
    return left


async def _main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = Plan()
    for name in ("seconds", "kill_worker", "kill_primary", "cancel"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(usual, name))
    for name in ("flows", "least", "most", "crawl", "workers", "concurrency", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(usual, name))
    parser.add_argument("--keep", type=Path, help="folder for what the processes have recorded")
    args: dict[str, Any] = vars(parser.parse_args())
    keep: Path | None = args.pop("keep")
    async with local.servers(redis=SERVERS * len(SHARDS), zookeeper=3) as servers:
        with tempfile.TemporaryDirectory(prefix="zkrq-flows-") as folder:
            found = await run(servers, Plan(**args), keep or Path(folder))
    print(f"{len(found.broken)} broken", dict(found.counts), *found.broken[:20], sep="\n  ", flush=True)
    return not found.broken


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(_main()) else 1)
