"""The view: which servers may be believed, under a number that only grows.

Plain values and functions, without I/O: what founding, eviction, admission and recovery make of a view, and the choice
of a queue's primary.  The operations of the same names call them; membership.py writes the result by compare-and-set.
The family is Vertical Paxos II and PacificA: an outside master holds the configuration, writes go to all of it.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NewType, Protocol

ServerId = NewType("ServerId", str)


class Life(NamedTuple):
    """One life of a server: Redis' own name for one life of its process, and the nonce written when it was enrolled."""

    run_id: str
    generation: str


class Accusation(NamedTuple):
    """Client ``by`` has no answer from a server in the life of this generation; ``refuted``: another client has."""

    by: str
    generation: str
    refuted: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """``members`` are in sync, ``learners`` are being caught up; both receive every write.  ``eligible`` were evicted
    while the view was falling below ``min_replicas``: since no push completes there, they still hold every pushed
    item.  ``servers`` names all that belong to the namespace, in the view or not, with the URL (without credentials)
    for clients that were not given one.  ``by`` is unique to this view.  ``deployment`` was made when the namespace was
    founded and is written into every server that is enrolled: one that names another holds somebody else's items.

    ``accusations`` has at most one of each receiver, in its present life.  It changes nothing about who is in sync, so
    it changes without a new epoch: views of the same epoch differ in nothing else."""

    epoch: int
    members: Mapping[ServerId, Life]
    learners: Mapping[ServerId, Life]
    eligible: Mapping[ServerId, Life]
    servers: Mapping[ServerId, str]
    min_replicas: int
    by: str
    deployment: str = ""
    accusations: Mapping[ServerId, Accusation] = field(default_factory=dict[ServerId, Accusation])
    receivers: Mapping[ServerId, Life] = field(init=False, repr=False, compare=False)
    """Every server that a write goes to."""
    _primaries: dict[str, ServerId] = field(default_factory=dict[str, ServerId], init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        receivers = {**self.members, **self.learners}
        object.__setattr__(self, "receivers", receivers)
        if self.accusations:
            present = {
                id: accusation
                for id, accusation in self.accusations.items()
                if id in receivers and receivers[id].generation == accusation.generation
            }
            object.__setattr__(self, "accusations", present)

    @property
    def writable(self) -> bool:
        """Whether a push can complete."""
        return len(self.members) >= self.min_replicas

    def id_of(self, run_id: str) -> ServerId | None:
        """Under which name this life of a process is known here, None if it is not."""
        lives = (*self.receivers.items(), *self.eligible.items())
        return next((server for server, life in lives if life.run_id == run_id), None)

    def primary(self, queue: str) -> ServerId:
        """The member that decides for this queue: rendezvous hashing (Thaler and Ravishankar, 1998), so that a change
        of members moves only the queues of the member that came or went."""
        known = self._primaries.get(queue)
        if known is None:
            if len(self._primaries) >= _PRIMARIES_KEPT:
                self._primaries.clear()
            known = max(self.members, key=lambda server: hashlib.blake2b(f"{server}\0{queue}".encode()).digest())
            self._primaries[queue] = known
        return known


_PRIMARIES_KEPT = 10_000
"""Queues whose primary is remembered within one view."""


class ViewChange(Protocol):
    """One of the functions below with everything given but the view and ``by``, the new view's nonce."""

    def __call__(self, view: View, /, *, by: str) -> View: ...


def encode(view: View) -> bytes:
    """The view as the register holds it."""
    content: dict[str, object] = {
        "epoch": view.epoch,
        "members": view.members,
        "learners": view.learners,
        "eligible": view.eligible,
        "servers": view.servers,
        "min_replicas": view.min_replicas,
        "by": view.by,
        "deployment": view.deployment,
    }
    if view.accusations:
        content["accusations"] = view.accusations
    return json.dumps(content, separators=(",", ":")).encode()


def decode(data: bytes) -> View:
    """Read what ``encode`` wrote.  Raises ``ValueError`` for anything else."""
    try:
        content: dict[str, Any] = json.loads(data)
        return View(
            epoch=int(content["epoch"]),
            members=_lives(content["members"]),
            learners=_lives(content["learners"]),
            eligible=_lives(content["eligible"]),
            servers={ServerId(server): str(url) for server, url in content["servers"].items()},
            min_replicas=int(content["min_replicas"]),
            by=str(content["by"]),
            deployment=str(content.get("deployment", "")),
            accusations=_accusations(content.get("accusations", {})),
        )
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"the register holds no view of zkrq: {data[:80]!r}") from error


