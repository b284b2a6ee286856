"""Two worlds with the same faults: coordinators in memory, and on real ZooKeeper servers behind proxies."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from typing import cast

import pytest

from tests.proxy import Proxy
from zkrq import local
from zkrq.coordination.coordinator import VIEW, Coordinator, Session, SessionState
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.coordination.zookeeper import ZooKeeperCoordinator
from zkrq.coordination.zookeeper.hosts import Address
from zkrq.coordination.zookeeper.link import Greeting, ZooKeeperLink

HANG = 25.0  # seconds after which a wait is taken for a hang; less than RESYNC_INTERVAL, which would hide one
SESSION_TIMEOUT = 3.0  # seconds; the servers tick every 0.5
MEMORY_SESSION_TIMEOUT = 1.0  # seconds

_namespaces = itertools.count(1)


class Recorder:
    """A listener that remembers everything in order, and can wait for more."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.sessions: list[Session] = []
        self.leading: list[bool] = []
        self.changes = Counter[str]()
        self.consumers = 0
        self._news = asyncio.Event()
        coordinator.subscribe(self)

    @property
    def states(self) -> list[SessionState]:
        return [session.state for session in self.sessions]

    @property
    def views(self) -> int:
        return self.changes[VIEW]

    def register_changed(self, register: str) -> None:
        self.changes[register] += 1
        self._news.set()

    def consumers_changed(self) -> None:
        self.consumers += 1
        self._news.set()

    def session_changed(self, session: Session) -> None:
        self.sessions.append(session)
        self._news.set()

    def leading_changed(self, leading: bool) -> None:
        self.leading.append(leading)
        self._news.set()

    async def until(self, condition: Callable[[], bool], timeout: float = HANG) -> None:
        async with asyncio.timeout(timeout):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def until_state(self, state: SessionState, count: int = 1) -> None:
        await self.until(lambda: self.states.count(state) >= count)


class World(ABC):
    """Coordinators that share one register, and what may happen to each of them."""

    @abstractmethod
    async def coordinator(self) -> Coordinator:
        """A new one, not started."""

    @abstractmethod
    async def suspend(self, coordinator: Coordinator) -> None: ...

    @abstractmethod
    async def resume(self, coordinator: Coordinator) -> None: ...

    @abstractmethod
    async def expire(self, coordinator: Coordinator) -> None:
        """End its session, without it being told by us."""

    @abstractmethod
    def lose_reply_to(self, coordinator: Coordinator, request: bytes) -> None:
        """Let the next request that contains these bytes be carried out, but the answer get lost."""


class MemoryWorld(World):
    def __init__(self) -> None:
        self.hub = Hub(session_timeout=MEMORY_SESSION_TIMEOUT)

    async def coordinator(self) -> Coordinator:
        return MemoryCoordinator(self.hub)

    async def suspend(self, coordinator: Coordinator) -> None:
        self.hub.suspend(cast("MemoryCoordinator", coordinator))

    async def resume(self, coordinator: Coordinator) -> None:
        self.hub.resume(cast("MemoryCoordinator", coordinator))

    async def expire(self, coordinator: Coordinator) -> None:
        self.hub.expire(coordinator.session.id)

    def lose_reply_to(self, coordinator: Coordinator, request: bytes) -> None:
        self.hub.lose_reply(cast("MemoryCoordinator", coordinator))


class ZooKeeperWorld(World):
    """Every coordinator has proxies of its own: ``proxies[coordinator]``, one for each server."""

    def __init__(self, servers: local.Servers, stack: AsyncExitStack) -> None:
        self.servers = servers
        self.namespace = f"t{next(_namespaces)}"
        self.proxies: dict[Coordinator, list[Proxy]] = {}
        self._stack = stack

    async def coordinator(
        self, session_timeout: float = SESSION_TIMEOUT, auth: tuple[str, str] | None = None
    ) -> ZooKeeperCoordinator:
        proxies = [
            await self._stack.enter_async_context(Proxy(server.host, server.port)) for server in self.servers.zookeeper
        ]
        hosts = ",".join(proxy.address for proxy in proxies)
        made = ZooKeeperCoordinator(hosts, namespace=self.namespace, session_timeout=session_timeout, auth=auth)
        self.proxies[made] = proxies
        return made

    def direct(self, session_timeout: float = SESSION_TIMEOUT, auth: tuple[str, str] | None = None):
        """A coordinator without proxies, not started."""
        hosts = self.servers.zookeeper_hosts
        return ZooKeeperCoordinator(hosts, namespace=self.namespace, session_timeout=session_timeout, auth=auth)

    def proxy_in_use(self, coordinator: Coordinator) -> Proxy:
        """The one through which the coordinator is connected now."""
        return next(proxy for proxy in self.proxies[coordinator] if proxy.connections)

    def cut(self, coordinator: Coordinator, *, reset: bool = False) -> None:
        for proxy in self.proxies[coordinator]:
            proxy.cut(reset=reset)

    async def suspend(self, coordinator: Coordinator) -> None:
        for proxy in self.proxies[coordinator]:
            proxy.refuse()
        self.cut(coordinator)

    async def resume(self, coordinator: Coordinator) -> None:
        for proxy in self.proxies[coordinator]:
            await proxy.accept()

    async def expire(self, coordinator: Coordinator) -> None:
        """As an operator would: take the session over by its id and password, and close it."""
        session = cast("ZooKeeperCoordinator", coordinator)._session  # pyright: ignore[reportPrivateUsage]
        server = self.servers.zookeeper[0]
        link = ZooKeeperLink(Address(server.host, server.port), lambda path: None)
        await link.open(Greeting(session.id, session._password, session.timeout), 0)  # pyright: ignore[reportPrivateUsage]
        serving = asyncio.create_task(link.serve(session.timeout))
        await link.end_session()
        await serving
        await link.close()

    def lose_reply_to(self, coordinator: Coordinator, request: bytes) -> None:
        for proxy in self.proxies[coordinator]:
            proxy.lose_reply_to(request)


@pytest.fixture
async def zookeeper(servers: local.Servers) -> AsyncGenerator[ZooKeeperWorld, None]:
    async with AsyncExitStack() as stack:
        yield ZooKeeperWorld(servers, stack)


@pytest.fixture(params=["memory", "zookeeper"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "memory":
        return MemoryWorld()
    return request.getfixturevalue("zookeeper")
