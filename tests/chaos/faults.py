"""The faults: one class each, which causes it, undoes it, and counts how often it really happened.

Some of them lose data, but never more than is allowed: such a fault begins only while every server is in the
view, and the faults of one lane never overlap.
"""

from __future__ import annotations

import asyncio
import enum
import re
import shutil
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, cast

import zkrq
from tests import shift
from tests.chaos.client_process import SMALL_FILLING
from tests.chaos.record import Kind
from tests.chaos.stage import PASSWORD, ClientProcess, Pace, Stage, command, info, let_in, until
from tests.proxy import Connection, Proxy
from tests.shift import ServerClock, Shift
from zkrq import local
from zkrq.protocol.keys import key
from zkrq.replication.server import PING_SECONDS

EVIDENCE_TIMEOUT = 5.0
"""Seconds within which a fault must be seen to have happened."""


BACKLOG, BACKLOG_DELAY = "backlog", 3600.0
"""The queue where many items lie, and in how many seconds they are due: longer than any run."""

MEMORY_APART = 100_000
"""Bytes by which one server may hold more than another."""

NARROW_BYTES = 4e6
"""Bytes a second that a narrow link carries each way."""


CLOCK_STEPS = (-3600, -200, -20, 20, 200, 3600)
"""Seconds by which a server's clock is set."""

CLOCK_LATE_MAX = 30
"""Seconds that items may be late, and by which the clock of a server that decides when items are due is set at most.
More would leave items behind that are due long after the run: what is delayed or retried while the clock is ahead."""


class Lane(enum.Enum):
    """Who suffers.  In a mixed run, one fault of each lane may be there at once."""

    REDIS = "redis"
    ZOOKEEPER = "zookeeper"
    CLIENT = "client"


class Fault(ABC):
    """One way for things to go wrong, again and again."""

    name: ClassVar[str]
    lane: ClassVar[Lane]
    filling: ClassVar[int] = SMALL_FILLING
    """Bytes of ballast in the largest items."""
    users: ClassVar[bool] = False
    """Whether each client has a password of its own; not in a mixed run, since restarted servers forget it."""
    alone: ClassVar[bool] = False
    """Whether it is left out of a mixed run for what it needs."""
    needs_catch_up: ClassVar[bool] = False
    """Whether a server may be out of the view afterwards, until it has been caught up."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.fired: int = 0

    @classmethod
    def seconds(cls, pace: Pace) -> float:
        """How long it lasts."""
        return pace.hold

    async def prepare(self) -> None:
        """Put there what has to be there before the load begins."""
        return

    async def look_back(self) -> None:
        """Add to the stage's troubles what does not hold when everything is drained."""
        return

    @abstractmethod
    async def begin(self) -> str:
        """Do it; returns to whom."""

    @abstractmethod
    async def end(self) -> None:
        """Undo it, as far as that is possible; also after a begin that was broken off."""

    def pick(self) -> local.LocalRedis:
        """A Redis server to suffer: in half of the cases, the one that decides for the queue."""
        servers = self.stage.servers.redis
        return self.stage.primary if self.stage.chance.random() < 0.5 else self.stage.chance.choice(servers)

    def pick_client(self) -> ClientProcess:
        return self.stage.chance.choice(self.stage.clients)


# -- Redis -------------------------------------------------------------------------------------------------------------


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


class PairCut(Fault):
    """One client is cut off from one Redis server, to which the others still have their way."""

    name = "client-redis-cut"
    lane = Lane.REDIS
    needs_catch_up = True

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._cut: Cut | None = None

    async def begin(self) -> str:
        client, server = self.pick_client(), self.pick()
        self._cut = Cut(client.proxies[server.name], self.stage.chance.choice(list(Way)))
        self.fired += self._cut.begin()
        return f"{client.name}/{server.name} {self._cut.way.name.lower()}"

    async def end(self) -> None:
        if self._cut:
            await self._cut.end()


class CutApart(Fault):
    """Each client is cut off from another Redis server."""

    name = "clients-cut-apart"
    lane = Lane.REDIS
    needs_catch_up = True

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._cuts: list[Cut] = []

    async def begin(self) -> str:
        chance, clients = self.stage.chance, self.stage.clients
        pairs = list(zip(clients, chance.sample(self.stage.servers.redis, len(clients)), strict=True))
        self._cuts = [Cut(client.proxies[server.name], chance.choice(list(Way))) for client, server in pairs]
        connected = [cut.begin() for cut in self._cuts]
        self.fired += all(connected)
        return ",".join(f"{client.name}/{server.name}" for client, server in pairs)

    async def end(self) -> None:
        for cut in self._cuts:
            await cut.end()


