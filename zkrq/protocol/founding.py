"""Find a client's first view: read the existing one, or found the namespace if this is allowed.

The first client writes a plan into the register: which servers, in which lives.  Every client that finds a plan
executes it: it enrols each server, by compare-and-set on its generation, and then makes the plan the first view.
Without a plan, two clients that found a namespace at the same time would enrol the servers under generations of their
own, and the view of one would name generations that the other has replaced.

A server without a generation is given a passing one before it is planned, and its planned generation follows from that.
Otherwise a client that executes the plan late, when others have long made it the view, would find a server that was
flushed meanwhile as empty as a new one, and vouch for it: the view would go on with a server that has lost its items.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from zkrq.protocol.attempts import find_askew
from zkrq.protocol.clocks import CLOCK_WARNING, PUT_WINDOW, find_apart
from zkrq.protocol.enrolment import enrol
from zkrq.protocol.replies import Answer, Status, denial
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.steps import (
    Identify,
    Invalid,
    Log,
    NoNamespace,
    Nonce,
    NothingDone,
    Operation,
    ReadRegister,
    Wait,
    WriteRegister,
    clocks_ahead,
)
from zkrq.protocol.view import FOUNDING, Life, ServerId, View, found, plan

TRIES = 6
"""Number of times that the view is read, or a plan is made or executed, before a client gives up."""

AHEAD_PAUSE = 0.2
"""Seconds until the view is read again if a server has seen a later one, which may not have reached ZooKeeper yet."""

Identities = Mapping[ServerId, ServerInfo | Answer]
"""Each server's identity, or why there is none."""


def planned_after(generation: str, deployment: str) -> str:
    """Return the generation that the plan of a deployment gives to a server which has this one."""
    return hashlib.blake2b(f"planned {deployment} {generation}".encode(), digest_size=8).hexdigest()


class Charter(Protocol):
    """Settings that clients must agree on."""

    @property
    def namespace(self) -> str: ...

    @property
    def found(self) -> bool:
        """Whether the namespace may be founded if it does not exist."""
        ...

    @property
    def min_replicas(self) -> int | None:
        """None: as the namespace was founded; to found it: 2, or 1 if there is one server."""
        ...

    @property
    def level(self) -> int:
        """The active level of a namespace that is founded."""
        ...


class Location(NamedTuple):
    """URLs of a server: for messages here, and for all clients."""

    shown: str
    public: str


class Beginning(NamedTuple):
    """The first view, the register's version, and the identities of the servers."""

    view: View
    version: int
    identities: Identities


