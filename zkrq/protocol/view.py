"""Define the view: which servers are in sync, under a number that only grows.

Plain values and functions, without I/O: how founding, eviction, admission and recovery change a view, and the choice of
a queue's primary.  The operations of the same names call them; membership.py writes the result by compare-and-set.
Related designs: Vertical Paxos II and PacificA, where an external master holds the configuration and writes go to all
of it.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NewType, Protocol, TypeVar

from zkrq.protocol.levels import FIRST_LEVEL, SPOKEN, OtherLevel, check_level
from zkrq.protocol.znodes import count, read_object, text

ServerId = NewType("ServerId", str)

T = TypeVar("T")


class Life(NamedTuple):
    """One life of a server: Redis' own name for one life of its process, and the nonce of its enrolment."""

    run_id: str
    generation: str


class Accusation(NamedTuple):
    """Client ``by`` cannot use a server in the life of this generation; ``refuted``: another client can.

    ``kept_out``: the server answers, and does not let the client in; otherwise it is silent.
    """

    by: str
    generation: str
    refuted: bool = False
    kept_out: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """``members`` are in sync, ``learners`` are being caught up; both receive every write.  ``eligible`` servers were
    evicted while the view fell below ``min_replicas``: since no push completes there, they still hold every pushed
    item. ``servers``: all servers of the namespace, in the view or not, with their URL (without credentials) for
    clients that were not given one.  ``by`` is unique to this view.  ``deployment`` was made when the namespace was
    founded and is written into every enrolled server: one with another nonce belongs to another deployment.

    ``map_number`` is the number of the shard map that a push must know to be accepted here (see ``shards.py``).

    ``level`` is the active one, and ``raised_by`` the release that made it so (see ``levels.py``).  ``unknown`` has
    fields that a later release has added within a level: they stay as they are when the view is written again.

    ``accusations`` has at most one per receiver, in its present life.  It does not change which servers are in sync, so
    it changes without a new epoch: views of the same epoch differ in nothing else.

    ``left_ms``: when a server that is not in sync left, in milliseconds since 1970 by the clock of the client that
    wrote so; a server that has never been in sync is not in it.  Only people are told."""

    epoch: int
    members: Mapping[ServerId, Life]
    learners: Mapping[ServerId, Life]
    eligible: Mapping[ServerId, Life]
    servers: Mapping[ServerId, str]
    min_replicas: int
    by: str
    deployment: str = ""
    map_number: int = 0
    accusations: Mapping[ServerId, Accusation] = field(default_factory=dict[ServerId, Accusation])
    level: int = FIRST_LEVEL
    raised_by: str = ""
    left_ms: Mapping[ServerId, int] = field(default_factory=dict[ServerId, int])
    unknown: Mapping[str, Any] = field(default_factory=dict[str, Any])
    receivers: Mapping[ServerId, Life] = field(init=False, repr=False, compare=False)
    """All servers that get every write."""
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
        if self.left_ms:
            absent = self.servers.keys() - self.members.keys()
            left_ms = {id: moment for id, moment in self.left_ms.items() if id in absent}
            object.__setattr__(self, "left_ms", left_ms)

    @property
    def writable(self) -> bool:
        """Whether a push can complete."""
        return len(self.members) >= self.min_replicas

    def id_of(self, run_id: str) -> ServerId | None:
        """Return the name of the server with this life of a process, None if there is none."""
        lives = (*self.receivers.items(), *self.eligible.items())
        return next((server for server, life in lives if life.run_id == run_id), None)

    def primary(self, queue: str) -> ServerId:
        """Return the member that decides for this queue, by rendezvous hashing (Thaler and Ravishankar, 1998): a change
        of members moves only the queues of the member that came or left."""
        known = self._primaries.get(queue)
        if known is None:
            if len(self._primaries) >= _PRIMARIES_KEPT:
                self._primaries.clear()
            (known,) = first_of(self.members, queue, 1)
            self._primaries[queue] = known
        return known


def first_of(servers: Iterable[ServerId], queue: str, count: int) -> Sequence[ServerId]:
    """Return the servers that come first for a queue, at most ``count``: its primary, and those that would be the
    primary after it."""

    def weight(server: ServerId) -> bytes:
        return hashlib.blake2b(f"{server}\0{queue}".encode()).digest()

    return sorted(servers, key=weight, reverse=True)[:count]