class WrongPassword(Fault):
    """The password that one client has for one Redis server is no longer right."""

    name = "client-wrong-password"
    lane = Lane.REDIS
    users = True
    alone = True

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._kept_out: tuple[local.LocalRedis, str] | None = None
        self._epoch = 0

    async def begin(self) -> str:
        server, name = self.pick(), self.pick_client().name
        self._epoch = self.stage.look().epoch
        self._kept_out = server, name
        await let_in(server, name, f"not {PASSWORD}")
        killed = await command(server, "CLIENT", "KILL", "USER", name)
        self.fired += isinstance(killed, int) and killed > 0
        return f"{name}/{server.name}"

    async def end(self) -> None:
        if self._kept_out:
            await let_in(*self._kept_out, PASSWORD)
        if self.stage.look().epoch != self._epoch:
            self.stage.troubles.append("a server was evicted because one client has a wrong password for it")


class Narrow(Fault):
    """The links between clients and servers carry little, and some items are large."""

    name = "client-redis-narrow"
    lane = Lane.REDIS
    filling = 300_000
    alone = True

    async def begin(self) -> str:
        for proxy in self._proxies():
            proxy.bandwidth = NARROW_BYTES
        self.fired += 1
        return "all"

    async def end(self) -> None:
        for proxy in self._proxies():
            proxy.bandwidth = None

    def _proxies(self) -> list[Proxy]:
        return [client.proxies[server.name] for client in self.stage.clients for server in self.stage.servers.redis]


class ClockSet(RedisFault):
    """A server's clock is set, and right again later: by so little that the server stays in the view, by so much that
    it leaves, and by so much that it refuses pushes."""

    name = "redis-clock-set"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._clocks: dict[str, ServerClock] = {}
        self._by = 0

    async def prepare(self) -> None:
        servers = self.stage.servers.redis
        made = Shift(Path(tempfile.mkdtemp(dir=servers[0].directory.parent)))  # removed with the servers
        for server in servers:
            self._clocks[server.name] = made.clock_of(server)
            await server.restart()
            await self.stage.become_whole(self.stage.pace.whole)

    async def begin(self) -> str:
        self._by = self.stage.chance.choice(CLOCK_STEPS)
        return f"{await super().begin()} {self._by:+} s"

    def pick(self) -> local.LocalRedis:
        sight, servers = self.stage.look(), self.stage.servers.redis
        followers = [each for each in servers if each.name not in (sight.primary, sight.primary_of_small)]
        return super().pick() if abs(self._by) <= CLOCK_LATE_MAX else self.stage.chance.choice(followers)

    async def hit(self, server: local.LocalRedis) -> None:
        self._clocks[server.name].set(self._by)
        reply = await command(server, "TIME")
        assert isinstance(reply, list)
        self.fired += abs(int(cast("list[bytes]", reply)[0]) - self._by - time.time()) < min(map(abs, CLOCK_STEPS)) / 2

    async def end(self) -> None:
        for clock in self._clocks.values():
            clock.set(0)

    async def look_back(self) -> None:
        for clock in self._clocks.values():
            clock.give_back()


# -- ZooKeeper ---------------------------------------------------------------------------------------------------------


class ZooKeeperLeaderKilled(Fault):
    """The ensemble elects another one."""

    name = "zookeeper-leader-killed"
    lane = Lane.ZOOKEEPER

    async def begin(self) -> str:
        leader = await self.stage.servers.zookeeper_leader()
        await leader.kill()
        self.fired += not leader.running
        return leader.name

    async def end(self) -> None:
        await asyncio.gather(*(server.start() for server in self.stage.servers.zookeeper))


class ZooKeeperDown(ZooKeeperLeaderKilled):
    """All of ZooKeeper is away."""

    name = "zookeeper-down"

    @classmethod
    def seconds(cls, pace: Pace) -> float:
        return pace.zookeeper_down

    async def begin(self) -> str:
        servers = self.stage.servers.zookeeper
        await asyncio.gather(*(server.kill() for server in servers))
        self.fired += not any(server.running for server in servers)
        return "all"


# -- clients -----------------------------------------------------------------------------------------------------------


class ClientFault(Fault):
    """A fault of one client, for longer than its session lasts."""

    lane = Lane.CLIENT

    @classmethod
    def seconds(cls, pace: Pace) -> float:
        return pace.session_timeout + pace.outlived