def _lives(content: Mapping[str, tuple[str, str]]) -> Mapping[ServerId, Life]:
    return {ServerId(server): Life(*life) for server, life in content.items()}


def _accusations(content: Mapping[str, tuple[str, str, bool]]) -> Mapping[ServerId, Accusation]:
    return {ServerId(server): Accusation(*accusation) for server, accusation in content.items()}


FOUNDING = 0
"""The epoch of a view that is only a plan: its servers are being enrolled, nothing is stored under it."""


def plan(lives: Mapping[ServerId, Life], urls: Mapping[ServerId, str], *, min_replicas: int, by: str) -> View:
    """What a namespace is to begin with: every server a member, in the lives that the plan names.  The plan's nonce
    becomes the deployment's."""
    return View(FOUNDING, dict(lives), {}, {}, {id: urls[id] for id in sorted(lives)}, min_replicas, by, by)


def found(planned: View, *, by: str) -> View:
    """The first view: the plan, once all its servers are enrolled."""
    return replace(planned, epoch=FOUNDING + 1, by=by)


class Eviction(enum.Enum):
    """What an eviction does to the view."""

    HARMLESS = "pushes still complete afterwards"
    HALTING = "fewer than min_replicas members are left: no push completes until one is back"
    IMPOSSIBLE = "no member would be left that has answered"


def weigh_eviction(view: View, failed: Iterable[ServerId]) -> Eviction:
    """What removing ``failed`` would mean."""
    left = len(view.members.keys() - set(failed))
    if left == 0:
        return Eviction.IMPOSSIBLE
    if left < view.min_replicas and left < len(view.members):
        return Eviction.HALTING
    return Eviction.HARMLESS


def evict(view: View, failed: Iterable[ServerId], *, by: str) -> View:
    """The view without ``failed``.  The caller has made sure that every remaining member answered it just now."""
    gone = set(failed)
    members = {server: life for server, life in view.members.items() if server not in gone}
    if not members:
        raise ValueError("the last member cannot be evicted")
    if len(members) < view.min_replicas:
        evicted = {server: life for server, life in view.members.items() if server in gone}
        eligible = {**view.eligible, **evicted}
    else:
        eligible = {}
    learners = _without(view.learners, *gone)
    return replace(view, epoch=view.epoch + 1, members=members, learners=learners, eligible=eligible, by=by)


def _without(lives: Mapping[ServerId, Life], *servers: ServerId) -> dict[ServerId, Life]:
    return {server: life for server, life in lives.items() if server not in servers}


ACCUSATION_GRACE = 5.0
"""Seconds that others have to refute an accusation; more than two command_timeouts of a usual client."""

WITNESS_GRACE = 1.0
"""The same where a second client does not reach the server either; enough for one that does."""

ACCUSE_AGAIN = 60.0
"""Seconds after which a client that was contradicted accuses the same life again: the others may have gone since."""


class Silence(enum.Enum):
    """What a client may do about a server that does not answer it."""

    EVICT = "evict the server"
    ACCUSE = "ask the other clients, by an accusation in the view"
    WAIT = "leave the other clients time to refute"
    CONTRADICTED = "fail: the server answers other clients"


def weigh_silence(view: View, server: ServerId, client: str, *, standing: bool, seconds: float) -> Silence:
    """What ``client`` may do about a receiver that does not answer it.

    Silence is an impression, and may be the client's own fault.  One with ``standing`` evicts: the server has answered
    it in this life, and it has not evicted this process lately.  One without asks the others.  ``seconds``: for how
    long it has known what the view says about this server.
    """
    accusation = view.accusations.get(server)
    if standing:
        return Silence.EVICT
    if accusation is None:
        return Silence.ACCUSE
    if not accusation.refuted:
        grace = ACCUSATION_GRACE if accusation.by == client else WITNESS_GRACE
        return Silence.EVICT if seconds >= grace else Silence.WAIT
    if accusation.by == client and seconds < ACCUSE_AGAIN:
        return Silence.CONTRADICTED
    return Silence.ACCUSE


