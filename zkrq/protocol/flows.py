"""End flows: decide that all items of a set have ended, and open what is held for that.

A flow is a record of a queue, its *home*, beside those of its members.  It says whether the flow is sealed, and a
*stamp*: how often members have come to life since.  Members name the flow in their own records, so nothing counts them;
each server has an index of those that live.  What comes after is pushed before, and *held*: an item that is queued for
a moment which never comes.  A further queue with members, or with items that are held, is a *leg*: it has a record of
the flow of its own, with a stamp of its own, and home names it.

Any client may end a flow.  It has home's primary look at it, which says the stamp and the legs; has each leg sealed,
which says the leg's stamp; asks every server in sync of each of these queues whether a member lives there; looks at
the legs again; has home decide the end, under its stamp; then has each queue open what it holds.  A client that dies
leaves nothing undone that another one does not find by looking: a flow that has ended stays due until each leg has
opened.  Rules, each with what happens without it:

* A flow ends only if **no server in sync** knows of a living member.  The primary alone knows an ack whose client has
  died; what comes after is handed out; the primary dies, and the next one delivers the member again.
* Nor while **a server is caught up**: a page that was read before an ack is on its way to it.  Nor while **one may come
  back with what it has**, because fewer than ``min_replicas`` are left: it may have taken a push of a member.
* **The seal is everywhere before servers are asked**, and a server that knows of it, or of no flow, takes no plain push
  of a member.  Otherwise a push that comes late is taken by a server that has said that nothing lives there.
* A decision by which **a member comes to life** after the seal (a push, a redrive, a push that a scrub finishes)
  **raises the stamp**, in the same decision.  Otherwise a server says that nothing lives there; a member comes, is
  claimed and acked, and the client dies before that server has the ack.
* **The stamp is read before** servers are asked, for the same reason.
* **Home names a leg before a member is pushed there**.  Otherwise that queue is not asked.
* **A push into a leg raises home's stamp**, once its items are everywhere and before it returns.  Otherwise leg X is
  asked; a member in Y adds to X and is acked; Y is asked: nothing lives.
* **The legs are looked at again**, after all were asked: what a scrub or a redrive brought to life in a leg has raised
  the stamp there alone.
* **All servers say the same of what has ended otherwise** than by an ack.  A cancel has reached one server alone, and
  another one has an ack: the outcome would contradict what remains.
* **The end is decided once**, of a flow that runs, and is everywhere before anything is opened.
* **Opening moves the state of what is held**, so two clients that end a flow open one item.

Members may wait for others by name, see ``flow_names.py``; a flow of which some wait does not end, unless it fails.
Flows may be members of others, see ``flow_nested.py``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypedDict, TypeVar, Unpack

from zkrq.protocol.calls import (
    Affirm,
    FlowMembers,
    Left,
    MembersReply,
    OpenHeld,
    Records,
    Steer,
    SteerReply,
    bundle_and_position,
)
from zkrq.protocol.deciding import Decided, Deciding
from zkrq.protocol.flow_names import UNKNOWN, UNSETTLED, At, Tending, ask_named, home_of, release_named
from zkrq.protocol.flow_nested import end_nested
from zkrq.protocol.replies import Status
from zkrq.protocol.steps import Answers, Ask, CheckTime, Operation

if TYPE_CHECKING:
    from zkrq.protocol.view import View

T = TypeVar("T")


class Stage(enum.StrEnum):
    """How far a flow is."""

    UNKNOWN = "U"
    OPEN = "O"
    SEALED = "S"
    FAILING = "F"  # its queued members are removed, and the claimed ones awaited
    ENDED = "E"

    @property
    def takes_members(self) -> bool:
        """Whether members may be pushed."""
        return self in (Stage.OPEN, Stage.SEALED)


_RUNNING: Mapping[str, Stage] = {"fail": Stage.FAILING, "cancel": Stage.ENDED, "finish": Stage.ENDED}

MOVES: Mapping[Stage, Mapping[str, Stage]] = {
    Stage.UNKNOWN: {"begin": Stage.OPEN},
    # open: its maker keeps it open.  join: home names a leg.  live: a member came to life in a leg.  wait: members wait
    # for others of this queue, by name.
    Stage.OPEN: {
        "open": Stage.OPEN,
        "join": Stage.OPEN,
        "live": Stage.OPEN,
        "wait": Stage.OPEN,
        "seal": Stage.SEALED,
        **_RUNNING,
    },
    Stage.SEALED: {"join": Stage.SEALED, "wait": Stage.SEALED, "live": Stage.SEALED, "end": Stage.ENDED, **_RUNNING},
    Stage.FAILING: {"live": Stage.FAILING, "end": Stage.ENDED, "cancel": Stage.ENDED, "finish": Stage.ENDED},
    # close: all that was held is opened.  Then it is forgotten once its outcome was kept for as long as was asked for.
    # begin: of a leg that has ended in an earlier flow of that name.
    Stage.ENDED: {"close": Stage.ENDED, "begin": Stage.OPEN},
}
"""What may happen to a flow, and its next stage.  ``end`` needs a stamp, and that nothing is left.  A look makes one
fail whose deadline has passed, or whose maker has not kept it open."""


class Kind(enum.StrEnum):
    """What a server has of a flow."""

    LIVING = "L"
    DEAD = "D"
    MISSED = "M"  # a member that was removed otherwise than by an ack
    WAITING = "N"  # a member that waits for others
    HELD = "W"
    HELD_FOR_FAILURE = "V"
    RUNS = "P"  # the flow itself
    OVER = "E"  # the same, of one that is closed
    WITH_RESULT = "R"  # a member that was acked with a result
    NESTED = "I"  # a member that stands for an inner flow, and lives


_HOLDS = {Kind.WAITING, Kind.HELD, Kind.HELD_FOR_FAILURE}


class Policy(enum.StrEnum):
    """What a flow's record says of how it ends."""

    FAILS_FAST = "f"
    IGNORES_MISSED = "m"
    HAS_DEADLINE = "d"
    IS_LEG = "l"
    WAITS = "w"  # members wait for others of this queue; at home: of any