class Founding:
    """Join with the servers that this client was given."""

    def __init__(self, charter: Charter, servers: Mapping[ServerId, Location]) -> None:
        self._namespace = charter.namespace
        self._min_replicas = charter.min_replicas
        self._may_found = charter.found
        self._level = charter.level
        self._servers = servers

    def join(self) -> Operation[Beginning]:
        """Read the view; if there is none yet, found the namespace, if that is allowed.

        Raises ``Invalid`` if this client and the namespace do not fit together, ``NoNamespace``, ``NothingDone`` if no
        server can be reached, or not all of them while there is no view.
        """
        ahead: ServerId | None = None
        for _ in range(TRIES):
            # Asked before the view is read, so the view is at least as new as any epoch that a server has seen.
            identities = yield from Identify(self._servers)
            yield from self._check_identities(identities)
            register = yield from ReadRegister()
            known, version = register
            if known is None or known.epoch == FOUNDING:
                try:
                    yield from self._found(known, identities, version)
                except (Invalid, NothingDone):
                    # Servers that others have made the view of meanwhile need not be as founding wants them.
                    if (yield ReadRegister()).version == version:
                        raise
                continue
            yield from self._check_belongs(known, identities)
            ahead = _find_ahead(known, identities)
            if ahead is None:
                yield from self._log_clocks(identities)
                # Noted before the first push, so that what a server would refuse is not written to the others.
                yield from find_askew(known, {}, {id: identities[id] for id in known.members if id in identities})
                return Beginning(known, version, identities)
            yield Wait(AHEAD_PAUSE)
        if ahead is not None:
            raise Invalid(
                f"server {ahead} has seen a later epoch than ZooKeeper's view: ZooKeeper has lost data, or this is "
                "another ZooKeeper; nothing was changed. If its data was restored from an older backup: `zkrq servers "
                "recover --older-zookeeper NAME...` with the servers that were in sync"
            )
        raise NothingDone("the namespace could not be founded: its servers change, or others try as well; retry")

    # -- the servers' identities ---------------------------------------------------------------------------------------

    def _check_identities(self, identities: Identities) -> Operation[None]:
        """Raise ``Invalid`` if two servers are one, ``NothingDone`` if none answers."""
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
        """Raise ``Invalid`` if a server is unfit, because founding needs every server; later, the others can do without
        one."""
        for id, who in identities.items():
            if isinstance(who, ServerInfo):
                self._check_name(id, who.name)
                if who.dropping:
                    raise Invalid(f"server {id}: {who.dropping}")
            elif who.status is Status.UNFIT:
                raise Invalid(f"server {id}: {who.reason}")
            elif who.status is Status.DENIED:
                raise Invalid(denial(id, who))

    def _check_name(self, id: ServerId, name: str) -> None:
        if text := misnamed(id, name, self._servers[id].shown, self._namespace):
            raise Invalid(text)

    def _log_clocks(self, identities: Identities) -> Operation[None]:
        """Log the clocks that differ much."""
        for text in find_apart(clocks_ahead(identities), CLOCK_WARNING):
            yield Log(text)

    def _check_clocks(self, identities: Identities) -> Operation[None]:
        """Log the clocks that differ much.  Raises ``Invalid`` if a server would refuse every push of this client:
        founding needs every server."""
        yield from self._log_clocks(identities)
        apart = find_apart(clocks_ahead(identities), PUT_WINDOW)
        if apart:
            raise Invalid(f"{'; '.join(apart)}. Pushes are refused beyond {PUT_WINDOW:g} s: set the clocks right")

    # -- without a view ------------------------------------------------------------------------------------------------

    def _found(self, planned: View | None, identities: Identities, version: int) -> Operation[None]:
        """Execute the existing plan; make one if there is none, or if a server is no longer as planned."""
        if planned is None and not self._may_found:
            raise NoNamespace(self._namespace)
        if planned is not None:  # it may be younger than the identities
            identities = yield from Identify(self._servers)
        self._refuse_unfit(identities)
        yield from self._check_clocks(identities)
        if planned is not None:
            if (yield from self._execute(planned, identities, version)):
                return
            # The servers are not as planned where others have made the plan the view, and use it.
            if (yield ReadRegister()).version != version:
                return
        if not self._may_found:
            raise NothingDone(f"namespace {self._namespace!r} is being founded; retry")
        yield from self._plan(identities, version)

    def _plan(self, identities: Identities, version: int) -> Operation[None]:
        """Write a plan with the lives of the servers; none if one of them changes meanwhile."""
        met: dict[ServerId, ServerInfo] = {}
        for id, who in identities.items():
            if isinstance(who, Answer):
                raise NothingDone(
                    f"to found namespace {self._namespace!r} every server must answer; {id}: {who.reason}"
                )
            if who.queues or who.epoch > FOUNDING + 1:
                raise Invalid(
                    f"server {id} holds items of namespace {self._namespace!r}, but ZooKeeper knows no view of it: "
                    "wrong ZooKeeper or namespace, or ZooKeeper has lost its data, or the server was of a shard that "
                    "was removed, and was not flushed since; nothing was changed. If ZooKeeper has lost its data: "
                    "`zkrq servers recover --without-zookeeper NAME...` with the servers that were in sync"
                )
            met[id] = who
        generations = yield from self._generations(met)
        if generations is None:
            return
        by = yield from Nonce()  # the deployment's, from here on
        lives = {id: Life(met[id].run_id, planned_after(generation, by)) for id, generation in generations.items()}
        min_replicas = min(2, len(self._servers)) if self._min_replicas is None else self._min_replicas
        urls = {id: location.public for id, location in self._servers.items()}
        yield WriteRegister(plan(lives, urls, min_replicas=min_replicas, by=by, level=self._level), version)

    def _generations(self, met: Mapping[ServerId, ServerInfo]) -> Operation[dict[ServerId, str] | None]:
        """Return the generations of servers, after giving a passing one to those that have none; None if one of them
        has changed meanwhile.  All are tried: clients that do this at the same time are done after one round."""
        found: dict[ServerId, str] = {}
        for id, who in met.items():
            generation = who.generation
            if not generation:
                generation = yield from Nonce()
                if not (yield from self._enrol(id, who, Life(who.run_id, generation), deployment="")):
                    continue
            found[id] = generation
        return found if len(found) == len(met) else None

    def _execute(self, planned: View, identities: Identities, version: int) -> Operation[bool]:
        """Execute a plan; return False if a server is no longer as planned, so that another plan is needed."""
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
            if life.generation not in (who.generation, planned_after(who.generation, planned.deployment)):
                return False
            if not (yield from self._enrol(id, who, life, deployment=planned.deployment)):
                return False
        yield WriteRegister(found(planned, by=(yield from Nonce())), version)
        return True

    def _enrol(self, id: ServerId, who: ServerInfo, life: Life, *, deployment: str) -> Operation[bool]:
        """Enrol a server that holds nothing; return False if it is no longer as it was met.  Raises ``Invalid``."""
        answer = yield from enrol(id, who, FOUNDING + 1, life, deployment=deployment, holding=False)
        # A right that only scripts need is missed here first; another try would meet the same.
        if answer.status is Status.DENIED:
            raise Invalid(denial(id, answer))
        if answer.status is not Status.OK:
            yield Log(f"server {id} was not enrolled: {answer.reason}", id, warns=False)
        return answer.status is Status.OK

    # -- with a view ---------------------------------------------------------------------------------------------------

    def _check_belongs(self, view: View, identities: Identities) -> Operation[None]:
        """Check whether this client belongs to this namespace.  Raises ``Invalid``.

        The view lists the servers; the list that a client was given only leads it there, and may be older or newer than
        the last change.
        """
        given = ", ".join(sorted(self._servers))
        if not set(view.servers) & set(self._servers):
            raise Invalid(
                f"namespace {self._namespace!r} consists of the servers {', '.join(view.servers)}; this client was "
                f"given {given}: give every client the same servers under the same names, or another namespace"
            )
        # By its life, not by the name that is stored in it: a former replica of another server carries that server's
        # name.
        called = {id: view.id_of(who.run_id) or "" for id, who in identities.items() if isinstance(who, ServerInfo)}
        for id in sorted(set(self._servers) - set(view.servers)):
            if name := called.pop(id, ""):
                yield Log(f"server {id} is called {name} in namespace {self._namespace!r}: name it so here, too", id)
                continue
            names = ", ".join(view.servers)
            text = f"server {id} does not belong to namespace {self._namespace!r} ({names}) and is not used"
            yield Log(f"{text}: add_server() adds one", id)
        self._check_min_replicas(view)
        for id, who in identities.items():
            if isinstance(who, ServerInfo):
                self._check_name(id, called.get(id, ""))
            elif who.status is Status.DENIED and id in view.receivers:
                raise Invalid(denial(id, who))

    def _check_min_replicas(self, view: View) -> None:
        if self._min_replicas is not None and self._min_replicas != view.min_replicas:
            raise Invalid(
                f"namespace {self._namespace!r} was founded with min_replicas={view.min_replicas}, "
                f"this client was given {self._min_replicas}: all clients must agree"
            )


def _find_ahead(view: View, identities: Identities) -> ServerId | None:
    """Return a server of the view that has seen a later epoch, or None."""
    later = [id for id, who in identities.items() if isinstance(who, ServerInfo) and who.epoch > view.epoch]
    return next((id for id in later if id in view.servers), None)


def misnamed(id: ServerId, name: str, url: str, namespace: str) -> str | None:
    """Explain why the server at ``url`` cannot be ``id``, None if it can; ``name``: the one that it is known by, empty:
    none."""
    if not name or name == id:
        return None
    return (
        f"the server at {url} holds the data of {name!r} in namespace "
        f"{namespace!r}, not of {id!r}: give every server one name, the same in every client"
    )
