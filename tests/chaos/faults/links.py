"""Faults between clients and Redis servers."""

from __future__ import annotations

import enum

from tests.chaos.faults.base import Fault, Lane
from tests.chaos.stage import PASSWORD, Stage, command, let_in
from tests.proxy import Proxy
from zkrq import local

NARROW_BYTES = 4e6
"""Bytes a second that a narrow link carries each way."""


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
