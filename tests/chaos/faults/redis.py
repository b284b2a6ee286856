"""Faults of Redis servers."""

from __future__ import annotations

import asyncio
import re
import shutil
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import zkrq
from tests.chaos.faults.base import EVIDENCE_TIMEOUT, Fault, Lane, is_stopped
from tests.chaos.stage import Pace, Stage, command, info
from zkrq import local
from zkrq.protocol.keys import key

BACKLOG = "backlog"
"""The queue where many items lie."""

BACKLOG_DELAY = 3600.0
"""Seconds after which these items are due: longer than any run."""

MEMORY_APART = 100_000
"""Bytes by which one server may hold more than another."""


class RedisFault(Fault):
    """A fault of one Redis server, which is then out of the view."""

    lane = Lane.REDIS
    needs_catch_up = True

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.server = stage.servers.redis[0]

    async def begin(self) -> str:
        self.server = self.pick()
        await self.hit(self.server)
        return self.server.name

    @abstractmethod
    async def hit(self, server: local.LocalRedis) -> None: ...


class KilledEmpty(RedisFault):
    """kill -9, and back without data."""

    name = "redis-killed-empty"

    async def hit(self, server: local.LocalRedis) -> None:
        await server.kill()
        shutil.rmtree(server.data)
        self.fired += not server.running and not server.data.exists()

    async def end(self) -> None:
        await self.server.start()


class KilledOld(RedisFault):
    """kill -9, and back with the data of some time before: with items that are done, without those pushed since."""

    name = "redis-killed-old"

    async def hit(self, server: local.LocalRedis) -> None:
        copy = self._copy_of(server)
        await asyncio.to_thread(shutil.copytree, server.data, copy)
        await asyncio.sleep(self.stage.pace.hold)
        await server.kill()
        shutil.rmtree(server.data)
        copy.rename(server.data)

    async def end(self) -> None:
        await self.server.start()
        known = await command(self.server, "EXISTS", key(self.stage.namespace, "", "server"))
        self.fired += known == 1
        await asyncio.to_thread(shutil.rmtree, self._copy_of(self.server), ignore_errors=True)

    def _copy_of(self, server: local.LocalRedis) -> Path:
        return server.directory / "old"


class Stopped(RedisFault):
    """SIGSTOP: connections stay open, nobody answers; then it executes what waited for it."""

    stopped_for: ClassVar[float]

    @classmethod
    def seconds(cls, pace: Pace) -> float:
        return cls.stopped_for

    async def hit(self, server: local.LocalRedis) -> None:
        server.pause()
        assert server.pid
        self.fired += await is_stopped(server.pid)

    async def end(self) -> None:
        self.server.resume()


class Stopped1(Stopped):
    name = "redis-stopped-1s"
    stopped_for = 1.0


class Stopped5(Stopped):
    name = "redis-stopped-5s"
    stopped_for = 5.0


class Stopped30(Stopped):
    name = "redis-stopped-30s"
    stopped_for = 30.0


class StoppedLoaded(Stopped):
    """SIGSTOP for a little longer than a call may take, one server after the other, while many items lie in a queue."""

    name = "redis-stopped-loaded"
    alone = True

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._turn = 0

    @classmethod
    def seconds(cls, pace: Pace) -> float:
        return pace.command_timeout * 1.2

    def pick(self) -> local.LocalRedis:
        self._turn += 1
        return self.stage.servers.redis[self._turn % len(self.stage.servers.redis)]

    async def prepare(self) -> None:
        stage = self.stage
        urls = {server.name: server.url for server in stage.servers.redis}
        zookeeper = ",".join(server.address for server in stage.servers.zookeeper)
        async with zkrq.connect(urls, zookeeper, namespace=stage.namespace, on_event=None) as cluster:
            await cluster.queue(BACKLOG).push_many(iter(range(stage.pace.backlog)), delay=BACKLOG_DELAY)

    async def look_back(self) -> None:
        index = key(self.stage.namespace, BACKLOG, "scheduled")
        for server in self.stage.servers.redis:
            if (count := await command(server, "ZCARD", index)) != self.stage.pace.backlog:
                self.stage.troubles.append(
                    f"{server.name} has {count!r} of {self.stage.pace.backlog} items that lay there"
                )


class Flushed(RedisFault):
    """FLUSHALL: the same life, and nothing in it."""

    name = "redis-flushed"

    async def hit(self, server: local.LocalRedis) -> None:
        held = await command(server, "DBSIZE")
        self.fired += await command(server, "FLUSHALL") == b"OK" and held != 0

    async def end(self) -> None:
        pass


class Replica(RedisFault):
    """REPLICAOF: a server takes over another one's data, with the name and the generation that stand in it."""

    name = "redis-replica"

    async def hit(self, server: local.LocalRedis) -> None:
        master = self.stage.chance.choice([other for other in self.stage.servers.redis if other is not server])
        await command(master, "CONFIG", "SET", "repl-diskless-sync-delay", 0)
        await command(server, "REPLICAOF", master.host, master.port)
        async with asyncio.timeout(EVIDENCE_TIMEOUT):
            while b"master_link_status:up" not in await info(server, "replication"):
                await asyncio.sleep(0.02)
        self.fired += 1

    async def end(self) -> None:
        await command(self.server, "REPLICAOF", "NO", "ONE")


class Full(Fault):
    """``maxmemory`` is reached, on one server or on all of them."""

    name = "redis-full"
    lane = Lane.REDIS

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._full: Mapping[local.LocalRedis, int] = {}

    async def begin(self) -> str:
        victims = self.stage.chance.choice([[self.pick()], self.stage.servers.redis])
        self._full = {server: await self._refusals(server) for server in victims}
        for server in victims:
            await command(server, "CONFIG", "SET", "maxmemory", 1)
        return ",".join(server.name for server in victims)

    async def end(self) -> None:
        for server, before in self._full.items():
            self.fired += await self._refusals(server) > before
            await command(server, "CONFIG", "SET", "maxmemory", 0)

    async def _refusals(self, server: local.LocalRedis) -> int:
        for line in (await info(server, "errorstats")).splitlines():
            if line.startswith(b"errorstat_OOM:count="):
                return int(line.partition(b"=")[2])
        return 0


class FullApart(Full):
    """Each server has a ``maxmemory`` of its own: one is full at once, the others after it."""

    name = "redis-full-apart"

    async def begin(self) -> str:
        servers = self.stage.chance.sample(self.stage.servers.redis, len(self.stage.servers.redis))
        self._full = {server: await self._refusals(server) for server in servers}
        for number, server in enumerate(servers):
            used = re.search(rb"used_memory:(\d+)", await info(server, "memory"))
            assert used
            await command(server, "CONFIG", "SET", "maxmemory", int(used[1]) + (number - 1) * MEMORY_APART)
        return ",".join(server.name for server in servers)


class AllKilled(Fault):
    """Every Redis server is killed at once; each is back with all that it had answered for."""

    name = "redis-all-killed"
    lane = Lane.REDIS
    needs_catch_up = True

    async def begin(self) -> str:
        servers = self.stage.servers.redis
        for server in servers:
            # `everysec` may answer before it writes, while it waits for the disk: that much a kill would lose.
            await command(server, "CONFIG", "SET", "appendfsync", "always")
        await asyncio.gather(*(server.kill() for server in servers))
        self.fired += not any(server.running for server in servers)
        return "all"

    async def end(self) -> None:
        await asyncio.gather(*(server.start() for server in self.stage.servers.redis))