_PRIMARIES_KEPT = 10_000
"""Queues whose primary is cached within one view."""


class ViewChange(Protocol):
    """A function below with all arguments bound except the view and ``by``, the new view's nonce."""

    def __call__(self, view: View, /, *, by: str) -> View: ...


def encode(view: View) -> bytes:
    """Encode the view for the register."""
    content: dict[str, object] = {
        **view.unknown,
        "epoch": view.epoch,
        "members": view.members,
        "learners": view.learners,
        "eligible": view.eligible,
        "servers": view.servers,
        "min_replicas": view.min_replicas,
        "nonce": view.by,
        "deployment": view.deployment,
        "level": view.level,
    }
    if view.raised_by:
        content["raised_by"] = view.raised_by
    if view.map_number:
        content["map"] = view.map_number
    if view.accusations:
        content["accusations"] = {id: _encode_accusation(each) for id, each in view.accusations.items()}
    if view.left_ms:
        content["left_ms"] = view.left_ms
    return json.dumps(content, separators=(",", ":")).encode()


def decode(data: bytes) -> View:
    """Decode the result of ``encode``.  Raises ``ValueError`` for anything else, or if the active level is not one that
    this release speaks."""
    try:
        content = read_object(data)
        if "removed" in content:
            raise NoView("this shard is being removed")
        if "epoch" in content:
            check_level(count(content.get("level", FIRST_LEVEL)), text(content.get("raised_by", "")))
        return _whole(
            View(
                epoch=count(content["epoch"]),
                members=_lives(content["members"]),
                learners=_lives(content["learners"]),
                eligible=_lives(content["eligible"]),
                servers={ServerId(text(server)): text(url) for server, url in content["servers"].items()},
                min_replicas=count(content["min_replicas"], 1),
                by=text(content["nonce"]),
                deployment=text(content.get("deployment", "")),
                map_number=count(content.get("map", 0)),
                accusations=_accusations(content.get("accusations", {})),
                level=count(content.get("level", FIRST_LEVEL)),
                raised_by=text(content.get("raised_by", "")),
                left_ms={
                    ServerId(text(server)): count(moment) for server, moment in content.get("left_ms", {}).items()
                },
                unknown={name: value for name, value in content.items() if name not in _FIELDS},
            )
        )
    except (NoView, OtherLevel):
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the register holds no view of zkrq: {data[:80]!r}") from error


def _whole(view: View) -> View:
    """Return a view in which every server has a URL, and one is a member.  Raises ``ValueError`` for any other."""
    if not view.members or not {*view.receivers, *view.eligible} <= view.servers.keys():
        raise ValueError("a server has no URL, or none is a member")
    return view


_FIELDS = {
    *("epoch", "members", "learners", "eligible", "servers", "min_replicas", "nonce", "deployment", "map"),
    *("accusations", "level", "raised_by", "left_ms"),
}
"""Fields of a view that this release knows."""


def encode_end(by: str) -> bytes:
    """Encode what is in the register once the shard was removed."""
    return json.dumps({"removed": True, "nonce": by}, separators=(",", ":")).encode()


class NoView(ValueError):
    """There is no view any more: the shard was removed."""


def _lives(content: Mapping[str, list[Any]]) -> Mapping[ServerId, Life]:
    return {ServerId(text(server)): Life(*map(text, life)) for server, life in content.items()}


def _encode_accusation(accusation: Accusation) -> tuple[object, ...]:
    """Encode an accusation; one of silence, the usual one, without its last field."""
    return accusation if accusation.kept_out else accusation[:3]


def _accusations(content: Mapping[str, list[Any]]) -> Mapping[ServerId, Accusation]:
    return {
        ServerId(text(server)): Accusation(text(by), text(generation), *map(bool, more))
        for server, (by, generation, *more) in content.items()
    }


FOUNDING = 0
"""Epoch of a view that is only a plan: its servers are being enrolled, nothing is stored under it."""


