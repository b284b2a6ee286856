"""Define what a cluster reports to ``on_event``: typed, frozen, one event per change of state, never one per
operation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from zkrq.protocol.shards import FIRST, ShardName

_log = logging.getLogger("zkrq.events")


SHOWN = 10
"""Elements of a list that a log record shows; the event itself has them all."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something changed.  ``cluster`` is the namespace.  Its text is a sentence for people, with at most ``SHOWN``
    elements of a list; ``repr`` has all fields."""

    cluster: str

    def __str__(self) -> str:
        return self._sentence()

    def _sentence(self) -> str:
        return repr(self)


def shorten(names: Sequence[str]) -> str:
    """List at most ``SHOWN`` names, and say how many more there are."""
    more = len(names) - SHOWN
    return f"{', '.join(names[:SHOWN])} and {more:,} more" if more > 0 else ", ".join(names)


@dataclass(frozen=True, slots=True)
class ShardEvent(Event):
    """Something changed in one shard.  ``shard``: its name, which the text leaves out for the first one."""

    shard: str = field(default=FIRST, kw_only=True)

    def __str__(self) -> str:
        return self._sentence() if self.shard == FIRST else f"shard {self.shard}: {self._sentence()}"


@dataclass(frozen=True, slots=True)
class ServerEvicted(ShardEvent):
    """This client evicted a server from the view; ``reason`` is for people."""

    server: str
    reason: str
    epoch: int

    def _sentence(self) -> str:
        return f"server {self.server} is out of sync, evicted by this client in epoch {self.epoch}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ServerUnusableHere(ShardEvent):
    """This client cannot use a server that other clients may well use.  It completes no push, and evicts no server for
    it. ``reason`` says what to correct: a wrong password, a missing right, no room for one more connection."""

    server: str
    reason: str

    def _sentence(self) -> str:
        return f"this client cannot use server {self.server}, and pushes nothing until it can: {self.reason}"


@dataclass(frozen=True, slots=True)
class ClocksApart(ShardEvent):
    """Clocks of servers and of this client differ by more than a server in sync may.  ``reasons`` names the wrong ones:
    this client's, or those of servers that stay in sync only because pushes need them; empty: they agree again."""

    reasons: tuple[str, ...]

    def _sentence(self) -> str:
        return "; ".join(self.reasons) if self.reasons else "the clocks of the servers and of this client agree again"


@dataclass(frozen=True, slots=True)
class WakeupsRefused(ShardEvent):
    """A server does not let this client subscribe: its consumers poll for items every half second instead.  ``reason``
    names the missing right."""

    server: str
    reason: str

    def _sentence(self) -> str:
        return f"server {self.server} sends this client no wake-ups, so it polls every half second: {self.reason}"


@dataclass(frozen=True, slots=True)
class SubscriptionSilent(ShardEvent):
    """An idle subscription of this client no longer heard the server, and no end of its connection either: a NAT or a
    load balancer between them may have forgotten it.  The client subscribes again.  Items that became ready meanwhile
    were found a few seconds late; messages of topics that were broadcast meanwhile, at most about ten seconds, may be
    lost if every server's subscription was dropped."""

    server: str

    def _sentence(self) -> str:
        return f"an idle subscription to server {self.server} went silent, and is made again: does a NAT drop it?"


@dataclass(frozen=True, slots=True)
class CatchingUp(ShardEvent):
    """This client is copying all items to a server that has come back: ``copied`` of about ``total``, at ``rate`` items
    per second, with ``seconds_left`` at that rate (None: unknown).  Reported every two seconds."""

    server: str
    copied: int
    total: int
    rate: float
    seconds_left: float | None

    def _sentence(self) -> str:
        left = "" if self.seconds_left is None else f", about {self.seconds_left:.0f} s left"
        speed = f"{self.rate:,.0f} a second{left}"
        return f"server {self.server}: {self.copied:,} of about {self.total:,} items copied, {speed}"


