"""The view as this client knows it: founded once, read again when a server calls it old, changed by compare-and-set.

Whoever loses a compare-and-set starts again from the view that won.  One change at a time is under way in a client,
so that the many operations that run into the same dead server complain once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from zkrq.coordination.coordinator import Coordinator
from zkrq.errors import ConfigError, NotEnoughReplicas, Unavailable
from zkrq.events import Events, NotWritable, ServerEvicted, ViewChanged
from zkrq.replication.replies import Answer, Status
from zkrq.replication.server import Identity, Server, ServerError
from zkrq.replication.view import (
    FOUNDING,
    Eviction,
    Life,
    ServerId,
    View,
    decode,
    encode,
    evict,
    found,
    plan,
    weigh_eviction,
)

EVICTION_GRACE = 5.0
"""Seconds that servers must have failed this client before it takes the view below ``min_replicas``."""

RETRY_PAUSE = 0.1
"""Seconds between tries while an eviction has to wait."""

FOUNDING_TRIES = 5

_log = logging.getLogger("zkrq.view")


class Membership:
    """Holds the present view and changes it.  ``join`` comes first."""

    def __init__(
        self,
        coordinator: Coordinator,
        servers: Mapping[ServerId, Server],
        *,
        namespace: str,
        min_replicas: int | None,
        events: Events,
        eviction_grace: float = EVICTION_GRACE,
    ) -> None:
        self.servers: Final = servers
        self._coordinator = coordinator
        self._namespace = namespace
        self._min_replicas = min_replicas
        self._events = events
        self._grace = eviction_grace
        self._view: View | None = None
        self._version = -1
        self._changing = asyncio.Lock()
        self._failing_since: dict[tuple[ServerId, Life], float] = {}
        self._watchers: list[Callable[[View], None]] = []

    @property
    def view(self) -> View:
        """The latest view that this client knows."""
        assert self._view is not None, "join() comes first"
        return self._view

    def watch(self, changed: Callable[[View], None]) -> None:
        """Have ``changed`` called with every newer view."""
        self._watchers.append(changed)

    # -- joining -----------------------------------------------------------------------------------------------------

    async def join(self) -> View:
        """Read the view; where there is none yet, found the namespace.

        Raises ``ConfigError`` where this client's servers are not those of the namespace, ``Unavailable`` where no
        server of the view can be reached.
        """
        for _ in range(FOUNDING_TRIES):
            identities = await self._identify_all()
            self._refuse_twins(identities)
            register = await self._coordinator.read_view()
            known = self._decode(register.data) if register.data is not None else None
            if known is not None and known.epoch != FOUNDING:
                self._compare(known, identities)
                self._adopt(known, register.version)
                return known
            if known is None or not await self._enrol(known, identities, register.version):
                await self._plan(identities, register.version)
        raise Unavailable("the namespace could not be founded: its servers change, or others try as well; retry")

    async def _identify_all(self) -> dict[ServerId, Identity | Answer]:
        async def identify(server: Server) -> Identity | Answer:
            try:
                return await server.identify(anew=True)
            except ServerError as error:
                return error.answer

        found_out = await asyncio.gather(*map(identify, self.servers.values()))
        identities = dict(zip(self.servers, found_out, strict=True))
        for id, who in identities.items():
            if isinstance(who, Answer):
                if who.status is Status.UNFIT:
                    raise ConfigError(f"server {id}: {who.reason}")
                _log.warning("server %s does not answer: %s", id, who.reason, extra=self._extra(id))
        if all(isinstance(who, Answer) for who in identities.values()):
            reasons = "; ".join(f"{id}: {who.reason}" for id, who in identities.items() if isinstance(who, Answer))
            raise Unavailable(f"no Redis server can be reached: {reasons}")
        return identities

    def _refuse_twins(self, identities: Mapping[ServerId, Identity | Answer]) -> None:
        by_run_id: dict[str, ServerId] = {}
        for id, who in identities.items():
            if isinstance(who, Answer):
                continue
            twin = by_run_id.setdefault(who.run_id, id)
            if twin != id:
                raise ConfigError(f"{twin} and {id} are the same Redis server: N copies need N servers")
            if who.name and who.name != id:
                raise ConfigError(
                    f"the server at {self.servers[id].url} holds the data of {who.name!r} in namespace "
                    f"{self._namespace!r}, not of {id!r}: give every server one name, the same in every client"
                )

    async def _plan(self, identities: Mapping[ServerId, Identity | Answer], version: int) -> None:
        """Write down in which lives the servers are to begin.  Whose plan is in the register is carried out by all, so
        clients that found a namespace at the same time do not enrol its servers against each other."""
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
        min_replicas = min(2, len(self.servers)) if self._min_replicas is None else self._min_replicas
        planned = plan(lives, min_replicas=min_replicas, by=secrets.token_hex(8))
        await self._coordinator.swap_view(encode(planned), version)

    async def _enrol(self, planned: View, identities: Mapping[ServerId, Identity | Answer], version: int) -> bool:
        """Carry out a plan; False where a server is no longer as planned, so that another plan is needed."""
        self._check_servers(planned)
        for id, life in planned.members.items():
            who = identities[id]
            expected = who.generation if isinstance(who, Identity) else ""
            answer = await self.servers[id].call("enrol", "", FOUNDING + 1, life, [expected, id])
            if answer.status is not Status.OK:
                _log.info("server %s was not enrolled: %s", id, answer.reason, extra=self._extra(id))
                return False
        await self._coordinator.swap_view(encode(found(planned, by=secrets.token_hex(8))), version)
        return True

    def _check_servers(self, view: View) -> None:
        if set(view.servers) != set(self.servers):
            raise ConfigError(
                f"namespace {self._namespace!r} consists of the servers {', '.join(view.servers)}; this client was "
                f"given {', '.join(sorted(self.servers))}: give every client the same servers under the same names, "
                "or another namespace"
            )
        if self._min_replicas is not None and self._min_replicas != view.min_replicas:
            raise ConfigError(
                f"namespace {self._namespace!r} was founded with min_replicas={view.min_replicas}, "
                f"this client was given {self._min_replicas}: all clients must agree"
            )

    def _compare(self, view: View, identities: Mapping[ServerId, Identity | Answer]) -> None:
        self._check_servers(view)
        ahead = [id for id, who in identities.items() if isinstance(who, Identity) and who.epoch > view.epoch]
        if ahead:
            raise ConfigError(
                f"server {ahead[0]} has seen a later epoch than ZooKeeper's view ({view.epoch}): "
                "ZooKeeper has lost data, or this is another ZooKeeper; nothing was changed"
            )
        lives = {id: who.run_id for id, who in identities.items() if isinstance(who, Identity)}
        if not any(lives.get(id) == life.run_id for id, life in view.members.items()):
            raise Unavailable(
                f"no in-sync server of namespace {self._namespace!r} can be reached in the life that the view knows"
            )

    # -- reading and changing ------------------------------------------------------------------------------------------

    async def refresh(self, known: View) -> View:
        """The present view, which is newer than ``known`` when there is a newer one.  Raises ``Unavailable``."""
        async with self._changing:
            return self.view if self.view.epoch > known.epoch else await self._read()

    async def _read(self) -> View:
        register = await self._coordinator.read_view()
        if register.data is None:
            raise Unavailable("ZooKeeper no longer knows the view of this namespace")
        self._adopt(self._decode(register.data), register.version)
        return self.view

    def _decode(self, data: bytes) -> View:
        try:
            return decode(data)
        except ValueError as error:
            raise ConfigError(f"namespace {self._namespace!r} in ZooKeeper: {error}") from error

    async def evict(self, known: View, failed: Mapping[ServerId, Answer], answered: set[ServerId]) -> View:
        """Take servers that failed this client under ``known`` out of the view, and return the view to go on with.

        Every server that stays has answered in this very operation (``answered``) or does so now, so a client that is
        cut off from most of them fails itself instead of evicting the healthy ones.  The view comes back unchanged
        where nothing can be done yet: the caller tries on until its time runs out.
        """
        async with self._changing:
            if self.view.epoch > known.epoch:
                return self.view
            failed = {**failed, **await self._probe(known, known.members.keys() - failed.keys() - answered)}
            if not self._may_evict(known, failed):
                return known
            view = evict(known, failed, by=secrets.token_hex(8))
            written = await self._coordinator.swap_view(encode(view), self._version)
            if written is None:
                return await self._read()
            self._adopt(view, written.version)
            for id in sorted(failed):
                event = ServerEvicted(self._namespace, id, failed[id].reason, view.epoch)
                self._events.tell(event, logging.WARNING)
            return view

    async def _probe(self, view: View, silent: set[ServerId]) -> dict[ServerId, Answer]:
        """Which of the ``silent`` do not answer under ``view``.  STALE is an answer."""
        ids = sorted(silent)
        answers = await asyncio.gather(*(self.call(id, "seal", "", view) for id in ids))
        return {
            id: answer
            for id, answer in zip(ids, answers, strict=True)
            if answer.status not in (Status.OK, Status.STALE)
        }

    def _may_evict(self, view: View, failed: Mapping[ServerId, Answer]) -> bool:
        now = asyncio.get_running_loop().time()
        since = [self._failing_since.setdefault((id, view.receivers[id]), now) for id in failed]
        match weigh_eviction(view, failed):
            case Eviction.HARMLESS:
                return True
            case Eviction.HALTING:
                return now - max(since) >= self._grace
            case Eviction.IMPOSSIBLE:
                return False

    def _adopt(self, view: View, version: int) -> None:
        old = self._view
        if old and view.epoch <= old.epoch:
            if view.epoch < old.epoch:
                raise Unavailable(f"ZooKeeper's view went back from epoch {old.epoch} to {view.epoch}: it lost data")
            return
        self._view, self._version = view, version
        kept = view.receivers
        self._failing_since = {key: at for key, at in self._failing_since.items() if kept.get(key[0]) == key[1]}
        self._events.tell(ViewChanged(self._namespace, view.epoch, tuple(view.members), tuple(view.learners)))
        if not view.writable and (old is None or old.writable):
            self._events.tell(NotWritable(self._namespace, tuple(view.members), view.min_replicas), logging.ERROR)
        for changed in tuple(self._watchers):
            changed(view)

    # -- calling -------------------------------------------------------------------------------------------------------

    async def call(
        self, server: ServerId, script: str, queue: str, view: View, arguments: list[bytes | str | int] | None = None
    ) -> Answer:
        """One call of one script on one server of ``view``, in the life that the view names."""
        life = view.receivers[server]
        answer = await self.servers[server].call(script, queue, view.epoch, life, arguments or ())
        if self._failing_since and answer.status in (Status.OK, Status.STALE):
            self._failing_since.pop((server, life), None)
        return answer

    def check_writable(self, view: View) -> None:
        """Raises ``NotEnoughReplicas`` where no push can complete."""
        if not view.writable:
            raise NotEnoughReplicas(len(view.members), view.min_replicas)

    def _extra(self, server: ServerId) -> dict[str, str]:
        return {"cluster": self._namespace, "server": server}
