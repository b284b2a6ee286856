"""Push items: put them on every server in parallel, or let the primary decide if only it can.

A plain push has version (0, 1), which every decision beats, so servers may apply it in any order and any number of
times.  It needs no primary and one round trip.  A server that knows the id to be gone leaves it so and reports its
tombstone's version; only the primary can say whether that tombstone still counts, so it decides such a push.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from zkrq.protocol.calls import DecidedReply, PushDecided, PushPlain, Put
from zkrq.protocol.deciding import Decided, Deciding
from zkrq.protocol.replies import Answer, Status, Verdict, Why
from zkrq.protocol.steps import (
    FULL_RETRY_SECONDS,
    Answers,
    Ask,
    Begin,
    DecisionNeeded,
    Effort,
    Evict,
    Failure,
    Hurry,
    Look,
    NothingDone,
    Obstacles,
    Operation,
    Rest,
    describe_askew,
    full_members,
)
from zkrq.protocol.view import Life, ServerId, View


class Duplicate(NamedTuple):
    """Nothing was pushed, because the item ``first`` has the key, or began its window; ``replicas`` servers know it.

    ``is_gone``: it has ended, and the window has not.
    """

    first: str
    replicas: int
    is_gone: bool = False


class Replaced(NamedTuple):
    """The item was pushed in the place of queued items with its key, these ``ids``; ``replicas`` servers have it."""

    ids: tuple[str, ...]
    replicas: int


class Known(NamedTuple):
    """Nothing new was pushed, because an item with this id is in the queue; ``replicas`` servers have it.

    ``in_doubt``: an earlier try of this very push may have written it.  ``replaced``: items in whose place it was put.
    """

    replicas: int
    in_doubt: bool = False
    replaced: tuple[str, ...] = ()


class Done(NamedTuple):
    """Nothing was pushed, because an item with this id was pushed before and is gone; ``replicas`` servers know it.

    ``in_doubt``: an earlier try of this very push may have written it.  ``replaced``: items in whose place it was put.
    """

    replicas: int
    in_doubt: bool = False
    replaced: tuple[str, ...] = ()


class Late(NamedTuple):
    """Nothing was pushed, because the push was too old for the servers, or too far in the future."""


class Full(NamedTuple):
    """Nothing was pushed, because the queue has reached its limit."""


class OutOfOrder(NamedTuple):
    """Nothing was pushed, because the queue keeps an order, which a delay or a priority would contradict."""


class FlowOver(NamedTuple):
    """Nothing was pushed, because the flow of the item has ended, or never began."""


class InDoubt(NamedTuple):
    """The item may have been pushed; ``reason``: why there is no answer, empty: servers contradict each other."""

    reason: str = ""
    cause: Failure | None = None


class NotPushed(NamedTuple):
    """Nothing was pushed for this reason."""

    cause: Failure


ASKEW = Answer(Status.ASKEW, (), "it refused a push for its age that others accept")
"""Counted as the answer of a server that contradicts others, while no clock is known to be wrong."""

Exceptional = Duplicate | Replaced | Known | Done | Late | Full | OutOfOrder | FlowOver | InDoubt | NotPushed


Place = tuple[int, int]
"""An item of some pushes: the push, and the item's position in its bundle."""


class Pushes(NamedTuple):
    """Results of pushes: each item is on ``replicas`` servers except the exceptional ones.

    ``why``: why the primary decides about every push into the queue, None: it was not asked.
    """

    replicas: int
    exceptional: Mapping[Place, Exceptional]
    why: Why | None = None