DONE, FAILED, CANCELLED = b"done", b"failed", b"cancelled"
"""Outcomes."""

ROUNDS = 3
"""How often servers that differ from the primary are asked again, after it has affirmed what it knows."""


class Terms(TypedDict, total=False):
    """What only some verbs need; as ``Steer`` has it."""

    stamp: int
    keep_ms: int
    policy: str
    deadline_ms: int
    leg: str
    life: int
    remaining: str
    outer: str


class Look(NamedTuple):
    """What was found of a flow.  ``kinds``: letters of what is left of it, on any server that was asked.  ``legs``:
    further queues that have members.  ``life``: when it has begun, 0: it is unknown.  ``released``: members
    that were let go by this look (``flow_names.py``).  ``outer``: the flow of which it is a member, empty: none."""

    stage: Stage
    outcome: bytes
    kinds: frozenset[str]
    legs: Sequence[str] = ()
    life: int = 0
    released: int = 0
    outer: str = ""


class Asked(NamedTuple):
    """What the servers of one queue say of a flow.  ``kinds``: letters of what any of them has; ``agreed``: of dead
    letters and missed members, if all have one alike.  ``differing``: bundles of which they do not say the same.
    ``done``, ``died``, ``missed``: figures for people."""

    kinds: frozenset[str]
    agreed: frozenset[str]
    differing: Sequence[bytes]
    done: int = 0
    died: int = 0
    missed: int = 0

    def has_failed(self, policy: bytes) -> bool:
        """Whether members will not be acked unless somebody redrives them."""
        counted = {Kind.DEAD} if Policy.IGNORES_MISSED.encode() in policy else {Kind.DEAD, Kind.MISSED}
        return bool(counted & self.agreed)


class Awaited(NamedTuple):
    """``queues``: where members are, by their ids; those that are nowhere are not among them."""

    look: Look
    queues: Mapping[str, str]


class Opened(NamedTuple):
    """``items``: how many were opened or removed.  ``has_nested``: whether inner flows have to be ended."""

    items: int
    has_nested: bool


class Figures(NamedTuple):
    """The figures of a flow that its status shows.

    ``items``: some of what is left, each with its queue.  ``outer``: the flow of which it is a member, empty: none.
    """

    stage: Stage
    outcome: bytes
    done: int
    living: int
    died: int
    missed: int
    items: Sequence[tuple[str, Left]]
    outer: str


