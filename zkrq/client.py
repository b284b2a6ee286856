"""Run one client of a namespace: its connections, its view, its queues and its background work.

``Cluster`` is its public face.  A client is also the listener of its coordinator: it passes every change on to the
parts that need it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, NamedTuple

import anyio

from zkrq.consuming.identity import Identity
from zkrq.consuming.leases import Leases
from zkrq.consuming.prefetch import Prefetcher
from zkrq.consuming.wakeups import Wakeups
from zkrq.coordination.coordinator import Coordinator, Session, SessionState
from zkrq.errors import Closed, ConfigError, ZkrqError
from zkrq.events import DeclaredDead, Events, LoopBlocked, SessionLost, SessionResumed, SessionSuspended
from zkrq.health import Health, ServerHealth, place_of
from zkrq.home import Home
from zkrq.limits import DeadLetters
from zkrq.observing import Observers
from zkrq.parts import QueueParts
from zkrq.producing.pusher import Pusher
from zkrq.producing.schedules import Schedules
from zkrq.protocol import calls
from zkrq.protocol.eviction import Evicting
from zkrq.protocol.founding import Founding, Location
from zkrq.protocol.operations import OPERATIONS
from zkrq.protocol.recovery import has_live_member
from zkrq.protocol.replies import Answer
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.view import Life, ServerId, View
from zkrq.protocol.witness import Witness
from zkrq.queue import Queue
from zkrq.repair.fencing import Reaper
from zkrq.repair.probe import Probe
from zkrq.repair.repairer import Repairer
from zkrq.repair.roster import Roster
from zkrq.replication.attendance import Attendance
from zkrq.replication.cutting import Cutter
from zkrq.replication.fleet import Fleet
from zkrq.replication.membership import Membership
from zkrq.replication.obstacles import KnownObstacles
from zkrq.replication.replicas import Replicas
from zkrq.replication.runner import Runner
from zkrq.replication.server import Server
from zkrq.replication.urls import redact, without_credentials
from zkrq.replication.wire import Dial
from zkrq.retry import Retry
from zkrq.settings import QueueSettings, Settings
from zkrq.stalls import watch_for_stalls
from zkrq.tasks import Tasks, see_through

CLOSE_TIMEOUT = 5.0
"""Seconds that closing spends on handing back claims and on removing payloads of finished items.