class _Round:
    """Results so far of one ``put``'s attempts.

    Whether an id is new is what the primary says.  It takes pushes in one order, so of several pushes of one id at most
    one is told that it is new; and it has every item whose push returned.  A follower may know an item of this very
    push, from a claim that overtook it.  The primary's word counts only if it led during all attempts: of another one,
    an item that the former primary called new may be missing still, or be this push's own.
    """

    def __init__(self) -> None:
        self.covered: set[tuple[ServerId, Life]] = set()
        self.refusals: dict[tuple[ServerId, Life], Set[int]] = {}
        """Puts that each server found too old, or too far in the future."""
        self.doubt = ""
        """Which clocks keep servers from agreeing about that, empty if none is known."""
        self.asked_again = False
        self.tombstones: dict[Place, dict[ServerId, int]] = {}
        self.known: dict[ServerId, set[int]] = {}
        self.in_doubt: set[ServerId] = set()
        self.copies = 0
        self.primary = ServerId("")
        self._led_by: tuple[ServerId, Life] | None = None
        self.is_led_by_one = True

    def begin(self, view: View, queue: str) -> None:
        self.copies, self.primary = len(view.members), view.primary(queue)
        leading = self.primary, view.members[self.primary]
        self.is_led_by_one = self.is_led_by_one and self._led_by in (None, leading)
        self._led_by = leading

    def refused_by(self) -> Mapping[int, int]:
        """Return how many servers refused each put that some did."""
        return Counter(at for late in self.refusals.values() for at in late)

    def contradicting(self, view: View) -> Set[ServerId]:
        """Return the servers of the view that refused a put which another server took: the clock of one is wrong."""
        contested = {at for at, count in self.refused_by().items() if count < len(self.covered)}
        return {id for (id, life), late in self.refusals.items() if late & contested and view.receivers.get(id) == life}

    def ask_again(self, servers: Set[ServerId]) -> None:
        """Forget the refusals of these servers, which wrote nothing of what they refused, so that they are asked again
        if they stay in the view."""
        for server in [each for each in self.refusals if each[0] in servers]:
            del self.refusals[server]
            self.covered.discard(server)

    @property
    def is_usual(self) -> bool:
        """Whether every item is new, and on every server."""
        return self.is_led_by_one and not (self.refusals or self.tombstones or self.known)

    def known_before(self, puts: Sequence[Put]) -> Mapping[Place, Known]:
        """Return the items that were there before this push, or may have been."""
        if self.is_led_by_one:
            known, found = Known(self.copies, self.primary in self.in_doubt), self.known.get(self.primary, ())
        else:
            known, found = Known(self.copies, in_doubt=True), [at for at, put in enumerate(puts) if put.has_name]
        return {(at, position): known for at in found for position in range(puts[at].size)}

    def note(self, view: View, call: PushPlain, answers: Answers) -> None:
        for id, answer in answers.items():
            if answer.status is Status.OK:
                self.covered.add((id, view.receivers[id]))
                late, known = call.read(answer.body)
                if late:
                    self.refusals[id, view.receivers[id]] = frozenset(late)
                for at, (n, gone) in known.items():
                    if not gone or (len(gone) < call.items[at].size and call.items[at].has_name):
                        self.known.setdefault(id, set()).add(at)
                    for position in gone:
                        self.tombstones.setdefault((at, position), {})[id] = n
            if answer.repeated or (answer.status is not Status.OK and answer.may_have_happened):
                self.in_doubt.add(id)


