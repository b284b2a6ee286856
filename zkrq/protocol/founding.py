"""How a client comes to its first view: it reads the one that there is, or founds the namespace if it was told to.

The first client writes a plan into the register: which servers, in which lives.  Every client that finds a plan carries
it out: it enrols each server, by compare-and-set on its generation, and then makes the plan the first view.  Without a
plan two clients that found a namespace at the same time would each enrol the servers under generations of their own,
and the view of the one would name generations that the other has replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from zkrq.protocol.clocks import CLOCK_WARNING, PUT_WINDOW, find_apart
from zkrq.protocol.enrolment import enrol, identify
from zkrq.protocol.replies import Answer, Status, denial
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.steps import (
    Invalid,
    Log,
    NoNamespace,
    Nonce,
    NothingDone,
    Operation,
    ReadRegister,
    Register,
    Wait,
    WriteRegister,
)
from zkrq.protocol.view import FOUNDING, Life, ServerId, View, found, plan

TRIES = 5
"""Times that the view is read, or a plan is made or carried out, before a client gives up."""

AHEAD_PAUSE = 0.2
"""Seconds until the view is read again when a server has seen a later one, which may be on its way to ZooKeeper."""

Identities = Mapping[ServerId, ServerInfo | Answer]
"""What each server said of itself, or why it said nothing."""


class Charter(Protocol):
    """The settings that clients must agree about."""

    @property
    def namespace(self) -> str: ...

    @property
    def found(self) -> bool:
        """Whether the namespace may be founded if it does not exist."""
        ...

    @property
    def min_replicas(self) -> int | None:
        """None: as the namespace was founded; when it is founded here: 2, or 1 if there is one server."""
        ...


class Location(NamedTuple):
    """Where a server is: for messages here, and as all clients may know it."""

    shown: str
    public: str


class Beginning(NamedTuple):
    """The view to begin with, the register's version, and what the servers said that were asked."""

    view: View
    version: int
    identities: Identities