Claims that are left then come back when the session has ended.
"""

NOT_OPEN = (
    "the cluster is not open: enter it first, as in `async with zkrq.connect(...) as cluster`, "
    "or `await cluster.open()`"
)

_log = logging.getLogger("zkrq")


class OpenQueue(NamedTuple):
    """A queue in use by this client: its public face, its inside, and its settings."""

    queue: Queue[Any]
    parts: QueueParts[Any]
    settings: QueueSettings


class Client:
    """Own the parts of a client, open and close them."""

    def __init__(self, servers: Mapping[str, str], coordinator: Coordinator, settings: Settings, *, dial: Dial) -> None:
        self.settings: Final = settings
        self.coordinator: Final = coordinator
        namespace = self.namespace = settings.namespace
        self.events: Final = Events(settings.on_event)
        self.observers: Final = Observers(self.events)
        self.tasks: Final = Tasks(f"zkrq {namespace}")
        self.home: Final = Home()
        make_server = partial(
            Server, namespace=namespace, command_timeout=settings.command_timeout, tasks=self.tasks, dial=dial
        )
        self.fleet: Final = Fleet({ServerId(id): url for id, url in servers.items()}, make_server, namespace=namespace)
        self.membership: Final = Membership(coordinator, self.fleet, namespace=namespace, events=self.events)
        self.witness: Final = Witness(secrets.token_hex(8))
        self.obstacles: Final = KnownObstacles(self.fleet, self.witness, namespace=namespace, events=self.events)
        self.cutter: Final = Cutter(self.membership, self.tasks)
        evicting = Evicting(self.witness)
        runner = Runner(
            self.membership,
            self.obstacles,
            evicting,
            settings=settings,
            events=self.events,
            removed=self.cutter.note,
        )
        self.attendance: Final = Attendance(runner, evicting, self.obstacles, namespace=namespace)
        self.replicas: Final = Replicas(runner)
        self.wakeups: Final = Wakeups(self.fleet.servers, namespace=namespace, tasks=self.tasks, events=self.events)
        self.reaper: Final = Reaper(coordinator, self.replicas, cluster=namespace, events=self.events)
        self.repairer: Final = Repairer(coordinator, self.replicas, self.witness, cluster=namespace, events=self.events)
        self.probe: Final = Probe(coordinator, self.replicas, cluster=namespace)
        self.roster: Final = Roster(self.membership, namespace=namespace)
        self.schedules: Final = Schedules(self.tasks)
        self.identity: Final = Identity(coordinator, settings.describe())
        self.queues: Final = dict[str, OpenQueue]()
        self.is_open = False
        self._was_open = False
        self._entered = False
        self._session_state = SessionState.CONNECTED
        self._stack = AsyncExitStack()
        self._closing: asyncio.Task[None] | None = None

    @property
    def view(self) -> View:
        """Latest view that this client knows.  Raises ``Closed`` before there is one."""
        if not self.membership.has_view:  # events are told, and may ask for it, before the client is open
            raise Closed(NOT_OPEN)
        return self.membership.view

    def check_open(self) -> None:
        """Raise ``Closed`` if the client is not open, ``WrongLoop`` if it was opened on another event loop."""
        if not self.is_open:
            raise Closed() if self._was_open else Closed(NOT_OPEN)
        self.home.check()

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def open(self, recover_with: frozenset[ServerId] = frozenset()) -> bool:
        """Connect and start the background work.

        ``recover_with``: servers to continue with if no in-sync server is left.  Returns whether they were used. Raises
        ``ConfigError`` for problems to correct, ``Unavailable`` for those that may pass, ``Closed`` at a second call.
        """
        if self._entered:
            raise Closed("a cluster is opened once: make another one with connect()")
        self._entered = True
        self.home.settle()
        recovered = False
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.tasks)
            await stack.enter_async_context(self.coordinator)
            self.membership.watch(self._follow)
            if not await self._join():
                recovered = bool(recover_with)
                if recovered:
                    await self.repairer.recover_with(recover_with)
                else:
                    await self.repairer.wait_recovered(self.settings.operation_timeout)
            self.coordinator.subscribe(self)
            self.tasks.supervise(self.attendance.run, "answer accusations")
            self.tasks.supervise(self.probe.run, "probe the servers")
            self.tasks.supervise(self.reaper.run, "look for orphans")
            self.tasks.supervise(self.repairer.run, "look after the servers")
            self.tasks.supervise(self.repairer.scrub_now_and_then, "scrub")
            self.tasks.supervise(partial(watch_for_stalls, self._report_stall), "watch the event loop")
            self._stack = stack.pop_all()
        self.is_open = self._was_open = True
        return recovered

    async def _join(self) -> bool:
        """Read the view, or found the namespace if that is allowed.

        Returns whether a member was found in the life that the view names.  Raises ``ConfigError``, ``Unavailable``.
        """
        locations = {id: Location(redact(url), without_credentials(url)) for id, url in self.fleet.urls.items()}
        view, version, identities = await self.replicas.repair(Founding(self.settings, locations).join())
        for id, who in identities.items():
            if isinstance(who, ServerInfo):
                self.witness.meet(id, Life(who.run_id, who.generation))
        self.membership.begin(view, version)
        for id in view.receivers:
            if isinstance(answer := identities.get(id), Answer):
                self.obstacles.note_failure(id, answer)
        return has_live_member(view, identities)

    async def aclose(self) -> None:
        """Close once, to the end even if the caller is cancelled; does nothing unless open."""
        if self._closing is None:
            if not self.is_open:
                return
            self.home.check()
            self.is_open = False
            self._closing = asyncio.create_task(self._close(), name=f"zkrq {self.namespace}: close")
        await see_through(self._closing)

    async def _close(self) -> None:
        every = [opened.parts for opened in self.queues.values()]
        for parts in every:
            parts.stop()
        try:
            with anyio.move_on_after(CLOSE_TIMEOUT):
                await asyncio.gather(*(parts.aclose() for parts in every))
                await asyncio.gather(*map(self._retire, self.queues))
                await self.cutter.flush()
        finally:
            for parts in every:
                parts.abandon()
            await self._stack.aclose()

    async def _retire(self, queue: str) -> None:
        """Remove every trace of this client's owner id from a queue, if there is any: a queue that it only pushed to,
        or that was deleted, has none, and stays as it is."""
        owner = self.identity.owner
        if owner is None:
            return
        try:
            if owner in await self.replicas.names(calls.Owners(queue)):
                await self.replicas.fence(queue, owner)
        except ZkrqError as error:
            _log.info("queue %s: %s", queue, error, extra={"cluster": self.namespace, "queue": queue})

    # -- queues --------------------------------------------------------------------------------------------------------

    def queue(self, name: str, settings: QueueSettings) -> Queue[Any]:
        """Return the queue of this name, made at the first call.  Raises ``ConfigError`` for other settings."""
        if name not in self.queues:
            parts = self._make_parts(name, settings)
            self.queues[name] = OpenQueue(Queue(parts), parts, settings)
        opened = self.queues[name]
        if opened.settings != settings:
            raise ConfigError(
                f"queue {name!r} is in use here with other options: codec, timeout, retry, dead letters, limits"
            )
        return opened.queue

    def _make_parts(self, name: str, settings: QueueSettings) -> QueueParts[Any]:
        dead_letters = settings.dead_letters or DeadLetters()
        leases = Leases(
            self.replicas,
            cluster=self.namespace,
            queue=name,
            claim_timeout=settings.claim_timeout,
            retry=settings.retry or Retry(),
            dead_letters=dead_letters,
            tasks=self.tasks,
            events=self.events,
            is_certain=self.identity.is_certain,
            home=self.home,
            observers=self.observers,
        )
        pusher: Pusher[Any] = Pusher(
            name,
            codec=settings.codec,
            replicas=self.replicas,
            tasks=self.tasks,
            max_payload_bytes=settings.max_payload_bytes,
            max_size=settings.max_size,
            observers=self.observers,
        )
        prefetcher: Prefetcher[Any] = Prefetcher(
            self.replicas,
            leases,
            self.wakeups,
            cluster=self.namespace,
            queue=name,
            codec=settings.codec,
            dead_letters=dead_letters,
            identity=self.identity,
            declared_dead=self._declared_dead,
            tasks=self.tasks,
            events=self.events,
            home=self.home,
        )
        self.wakeups.register(name, prefetcher.wake, leases.cancelled)
        return QueueParts(name, settings.codec, self.home, self.replicas, leases, prefetcher, pusher)

    # -- health --------------------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Report what this client knows, without asking a server."""
        view, progress = self.view, self.repairer.progress
        servers: dict[str, ServerHealth] = {
            id: ServerHealth(place_of(id, view), server.identity is not None, progress.get(id))
            for id, server in sorted(self.fleet.servers.items())
        }
        trouble = self.obstacles.trouble + self.wakeups.trouble
        ok = self.is_open and view.writable and not trouble
        return Health(ok, self.coordinator.session.state.value, view.epoch, servers, trouble)

    async def ping(self) -> None:
        """Ask whether a push and a claim could be made now; see ``Cluster.ping``."""
        await self.replicas.run(OPERATIONS.ask_for_room())
        if self.identity.owner is None:  # ZooKeeper is needed to enter this consumer before its first claim
            await self.coordinator.consumers()

    def _report_stall(self, seconds: float) -> None:
        """Report that the event loop was blocked, and what is at risk since."""
        now = asyncio.get_running_loop().time()
        every = [opened.parts.leases for opened in self.queues.values()]
        held, expired = sum(map(len, every)), sum(leases.expired(now) for leases in every)
        uncertain = self.coordinator.valid_until <= now
        self.events.tell(LoopBlocked(self.namespace, seconds, held, expired, uncertain), logging.WARNING)

    # -- the coordinator's listener ------------------------------------------------------------------------------------

    def register_changed(self, register: str) -> None:
        """Read the view: it was written."""
        self.tasks.start(self._read_view(), "read the view")

    async def _read_view(self) -> None:
        try:
            await self.membership.refresh(self.view)
        except ZkrqError as error:
            _log.info("the view could not be read: %s", error, extra={"cluster": self.namespace})

    def _follow(self, view: View) -> None:
        """Adapt this client to a newer view."""
        self.wakeups.listen_only_to(frozenset(view.receivers))
        self.wakeups.wake_all()
        self.repairer.view_changed(view)
        self.probe.view_changed()

    def consumers_changed(self) -> None:
        """Look for orphans: a consumer came or went."""
        self.reaper.look()
        self.probe.look()

    def leading_changed(self, leading: bool) -> None:
        """Look at everything after winning the election, because the leader acts first."""
        if leading:
            self.consumers_changed()
            self.repairer.look()

    def session_changed(self, session: Session) -> None:
        """Report the state of the session; lose all claims when it is over."""
        before, self._session_state = self._session_state, session.state
        match session.state:
            case SessionState.SUSPENDED:
                self.events.tell(SessionSuspended(self.namespace, session.id), logging.WARNING)
            case SessionState.LOST:
                self.events.tell(SessionLost(self.namespace, session.id), logging.WARNING)
                self._lose_all(self.identity.end(session.id), "the ZooKeeper session is over")
            case SessionState.CONNECTED:
                if before is SessionState.SUSPENDED:
                    self.events.tell(SessionResumed(self.namespace, session.id))
                self.consumers_changed()
            case SessionState.CONNECTING | SessionState.CLOSED:
                pass

    def _declared_dead(self, owner: str) -> None:
        """Continue under a new owner id, after another client fenced this one and a server refused its claim
        request."""
        if self.identity.replace(owner):
            self.events.tell(DeclaredDead(self.namespace, owner), logging.WARNING)
            self._lose_all(owner, "this consumer was declared dead")

    def _lose_all(self, owner: str, reason: str) -> None:
        for opened in self.queues.values():
            opened.parts.leases.lose_all(owner, reason)