@dataclass(frozen=True, slots=True)
class ServerCaughtUp(ShardEvent):
    """This client has caught a server up: it is in sync, after ``items`` were copied in ``seconds``."""

    server: str
    items: int
    seconds: float
    epoch: int

    def _sentence(self) -> str:
        copied = f"{self.items:,} items copied in {self.seconds:.1f} s"
        return f"server {self.server} is in sync again in epoch {self.epoch}: {copied}"


@dataclass(frozen=True, slots=True)
class Recovered(ShardEvent):
    """All in-sync servers had restarted, and the data that survived on the disks of ``servers`` was merged.  The
    servers in ``missing`` had been in sync but took no part: items that only they held are lost."""

    servers: tuple[str, ...]
    missing: tuple[str, ...]
    epoch: int

    def _sentence(self) -> str:
        lost = f"; items that only {shorten(self.missing)} held are lost" if self.missing else ""
        return f"recovered in epoch {self.epoch} with the data of {shorten(self.servers)}{lost}"


@dataclass(frozen=True, slots=True)
class Scrubbed(ShardEvent):
    """Servers disagreed about items of a queue, and agree now.  ``affirmed``: items that a follower had in another
    version; ``forwarded``: pushes whose client died in the middle; ``forgotten``: remains of removed items;
    ``lined_up``: groups that had lost their place in line on a server; ``relisted``: entries of a server's index of
    flows that did not say what its items say."""

    queue: str
    affirmed: int
    forwarded: int
    forgotten: int
    lined_up: int = 0
    relisted: int = 0

    def _sentence(self) -> str:
        relisted = f", {self.relisted:,} entries of flows put right" if self.relisted else ""
        return (
            f"the servers disagreed about items of queue {self.queue} and agree now: {self.affirmed:,} affirmed, "
            f"{self.forwarded:,} forwarded, {self.forgotten:,} forgotten, {self.lined_up:,} groups put in line again"
            f"{relisted}"
        )


@dataclass(frozen=True, slots=True)
class ViewChanged(ShardEvent):
    """This client has learned of a newer view."""

    epoch: int
    members: tuple[str, ...]
    learners: tuple[str, ...]

    def _sentence(self) -> str:
        learners = f"; being caught up: {shorten(self.learners)}" if self.learners else ""
        return f"epoch {self.epoch}: in sync: {shorten(self.members)}{learners}"


@dataclass(frozen=True, slots=True)
class NotWritable(ShardEvent):
    """Fewer than ``min_replicas`` servers are in sync: pushes raise ``NotEnoughReplicas`` until more are."""

    members: tuple[str, ...]
    min_replicas: int

    def _sentence(self) -> str:
        return f"pushes fail until {self.min_replicas} servers are in sync; now: {shorten(self.members)}"


@dataclass(frozen=True, slots=True)
class ServerFull(ShardEvent):
    """A server of the view has reached its maxmemory.  Pushes raise ``Unavailable`` until it has room; claims and acks
    continue.  Reported once per occurrence."""

    server: str

    def _sentence(self) -> str:
        return (
            f"server {self.server} has reached its maxmemory: pushes fail until it has room, claims and acks continue"
        )


@dataclass(frozen=True, slots=True)
class ServerHasRoom(ShardEvent):
    """A server that was full has accepted items for some time."""

    server: str

    def _sentence(self) -> str:
        return f"server {self.server} has room again"


@dataclass(frozen=True, slots=True)
class SessionSuspended(Event):
    """ZooKeeper does not answer; work continues as long as no change of the view is needed."""

    owner: str

    def _sentence(self) -> str:
        return f"ZooKeeper does not answer session {self.owner}; work continues"


@dataclass(frozen=True, slots=True)
class SessionResumed(Event):
    """ZooKeeper answers again, and the session is still the same."""

    owner: str

    def _sentence(self) -> str:
        return f"ZooKeeper answers session {self.owner} again"


@dataclass(frozen=True, slots=True)
class SessionLost(Event):
    """The session has ended, and with it every claim that it held."""

    owner: str

    def _sentence(self) -> str:
        return f"ZooKeeper has ended session {self.owner}: every claim that it held is lost"


