"""Decide: the primary decides, every other server of the view applies its decision.

A queue's primary runs the script and mints a new version for each record that it changes: its epoch, and a count.  The
client carries these records to the other servers, which install them if they are newer than the stored ones.  The
answer counts only when every server of one view has them, so each survivor of the primary knows what was promised.

If the view changes in between, the decision is *taken again* on the new primary.  Applying the old primary's record is
not enough: the new primary may have decided about the item meanwhile, and the old record may lose to that or, worse,
win on one server and lose on another.  The scripts are idempotent by token, so the new primary either finds the same
decision and stamps it with its own epoch, or says what became of the item.

Payloads go last (cutting.py), so a follower may get a decision before the push of its item.  It reports such a record
as bare, and gets the payload before the decision counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from zkrq.protocol.attempts import Attempts, misplaced
from zkrq.protocol.calls import Apply, ApplyNew, Decision, Gone, Put, Records, Trimming
from zkrq.protocol.copying import copy_items
from zkrq.protocol.replies import Answer, Status, Verdict, Why
from zkrq.protocol.steps import (
    FULL_RETRY_SECONDS,
    Answers,
    Ask,
    Begin,
    DecisionNeeded,
    Effort,
    Failure,
    Fenced,
    Hurry,
    NothingDone,
    Obstacles,
    Operation,
    PlaceFailed,
    Removed,
    full_members,
    place,
)
from zkrq.protocol.view import ServerId

if TYPE_CHECKING:
    from zkrq.protocol.view import Life, View

R = TypeVar("R")
"""A reply's type."""


class Decided(NamedTuple, Generic[R]):
    """The primary's decision, once every server of the view has it.

    ``superseded``: by bundle, the positions at which some server holds a greater version that says otherwise, because
    of a later decision.  ``carried``: records of further bundles, decided in an attempt before the view changed; every
    server knows these decisions, too.  ``epoch``: of the last attempt.  ``copies``: number of members that have the
    decision. ``repeated``: the primary may still execute an earlier try of the call.  ``again``: an earlier try of the
    call, or an earlier attempt, may have been decided before.  ``gone``: items that every server knows to be removed.
    """

    reply: R
    records: Records
    superseded: Mapping[bytes, frozenset[int]]
    carried: Mapping[bytes, bytes]
    epoch: int
    copies: int
    repeated: bool
    again: bool
    gone: Sequence[Gone]


class SoFar:
    """Results so far of one decision's attempts."""

    def __init__(self, puts: Sequence[Put], effort: Effort | None = None) -> None:
        self.effort = effort or Effort()
        self.primary = ServerId("")
        """The server that decides in the present attempt."""
        self.payloads = {put.id.encode(): put.payload for put in puts}
        """Of new items that the call decides about, by bundle; none if it is no push."""
        self.carried: dict[bytes, bytes] = {}
        self.last: Mapping[bytes, bytes] = {}
        self.unanswered: set[tuple[ServerId, Life]] = set()
        self._first: View | None = None
        """The view of the first attempt."""

    def check_settings(self, view: View) -> None:
        """Raise ``NothingDone`` if no member lives the life of the first attempt: the settings of queues may be gone,
        and the programs that have declared them do so again before their next call."""
        first = self._first = self._first or view
        if first is not view and first.members.items().isdisjoint(view.members.items()):
            raise NothingDone("all servers have come back without data, or others are there")

    def carry(self, records: Records) -> None:
        """Note the records that were decided now.  Those of the attempt before, which this primary may not know, are
        decided again or carried along."""
        self.carried.update(self.last)
        self.last = dict(records)
        for id in self.last:
            self.carried.pop(id, None)


