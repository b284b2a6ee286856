"""Define what a cluster reports to ``on_event``: typed, frozen, one event per change of state, never one per
operation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Final, cast

from zkrq.protocol.shards import FIRST, ShardName

_log = logging.getLogger("zkrq.events")


SHOWN = 10
"""Elements of a list that a log record shows; the event itself has them all."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something changed.  ``cluster`` is the namespace.  Its text shows at most ``SHOWN`` elements of a list."""

    cluster: str

    def __str__(self) -> str:
        shown = (f"{each.name}={_shorten(getattr(self, each.name))}" for each in self._shown())
        return f"{type(self).__name__}({', '.join(shown)})"

    def _shown(self) -> Iterable[Field[Any]]:
        """Return the fields that the text has."""
        return fields(self)


def _shorten(value: object) -> str:
    if not isinstance(value, tuple):
        return repr(value)
    elements = cast("tuple[object, ...]", value)
    more = len(elements) - SHOWN
    return f"({', '.join(map(repr, elements[:SHOWN]))}, and {more:,} more)" if more > 0 else repr(elements)


@dataclass(frozen=True, slots=True)
class ShardEvent(Event):
    """Something changed in one shard.  ``shard``: its name, which the text leaves out for the first one."""

    shard: str = field(default=FIRST, kw_only=True)

    def _shown(self) -> Iterable[Field[Any]]:
        return (each for each in fields(self) if each.name != "shard" or self.shard != FIRST)


@dataclass(frozen=True, slots=True)
class ServerEvicted(ShardEvent):
    """This client evicted a server from the view; ``reason`` is for people."""

    server: str
    reason: str
    epoch: int


@dataclass(frozen=True, slots=True)
class ServerUnusableHere(ShardEvent):
    """This client cannot use a server that other clients may well use.  It completes no push, and evicts no server for
    it. ``reason`` says what to correct: a wrong password, a missing right, no room for one more connection."""

    server: str
    reason: str


@dataclass(frozen=True, slots=True)
class WakeupsRefused(ShardEvent):
    """A server does not let this client subscribe: its consumers poll for items every half second instead.  ``reason``
    names the missing right."""

    server: str
    reason: str


@dataclass(frozen=True, slots=True)
class CatchingUp(ShardEvent):
    """This client is copying all items to a server that has come back: ``copied`` of about ``total``, at ``rate`` items
    per second, with ``seconds_left`` at that rate (None: unknown).  Reported every two seconds."""

    server: str
    copied: int
    total: int
    rate: float
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class ServerCaughtUp(ShardEvent):
    """This client has caught a server up: it is in sync, after ``items`` were copied in ``seconds``."""

    server: str
    items: int
    seconds: float
    epoch: int


@dataclass(frozen=True, slots=True)
class Recovered(ShardEvent):
    """All in-sync servers had restarted, and the data that survived on the disks of ``servers`` was merged.  The
    servers in ``missing`` had been in sync but took no part: items that only they held are lost."""

    servers: tuple[str, ...]
    missing: tuple[str, ...]
    epoch: int


@dataclass(frozen=True, slots=True)
class Scrubbed(ShardEvent):
    """Servers disagreed about items of a queue, and agree now.  ``affirmed``: items that a follower had in another
    version; ``forwarded``: pushes whose client died in the middle; ``forgotten``: remains of removed items."""

    queue: str
    affirmed: int
    forwarded: int
    forgotten: int


@dataclass(frozen=True, slots=True)
class ViewChanged(ShardEvent):
    """This client has learned of a newer view."""

    epoch: int
    members: tuple[str, ...]
    learners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NotWritable(ShardEvent):
    """Fewer than ``min_replicas`` servers are in sync: pushes raise ``NotEnoughReplicas`` until more are."""

    members: tuple[str, ...]
    min_replicas: int


@dataclass(frozen=True, slots=True)
class ServerFull(ShardEvent):
    """A server of the view has reached its maxmemory.  Pushes raise ``Unavailable`` until it has room; claims and acks
    continue.  Reported once per occurrence."""

    server: str


@dataclass(frozen=True, slots=True)
class ServerHasRoom(ShardEvent):
    """A server that was full has accepted items for some time."""

    server: str


@dataclass(frozen=True, slots=True)
class SessionSuspended(Event):
    """ZooKeeper does not answer; work continues as long as no change of the view is needed."""

    owner: str


@dataclass(frozen=True, slots=True)
class SessionResumed(Event):
    """ZooKeeper answers again, and the session is still the same."""

    owner: str


@dataclass(frozen=True, slots=True)
class SessionLost(Event):
    """The session has ended, and with it every claim that it held."""

    owner: str


@dataclass(frozen=True, slots=True)
class DeclaredDead(Event):
    """Another client declared this consumer dead and gave its claims back.  Every claim under this owner id is lost,
    and the consumer continues under a new one.  If its session has ended too, ``SessionLost`` follows."""

    owner: str


@dataclass(frozen=True, slots=True)
class ClaimsLost(Event):
    """Claims of this process no longer hold; their handlers were told to stop."""

    queue: str
    ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class DeadLettersDropped(Event):
    """A claim of this process found more, or older, dead letters than the queue keeps: ``items`` were removed."""

    queue: str
    items: int


@dataclass(frozen=True, slots=True)
class MemoryShortened(ShardEvent):
    """More items are removed from a queue than its servers can keep tombstones for: removals older than ``seconds`` (at
    least 60, usually 600) are forgotten.  Later pushes than that are refused, unless their id is one of the user's own:
    such an item counts as new.  None: tombstones are kept for the usual time again."""

    queue: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class OwnerFenced(ShardEvent):
    """A dead consumer's claims are ready again; ``items`` is how many this client requeued."""

    queue: str
    owner: str
    items: int


@dataclass(frozen=True, slots=True)
class LoopBlocked(Event):
    """The event loop did not run for ``seconds``, because a call in this process did not let it: a handler that
    computes, or that calls something slow without ``await``.  What that cost: ``expired`` of the ``held`` claims passed
    their deadlines meanwhile, so their items may be delivered again; and with ``session_uncertain`` ZooKeeper may have
    ended the session, and with it all claims."""

    seconds: float
    held: int
    expired: int
    session_uncertain: bool


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
            "cluster": event.cluster,
            "shard": event.shard if self.several_shards and isinstance(event, ShardEvent) else None,
            "queue": getattr(event, "queue", None),
            "server": getattr(event, "server", None),
        }
        _log.log(level, "%s", event, extra=extra)
        for listener in tuple(self.listeners):
            try:
                listener(event)
            except Exception:
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
