"""Forget queues: what is left of one when its last item is gone.

A tombstone keeps a late call from bringing its item back, so the tombstones of a queue go only in time: once they have
expired, nothing else is remembered, and no consumer is there.  Then each server forgets by itself, because a queue of
which nothing is left says the same as one that was never there.  The scrub asks for this.

A deletion removes the items by the same decisions as ``clear``, ``discard`` and ``cancel``, and leaves their
tombstones. Forgetting these at once would be the shorter way, and these schedules break it:

* A push is executed, its answer is lost, a consumer acks the item, and the queue is deleted.  The push is repeated, and
  the item is delivered once more.  So it is with a moment of a schedule that another process pushes late.
* The item that came back is claimed under the epoch of the deletion: its fencing token is that of its former life.
* One server misses the end of the deletion in a power cut.  In the recovery its items meet no tombstone.

The deletion is a record, too, DELETED.  It says that the queue is not only empty, so that it is no longer listed; and
it carries the moment.  An id that is pushed at a later one is another item, although the tombstone of the former is
there: it begins a new life above all versions of that (push_decided.lua), so its fencing tokens are greater.  A push
that is repeated has its first moment, and so have the ids that zkrq makes and those of a schedule: they carry it.
Without the moment, a queue could not be made again under the ids of a user within ten minutes; without comparing it
with that of the push, the first schedule above would bring an item back.  The record is decided, applied, copied and
merged like one of a removed item, and dropped like its tombstone.

A follower may still have an item, because a client died before it told that server of the removal.  If that server led
next, the item would be there again.  So the primary affirms what it knows of the items that followers have.  Of an
unfinished push it knows nothing; what is pushed before a deletion is not carried on after it (forward.lua).

While a server is caught up, or an evicted one may still be needed, nothing is forgotten, as no tombstone is dropped:
the data of that server must meet the tombstones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zkrq.protocol.calls import Affirm, Count, Delete, Forget, Peek
from zkrq.protocol.deciding import Deciding
from zkrq.protocol.replies import Status
from zkrq.protocol.steps import Answers, Ask, CheckTime, Operation, Place, PlaceFailed, place

if TYPE_CHECKING:
    from zkrq.protocol.view import View

INDEXES = ("ready", "scheduled", "claimed", "dead")
"""Where a server has its items."""

AFFIRM_ITEMS = 500
"""Items of a follower that are affirmed in one step."""


class Forgetting(Deciding):
    """Forget queues."""

    def forget(self, queue: str) -> Operation[bool]:
        """Forget a queue on every server on which nothing of it is left or remembered; return whether on all.

        Raises ``NothingDone``.
        """
        forgotten = False

        def attempt(view: View) -> Operation[Answers]:
            nonlocal forgotten
            yield CheckTime()
            if not self.may_trim(view):
                return {}
            call = Forget(queue)
            answers = yield from Ask(view.epoch, view.members, call)
            forgotten = all(answer.status is Status.OK and call.read(answer.body) for answer in answers.values())
            return answers

        yield from self.tell(queue, attempt)
        return forgotten

    def delete(self, queue: str, moment_ms: int) -> Operation[None]:
        """Let no follower keep an item of a queue that was emptied just now, and decide that the queue was deleted.

        ``moment_ms``: what is pushed at that moment or later is new, by the clocks of the clients.
        Items that were pushed meanwhile stay.  Left in the middle, the items are gone, but the queue is listed, and an
        id of the user's counts as removed.  Raises ``NothingDone``, and what ``decide`` raises.
        """

        def attempt(view: View) -> Operation[Answers]:
            yield CheckTime()
            try:
                yield from self._affirm_removals(view, queue)
            except PlaceFailed as failure:
                return {failure.server: failure.answer}
            return {}

        yield from self.tell(queue, attempt)
        yield from self.decide(Delete(queue, moment_ms))

    def _affirm_removals(self, view: View, queue: str) -> Operation[None]:
        """Affirm the items of followers, unless the queue has items again: then it is left to the scrub."""
        primary = place(view, view.primary(queue))
        for id in sorted(view.members.keys() - {primary.server}):
            if any((yield from primary.ask(Count(queue)))):
                return
            follower = place(view, id)
            for index in INDEXES:
                yield from self._affirm_items_of(follower, queue, index)

    def _affirm_items_of(self, follower: Place, queue: str, index: str) -> Operation[None]:
        """Let the primary affirm what it knows of the items that a follower has.  It may not know any of them."""
        affirmed = frozenset[bytes]()
        while True:
            items = yield from follower.ask(Peek(queue, index, AFFIRM_ITEMS))
            ids = frozenset(bundle for bundle, _ in items.places)
            if ids <= affirmed:
                return
            yield from self.decide(Affirm(queue, sorted(ids)))
            affirmed = ids