class Deciding(Attempts):
    """Decide on the primary, and apply on the others."""

    def decide(
        self, call: Decision[R], *, map_number: int = 0, may_leave: bool = True, effort: Effort | None = None
    ) -> Operation[Decided[R]]:
        """Let the primary decide, and every other server of the view apply its decision.

        ``map_number``: number of the shard map by which the items of a push were placed here, or by which something
        else was chosen to be decided here; 0: by none.  ``may_leave``: of a push, see ``place_again``.  ``effort``: of
        an operation that this continues, None: of none.
        Raises ``NothingDone``, ``TooFewMembers``, ``Misplaced``, ``Denied``; ``Unknown`` if it may have happened;
        ``Fenced`` if the owner was declared dead.
        """
        so_far = SoFar(call.puts, effort)
        outcome: list[Decided[R]] = []

        def attempt(view: View) -> Operation[Answers]:
            nonlocal map_number
            outcome.clear()
            if call.needs_settings:
                so_far.check_settings(view)
            obstacles: Obstacles = yield Begin(view)
            if obstacles.kept_out:
                return obstacles.kept_out
            if so_far.payloads or call.needs_replicas:
                self.check_writable(view)
            if so_far.payloads:
                if not self.is_placed(view, map_number):
                    map_number = yield from self.place_again(view, map_number, so_far.effort, may_leave=may_leave)
                if obstacles.askew and not so_far.effort.touched:
                    self.check_clocks(obstacles, (view.primary(call.queue),))
                if obstacles.full and not so_far.effort.touched:
                    yield from self.check_room(view, obstacles.full)
            elif map_number and not self.is_placed(view, map_number):
                raise misplaced(view, map_number)
            again = so_far.effort.touched
            primary = so_far.primary = view.primary(call.queue)
            answers = yield from self.have_decided(view, call, so_far)
            answer = answers[primary]
            again = again or answer.repeated
            if answer.status is not Status.OK:
                return answers
            reply = call.read(answer.body)
            records = call.decided(reply, view.epoch)
            so_far.carry(records)
            answers, superseded = yield from self.spread(view, call, records, so_far, answers)
            gone = [each for each in records.gone() if each.id not in superseded] if call.has_payloads else []
            repeated = (primary, view.members[primary]) in so_far.unanswered
            carried = dict(so_far.carried)
            copies = len(view.members)
            outcome[:] = [Decided(reply, records, superseded, carried, view.epoch, copies, repeated, again, gone)]
            return answers

        try:
            yield from self.until_done(so_far.effort, attempt)
        except Fenced:
            raise
        except Failure as failure:
            so_far.effort.end(failure, "nothing happened")
        (decided,) = outcome
        if decided.gone:
            yield Removed(call.queue, decided.gone)
        return decided

    def may_trim(self, view: View) -> bool:
        """Tell whether old tombstones may be dropped: not while a learner's copy, or an evicted server's data, must
        still meet them."""
        return not view.learners and not view.eligible

    def have_decided(self, view: View, call: Decision[R], so_far: SoFar) -> Operation[Answers]:
        """Let the primary decide.  Raises ``Fenced``, ``NothingDone``."""
        effort, primary = so_far.effort, so_far.primary
        sent = call.under(trim=self.may_trim(view), again=effort.touched)
        to = {primary: view.members[primary]}
        answers: Answers = yield Ask(view.epoch, to, sent)
        effort.note(answers)
        if answers[primary].status is Status.DECIDE:
            if not effort.touched:
                raise DecisionNeeded(call.queue, Why.of(answers.values()))
            answers = yield Ask(view.epoch, to, call.under(trim=self.may_trim(view), again=True))
            effort.note(answers)
        if so_far.payloads and full_members(view, answers):
            yield Hurry(FULL_RETRY_SECONDS)
        answer = answers[primary]
        if answer.status is Status.OK and not answer.repeated:
            return answers
        if answer.may_have_happened:
            so_far.unanswered.add((primary, view.members[primary]))
        if answer.status is Status.FENCED:
            raise Fenced
        if answer.verdict is Verdict.REFUSE:
            raise NothingDone(f"{primary} refused {call.script}: {answer.reason}")
        return answers

    def spread(
        self, view: View, call: Decision[R], records: Records, so_far: SoFar, answers: Answers
    ) -> Operation[tuple[Answers, Mapping[bytes, frozenset[int]]]]:
        """Make the other servers apply these records.

        Return all answers of the attempt, and, by bundle, where some server holds a greater version that says
        otherwise.
        """
        queue, primary = call.queue, so_far.primary
        # Even if nothing was decided ("not found", "full"), because the others know whether this is still the primary.
        told = records or call.fenced or so_far.carried or call.always_told
        others = {id: life for id, life in self.receivers(view).items() if id != primary} if told else {}
        if not others:
            return answers, {}
        apply = self._apply(view, call, records, so_far)
        applied: Answers = yield Ask(view.epoch, others, apply)
        if so_far.payloads and full_members(view, applied):
            yield Hurry(FULL_RETRY_SECONDS)
        answers = {**answers, **applied}
        ids, superseded = records.ids, dict[bytes, frozenset[int]]()
        for id, answer in applied.items():
            if answer.status is not Status.OK:
                continue
            reply = apply.read(answer.body)
            for at, positions in reply.superseded.items():
                superseded[ids[at]] = superseded.get(ids[at], frozenset()).union(positions)
            # Also for a learner: its catch-up may have read the queue before the push reached the source, and if the
            # producer has died since, the payload comes from nowhere else.
            if reply.bare:
                answers |= yield from self.copy(view, queue, [ids[at] for at in reply.bare], id)
        for id in others if so_far.carried else ():
            answers |= yield from self.copy(view, queue, sorted(so_far.carried), id)
        return answers, superseded

    def _apply(self, view: View, call: Decision[R], records: Records, so_far: SoFar) -> Apply:
        trim = isinstance(call, Trimming) and self.may_trim(view)
        if so_far.payloads:
            return ApplyNew(call.queue, records.with_payloads(so_far.payloads), whole=True)
        return Apply(call.queue, records, trim=trim, fenced=call.fenced)

    def copy(self, view: View, queue: str, ids: Sequence[bytes], to: ServerId) -> Operation[dict[ServerId, Answer]]:
        """Copy what the primary knows of these items to a server.  Return the answer of the server that failed, if one
        did."""
        try:
            yield from copy_items(place(view, view.primary(queue)), place(view, to), queue, ids)
        except PlaceFailed as failure:
            return {failure.server: failure.answer}
        return {}