def accuse(view: View, servers: Iterable[ServerId], *, client: str) -> View:
    """The view in which ``client`` says that these receivers do not answer it; another's open accusation stays."""
    new = {
        server: Accusation(client, view.receivers[server].generation)
        for server in servers
        if server not in view.accusations or view.accusations[server].refuted
    }
    return replace(view, accusations={**view.accusations, **new})


def accused(view: View) -> set[ServerId]:
    """The servers whose accusation nobody has refuted yet."""
    return {server for server, accusation in view.accusations.items() if not accusation.refuted}


def refute(view: View, servers: Iterable[ServerId], *, client: str) -> View:
    """The view in which ``client`` says that these accused servers answer it; its own accusations it withdraws."""
    left = dict(view.accusations)
    for server in servers:
        accusation = left.pop(server)
        if accusation.by != client:
            left[server] = accusation._replace(refuted=True)
    return replace(view, accusations=left)


def admit(view: View, server: ServerId, life: Life, *, by: str) -> View:
    """The view with a server as a learner: from here on every write goes to it too.

    One that was eligible and has kept what it holds (its generation follows the one that the view knows) stays eligible
    until it is a member; one that was wiped does not.
    """
    if server in view.receivers:
        raise ValueError(f"{server} is in the view already")
    eligible = _without(view.eligible, server)
    if server in view.eligible and life.generation == restored(view.eligible[server]):
        eligible[server] = life
    learners = {**view.learners, server: life}
    return replace(view, epoch=view.epoch + 1, learners=learners, eligible=eligible, by=by)


def promote(view: View, server: ServerId, life: Life, *, by: str) -> View:
    """The view with a learner that has everything as a member; it must be a learner in this very life.

    Eligible servers stay so until ``dismiss``, also where pushes complete without them from now on.  The learner may
    have lost its memory since it was last asked.
    """
    if view.learners.get(server) != life:
        raise ValueError(f"{server} is no learner in this life")
    members = {**view.members, server: life}
    eligible, learners = _without(view.eligible, server), _without(view.learners, server)
    return replace(view, epoch=view.epoch + 1, members=members, learners=learners, eligible=eligible, by=by)


def dismiss(view: View) -> View:
    """The view without its eligible servers, once enough members hold every pushed item.

    The caller has made sure that every member answered under this epoch.  The view keeps its epoch, because the same
    servers are in sync as before.
    """
    if not view.writable:
        raise ValueError("eligible servers hold what fewer than min_replicas members do")
    return replace(view, eligible={})


def restored(life: Life) -> str:
    """The generation that follows this one on a server that keeps what it holds.

    Made of the old one alone, so that whoever carries on what another began recognises it, also after the view moved.
    """
    return hashlib.blake2b(life.generation.encode(), digest_size=8).hexdigest()


def recover(view: View, lives: Mapping[ServerId, Life], *, by: str) -> View:
    """The view after everybody was restarted: ``lives`` hold what the disks gave back, merged."""
    if not lives:
        raise ValueError("a view without members")
    return replace(view, epoch=view.epoch + 1, members=dict(lives), learners={}, eligible={}, by=by)


def extend(view: View, server: ServerId, url: str, *, by: str) -> View:
    """The view of a namespace with one server more, which is outside at first."""
    servers = dict(sorted({**view.servers, server: url}.items()))
    return replace(view, epoch=view.epoch + 1, servers=servers, by=by)


def remove(view: View, server: ServerId, *, by: str) -> View:
    """The view of a namespace with one server less.  Raises ``ValueError`` where too few would be left."""
    servers = {id: url for id, url in view.servers.items() if id != server}
    members = _without(view.members, server)
    if len(servers) < view.min_replicas:
        raise ValueError(f"{len(servers)} server(s) would be left, min_replicas is {view.min_replicas}")
    if server in view.members and len(members) < max(1, view.min_replicas):
        raise ValueError(
            f"it is in sync, and only {len(members)} other(s) are, min_replicas is {view.min_replicas}: "
            "wait until more are in sync, or add another server first"
        )
    return replace(
        view,
        epoch=view.epoch + 1,
        members=members,
        learners=_without(view.learners, server),
        eligible=_without(view.eligible, server),
        servers=servers,
        by=by,
    )
