"""What the scripts do that steer flows, and open what is held for them."""

from __future__ import annotations

from tests.model.bundle import DEAD, GONE, Draft, unpack
from tests.model.content import PAUSED, Item, Work, flow_id, ok, stage_of
from tests.model.moving import Moving
from tests.model.rules import Rule
from zkrq.protocol import calls
from zkrq.protocol.flows import CANCELLED, DONE, HOLDS_UP, MOVES, Kind, Stage
from zkrq.protocol.records import Bundle, Own, State, Version
from zkrq.protocol.replies import Answer

BEGINS_AT = 1_750_000_000
"""The first version of what is about the queue itself counts from the clock; here, from this."""

OUTCOME = "="
"""Before the outcome of a flow, in the row of its record."""


class Ending(Moving):
    """The scripts about flows."""

    def flow(self, epoch: int, call: calls.Steer) -> Answer:
        work = Work(self, epoch)
        id, kinds = flow_id(call.flow), self._kinds(call.flow)
        draft = work.open(id)
        before = _stage(draft)
        now = MOVES[before].get(call.verb, before)
        if call.verb == "end" and not self._may_end(draft, call, kinds):
            now = before
        again = call.verb == "end" and before is Stage.ENDED and Rule.END_IS_DECIDED_ONCE not in self.on
        if now is not before or again:
            draft = draft or work.begin(id, Bundle(Version(0, BEGINS_AT), GONE))
            work.touch(draft)
            self.held.known = True
            _move(draft, call, now)
        elif draft:
            work.tell(draft)
        stamp, outcome = (_stamp(draft), _outcome(draft)) if draft else (0, b"")
        return ok(before.encode(), now.encode(), stamp, outcome, kinds.encode(), work.commit())

    def _may_end(self, draft: Draft | None, call: calls.Steer, kinds: str) -> bool:
        """Tell whether a flow has no members left here, and none has come to life since its stamp was read."""
        holding_up = set(kinds) & HOLDS_UP if Rule.MISSED_IS_NOT_DONE in self.on else set(kinds) & {Kind.LIVING}
        return draft is not None and _stamp(draft) == call.stamp and not holding_up

    def _kinds(self, flow: str) -> str:
        return "".join(sorted({kind for id in self.held.records for kind in self._kinds_of(id, flow)}))

    def _kinds_of(self, id: Item, flow: str) -> set[Kind]:
        """What a server has of a flow in one bundle."""
        draft = Draft(id, unpack(self.held.records[id]))
        if draft.held_for == flow and draft.states and draft.waits_for_ever(0):
            return {Kind.HELD}
        if draft.flow != flow:
            return set()
        kinds = {Kind.LIVING} if draft.is_living else set[Kind]()
        if DEAD in draft.states:
            kinds.add(Kind.DEAD)
        if any(map(draft.is_missed, range(draft.size))):
            kinds.add(Kind.MISSED)
        return kinds

    def flow_members(self, epoch: int, call: calls.FlowMembers) -> Answer:
        held_up = [id for id in sorted(self.held.records) if self._kinds_of(id, call.flow) & HOLDS_UP]
        return ok(self._kinds(call.flow).encode(), held_up)

    def flow_open(self, epoch: int, call: calls.OpenHeld) -> Answer:
        work = Work(self, epoch)
        flow = work.open(flow_id(call.flow))
        held = [draft for draft in work.open_all() if Kind.HELD in self._kinds_of(draft.id, call.flow)]
        if flow is None or _stage(flow) is not Stage.ENDED:
            return ok(0, 0, [])
        work.tell(flow)
        for draft in held[:1]:
            work.touch(draft)
            if _outcome(flow) == DONE:
                draft.queue_by_itself(0, 0)
            else:
                draft.remove(range(1))
                draft.set(range(1), GONE, 0)
        return ok(len(held[:1]), int(len(held) > 1), work.commit())


def _stage(draft: Draft | None) -> Stage:
    return stage_of(draft.pack() if draft else None)


def _stamp(draft: Draft) -> int:
    return int(draft.text.split()[1]) if draft.states[0] == PAUSED else 0


def _outcome(draft: Draft) -> bytes:
    return draft.token_at(0)[1:].encode()


def _move(draft: Draft, call: calls.Steer, now: Stage) -> None:
    """Write the next stage of a flow."""
    if now is Stage.ENDED:
        outcome = CANCELLED if call.verb == "cancel" else DONE
        if draft.states[0] == PAUSED:
            draft.own[0] = Own(0, int(draft.text.split()[2]))
        draft.text = ""
        draft.set(range(1), State.GONE.value, draft.row_of_call(OUTCOME + outcome.decode()))
        return
    if draft.states[0] != PAUSED:
        draft.own.pop(0, None)
        draft.set(range(1), PAUSED, 0)
        draft.text = f"0 0 {call.keep_ms}"
    if now is Stage.SEALED:
        draft.text = "1" + draft.text[1:]