@dataclass(frozen=True, slots=True)
class ConsumerQuiet(Event):
    """An operator has made this consumer quiet: it claims nothing more, and finishes what it has.  Or, with
    ``is_quiet`` False, has let it claim again."""

    is_quiet: bool

    def _sentence(self) -> str:
        return "this consumer is quiet: it claims nothing more" if self.is_quiet else "this consumer claims again"


@dataclass(frozen=True, slots=True)
class DeclaredDead(Event):
    """Another client declared this consumer dead and gave its claims back.  Every claim under this owner id is lost,
    and the consumer continues under a new one.  If its session has ended too, ``SessionLost`` follows."""

    owner: str

    def _sentence(self) -> str:
        return (
            f"another client declared consumer {self.owner} dead: its claims are lost, and it continues under a new id"
        )


@dataclass(frozen=True, slots=True)
class ClaimsLost(Event):
    """Claims of this process no longer hold; their handlers were told to stop."""

    queue: str
    ids: tuple[str, ...]
    reason: str

    def _sentence(self) -> str:
        return f"{len(self.ids):,} claim(s) of queue {self.queue} lost, {self.reason}: {shorten(self.ids)}"


@dataclass(frozen=True, slots=True)
class DeadLettersDropped(Event):
    """A claim of this process found more, or older, dead letters than the queue keeps: ``items`` were removed."""

    queue: str
    items: int

    def _sentence(self) -> str:
        return f"{self.items:,} dead letter(s) of queue {self.queue} removed: it keeps no more, or none as old"


@dataclass(frozen=True, slots=True)
class ItemsGivenUp(Event):
    """A claim request of this process found items that were delivered as often as the queue allows, and settled by no
    consumer: they are dead letters now.  Their consumers died, or let the claims expire.  An item that kills its
    process takes along what is in progress there, each time: of the ``ids``, which were found together, one may be to
    blame, and the others be redriven."""

    queue: str
    ids: tuple[str, ...]

    def _sentence(self) -> str:
        if len(self.ids) == 1:
            return f"item {self.ids[0]} of queue {self.queue} is a dead letter now: it was never settled"
        together = "one that kills its process takes the others in it along"
        return f"{len(self.ids):,} items of queue {self.queue} are dead letters now, {together}: {shorten(self.ids)}"


@dataclass(frozen=True, slots=True)
class LimitsChanged(Event):
    """This client has declared limits of a queue that had others, ``before``: by another program, or by another version
    of this one, or an operator.  They hold for all."""

    queue: str
    before: str
    after: str

    def _sentence(self) -> str:
        return f"the limits of queue {self.queue} are {self.after} now, declared by this client; before: {self.before}"


@dataclass(frozen=True, slots=True)
class ScheduleChanged(Event):
    """Code of this client declares a schedule otherwise than it was stored, ``before``, so what an operator had changed
    of it is gone: other code, or another version of it, had declared it.  The last declaration holds for all."""

    queue: str
    name: str
    before: str
    after: str

    def _sentence(self) -> str:
        return (
            f"schedule {self.name} of queue {self.queue} is {self.after} now, as the code of this client declares it; "
            f"before: {self.before}"
        )


@dataclass(frozen=True, slots=True)
class MomentsLost(Event):
    """Moments of a schedule were not pushed, as far as is known: ``count`` of them, from ``first`` to ``last``.

    ``moments``: the latest of them, at most 1,000.  ``reason`` says why: too late for the ``catch_up`` of the schedule,
    left out because of its ``missed``, or the push failed for good.  Reported about half a minute after that was found,
    by one of the processes that run the schedule, and not if another one has pushed the moment, or the servers know its
    item.  A process that died right after a push, before it could store that, may have pushed one that is reported
    more than ten minutes later.  Seldom two processes report the same.
    """

    queue: str
    name: str
    count: int
    first: datetime
    last: datetime
    moments: tuple[datetime, ...]
    reason: str

    def _sentence(self) -> str:
        first, last = self.first.isoformat(), self.last.isoformat()
        span = first if self.count == 1 else f"{first} to {last}"
        what = f"{self.count:,} moment(s) of schedule {self.name} of queue {self.queue} were not pushed, {span}"
        return f"{what}: {self.reason}"


