"""Have flows be members of others: an item without content stands for the inner flow, in the outer one.

It is a member of the outer flow, under the inner one's name, and held for the inner flow, in whose home it is.  It ends
as that does: acked, a dead letter, or removed, in the very decision that opens what else is held for the inner flow; so
to the outer flow it is a member like others.  It is never handed out.

* **It is everywhere before the inner flow's first member is pushed**.  Otherwise the inner flow runs, or has ended,
  while the outer one knows nothing of it: the outer flow ends early, or the item is never ended.  Who makes both and
  dies between leaves an inner flow that nobody seals, and which fails.
* **It is put only while both flows run**, in one decision at the home of the inner one.  So a maker that comes late is
  refused; what some server has taken from it is ended by the next look, as the inner flow has ended.
* **A flow that is failing has its inner flows fail, and one that is cancelled cancels them, before it is closed**.  It
  stays due until then, so a client that dies half-way leaves nothing undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from zkrq.protocol.flow_names import At, Core, Tending, Waiting, home_of, read_waiting

if TYPE_CHECKING:
    from zkrq.protocol.calls import MembersReply, SteerReply
    from zkrq.protocol.steps import Operation

NESTED_MAX = 8
"""Flows that are within one another, the outermost included."""


class Nesting(Core, Protocol):
    """What is needed of the operations on flows; see ``flows.py``."""

    def read_members(self, queue: str, flow: str, /) -> Operation[MembersReply]: ...

    def steer_home(self, flow: str, verb: str, /) -> At: ...

    def tend_flow(self, queue: str, flow: str, /, *, stop: bool = False, above: Sequence[str] = ()) -> Tending[Any]: ...


class Around(NamedTuple):
    """``stage``, ``outcome``: of a flow, as ``SteerReply`` has them.  ``flows``: it and those around it, the innermost
    first; no more than ``NESTED_MAX`` of them."""

    stage: str
    outcome: bytes
    flows: Sequence[str]


def read_around(core: Nesting, flow: str) -> Tending[Around]:
    """Return how far a flow is, and which flows are around it.  Nothing is decided."""
    first: MembersReply = yield At(home_of(flow), core.read_members(home_of(flow), flow))
    flows, outer = [flow], first.outer.decode()
    while outer and outer not in flows and len(flows) < NESTED_MAX:
        flows.append(outer)
        reply: MembersReply = yield At(home_of(outer), core.read_members(home_of(outer), outer))
        outer = reply.outer.decode()
    return Around(first.stage.decode(), first.outcome, flows)


def read_nested(core: Core, queue: str, flow: str) -> Operation[Sequence[str]]:
    """Return the inner flows of a flow that are at home in a queue and have not ended, as its primary knows.

    Raises ``NothingDone``.
    """
    found: Waiting = yield from read_waiting(core, queue, flow, "I")
    return [inner for inner in {name: None for names in found.values() for name in names} if home_of(inner) == queue]


def read_all_nested(core: Nesting, flow: str) -> Tending[Sequence[str]]:
    """Return the inner flows of a flow that have not ended."""
    first: MembersReply = yield At(home_of(flow), core.read_members(home_of(flow), flow))
    found: list[str] = []
    for queue in (home_of(flow), *(leg.decode() for leg in first.legs)):
        found += yield At(queue, read_nested(core, queue, flow))
    return found


def end_nested(
    core: Nesting, flow: str, queue: str, verb: str, *, stop: bool = False, above: Sequence[str] = ()
) -> Tending[None]:
    """Have the inner flows of a flow fail, or be cancelled, that are at home in a queue, and go on with their ends.

    ``stop``: whether claimed members are removed, too, of those that are cancelled.  ``above``: flows because of which
    this one is ended.
    """
    around = (*above, flow)
    if len(around) >= NESTED_MAX:
        return
    inners: Sequence[str] = yield At(queue, read_nested(core, queue, flow))
    for inner in inners:
        if inner not in around:
            told: SteerReply = yield core.steer_home(inner, verb)
            if told.before != b"F" or told.now != b"F":  # one that is failing already is due by itself
                yield from core.tend_flow(queue, inner, stop=stop, above=around)
