"""Forget queues: what is left of one when its last item is gone.

A tombstone keeps a late call from bringing its item back, so the tombstones of a queue may go for two reasons only.

*Time.*  They have expired, nothing else is remembered, and no consumer is there.  Then each server forgets by itself,
because a queue of which nothing is left says the same as one that was never there.  The scrub asks for this.

*An epoch.*  The queue was deleted.  After the last removal the epoch is raised, although the members stay the same, and
each server forgets under the new one.  So a call from before the removals, which may still be on its way, is refused by
every server that has forgotten.  Without that, a push whose connection broke and which was repeated could be executed
once more after the deletion, and a follower could get a claim on an item that it has just forgotten.  A push that had
not returned by then is repeated by its client under the new epoch, and makes an item.

The followers forget first.  A follower may still have an item, because a client died before it told that server of
the removal; then the primary affirms the tombstone.  If the primary forgot before, the scrub would take the item for
a push that is unfinished.

A server on which an item arrives meanwhile keeps all that it has: maybe the push came after this call there, and before
it on another server.  While a server is caught up, or an evicted one may still be needed, nothing is forgotten, as no
tombstone is dropped: the data of that server must meet the tombstones.
"""

from __future__ import annotations

from dataclasses import replace

from zkrq.protocol.calls import Affirm, Count, Forget, Peek
from zkrq.protocol.deciding import Deciding
from zkrq.protocol.replies import Status
from zkrq.protocol.steps import Answers, Ask, Change, CheckTime, Look, Operation, Place, PlaceFailed, place
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
            call = Forget(queue, early=False)
            answers: Answers = yield Ask(view.epoch, view.members, call)
            forgotten = all(answer.status is Status.OK and call.read(answer.body) for answer in answers.values())
            return answers

        yield from self.tell(queue, attempt)
        return forgotten

    def forget_deleted(self, queue: str) -> Operation[bool]:
        """Forget a queue that was emptied just now; return whether every server has.

        If items were pushed meanwhile, the queue stays.  Left in the middle, some servers remember the removals and
        others do not.  Raises ``NothingDone``; ``StepFailed`` if the epoch could not be raised; what ``decide`` raises.
        """
        view: View = yield Look()
        forgotten = False
        if self.may_trim(view):
            yield Change(view, renew)

        def attempt(view: View) -> Operation[Answers]:
            nonlocal forgotten
            yield CheckTime()
            if self.may_trim(view):
                try:
                    forgotten = yield from self._forget_in_turn(view, queue)
                except PlaceFailed as failure:
                    return {failure.server: failure.answer}
            return {}

        yield from self.tell(queue, attempt)
        return forgotten

    def _forget_in_turn(self, view: View, queue: str) -> Operation[bool]:
        primary, call = place(view, view.primary(queue)), Forget(queue, early=True)
        if any((yield from primary.ask(Count(queue)))):
            return False
        for id in sorted(view.members.keys() - {primary.server}):
            follower = place(view, id)
            if not (yield from follower.ask(call)):
                yield from self._affirm_items_of(follower, queue)
                if not (yield from follower.ask(call)):
                    return False
        return (yield from primary.ask(call))

    def _affirm_items_of(self, follower: Place, queue: str) -> Operation[None]:
        """Let the primary affirm what it knows of the items that a follower has.  It may not know any of them."""
        for index in INDEXES:
            affirmed = frozenset[bytes]()
            while True:
                items = yield from follower.ask(Peek(queue, index, AFFIRM_ITEMS))
                ids = frozenset(bundle for bundle, _ in items.places)
                if ids <= affirmed:
                    break
                yield from self.decide(Affirm(queue, sorted(ids)))
                affirmed = ids


def renew(view: View, /, *, by: str) -> View:
    """Return the same view under a new epoch."""
    return replace(view, epoch=view.epoch + 1, by=by)
