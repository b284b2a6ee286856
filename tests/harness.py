"""Helpers of integration and fault tests: clusters in namespaces of their own, and consumers in other processes."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import zkrq
from zkrq import local
from zkrq.base.settings import Settings
from zkrq.client.cluster import Cluster
from zkrq.consuming.claims import lease_of
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.protocol.view import View
from zkrq.replication.urls import dial
from zkrq.replication.wire import Dial

HANG = 60.0
"""Seconds after which a test that waits has failed; nothing finer is asserted of time."""

A_WHILE = 2.0
"""Seconds to wait for what must not come: a request is answered within them on a busy machine, too."""

SESSION_TIMEOUT = 3.0

_count = itertools.count()


def new_namespace() -> str:
    """A namespace that no other test uses."""
    return f"test-{os.getpid()}-{next(_count)}"


def over_zookeeper(servers: local.Servers, namespace: str, **options: Any) -> Cluster:
    """A client of the real thing, which founds its namespace where there is none."""
    settings: dict[str, Any] = {"session_timeout": SESSION_TIMEOUT, "found": True, **options}
    return zkrq.connect(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace, **settings)


def in_process(
    servers: local.Servers,
    namespace: str,
    hub: Hub | None = None,
    *,
    dial: Dial = dial,
    urls: Mapping[str, str] | None = None,
    **options: Any,
) -> Cluster:
    """A client with real Redis servers and the coordinator in this process.  ``urls``: of servers that it reaches in
    another way, through a proxy for instance."""
    given: dict[str, Any] = {"found": True, "description": "test", **options}
    settings = Settings(namespace=namespace, **given)
    return Cluster({**servers.redis_urls, **(urls or {})}, MemoryCoordinator(hub or Hub()), settings, dial=dial)


async def until(condition: Callable[[], bool], pause: float = 0.01) -> None:
    """Wait until something becomes true."""
    async with asyncio.timeout(HANG):
        while not condition():
            await asyncio.sleep(pause)


async def settled(question: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something that has to be asked for becomes true."""
    async with asyncio.timeout(HANG):
        while not await question():
            await asyncio.sleep(0.02)


async def command(server: local.LocalRedis, *words: str) -> bytes:
    """One command to one server; its whole reply, as it came."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        for command in (words, ("QUIT",)):
            writer.write(f"*{len(command)}\r\n".encode() + b"".join(f"${len(w)}\r\n{w}\r\n".encode() for w in command))
        async with asyncio.timeout(HANG):
            return await reader.read(-1)
    finally:
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def configured(server: local.LocalRedis, option: str, value: str) -> AsyncGenerator[None]:
    """One server with another option, which is restored."""
    before = (await command(server, "CONFIG", "GET", option)).decode().split("\r\n")[4]
    assert (await command(server, "CONFIG", "SET", option, value)).startswith(b"+OK")
    try:
        yield
    finally:
        await command(server, "CONFIG", "SET", option, before)


def stolen(claim: zkrq.Claim[Any]) -> zkrq.Claim[Any]:
    """The same claim in other hands, as an operator would settle it without the holder's knowledge."""
    lease = lease_of(claim)
    return zkrq.Claim(None, lease.grant, lease.position, 1e12)


async def push_surely(
    queue: zkrq.Queue[Any], item: object, id: str | None, *, group: str | None = None, pause: float = 0.05
) -> None:
    """Push until it is certain, under one id."""
    while True:
        try:
            await queue.push(item, id=id, group=group)
        except (zkrq.OutcomeUnknown, zkrq.Unavailable, zkrq.NotEnoughReplicas):
            await asyncio.sleep(pause)
        else:
            return


async def take(queue: zkrq.Queue[Any]) -> zkrq.Claim[Any]:
    """One claim, which must come."""
    claim = await queue.pop_one(timeout=HANG)
    assert claim is not None
    return claim


class ConsumerProcess:
    """A consumer in a process of its own, that does what it is told line by line (see consumer_process.py)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()

    async def hear(self) -> list[str]:
        """Its next line, as words."""
        assert self._process.stdout is not None
        async with asyncio.timeout(HANG):
            line = await self._process.stdout.readline()
        assert line, "the consumer process ended"
        return line.decode().split()

    async def ask(self, line: str) -> list[str]:
        await self.tell(line)
        return await self.hear()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)


@asynccontextmanager
async def consumer_process(
    servers: local.Servers, namespace: str, queue: str, urls: Mapping[str, str] | None = None
) -> AsyncGenerator[ConsumerProcess, None]:
    """Start a consumer process that is connected when this is entered; it is killed when this is left."""
    urls = urls or servers.redis_urls
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.consumer_process",
        ",".join(f"{name}={url}" for name, url in urls.items()),
        servers.zookeeper_hosts,
        namespace,
        queue,
        str(SESSION_TIMEOUT),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    consumer = ConsumerProcess(process)
    try:
        assert await consumer.hear() == ["connected"]
        yield consumer
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def is_whole(cluster: Cluster, after: int = 0) -> bool:
    """Whether the view has moved on from that epoch, and all servers are in sync."""
    return cluster.view.epoch > after and cluster.view.members.keys() == cluster.view.servers.keys()


async def whole_again(cluster: Cluster, after: View) -> None:
    await until(lambda: is_whole(cluster, after.epoch))


async def drain(cluster: Cluster, queue: str = "jobs") -> list[object]:
    """Everything that is ready, acked."""
    items: list[object] = []
    async for claim in cluster.queue(queue).pop(wait=False):
        async with claim:
            items.append(claim.item)
    return items
