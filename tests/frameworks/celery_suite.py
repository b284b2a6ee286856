"""Run Celery's own integration suite over Redis and over zkrq, and compare: ``make celery CELERY=folder``.

The folder is a copy of Celery's repository at the installed version; README.md says how to get it.  Each file of
tests is run by a pytest of its own, in that folder, with a broker at a time.  What fails over zkrq must fail over
Redis, too.  With ``--kill`` a Redis server of zkrq's and ZooKeeper's leader are killed in turn while the suite runs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from zkrq import local

ROOT = Path(__file__).parents[2]

FILES = ("test_tasks.py", "test_canvas.py", "test_inspect.py", "test_worker.py")

EXPLAINED = {
    "test_scheduled": "tasks with a countdown are held by the servers, so no worker has one to show",
    "test_replaced_task_nesting_level_0": "it resets what the signal of its task sets after sending the task: a race",
    "test_chord_header_id_duplicated_on_rabbitmq_msg_duplication[redis-group-ids]": "it leaves out Redis by name; its "
    "handler publishes an object that is no JSON, which only AMQP ignores",
    "test_nested_group_chord_body_chain": "it expects that the result never comes, and it comes",
}
"""Tests that may fail over zkrq alone, and why; README.md has the same."""

FILE_SECONDS = 1800.0
"""Seconds that one file of tests may take."""

KILL_SECONDS = 20.0
"""Seconds from one kill to the next."""

DOWN_SECONDS = 4.0
"""Seconds for which a killed server stays down."""

END_SECONDS = 60.0
"""Seconds that pytest has to end after SIGINT."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run, and where its logs go."""

    folder: Path
    files: Sequence[str]
    kill: bool
    results: str
    out: Path
    rest: Sequence[str]


def environment(servers: local.Servers, store: local.LocalRedis, broker: str, results: str) -> Mapping[str, str]:
    """Return the environment of the suite; Celery's own variables name broker, results, and the Redis for both."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("ZKRQ_", "PYTEST_"))},
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TEST_BROKER": f"{store.url}/1" if broker == "redis" else "zkrq://",
        "TEST_BACKEND": f"{store.url}/2" if results == "redis" else "zkrq.kombu.results:ZkrqBackend",
        "REDIS_HOST": store.host,
        "REDIS_PORT": str(store.port),
        "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
        "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
        "ZKRQ_NAMESPACE": "suite",
        "ZKRQ_FOUND": "1",
    }


async def run(plan: Plan, file: str, broker: str, variables: Mapping[str, str]) -> Mapping[str, str]:
    """Run one file; return what became of each test.  A file that does not end in time has failed."""
    report = plan.out / f"{broker}-{file}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"t/integration/{file}", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-v", "-p", "celery.contrib.pytest", "-p", "zkrq.kombu", f"--junitxml={report}", *plan.rest]
    with (plan.out / f"{broker}-{file}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=plan.folder, env=variables, stdout=log, stderr=log, start_new_session=True
        )
        try:
            async with asyncio.timeout(FILE_SECONDS):
                await process.wait()
        except TimeoutError:
            os.killpg(process.pid, signal.SIGINT)  # writes its report
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return outcomes(report, file)


def outcomes(report: Path, file: str) -> Mapping[str, str]:
    """Read pytest's report."""
    if not report.exists():
        return {f"{file}::(no report)": "failed"}
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        # What Celery's authors have marked as failing, and passes.
        kinds = {child.tag for child in case if "[XPASS(strict)]" not in str(child.get("message"))}
        name = f"{file}::{str(case.get('classname')).removeprefix('t.integration.')}::{case.get('name')}"
        found[name] = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
    return found


@asynccontextmanager
async def killing(servers: local.Servers, enabled: bool) -> AsyncGenerator[None]:
    """Kill a Redis server or ZooKeeper's leader, by turns, and start it again."""

    async def kill() -> None:
        turn = 0
        while True:
            await asyncio.sleep(KILL_SECONDS - DOWN_SECONDS)
            is_redis = turn % 2 == 0
            victim = servers.redis[turn // 2 % len(servers.redis)] if is_redis else await servers.zookeeper_leader()
            turn += 1
            print(f"{time.strftime('%H:%M:%S')} kill {victim.name}", flush=True)
            await victim.kill()
            await asyncio.sleep(DOWN_SECONDS)
            await victim.start()

    task = asyncio.create_task(kill()) if enabled else None
    try:
        yield
    finally:
        if task:
            task.cancel()
            await asyncio.wait([task])


async def compare(plan: Plan, brokers: Sequence[str]) -> Sequence[str]:
    """Run everything; print a table; return the tests that failed over zkrq only."""
    plan.out.mkdir(parents=True, exist_ok=True)
    by_broker: dict[str, dict[str, str]] = {broker: {} for broker in brokers}
    async with local.servers(redis=3, zookeeper=3) as servers, local.servers(redis=1, zookeeper=0) as store:
        for broker in brokers:
            variables = environment(servers, store.redis[0], broker, plan.results if broker == "zkrq" else "redis")
            for file in plan.files:
                began = time.monotonic()
                async with killing(servers, plan.kill and broker == "zkrq"):
                    found = await run(plan, file, broker, variables)
                by_broker[broker].update(found)
                counts = [sum(what == kind for what in found.values()) for kind in ("passed", "failed", "skipped")]
                took = time.monotonic() - began
                told = "passed {:4}, failed {:3}, skipped {:3}".format(*counts)
                print(f"{broker:6} {file:20} {told}: {took:.0f} s", flush=True)
    failed = {broker: {name for name, what in by_broker[broker].items() if what == "failed"} for broker in brokers}
    for name in sorted(set[str]().union(*failed.values())):
        print(f"failed over {', '.join(broker for broker in brokers if name in failed[broker])}: {name}")
    return sorted(failed.get("zkrq", set()) - failed.get("redis", set()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a copy of Celery's repository")
    parser.add_argument("--broker", choices=["redis", "zkrq"], action="append", help="default: both")
    parser.add_argument("--results", choices=["redis", "zkrq"], default="redis", help="where zkrq's run keeps results")
    parser.add_argument("--file", action="append", help=f"a file of tests; default: {', '.join(FILES)}")
    parser.add_argument("--kill", action="store_true", help="kill servers while the suite runs over zkrq")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "celery", help="folder for logs and reports")
    arguments, rest = parser.parse_known_args()
    if not (arguments.folder / "t" / "integration" / "test_tasks.py").exists():
        parser.error(f"there is no t/integration/test_tasks.py in {arguments.folder}: see tests/frameworks/README.md")
    plan = Plan(
        arguments.folder.resolve(),
        arguments.file or FILES,
        arguments.kill,
        arguments.results,
        arguments.out.resolve(),
        rest,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that pytest and the servers end, too
    only_zkrq = asyncio.run(compare(plan, arguments.broker or ["redis", "zkrq"]))
    unexplained = [name for name in only_zkrq if name.rpartition("::")[2] not in EXPLAINED]
    for name in only_zkrq:
        reason = EXPLAINED.get(name.rpartition("::")[2])
        print(f"failed over zkrq only: {name}: {reason}" if reason else f"FAILED over zkrq only: {name}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
