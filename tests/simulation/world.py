"""Servers, an ensemble, queues, and clients, each a process of its own with a real ``Cluster``."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar, cast

from tests.simulation import rolling, setting, sharding
from tests.simulation.code import PRESENT, Code
from tests.simulation.ensemble import SimCoordinator, SimHub
from tests.simulation.findings import Findings
from tests.simulation.inspecting import Inspector
from tests.simulation.items import RESULT_SECONDS, Holder, Item, Outcome
from tests.simulation.ledger import Ledger
from tests.simulation.loop import Loop, Process, State
from tests.simulation.servers import SimServer
from tests.simulation.setting import Setting
from tests.simulation.sharding import SECOND, SimShard
from tests.simulation.trace import Trace
from tests.simulation.wire import Network
from zkrq import (
    Claim,
    ClaimLost,
    Closed,
    ConfigError,
    DeadLetters,
    Event,
    Groups,
    Limits,
    MomentsLost,
    NotEnoughReplicas,
    OutcomeUnknown,
    Queue,
    QueueFull,
    Results,
    Unavailable,
    ZkrqError,
)
from zkrq.client.cluster import Cluster
from zkrq.client.inner import client_of
from zkrq.client.moments import ID_CATCH_UP
from zkrq.protocol.shards import FIRST
from zkrq.protocol.view import View

T = TypeVar("T")

NAMESPACE = "sim"
NAMES = ("a", "b", "c", "d", "e")
"""What servers are called."""

OPERATORS_CALLS = {"recover", "add server", "remove server", "add shard", "drain shard", "remove shard", "upgrade"}
"""Calls that may be refused for what the servers are like."""

QUEUES = ("jobs", "mail", "calls", "bills")
"""Each has a primary of its own."""

SESSION_TIMEOUT = 4.0
COMMAND_TIMEOUT = 1.0
OPERATION_TIMEOUT = 8.0
CLAIM_TIMEOUT = 6.0

UNAWARE = 0.3
"""Which part of the clients declares nothing."""

UNNOTICED_STEP = 1.0
"""Seconds; a server's clock that is set forward by no more is not noticed (JUMP_US in ``lua/_lease.lua``)."""

SLACK = 4 * COMMAND_TIMEOUT
"""Seconds by which an operation may outlast its time: the last round is brought to its end."""


SLOW_TURNS = 50
"""Turns of a slow event loop by which an operation may outlast its time: those of its last connections, and of its own
tasks."""


@dataclass(frozen=True, slots=True)
class Ended(Generic[T]):
    """An operation's end."""

    outcome: Outcome
    value: T | None = None
    error: BaseException | None = None


CALL_LIMIT = 2 * OPERATION_TIMEOUT + SLACK
"""A call may wait for a batch to leave, then for its batch."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One of the queues: what it is like, and what was promised in it."""

    name: str
    setting: Setting
    ledger: Ledger

    @property
    def schedule(self) -> str:
        """The name of the schedule that every process declares."""
        return f"every {self.name}"


