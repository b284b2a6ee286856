"""Run one client of a namespace: its connections, its view, its queues and its background work.

``Cluster`` is its public face.  A client is also the listener of its coordinator: it passes every change on to the
parts that need it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from weakref import ReferenceType, ref

import anyio

from zkrq.base import clock
from zkrq.base.errors import Closed, ConfigError, NotEnoughReplicas, Unavailable, ZkrqError
from zkrq.base.events import DeclaredDead, Events, LoopBlocked, Recovered, SessionLost, SessionResumed, SessionSuspended
from zkrq.base.loop import OwnLoop
from zkrq.base.settings import QUEUE_DEFAULTS, ProgramOptions, Settings
from zkrq.base.stalls import watch_for_stalls
from zkrq.base.tasks import Once, Tasks, on_loop, see_through
from zkrq.client.declaring import declare
from zkrq.client.everywhere import Everywhere
from zkrq.client.flows import Flows
from zkrq.client.health import Health, ServerHealth, lost_redundancy
from zkrq.client.homing import Homing
from zkrq.client.moment_reports import MomentReports
from zkrq.client.moment_store import MomentStore
from zkrq.client.parts import QueueParts, QueueShard
from zkrq.client.quieting import Quieting
from zkrq.client.resharding import Resharding
from zkrq.client.results import make_queue, reading
from zkrq.client.schedule_store import ScheduleStore
from zkrq.client.schedules import Schedules
from zkrq.client.shard import NOT_OPEN, Shard
from zkrq.client.shards import Given, Shards
from zkrq.client.upgrading import Upgrading
from zkrq.consuming.context import QueueContext
from zkrq.consuming.identity import Identity
from zkrq.consuming.leases import Leases
from zkrq.consuming.line import Line
from zkrq.consuming.observing import Observers
from zkrq.consuming.supplier import Supplier
from zkrq.coordination.coordinator import Coordinator, Session, SessionState
from zkrq.producing.placement import Here
from zkrq.producing.pusher import Pusher
from zkrq.producing.sending import Sender
from zkrq.protocol import calls
from zkrq.protocol.shards import ShardState, overtaken
from zkrq.replication.batching import InFlightLimit

if TYPE_CHECKING:
    from zkrq.base.limits import Declared
    from zkrq.client.queue import Queue
    from zkrq.protocol.levels import AtLevel
    from zkrq.protocol.view import ServerId
    from zkrq.replication.wire import Dial

T = TypeVar("T")

Declare: TypeAlias = "Callable[[Declared], Awaitable[None]]"
"""Gives a queue limits."""

CLOSE_TIMEOUT = 5.0
"""Seconds that closing spends on handing back claims and on removing payloads of finished items.

