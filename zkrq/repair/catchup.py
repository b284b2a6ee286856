"""A server comes back: enrolled under a new generation, wiped, made a learner, given all items, made a member.

From the moment when it is a learner every write goes to it as well, so what is copied is what was there before.  The
first page is read after its source has adopted the learner's epoch (the call that reads carries it): nothing can be
added to the source any more by who does not know the learner.

A change of the view does not begin the copying anew: it goes on where it was, queue by queue, as long as the learner
and the queue's source keep their lives.  That is enough because

* an operation that completed before the learner was admitted is on every member of that time.  A source was one of
  them, or was promoted since, with all that they had;
* one that completes later has an answer of the learner as well, whatever the view is by then: it covers every server
  of the last view that its client knows, the learner is in every view since its admission (evicted and admitted again
  it has another life), and a source that has adopted an epoch as late as the admission takes no call of an older one;
* one that never completes may be known to the source and not to the learner, and so may one that a new primary decided
  meanwhile before its client died.  So it is without any change of the view: the scrub tells the others;
* tombstones are not dropped while there is a learner.

A queue whose primary is now another server, or another life of it, than the one it was copied from is copied anew from
there: a cursor means nothing to another process.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, cast

from zkrq.protocol.clocks import PUT_WINDOW, find_apart
from zkrq.protocol.replies import Status, Verdict
from zkrq.protocol.view import Life, ServerId, View, admit, promote, restored
from zkrq.repair.places import NotNow, Reservation, meet
from zkrq.replication.copying import CopyFailed, Place, QueueCopy, queues_at
from zkrq.replication.founding import enrol
from zkrq.replication.link import Identity
from zkrq.replication.membership import Membership

COPY_TRIES = 20
"""How often the view may move in a row without anything being copied, before another look is taken."""

HEAD_ROOM = 0.1
"""Share of its ``maxmemory`` that a server must have left beyond what the others use."""

PROGRESS_SECONDS = 2.0
"""Between two reports of progress."""


class Progress(NamedTuple):
    """How far a catch-up is: items copied of about ``total`` (tombstones included), items per second, and the seconds
    that are left at that rate, None while it is unknown."""

    copied: int
    total: int
    rate: float
    seconds_left: float | None


class CatchUp:
    """One server, from outside to member."""

    def __init__(
        self,
        membership: Membership,
        server: ServerId,
        *,
        repairer: str,
        report: Callable[[Progress], None],
    ) -> None:
        self._membership = membership
        self._fleet = membership.fleet
        self._id = server
        self._repairer = repairer
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._copied = self._total = 0
        self._copies: dict[tuple[str, ServerId, Life], QueueCopy] = {}
        self._began = self._reported = self._loop.time()

    async def run(self) -> int:
        """Bring the server in; returns how many items were copied.

        Left in the middle it is continued, or begun anew, by whoever looks next.  Raises ``NotNow``, ``Unavailable``.
        """
        view = await self._membership.refresh(self._membership.view)
        if self._id not in view.servers:
            raise NotNow(f"{self._id} is no longer a server of this namespace")
        who = (await meet(self._fleet, [self._id]))[self._id]
        if self._id not in view.learners:
            self._check(view, who)
        # Before the reservation: a client that cannot do the work must not keep it from those that can.
        await self._reach_members(view)
        self._reservation = Reservation(self._fleet, self._id, who.run_id, self._repairer)
        await self._reservation.take()
        try:
            if self._id not in view.learners:
                view = await self._admit(view, who)
            return await self._complete(view)
        except CopyFailed as failure:
            raise NotNow(str(failure)) from failure

    def _check(self, view: View, who: Identity) -> None:
        """Whether this server may come in at all.  Raises ``NotNow``."""
        if self._id in view.members:
            raise NotNow(f"{self._id} is in the view again")
        foreign = who.is_foreign(view.deployment)
        if foreign and who.queues:
            raise NotNow(
                f"{self._id} holds the items of another deployment, and is not wiped: take it off the list "
                "(remove_server), or have it taken over (add_server with force)"
            )
        if not foreign and who.epoch > view.epoch:
            raise NotNow(f"{self._id} has seen epoch {who.epoch}, later than the view's {view.epoch}")
        twin = view.id_of(who.run_id)
        if twin not in (None, self._id):
            raise NotNow(f"{self._id} and {twin} are the same Redis server")
        apart = find_apart({self._id: who.ahead}, PUT_WINDOW)
        if apart:
            raise NotNow(apart[0])

    async def _admit(self, view: View, who: Identity) -> View:
        """Enrol and wipe it, make it a learner."""
        await self._check_room(view, who)
        kept = self._kept(view, who)
        if not kept:
            who = await self._wipe(view, who)
        life = Life(who.run_id, kept or secrets.token_hex(8))
        await self._enrol(view, who, life, holding=kept is not None)
        changed = await self._membership.change(view, partial(admit, server=self._id, life=life))
        if changed.learners.get(self._id) != life:
            raise NotNow("the view moved meanwhile")
        return changed

    async def _wipe(self, view: View, who: Identity) -> Identity:
        """Empty it, under a generation that no view will ever name: not even a dump that is made meanwhile can bring
        the old data back under a generation that is believed."""
        passing = Life(who.run_id, secrets.token_hex(8))
        await self._enrol(view, who, passing, holding=not who.is_foreign(view.deployment))
        here = self._fleet.place(view.epoch, self._id, passing)
        for queue in await queues_at(here):
            await here.ask("wipe", queue, [queue])
        again = (await meet(self._fleet, [self._id]))[self._id]
        if (again.run_id, again.generation) != passing:
            raise NotNow(f"{self._id} has changed while it was wiped")
        return again

    async def _enrol(self, view: View, who: Identity, life: Life, *, holding: bool) -> None:
        deployment = view.deployment
        answer = await enrol(self._fleet, self._id, who, view.epoch, life, deployment=deployment, holding=holding)
        if answer.status is not Status.OK:
            raise NotNow(f"{self._id} was not enrolled: {answer.reason}")

    async def _check_room(self, view: View, who: Identity) -> None:
        """Copying is not stopped by ``maxmemory``, so that removals always get through.  One that has just room enough
        would be evicted with the next push, and so on."""
        if not who.maxmemory:
            return
        id = view.primary("")
        needed = (await meet(self._fleet, [id]))[id].used_memory
        if needed > who.maxmemory * (1 - HEAD_ROOM):
            raise NotNow(f"{self._id} has a maxmemory of {who.maxmemory} bytes, too little where {id} uses {needed}")

    def _kept(self, view: View, who: Identity) -> str | None:
        """The next generation of a server that is eligible and was only out of reach, None for any other.

        It may be the only other one that holds everything, so it is not wiped: what it missed is added.
        """
        known = view.eligible.get(self._id)
        if known and who.run_id == known.run_id and who.generation in (known.generation, restored(known)):
            return restored(known)
        return None

    async def _reach_members(self, view: View) -> None:
        """Who cannot reach every member would only get in the way of those who can."""
        for id, answer in (await self._membership.seal(view, view.members)).items():
            if answer.status is not Status.OK:
                raise NotNow(f"member {id}: {answer.reason}")

    async def _complete(self, view: View) -> int:
        """Copy until nothing has moved meanwhile, then make the learner a member."""
        life = view.learners[self._id]
        tries = 0
        while tries < COPY_TRIES:
            before = self._copied
            try:
                await self._copy_all(view)
            except CopyFailed as failure:
                newest = await self._after(view, failure)
            else:
                newest = await self._membership.refresh(view)
                if newest.epoch == view.epoch:
                    newest = await self._membership.change(view, partial(promote, server=self._id, life=life))
            if newest.members.get(self._id) == life:
                return self._copied
            if newest.learners.get(self._id) != life:
                raise NotNow(f"{self._id} fell out of the view while it was caught up")
            tries = tries + 1 if self._copied == before else 0
            view = newest
        raise NotNow("the view moves all the time")

    async def _after(self, view: View, failure: CopyFailed) -> View:
        """The view to copy on under, newer than the one that it failed under."""
        newest = view
        if failure.answer.verdict is Verdict.EVICT:
            newest = await self._membership.evict(view, {failure.server: failure.answer}, set())
        elif failure.answer.verdict is Verdict.REFRESH:
            newest = await self._membership.refresh(view)
        if newest.epoch == view.epoch:
            raise failure
        return newest

    async def _copy_all(self, view: View) -> None:
        target = self._membership.place(view, self._id)
        await target.ask("seal", "", [])
        members = view.members.items()
        self._copies = {key: copy for key, copy in self._copies.items() if key[1:] in members}
        left: dict[str, QueueCopy] = {}
        self._total = self._copied
        for queue in await queues_at(self._source(view, "")):
            source = view.primary(queue)
            copy = self._copies.setdefault((queue, source, view.members[source]), QueueCopy(queue))
            if not copy.done:
                _, items, *_ = await self._source(view, queue).ask("standing", queue, [b"0"])
                self._total += max(0, cast("int", items) - copy.copied)
                left[queue] = copy
        for queue, copy in left.items():
            await copy.go_on(self._source(view, queue), target, self._note)
        self._tell()

    def _source(self, view: View, queue: str) -> Place:
        return self._membership.place(view, view.primary(queue))

    async def _note(self, items: int) -> None:
        self._copied += items
        with suppress(NotNow):
            await self._reservation.keep()
        now = self._loop.time()
        if now - self._reported >= PROGRESS_SECONDS:
            self._reported = now
            self._tell()

    def _tell(self) -> None:
        elapsed = self._loop.time() - self._began
        rate = self._copied / elapsed if elapsed > 0 else 0.0
        left = max(0, self._total - self._copied) / rate if rate > 0 else None
        self._report(Progress(self._copied, self._total, rate, left))