class Client:
    """A process with a cluster; ``cluster`` is None while it has none open."""

    def __init__(self, name: str, world: World, code: Code = PRESENT) -> None:
        self.name = name
        self.code = code
        self.world = world
        self.process = Process(name)
        self.cluster: Cluster | None = None
        self.coordinator: SimCoordinator | None = None
        self.operations: dict[asyncio.Task[Any], tuple[str, float]] = {}
        self.paused_for = 0.0
        self.opened = 0
        self.stopping = False
        self.takes_part = True
        """Whether it does what the others do; the auditor only looks."""
        self.denied = False
        """Whether some server has not let it in at some time."""
        self.slowest_turn = 0.0
        """Seconds that a turn of its event loop took while that was slow: its calls may end later by many of them."""

    def __repr__(self) -> str:
        return f"<Client {self.name} {self.process.state.value}>"

    @property
    def is_alive(self) -> bool:
        return self.process.state is not State.DEAD

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run something in this process."""
        return self.world.loop.create_task(work, name=f"{self.name}: {name}", context=self.process.context.copy())

    def make(self) -> tuple[Cluster, SimCoordinator]:
        """A new cluster, not open yet."""
        world = self.world
        self.opened += 1
        self.coordinator = SimCoordinator(world.hub, self.process)
        settings = self.code.make_settings(
            namespace=NAMESPACE,
            found=True,
            min_replicas=world.first.min_replicas,
            description=f"{self.name} {self.opened}",
            command_timeout=COMMAND_TIMEOUT,
            operation_timeout=OPERATION_TIMEOUT,
            on_event=self._note,
        )
        urls = {name: f"redis://{name}" for name in world.known_servers}
        dial = world.network.dial(world.servers, self.process, self.code)
        given = {shard.name: world.urls(shard) for shard in world.shards[1:] if world.plan and world.plan.given}
        return self.code.make_cluster(urls, self.coordinator, settings, dial=dial, shards=given), self.coordinator

    def _note(self, event: Event) -> None:
        if type(event).__name__ == "DamageFound" and not self.code.is_present:
            self.world.found.violation(f"{self.name}: takes what it does not know for damaged: {event}")
        for lane in self.world.lanes:
            if isinstance(event, MomentsLost) and event.queue == lane.name:
                lane.ledger.moments_lost.update(event.moments)
                self.world.found.counts["moments lost"] += event.count

    @property
    def at_latest_level(self) -> bool:
        """Whether it may use what came with the latest level: its release knows of that, and the level is raised."""
        if self.world.rolling is None:
            return True
        return self.code.is_present and self.cluster is not None and self.cluster.level > rolling.LEVEL_BEFORE

    async def open(self) -> bool:
        """Open a cluster; False when that could not be had now."""
        cluster, _ = self.make()
        ended = await self.do("open", cluster.__aenter__(), 60.0)
        if ended.outcome is Outcome.DONE:
            self.cluster = cluster
            self._declare(cluster)
        return ended.outcome is Outcome.DONE

    def _declare(self, cluster: Cluster) -> None:
        """Have pushes recur; every process declares the same."""
        for lane in self.world.lanes if self.takes_part and not self.stopping else ():
            if lane.setting.every and (queue := self.queue(lane)):
                lateness: dict[str, Any] = {}
                if self.world.rolling is None:
                    lateness = {"catch_up": lane.setting.catch_up, "missed": lane.setting.missed}
                cluster.every(lane.setting.every, queue, lane.ledger.recurring, name=lane.schedule, **lateness)

    async def close(self) -> None:
        cluster, self.cluster = self.cluster, None
        if cluster is None:
            return
        is_called = False

        async def close() -> None:
            nonlocal is_called
            is_called = True
            await cluster.aclose()

        while not is_called:  # by a task that was cancelled before it began
            await self.do("close", close(), 20.0)

    def queue(self, lane: Lane | None = None) -> Queue[Any] | None:
        """A queue of the open cluster, None: the first one."""
        lane = lane or self.world.lanes[0]
        if self.cluster is None:
            return None
        retry, limits = self.code.module("base.retry"), self.code.module("base.limits")
        letters: DeadLetters | None = lane.setting.dead_letters
        letters = letters and limits.DeadLetters(**asdict(letters))
        options: dict[str, Any] = {}
        policy: dict[str, Any] = {}
        declares = not self.is_unaware(lane)
        if self.world.rolling is None:
            policy["holds_group"] = lane.setting.holds_group
            options["groups"] = lane.setting.groups_option(declares=declares)
            options["results"] = Results(ttl=RESULT_SECONDS) if lane.setting.results else None
            options["limits"] = lane.setting.limits if declares else None
            options["history"] = lane.setting.history if declares else None
        try:
            # Which options it takes is its release's affair.
            return cast("Callable[..., Queue[Any]]", self.cluster.queue)(
                lane.name,
                claim_timeout=CLAIM_TIMEOUT,
                retry=retry.Retry(max_attempts=None, backoff=retry.constant(1.0), **policy),
                dead_letters=letters,
                max_size=lane.setting.max_size if declares else None,
                **options,
            )
        except Closed:
            return None

    def is_unaware(self, lane: Lane) -> bool:
        """Whether its program declares none of the settings of a queue.  Where deletions take them away all do."""
        if self.world.rolling or lane.setting.deletes:
            return False
        return self.world.chance_for(f"{self.name} and {lane.name}").random() < UNAWARE

    async def do(self, kind: str, work: Coroutine[Any, Any, T], limit: float) -> Ended[T]:
        """Carry out an operation as a task of its own, which a fault may cancel; it has to end within ``limit``."""
        world = self.world
        task = world.loop.create_task(work, name=f"{self.name}: {kind}")
        started, paused = world.loop.now, self.paused_for
        self.operations[task] = (kind, started)
        world.trace.note(f"{self.name} {kind}")
        world.found.counts["operations"] += 1
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            if task.done():
                self.operations.pop(task, None)
        took = world.loop.now - started - (self.paused_for - paused)
        limit += SLOW_TURNS * self.slowest_turn
        if took > limit:
            world.found.violation(f"{self.name}: {kind} took {took:.1f} s, should have ended within {limit:.1f} s")
        if task.cancelled():
            ended: Ended[T] = Ended(Outcome.CANCELLED)
        elif error := task.exception():
            ended = self.judge(kind, error)
            if world.only in world.calls_fail_for_none_of and not _may_fail(kind, error):
                world.found.violation(f"{self.name}: {kind} failed though every server answers: {error!r}")
        else:
            ended = Ended(Outcome.DONE, self.code.translated(task.result()))
            if world.rolling:
                world.rolling.note_done(self, kind, started)
        world.trace.note(f"{self.name} {kind}: {ended.outcome.value} {ended.error or ''}")
        world.found.counts[f"{kind} {ended.outcome.value}"] += 1
        return ended

    def given(self, lane: Lane, claim: Claim[Any]) -> tuple[Item, Holder]:
        """A consumer of this client was given a claim."""
        certain = self.coordinator is not None and self.coordinator.valid_until > self.world.loop.now
        return lane.ledger.delivered(claim, self.process, certain=certain)

    def _is_at_odds(self) -> bool:
        """Whether the clock of a server is wrong and a shard has one member, maybe this: nobody can tell which of its
        clock and the client's is the wrong one."""
        shards = client_of(self.cluster).shards.open.values() if self.cluster else ()
        return self.world.leaping and any(len(shard.view.members) == 1 for shard in shards)

    def judge(self, kind: str, error: BaseException) -> Ended[Any]:
        """What an operation's error means to its caller."""
        match error:
            case OutcomeUnknown():
                return Ended(Outcome.UNKNOWN, None, error)
            case ClaimLost():
                return Ended(Outcome.LOST, None, error)
            case NotEnoughReplicas() | QueueFull() | Unavailable() | Closed():
                return Ended(Outcome.REFUSED, None, error)
            case ConfigError() if self.world.rolling and self.world.rolling.explains(error):
                self.world.found.counts[f"refused for the level: {kind}"] += 1
                return Ended(Outcome.UNKNOWN, None, error)
            case ConfigError() if self.denied or kind in OPERATORS_CALLS:
                return Ended(Outcome.REFUSED, None, error)
            case ConfigError() if self.world.is_forced and "push" in kind and "which was removed" in str(error):
                return Ended(Outcome.UNKNOWN, None, error)
            case ConfigError() if "push" in kind and "the clock here differs" in str(error) and self._is_at_odds():
                return Ended(Outcome.REFUSED, None, error)
            case ConfigError() if kind == "open" and "role is" in str(error):
                return Ended(Outcome.REFUSED, None, error)  # somebody has to mend that server, so says the error
            case _:
                kind_of_error = "zkrq" if isinstance(error, ZkrqError) else "foreign"
                self.world.found.violation(f"{self.name}: {kind} raised a {kind_of_error} error: {error!r}")
                return Ended(Outcome.RAISED, None, error)


