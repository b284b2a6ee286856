"""What a cluster tells ``on_event``: typed, frozen, one per change of state and never one per operation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger("zkrq.events")


@dataclass(frozen=True, slots=True)
class Event:
    """Something changed.  ``cluster`` is the namespace."""

    cluster: str


@dataclass(frozen=True, slots=True)
class ServerEvicted(Event):
    """This client took a server out of the view; ``reason`` is for people."""

    server: str
    reason: str
    epoch: int


@dataclass(frozen=True, slots=True)
class ServerUnusableHere(Event):
    """This client cannot use a server that others may well use: it completes no push, and evicts nobody for it.
    ``reason`` says what to do about it: a wrong password, a missing right, no room for one more connection."""

    server: str
    reason: str


@dataclass(frozen=True, slots=True)
class WakeupsRefused(Event):
    """A server does not let this client listen: its consumers look for items every half second instead.  ``reason``
    names the right that is missing."""

    server: str
    reason: str


@dataclass(frozen=True, slots=True)
class CatchingUp(Event):
    """This client copies all items to a server that has come back: ``copied`` of about ``total`` so far, ``rate`` items
    per second, ``seconds_left`` at that rate (None: unknown).  Told every two seconds."""

    server: str
    copied: int
    total: int
    rate: float
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class ServerCaughtUp(Event):
    """This client has brought a server back: it is in sync, after ``items`` were copied in ``seconds``."""

    server: str
    items: int
    seconds: float
    epoch: int


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """All in-sync servers had been restarted; what the disks of ``servers`` gave back was merged.  ``missing`` had no
    part in it, though they were in sync: what only they held is lost."""

    servers: tuple[str, ...]
    missing: tuple[str, ...]
    epoch: int


@dataclass(frozen=True, slots=True)
class Scrubbed(Event):
    """Servers did not agree about items of a queue, and do now: ``affirmed`` were known otherwise to a follower,
    ``forwarded`` are pushes whose client had died in the middle, ``forgotten`` are left-overs of removed items."""

    queue: str
    affirmed: int
    forwarded: int
    forgotten: int


@dataclass(frozen=True, slots=True)
class ViewChanged(Event):
    """A newer view is known here."""

    epoch: int
    members: tuple[str, ...]
    learners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NotWritable(Event):
    """Fewer than ``min_replicas`` servers are in sync: pushes raise ``NotEnoughReplicas`` until more are."""

    members: tuple[str, ...]
    min_replicas: int


@dataclass(frozen=True, slots=True)
class ServerFull(Event):
    """A server of the view has reached its maxmemory, told once: pushes raise ``Unavailable`` until it has room, claims
    and acks go on."""

    server: str


@dataclass(frozen=True, slots=True)
class ServerHasRoom(Event):
    """A server that was full has taken items for some time."""

    server: str


@dataclass(frozen=True, slots=True)
class SessionSuspended(Event):
    """ZooKeeper does not answer; work goes on as long as no change of the view is needed."""

    owner: str


@dataclass(frozen=True, slots=True)
class SessionResumed(Event):
    """ZooKeeper answers again, in the same session."""

    owner: str


@dataclass(frozen=True, slots=True)
class SessionLost(Event):
    """The session is over, and with it every claim that it held."""

    owner: str


@dataclass(frozen=True, slots=True)
class DeclaredDead(Event):
    """Others took this consumer for dead and gave its claims back: every claim under this owner id is lost, and it goes
    on under a new one.  Where its session is over too, ``SessionLost`` follows."""

    owner: str


@dataclass(frozen=True, slots=True)
class ClaimsLost(Event):
    """Claims of this process no longer hold; their handlers were told to stop."""

    queue: str
    ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class DeadLettersDropped(Event):
    """A claim of this process found more, or older, dead letters than the queue is to keep: ``items`` were removed."""

    queue: str
    items: int


@dataclass(frozen=True, slots=True)
class MemoryShortened(Event):
    """More is removed from a queue than its servers keep tombstones for: what was removed more than ``seconds`` ago (at
    least 60, instead of 600) is forgotten.  Pushes that are later than that are refused, unless their id is one of the
    user's own, which counts as new.  None: the memory reaches back as far as usual again."""

    queue: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class OwnerFenced(Event):
    """A dead consumer's claims are ready again; ``items`` is how many this client requeued."""

    queue: str
    owner: str
    items: int


class Events:
    """Logs every event once and hands it to the user's call-back, whose mistakes stay its own."""

    def __init__(self, on_event: Callable[[Event], object] | None) -> None:
        self._on_event = on_event

    def tell(self, event: Event, level: int = logging.INFO) -> None:
        extra = {
            "cluster": event.cluster,
            "queue": getattr(event, "queue", None),
            "server": getattr(event, "server", None),
        }
        _log.log(level, "%s", event, extra=extra)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            _log.exception("on_event raised", extra=extra)
