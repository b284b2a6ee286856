"""``connect()`` and what it returns: owns the servers, the coordinator and the background tasks."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, tzinfo
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, overload

import anyio

from zkrq import local
from zkrq.checks import Duration, check_count, check_duration, check_id, check_kind, check_lease, check_name
from zkrq.codecs import JSON, Codec
from zkrq.consuming.identity import Identity
from zkrq.consuming.leases import Leases
from zkrq.consuming.prefetch import Prefetcher
from zkrq.consuming.wakeups import Wakeups
from zkrq.coordination.coordinator import Coordinator, Session, SessionState
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.coordination.zookeeper import ZooKeeperCoordinator
from zkrq.errors import Closed, ConfigError, ZkrqError
from zkrq.events import DeclaredDead, Event, Events, SessionLost, SessionResumed, SessionSuspended
from zkrq.home import Home
from zkrq.inspection import Statistics, read_statistics
from zkrq.limits import DeadLetters
from zkrq.producing.pusher import Pusher
from zkrq.producing.schedules import MAX_CATCH_UP, Recurring, Schedules
from zkrq.protocol import calls
from zkrq.protocol.clocks import PUT_WINDOW
from zkrq.protocol.view import ServerId, View
from zkrq.queue import Queue
from zkrq.repair.catchup import Progress
from zkrq.repair.fencing import Reaper
from zkrq.repair.repairer import Repairer
from zkrq.repair.roster import Roster
from zkrq.replication.cutting import Cutter
from zkrq.replication.fleet import Fleet
from zkrq.replication.membership import Membership
from zkrq.replication.replicas import Replicas
from zkrq.replication.server import Server
from zkrq.replication.wire import Dial, address, check_url, dial
from zkrq.retry import Retry
from zkrq.tasks import Tasks

T = TypeVar("T")

CLOSE_TIMEOUT = 5.0
"""Seconds that closing spends on handing back claims, and on dropping payloads of what is done; claims that are left
come back when the session has ended."""

OPEN_CHECK_SECONDS = 1.0
"""How often whoever waits for a server checks that the cluster is still open."""

MAX_OPERATION_TIMEOUT = PUT_WINDOW / 4
"""An operation must be over long before its push would be refused as late."""

MAX_DESCRIPTION = 200
"""Characters of the text that describes this process to people."""

_log = logging.getLogger("zkrq")


class ServerHealth(NamedTuple):
    """One server as this client sees it: its place in the view, whether there is a connection to it, and how far this
    client is with bringing it back, None if it is not doing that."""

    place: str
    connected: bool
    catching_up: Progress | None = None


class Health(NamedTuple):
    """``ok``: a push and a claim could be made now, as far as is known here.  ``trouble``: what does not work for this
    client, though it may for others: servers that do not let it in, wake-ups that it is refused."""

    ok: bool
    session: str
    epoch: int
    servers: Mapping[str, ServerHealth]
    trouble: tuple[str, ...] = ()


class Consumer(NamedTuple):
    """A live consumer: what it says of itself, and how many claims it holds in each queue."""

    description: str
    claims: Mapping[str, int]


class Cluster:
    """A namespace on N Redis servers.  ``async with`` opens and closes it; ``queue()`` gives access to the items."""

    def __init__(
        self,
        servers: Mapping[str, str],
        coordinator: Coordinator,
        *,
        namespace: str,
        min_replicas: int | None,
        description: str,
        command_timeout: float,
        operation_timeout: float,
        on_event: Callable[[Event], object] | None,
        found: bool = True,
        dial: Dial = dial,
    ) -> None:
        self.namespace = namespace
        self._coordinator = coordinator
        self._events = Events(on_event)
        self._tasks = Tasks(f"zkrq {namespace}")
        self._home = Home()
        make_server = partial(
            Server, namespace=namespace, command_timeout=command_timeout, tasks=self._tasks, dial=dial
        )
        fleet = Fleet({ServerId(id): url for id, url in servers.items()}, make_server, namespace=namespace)
        self._membership = Membership(
            coordinator,
            fleet,
            namespace=namespace,
            min_replicas=min_replicas,
            found=found,
            events=self._events,
        )
        self._cutter = Cutter(self._membership, self._tasks)
        self._replicas = Replicas(self._membership, operation_timeout=operation_timeout, removed=self._cutter.note)
        self._wakeups = Wakeups(fleet.servers, namespace=namespace, tasks=self._tasks, events=self._events)
        self._reaper = Reaper(coordinator, self._replicas, cluster=namespace, events=self._events)
        self._repairer = Repairer(
            coordinator, self._replicas, cluster=namespace, events=self._events, missed=self._reaper.look
        )
        self._recover_with: frozenset[ServerId] = frozenset()
        self._schedules = Schedules(self._tasks)
        self._roster = Roster(self._membership, namespace=namespace)
        self._identity = Identity(coordinator, description)
        self._queues: dict[str, tuple[Queue[Any], tuple[object, ...]]] = {}
        self._stack = AsyncExitStack()
        self._open = False
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = f"epoch {self.view.epoch}, {len(self.view.members)} in sync" if self._open else "not open"
        return f"<Cluster {self.namespace!r} {state}>"

    async def __aenter__(self) -> Self:
        """Connect.  Raises ``ConfigError`` for what has to be corrected, ``Unavailable`` for what may pass."""
        self._home.settle()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._tasks)
            await stack.enter_async_context(self._coordinator)
            self._membership.watch(self._view_changed)
            if not await self._membership.join():
                await self._revive()
            self._coordinator.subscribe(_Listener(self))
            self._tasks.keep(self._membership.attend, "answer accusations")
            self._tasks.keep(self._reaper.run, "look for orphans")
            self._tasks.keep(self._repairer.run, "look after the servers")
            self._tasks.keep(self._repairer.scrub_now_and_then, "scrub")
            self._stack = stack.pop_all()
        self._open = True
        return self

    async def _revive(self) -> None:
        """Nobody lives whom the view knows."""
        if self._recover_with:
            await self._repairer.recover_with(self._recover_with)
            self._recover_with = frozenset()
        else:
            await self._repairer.wait_recovered(self._replicas.operation_timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop claiming, end every ``pop``, hand back what is held, end the session.  Bounded; idempotent.

        Finish the work at hand before: a claim that is held now is lost to its handler.
        """
        if self._closing is None:
            if not self._open:
                return
            self._home.check()
            self._open = False
            self._closing = asyncio.create_task(self._close(), name=f"zkrq {self.namespace}: close")
        cancelled: asyncio.CancelledError | None = None
        with anyio.CancelScope(shield=True):
            while not self._closing.done():
                try:
                    await asyncio.shield(self._closing)
                except asyncio.CancelledError as error:  # remembered: what was begun is brought to its end first
                    cancelled = error
        if cancelled:
            raise cancelled
        self._closing.result()

    async def _close(self) -> None:
        queues = [queue for queue, _ in self._queues.values()]
        for queue in queues:
            queue.stop()
        try:
            with anyio.move_on_after(CLOSE_TIMEOUT):
                await asyncio.gather(*(queue.aclose() for queue in queues))
                await asyncio.gather(*map(self._retire, queues))
                await self._cutter.flush()
        finally:
            for queue in queues:
                queue.abandon()
            await self._stack.aclose()

    async def _retire(self, queue: Queue[Any]) -> None:
        """Leave no trace of this owner in a queue that it claimed from."""
        if self._identity.owner is None:
            return
        try:
            await self._replicas.fence(queue.name, self._identity.owner)
        except ZkrqError as error:
            _log.info("queue %s: %s", queue.name, error, extra={"cluster": self.namespace, "queue": queue.name})

    # -- queues ------------------------------------------------------------------------------------------------------

    @overload
    def queue(
        self,
        name: str,
        *,
        codec: Codec[T],
        claim_timeout: Duration = ...,
        retry: Retry | None = ...,
        dead_letters: DeadLetters | None = ...,
        max_size: int | None = ...,
        max_payload_bytes: int = ...,
    ) -> Queue[T]: ...

    @overload
    def queue(
        self,
        name: str,
        *,
        claim_timeout: Duration = ...,
        retry: Retry | None = ...,
        dead_letters: DeadLetters | None = ...,
        max_size: int | None = ...,
        max_payload_bytes: int = ...,
    ) -> Queue[Any]: ...

    def queue(
        self,
        name: str,
        *,
        codec: Codec[Any] = JSON,
        claim_timeout: Duration = 30.0,
        retry: Retry | None = None,
        dead_letters: DeadLetters | None = None,
        max_size: int | None = None,
        max_payload_bytes: int = 1 << 20,
    ) -> Queue[Any]:
        """The queue of that name; there is nothing to create.

        ``claim_timeout`` is how many seconds a claim outlives its last extension (claims are extended by themselves
        while the process runs).  ``retry`` says what happens after a failure, None: ``Retry()``.  ``dead_letters`` how
        many of them are kept and for how long, None: ``DeadLetters()``.  ``max_size``: a push into a queue with so many
        items queued, scheduled and claimed raises ``QueueFull``, None: no limit; it costs a push one more round trip.
        ``max_payload_bytes`` limits an encoded item.  These are this process's: give them alike in all.
        The same name gives the same object; other options for it are a ``ConfigError``.
        """
        self._check_open()
        check_name("the queue's name", name)
        timeout = check_lease("claim_timeout", claim_timeout)
        check_count("max_payload_bytes", max_payload_bytes, least=1)
        if max_size is not None:
            check_count("max_size", max_size, least=1)
        check_kind("retry", retry, Retry)
        check_kind("dead_letters", dead_letters, DeadLetters)
        options = (codec, timeout, retry, dead_letters, max_size, max_payload_bytes)
        if name in self._queues:
            queue, known = self._queues[name]
            if known != options:
                raise ConfigError(
                    f"queue {name!r} is in use here with other options: codec, timeout, retry, dead letters, limits"
                )
            return queue
        leases = Leases(
            self._replicas,
            cluster=self.namespace,
            queue=name,
            claim_timeout=timeout,
            retry=retry or Retry(),
            dead_letters=dead_letters or DeadLetters(),
            tasks=self._tasks,
            events=self._events,
            is_certain=self._identity.is_certain,
            home=self._home,
        )
        pusher: Pusher[Any] = Pusher(
            name,
            codec=codec,
            replicas=self._replicas,
            tasks=self._tasks,
            max_payload_bytes=max_payload_bytes,
            max_size=max_size,
        )
        prefetcher: Prefetcher[Any] = Prefetcher(
            self._replicas,
            leases,
            self._wakeups,
            cluster=self.namespace,
            queue=name,
            codec=codec,
            dead_letters=dead_letters or DeadLetters(),
            identity=self._identity,
            declared_dead=self._declared_dead,
            tasks=self._tasks,
            events=self._events,
            home=self._home,
        )
        queue: Queue[Any] = Queue(
            name, codec=codec, replicas=self._replicas, leases=leases, prefetcher=prefetcher, pusher=pusher
        )
        self._wakeups.register(name, prefetcher.wake, leases.cancelled)
        self._queues[name] = (queue, options)
        return queue

    def every(
        self,
        when: Duration | str,
        queue: Queue[T],
        item: T | Callable[[datetime], T],
        *,
        name: str | None = None,
        offset: Duration = 0.0,
        zone: tzinfo | None = None,
        catch_up: Duration = MAX_CATCH_UP,
        priority: int = 0,
    ) -> Recurring[T]:
        """Push ``item``, or what ``item(moment)`` returns, at every moment, once however many processes declare it.

        ``when``: seconds between two moments (multiples of it since 1970, plus ``offset``), or a cron expression (extra
        ``cron``; ``zone``, None: UTC).  ``name`` tells schedules apart, None: made of the schedule and the item; every
        process must declare the same.  ``item(moment)`` must give the same in every process: use the moment, no clock
        and no chance.  After a sleep the last missed moment is made up for, if it is at most ``catch_up`` seconds old
        (1 to 240).  Ends with the cluster, with ``cancel()``, or with ``async with``.
        Raises ``ConfigError`` for bad arguments.
        """
        self._check_open()
        return self._schedules.declare(
            when, queue, item, name=name, offset=offset, zone=zone, catch_up=catch_up, priority=priority
        )

    async def queues(self) -> list[str]:
        """The names of all queues that had an item, and of some that had consumers only.  Raises ``Unavailable``."""
        self._check_open()
        return await self._replicas.names(calls.Queues())

    def _check_open(self) -> None:
        if not self._open:
            raise Closed()
        self._home.check()

    # -- seeing ------------------------------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """Which servers are in sync, as this client knows it."""
        return self._membership.view

    async def consumers(self) -> Mapping[str, Consumer]:
        """Owner id -> every live consumer and how many claims it holds, by queue; looks at all claims there are.

        Raises ``Unavailable``, also without ZooKeeper.
        """
        self._check_open()
        claims: dict[str, dict[str, int]] = {}
        for queue in await self.queues():
            for owner, count in (await self._count_claims(queue)).items():
                claims.setdefault(owner, {})[queue] = count
        alive = await self._coordinator.consumers()
        return {owner: Consumer(text, claims.get(owner, {})) for owner, text in alive.items()}

    async def _count_claims(self, queue: str) -> Counter[str]:
        """How many claims each owner holds in a queue."""
        counts: Counter[str] = Counter()
        async for page, starts in self._replicas.pages(calls.Holders(queue)):
            if starts:
                counts.clear()
            counts.update(page.claims)
        return counts

    async def statistics(self) -> Mapping[str, Statistics]:
        """Every queue that ever had an item, at a glance.  Raises ``Unavailable``."""
        self._check_open()
        held = {name: queue.held for name, (queue, _) in self._queues.items()}
        return {name: await read_statistics(self._replicas, name, held.get(name, 0)) for name in await self.queues()}

    def health(self) -> Health:
        """What is known here, without asking anybody."""
        view = self.view
        servers: dict[str, ServerHealth] = {
            id: ServerHealth(_place(view, id), server.identity is not None, self._repairer.progress.get(id))
            for id, server in sorted(self._membership.fleet.servers.items())
        }
        trouble = self._membership.trouble + self._wakeups.trouble
        ok = self._open and view.writable and not trouble
        return Health(ok, self._coordinator.session.state.value, view.epoch, servers, trouble)

    # -- servers -------------------------------------------------------------------------------------------------------

    async def add_server(self, url: str, *, name: str | None = None, force: bool = False) -> str:
        """Take one more Redis server into the namespace; returns its name once it is in sync.

        ``name`` is what it is called, None: host and port.  Whatever it holds of this namespace is wiped; one that
        belongs to another deployment of the same name is refused, unless ``force`` says to take it from there.  Others
        learn of it from the view: the URL is kept there without user and password, for which they use those of the
        first server that they were given.  Cancelled in the middle, it is still caught up.
        Raises ``ConfigError`` for a server that cannot be used, ``Unavailable`` when it, or ZooKeeper, does not answer.
        """
        self._check_open()
        check_url(url)
        id = ServerId(check_id("a server's name", name) if name is not None else address(url))
        await self._roster.add(id, url, force=force)
        self._repairer.want(id)
        while not await self._roster.wait_in_sync(id, OPEN_CHECK_SECONDS):
            self._check_open()
        return id

    async def remove_server(self, name: str) -> None:
        """Take a server out of the namespace, dead or alive; its data stays where it is, and nobody asks it any more.

        To replace a dead server, add the new one first.  Raises ``ConfigError`` for an unknown name, or where too few
        servers would be left; ``Unavailable`` without ZooKeeper: it may have happened.
        """
        self._check_open()
        await self._roster.remove(ServerId(name))

    async def recover(self, servers: Sequence[str]) -> None:
        """Go on with what these servers hold after all in-sync ones were lost, without waiting for the others.

        For operators, when the queue does not recover by itself: what only the others held is lost, and logged as such.
        Servers that hold nothing begin anew, empty.  Call it instead of entering ``async with``, or inside.
        Raises ``ConfigError`` where a server of the view lives, or for an unknown name; ``Unavailable``.
        """
        named = frozenset(map(ServerId, servers))
        if self._open:
            self._check_open()
            await self._repairer.recover_with(named)
            return
        self._recover_with = named
        async with self:
            if self._recover_with:
                raise ConfigError("nothing to recover: a server of the view lives")

    # -- what the coordinator tells ------------------------------------------------------------------------------------

    def _view_changed(self, view: View) -> None:
        self._wakeups.keep_only(frozenset(view.receivers))
        self._wakeups.wake_all()
        self._repairer.view_changed(view)

    def view_moved(self) -> None:
        self._tasks.start(self._look_at_view(), "read the view")

    async def _look_at_view(self) -> None:
        try:
            await self._membership.refresh(self.view)
        except ZkrqError as error:
            _log.info("the view could not be read: %s", error, extra={"cluster": self.namespace})

    def consumers_moved(self) -> None:
        self._reaper.look()

    def lead(self) -> None:
        self._repairer.look()

    def session_moved(self, session: Session, before: SessionState) -> None:
        match session.state:
            case SessionState.SUSPENDED:
                self._events.tell(SessionSuspended(self.namespace, session.id), logging.WARNING)
            case SessionState.LOST:
                self._events.tell(SessionLost(self.namespace, session.id), logging.WARNING)
                self._lose_all(self._identity.end(session.id), "the ZooKeeper session is over")
            case SessionState.CONNECTED:
                if before is SessionState.SUSPENDED:
                    self._events.tell(SessionResumed(self.namespace, session.id))
                self._reaper.look()
            case SessionState.CONNECTING | SessionState.CLOSED:
                pass

    def _declared_dead(self, owner: str) -> None:
        """A server refuses this owner's claim requests: others have fenced it."""
        if self._identity.replace(owner):
            self._events.tell(DeclaredDead(self.namespace, owner), logging.WARNING)
            self._lose_all(owner, "this consumer was declared dead")

    def _lose_all(self, owner: str, reason: str) -> None:
        for queue, _ in self._queues.values():
            queue.lose_all(owner, reason)


