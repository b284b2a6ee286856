"""Run one shard as one client uses it: the connections to its servers, its view, its operations and its repair.

A shard is a set of servers with a view of its own.  A namespace has one, unless others were added.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from zkrq.base import clock
from zkrq.base.errors import Closed, ConfigError, Unavailable, ZkrqError
from zkrq.base.tasks import Tasks
from zkrq.client.health import ServerHealth, no_server_usable, place_of
from zkrq.consuming.wakeups import Wakeups
from zkrq.coordination.coordinator import VIEW, Coordinator
from zkrq.protocol.clocks import compare
from zkrq.protocol.eviction import Evicting
from zkrq.protocol.founding import Founding, Location
from zkrq.protocol.recovery import Recovered, has_live_member
from zkrq.protocol.refounding import Refounding, Reinstating
from zkrq.protocol.replies import Answer
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.shards import FIRST, ShardName
from zkrq.protocol.steps import NotNow, Operation, clocks_ahead
from zkrq.protocol.view import Life, ServerId, View
from zkrq.protocol.witness import Witness
from zkrq.repair.fencing import Reaper
from zkrq.repair.probe import Probe
from zkrq.repair.repairer import Repairer
from zkrq.repair.roster import Roster
from zkrq.replication.attendance import Attendance
from zkrq.replication.causes import Causes
from zkrq.replication.cutting import Cutter
from zkrq.replication.fleet import Fleet
from zkrq.replication.looking import Looking
from zkrq.replication.membership import Membership
from zkrq.replication.obstacles import KnownObstacles
from zkrq.replication.replicas import Replicas
from zkrq.replication.runner import Runner
from zkrq.replication.server import Server
from zkrq.replication.urls import redact, without_credentials

if TYPE_CHECKING:
    from zkrq.base.events import Events
    from zkrq.base.settings import Settings
    from zkrq.replication.urls import Told

NOT_OPEN = (
    "the cluster is not open: enter it first, as in `async with zkrq.connect(...) as cluster`, "
    "or `await cluster.open()`"
)

_log = logging.getLogger("zkrq")


class Shard:
    """Own the parts of a client that belong to one shard."""

    def __init__(
        self,
        name: ShardName,
        servers: Mapping[str, str],
        coordinator: Coordinator,
        settings: Settings,
        *,
        events: Events,
        told: Told,
        register: str = VIEW,
    ) -> None:
        """``told``: how servers are connected to.  ``register``: the one that its view is in."""
        self.events: Final = events.of(name)
        events = self.events
        self.name: Final = name
        self.register: Final = register
        self._settings = settings
        self.renewed: Callable[[], None] = lambda: None
        """Called when no member of the view lives the life of before: what was declared of queues may be gone; and when
        the level was raised: more can be declared."""
        self._lives, self._level = frozenset[tuple[ServerId, Life]](), 0
        """The members of the latest view, and its level."""
        namespace = self._namespace = settings.namespace
        tasks = self._tasks = Tasks(f"zkrq {namespace}" + ("" if name == FIRST else f" {name}"))
        make_server = partial(
            Server,
            namespace=namespace,
            command_timeout=settings.command_timeout,
            dial=told.dial,
            only_looks=settings.only_looks,
        )
        urls = {ServerId(id): url for id, url in servers.items()}
        self.fleet: Final = Fleet(urls, make_server, namespace=namespace, told=told)
        hold = Looking if settings.only_looks else Membership
        self.membership: Final[Membership] = hold(
            coordinator,
            self.fleet,
            namespace=namespace,
            events=events,
            register=register,
            shard="" if name == FIRST else name,
        )
        self.witness: Final = Witness(secrets.token_hex(8))
        self.obstacles: Final = KnownObstacles(self.fleet, namespace=namespace, events=events)
        self.cutter: Final = Cutter(self.membership, tasks)
        evicting = Evicting(self.witness, patience=settings.operation_timeout)
        causes = self._causes = Causes(shard="" if name == FIRST else name)
        runner = Runner(
            self.membership,
            self.obstacles,
            evicting,
            settings=settings,
            events=events,
            cutter=self.cutter,
            causes=causes,
        )
        self._attendance = Attendance(runner, evicting, self.obstacles, namespace=namespace)
        self.replicas: Final = Replicas(runner, causes=causes)
        self.wakeups: Final = Wakeups(self.fleet.servers, namespace=namespace, tasks=tasks, events=events)
        self.reaper: Final = Reaper(coordinator, self.replicas, cluster=namespace, events=events)
        self.repairer: Final = Repairer(
            coordinator, self.replicas, self.witness, causes, cluster=namespace, shard=name, events=events
        )
        self.probe: Final = Probe(coordinator, self.replicas, evicting, self.obstacles, cluster=namespace)
        self.roster: Final = Roster(self.membership, namespace=namespace)

    @property
    def view(self) -> View:
        """Latest view that this client knows.  Raises ``Closed`` before there is one."""
        if not self.membership.has_view:  # events are told, and may ask for it, before the client is open
            raise Closed(NOT_OPEN)
        return self.membership.view

    # -- opening -------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Begin; ``open`` follows."""
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End every connection, and the work in the background."""
        self.fleet.drop()
        await self._tasks.__aexit__(kind, error, traceback)

    async def open(self, recover_with: frozenset[ServerId] = frozenset()) -> bool:
        """Connect, and wait for recovery if no member is alive.

        ``recover_with``: servers to continue with then; empty: waits until the namespace has recovered by itself.
        Returns whether these were used.  Raises ``ConfigError``, ``Unavailable``.
        """
        self.membership.watch(self._follow)
        if await self._join():
            return False
        if recover_with:
            await self.repairer.recover_with(recover_with)
            return True
        await self.repairer.wait_recovered(self._settings.operation_timeout)
        return False

    async def _join(self) -> bool:
        """Read the view, or found the namespace if that is allowed.

        Returns whether a member was found in the life that the view names.  Raises ``ConfigError``, ``Unavailable``.
        """
        view, version, identities = await self.replicas.repair(Founding(self._settings, self._locations).join())
        for id, who in identities.items():
            if isinstance(who, ServerInfo):
                self.witness.meet(id, Life(who.run_id, who.generation))
        self.membership.begin(view, version)
        for id in view.receivers:
            if isinstance(answer := identities.get(id), Answer):
                self.obstacles.note_failure(id, answer)
        clocks = compare(clocks_ahead(identities))
        for id in view.servers.keys() - view.receivers.keys():
            who = identities.get(id)
            if reason := who.reason if isinstance(who, Answer) else who and (who.dropping or clocks.against(id)):
                self._causes.outside[id] = reason  # it is in the log already
        return has_live_member(view, identities)

    @property
    def _locations(self) -> Mapping[ServerId, Location]:
        return {id: Location(redact(url), without_credentials(url)) for id, url in self.fleet.urls.items()}

    async def refound(self, servers: frozenset[ServerId]) -> Recovered:
        """Write a view for what these servers hold, where ZooKeeper has none.  Raises ``ConfigError``, ``Unavailable``.

        In place of ``open``.
        """
        refounding = Refounding(self._settings, self._locations, repairer=secrets.token_hex(8))
        return await self._recover(refounding.run_with(servers))

    async def reinstate(self, servers: frozenset[ServerId], map_number: int = 0) -> Recovered:
        """Write a view for what these servers hold, over one that went back.  Raises ``ConfigError``, ``Unavailable``.

        In place of ``open``.  ``map_number``: of the shard map that pushes must know.
        """
        reinstating = Reinstating(self._settings, self._locations, repairer=secrets.token_hex(8))
        return await self._recover(reinstating.run_with(servers, map_number=map_number))

    async def _recover(self, operation: Operation[Recovered]) -> Recovered:
        try:
            return await self.replicas.repair(operation)
        except NotNow as error:
            raise Unavailable(f"not recovered: {error}") from error

    def start(self) -> None:
        """Start the work in the background; it ends with ``async with``.  A client that only looks has none."""
        if self.membership.only_looks:
            return
        self._tasks.supervise(self._attendance.run, "answer accusations")
        self._tasks.supervise(self.probe.run, "probe the servers")
        self._tasks.supervise(self.reaper.run, "look for orphans")
        self._tasks.supervise(self.repairer.run, "look after the servers")
        self._tasks.supervise(self.repairer.scrub_now_and_then, "scrub")

    # -- changes -------------------------------------------------------------------------------------------------------

    def view_changed(self) -> None:
        """Read the view: it was written."""
        self._tasks.start(self._read_view(), "read the view")

    async def _read_view(self) -> None:
        try:
            await self.membership.refresh(self.view)
        except ZkrqError as error:
            _log.info("the view could not be read: %s", error, extra={"cluster": self._namespace})

    def _follow(self, view: View) -> None:
        """Adapt this client to a newer view."""
        before, self._lives = self._lives, frozenset(view.members.items())
        is_raised, self._level = view.level > self._level, view.level
        if before and (is_raised or before.isdisjoint(self._lives)):
            self.renewed()
        self.wakeups.follow(view)
        self.repairer.view_changed(view)
        self.probe.view_changed()

    def consumers_changed(self) -> None:
        """Look for orphans: a consumer came or went."""
        self.reaper.look()
        self.probe.look()

    def leads(self) -> None:
        """Look at everything: this client has won the election, and acts first."""
        self.consumers_changed()
        self.repairer.look()

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - The known obstacles and the witness are about the servers of the view: what a client knows of others must
          neither stop a push nor evict a server.
        - Everything that is kept for this shard is consistent in itself.
        """
        self.replicas.check_invariants()
        self.obstacles.check_invariants()
        self.witness.check_invariants()
        self.wakeups.check_invariants()
        if self.membership.has_view:
            view = self.view
            assert self.witness.lives == view.receivers, "judges by other lives than the view's"
            assert self.obstacles.kept_out.keys() <= view.receivers.keys(), "kept out by servers that are not used"

    # -- health --------------------------------------------------------------------------------------------------------

    @property
    def away(self) -> str | None:
        """Why nothing can be had of this shard now: no server of it is connected; None if one is."""
        servers = self.fleet.servers
        if any(id in servers and servers[id].identity is not None for id in self.view.members):
            return None
        return f"shard {self.name} is away: none of its in-sync servers is connected ({', '.join(self.view.members)})"

    @property
    def trouble(self) -> tuple[str, ...]:
        """What keeps this client from its servers, as sentences."""
        of_the_view = tuple(filter(None, (self.membership.refusal, self.membership.went_back)))
        return of_the_view + self.obstacles.trouble + self.wakeups.trouble + self._unusable

    @property
    def _unusable(self) -> tuple[str, ...]:
        """Why no server in sync can be used; empty if one can, or if ``needs_recovery`` says why."""
        shard = "" if self.name == FIRST else self.name
        return () if self.needs_recovery else no_server_usable(self.witness.unusable, shard)

    @property
    def dropping(self) -> tuple[str, ...]:
        """Which servers of the view may drop items, as sentences, with the reason."""
        servers = ((id, self.fleet.servers.get(id)) for id in sorted(self.view.receivers))
        known = ((id, server.identity) for id, server in servers if server)
        return tuple(f"server {id} may drop items: {who.dropping}" for id, who in known if who and who.dropping)

    @property
    def overlooked(self) -> tuple[str, ...]:
        """Which servers of the view a client that only looks could not ask, as sentences; without those in
        ``trouble``."""
        failed = sorted(self.membership.overlooked.items())
        kept_out = self.obstacles.kept_out
        return tuple(f"server {id} could not be asked: {reason}" for id, reason in failed if id not in kept_out)

    @property
    def writable(self) -> bool:
        """Whether a push could complete with the servers that answer, as far as this client knows."""
        return len(self.view.members.keys() - self.membership.overlooked.keys()) >= self.view.min_replicas

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with these servers, or with this client, and stops nothing yet."""
        return self.obstacles.warnings

    @property
    def needs_recovery(self) -> str:
        """Why the data of restarted servers is not merged, and what to do; empty if no recovery is needed."""
        return self._causes.recovery

    @property
    def damage(self) -> list[str]:
        """Say which queues have damaged entries that are set aside, as far as this client has looked."""
        return [
            f"queue {queue}: {number:,} damaged {'entry is' if number == 1 else 'entries are'} set aside, see "
            f"`zkrq damaged list {queue}`"
            for queue, number in sorted(self.repairer.set_aside.items())
        ]

    def server_health(self) -> dict[str, ServerHealth]:
        """Report on each server, without asking it."""
        view, progress = self.view, self.repairer.progress
        reasons = {**self.membership.overlooked, **self._causes.outside}
        return {
            id: ServerHealth(
                place_of(id, view),
                server.identity is not None,
                progress.get(id),
                self.name,
                clock.at_ms(view.left_ms[id]) if id in view.left_ms else None,
                reasons.get(id),
                ".".join(map(str, server.identity.version)) if server.identity else "",
            )
            for id, server in sorted(self.fleet.servers.items())
        }

    async def check_own_clock(self) -> None:
        """Raise ``ConfigError`` if this client's own clock differs from those of the servers, or may."""
        compared = compare(clocks_ahead(await self.fleet.identify(self.view.members)))
        if compared.client or compared.undecided:
            raise ConfigError(f"{'; '.join(compared.sentences)}; nothing was changed")

    async def ask_for_room(self) -> None:
        """Ask every in-sync server whether something could be pushed now.  Raises what a push would raise."""
        await self.replicas.ask_for_room()
