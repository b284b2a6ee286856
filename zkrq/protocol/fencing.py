"""Fence consumers that have died: every server refuses them, and their items are ready again.

``align`` carries what the primary alone knew when the consumer died, for instance its ack, to the other servers.
Otherwise the consumer would seem to hold those items again if one of these servers became primary.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from zkrq.protocol.calls import START, Claims, Fence, Names, NamesPage, Paging, Retire, texts_of
from zkrq.protocol.deciding import Deciding
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.steps import Answers, CheckTime, Operation, PlaceFailed, Seen, place, refuse

if TYPE_CHECKING:
    from zkrq.protocol.view import ServerId, View

_RETURNING = Answer(Status.STALE, (), "it is not in sync, and may come back with what no other server has")


class Fencing(Deciding):
    """Fence owners, and list them."""

    def fence(self, queue: str, owner: str) -> Operation[int]:
        """Declare an owner dead on every server and requeue its claims; return the number of items.

        Idempotent, and safe to leave in the middle: the owner stays listed until all is done.  Raises ``NothingDone``,
        ``Unknown``.
        """
        cursor, epoch, requeued = START, None, 0
        while True:
            decided = yield from self.decide(Fence(queue, owner, cursor))
            requeued += decided.reply.requeued
            cursor = decided.reply.cursor
            if epoch not in (None, decided.epoch):
                cursor, epoch = START, None  # a cursor is not valid on another primary
                continue
            epoch = decided.epoch
            if cursor == START:
                break
        yield from self._align(queue, owner)
        yield from self.tell_all(Retire(queue, owner))
        return requeued

    def _align(self, queue: str, owner: str) -> Operation[None]:
        """Copy what the primary knows to the other servers, for items that they see as claimed by this owner.  Raises
        ``NothingDone``."""

        def attempt(view: View) -> Operation[Answers]:
            yield CheckTime()

            def correct(id: ServerId, page: Names) -> Operation[None]:
                failed = yield from self.copy(view, queue, page.names, id)
                for server, answer in failed.items():
                    raise PlaceFailed(server, answer)

            for id in sorted(view.receivers.keys() - {view.primary(queue)}):
                try:
                    yield from place(view, id).each_page(Claims(queue, owner), partial(correct, id))
                except PlaceFailed as failure:
                    return {failure.server: failure.answer}
            return {}

        yield from self.tell(queue, attempt)

    def names(
        self, call: Paging[NamesPage], *, everywhere: bool = False, complete: bool = False
    ) -> Operation[list[str]]:
        """List the names that a script gives page by page, on the queue's primary, or together on every server of the
        view.

        ``complete``: everywhere, and only once no server outside the view can come back with names of its own.
        Names that exist during the whole call are returned.  Raises ``NothingDone``.
        """
        found = set[bytes]()

        def attempt(view: View) -> Operation[Answers]:
            yield CheckTime()
            if complete and (returning := self.returning(view)):
                return returning
            view = yield from Seen(view)
            for id in sorted(view.receivers) if everywhere or complete else (view.primary(call.queue),):
                try:
                    found.update((yield from place(view, id).names(call)))
                except PlaceFailed as failure:
                    failed: Mapping[ServerId, Answer] = {failure.server: failure.answer}
                    refuse(failed)
                    return failed
            return {}

        yield from self.tell(call.queue, attempt)
        return texts_of(found)

    def returning(self, view: View) -> Answers:
        """Return an answer that has the view read again for each server that may come back with what it holds.

        Such a server is not asked: it may still take calls of the view in which it was a member, until a client
        reaches it and brings it back.
        """
        return dict.fromkeys(view.eligible, _RETURNING)