Claims that are left then come back when the session has ended.
"""

MOMENTS_TIMEOUT = 2.0
"""Seconds that closing spends on storing up to when moments of schedules are done."""

_log = logging.getLogger("zkrq")


IDLE_SECONDS = 60.0
"""Seconds between two looks for queues in which there is nothing to do; those that are not used either are dropped."""

IDLE_MAX = 1_000
"""Queues in use by this client; where there are more, those that are idle and not used are dropped immediately."""

DROPPED_MAX = 10_000
"""Dropped queues of which something is remembered: their options, and that this client has claimed there."""


@dataclass(slots=True)
class OpenQueue:
    """A queue in use by this client: its public face while the program refers to it, and its inside."""

    queue: ReferenceType[Queue[Any]]
    parts: QueueParts[Any]
    was_idle: bool = False
    """Whether it was idle, and the program had no reference to it, at the last look."""


class Client:
    """Own the parts of a client, open and close them."""

    def __init__(self, servers: Given, coordinator: Coordinator, settings: Settings, *, dial: Dial) -> None:
        self.settings: Final = settings
        self.coordinator: Final = coordinator
        namespace = self.namespace = settings.namespace
        self.events: Final = Events(settings.on_event)
        self.observers: Final = Observers(self.events)
        self.tasks: Final = Tasks(f"zkrq {namespace}")
        self.own_loop: Final = OwnLoop()
        self.shards: Final = Shards(
            servers,
            coordinator,
            settings,
            events=self.events,
            dial=dial,
            changed=self._shards_changed,
            renewed=self._declare_again,
        )
        self.resharding: Final = Resharding(self.shards, coordinator, settings)
        self.homing: Final = Homing(self.shards, coordinator)
        self.flows: Final = Flows(
            self.shards, coordinator, self.tasks, self.events, namespace, self._find_queue, reading
        )
        self.identity: Final = Identity(coordinator, settings.describe())
        self.identity.slots_changed = self._introduce_again
        self.upgrading: Final = Upgrading(self.shards, coordinator, settings, self.events, self.identity)
        self.quieting: Final = Quieting(
            coordinator, self.tasks, self.events, namespace, self.identity, self.upgrading, self._quiet_changed
        )
        self.identity.has_enrolled = self.quieting.begin
        self.schedule_store: Final = ScheduleStore(coordinator, self.tasks, self.events, namespace, self._check_level)
        self.moment_store: Final = MomentStore(coordinator)
        reports = MomentReports(self.tasks, self.events, namespace, self.moment_store, self._check_own_clock)
        self.schedules: Final = Schedules(self.tasks, self.schedule_store, reports)
        self.queues: Final = dict[str, OpenQueue]()
        self._declared = dict[str, ProgramOptions]()
        """Settings of queues that were dropped."""
        self._crowded = IDLE_MAX
        self._limited = dict[str, None]()
        """Queues that were dropped, and whose limits this client has declared."""
        self._retired = dict[str, None]()
        """Queues that were dropped, and in which this client has claimed."""
        self._pushes = InFlightLimit()
        """Of the batches of pushes of all queues."""
        self._seq = 0
        """Greatest number of a claim request in a queue that was dropped."""
        self.is_open = False
        self._was_open = False
        self._entered = False
        self._session_state = SessionState.CONNECTED
        self._stack = AsyncExitStack()
        self._closing: asyncio.Task[None] | None = None

    @property
    def shard(self) -> Shard:
        """The first shard."""
        return self.shards.first

    def check_open(self) -> None:
        """Raise ``Closed`` if the client is not open, ``WrongLoop`` if it was opened on another event loop."""
        if not self.is_open:
            raise Closed() if self._was_open else Closed(NOT_OPEN)
        self.own_loop.check()

    def _check_level(self, feature: AtLevel | None) -> None:
        """Raise ``ConfigError`` if this release cannot read the view any more, or if the active level lacks a
        feature."""
        if refusal := self.shards.first.membership.refusal:
            raise ConfigError(refusal)
        if feature:
            self.shards.placement.check(feature)

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def open(self, recover_with: frozenset[ServerId] = frozenset()) -> bool:
        """Connect and start the background work.

        ``recover_with``: servers to continue with if no in-sync server is left.  Returns whether they were used. Raises
        ``ConfigError`` for problems to correct, ``Unavailable`` for those that may pass, ``Closed`` at a second call.
        """
        if self._entered:
            raise Closed("a cluster is opened once: make another one with connect()")
        self._entered = True
        self.own_loop.settle()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.tasks)
            await stack.enter_async_context(self.shards)
            await stack.enter_async_context(self.coordinator)
            recovered = await self.shards.join(recover_with)
            await self.upgrading.introduce()
            self.coordinator.subscribe(self)
            self.shard.start()
            self.tasks.supervise(self.shards.run, "follow the shard map")
            if self.settings.found:
                await self.resharding.found_given()
                self.tasks.start(self.resharding.keep_adding(), "add the shards that were given")
            self.tasks.supervise(self.upgrading.run, "look at the releases of the clients")
            self.tasks.supervise(self._rest_now_and_then, "end what is idle")
            if not self.settings.only_looks:
                self.tasks.supervise(self.homing.run, "bring items home")
                self.tasks.supervise(self.flows.looks.run, "look for flows that are due")
            self.tasks.supervise(partial(watch_for_stalls, self._report_stall), "watch the event loop")
            self._stack = stack.pop_all()
        self.is_open = self._was_open = True
        return recovered

    async def refound(self, servers: frozenset[ServerId]) -> None:
        """Found the namespace again with what these servers hold; the client is closed afterwards.

        Raises ``ConfigError``, ``Unavailable``, ``Closed`` at a second call.
        """
        if self._entered:
            raise Closed("a cluster is opened once: make another one with connect()")
        self._entered = True
        self.own_loop.settle()
        async with self.tasks, self.shards, self.coordinator:
            view, missing = await self.shard.refound(servers)
        self.events.tell(Recovered(self.namespace, tuple(view.members), missing, view.epoch), logging.ERROR)

    async def reinstate(self, servers: frozenset[ServerId]) -> None:
        """Write a view of the first shard for what these servers hold, over one that went back, and set the shard map
        ahead of those that clients know; the client is closed afterwards.

        Raises ``ConfigError``, ``Unavailable``, ``Closed`` at a second call.
        """
        if self._entered:
            raise Closed("a cluster is opened once: make another one with connect()")
        self._entered = True
        self.own_loop.settle()
        async with self.tasks, self.shards, self.coordinator:
            map = await self.shards.refresh()
            if map.number:
                map = await self.shards.change(overtaken)
            view, missing = await self.shard.reinstate(servers, map.number)
        self.events.tell(Recovered(self.namespace, tuple(view.members), missing, view.epoch), logging.ERROR)

    async def aclose(self) -> None:
        """Close once, to the end even if the caller is cancelled; does nothing unless open."""
        if self._closing is None:
            if not self.is_open:
                return
            self.own_loop.check()
            self.is_open = False
            self._closing = asyncio.create_task(self._close(), name=f"zkrq {self.namespace}: close")
        await see_through(self._closing)

    async def _close(self) -> None:
        every = [opened.parts for opened in self.queues.values()]
        for parts in every:
            parts.stop()
        try:
            with anyio.move_on_after(MOMENTS_TIMEOUT), suppress(ZkrqError):
                await self.schedules.aclose()
            with anyio.move_on_after(CLOSE_TIMEOUT):
                await asyncio.gather(*(parts.aclose() for parts in every))
                shards = self.shards.open.values()
                names = {**self._retired, **self.queues}
                await asyncio.gather(*(self._retire(shard, queue) for shard in shards for queue in names))
                await asyncio.gather(*(shard.cutter.flush() for shard in shards))
        finally:
            for parts in every:
                parts.abandon()
            await self._stack.aclose()

    async def _retire(self, shard: Shard, queue: str) -> None:
        """Remove every trace of this client's owner id from a queue, if there is any: a queue that it only pushed to,
        or that was deleted, has none, and stays as it is."""
        owner = self.identity.owner
        if owner is None:
            return
        try:
            if owner in await shard.replicas.names(calls.Owners(queue)):
                await shard.replicas.fence(queue, owner)
        except ZkrqError as error:
            _log.info("queue %s: %s", queue, error, extra={"cluster": self.namespace, "queue": queue})

    # -- queues --------------------------------------------------------------------------------------------------------

    def queue(self, name: str, options: Mapping[str, Any]) -> Queue[Any]:
        """Return the queue of this name, made at the first call.  Raises ``ConfigError`` if an option differs later."""
        if name not in self.queues and len(self.queues) >= self._crowded:
            self._rest(at_once=True)
        opened = self.queues.get(name)
        declared = opened.parts.context.settings if opened else self._declared.get(name)
        settings = declared or QUEUE_DEFAULTS.updated(options)
        if declared and (difference := declared.difference(options)):
            raise ConfigError(
                f"queue {name!r} is in use here with {difference}: give the same options, or none for those it has"
            )
        queue = opened.queue() if opened else None
        if queue is None:
            parts = opened.parts if opened else self._make_parts(name, settings)
            queue = make_queue(parts)
            self.queues[name] = OpenQueue(ref(queue), parts)
            self._declared.pop(name, None)
        return queue

    def _find_queue(self, name: str) -> Queue[Any]:
        """Return the queue of this name, with the options that this program has given it."""
        self.check_open()
        opened = self.queues.get(name)
        return (opened and opened.queue()) or self.queue(name, {})

    async def _rest_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(IDLE_SECONDS)
            self._rest()

    def _rest(self, *, at_once: bool = False) -> None:
        """End the work in the background of idle queues; drop those that the program does not refer to either.

        They are dropped at the second look, or ``at_once``.  A queue comes back when it is asked for again.  A wake-up
        that arrives for a dropped one is lost, and other consumers find the item when they look by themselves.
        """
        for name, opened in tuple(self.queues.items()):
            is_idle = opened.parts.rest() and opened.queue() is None
            if is_idle and (opened.was_idle or at_once):
                self._drop(name, opened)
            opened.was_idle = is_idle
        self._crowded = max(IDLE_MAX, 2 * len(self.queues))

    def _drop(self, name: str, opened: OpenQueue) -> None:
        del self.queues[name]
        for wait in opened.parts.waits.values():
            wait.close()
        for shard in self.shards.open.values():
            shard.wakeups.forget(name)
        suppliers = [shard.supplier for shard in opened.parts.shards]
        self._seq = max(self._seq, *(supplier.seq for supplier in suppliers))
        settings = opened.parts.context.settings
        if settings != QUEUE_DEFAULTS:
            _remember(self._declared, name, settings)
        if (declaration := opened.parts.context.declaration) and declaration.is_done:
            _remember(self._limited, name, None)
        if any(supplier.looks for supplier in suppliers):
            _remember(self._retired, name, None)

    def _make_parts(self, name: str, settings: ProgramOptions) -> QueueParts[Any]:
        everywhere = Everywhere(self.shards)
        change = partial(self._change_settings, everywhere, name)
        placement = self.shards.placement
        keeps_order = settings.groups is not None and settings.groups.ordered
        sender = Sender(name, placement, keeps_order=keeps_order, has_size=settings.max_size is not None)
        act = partial(self._declare, partial(change, at_start=True), settings)
        declaration = Once(act) if settings.declared else None
        if declaration:
            sender.taken_away = declaration.again
        if declaration and name in self._limited:
            declaration.is_done = True
        context = QueueContext(
            self.namespace,
            name,
            settings,
            self.own_loop,
            self.tasks,
            self.events,
            self.observers,
            self.identity,
            self._declared_dead,
            change,
            self.flows,
            declaration,
        )
        pusher: Pusher[Any] = Pusher(context, sender, placement, self._pushes)
        line: Line[Any] = Line(context)
        parts: QueueParts[Any] = QueueParts(context, pusher, line, everywhere)
        parts.use([self._make_shard(context, line, shard) for shard in self.shards.open.values()])
        return parts

    async def _change_settings(
        self,
        everywhere: Everywhere,
        queue: str,
        declared: Declared,
        read: Declared | None = None,
        *,
        at_start: bool = False,
    ) -> None:
        """Declare a section of the settings of a queue; what is on other shards than its home comes there."""
        await declare(everywhere, self.events, self.namespace, queue, declared, read, at_start=at_start)
        if queue in self.shards.map.homed:
            self.homing.want(queue)

    async def _declare(self, change: Declare, settings: ProgramOptions) -> None:
        """Do what comes before the first push or claim in a queue with options that belong to the queue."""
        for each in settings.declared:
            await change(each)

    def _declare_again(self) -> None:
        """Declare what the program says of its queues again, at the latest before it uses them: servers came back
        without data."""
        self._limited.clear()
        used = dict[str, Once]()
        for name, opened in self.queues.items():
            if declaration := opened.parts.context.declaration:
                if declaration.is_done:
                    used[name] = declaration
                declaration.again()
        if used:
            self.tasks.start(self._declare_used(used), "declare settings again")

    async def _declare_used(self, used: Mapping[str, Once]) -> None:
        """Declare the settings of queues for which this program had done so.  It may be idle, while others claim."""
        for name, declaration in used.items():
            try:
                await declaration.done()
            except ZkrqError as error:
                about = {"cluster": self.namespace, "queue": name}
                _log.info("queue %s: its settings are declared at the next call: %s", name, error, extra=about)

    def _make_shard(self, context: QueueContext, line: Line[Any], shard: Shard) -> QueueShard[Any]:
        """Make the part of a queue that is on one shard."""
        leases = Leases(shard.replicas, context)
        supplier: Supplier[Any] = Supplier(
            shard.replicas,
            leases,
            shard.wakeups,
            context,
            line,
            Here(self.shards.placement, context.queue, shard.name, lambda: shard.away),
            seq=self._seq,
        )
        shard.wakeups.register(context.queue, supplier.wake, leases.cancelled)
        return QueueShard(shard.name, shard.replicas, leases, supplier)

    def _shards_changed(self) -> None:
        """Let every queue use the shards that are open now."""
        for opened in self.queues.values():
            parts = opened.parts
            known = {shard.name: shard for shard in parts.shards}
            parts.use(
                [
                    known[shard.name] if shard.name in known else self._make_shard(parts.context, parts.line, shard)
                    for shard in self.shards.open.values()
                ]
            )

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks of an open client; those of all its parts.

        - Every queue has a part on each open shard, and none on others: items on a shard without one would never be
          claimed here, and those of a shard that was left would be claimed of nobody.
        - No more is remembered of dropped queues than may be.
        """
        self.shards.check_invariants()
        self._pushes.check_invariants()
        self.flows.check_invariants()
        for name, opened in self.queues.items():
            parts = opened.parts
            assert parts.name == name, f"queue {parts.name} stands under {name}"
            used = [shard.name for shard in parts.shards]
            assert used == [*self.shards.open], f"queue {name} uses {used} of the shards {[*self.shards.open]}"
            parts.check_invariants()
        for dropped in (self._declared, self._limited, self._retired):
            assert len(dropped) <= DROPPED_MAX, f"{len(dropped)} queues are remembered"

    # -- health --------------------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Report what this client knows, without asking a server."""
        view, trouble = self.shard.view, self.trouble()
        servers: dict[str, ServerHealth] = {}
        warnings, now, several = list[str](), clock.now(), len(self.shards.map.shards) > 1
        for shard in self.shards.open.values():
            servers |= shard.server_health()
            lost = [*shard.overlooked]
            lost += lost_redundancy(shard.view, servers, now, shard.name if several else "")
            if shard.needs_recovery:
                trouble.append(shard.needs_recovery)
            warnings += (*shard.dropping, *shard.warnings, *shard.damage)
            if shard.writable:
                warnings += lost
            else:
                trouble += lost
        ok = self.is_open and not trouble and all(shard.writable for shard in self.shards.open.values())
        return Health(ok, self.coordinator.session.state.value, view.epoch, servers, tuple(trouble), tuple(warnings))

    def trouble(self) -> list[str]:
        """Return what keeps this client, and perhaps no other, from its servers and shards."""
        trouble = [text for shard in self.shards.open.values() for text in shard.trouble]
        trouble += filter(None, (self.shards.went_back,))
        if len(self.shards.map.shards) > 1:
            joining, given = ShardState.JOINING.value, self.shards.given
            known = self.shards.status()
            away = [status.away for name, status in known.items() if status.state != joining or name in given]
            trouble += (reason for reason in away if reason)
        return trouble

    async def ping(self) -> None:
        """Ask whether a push and a claim could be made now; see ``Cluster.ping``."""
        await self._ask_for_room()
        if self.identity.owner is None:  # ZooKeeper is needed to enter this consumer before its first claim
            await self.coordinator.alive()

    async def _ask_for_room(self) -> None:
        """Return if one of the shards that take pushes would take one.  Raises what the last one did."""
        open_ones = [shard for name, shard in self.shards.open.items() if name in self.shards.map.open]
        shards = sorted(open_ones, key=lambda shard: shard.away is not None)
        for shard in shards:
            try:
                return await shard.ask_for_room()
            except (NotEnoughReplicas, Unavailable):
                if shard is shards[-1]:
                    raise
        raise Unavailable("no shard that takes pushes can be reached")

    def _report_stall(self, seconds: float) -> None:
        """Report that the event loop was blocked, and what is at risk since."""
        now = asyncio.get_running_loop().time()
        every = [leases for opened in self.queues.values() for leases in opened.parts.leases]
        held, expired = sum(map(len, every)), sum(leases.expired(now) for leases in every)
        uncertain = self.coordinator.valid_until <= now
        loop = asyncio.get_running_loop()
        names = tuple(sorted({name for task, name in on_loop.copy().items() if task.get_loop() is loop}))
        self.events.tell(LoopBlocked(self.namespace, seconds, held, expired, uncertain, names), logging.WARNING)

    # -- the coordinator's listener ------------------------------------------------------------------------------------

    def register_changed(self, register: str) -> None:
        """Read the register that was written: the shard map, a view, the schedules, or the quiet consumers."""
        self.shards.register_changed(register)
        self.schedule_store.register_changed(register)
        self.quieting.register_changed(register)

    def consumers_changed(self) -> None:
        """Look for orphans: a consumer came or went."""
        for shard in self.shards.open.values():
            shard.consumers_changed()

    def leading_changed(self, leading: bool) -> None:
        """Look at everything after winning the election, because the leader acts first."""
        for shard in self.shards.open.values() if leading else ():
            shard.leads()

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
                if before is SessionState.LOST:
                    self._introduce_again()
                    self.quieting.look_soon()
                if before is SessionState.SUSPENDED:
                    self.events.tell(SessionResumed(self.namespace, session.id))
                self.consumers_changed()
            case SessionState.CONNECTING | SessionState.CLOSED:
                pass

    async def _check_own_clock(self) -> None:
        await self.shard.check_own_clock()

    def _introduce_again(self) -> None:
        """Say anew what this client is: in a new session, with other slots, or quiet."""
        if self.is_open:
            self.tasks.start(self.upgrading.introduce_again(), "say what this client is")

    def _quiet_changed(self) -> None:
        """Have every queue claim nothing more, or claim again, and say so."""
        for opened in self.queues.values():
            opened.parts.line.quiet()
        self._introduce_again()

    def _declared_dead(self, owner: str) -> None:
        """Continue under a new owner id, after another client fenced this one and a server refused its claim
        request."""
        if self.identity.replace(owner):
            self.events.tell(DeclaredDead(self.namespace, owner), logging.WARNING)
            self._lose_all(owner, "this consumer was declared dead")
            self.quieting.look_soon()

    def _lose_all(self, owner: str, reason: str) -> None:
        for opened in self.queues.values():
            for leases in opened.parts.leases:
                leases.lose_all(owner, reason)
        # Others may have removed this owner's channel from the servers.  Consumers that wait have to listen on the
        # channel of the next owner.
        for shard in self.shards.open.values():
            shard.wakeups.wake_all()


def _remember(dropped: dict[str, T], name: str, value: T) -> None:
    """Note something about a dropped queue, and forget the one that was noted first where there are too many."""
    dropped.pop(name, None)
    if len(dropped) >= DROPPED_MAX:
        del dropped[next(iter(dropped))]
    dropped[name] = value
