"""No password appears where it is not needed: logs, events, errors, ``repr``, znodes, process titles, output.

A run with faults and mistakes has passwords that are known; then everything that it left is searched for them.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import traceback
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import pytest

import zkrq
from tests.harness import HANG, SESSION_TIMEOUT, command, new_namespace, settled, until
from tests.load import Load
from tests.security import rights
from tests.security.znodes import link_of
from zkrq import local
from zkrq.client.cluster import Cluster
from zkrq.coordination.zookeeper.link import ZooKeeperLink

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
USER = "keeper"
REDIS, STALE, ZOOKEEPER, WRONG = "Xq7-of-redis", "Xq7@of/stale:%?", "Xq7-of-zookeeper", "Xq7-of-nobody"
SECRETS = (REDIS, STALE, quote(STALE, ""), ZOOKEEPER, WRONG)
MARK = "Xq7"
"""What every secret begins with."""

WORKER = """
import zkrq

def worker(cluster):
    return zkrq.Worker().add(cluster.queue("printed"), print)
"""


class Findings:
    """All that was seen, as texts, and where."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.leaks: list[str] = []

    def look(self, place: str, *texts: object) -> None:
        self.places[place] = self.places.get(place, 0) + len(texts)
        self.leaks += [f"{place}: {text}" for text in texts if MARK in str(text)]

    def look_at_error(self, error: BaseException) -> None:
        self.look("error", str(error), repr(error), repr(vars(error)), "".join(traceback.format_exception(error)))


