"""Bring a server back: enrol it under a new generation, wipe it, make it a learner, copy all items, make it a member.

From its admission as a learner it also receives every write, so only what existed before has to be copied.  The first
page is read after its source has adopted the learner's epoch, because the call that reads carries it: from then on no
client that does not know the learner can add anything to the source.

Neither a change of the view nor a source that is unreachable for a while restarts the copying: it continues, queue by
queue, as long as the learner and the queue's source stay in the same life.  That is enough because

* an operation that completed before the learner was admitted is on every member of that time.  A source was one of
  them, or was promoted since, with all that they had;
* one that completes later also has an answer of the learner, whatever the view is by then.  It covers every server
  of the last view that its client knows; the learner is in every view since its admission (evicted and admitted again
  it has another life); and a source that has adopted an epoch as late as the admission takes no call of an older one;
* one that never completes may be known to the source and not to the learner, and so may one that a new primary decided
  meanwhile before its client died.  The same happens without any change of the view: the scrub corrects it;
* tombstones are not dropped while there is a learner;
* what the source cannot read is mended from another member, or set aside, before the learner becomes a member: it may
  be the primary then, and what the primary does not know is forgotten (mending.py).

A queue whose primary is now another server, or another life of it, than the one it was copied from, is copied again
from there, because a cursor is valid in one process only.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from zkrq.protocol.attempts import Attempts
from zkrq.protocol.calls import Metadata, Seal, Wipe
from zkrq.protocol.copying import QueueCopy, queues_at
from zkrq.protocol.enrolment import enrol, meet, reserve, seal
from zkrq.protocol.mending import Mended, Mending
from zkrq.protocol.replies import Status, Verdict
from zkrq.protocol.steps import (
    Change,
    Evict,
    Look,
    Nonce,
    NotNow,
    Operation,
    Place,
    PlaceFailed,
    Refresh,
    Report,
    compare_clocks,
    place,
)
from zkrq.protocol.view import Life, ServerId, View, ViewChange, admit, dismiss, promote, restored

if TYPE_CHECKING:
    from zkrq.protocol.server_info import ServerInfo

COPY_TRIES = 20
"""Changes of the view in a row, without anything copied in between, after which the catch-up is given up."""

HEAD_ROOM = 0.1
"""Part of its ``maxmemory`` that a server must have left beyond what the others use."""


class CatchUp(Attempts):
    """Take one server from outside the view to membership."""

    def __init__(self, server: ServerId, *, repairer: str) -> None:
        """Catch up this server.  ``repairer``: name of this client in reservations."""
        self._id = server
        self._repairer = repairer
        self.copied = 0
        """Items copied so far."""
        self.mended: dict[str, Mended] = {}
        """What became of damaged entries, by queue."""
        self._total = 0
        self._copies: dict[tuple[str, ServerId, Life], QueueCopy] = {}
        self._life: Life | None = None

    def run(self) -> Operation[int]:
        """Bring the server in; return how many items were copied.

        If left in the middle, another client begins it again.  Raises ``NotNow``: run it again, and it continues where
        it was as long as the learner and the queues' sources stay in the same life.
        """
        view = yield from Refresh((yield from Look()))
        if self._id not in view.servers:
            raise NotNow(f"{self._id} is no longer a server of this namespace")
        self._met = yield from meet([self._id])
        who = self._met[self._id]
        if self._id not in view.learners:
            self._check(view, who)
            yield from self._check_clock(view)
        # Before the reservation, because a client that cannot do the work must not keep it from those that can.
        yield from self.reach_members(view)
        yield from reserve(self._met, self._repairer)
        try:
            if self._id not in view.learners:
                view = yield from self._admit(view, who)
            return (yield from self._complete(view))
        except PlaceFailed as failure:
            raise NotNow(str(failure)) from failure

    def _check(self, view: View, who: ServerInfo) -> None:
        """Check whether this server may join at all.  Raises ``NotNow``."""
        if self._id in view.members:
            raise NotNow(f"{self._id} is in the view again")
        if who.dropping:
            raise NotNow(f"server {self._id}: {who.dropping}")
        foreign = who.is_foreign(view.deployment)
        if foreign and who.queues:
            raise NotNow(
                f"{self._id} holds the items of another deployment, and is not wiped: remove it from the list "
                f"(`zkrq servers remove {self._id}`), or let `zkrq servers add URL --name {self._id} --force` wipe it"
            )
        if not foreign and who.epoch > view.epoch:
            raise NotNow(f"{self._id} has seen epoch {who.epoch}, later than the view's {view.epoch}")
        twin = view.id_of(who.run_id)
        if twin not in (None, self._id):
            raise NotNow(f"{self._id} and {twin} are the same Redis server")

    def _check_clock(self, view: View) -> Operation[None]:
        """Check that the server's clock is not wrong, for which it would be evicted again.  Raises ``NotNow``."""
        if reason := (yield from compare_clocks((*view.members, self._id))).against(self._id):
            raise NotNow(f"server {self._id}: {reason}")

    def reach_members(self, view: View) -> Operation[None]:
        """Check that this client reaches every member: otherwise it would only block clients that do."""
        for id, answer in (yield from seal(view, view.members)).items():
            if answer.status is not Status.OK:
                raise NotNow(f"member {id}: {answer.reason}")

    # -- from outside to learner ---------------------------------------------------------------------------------------

    def _admit(self, view: View, who: ServerInfo) -> Operation[View]:
        """Enrol and wipe the server, and make it a learner."""
        yield from self._check_room(view, who)
        kept = self.kept_generation(view, who)
        if not kept:
            who = yield from self._wipe(view, who)
        life = Life(who.run_id, kept or (yield from Nonce()))
        yield from self._enrol(view, who, life, holding=kept is not None)
        changed = yield from Change(view, partial(admit, server=self._id, life=life))
        if changed.learners.get(self._id) != life:
            raise NotNow("the view moved meanwhile")
        return changed

    def _check_room(self, view: View, who: ServerInfo) -> Operation[None]:
        """Check that the server has memory to spare.  ``maxmemory`` does not stop copying, because removals must always
        succeed, so a server that had just enough room would be evicted with the next push, again and again.  Raises
        ``NotNow``."""
        if not who.maxmemory:
            return
        id = view.primary("")
        needed = (yield from meet([id]))[id].used_memory
        if needed > who.maxmemory * (1 - HEAD_ROOM):
            raise NotNow(f"{self._id} has a maxmemory of {who.maxmemory} bytes, too little where {id} uses {needed}")

    def kept_generation(self, view: View, who: ServerInfo) -> str | None:
        """Return the next generation of an eligible server that was only unreachable, None for any other.

        It may be the only other server that holds everything, so it is not wiped: what it missed is added.
        """
        known = view.eligible.get(self._id)
        if known and who.run_id == known.run_id and who.generation in (known.generation, restored(known)):
            return restored(known)
        return None

    def _wipe(self, view: View, who: ServerInfo) -> Operation[ServerInfo]:
        """Empty the server, under a generation that no view will ever name.

        So even a dump that is made meanwhile cannot bring the old data back under a generation that counts.
        """
        passing = Life(who.run_id, (yield from Nonce()))
        yield from self._enrol(view, who, passing, holding=not who.is_foreign(view.deployment))
        here = Place(self._id, passing, view.epoch)
        for queue in (yield from queues_at(here)):
            yield from here.ask(Wipe(queue))
        again = (yield from meet([self._id]))[self._id]
        if (again.run_id, again.generation) != passing:
            raise NotNow(f"{self._id} has changed while it was wiped")
        return again

    def _enrol(self, view: View, who: ServerInfo, life: Life, *, holding: bool) -> Operation[None]:
        answer = yield from enrol(self._id, who, view.epoch, life, deployment=view.deployment, holding=holding)
        if answer.status is not Status.OK:
            raise NotNow(f"{self._id} was not enrolled: {answer.reason}")

    # -- from learner to member ----------------------------------------------------------------------------------------

    def _complete(self, view: View) -> Operation[int]:
        """Copy until nothing has changed meanwhile, then make the learner a member."""
        life = view.learners[self._id]
        if life != self._life:  # copies on another life of it say nothing about this one
            self._life, self.copied, self._copies = life, 0, {}
        tries = 0
        while tries < COPY_TRIES:
            before = self.copied
            newest: View
            try:
                yield from self._copy_all(view)
            except PlaceFailed as failure:
                newest = yield from self._after(view, failure)
            else:
                newest = yield from Refresh(view)
                if newest.epoch == view.epoch:
                    newest = yield from Change(view, self.promotion(life))
            if newest.members.get(self._id) == life:
                return self.copied
            if newest.learners.get(self._id) != life:
                raise NotNow(f"{self._id} was evicted while it was caught up")
            tries = tries + 1 if self.copied == before else 0
            view = newest
        raise NotNow("the view keeps changing")

    def promotion(self, life: Life) -> ViewChange:
        """Return the change of the view that makes the learner a member."""
        return partial(promote, server=self._id, life=life)

    def _after(self, view: View, failure: PlaceFailed) -> Operation[View]:
        """Return the view to continue under, newer than the one under which the copying failed.  Raises
        ``PlaceFailed``."""
        newest = view
        if failure.answer.verdict is Verdict.EVICT:
            newest = yield from Evict(view, {failure.server: failure.answer}, set())
        elif failure.answer.verdict is Verdict.REFRESH:
            newest = yield from Refresh(view)
        if newest.epoch == view.epoch:
            raise failure
        return newest

    def _copy_all(self, view: View) -> Operation[None]:
        """Copy the queues that are not copied yet.  Raises ``PlaceFailed``."""
        target = place(view, self._id)
        yield from target.ask(Seal())
        members = view.members.items()
        self._copies = {key: copy for key, copy in self._copies.items() if key[1:] in members}
        left: dict[str, QueueCopy] = {}
        self._total = self.copied
        for queue in (yield from queues_at(_source(view, ""))):
            source = view.primary(queue)
            copy = self._copies.setdefault((queue, source, view.members[source]), self.copy_of(queue))
            if not copy.done:
                metadata = yield from _source(view, queue).ask(Metadata(queue))
                self._total += max(0, metadata.items - copy.copied)
                left[queue] = copy
        for queue, copy in left.items():
            yield from copy.go_on(_source(view, queue), target, self._note)
        for (queue, _, _), copy in self._copies.items():
            if copy.damaged:  # the learner gets the good copies as well, and what is set aside
                self.mended[queue] = self.mended.get(queue, Mended()).plus(
                    (yield from Mending().mend(queue, sorted(copy.damaged)))
                )
                copy.damaged.clear()
        yield Report(self.copied, self._total)

    def copy_of(self, queue: str) -> QueueCopy:
        """Make the copy of a queue, which has not begun."""
        return QueueCopy(queue)

    def _note(self, items: int) -> Operation[None]:
        self.copied += items
        if (yield from Report(self.copied, self._total)):
            with suppress(NotNow):  # the copying fails anyway if the server is gone
                yield from reserve(self._met, self._repairer)


def _source(view: View, queue: str) -> Place:
    return place(view, view.primary(queue))


def dismiss_eligible(known: View) -> Operation[None]:
    """Give up the eligible servers of ``known`` if enough members answer under it.

    Not with the promotion that makes them enough: the new member may have lost its memory since it was last asked, and
    then an eligible server may be the only other one that holds everything.
    """

    def change(view: View, /, *, by: str) -> View:
        return dismiss(view)

    if not (known.eligible and known.writable):
        return
    answers = yield from seal(known, known.members)
    if all(answer.status is Status.OK for answer in answers.values()):
        yield Change(known, change)