class _Listener:
    """Passes on what the coordinator tells."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._state = SessionState.CONNECTED

    def view_changed(self) -> None:
        self._cluster.view_moved()

    def consumers_changed(self) -> None:
        self._cluster.consumers_moved()

    def session_changed(self, session: Session) -> None:
        before, self._state = self._state, session.state
        self._cluster.session_moved(session, before)

    def leading_changed(self, leading: bool) -> None:
        if leading:
            self._cluster.consumers_moved()
            self._cluster.lead()


def _place(view: View, server: ServerId) -> str:
    if server in view.members:
        return "member"
    if server in view.learners:
        return "learner"
    return "eligible" if server in view.eligible else "out"


def connect(
    redis: Sequence[str] | Mapping[str, str],
    zookeeper: str,
    *,
    zookeeper_auth: tuple[str, str] | None = None,
    namespace: str = "zkrq",
    found: bool = False,
    min_replicas: int | None = None,
    description: str | None = None,
    session_timeout: Duration = 10.0,
    command_timeout: Duration = 2.0,
    operation_timeout: Duration = 15.0,
    on_event: Callable[[Event], object] | None = None,
) -> Cluster:
    """A cluster, to be opened with ``async with``.

    redis: URLs of the servers, or name -> URL; every client must use the same names (without names: host and port).
    zookeeper: ``host:port,host:port``; ``zookeeper_auth`` is a user and a password for ZooKeeper's digest scheme.
    namespace: what belongs together; a folder in ZooKeeper, a prefix in Redis.
    found: whether a namespace that does not exist is founded here; otherwise it must be (see ``found``).
    min_replicas: fixed when the namespace is founded: a push returns when every in-sync server has it, and fails when
    these are fewer than this.  None: as it was founded, or to found it 2, and 1 where there is one server.
    description: tells people which process this is, in ``consumers()``; None: host and process id.
    session_timeout: seconds until ZooKeeper takes a silent process for dead and its claims are given to others.
    command_timeout: seconds until a silent Redis server is taken for dead.
    operation_timeout: seconds for which a push or an ack is retried before it raises.
    on_event: called with every ``zkrq.events.Event``, on the event loop; must not block.

    Raises ``ConfigError`` for bad arguments.
    """
    urls = _name_servers(redis)
    count = len(urls)
    if min_replicas is not None:
        check_count("min_replicas", min_replicas, least=1, most=count)
    check_name("namespace", namespace)
    timeout = check_duration("operation_timeout", operation_timeout, positive=True)
    if timeout > MAX_OPERATION_TIMEOUT:
        raise ConfigError(f"operation_timeout is {timeout:g} s: at most {MAX_OPERATION_TIMEOUT:g} s")
    coordinator = ZooKeeperCoordinator(
        zookeeper,
        namespace=namespace,
        session_timeout=check_duration("session_timeout", session_timeout, positive=True),
        auth=zookeeper_auth,
        found=found,
    )
    return Cluster(
        urls,
        coordinator,
        namespace=namespace,
        min_replicas=min_replicas,
        description=(description or f"{socket.gethostname()}:{os.getpid()}")[:MAX_DESCRIPTION],
        command_timeout=check_duration("command_timeout", command_timeout, positive=True),
        operation_timeout=timeout,
        on_event=on_event,
        found=found,
    )


async def found(
    redis: Sequence[str] | Mapping[str, str],
    zookeeper: str,
    *,
    zookeeper_auth: tuple[str, str] | None = None,
    namespace: str = "zkrq",
    min_replicas: int | None = None,
    session_timeout: Duration = 10.0,
    command_timeout: Duration = 2.0,
) -> View:
    """Found a namespace with these servers, all of which must answer; returns its view.

    To be done once, when things are set up; done again it changes nothing.  Arguments as for ``connect``; more servers
    are added later with ``add_server``.
    Raises ``ConfigError`` where the namespace exists with other servers or another ``min_replicas``, or a server holds
    items of that name already; ``Unavailable`` when not all of them answer.
    """
    async with connect(
        redis,
        zookeeper,
        zookeeper_auth=zookeeper_auth,
        namespace=namespace,
        found=True,
        min_replicas=min_replicas,
        session_timeout=session_timeout,
        command_timeout=command_timeout,
    ) as cluster:
        return cluster.view


@asynccontextmanager
async def embedded(
    servers: int = 3,
    *,
    min_replicas: int | None = None,
    on_event: Callable[[Event], object] | None = None,
) -> AsyncGenerator[Cluster]:
    """A cluster on private servers of its own, on loopback, with the coordinator in this process: no ZooKeeper needed.

    For development and small things: everything is gone when it is left, or when the process dies.
    Needs ``redis-server`` or the extra ``embedded``.
    """
    check_count("servers", servers, least=1)
    async with local.servers(redis=servers, zookeeper=0) as private:
        cluster = Cluster(
            private.redis_urls,
            MemoryCoordinator(Hub()),
            namespace="zkrq",
            min_replicas=min_replicas,
            description=f"{socket.gethostname()}:{os.getpid()}",
            command_timeout=2.0,
            operation_timeout=15.0,
            on_event=on_event,
        )
        async with cluster:
            yield cluster


def _name_servers(redis: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(redis, str):
        raise ConfigError("redis must be a list of URLs or a mapping of names to URLs, not one str")
    named = dict(redis) if isinstance(redis, Mapping) else {address(url): url for url in redis}
    if not named:
        raise ConfigError("redis is empty: at least one server is needed")
    if len(named) != len(redis):
        raise ConfigError("redis names one server twice: N copies need N servers")
    for name, url in named.items():
        check_id("a server's name", name)
        check_url(url)
    return named