class ZooKeeperCut(ClientFault):
    """One client is cut off from all of ZooKeeper, so that its session expires while it works on."""

    name = "client-zookeeper-cut"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._cuts: list[Cut] = []

    async def begin(self) -> str:
        client, way = self.pick_client(), self.stage.chance.choice(list(Way))
        self._cuts = [Cut(client.proxies[server.name], way) for server in self.stage.servers.zookeeper]
        connected = [cut.begin() for cut in self._cuts]
        self.fired += any(connected)
        return f"{client.name} {way.name.lower()}"

    async def end(self) -> None:
        for cut in self._cuts:
            await cut.end()


class ClientStopped(ClientFault):
    """A client process is stopped past its session, with all the claims that it holds, and goes on."""

    name = "client-stopped"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._client: ClientProcess | None = None

    async def begin(self) -> str:
        self._client = self.pick_client()
        self.stage.note(Kind.STOPPED, self._client.name)
        self._client.signal(signal.SIGSTOP)
        self.fired += await is_stopped(self._client.pid)
        return self._client.name

    async def end(self) -> None:
        if self._client:
            self._client.signal(signal.SIGCONT)
            self.stage.note(Kind.CONTINUED, self._client.name)


class SubscriptionsSilent(Fault):
    """Whatever goes over one client's subscriptions is dropped without a word, for good; its calls pass."""

    name = "client-subscriptions-silent"
    lane = Lane.CLIENT

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._silent: list[Connection] = []

    async def begin(self) -> str:
        client = self.pick_client()
        # A consumer subscribes when it first waits for items.
        await until(lambda: any(each.is_open for each in client.nat.subscriptions), EVIDENCE_TIMEOUT)
        gone = client.nat.forget()
        self.fired += bool(gone)
        self._silent += gone
        return client.name

    async def end(self) -> None:
        """Nothing ends it: the client has to find out, and to subscribe again."""

    async def look_back(self) -> None:
        noticed = PING_SECONDS + self.stage.pace.command_timeout + EVIDENCE_TIMEOUT
        if not await until(lambda: not any(each.is_open for each in self._silent), noticed):
            self.stage.troubles.append(f"a silent subscription is kept after {noticed:g} s")


# -- the parts ---------------------------------------------------------------------------------------------------------


class Way(enum.Enum):
    """How a client is cut off from a server."""

    REFUSED = "connections are reset, new ones refused"
    SILENT = "nothing arrives, in neither direction, nor ever"
    LATE = "nothing arrives until it ends; then everything does"
    DEAF = "requests arrive, replies do not"


class Cut:
    """One pair cut off, through its proxy."""

    def __init__(self, proxy: Proxy, way: Way) -> None:
        self.way = way
        self._proxy = proxy

    def begin(self) -> bool:
        """Cut it; whether there was a connection to cut."""
        connected = bool(self._proxy.connections)
        match self.way:
            case Way.REFUSED:
                self._proxy.refuse()
                self._proxy.cut(reset=True)
            case Way.SILENT:
                self._proxy.stall()
            case Way.LATE:
                self._proxy.hold()
            case Way.DEAF:
                self._proxy.on_reply = lambda connection, data: b""
        return connected

    async def end(self) -> None:
        """Mend it.  A connection in which something is missing cannot go on."""
        self._proxy.on_reply = lambda connection, data: data
        if self.way is not Way.LATE:
            self._proxy.cut(reset=True)
        self._proxy.flow()
        await self._proxy.accept()


async def is_stopped(pid: int) -> bool:
    """Whether this process is stopped, as it should be in a moment."""
    stat = Path(f"/proc/{pid}/stat")
    return await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", EVIDENCE_TIMEOUT)


FAULTS: Mapping[str, type[Fault]] = {
    fault.name: fault
    for fault in (
        KilledEmpty,
        KilledOld,
        Stopped1,
        Stopped5,
        Stopped30,
        Flushed,
        StoppedLoaded,
        PairCut,
        CutApart,
        WrongPassword,
        Narrow,
        Full,
        FullApart,
        Replica,
        AllKilled,
        ZooKeeperCut,
        ZooKeeperLeaderKilled,
        ZooKeeperDown,
        ClientStopped,
        SubscriptionsSilent,
        *([] if shift.WHY_NOT else [ClockSet]),
    )
}
"""By their names; without those that this machine has no means for."""
