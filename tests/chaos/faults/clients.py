"""Faults of clients, and of their ways to ZooKeeper."""

from __future__ import annotations

import signal

from tests.chaos.faults.base import EVIDENCE_TIMEOUT, Fault, Lane, is_stopped
from tests.chaos.faults.links import Cut, Way
from tests.chaos.record import Kind
from tests.chaos.stage import ClientProcess, Pace, Stage, until
from tests.proxy import Connection
from zkrq.replication.server import PING_SECONDS


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