class Founding:
    """Join with the servers that this client was given."""

    def __init__(self, charter: Charter, servers: Mapping[ServerId, Location]) -> None:
        self._namespace = charter.namespace
        self._min_replicas = charter.min_replicas
        self._may_found = charter.found
        self._servers = servers

    def join(self) -> Operation[Beginning]:
        """Read the view; if there is none yet, found the namespace, if that is allowed.

        Raises ``Invalid`` if this client and the namespace do not fit together, ``NoNamespace``, ``NothingDone`` if no
        server can be reached, or not all of them while there is no view.
        """
        ahead: ServerId | None = None
        for _ in range(TRIES):
            # Before the view: whatever epoch a server has seen, the view is at least as new.
            identities = yield from identify(self._servers)
            yield from self._check_identities(identities)
            register: Register = yield ReadRegister()
            known, version = register
            if known is None or known.epoch == FOUNDING:
                yield from self._found(known, identities, version)
                continue
            yield from self._check_belongs(known, identities)
            ahead = _find_ahead(known, identities)
            if ahead is None:
                yield from self._check_clocks(identities, known.receivers)
                return Beginning(known, version, identities)
            yield Wait(AHEAD_PAUSE)
        if ahead is not None:
            raise Invalid(
                f"server {ahead} has seen a later epoch than ZooKeeper's view: ZooKeeper has lost data, or this is "
                "another ZooKeeper; nothing was changed"
            )
        raise NothingDone("the namespace could not be founded: its servers change, or others try as well; retry")

    # -- what the servers say of themselves ----------------------------------------------------------------------------

    def _check_identities(self, identities: Identities) -> Operation[None]:
        """Raises ``Invalid`` where two are one, ``NothingDone`` where none answers."""
        by_run_id: dict[str, ServerId] = {}
        for id, who in identities.items():
            if isinstance(who, Answer):
                yield Log(f"server {id} cannot be used: {who.reason}", id)
                continue
            twin = by_run_id.setdefault(who.run_id, id)
            if twin != id:
                raise Invalid(f"{twin} and {id} are the same Redis server: N copies need N servers")
        if not by_run_id:
            self._refuse_unfit(identities)
            reasons = "; ".join(f"{id}: {who.reason}" for id, who in identities.items() if isinstance(who, Answer))
            raise NothingDone(f"no Redis server can be reached: {reasons}")

    def _refuse_unfit(self, identities: Identities) -> None:
        """To begin with every server must be as it should; later the others can do without one.  Raises ``Invalid``."""
        for id, who in identities.items():
            if isinstance(who, ServerInfo):
                self._check_name(id, who.name)
            elif who.status is Status.UNFIT:
                raise Invalid(f"server {id}: {who.reason}")
            elif who.status is Status.DENIED:
                raise Invalid(denial(id, who))

    def _check_name(self, id: ServerId, name: str) -> None:
        if text := misnamed(id, name, self._servers[id].shown, self._namespace):
            raise Invalid(text)

    def _check_clocks(self, identities: Identities, needed: Collection[ServerId]) -> Operation[None]:
        """Name the clocks that are far apart.  Raises ``Invalid`` where that of a ``needed`` server is so far apart
        that every push of this client would be refused."""
        ahead = {id: who.ahead for id, who in identities.items() if isinstance(who, ServerInfo)}
        for text in find_apart(ahead, CLOCK_WARNING):
            yield Log(text)
        apart = find_apart({id: seconds for id, seconds in ahead.items() if id in needed}, PUT_WINDOW)
        if apart:
            raise Invalid(f"{'; '.join(apart)}. Pushes are refused beyond {PUT_WINDOW:g} s: set the clocks right")

    # -- there is no view yet ------------------------------------------------------------------------------------------

    def _found(self, planned: View | None, identities: Identities, version: int) -> Operation[None]:
        """Carry out the plan that there is; make one if there is none, or if a server is no longer as planned."""
        if planned is None and not self._may_found:
            raise NoNamespace(self._namespace)
        self._refuse_unfit(identities)
        yield from self._check_clocks(identities, self._servers)
        if planned is not None and (yield from self._enrol(planned, identities, version)):
            return
        if not self._may_found:
            raise NothingDone(f"namespace {self._namespace!r} is being founded; retry")
        yield from self._plan(identities, version)

    def _plan(self, identities: Identities, version: int) -> Operation[None]:
        """Write down in which lives the servers are to begin."""
        lives: dict[ServerId, Life] = {}
        for id, who in identities.items():
            if isinstance(who, Answer):
                raise NothingDone(
                    f"to found namespace {self._namespace!r} every server must answer; {id}: {who.reason}"
                )
            if who.queues or who.epoch > FOUNDING + 1:
                raise Invalid(
                    f"server {id} holds items of namespace {self._namespace!r}, but ZooKeeper knows no view of it: "
                    "wrong ZooKeeper or namespace, or ZooKeeper has lost its data; nothing was changed"
                )
            lives[id] = Life(who.run_id, (yield Nonce()))
        min_replicas = min(2, len(self._servers)) if self._min_replicas is None else self._min_replicas
        urls = {id: location.public for id, location in self._servers.items()}
        yield WriteRegister(plan(lives, urls, min_replicas=min_replicas, by=(yield Nonce())), version)

    def _enrol(self, planned: View, identities: Identities, version: int) -> Operation[bool]:
        """Carry out a plan; False where a server is no longer as planned, so that another plan is needed."""
        if set(planned.servers) != set(self._servers):
            raise Invalid(
                f"namespace {self._namespace!r} is being founded with the servers {', '.join(planned.servers)}; this "
                f"client was given {', '.join(sorted(self._servers))}: give every client the same servers"
            )
        self._check_min_replicas(planned)
        for id, life in planned.members.items():
            who = identities[id]
            if isinstance(who, Answer):
                return False
            answer = yield from enrol(id, who, FOUNDING + 1, life, deployment=planned.deployment, holding=False)
            if answer.status is not Status.OK:
                yield Log(f"server {id} was not enrolled: {answer.reason}", id, warns=False)
                return False
        yield WriteRegister(found(planned, by=(yield Nonce())), version)
        return True

    # -- there is one --------------------------------------------------------------------------------------------------

    def _check_belongs(self, view: View, identities: Identities) -> Operation[None]:
        """Check whether this client belongs here.  Raises ``Invalid``.

        The view names the servers; the list that a client was given is where it looks first, and may be older or newer
        than the last change.
        """
        given = ", ".join(sorted(self._servers))
        if not set(view.servers) & set(self._servers):
            raise Invalid(
                f"namespace {self._namespace!r} consists of the servers {', '.join(view.servers)}; this client was "
                f"given {given}: give every client the same servers under the same names, or another namespace"
            )
        for id in sorted(set(self._servers) - set(view.servers)):
            names = ", ".join(view.servers)
            text = f"server {id} is none of namespace {self._namespace!r} ({names}) and is not used"
            yield Log(f"{text}: add_server() adds one", id)
        self._check_min_replicas(view)
        # By its life, not by the name that is stored in it: one that was another's replica brings the other's name.
        for id, who in identities.items():
            if isinstance(who, ServerInfo):
                self._check_name(id, view.id_of(who.run_id) or "")
            elif who.status is Status.DENIED and id in view.receivers:
                raise Invalid(denial(id, who))

    def _check_min_replicas(self, view: View) -> None:
        if self._min_replicas is not None and self._min_replicas != view.min_replicas:
            raise Invalid(
                f"namespace {self._namespace!r} was founded with min_replicas={view.min_replicas}, "
                f"this client was given {self._min_replicas}: all clients must agree"
            )


def _find_ahead(view: View, identities: Identities) -> ServerId | None:
    """A server of the view that has seen a later epoch, if there is one."""
    later = [id for id, who in identities.items() if isinstance(who, ServerInfo) and who.epoch > view.epoch]
    return next((id for id in later if id in view.servers), None)


def misnamed(id: ServerId, name: str, url: str, namespace: str) -> str | None:
    """Why the server at ``url`` cannot be ``id``, None if it can: it is known as ``name``; empty: under no name."""
    if not name or name == id:
        return None
    return (
        f"the server at {url} holds the data of {name!r} in namespace "
        f"{namespace!r}, not of {id!r}: give every server one name, the same in every client"
    )