def plan(
    lives: Mapping[ServerId, Life],
    urls: Mapping[ServerId, str],
    *,
    min_replicas: int,
    by: str,
    level: int = SPOKEN.highest,
) -> View:
    """Plan a namespace: every server a member, in the lives that the plan names.  The plan's nonce becomes the
    deployment's."""
    servers = {id: urls[id] for id in sorted(lives)}
    return View(FOUNDING, dict(lives), {}, {}, servers, min_replicas, by, by, level=level)


def found(planned: View, *, by: str) -> View:
    """Return the first view: the plan, after all its servers are enrolled."""
    return replace(planned, epoch=FOUNDING + 1, by=by)


class Eviction(enum.Enum):
    """The effect of an eviction on the view."""

    HARMLESS = "pushes still complete afterwards"
    HALTING = "fewer than min_replicas members are left: no push completes until one is back"
    IMPOSSIBLE = "no member would be left that has answered"


def weigh_eviction(view: View, failed: Iterable[ServerId]) -> Eviction:
    """Tell the effect of removing ``failed``."""
    left = len(view.members.keys() - set(failed))
    if left == 0:
        return Eviction.IMPOSSIBLE
    if left < view.min_replicas and left < len(view.members):
        return Eviction.HALTING
    return Eviction.HARMLESS


def evict(view: View, failed: Iterable[ServerId], *, by: str, now_ms: int) -> View:
    """Return the view without ``failed``.  The caller has checked that every remaining member has just answered it."""
    gone = set(failed)
    members = {server: life for server, life in view.members.items() if server not in gone}
    if not members:
        raise ValueError("the last member cannot be evicted")
    if len(members) < view.min_replicas:
        evicted = {server: life for server, life in view.members.items() if server in gone}
        eligible = {**view.eligible, **evicted}
    else:
        eligible = {}
    return replace(
        view,
        epoch=view.epoch + 1,
        members=members,
        learners=_without(view.learners, *gone),
        eligible=eligible,
        left_ms=_departures(view, members, now_ms),
        by=by,
    )


def _departures(view: View, members: Mapping[ServerId, Life], now_ms: int) -> dict[ServerId, int]:
    return {**view.left_ms, **dict.fromkeys((id for id in view.members if id not in members), now_ms)}


def _without(lives: Mapping[ServerId, Life], *servers: ServerId) -> dict[ServerId, Life]:
    return {server: life for server, life in lives.items() if server not in servers}


ACCUSATION_GRACE = 5.0
"""Seconds during which others may refute an accusation; more than two command_timeouts of a usual client."""

WITNESS_GRACE = 1.0
"""The same if a second client does not reach the server either; enough time for a client that does."""

ACCUSE_AGAIN = 60.0
"""Seconds after which a contradicted client accuses the same life again, because the others may have left since."""


class Judgement(enum.Enum):
    """What a client may do about a server that it cannot use."""

    EVICT = "evict the server"
    ACCUSE = "ask the other clients, by an accusation in the view"
    WAIT = "leave the other clients time to refute"
    CONTRADICTED = "evict no server: other clients can use this one"


def judge_silence(
    view: View, server: ServerId, client: str, *, standing: bool, seconds: float, answered: bool, crowded: bool = False
) -> Judgement:
    """Decide what ``client`` may do about a receiver that does not answer it.

    Silence is an impression, and may be the client's own fault.  A client with ``standing`` evicts: the server has
    answered it in this life, and it has not evicted this process recently.  A client without asks the others.
    ``seconds``: how long it has known what the view says about this server; ``answered``: whether the server has
    answered it since, which makes a refutation old news.  ``crowded``: the server has no room for its connection, so
    it may serve those who are connected, and standing is no licence.  A full server turns away every client that
    connects: a second accuser proves nothing, and one refutation counts for all of them.
    """
    accusation = view.accusations.get(server)
    if standing and not crowded:
        return Judgement.EVICT
    if accusation is None:
        return Judgement.ACCUSE
    if not accusation.refuted:
        second_witness = accusation.by != client and not accusation.kept_out and not crowded
        grace = WITNESS_GRACE if second_witness else ACCUSATION_GRACE
        return Judgement.EVICT if seconds >= grace else Judgement.WAIT
    mine = (accusation.by == client or crowded) and not accusation.kept_out
    return Judgement.CONTRADICTED if mine and not answered and seconds < ACCUSE_AGAIN else Judgement.ACCUSE