class Everything(logging.Handler):
    """Looks at all of a record: text, arguments, extra attributes, traceback."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(logging.NOTSET)
        self._findings = findings
        self.loggers: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.loggers.add(record.name)
        parts = [f"{name}={value!r}" for name, value in vars(record).items()]
        shown = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
        self._findings.look("log", record.getMessage(), *parts, shown)


@pytest.fixture
def findings() -> Findings:
    return Findings()


@pytest.fixture
def logs(findings: Findings) -> Generator[Everything]:
    """All loggers at DEBUG, those of the drivers and of asyncio as well."""
    handler, root = Everything(findings), logging.getLogger()
    every = [logging.getLogger(name) for name in logging.Logger.manager.loggerDict]
    before = [(logger, logger.level) for logger in (root, *every)]
    for logger, _ in before:
        logger.setLevel(logging.DEBUG)
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)
    for logger, level in before:
        logger.setLevel(level)


@pytest.fixture
async def namespace(servers: local.Servers) -> AsyncGenerator[str]:
    """A namespace whose user has the password; the user survives a restart."""
    namespace = new_namespace()
    rule = rights.rule(USER, REDIS, namespace)
    for server in servers.redis:
        assert not (await command(server, "ACL", "SETUSER", *rule)).startswith(b"-")
        server.config["user"] = " ".join(word for word in rule if word != "reset")
    yield namespace
    for server in servers.redis:
        del server.config["user"]
        await command(server, "ACL", "DELUSER", USER)


def connect(servers: local.Servers, namespace: str, **options: Any) -> Cluster:
    given: dict[str, Any] = {
        "redis": servers.redis_urls,
        "zookeeper": servers.zookeeper_hosts,
        "zookeeper_auth": ("shop", ZOOKEEPER),
        "redis_auth": (USER, REDIS),
        "namespace": namespace,
        "session_timeout": SESSION_TIMEOUT,
        **options,
    }
    return zkrq.connect(**given)


def urls(servers: local.Servers, password: str) -> dict[str, str]:
    return {server.name: f"redis://{USER}:{quote(password, '')}@{server.address}" for server in servers.redis}


async def test_no_secret_is_shown(
    servers: local.Servers,
    namespace: str,
    findings: Findings,
    logs: Everything,
    prepared_zkrq: list[str],
    tmp_path: Path,
) -> None:
    events: list[zkrq.Event] = []
    async with connect(servers, namespace, found=True, on_event=events.append) as cluster:
        load = Load(cluster, pause=0.02)  # every line of every log is looked at
        async with load.running(producers=1, consumers=1):
            async with connect(servers, namespace, redis=urls(servers, REDIS), redis_auth=None) as by_url:
                await faults(servers, cluster, by_url, events)
                await mistakes(servers, namespace, findings)
                await look_at_objects(findings)
            await look_at_znodes(findings, await link_of(cluster), f"/{namespace}")
            await look_at_processes(findings, servers, namespace, prepared_zkrq, tmp_path)
            await until(load.progress(100))
        findings.look("health", cluster.health(), cluster.view, *(await cluster.consumers()).values())
    findings.look("event", *map(str, events), *map(repr, events))
    assert not findings.leaks, "\n".join(findings.leaks[:20])
    for place, least in {
        "log": 200,
        "event": 10,
        "error": 20,
        "repr": 100,
        "znode": 4,
        "process": 5,
        "output": 6,
    }.items():
        assert findings.places[place] >= least, f"{place}: nothing was looked at"
    assert {"zkrq.events", "zkrq.server", "aiozk.connection.payload"} <= logs.loggers


async def faults(servers: local.Servers, cluster: Cluster, by_url: Cluster, events: list[zkrq.Event]) -> None:
    """Connections and servers die, and the list of servers changes."""
    for server in servers.redis:
        await command(server, "CLIENT", "KILL", "USER", USER)
    await servers.redis[1].restart(wipe=True)
    await until(lambda: any(isinstance(event, zkrq.ServerCaughtUp) for event in events))
    (await link_of(cluster)).kill("for a test")
    await until(lambda: any(isinstance(event, zkrq.SessionResumed) for event in events))
    await by_url.remove_server("redis-3")
    added = servers.redis[2]
    await by_url.add_server(f"redis://{USER}:{REDIS}@{added.address}", name=added.name, force=True)
    await settled(lambda: is_whole(cluster))


async def is_whole(cluster: Cluster) -> bool:
    return len(cluster.view.members) == 3


async def mistakes(servers: local.Servers, namespace: str, findings: Findings) -> None:
    """Everything that a user may get wrong about a password, and near one."""
    address = servers.redis[0].address
    unreachable = f"redis://{USER}:{WRONG}@127.0.0.1:1"
    wrong: list[dict[str, Any]] = [
        {"redis_auth": (USER, WRONG)},
        {"redis": urls(servers, STALE), "redis_auth": None},
        {"redis": [unreachable]},
        {"redis": [f"redis://{USER}:{WRONG}@{address}/9"]},
        {"redis": [f"redis://{USER}:{STALE}@{address}"]},
        {"redis": [f"http://{USER}:{WRONG}@{address}"]},
        {"redis": [f"redis://{USER}:{WRONG}@{address}?passwort={WRONG}&password={WRONG}"]},
        {"redis": [f"rediss://{USER}:{WRONG}@{address}"]},
        {"redis": [f"redis://{USER}:{WRONG}@no.such.host.invalid"]},
        {"redis": [f"redis://{USER}:{WRONG}@{address}", f"redis://{USER}:{WRONG}@{address}"]},
        {"redis_auth": ("a:b", WRONG)},
        {"redis_auth": f"{USER}:{WRONG}"},
        {"redis_auth": (USER, WRONG, WRONG)},
        {"redis_auth": raises},
        {"zookeeper_auth": ("shop", WRONG)},
        {"zookeeper_auth": (f"a:{USER}", WRONG)},
        {"zookeeper_auth": f"shop:{WRONG}"},
        {"zookeeper_auth": lambda: [WRONG]},
    ]
    for options in wrong:
        with pytest.raises((zkrq.ConfigError, zkrq.Unavailable)) as failed:
            async with (
                asyncio.timeout(HANG),
                connect(servers, namespace, command_timeout=0.5, operation_timeout=0.5, **options),
            ):
                pass
        findings.look_at_error(failed.value)
    async with connect(servers, namespace) as cluster:
        for url in (unreachable, f"redis://{USER}:{STALE}@{address}", f"http://{WRONG}@x"):
            with pytest.raises((zkrq.ConfigError, zkrq.Unavailable)) as failed:
                await cluster.add_server(url)
            findings.look_at_error(failed.value)


def raises() -> tuple[str, str]:
    raise LookupError(WRONG)


async def look_at_objects(findings: Findings) -> None:
    """The ``repr`` of every living object of zkrq and of its drivers, but for their plain containers.

    Those that earlier tests have left count as well, so it pauses, or the session would end meanwhile.
    """
    things: list[object] = gc.get_objects()
    for at, thing in enumerate(things):
        if not at % 1_000:
            await asyncio.sleep(0)
        module: object = getattr(type(thing), "__module__", None)
        if isinstance(module, str) and module.split(".")[0] in ("zkrq", "redis", "aiozk"):
            with suppress(AttributeError, TypeError, ReferenceError, zkrq.Closed):  # half made, or not open
                findings.look("repr", repr(thing), str(thing))


async def look_at_znodes(findings: Findings, link: ZooKeeperLink, path: str) -> None:
    node = await link.read(path)
    findings.look("znode", path, node.data.decode(errors="replace") if node else "", await link.rights(path))
    for name in await link.children(path):
        await look_at_znodes(findings, link, f"{path}/{name}")


async def look_at_processes(
    findings: Findings, servers: local.Servers, namespace: str, prepared_zkrq: list[str], folder: Path
) -> None:
    """A worker with two processes, and commands that succeed and fail; their arguments and output."""
    (folder / "jobs.py").write_text(WORKER)
    (folder / "redis").write_text(f"{USER}:{REDIS}\n")
    (folder / "zookeeper").write_text(f"shop:{ZOOKEEPER}\n")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ZKRQ_")},
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
        "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
        "ZKRQ_REDIS_AUTH_FILE": str(folder / "redis"),
        "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
        "ZKRQ_ZOOKEEPER_AUTH_FILE": str(folder / "zookeeper"),
        "ZKRQ_NAMESPACE": namespace,
    }
    log = folder / "log"
    with log.open("wb") as output:
        worker = [sys.executable, "-m", "zkrq", "worker", "jobs:worker", "--processes", "2"]
        async with await anyio.open_process(worker, env=environment, stdout=output, stderr=output) as process:
            await until(lambda: len(descendants(process.pid)) >= 3)
            await anyio.run_process([*prepared_zkrq, "push", "printed", '"x"'], env=environment)
            pids = [*descendants(process.pid), *(server.pid for server in servers.all)]
            findings.look("process", *(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids))
            process.terminate()
            await process.wait()
    findings.look("output", log.read_text())
    for words, more in (
        (["servers", "list", "--json"], {}),
        (["stats"], {"ZKRQ_REDIS_AUTH_FILE": "", "ZKRQ_REDIS_AUTH": f"{USER}:{WRONG}"}),
        (["stats"], {"ZKRQ_ZOOKEEPER_AUTH_FILE": "", "ZKRQ_ZOOKEEPER_AUTH": f":{WRONG}"}),
        (["stats"], {"ZKRQ_REDIS": f"http://{USER}:{WRONG}@x"}),
        (["stats"], {"ZKRQ_REDIS_AUTH": WRONG, "ZKRQ_REDIS_AUTH_FILE": ""}),
        (["--help"], {"ZKRQ_REDIS_AUTH": f"{USER}:{WRONG}"}),
    ):
        done = await anyio.run_process([*prepared_zkrq, *words], env={**environment, **more}, check=False)
        findings.look("output", done.stdout.decode(), done.stderr.decode())


def descendants(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *(below for child in children(pid) for below in descendants(child))]


def children(pid: int) -> Iterable[int]:
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
