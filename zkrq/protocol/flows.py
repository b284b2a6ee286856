"""End flows: decide that all items of a set have ended, and open what is held for that.

A flow is a record of its queue, beside those of its members.  It says whether the flow is sealed, and a *stamp*: how
often members have come to life since.  Members name the flow in their own records, so nothing counts them; each server
has an index of those that live.  What comes after is pushed before, and *held*: an item that is queued for a moment
which never comes.

Any client may end a flow.  It has the primary look at it, which says the stamp; asks every server in sync whether a
member lives there; has the primary decide the end, under that stamp; then has it open what is held.  A client that dies
leaves nothing undone that another one does not find by looking.  Rules, each with what happens without it:

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
* **All servers say the same of what has ended otherwise** than by an ack.  A cancel has reached one server alone, and
  another one has an ack: the outcome would contradict what remains.
* **The end is decided once**, of a flow that runs, and is everywhere before anything is opened.
* **Opening moves the state of what is held**, so two clients that end a flow open one item.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from zkrq.protocol.calls import Affirm, FlowMembers, OpenHeld, Steer, SteerReply
from zkrq.protocol.deciding import Deciding
from zkrq.protocol.replies import Status
from zkrq.protocol.steps import Answers, Ask, CheckTime, Operation

if TYPE_CHECKING:
    from zkrq.protocol.view import View


class Stage(enum.StrEnum):
    """How far a flow is."""

    UNKNOWN = "U"
    OPEN = "O"
    SEALED = "S"
    ENDED = "E"


MOVES: Mapping[Stage, Mapping[str, Stage]] = {
    Stage.UNKNOWN: {"begin": Stage.OPEN},
    # live: a member came to life, which changes the stamp.
    Stage.OPEN: {"begin": Stage.OPEN, "seal": Stage.SEALED, "cancel": Stage.ENDED, "finish": Stage.ENDED},
    Stage.SEALED: {
        "begin": Stage.SEALED,
        "seal": Stage.SEALED,
        "live": Stage.SEALED,
        "end": Stage.ENDED,
        "cancel": Stage.ENDED,
        "finish": Stage.ENDED,
    },
    # forget: its outcome was kept for as long as was asked for.
    Stage.ENDED: {"forget": Stage.UNKNOWN},
}
"""What may happen to a flow, and its next stage.  ``end`` needs a stamp, and that nothing is left."""


class Kind(enum.StrEnum):
    """What a server has of a flow."""

    LIVING = "L"
    DEAD = "D"
    MISSED = "M"  # a member that was removed otherwise than by an ack
    HELD = "W"
    RUNS = "P"  # the flow itself


HOLDS_UP = frozenset({Kind.LIVING, Kind.DEAD, Kind.MISSED})
"""Kinds of which nothing may be left when a flow ends by itself."""

DONE, CANCELLED = b"done", b"cancelled"
"""Outcomes."""

ROUNDS = 3
"""How often servers that differ from the primary are asked again, after it has affirmed what it knows."""


class Look(NamedTuple):
    """What was found of a flow.  ``kinds``: letters of what is left of it, on any server that was asked."""

    stage: Stage
    outcome: bytes
    kinds: frozenset[str]


class Flowing(Deciding):
    """Begin, seal and end flows, and open what is held for them."""

    def steer(self, queue: str, flow: str, verb: str, *, stamp: int = 0, keep_ms: int = 0) -> Operation[SteerReply]:
        """Decide about a flow itself; every server knows what is returned.  Raises as ``decide`` does."""
        decided = yield from self.decide(Steer(queue, flow, verb, stamp, keep_ms))
        return decided.reply

    def end_flow(self, queue: str, flow: str) -> Operation[Look]:
        """End a flow if all its members have been acked; return what was found.

        Raises ``NothingDone``, ``Unknown``; then somebody has to try again.
        """
        kinds: frozenset[str] = frozenset()
        for _ in range(ROUNDS):
            seen = yield from self.look(queue, flow)
            stage, kinds = Stage(seen.now.decode()), _letters(seen.kinds)
            if stage is not Stage.SEALED or kinds & HOLDS_UP:
                return Look(stage, seen.outcome, kinds)
            left, differing = yield from self.ask_servers(queue, flow)
            kinds |= left
            if differing:
                yield from self.decide(Affirm(queue, differing))
            if kinds & HOLDS_UP:
                continue
            ended = yield from self.steer(queue, flow, "end", stamp=seen.stamp)
            if ended.now.decode() == Stage.ENDED:
                return Look(Stage.ENDED, ended.outcome, _letters(ended.kinds))
        return Look(Stage.SEALED, b"", kinds)

    def look(self, queue: str, flow: str) -> Operation[SteerReply]:
        """Have the primary look at a flow: every server knows that it is sealed, if it is."""
        return (yield from self.steer(queue, flow, "look"))

    def ask_servers(self, queue: str, flow: str) -> Operation[tuple[frozenset[str], list[bytes]]]:
        """Ask every server in sync what is left of a flow; return the kinds, and some bundles of which they say so.

        While other servers may know of members, these count as living.  Raises ``NothingDone``.
        """
        left: set[str] = set()
        bundles: dict[bytes, None] = {}

        def attempt(view: View) -> Operation[Answers]:
            yield CheckTime()
            left.clear()
            bundles.clear()
            if not self.is_settled(view):
                left.add(Kind.LIVING)
            call = FlowMembers(queue, flow)
            answers: Answers = yield Ask(view.epoch, view.members, call)
            for answer in answers.values():
                if answer.status is Status.OK:
                    reply = call.read(answer.body)
                    left.update(_letters(reply.kinds))
                    bundles.update(dict.fromkeys(reply.bundles))
            return answers

        yield from self.tell(queue, attempt)
        return frozenset(left), list(bundles)

    def is_settled(self, view: View) -> bool:
        """Tell whether the servers of a view are all that may know of a member: none is being caught up, and none may
        come back with what it has."""
        return view.writable and not view.learners and not view.eligible

    def open_held(self, queue: str, flow: str) -> Operation[int]:
        """Open what is held for a flow that has ended, or drop it; return how many items that were.

        Raises ``NothingDone``, ``Unknown``; then somebody has to try again.
        """
        count = 0
        while True:
            decided = yield from self.decide(OpenHeld(queue, flow))
            count += decided.reply.opened
            if not decided.reply.more:
                return count


def _letters(kinds: bytes) -> frozenset[str]:
    return frozenset(kinds.decode())