def judge_denial(view: View, server: ServerId, *, standing: bool, seconds: float) -> Judgement:
    """Decide what a client may do about a receiver that does not let it in.

    The cause is the client's own, or the server refuses all clients; only the others know which.  So a client with
    ``standing``, which this life of the server has let in before, asks them, and evicts the server if none is let in.
    For a client without standing the cause is its own.  A refutation counts for every client, not only for the accuser:
    after a change of passwords many clients may be kept out, and a single question to the others is enough.
    """
    if not standing:
        return Judgement.CONTRADICTED
    accusation = view.accusations.get(server)
    if accusation is None:
        return Judgement.ACCUSE
    if not accusation.refuted:
        return Judgement.EVICT if seconds >= ACCUSATION_GRACE else Judgement.WAIT
    return Judgement.CONTRADICTED if accusation.kept_out and seconds < ACCUSE_AGAIN else Judgement.ACCUSE


def accuse(view: View, servers: Iterable[ServerId], *, client: str, kept_out: Collection[ServerId] = ()) -> View:
    """Return the view in which ``client`` accuses these receivers of silence, or of keeping it out; another's open
    accusation stays."""
    new = {
        server: Accusation(client, view.receivers[server].generation, kept_out=server in kept_out)
        for server in servers
        if server not in view.accusations or view.accusations[server].refuted
    }
    return replace(view, accusations={**view.accusations, **new})


def accused(view: View) -> set[ServerId]:
    """Return the servers with an accusation that has not been refuted."""
    return {server for server, accusation in view.accusations.items() if not accusation.refuted}


def accused_of_denial(view: View) -> set[ServerId]:
    """Return those of ``accused`` that are said to keep a client out."""
    return {server for server in accused(view) if view.accusations[server].kept_out}


def refute(view: View, servers: Iterable[ServerId], *, client: str) -> View:
    """Return the view in which ``client`` refutes the accusations of these servers.

    Its own accusations of silence are withdrawn.  One of keeping it out is refuted instead: a client that is let in for
    some of its calls only would otherwise accuse again at the next one.
    """
    left = dict(view.accusations)
    for server in servers:
        accusation = left.pop(server)
        if accusation.by != client or accusation.kept_out:
            left[server] = accusation._replace(refuted=True)
    return replace(view, accusations=left)


def admit(view: View, server: ServerId, life: Life, *, by: str) -> View:
    """Return the view with a server as a learner: from here on every write goes to it too.

    An eligible server that has kept its data (its generation follows the one that the view knows) stays eligible until
    it is a member; one that was wiped does not.
    """
    if server in view.receivers:
        raise ValueError(f"{server} is in the view already")
    eligible = _without(view.eligible, server)
    if server in view.eligible and life.generation == restored(view.eligible[server]):
        eligible[server] = life
    learners = {**view.learners, server: life}
    return replace(view, epoch=view.epoch + 1, learners=learners, eligible=eligible, by=by)


def promote(view: View, server: ServerId, life: Life, *, by: str) -> View:
    """Return the view with a caught-up learner as a member; it must be a learner in this very life.

    Eligible servers stay so until ``dismiss``, even if pushes now complete without them, because the learner may have
    lost its memory since it was last asked.
    """
    if view.learners.get(server) != life:
        raise ValueError(f"{server} is not a learner in this life")
    members = {**view.members, server: life}
    eligible, learners = _without(view.eligible, server), _without(view.learners, server)
    return replace(view, epoch=view.epoch + 1, members=members, learners=learners, eligible=eligible, by=by)


def dismiss(view: View) -> View:
    """Return the view without its eligible servers, once enough members hold every pushed item.

    The caller has checked that every member answered under this epoch.  The view keeps its epoch, because the same
    servers are in sync as before.
    """
    if not view.writable:
        raise ValueError("eligible servers hold what fewer than min_replicas members do")
    return replace(view, eligible={})