@dataclass(frozen=True, slots=True)
class MemoryShortened(ShardEvent):
    """More items are removed from a queue than its servers can keep tombstones for: removals older than ``seconds`` (at
    least 60, usually 600) are forgotten.  Later pushes than that are refused, unless their id is one of the user's own:
    such an item counts as new.  None: tombstones are kept for the usual time again."""

    queue: str
    seconds: float | None

    def _sentence(self) -> str:
        if self.seconds is None:
            return f"removals from queue {self.queue} are remembered for the usual time again"
        return f"removals from queue {self.queue} are forgotten after {self.seconds:.0f} s: it removes more than fit"


@dataclass(frozen=True, slots=True)
class DamageFound(ShardEvent):
    """Entries of a queue could not be read on some server.  ``mended``: taken from a server that could; ``set_aside``:
    no server in sync could, so their bytes are kept for ``zkrq damaged``; ``left``: no more may be set aside, so they
    stay where they are, and are skipped.  An entry is one item, or the items that one call pushed together."""

    queue: str
    mended: int
    set_aside: int
    left: int

    def _sentence(self) -> str:
        parts = [f"{self.mended:,} mended from another server"] if self.mended else []
        if self.set_aside:
            parts.append(f"{self.set_aside:,} set aside (`zkrq damaged list {self.queue}`)")
        if self.left:
            parts.append(f"{self.left:,} left where they are, because no more may be set aside (`zkrq damaged drop`)")
        return f"damaged entries of queue {self.queue}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class OwnerFenced(ShardEvent):
    """A dead consumer's claims are ready again; ``items`` is how many this client requeued."""

    queue: str
    owner: str
    items: int

    def _sentence(self) -> str:
        return f"consumer {self.owner} is dead: {self.items:,} of its claim(s) in queue {self.queue} are ready again"


@dataclass(frozen=True, slots=True)
class SeveralReleases(Event):
    """Clients of several releases of zkrq are there; reported by the leader, again when others come.  ``releases``:
    their versions, ``older`` for clients that name none.  ``level``: the active one, which all of them speak."""

    releases: tuple[str, ...]
    level: int

    def _sentence(self) -> str:
        return f"clients of several releases are there, at level {self.level}: zkrq {shorten(self.releases)}"


@dataclass(frozen=True, slots=True)
class LevelRaised(ShardEvent):
    """Another level is active from ``epoch`` on, raised by a client of ``release``: older clients are refused."""

    level: int
    release: str
    epoch: int

    def _sentence(self) -> str:
        return f"level {self.level} is active since epoch {self.epoch}, raised by a client of zkrq {self.release}"


@dataclass(frozen=True, slots=True)
class LevelRefused(ShardEvent):
    """The active level is not one that this client speaks: it writes nothing any more.  ``reason`` says what to do."""

    reason: str

    def _sentence(self) -> str:
        return f"this client is refused: {self.reason}"


@dataclass(frozen=True, slots=True)
class RegisterWentBack(ShardEvent):
    """What ZooKeeper stores is older than what it has stored before: it was restored from a backup.

    ``register``: the view, or the map of the shards.  ``known``: the view's epoch, or the map's number, that this
    client knows; ``stored``: the one that is there now.  This client goes on with what it knows, and cannot change it:
    no dead server can be evicted.  ``step`` says what to do.
    """

    register: str
    known: int
    stored: int
    step: str

    def _sentence(self) -> str:
        return went_back(self.register, self.known, self.stored, self.step)


def went_back(register: str, known: int, stored: int, step: str) -> str:
    """Say that a register went back, and what to do."""
    number = "epoch" if register == "view" else "number"
    return f"the {register} in ZooKeeper went back from {number} {known} to {stored}: it lost data; {step}"


