"""Look after the servers: bring back those that left the view, recover when all were restarted, scrub periodically.

Every client does this.  The leader acts immediately, the others later on what is left, so a leader that cannot reach a
server does not prevent a repair.  A reservation on the server keeps two clients from doing the same work.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zkrq.base.errors import Unavailable, ZkrqError
from zkrq.base.events import CatchingUp, DamageFound, Events, MemoryShortened, Recovered, Scrubbed, ServerCaughtUp
from zkrq.base.tasks import Rounds
from zkrq.protocol.catchup import CatchUp, dismiss_eligible
from zkrq.protocol.recovery import Recovery, Stuck
from zkrq.protocol.scrubbing import Scrub
from zkrq.protocol.shards import FIRST, ShardName
from zkrq.protocol.steps import NotNow, Taken
from zkrq.repair.backoff import Backoff
from zkrq.repair.progress import Meter, Progress

if TYPE_CHECKING:
    from zkrq.coordination.coordinator import Coordinator
    from zkrq.protocol import recovery
    from zkrq.protocol.view import ServerId, View
    from zkrq.protocol.witness import Witness
    from zkrq.replication.causes import Causes
    from zkrq.replication.replicas import Replicas
    from zkrq.replication.server import Server

TOLD_PAUSE = 5.0
"""Seconds; a pause of a server that is longer is told as the reason why it is not in sync."""

LOOK_SECONDS = 1.0
"""Seconds between two looks; if all servers are in sync and connected, a look asks none of them."""

FOLLOWER_PATIENCE = 6.0
"""Seconds that clients that do not lead wait for another client to bring a server back."""

SCRUB_SECONDS = 120.0
"""Seconds between two scrubs of all queues; less than the usual life of a tombstone, so that scrubs see every
removal."""

TROUBLE_SECONDS = 10.0
"""Seconds after which a different reason for a failing repair is logged."""

_log = logging.getLogger("zkrq.repair")


class Repairer:
    """Bring servers back, recover and scrub, as one of the clients that share this work."""

    def __init__(
        self,
        coordinator: Coordinator,
        replicas: Replicas,
        witness: Witness,
        causes: Causes,
        *,
        cluster: str,
        shard: ShardName = FIRST,
        events: Events,
    ) -> None:
        """``causes``: where to note why servers are not in sync."""
        self._coordinator = coordinator
        self._membership = replicas.membership
        self._witness = witness
        self._causes = causes
        self._shard = shard
        self._replicas = replicas
        self._cluster = cluster
        self._events = events
        self._token = secrets.token_hex(8)
        self._rounds = Rounds(self._look_after, seconds=LOOK_SECONDS)
        self.run = self._rounds.run
        """Look after the servers until cancelled."""
        self._short: set[str] = set()
        self._set_aside: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._backoff = Backoff()
        self._known: View | None = None
        self._outside_since: dict[ServerId, float] = {}
        self._wanted: set[ServerId] = set()
        self._eligible_since = 0.0
        self._unfinished: dict[ServerId, CatchUp] = {}
        self._trouble: dict[str, tuple[str, float]] = {}
        self._progress: dict[ServerId, Progress] = {}
        self._patience = FOLLOWER_PATIENCE * random.uniform(1, 2)  # noqa: S311

    @property
    def progress(self) -> Mapping[ServerId, Progress]:
        """Progress of the catch-ups that this client runs."""
        return self._progress

    def look(self) -> None:
        """Look soon, because something has changed."""
        self._rounds.call()

    def want(self, server: ServerId) -> None:
        """Bring this server in without waiting for the leader."""
        self._wanted.add(server)
        self.look()

    def view_changed(self, view: View) -> None:
        """Remember which servers left the view, and look."""
        if self._known is not None:
            self._backoff.note(self._known, view, asyncio.get_running_loop().time())
        self._known = view
        self.look()

    # -- bringing back -------------------------------------------------------------------------------------------------

    async def _look_after(self) -> None:
        try:
            await self._recover_if_needed(self._membership.view)
            await self._bring_back(self._membership.view)
            await self._dismiss(self._membership.view)
        except ZkrqError as error:
            self._note_trouble("view", str(error))

    async def _bring_back(self, view: View) -> None:
        now = asyncio.get_running_loop().time()
        outside = view.servers.keys() - view.members.keys()
        self._outside_since = {id: self._outside_since.get(id, now) for id in sorted(outside)}
        self._wanted &= outside
        self._unfinished = {id: catch_up for id, catch_up in self._unfinished.items() if id in view.learners}
        for id in self._membership.fleet.servers.keys() | self._causes.outside.keys():
            if id not in outside:
                self._trouble.pop(f"server {id}", None)
                self._causes.outside.pop(id, None)
        for id in sorted(outside, key=lambda server: server not in view.learners):
            if id in self._wanted or (self._is_my_turn(id, now) and not self._must_wait(id, now, view)):
                await self._catch_up(id)

    async def _dismiss(self, view: View) -> None:
        """Finish a promotion whose client died: give up the eligible servers that are no longer needed."""
        now = asyncio.get_running_loop().time()
        if not (view.eligible and view.writable):
            self._eligible_since = now
        elif self._coordinator.leading or now - self._eligible_since >= self._patience:
            await self._replicas.repair(dismiss_eligible(view))

    def _server(self, id: ServerId) -> Server | None:
        return self._membership.fleet.servers.get(id)

    def _is_my_turn(self, id: ServerId, now: float) -> bool:
        return self._coordinator.leading or now - self._outside_since[id] >= self._patience

    def _must_wait(self, id: ServerId, now: float, view: View) -> bool:
        seconds = self._backoff.seconds_left(id, now, urgent=not view.writable)
        if seconds > TOLD_PAUSE:
            often = f"evicted {self._backoff.evictions(id)} times within a short time"
            self._causes.outside[id] = f"{often}; the next attempt is in {seconds:.0f} s"
        return seconds > 0

    async def _catch_up(self, id: ServerId) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()

        def report(progress: Progress) -> None:
            self._progress[id] = progress
            self._causes.outside.pop(id, None)
            self._events.tell(CatchingUp(self._cluster, id, *progress))

        catch_up = self._unfinished.setdefault(id, CatchUp(id, repairer=self._token))
        try:
            items = await self._replicas.repair(catch_up.run(), Meter(loop.time, report, catch_up.copied).note)
        except Taken:
            self._outside_since[id] = loop.time()  # another client is working on it: wait again
        except NotNow as error:
            self._causes.outside[id] = str(error).removeprefix(f"server {id}: ")
            self._note_trouble(f"server {id}", str(error))
        else:
            del self._unfinished[id]
            await self._replicas.repair(dismiss_eligible(self._membership.view))
            epoch = self._membership.view.epoch
            self._events.tell(ServerCaughtUp(self._cluster, id, items, loop.time() - began, epoch))
        finally:
            self._progress.pop(id, None)
            while catch_up.mended:
                queue, mended = catch_up.mended.popitem()
                self._tell_damage(DamageFound(self._cluster, queue, *mended))

    def _note_trouble(self, about: str, reason: str) -> None:
        """Log a reason once, not at every attempt; reasons that alternate are not logged at each change either."""
        now = asyncio.get_running_loop().time()
        known, until = self._trouble.get(about, ("", now))
        if known == reason or now < until:
            return
        self._trouble[about] = (reason, now + TROUBLE_SECONDS)
        extra = {"cluster": self._cluster, "server": about[7:] if about.startswith("server ") else None}
        _log.warning("%s: not now: %s", about, reason, extra=extra)

    # -- recovery ------------------------------------------------------------------------------------------------------

    async def _recover_if_needed(self, view: View) -> None:
        """Recover, unless a member is connected in the life that the view names and some member answers: then ask
        nothing."""
        for id, life in view.members.items():
            server = self._server(id)
            who = server.identity if server else None
            if who is not None and who.run_id == life.run_id and not self._witness.unusable:
                self._trouble.pop("recovery", None)
                self._causes.recovery = ""
                return
        try:
            await self.recover()
        except NotNow as error:
            self._causes.recovery = self._advise(error)
            self._note_trouble("recovery", self._causes.recovery)
        else:
            self._causes.recovery = ""

    async def recover(self) -> None:
        """Recover if all members were restarted; a client that only looks does not.  Raises ``NotNow``,
        ``Unavailable``."""
        recovery = Recovery(repairer=self._token)
        recovered = await self._replicas.repair(recovery.look() if self._membership.only_looks else recovery.run())
        if recovered:
            self._tell_recovered(recovered)

    async def recover_with(self, servers: frozenset[ServerId]) -> None:
        """Continue with the data of these servers.  Raises ``ConfigError``, ``Unavailable``."""
        operation = Recovery(repairer=self._token).run_with(servers)
        try:
            self._tell_recovered(await self._replicas.repair(operation))
        except NotNow as error:
            raise Unavailable(f"not recovered: {error}") from error

    async def wait_recovered(self, timeout: float) -> None:
        """Recover, or wait while another client does: for a client that joins when all servers have been restarted.

        Raises ``Unavailable``.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        for tries in itertools.count(1):
            try:
                await self.recover()
            except NotNow as error:
                # The view may have changed because another client has just recovered; the next attempt shows that.
                if loop.time() > until or (tries > 1 and not isinstance(error, Taken)):
                    text = f"no in-sync server of namespace {self._cluster!r} is alive: {self._advise(error)}"
                    raise Unavailable(text) from error
            else:
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _advise(self, error: NotNow) -> str:
        """Say why nothing is recovered, and how to continue without the servers that are missing."""
        if not isinstance(error, Stuck) or not error.there:
            return str(error)
        shard = "" if self._shard == FIRST else f"--shard {self._shard} "
        return f"{error}: `zkrq servers recover {shard}{' '.join(error.there)}`"

    def _tell_recovered(self, outcome: recovery.Recovered) -> None:
        level = logging.ERROR if outcome.missing else logging.WARNING
        event = Recovered(self._cluster, tuple(outcome.view.members), outcome.missing, outcome.view.epoch)
        self._events.tell(event, level)

    # -- scrub ---------------------------------------------------------------------------------------------------------

    async def scrub_now_and_then(self) -> None:
        """Compare all queues periodically, while this client leads."""
        while True:
            await asyncio.sleep(SCRUB_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311
            if self._coordinator.leading and self._membership.view.members:
                await self.scrub()

    async def scrub(self) -> None:
        """Compare all queues once, and forget those of which nothing is left.

        A queue that cannot be compared is left to the next scrub.
        """
        scrub, run = Scrub(), self._replicas.repair
        try:
            queues = await run(scrub.queues())
        except NotNow as error:
            self._note_trouble("scrub", str(error))
            return
        random.shuffle(queues)
        for queue in queues:
            try:
                self._note_memory(queue, await run(scrub.trim(queue)))
            except (NotNow, ZkrqError) as error:
                self._note_trouble(f"trimming of {queue}", str(error))
            try:
                corrected = await run(scrub.run(queue))
            except (NotNow, ZkrqError) as error:
                self._note_trouble(f"scrub of {queue}", str(error))
            else:
                self._set_aside[queue] = scrub.aside
                if not scrub.aside:
                    del self._set_aside[queue]
                self._tell_damage(DamageFound(self._cluster, queue, *scrub.mended))
                if any(corrected):
                    self._events.tell(Scrubbed(self._cluster, queue, *corrected), logging.WARNING)
            try:
                await self._replicas.forget(queue)
            except ZkrqError as error:
                self._note_trouble(f"forgetting of {queue}", str(error))

    def _tell_damage(self, found: DamageFound) -> None:
        """Report damaged entries: those mended or set aside, and those that are left when their number has changed."""
        queue = found.queue
        if found.set_aside:
            self._set_aside[queue] = max(found.set_aside, self._set_aside.get(queue, 0))
        if found.mended or found.set_aside or found.left != self._left.get(queue, 0):
            self._events.tell(found, logging.ERROR if found.set_aside or found.left else logging.WARNING)
        self._left[queue] = found.left

    @property
    def set_aside(self) -> Mapping[str, int]:
        """Queues with damaged entries that are set aside, as far as this client has looked, and their number."""
        return self._set_aside

    def _note_memory(self, queue: str, seconds: float | None) -> None:
        """Report when a queue starts to forget removals early, and when it no longer does."""
        if (seconds is None) == (queue not in self._short):
            return
        self._short ^= {queue}
        level = logging.INFO if seconds is None else logging.WARNING
        self._events.tell(MemoryShortened(self._cluster, queue, seconds), level)