def restored(life: Life) -> str:
    """Return the next generation of a server that keeps its data.

    Made of the old one alone, so that another client that continues the work recognises it, even after the view
    changed.
    """
    return hashlib.blake2b(life.generation.encode(), digest_size=8).hexdigest()


def recover(view: View, lives: Mapping[ServerId, Life], *, by: str, now_ms: int) -> View:
    """Return the view after all servers were restarted: ``lives`` hold the merged data of their disks."""
    if not lives:
        raise ValueError("a view without members")
    left_ms = _departures(view, lives, now_ms)
    return replace(view, epoch=view.epoch + 1, members=dict(lives), learners={}, eligible={}, left_ms=left_ms, by=by)


def extend(view: View, server: ServerId, url: str, *, by: str) -> View:
    """Return the view with one more server in the namespace, outside the view at first."""
    servers = dict(sorted({**view.servers, server: url}.items()))
    return replace(view, epoch=view.epoch + 1, servers=servers, by=by)


def remove(view: View, server: ServerId, *, by: str) -> View:
    """Return the view with one server less in the namespace.  Raises ``ValueError`` if too few would be left."""
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


def rename(view: View, server: ServerId, name: ServerId, *, by: str) -> View:
    """Return the view in which a server has another name.

    Its life stays the same, so it remains in sync.  The epoch is new, because another server may be the primary of a
    queue by the new name.  Raises ``ValueError`` if the name is taken.
    """
    if name in view.servers:
        raise ValueError(f"there is a server {name}: use another name")

    def renamed(known: Mapping[ServerId, T]) -> dict[ServerId, T]:
        return {name if id == server else id: each for id, each in known.items()}

    return replace(
        view,
        epoch=view.epoch + 1,
        members=renamed(view.members),
        learners=renamed(view.learners),
        eligible=renamed(view.eligible),
        servers=dict(sorted(renamed(view.servers).items())),
        accusations=renamed(view.accusations),
        left_ms=renamed(view.left_ms),
        by=by,
    )


def ask_for_map(view: View, number: int, *, after: int = 0, by: str) -> View:
    """Return the view that refuses every push of a client that does not know the shard map of this number.

    Its epoch is new, so a push that was begun under the old one is refused as soon as a server has heard of it.  It is
    later than ``after``, the epoch of another shard, so that fencing tokens which begin here go on from those there.
    """
    if number <= view.map_number and view.epoch > after:
        return view
    number = max(number, view.map_number)
    return replace(view, epoch=max(view.epoch, after) + 1, map_number=number, by=by)


def raise_level(view: View, level: int, release: str, *, by: str) -> View:
    """Return the view with this level active, raised by a client of this release.

    Its epoch is new, so a client that does not speak the level is refused by every server that has heard of it.  A
    level is never lowered: what was written since could not be read.
    """
    return replace(view, epoch=view.epoch + 1, level=level, raised_by=release, by=by) if level > view.level else view


def check_view(view: View) -> None:
    """Assert what holds of every view that zkrq makes.  For tests: a view that is read may be from anybody.

    - Some server is a member, or nobody would hold the items; before the founding there is a plan at most.
    - A server is a member or a learner, and a member is not eligible: promotion moves it from one to the other.
      As both it would be counted twice where servers are counted.
    - Every server has a URL: a client that was not given it could not connect, and would read an older state.
    - Only receivers are accused, in their present life, and only servers that are not in sync have left.
    """
    members, learners, eligible = view.members.keys(), view.learners.keys(), view.eligible.keys()
    assert members or view.epoch == FOUNDING, "a view without a member"
    assert not members & learners, f"member and learner: {members & learners}"
    assert not members & eligible, f"member and still eligible: {members & eligible}"
    assert members | learners | eligible <= view.servers.keys(), f"a server without a URL: {view}"
    assert view.receivers == {**view.members, **view.learners}, f"other receivers than the view's: {view}"
    for id, accusation in view.accusations.items():
        assert view.receivers[id].generation == accusation.generation, f"a life that is over is accused: {id}"
    assert view.left_ms.keys() <= view.servers.keys() - members, f"in sync, and left: {view.left_ms}"
    assert view.min_replicas > 0, "min_replicas below 1"
    assert view.epoch >= FOUNDING <= view.map_number, f"numbers below 0: {view}"
