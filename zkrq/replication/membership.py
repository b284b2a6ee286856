"""The view as this client knows it: joined once, read again when a server calls it old, changed by compare-and-set.

Whoever loses a compare-and-set starts again from the view that won.  One change at a time is under way in a client,
so that the many operations that run into the same dead server complain once.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, Final

from zkrq.coordination.coordinator import Coordinator
from zkrq.errors import NotEnoughReplicas, NotLetIn, Unavailable, ZkrqError
from zkrq.events import Events, NotWritable, ServerEvicted, ServerUnusableHere, ViewChanged
from zkrq.protocol.calls import Call, Seal
from zkrq.protocol.recovery import has_live_member
from zkrq.protocol.replies import IMPRESSIONS, Answer, Status, Verdict, denial
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.view import (
    Accusation,
    Eviction,
    Life,
    ServerId,
    Silence,
    View,
    ViewChange,
    accuse,
    accused,
    dismiss,
    encode,
    evict,
    refute,
    weigh_eviction,
    weigh_silence,
)
from zkrq.replication.fleet import Fleet
from zkrq.replication.founding import Founder, decode_register
from zkrq.replication.full import FullServers

EVICTION_GRACE = 5.0
"""Seconds that servers must have failed this client before it takes the view below ``min_replicas``."""

RETRY_PAUSE = 0.1
"""Seconds between tries while an eviction has to wait."""

EVICTED_LATELY = 600.0
"""Seconds for which a client that has evicted a process for its silence has no standing against that process."""

REFUTE_SPREAD = 0.05
"""Seconds over which the clients that refute an accusation are spread: one of them is enough."""

REFUTE_TRIES = 5
"""Compare-and-sets of one refutation that may be lost."""

KEPT_OUT_SECONDS = 1.0
"""Seconds for which a client that a server keeps out takes that for granted; then it asks the server again."""


_log = logging.getLogger("zkrq.view")


class Membership:
    """Holds the present view and changes it; ``fleet`` follows it.  ``join`` comes first."""

    def __init__(
        self,
        coordinator: Coordinator,
        fleet: Fleet,
        *,
        namespace: str,
        min_replicas: int | None,
        found: bool = True,
        events: Events,
        eviction_grace: float = EVICTION_GRACE,
    ) -> None:
        self.fleet: Final = fleet
        fleet.report_to(self._note_answers)
        self._coordinator = coordinator
        self._namespace = namespace
        self._min_replicas = min_replicas
        self._found = found
        self._events = events
        self._grace = eviction_grace
        self._view: View | None = None
        self._version = -1
        self._changing = asyncio.Lock()
        self._failing_since: dict[tuple[ServerId, Life], float] = {}
        self._kept_out: dict[ServerId, tuple[Answer, float]] = {}
        self._name = secrets.token_hex(8)
        self._met: dict[ServerId, Life] = {}
        self._unmet: set[ServerId] = set()
        self._evicted: dict[ServerId, tuple[str, float]] = {}
        self._accusations: dict[ServerId, tuple[Accusation, float]] = {}
        self._contradicted: set[ServerId] = set()
        self._summons = asyncio.Event()
        self._watchers: list[Callable[[View], None]] = []
        self.full: Final = FullServers(namespace, events)
        self.nobody_answers = False
        """Whether all members have failed this client, as far as it knows."""

    @property
    def view(self) -> View:
        """The latest view that this client knows."""
        assert self._view is not None, "join() comes first"
        return self._view

    def watch(self, changed: Callable[[View], None]) -> None:
        """Have ``changed`` called with every newer view."""
        self._watchers.append(changed)

    @contextmanager
    def watching(self, changed: Callable[[View], None]) -> Generator[None]:
        """Have ``changed`` called with every newer view for a while."""
        self._watchers.append(changed)
        try:
            yield
        finally:
            self._watchers.remove(changed)

    async def join(self) -> bool:
        """Read the view, or found the namespace where that is allowed.

        Returns whether a member was found in the life that the view knows.  Raises as ``Founder.join`` does.
        """
        founder = Founder(
            self._coordinator,
            self.fleet,
            namespace=self._namespace,
            min_replicas=self._min_replicas,
            found=self._found,
        )
        view, version, identities = await founder.join()
        for id, who in identities.items():
            if isinstance(who, ServerInfo):
                self._met[id] = Life(who.run_id, who.generation)
        self._adopt(view, version)
        for id in view.receivers:
            if isinstance(answer := identities.get(id), Answer):
                self._note_failure(id, answer)
        return has_live_member(view, identities)

    # -- reading and changing ------------------------------------------------------------------------------------------

    async def refresh(self, known: View) -> View:
        """The present view, which is newer than ``known`` when there is a newer one.  Raises ``Unavailable``."""
        async with self._changing:
            return self.view if self.view.epoch > known.epoch else await self._read()

    async def _read(self) -> View:
        register = await self._coordinator.read_view()
        view = decode_register(register.data, self._namespace)
        if view is None:
            raise Unavailable("ZooKeeper no longer knows the view of this namespace")
        self._adopt(view, register.version)
        return self.view

    async def change(self, known: View, change: ViewChange) -> View:
        """Write what ``change`` makes of ``known``; returns the view to go on with: that one, or the
        one that somebody else wrote before.  Raises ``Unavailable``: it may have been written."""
        async with self._changing:
            # Not of ``known`` even then: an accusation may have come since, within the same epoch.
            if self.view.epoch > known.epoch:
                return self.view
            return await self._swap(change(self.view, by=secrets.token_hex(8)))

    async def _swap(self, view: View) -> View:
        written = await self._coordinator.swap_view(encode(view), self._version)
        if written is None:
            return await self._read()
        self._adopt(view, written.version)
        return view

    async def dismiss(self, known: View) -> None:
        """Give up the eligible servers of ``known`` where enough members answer under it.  Raises ``Unavailable``.

        Not with the promotion that makes them enough: the new member may have lost its memory since it was last asked,
        and then an eligible server may be the only other one that holds everything.
        """
        if not (known.eligible and known.writable):
            return
        answers = await self.seal(known, known.members)
        if any(answer.status is not Status.OK for answer in answers.values()):
            return
        async with self._changing:
            if self.view.epoch == known.epoch and self.view.eligible:
                await self._swap(dismiss(self.view))

    async def evict(self, known: View, failed: Mapping[ServerId, Answer], answered: set[ServerId]) -> View:
        """Take servers that failed this client under ``known`` out of the view, and return the view to go on with.

        Every server that stays has answered in this very operation (``answered``) or does so now, so a client that is
        cut off from most of them fails itself instead of evicting the healthy ones, and so does a client that one of
        them does not let in.  What a server says itself evicts it; its silence does where this client has standing
        (``weigh_silence``), else the server is accused.  The view comes back unchanged where nothing can be done yet:
        the caller retries until its time runs out.

        Raises ``ConfigError``, and ``Unavailable`` where others have contradicted this client.
        """
        async with self._changing:
            if self.view.epoch > known.epoch:
                return self.view
            silent = await self._probe(known, known.members.keys() - failed.keys() - answered)
            if any(answer.verdict is not Verdict.EVICT for answer in silent.values()):
                check_let_in(silent)
                return known
            failed = {**failed, **silent}
            weighed = weigh_eviction(known, failed)
            since = self._failing(known, failed)
            if weighed is Eviction.IMPOSSIBLE:
                self.nobody_answers = True
                return known
            quiet = sorted(id for id, answer in failed.items() if answer.status in IMPRESSIONS)
            silences = {id: self._weigh_silence(id) for id in quiet}
            for id, silence in silences.items():
                if silence is Silence.CONTRADICTED:
                    self._contradicted.add(id)
                    raise Unavailable(_contradiction(id))
            if unheard := [id for id, silence in silences.items() if silence is Silence.ACCUSE]:
                return await self._swap(accuse(self.view, unheard, client=self._name))
            now = asyncio.get_running_loop().time()
            if Silence.WAIT in silences.values():
                return known
            if weighed is Eviction.HALTING and now - since < self._grace:
                return known
            wanted = evict(self.view, failed, by=secrets.token_hex(8))
            view = await self._swap(wanted)
            if view is wanted:
                self._evicted.update({id: (known.receivers[id].run_id, now) for id in quiet})
                for id in sorted(failed):
                    event = ServerEvicted(self._namespace, id, failed[id].reason, view.epoch)
                    self._events.tell(event, logging.WARNING)
            return view

    async def _probe(self, view: View, silent: set[ServerId]) -> dict[ServerId, Answer]:
        """Which of the ``silent`` do not answer under ``view``.  STALE is an answer."""
        answers = await self.seal(view, silent)
        return {id: answer for id, answer in answers.items() if answer.status not in (Status.OK, Status.STALE)}

    # -- accusations ---------------------------------------------------------------------------------------------------

    def _weigh_silence(self, server: ServerId) -> Silence:
        """What this client may do about a receiver that does not answer it."""
        now = asyncio.get_running_loop().time()
        life = self.view.receivers[server]
        run_id, evicted_at = self._evicted.get(server, ("", 0.0))
        lately = run_id == life.run_id and now - evicted_at < EVICTED_LATELY
        standing = self._met.get(server) == life and not lately
        _, since = self._accusations.get(server, (None, now))
        return weigh_silence(self.view, server, self._name, standing=standing, seconds=now - since)

    def _note_accusations(self, view: View) -> None:
        """Take note of what is new in the view, and wake ``attend`` where another client accuses a server."""
        now, before = asyncio.get_running_loop().time(), self._accusations
        self._accusations = {}
        mine = set[ServerId]()
        for id, accusation in view.accusations.items():
            known = before.get(id)
            self._accusations[id] = known if known and known[0] == accusation else (accusation, now)
            if accusation.by != self._name and not accusation.refuted:
                self._summons.set()
            elif accusation.by == self._name and accusation.refuted:
                mine.add(id)
        self._contradicted &= mine
        for id in sorted(mine):
            if self._accusations[id] is not before.get(id):
                self._contradicted.add(id)
                self._events.tell(ServerUnusableHere(self._namespace, id, _contradiction(id)), logging.WARNING)

    async def attend(self) -> None:
        """Meet every server in its new life, which gives this client standing, and answer the accusations of others,
        until cancelled."""
        while True:
            await self._summons.wait()
            self._summons.clear()
            try:
                await self._look_at_doubted()
            except ZkrqError as error:
                _log.info("servers could not be looked at: %s", error, extra={"cluster": self._namespace})

    async def _look_at_doubted(self) -> None:
        view = self.view
        doubted = accused(view)
        answers = await self.seal(view, doubted | self._unmet)
        reached = {id for id, answer in answers.items() if answer.status is Status.OK}
        if doubted & reached:
            await asyncio.sleep(random.uniform(0, REFUTE_SPREAD))  # noqa: S311
            await self._refute(view, doubted & reached)
        failed = {id: answer for id, answer in answers.items() if answer.verdict is Verdict.EVICT}
        if failed:
            await self.evict(view, failed, reached)

    async def _refute(self, known: View, servers: set[ServerId]) -> None:
        """Say in the view that these servers have answered this client in the lives that ``known`` names."""
        async with self._changing:
            for _ in range(REFUTE_TRIES):
                view = self.view
                wrongly = {id for id in servers & accused(view) if view.receivers[id] == known.receivers[id]}
                if not wrongly:
                    return
                await self._swap(refute(view, wrongly, client=self._name))

    # -- servers that keep this client out -----------------------------------------------------------------------------

    @property
    def trouble(self) -> tuple[str, ...]:
        """What keeps this client, and perhaps no other, from using servers of the view."""
        kept_out = [f"server {id}: {answer.reason}" for id, (answer, _) in sorted(self._kept_out.items())]
        return (*kept_out, *map(_contradiction, sorted(self._contradicted)))

    @property
    def unhindered(self) -> bool:
        """Whether this client knows of nothing that is in the way of a write."""
        return not (self._contradicted or self._kept_out or self.full.any)

    async def kept_out(self, view: View) -> dict[ServerId, Answer]:
        """Answers of the servers of ``view`` that keep this client out, as far as it knows: it could complete nothing,
        so it is to begin nothing.  After ``KEPT_OUT_SECONDS`` they are asked again.  Raises ``Unavailable`` where one
        answers others only; that one is asked by the reaper's looks."""
        for id in sorted(self._contradicted):
            raise Unavailable(_contradiction(id))
        if not self._kept_out:
            return {}
        now = asyncio.get_running_loop().time()
        due = [id for id, (_, at) in self._kept_out.items() if at + KEPT_OUT_SECONDS <= now and id in view.receivers]
        await self.seal(view, due)
        return {id: answer for id, (answer, _) in self._kept_out.items() if id in view.receivers}

    def _note_reached(self, server: ServerId, life: Life) -> None:
        """This client has standing against this life of a server now, and is no longer contradicted."""
        self._met[server] = life
        self._unmet.discard(server)
        self._contradicted.discard(server)
        if server in accused(self.view):
            self._summons.set()  # it answers, whichever client has accused it

    def _note_failure(self, server: ServerId, answer: Answer) -> None:
        """Remember an answer that lies with this client, and forget the last one."""
        known = self._kept_out.pop(server, None)
        if answer.verdict in (Verdict.CORRECT, Verdict.WAIT):
            self._kept_out[server] = answer, asyncio.get_running_loop().time()
            if known is None or known[0].status is not answer.status:
                event = ServerUnusableHere(self._namespace, server, denial(server, answer))
                self._events.tell(event, logging.WARNING)

    # -- asking --------------------------------------------------------------------------------------------------------

    async def seal(self, view: View, servers: Iterable[ServerId]) -> dict[ServerId, Answer]:
        """Have servers of ``view`` adopt its epoch, which also tells who answers."""
        return await self.ask(view, sorted(servers), Seal())

    def _failing(self, view: View, failed: Iterable[ServerId]) -> float:
        """Since when all of these have failed this client."""
        now = asyncio.get_running_loop().time()
        return max(self._failing_since.setdefault((id, view.receivers[id]), now) for id in failed)

    def _adopt(self, view: View, version: int) -> None:
        old = self._view
        if old and view.epoch <= old.epoch:
            if view.epoch < old.epoch:
                raise Unavailable(f"ZooKeeper's view went back from epoch {old.epoch} to {view.epoch}: it lost data")
            if version > self._version:
                self._view, self._version = view, version
                self._note_accusations(view)
            return
        self.fleet.follow(view, old)
        self._view, self._version = view, version
        self.nobody_answers = False
        kept = view.receivers
        self._failing_since = {key: at for key, at in self._failing_since.items() if kept.get(key[0]) == key[1]}
        self._kept_out = {id: known for id, known in self._kept_out.items() if id in kept}
        self._unmet = {id for id, life in kept.items() if self._met.get(id) != life}
        if self._unmet:
            self._summons.set()
        self._note_accusations(view)
        self._events.tell(ViewChanged(self._namespace, view.epoch, tuple(view.members), tuple(view.learners)))
        if not view.writable and (old is None or old.writable):
            self._events.tell(NotWritable(self._namespace, tuple(view.members), view.min_replicas), logging.ERROR)
        for changed in tuple(self._watchers):
            changed(view)

    async def ask(self, view: View, servers: Iterable[ServerId], call: Call[Any]) -> dict[ServerId, Answer]:
        """Make one call on several servers of ``view`` at the same time, in the lives that the view names."""
        return await self.fleet.ask(view.epoch, {id: view.receivers[id] for id in servers}, call)

    def _note_answers(self, lives: Mapping[ServerId, Life], answers: Mapping[ServerId, Answer]) -> None:
        """Learn from the answers of servers that were called in the lives that the view names.  Those that repair calls
        in other lives say nothing about the servers of the view."""
        if self._view is None:
            return
        known = self._view.receivers
        for id, answer in answers.items():
            life = lives[id]
            if life != known.get(id):
                continue
            if answer.status in (Status.OK, Status.STALE):
                self.nobody_answers = False
                if self._failing_since:
                    self._failing_since.pop((id, life), None)
                if self._kept_out:
                    self._kept_out.pop(id, None)
                if self._unmet or self._contradicted or self._accusations:
                    self._note_reached(id, life)
            else:
                self._note_failure(id, answer)

    def check_writable(self, view: View) -> None:
        """Raises ``NotEnoughReplicas`` where no push can complete."""
        if not view.writable:
            raise NotEnoughReplicas(len(view.members), view.min_replicas)


def _contradiction(server: ServerId) -> str:
    return f"server {server} does not answer this client, but it does answer others: check the network between them"


def check_let_in(answers: Mapping[ServerId, Answer]) -> None:
    """Raises ``ConfigError`` where a server does not let this client in."""
    for id, answer in answers.items():
        if answer.verdict is Verdict.CORRECT:
            raise NotLetIn(denial(id, answer))