def _may_fail(kind: str, error: BaseException) -> bool:
    """Whether a call may end so though every server answers in time for it to be retried.

    A pop may have been given less time than that; a handler's error may be that its item was cancelled; and a limited
    queue may be full when a push whose first try may have been executed is retried.
    """
    if kind.startswith("pop") or kind == "handle, raise":
        return True
    if isinstance(error, OutcomeUnknown) and error.outcomes is not None:  # of several pushes: raised because of these
        unknown = [each for each in error.outcomes.errors if isinstance(each, OutcomeUnknown)]
        return all(_may_fail(kind, each) for each in unknown)
    in_doubt = isinstance(error, OutcomeUnknown) and str(error).endswith(
        "may have happened; push again with the same id"
    )
    return in_doubt or isinstance(error, QueueFull | Closed | ClaimLost)


class World:
    """All of it."""

    def __init__(
        self, seed: int, loop: Loop, trace: Trace, *, sharded: bool = False, before: Code | None = None
    ) -> None:
        """``sharded``: with a second shard, or with servers for one; ``before``: the release before, if clients of it
        take part."""
        self.seed = seed
        self.loop = loop
        self.trace = trace
        self.chance = self.chance_for("world")
        self.shape = shape = setting.draw_shape(self.chance)
        self.plan = sharding.draw(self.chance_for("shards"), shape.min_replicas) if sharded else None
        self.rolling = rolling.draw(self.chance_for("rolling"), before) if before else None
        names = NAMES[: shape.servers]
        more = sharding.NAMES[: self.plan.servers] if self.plan else ()
        self.servers = {name: self._new_server(name) for name in (*names, *more)}
        self.hub = SimHub(loop, self.chance_for("hub"), trace, session_timeout=SESSION_TIMEOUT)
        self.first = SimShard(FIRST, names, self.hub, self.servers, shape.min_replicas)
        self.shards = [self.first]
        if self.plan:
            self.shards.append(SimShard(SECOND, more, self.hub, self.servers, self.plan.min_replicas))
        self.network = Network(loop, self.chance_for("network"), trace)
        self.found = Findings(loop, trace)
        self.lanes = [self._new_lane(name) for name in self.chance.sample(QUEUES, shape.queues)]
        self.clients: list[Client] = []
        self.inspector = Inspector(self)
        loop.at_rest = self.inspector.look
        self.only: object = None
        """The only fault that there is, None: there may be others."""
        self.calls_fail_for_none_of: tuple[object, ...] = ()
        """Faults for which no call may fail where there is nothing else."""
        self.hangs_from = 0.0
        """When the next server may hang."""
        self.denies_all = False
        """Whether some server let nobody in at some time."""
        self.closings = 0
        """How often a server let nobody in."""
        self.closed_members: list[str] = []
        """Servers that were still in sync after they had let nobody in for long."""
        self.only_shards_go = False
        """Whether nothing happens except that the second shard is away, comes and goes."""
        self.only_maps_change = False
        """Whether nothing happens except that the shard map changes, and no shard is removed: no push may fail."""
        self.is_forced = False
        """Whether somebody was to remove a shard by force: pushes that are repeated then may end as they must not."""
        self.away_until: datetime | None = None
        """When everything was back, after it had been away for longer than a push may be late."""
        self.leaping = False
        """Whether the clock of a server is wrong, by far."""
        self.stepped = 0.0
        """Seconds by which servers' clocks have been set, forward or back, all together."""

    def chance_for(self, what: str) -> random.Random:
        """A source of chance of its own, so that a change in one place leaves the others' alone."""
        return random.Random(f"{self.seed}/{what}")

    def _new_server(self, name: str) -> SimServer:
        server = SimServer(name, self.loop, self.chance_for(name), self.trace)
        server.clock = self.wrong_clock(name)
        server.pace = self.shape.pace
        return server

    def wrong_clock(self, whose: str) -> float:
        """Seconds by which a clock is ahead: any two differ by less than the window for pushes."""
        return self.chance_for(f"clock of {whose}").uniform(-self.shape.clocks, self.shape.clocks)

    def _new_lane(self, name: str) -> Lane:
        drawn = setting.draw(self.chance_for(f"setting of {name}"))
        sharded = self.plan is not None
        if self.rolling:
            drawn = drawn.of_all_releases
        elif drawn.every:
            drawn = setting.draw_lateness(drawn, self.chance_for(f"lateness in {name}"))
        ledger = Ledger(self.loop, self.hub, self.trace, self.found, max_size=drawn.max_size, sharded=sharded)
        ledger.limits, ledger.groups = drawn.limits or Limits(), drawn.declared_groups or Groups()
        ledger.ordered = drawn.ordered
        ledger.default_group = "" if drawn.all_grouped else None
        lane = Lane(name, drawn, ledger)
        ledger.schedule, ledger.has_keyed_moments = lane.schedule, drawn.catch_up > ID_CATCH_UP
        return lane

    @property
    def queue(self) -> str:
        """The name of the first queue: for schedules made by hand, which have no other."""
        return self.lanes[0].name

    def new_client(self, name: str, code: Code = PRESENT) -> Client:
        client = Client(name, self, code)
        client.process.clock = self.wrong_clock(name)
        client.denied = self.is_closed
        self.clients.append(client)
        return client

    # -- shards -------------------------------------------------------------------------------------------------------

    def shard_of(self, server: str) -> SimShard:
        """The shard that a server is for."""
        return next((shard for shard in self.shards[1:] if server in shard.names), self.first)

    @property
    def views(self) -> Sequence[tuple[SimShard, View]]:
        """The shards that there are, with their views."""
        return [(shard, view) for shard in self.shards if (view := shard.view)]

    @property
    def view(self) -> View | None:
        """The first shard's view as the hub has it."""
        return self.first.view

    @property
    def known_servers(self) -> Iterable[str]:
        """What a client that connects now is given: the servers of the first shard."""
        return self.first.names if self.view is None else self.view.servers

    def wash(self, shard: SimShard) -> None:
        """Before servers are to found a shard, they are flushed: they may have belonged to one that was removed."""
        for name in shard.names if shard.view is None else ():
            self.servers[name].redis.flush()

    def urls(self, shard: SimShard) -> dict[str, str]:
        """The servers that a shard is founded with."""
        return {name: f"redis://{name}" for name in shard.names}

    def add_server(self) -> str | None:
        """One more server runs, empty; its name, None where there are enough."""
        name = next((name for name in NAMES if name not in self.servers), None)
        if name:
            self.servers[name] = self._new_server(name)
        return name

    def note_step(self, seconds: float) -> None:
        """A server's clock was set: what is there by now may happen so much earlier, or later."""
        if 0 < seconds <= UNNOTICED_STEP:
            self.found.unnoticed += seconds
        seconds = abs(seconds)
        self.stepped += seconds
        self.found.clocks_set = True
        for lane in self.lanes:
            for item in lane.ledger.items.values():
                item.slack += seconds

    def note_hold(self, seconds: float) -> None:
        """A server stood still: what others had decided meanwhile reaches it so much later, and counts from then."""
        for lane in self.lanes:
            for item in lane.ledger.items.values():
                item.held_back += seconds

    @property
    def is_closed(self) -> bool:
        """Whether some server lets nobody in."""
        return any(server.closed for server in self.servers.values())

    def living_members(self) -> list[str]:
        """Members of any shard that are in the life that its view names."""
        return [id for shard in self.shards for id in shard.living_members()]

    @property
    def is_whole(self) -> bool:
        """Whether all servers of all shards are in sync, in the lives that they are in."""
        return all(shard.is_whole for shard in self.shards if shard is self.first or shard.entry)

    # -- what a client goes through -----------------------------------------------------------------------------------

    def drop(self, client: Client) -> None:
        """kill -9: its connections end, the ensemble waits for its session to time out."""
        client.process.kill()
        for server in self.servers:
            for wire in tuple(self.network.path(client.name, server).wires):
                wire.shut("the process is gone")
        if client.coordinator is not None:
            self.loop.call_later(
                self.chance.uniform(0.5, 1.0) * SESSION_TIMEOUT, self.hub.expire, client.coordinator.session.id
            )

    def pause(self, client: Client) -> None:
        """SIGSTOP."""
        client.process.pause()
        client.paused_for -= self.loop.now
        if client.coordinator is not None:
            self.hub.silence(client.coordinator, deaf=False)

    def resume(self, client: Client) -> None:
        """SIGCONT; what became of its session it learns a little later."""
        if client.process.state is not State.PAUSED:
            return
        client.paused_for += self.loop.now
        client.process.resume(self.loop)
        if client.coordinator is not None:
            self.hub.break_silence(client.coordinator, self.chance.uniform(0.0, 0.3))