class Pushing(Deciding):
    """Implement the two ways to push."""

    def push_plain(
        self, queue: str, puts: Sequence[Put], *, map_number: int = 0, patient: bool = True
    ) -> Operation[Pushes]:
        """Apply new items on every server of the view.

        ``map_number``: number of the shard map by which they were placed here.  ``patient``: otherwise this ends with
        ``NothingDone`` instead of waiting, because the items can go to another shard.
        Raises ``TooFewMembers``, ``NothingDone``, ``Misplaced``, ``DecisionNeeded``.
        """
        effort, so_far, call = Effort(), _Round(), PushPlain(queue, puts)
        tried: list[int] = []

        def attempt(view: View) -> Operation[Answers]:
            nonlocal map_number
            self.check_writable(view)
            if not self.is_placed(view, map_number):
                map_number = yield from self.place_again(view, map_number, effort)
            if not patient and not effort.touched and view.epoch in tried:
                raise NothingDone(f"nothing was written: {effort.trouble}")
            tried.append(view.epoch)
            obstacles: Obstacles = yield Begin(view)
            if obstacles.kept_out:
                return obstacles.kept_out
            if obstacles.askew and not effort.touched:
                self.check_clocks(obstacles, view.receivers)
            if obstacles.full and not effort.touched:
                yield from self.check_room(view, obstacles.full)
            so_far.begin(view, queue)
            answers: Answers = yield Ask(view.epoch, self.missing(view, so_far.covered), call)
            effort.note(answers)
            if full_members(view, answers):
                yield Hurry(FULL_RETRY_SECONDS)
            so_far.note(view, call, answers)
            if any(answer.status is Status.DECIDE for answer in answers.values()):
                raise DecisionNeeded(queue, Why.of(answers.values()))
            if not effort.touched and any(answer.verdict is Verdict.REFUSE for answer in answers.values()):
                raise NothingDone(f"refused, nothing was written: {effort.trouble}")
            if so_far.refusals and effort.note(answers) and (contradicting := so_far.contradicting(view)):
                return {**answers, **(yield from self._judge_clocks(view, so_far, contradicting))}
            return answers

        try:
            yield from self.until_done(effort, attempt)
        except DecisionNeeded:
            if not effort.touched:
                raise
            return (yield from self._go_on_decided(queue, puts, effort, map_number))
        except Failure as failure:
            if effort.touched:
                return Pushes(0, dict.fromkeys(_places(puts), InDoubt(effort.why(failure), failure)))
            effort.end(failure, "nothing was written")
        if so_far.is_usual:
            return Pushes(so_far.copies, {})
        known, refused_by = so_far.known_before(puts), so_far.refused_by()
        exceptional: dict[Place, Exceptional] = {
            place: outcome for place, outcome in known.items() if place not in so_far.tombstones
        }
        exceptional |= {
            (at, position): Late() if count == len(so_far.covered) else InDoubt(so_far.doubt)
            for at, count in refused_by.items()
            for position in range(puts[at].size)
        }
        if so_far.tombstones:
            exceptional |= yield from self._push_again(queue, puts, so_far, known, map_number)
        return Pushes(so_far.copies, exceptional)

    def _go_on_decided(self, queue: str, puts: Sequence[Put], effort: Effort, map_number: int) -> Operation[Pushes]:
        """Let the primary decide about items whose plain push some servers may have taken, before one refused it
        because of the settings of the queue.

        So the push was in flight while these were declared, or its outcome on a server is not known.  What the primary
        has taken stays as it is, without a place in an order; what it has not is decided under the same id, above what
        others hold.
        """
        places = list(_places(puts))
        singles = [puts[at].single(position) for at, position in places]
        try:
            pushed = yield from self.push_decided(
                PushDecided(queue, singles, in_order=True), map_number=map_number, effort=effort
            )
        except Failure as failure:
            return Pushes(0, dict.fromkeys(places, InDoubt(effort.why(failure), failure)))
        told = {places[number]: outcome for (number, _), outcome in pushed.exceptional.items()}
        return Pushes(pushed.replicas, told, pushed.why)

    def _judge_clocks(self, view: View, so_far: _Round, contradicting: Set[ServerId]) -> Operation[Answers]:
        """Return answers by which servers that contradict each other count as failed: those to evict for their clocks,
        or, once, those to ask again, because a clock may have been set right meanwhile; none to end in doubt."""
        askew = yield from self.find_askew(view)
        so_far.doubt = describe_askew((yield from Begin(view)).askew)
        if not askew and (so_far.doubt or so_far.asked_again):
            return {}
        so_far.asked_again = not askew
        so_far.ask_again(contradicting)
        return askew or dict.fromkeys(contradicting, ASKEW)

    def missing(self, view: View, covered: Set[tuple[ServerId, Life]]) -> Mapping[ServerId, Life]:
        """Return the servers of the view whose answer a plain push still lacks; ``covered`` have answered OK."""
        receivers = self.receivers(view)
        return {id: life for id, life in receivers.items() if (id, life) not in covered} if covered else receivers

    def _push_again(
        self, queue: str, puts: Sequence[Put], so_far: _Round, known_before: Mapping[Place, Known], map_number: int
    ) -> Operation[dict[Place, Exceptional]]:
        """Let the primary decide whether ids that some server knows to be gone may begin a new life."""
        tombstones, taken, refused_by = so_far.tombstones, len(so_far.covered), so_far.refused_by()
        again = {
            (at, position): puts[at].single(position).above(max(known.values()))
            for (at, position), known in tombstones.items()
        }
        results: dict[Place, Exceptional] = {}
        try:
            call = PushDecided(queue, list(again.values()), in_order=True)
            pushed = yield from self.push_decided(call, map_number=map_number, may_leave=False)
        except Failure as failure:
            pushed = Pushes(0, {(at, 0): NotPushed(failure) for at in range(len(again))})
        for number, place in enumerate(again):
            is_on_primary = so_far.primary not in tombstones[place]
            told = _of_known_to_be_gone(
                pushed.exceptional.get((number, 0)),
                was_put=refused_by.get(place[0], 0) + len(tombstones[place]) < taken,
                # Of a server that leads only since a later attempt the tombstone may be that of this push's own item:
                # the former primary stored it, a consumer claimed and acked it there, and only then this server was
                # asked.
                was_gone=so_far.is_led_by_one and not is_on_primary and so_far.primary not in so_far.in_doubt,
                own=known_before.get(place) if is_on_primary else Known(so_far.copies, in_doubt=True),
            )
            if told is not None:
                results[place] = told
        return results

    def push_decided(
        self, call: PushDecided, *, map_number: int = 0, may_leave: bool = True, effort: Effort | None = None
    ) -> Operation[Pushes]:
        """Let the primary decide about new items.

        ``map_number``: see ``push_plain``; ``may_leave``: see ``place_again``; ``effort``: of the plain push that this
        continues, None: of none.
        Raises ``TooFewMembers``, ``NothingDone``, ``Misplaced``, ``Unknown``; ``DecisionNeeded`` unless ``in_order``.
        """
        decided = yield from self.decide(call, map_number=map_number, may_leave=may_leave, effort=effort)
        outcomes, why = decided.reply.outcomes, Why.read(decided.reply.why)
        usual = outcomes.count(b"+")
        if usual == len(outcomes):
            return Pushes(decided.copies, {}, why)
        found = {(at, 0): _judge(outcome, decided) for at, outcome in enumerate(outcomes) if outcome != b"+"}
        late = [at for at, outcome in enumerate(outcomes) if outcome[:1] == b"L"]
        if not late:
            return Pushes(decided.copies, found, why)
        again = Pushes(decided.copies, {(number, 0): Late() for number in range(len(late))})
        try:
            if (yield from self._evict_askew(call.queue, decided.epoch)):
                rest = replace(call, items=[call.items[at] for at in late])
                again = yield from self.push_decided(rest, map_number=map_number, may_leave=may_leave, effort=effort)
        except Failure as failure:
            if len(late) == len(call.items):
                raise
            again = Pushes(decided.copies, {(number, 0): NotPushed(failure) for number in range(len(late))})
        for number, at in enumerate(late):
            del found[at, 0]
            if (number, 0) in again.exceptional:
                found[at, 0] = again.exceptional[number, 0]
        return Pushes(min(decided.copies, again.replicas), found, why)

    def _evict_askew(self, queue: str, epoch: int) -> Operation[bool]:
        """Evict the primary that refused a push for its age under ``epoch``, if its clock is wrong; return whether to
        decide again.  Raises ``NothingDone`` if the primary has to stay."""
        view = yield from Look()
        if view.epoch > epoch:
            return True
        askew = yield from self.find_askew(view)
        if askew:
            if (yield from Evict(view, askew, set())).epoch == epoch:
                yield Rest()
            return True
        self.check_clocks((yield from Begin(view)), (view.primary(queue),))
        return False