@dataclass(frozen=True, slots=True)
class LoopBlocked(Event):
    """The event loop did not run for ``seconds``, because a call in this process did not let it: a handler that
    computes, or that calls something slow without ``await``.  What that cost: ``expired`` of the ``held`` claims passed
    their deadlines meanwhile, so their items may be delivered again; and with ``session_uncertain`` ZooKeeper may have
    ended the session, and with it all claims.  ``handlers``: names of the worker's handlers that were in progress on
    the event loop; one of them probably blocked it."""

    seconds: float
    held: int
    expired: int
    session_uncertain: bool
    handlers: tuple[str, ...] = ()

    def _sentence(self) -> str:
        by = f" while these handlers ran: {shorten(self.handlers)}" if self.handlers else ""
        cost = f"; {self.expired:,} of {self.held:,} held claim(s) expired" if self.expired else ""
        session = "; the ZooKeeper session may have ended" if self.session_uncertain else ""
        return f"the event loop was blocked for {self.seconds:.1f} s{by}{cost}{session}"


@dataclass(frozen=True, slots=True)
class FlowClosed(Event):
    """This client has decided the end of a flow of ``queue``.  ``outcome``: done, failed or cancelled."""

    queue: str
    name: str
    outcome: str

    def _sentence(self) -> str:
        return f"flow {self.name} of queue {self.queue} has ended: {self.outcome}"


@dataclass(frozen=True, slots=True)
class FlowStuck(Event):
    """Nothing is left of a flow of ``queue`` but ``dead`` letters and ``missed`` members, which were removed otherwise
    than by an ack; it goes on when these letters are redriven, or when somebody ends it."""

    queue: str
    name: str
    dead: int
    missed: int

    def _sentence(self) -> str:
        return (
            f"flow {self.name} of queue {self.queue} waits for {self.dead:,} dead letters and {self.missed:,} removed "
            "members: redrive them, or finish or cancel the flow"
        )


@dataclass(frozen=True, slots=True)
class TaskUnknown(Event):
    """A worker of this process was given items of a task that has no handler there (empty: of none); ``known``:
    those that have one.  The items go back for other workers.  Reported once for each task, while the worker runs."""

    queue: str
    task: str
    known: tuple[str, ...]

    def _sentence(self) -> str:
        what = f"items of task {self.task}" if self.task else "items without a task"
        known = shorten([name or "items without a task" for name in self.known])
        return (
            f"queue {self.queue} has {what}, for which a worker of this process has no handler: they go back for "
            f"others, each time for longer, until a worker that has one takes them; this one has handlers for {known}"
        )


class Events:
    """Log every event once and pass it to all listeners; an exception of a listener is logged."""

    def __init__(self, on_event: Callable[[Event], object] | None) -> None:
        self.listeners: Final = [] if on_event is None else [on_event]
        self.several_shards = False
        """Whether log records name the shard."""

    def of(self, shard: ShardName) -> Events:
        """Return the same for the parts of a shard, whose events get its name."""
        return _ShardEvents(self, shard)

    def tell(self, event: Event, level: int = logging.INFO) -> None:
        """Report an event."""
        extra = {
            "event": type(event).__name__,
            "cluster": event.cluster,
            "shard": event.shard if self.several_shards and isinstance(event, ShardEvent) else None,
            "queue": getattr(event, "queue", None),
            "server": getattr(event, "server", None),
        }
        _log.log(level, "%s", event, extra=extra)
        for listener in tuple(self.listeners):
            try:
                listener(event)
            except KeyboardInterrupt:
                raise
            except BaseException:
                _log.exception("a listener for events raised", extra=extra)


class _ShardEvents(Events):
    """Name the shard in every event that has one, and pass it on."""

    def __init__(self, events: Events, shard: ShardName) -> None:
        super().__init__(None)
        self._events = events
        self._shard = shard

    def tell(self, event: Event, level: int = logging.INFO) -> None:
        self._events.tell(replace(event, shard=self._shard) if isinstance(event, ShardEvent) else event, level)


def event_types() -> list[type[Event]]:
    """Return the type of every event."""
    every = [each for each in globals().values() if isinstance(each, type) and issubclass(each, Event)]
    return [each for each in every if each not in (Event, ShardEvent)]
