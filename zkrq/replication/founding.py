"""How a client comes to its first view: it reads the one that there is, or founds the namespace where it was told to.

The first client writes a plan into the register: which servers, in which lives.  Every client that finds a plan carries
it out, so clients that found a namespace at the same time do not enrol its servers against each other.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Collection, Mapping
from typing import NamedTuple

from zkrq.coordination.coordinator import Coordinator, no_namespace
from zkrq.errors import ConfigError, Unavailable
from zkrq.protocol.clocks import CLOCK_WARNING, PUT_WINDOW, find_apart
from zkrq.protocol.enrolment import enrolment
from zkrq.protocol.replies import Answer, Status, denial
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.view import FOUNDING, Life, ServerId, View, decode, encode, found, plan
from zkrq.replication.fleet import Fleet
from zkrq.replication.urls import without_credentials

TRIES = 5

AHEAD_PAUSE = 0.2
"""Seconds before the view is read again, when a server has seen a later one: ZooKeeper may be on its way to telling."""

_log = logging.getLogger("zkrq.view")

Identities = Mapping[ServerId, ServerInfo | Answer]


class Beginning(NamedTuple):
    """The view to begin with, the register's version, and what the servers said that were asked."""

    view: View
    version: int
    identities: Identities


class Founder:
    """One attempt to join, with the servers that this client was given."""

    def __init__(
        self,
        coordinator: Coordinator,
        fleet: Fleet,
        *,
        namespace: str,
        min_replicas: int | None,
        found: bool,
    ) -> None:
        """``found``: whether the namespace may be founded, with ``min_replicas``, None: 2, or 1 of 1.  One that exists
        must have been founded with that number, None: with any."""
        self._coordinator = coordinator
        self._fleet = fleet
        self._servers = fleet.servers
        self._namespace = namespace
        self._min_replicas = min_replicas
        self._found = found

    async def join(self) -> Beginning:
        """Read the view; where there is none yet, found the namespace, if that is allowed.

        Raises ``ConfigError`` where this client and the namespace do not fit together, or there is none,
        ``Unavailable`` where no server can be reached, or not all of them while there is no view.
        """
        ahead: ServerId | None = None
        for _ in range(TRIES):
            # Before the view: whatever epoch a server has seen, the view is at least as new.
            identities = await self._fleet.identify(self._servers)
            self._check_identities(identities)
            register = await self._coordinator.read_view()
            known = decode_register(register.data, self._namespace)
            if known is not None and known.epoch != FOUNDING:
                ahead = self._compare(known, identities)
                if ahead is None:
                    self._check_clocks(identities, known.receivers)
                    return Beginning(known, register.version, identities)
                await asyncio.sleep(AHEAD_PAUSE)
                continue
            if known is None and not self._found:
                raise no_namespace(self._namespace)
            self._refuse_unfit(identities)
            self._check_clocks(identities, self._servers)
            if known is None or not await self._enrol(known, identities, register.version):
                if not self._found:
                    raise Unavailable(f"namespace {self._namespace!r} is being founded; retry")
                await self._plan(identities, register.version)
        if ahead is not None:
            raise ConfigError(
                f"server {ahead} has seen a later epoch than ZooKeeper's view: ZooKeeper has lost data, or this is "
                "another ZooKeeper; nothing was changed"
            )
        raise Unavailable("the namespace could not be founded: its servers change, or others try as well; retry")

    def _check_identities(self, identities: Identities) -> None:
        by_run_id: dict[str, ServerId] = {}
        for id, who in identities.items():
            if isinstance(who, Answer):
                _log.warning("server %s cannot be used: %s", id, who.reason, extra=self._extra(id))
                continue
            twin = by_run_id.setdefault(who.run_id, id)
            if twin != id:
                raise ConfigError(f"{twin} and {id} are the same Redis server: N copies need N servers")
        if not by_run_id:
            self._refuse_unfit(identities)
            reasons = "; ".join(f"{id}: {who.reason}" for id, who in identities.items() if isinstance(who, Answer))
            raise Unavailable(f"no Redis server can be reached: {reasons}")

    def _refuse_unfit(self, identities: Identities) -> None:
        """To begin with every server must be as it should; later the others can do without one."""
        for id, who in identities.items():
            if isinstance(who, ServerInfo):
                check_name(id, who.name, self._servers[id].url, self._namespace)
            elif who.status is Status.UNFIT:
                raise ConfigError(f"server {id}: {who.reason}")
            elif who.status is Status.DENIED:
                raise ConfigError(denial(id, who))

    def _check_clocks(self, identities: Identities, needed: Collection[ServerId]) -> None:
        """Name the clocks that are far apart: with a ``needed`` server every push of this client would be refused."""
        ahead = {id: who.ahead for id, who in identities.items() if isinstance(who, ServerInfo)}
        for text in find_apart(ahead, CLOCK_WARNING):
            _log.warning("%s", text, extra={"cluster": self._namespace})
        apart = find_apart({id: seconds for id, seconds in ahead.items() if id in needed}, PUT_WINDOW)
        if apart:
            raise ConfigError(f"{'; '.join(apart)}. Pushes are refused beyond {PUT_WINDOW:g} s: set the clocks right")

    async def _plan(self, identities: Identities, version: int) -> None:
        """Write down in which lives the servers are to begin."""
        lives: dict[ServerId, Life] = {}
        for id, who in identities.items():
            if isinstance(who, Answer):
                raise Unavailable(
                    f"to found namespace {self._namespace!r} every server must answer; {id}: {who.reason}"
                )
            if who.queues or who.epoch > FOUNDING + 1:
                raise ConfigError(
                    f"server {id} holds items of namespace {self._namespace!r}, but ZooKeeper knows no view of it: "
                    "wrong ZooKeeper or namespace, or ZooKeeper has lost its data; nothing was changed"
                )
            lives[id] = Life(who.run_id, secrets.token_hex(8))
        min_replicas = min(2, len(self._servers)) if self._min_replicas is None else self._min_replicas
        urls = {id: without_credentials(url) for id, url in self._fleet.urls.items()}
        planned = plan(lives, urls, min_replicas=min_replicas, by=secrets.token_hex(8))
        await self._coordinator.swap_view(encode(planned), version)

    async def _enrol(self, planned: View, identities: Identities, version: int) -> bool:
        """Carry out a plan; False where a server is no longer as planned, so that another plan is needed."""
        self._check_planned(planned)
        for id, life in planned.members.items():
            who = identities[id]
            if isinstance(who, Answer):
                return False
            deployment = planned.deployment
            answer = await enrol(self._fleet, id, who, FOUNDING + 1, life, deployment=deployment, holding=False)
            if answer.status is not Status.OK:
                _log.info("server %s was not enrolled: %s", id, answer.reason, extra=self._extra(id))
                return False
        await self._coordinator.swap_view(encode(found(planned, by=secrets.token_hex(8))), version)
        return True

    def _check_planned(self, view: View) -> None:
        if set(view.servers) != set(self._servers):
            raise ConfigError(
                f"namespace {self._namespace!r} is being founded with the servers {', '.join(view.servers)}; this "
                f"client was given {', '.join(sorted(self._servers))}: give every client the same servers"
            )
        self._check_min_replicas(view)

    def _compare(self, view: View, identities: Identities) -> ServerId | None:
        """Whether this client belongs here; returns a server that has seen a later epoch, if there is one.

        The view names the servers; the list that a client was given is where it looks first, and may be older or newer
        than the last change.
        """
        given = ", ".join(sorted(self._servers))
        if not set(view.servers) & set(self._servers):
            raise ConfigError(
                f"namespace {self._namespace!r} consists of the servers {', '.join(view.servers)}; this client was "
                f"given {given}: give every client the same servers under the same names, or another namespace"
            )
        for id in sorted(set(self._servers) - set(view.servers)):
            _log.warning(
                "server %s is none of namespace %r (%s) and is not used: add_server() adds one",
                id,
                self._namespace,
                ", ".join(view.servers),
                extra=self._extra(id),
            )
        self._check_min_replicas(view)
        # By its life, not by the name that is stored in it: one that was another's replica brings the other's name.
        for id, who in identities.items():
            if isinstance(who, Answer):
                if who.status is Status.DENIED and id in view.receivers:
                    raise ConfigError(denial(id, who))
                continue
            check_name(id, view.id_of(who.run_id) or "", self._servers[id].url, self._namespace)
        later = [id for id, who in identities.items() if isinstance(who, ServerInfo) and who.epoch > view.epoch]
        return next((id for id in later if id in view.servers), None)

    def _check_min_replicas(self, view: View) -> None:
        if self._min_replicas is not None and self._min_replicas != view.min_replicas:
            raise ConfigError(
                f"namespace {self._namespace!r} was founded with min_replicas={view.min_replicas}, "
                f"this client was given {self._min_replicas}: all clients must agree"
            )

    def _extra(self, server: ServerId) -> dict[str, str]:
        return {"cluster": self._namespace, "server": server}


async def enrol(
    fleet: Fleet, id: ServerId, who: ServerInfo, epoch: int, life: Life, *, deployment: str, holding: bool
) -> Answer:
    """Give a server, which is as ``who`` says, the generation of ``life``; see ``protocol/enrolment.py``."""
    ask = enrolment(id, who, epoch, life, deployment=deployment, holding=holding)
    return (await fleet.ask(ask.epoch, ask.lives, ask.call, once=ask.once))[id]


def check_name(id: ServerId, name: str, url: str, namespace: str) -> None:
    """Raises ``ConfigError`` where the server at ``url`` is known under another name; empty: none."""
    if name and name != id:
        raise ConfigError(
            f"the server at {url} holds the data of {name!r} in namespace "
            f"{namespace!r}, not of {id!r}: give every server one name, the same in every client"
        )


def decode_register(data: bytes | None, namespace: str) -> View | None:
    """The view in the register, None where it was never written.  Raises ``ConfigError``."""
    try:
        return None if data is None else decode(data)
    except ValueError as error:
        raise ConfigError(f"namespace {namespace!r} in ZooKeeper: {error}") from error