def _of_known_to_be_gone(
    decided: Exceptional | None, *, was_put: bool, was_gone: bool, own: Known | None
) -> Exceptional | None:
    """Return what became of an item whose id some server knew to be gone, after the primary has decided it again; None:
    it is new.

    ``was_put``: another server stored it as a new item in this very push.  ``was_gone``: the primary knew the id to be
    gone before this push.  ``own``: what to say of an item that this push may have stored itself.

    * **Refused**, because the primary could not be asked, or the push is too late: nothing was pushed, unless a server
      has stored the item.  Then its outcome is in doubt.
    * **Known**: if the primary did not know the id to be gone, it may have the item from this push.
    * **Done**: likewise, if a server has stored the item: a consumer has finished it meanwhile.  If none has, somebody
      else pushed it before.
    * **Anything else**, such as a new life of the id: as decided.
    """
    match decided:
        case NotPushed(cause) if was_put:
            return InDoubt(str(cause), cause)
        case Late() | Full() | FlowOver() if was_put:
            return InDoubt()
        case Known() if not was_gone:
            return own
        case Done() if not was_gone and was_put:
            return own
        case Done():
            return decided._replace(in_doubt=not was_gone)
        case _:
            return decided


def _places(puts: Sequence[Put]) -> Iterator[Place]:
    return ((at, position) for at, put in enumerate(puts) for position in range(put.size))


def _judge(outcome: bytes, decided: Decided[DecidedReply]) -> Exceptional:
    """Read what became of a push from the outcome of ``push_decided.lua``.

    An earlier try of the call may still execute a refused push, once the key is free or there is room.
    """
    replaced = tuple(outcome[1:].decode().split("\1")) if len(outcome) > 1 else ()
    match outcome[:1]:
        case b"+":
            return Replaced(replaced, decided.copies)
        case b"K":
            return Known(decided.copies, decided.again, replaced)
        case b"D":
            return Done(decided.copies, decided.again, replaced)
        case b"=" | b"W" | b"F" | b"E" if decided.repeated:
            return InDoubt()
        case b"=" | b"W":
            return Duplicate(outcome[1:].decode(), decided.copies, is_gone=outcome[:1] == b"W")
        case b"F":
            return Full()
        case b"O":
            return OutOfOrder()
        case b"E":
            return FlowOver()
        case _:
            return Late()
