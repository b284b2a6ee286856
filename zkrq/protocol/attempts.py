"""Decide what follows an attempt: the end, or another attempt under the view that its answers lead to.

An operation continues until its answers cover the view that this client holds after its last compare-and-set, in the
lives that this view names.  Without that rule, a client that evicts a server would return although a learner that
joined meanwhile never received the operation.  The learner becomes a member, the others die, and a push that had
returned is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from zkrq.protocol.calls import Broadcast, Call, Room
from zkrq.protocol.clocks import compare
from zkrq.protocol.replies import FAILURES, Answer, Status, Verdict
from zkrq.protocol.steps import (
    LOOK,
    Answers,
    Ask,
    Begin,
    CheckTime,
    ConfirmPlace,
    Effort,
    Evict,
    Identify,
    Misplaced,
    NoteClocks,
    NothingDone,
    Obstacles,
    Operation,
    Refresh,
    Rest,
    Seen,
    TimeUp,
    TooFewMembers,
    clocks_ahead,
    describe_askew,
    full_members,
    reasons,
    refuse,
)
from zkrq.protocol.view import Eviction, weigh_eviction

if TYPE_CHECKING:
    from zkrq.protocol.server_info import ServerInfo
    from zkrq.protocol.view import Life, ServerId, View

R = TypeVar("R")


def misplaced(view: View, map_number: int) -> Misplaced:
    """Return the failure of what rests on a shard map that is older than this view asks for."""
    return Misplaced(f"the shards have changed: map {view.map_number} is needed, {map_number} was known")


def find_askew(
    view: View, failed: Answers, found: Mapping[ServerId, ServerInfo | Answer], *, contradicted: bool = False
) -> Operation[Answers]:
    """Return the servers of the view that have to leave because their clocks are wrong; none if pushes could not
    continue without these and without ``failed``, which leave for other reasons.

    ``found``: what the servers said of themselves just now.  ``contradicted``: servers contradict each other about the
    age of a push.  Then a server whose clock could not be read is returned, too, as one that has failed, because
    without it nothing can be concluded.
    """
    compared = compare(clocks_ahead(found))
    wrong = {id: Answer(Status.ASKEW, (), reason) for id, reason in compared.wrong.items() if id not in failed}
    if wrong and weigh_eviction(view, {**failed, **wrong}) is Eviction.HARMLESS:
        return wrong
    unread = {id: each for id, each in found.items() if isinstance(each, Answer)}
    if contradicted and unread:
        return unread
    yield NoteClocks(compared)
    return {}


class Attempts:
    """Parts that all operations share.  The model of the protocol overrides one of them to switch a rule off."""

    def receivers(self, view: View) -> Mapping[ServerId, Life]:
        """Return the servers that get every write: the members, and the learners, whose catch-up copies only items from
        before their admission."""
        return view.receivers

    def check_writable(self, view: View) -> None:
        """Raise ``TooFewMembers`` if no push can complete.

        Because of this check, a server that is evicted while the view falls below ``min_replicas`` holds every pushed
        item, so it can take part in a recovery.
        """
        if not view.writable:
            raise TooFewMembers(view)

    def is_placed(self, view: View, map_number: int) -> bool:
        """Tell whether this view asks for no newer shard map than that of this number: otherwise a push that was placed
        by it may belong elsewhere, and what else rests on it may be wrong by now.

        Because of this check, once all members of a view have heard of a shard map, no push comes that was placed by an
        older one.
        """
        return map_number >= view.map_number

    def place_again(self, view: View, map_number: int, effort: Effort, *, may_leave: bool = True) -> Operation[int]:
        """Return the number of a map as new as this view asks for, by which a push belongs on this shard.

        Nothing was written: raises ``Misplaced``, and the push is placed anew, unless it may not leave.  It stays where
        something may have been written, because another shard would not know of it, and the item might exist twice.  It
        continues only if the newer map leaves it there, as it would leave a push that is repeated under its id.
        Otherwise the shard may be closed, looked through and removed with the item in it; or another shard may be the
        queue's home by now, because no server in sync had heard of the queue, and have an item of this id.  Then the
        outcome stays unknown.
        """
        if may_leave and not effort.touched:
            raise misplaced(view, map_number)
        effort.trouble = str(misplaced(view, map_number))
        while (number := (yield from ConfirmPlace(view.map_number))) < view.map_number:
            yield Rest()
            yield CheckTime()
        return number

    def next_view(self, view: View, answers: Answers) -> Operation[View]:
        """Find the view to continue with after these answers.  Raises ``Denied``, ``NothingDone``."""
        failed = {
            id: answer
            for id, answer in answers.items()
            # A full learner must not halt pushes that all members accept.
            if answer.verdict in FAILURES or (answer.status is Status.REFUSED and id in view.learners)
        }
        newer = view
        if failed:
            answered = {id for id, answer in answers.items() if id not in failed and answer.verdict is not Verdict.WAIT}
            newer = yield from Evict(view, failed, answered)
        elif any(answer.verdict is Verdict.REFRESH for answer in answers.values()):
            newer = yield from Refresh(view)
        if newer.epoch == view.epoch:
            yield Rest()
        return newer

    def until_done(self, effort: Effort, attempt: Callable[[View], Operation[Answers]]) -> Operation[None]:
        """Make attempts, each under the view that the last one's answers led to, until all answers are OK."""
        view: View = yield LOOK  # every push, claim and ack passes here; see steps.py
        while True:
            answers = yield from attempt(view)
            if effort.note(answers):
                return
            view = yield from self.next_view(view, answers)

    def check_room(self, view: View, full: tuple[ServerId, ...]) -> Operation[None]:
        """Ask members that were full for room before anything is written.  Raises ``NothingDone``."""
        answers = yield from Ask(view.epoch, {id: view.receivers[id] for id in full}, Room())
        refused = full_members(view, answers)
        if refused:
            raise NothingDone(f"refused, nothing was written: no room on {reasons(refused)}")

    def check_clocks(self, obstacles: Obstacles, servers: Iterable[ServerId]) -> None:
        """Raise ``NothingDone`` if one of these servers would refuse the push for its age, because its clock is
        wrong."""
        askew = {id: obstacles.askew[id] for id in servers if id in obstacles.askew}
        if askew:
            raise NothingDone(f"nothing was written: {describe_askew(askew)}")

    def find_askew(self, view: View) -> Operation[Answers]:
        """Return the servers that have to leave because servers contradict each other about the age of a push; see
        ``find_askew``."""
        found = yield from Identify(list(view.receivers))
        return (yield from find_askew(view, {}, found, contradicted=True))

    def ask_for_room(self) -> Operation[None]:
        """Ask every server of the view whether it would accept a push now.

        Raises ``TooFewMembers``, ``Denied``, ``NothingDone``.
        """

        def attempt(view: View) -> Operation[Answers]:
            self.check_writable(view)
            obstacles = yield from Begin(view)
            if obstacles.kept_out:
                return obstacles.kept_out
            self.check_clocks(obstacles, view.receivers)
            answers = yield from Ask(view.epoch, view.receivers, Room())
            if refused := full_members(view, answers):
                raise NothingDone(f"no room on {reasons(refused)}")
            return answers

        yield from self.tell("", attempt)

    # -- calls on every server of the view, and reading calls ----------------------------------------------------------

    def tell_all(self, call: Call[None]) -> Operation[None]:
        """Make a repeatable call on every server of the view.  Raises ``NothingDone``."""

        def attempt(view: View) -> Operation[Answers]:
            yield CheckTime()
            return (yield from Ask(view.epoch, view.receivers, call))

        yield from self.tell(call.queue, attempt)

    def tell(self, queue: str, attempt: Callable[[View], Operation[Answers]]) -> Operation[None]:
        """Make repeatable attempts until one completes.  Raises ``NothingDone``."""
        effort = Effort()
        try:
            yield from self.until_done(effort, attempt)
        except TimeUp as error:
            of = f" of queue {queue!r}" if queue else ""
            raise NothingDone(f"not every server{of} could be told in time: {effort.why(error)}") from error

    def broadcast(self, topic: str, message: bytes) -> Operation[int]:
        """Publish a message on every server of the view that answers, at least one; return the greatest number of
        listeners there, -1 if this client may publish on none.

        Raises ``NothingDone``, though a server may have published it.
        """
        counts = [-1]

        def attempt(view: View) -> Operation[Answers]:
            yield CheckTime()
            call = Broadcast(f"{view.deployment}:{topic}", message)
            answers: Answers = yield Ask(view.epoch, view.receivers, call)
            done = {id: answer for id, answer in answers.items() if answer.status is Status.OK}
            counts.extend(call.read(answer.body) for answer in done.values())
            return done or answers

        yield from self.tell("", attempt)
        return max(counts)

    def ask_primary(self, call: Call[R]) -> Operation[R]:
        """Make a call that only reads on the queue's primary.  Raises ``NothingDone``."""
        effort = Effort()
        answered: list[Answer] = []

        def attempt(view: View) -> Operation[Answers]:
            yield CheckTime()
            view = yield from Seen(view)
            primary = view.primary(call.queue)
            answers: Answers = yield Ask(view.epoch, {primary: view.members[primary]}, call)
            refuse(answers)
            answered[:] = answers.values()
            return answers

        try:
            yield from self.until_done(effort, attempt)
        except TimeUp as error:
            why = effort.why(error)
            raise NothingDone(f"no primary of queue {call.queue!r} could be asked in time: {why}") from error
        return call.read(answered[0].body)