class Flowing(Deciding):
    """Begin, seal and end flows, and open what is held for them."""

    # -- on one shard ------------------------------------------------------------------------------------------------

    def steer(self, queue: str, flow: str, verb: str, **terms: Unpack[Terms]) -> Operation[SteerReply]:
        """Decide about a flow itself, or a leg; every server knows what is returned.  ``terms``: as of ``Steer``.

        Raises as ``decide`` does.
        """
        decided = yield from self.decide(Steer(queue, flow, verb, **terms))
        return decided.reply

    def steer_home(self, flow: str, verb: str, **terms: Unpack[Terms]) -> At:
        """Have its home decide about a flow; see ``steer``."""
        return At(home_of(flow), self.steer(home_of(flow), flow, verb, **terms), flow)

    def ask_servers(self, queue: str, flow: str) -> Operation[Asked]:
        """Ask every server in sync of a queue what is left of a flow there.

        While other servers may know of members, these count as living.  Raises ``NothingDone``.
        """
        replies: list[MembersReply] = []
        kinds: set[str] = set()

        def attempt(view: View) -> Operation[Answers]:
            yield CheckTime()
            replies.clear()
            kinds.clear()
            if not self.is_settled(view):
                kinds.add(Kind.LIVING)
            call = FlowMembers(queue, flow)
            answers: Answers = yield Ask(view.epoch, view.members, call)
            replies.extend(call.read(each.body) for each in answers.values() if each.status is Status.OK)
            return answers

        yield from self.tell(queue, attempt)
        return _asked(replies, kinds)

    def affirm(self, queue: str, bundles: Sequence[bytes]) -> Operation[Decided[Records]]:
        """Have all servers know what the primary of a queue knows of bundles.  Raises as ``decide`` does."""
        return self.decide(Affirm(queue, bundles))

    def open_held(
        self, queue: str, flow: str, *, outcome: str = "", life: int = 0, stop: bool = False
    ) -> Operation[Opened]:
        """Open what is held for a flow that has ended, or remove it; remove queued members of one that is failing, or
        was cancelled.

        ``outcome``: of the flow, if the queue is a leg of it, and its ``life``.  ``stop``: whether claimed
        members are removed, too, of a flow that was cancelled.

        Raises ``NothingDone``, ``Unknown``; then somebody has to try again.
        """
        count = 0
        while True:
            decided = yield from self.decide(OpenHeld(queue, flow, outcome, life, stop))
            count += decided.reply.opened
            if not decided.reply.more:
                return Opened(count, decided.reply.nested)

    def read_members(self, queue: str, flow: str) -> Operation[MembersReply]:
        """Return what the primary of a queue knows of a flow.  Raises ``NothingDone``."""
        replies: list[MembersReply] = []

        def attempt(view: View) -> Operation[Answers]:
            yield CheckTime()
            replies.clear()
            primary, call = view.primary(queue), FlowMembers(queue, flow)
            answers: Answers = yield Ask(view.epoch, {primary: view.members[primary]}, call)
            replies.extend(call.read(each.body) for each in answers.values() if each.status is Status.OK)
            return answers

        yield from self.tell(queue, attempt)
        return replies[0]

    def is_settled(self, view: View) -> bool:
        """Tell whether the servers of a view are all that may know of a member: none is being caught up, and none may
        come back with what it has."""
        return view.writable and not view.learners and not view.eligible

    # -- over all queues of a flow -----------------------------------------------------------------------------------

    def join_leg(self, queue: str, flow: str) -> Tending[Look]:
        """Make a queue a leg of a flow, before a first member is pushed there; it keeps results for as long as home.

        Return what home says: nothing may be pushed unless its stage takes members, and the queue is among its legs.
        """
        leg = Policy.IS_LEG.value
        seen: SteerReply = yield self.steer_home(flow, "look")
        look = look_of(seen)
        if not look.stage.takes_members:
            return look
        life = 0
        for _ in range(ROUNDS):
            begin = self.steer(queue, flow, "begin", keep_ms=seen.keep_ms, policy=leg, life=look.life)
            begun: SteerReply = yield At(queue, begin)
            life = begun.life
            if life == look.life:
                break
            yield At(queue, self.open_held(queue, flow, outcome=CANCELLED.decode(), life=life))
        told = look_of((yield self.steer_home(flow, "join", leg=queue, life=look.life)))
        if told.stage.takes_members and told.life == look.life == life:
            return told
        outcome = (told.outcome or CANCELLED) if told.life == look.life else CANCELLED
        if told.stage is Stage.ENDED or told.life != look.life:
            yield At(queue, self.open_held(queue, flow, outcome=outcome.decode(), life=look.life))
        return told._replace(legs=())

    def tend_flow(self, queue: str, flow: str, *, stop: bool = False, above: Sequence[str] = ()) -> Tending[Look]:
        """End a flow if that is due, and open what is held for it in all of its queues; return what was found.

        ``queue``: where the flow was found; home need not name it as a leg, if the client that began it has died.
        ``stop``: whether claimed members are removed, too, of a flow that was cancelled.  ``above``: flows because of
        which this one is ended, the outermost first.
        """
        home = home_of(flow)
        found: SteerReply | None = None
        if queue != home:
            found = yield At(queue, self.steer(queue, flow, "look"))  # before home, which begins before its legs
        look = yield from self.end_flow(flow, stop=stop, above=above)
        if found and found.now.decode() != Stage.UNKNOWN and queue not in look.legs:
            is_its_own = found.life == look.life
            if not is_its_own or look.stage is Stage.ENDED:
                outcome = look.outcome if is_its_own else CANCELLED
                yield At(queue, self.open_held(queue, flow, outcome=outcome.decode(), life=found.life, stop=stop))
        elif look.stage is Stage.UNKNOWN and look.kinds & {Kind.HELD, Kind.HELD_FOR_FAILURE}:
            yield At(home, self.open_held(home, flow, outcome=CANCELLED.decode(), life=look.life, stop=stop))
        return look

    def end_flow(self, flow: str, *, stop: bool = False, above: Sequence[str] = ()) -> Tending[Look]:
        """End a flow if all its members have ended; return what was found.  The others: as of ``tend_flow``."""
        kinds = frozenset[str]()
        look = Look(Stage.UNKNOWN, b"", kinds)
        for _ in range(ROUNDS):
            seen: SteerReply = yield self.steer_home(flow, "look")
            look = look_of(seen)
            if look.stage is Stage.ENDED:
                yield from self.open_all(flow, seen, stop=stop, above=above)
                return look
            fails_fast = Policy.FAILS_FAST.encode() in seen.policy
            waits = Policy.WAITS.encode() in seen.policy
            if look.stage is Stage.UNKNOWN or (look.stage is Stage.OPEN and not (fails_fast or waits)):
                return look
            found, has_moved = yield from self.ask_legs(flow, look, above=above)
            # Home was asked before what stands for inner flows was ended here, and servers after it.
            kinds = frozenset[str]().union(look.kinds - {Kind.LIVING, Kind.WAITING}, *(each.kinds for each in found))
            look = look._replace(kinds=kinds)
            has_failed = any(each.has_failed(seen.policy) for each in found)
            if look.stage is not Stage.FAILING and fails_fast and has_failed:
                yield self.steer_home(flow, "fail")
                continue
            is_over = not (has_moved or any(each.differing for each in found) or Kind.LIVING in kinds)
            if Kind.WAITING in kinds and look.stage.takes_members:
                ignores_missed = Policy.IGNORES_MISSED.encode() in seen.policy
                if released := (yield from release_named(self, flow, look.legs, ignores_missed=ignores_missed)):
                    return look._replace(released=released)
                if has_failed and is_over and look.stage is Stage.SEALED and Kind.HELD_FOR_FAILURE in kinds:
                    yield self.steer_home(flow, "fail")
                    continue
            is_stuck = look.stage is Stage.SEALED and has_failed and Kind.HELD_FOR_FAILURE not in kinds
            if has_moved or any(each.differing for each in found):
                continue
            if kinds & {Kind.LIVING, Kind.WAITING} or look.stage is Stage.OPEN or is_stuck:
                return look
            remaining = f"{''.join(sorted(kinds))},{_sums(found)}"
            ended: SteerReply = yield self.steer_home(flow, "end", stamp=seen.stamp, remaining=remaining)
            if ended.now.decode() == Stage.ENDED:
                yield from self.open_all(flow, ended, stop=stop, above=above)
                return look._replace(stage=Stage.ENDED, outcome=ended.outcome)
        return look

    def ask_legs(self, flow: str, look: Look, *, above: Sequence[str] = ()) -> Tending[tuple[Sequence[Asked], bool]]:
        """Ask all queues of a flow what is left of it there; return that, and whether members have come to life in a
        leg meanwhile.  ``above``: as of ``tend_flow``."""
        home = home_of(flow)
        verb = {Stage.SEALED: "seal", Stage.FAILING: "fail"}.get(look.stage, "look")
        stamps: dict[str, int] = {}
        for leg in look.legs:
            told: SteerReply = yield At(leg, self.steer(leg, flow, verb))
            stamps[leg] = told.stamp
        if look.stage is Stage.FAILING:
            for queue in (home, *look.legs):
                opened: Opened = yield At(queue, self.open_held(queue, flow))
                if opened.has_nested:
                    yield from end_nested(self, flow, queue, "fail", above=above)
        found: list[Asked] = []
        for queue in (home, *look.legs):
            asked: Asked = yield At(queue, self.ask_servers(queue, flow))
            found.append(asked)
            if asked.differing:
                yield At(queue, self.affirm(queue, asked.differing))
        has_moved = False
        for leg in look.legs if not any(Kind.LIVING in each.kinds for each in found) else ():
            told = yield At(leg, self.steer(leg, flow, "look"))
            has_moved = has_moved or told.stamp != stamps[leg]
        return found, has_moved

    def open_all(self, flow: str, ended: SteerReply, *, stop: bool = False, above: Sequence[str] = ()) -> Tending[None]:
        """Open what all queues of a flow hold that has ended.  ``stop``, ``above``: as of ``tend_flow``."""
        # Its primary may have opened the last items in a call that had no answer, and told others of the close alone.
        if ended.is_closed and not _HOLDS & set(ended.kinds.decode()):
            return
        legs = [leg.decode() for leg in ended.legs]
        has_nested = False
        for queue in (*legs, home_of(flow)):
            outcome, life = (ended.outcome.decode(), ended.life) if queue in legs else ("", 0)
            open_held = partial(self.open_held, queue, flow, outcome=outcome, life=life, stop=stop)
            opened: Opened = yield At(queue, open_held())
            if opened.has_nested:
                yield from end_nested(self, flow, queue, "cancel", stop=stop, above=above)
                opened = yield At(queue, open_held())
                has_nested = has_nested or opened.has_nested
        if legs and not has_nested:
            yield self.steer_home(flow, "close")

    def await_named(self, flow: str, ids: Sequence[str]) -> Tending[Awaited]:
        """Have the queues of members, which are known by their ids, say when one of them has ended, because others are
        about to wait for them; return where they are.  Nothing is done unless all of them are there, and the flow
        takes members."""
        home = home_of(flow)
        seen: SteerReply = yield self.steer_home(flow, "look")
        look, found = look_of(seen), dict[str, str]()
        if not look.stage.takes_members:
            return Awaited(look, found)
        for queue in (home, *look.legs):
            if missing := [id for id in ids if id not in found]:
                states: Mapping[str, frozenset[bytes]] = yield At(queue, ask_named(self, queue, missing))
                found.update({id: queue for id, each in states.items() if each - {UNSETTLED, UNKNOWN}})
        if len(found) == len(ids):
            for queue in {home, *found.values()}:
                yield At(queue, self.steer(queue, flow, "wait"))
        return Awaited(look, found)

    def read_flow(self, flow: str) -> Tending[Figures]:
        """Return the figures of a flow that people see."""
        home = home_of(flow)
        first: MembersReply = yield At(home, self.read_members(home, flow))
        found = {home: first}
        for leg in [leg.decode() for leg in first.legs]:
            found[leg] = yield At(leg, self.read_members(leg, flow))
        stage = Stage(first.stage.decode())
        counted: Iterable[MembersReply] = [first] if stage is Stage.ENDED else found.values()
        done, living, died, missed = (sum(each) for each in zip(*(reply[3:7] for reply in counted), strict=True))
        items = [(queue, item) for queue, reply in found.items() for item in reply.items]
        return Figures(stage, first.outcome, done, living, died, missed, items, first.outer.decode())


def look_of(reply: SteerReply) -> Look:
    """Return what a decision says of a flow."""
    stage, legs = Stage(reply.now.decode()), [leg.decode() for leg in reply.legs]
    life = 0 if stage is Stage.UNKNOWN else reply.life
    return Look(stage, reply.outcome, frozenset(reply.kinds.decode()), legs, life, outer=reply.outer.decode())


def _asked(replies: Sequence[MembersReply], kinds: Iterable[str]) -> Asked:
    """Compare what servers say."""
    named = [set(reply.items) for reply in replies]
    all_say = set[Left].intersection(*named)
    contested = set[Left].union(*named) - all_say
    differing = {bundle_and_position(item.id.decode())[0].encode(): None for item in sorted(contested)}
    return Asked(
        frozenset(kinds).union(*(reply.kinds.decode() for reply in replies)),
        frozenset(item.kind.decode() for item in all_say),
        list(differing),
        *(max(figures) for figures in zip(*((each.done, each.died, each.missed) for each in replies), strict=True)),
    )


def _sums(found: Sequence[Asked]) -> str:
    return ",".join(str(sum(figures)) for figures in zip(*(each[3:] for each in found), strict=True))
