"""What the scripts do that steer flows, and open what is held for them."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.bundle import CLAIMED, DEAD, GONE, WAITING, Draft, unpack
from tests.model.content import PAUSED, Item, Work, flow_id, ok, stage_of
from tests.model.moving import Moving
from tests.model.rules import Rule
from zkrq.protocol import calls
from zkrq.protocol.calls import item_id
from zkrq.protocol.flows import CANCELLED, DONE, FAILED, MOVES, Kind, Policy, Stage
from zkrq.protocol.records import Bundle, Opens, Own, State, Version
from zkrq.protocol.replies import Answer

BEGINS_AT = 1_750_000_000
"""The first version of what is about the queue itself counts from the clock; here, from this."""

OUTCOME = "="
"""Before the outcome of a flow, in the row of its record."""

OPENED: dict[bytes, tuple[Opens, ...]] = {
    DONE: (Opens.THEN, Opens.ALWAYS),
    FAILED: (Opens.FAILURE, Opens.ALWAYS),
    CANCELLED: (),
}
"""What is queued of what was held, by the outcome."""


class Says(NamedTuple):
    """What the text of a flow's record says."""

    stage: str
    stamp: int
    keep_ms: int
    policy: str
    outcome: str
    legs: str

    @staticmethod
    def of(draft: Draft) -> Says:
        stage, stamp, keep_ms, policy, outcome, legs = draft.text.split(" ", 5)
        return Says(stage, int(stamp), int(keep_ms), policy.removeprefix("."), outcome, legs)

    @property
    def text(self) -> str:
        return f"{self.stage} {self.stamp} {self.keep_ms} .{self.policy} {self.outcome} {self.legs}"


class Ending(Moving):
    """The scripts about flows."""

    def flow(self, epoch: int, call: calls.Steer) -> Answer:
        work = Work(self, epoch)
        id, kinds = flow_id(call.flow), self._kinds(call.flow)
        draft = work.open(id)
        before = _stage(draft)
        if self._may_move(draft, before, call):
            draft = draft or work.begin(id, Bundle(Version(0, BEGINS_AT), GONE))
            self._move(work, draft, before, call, kinds)
            self.held.known = self.held.known or draft.decided
        if draft and not draft.decided:
            work.tell(draft)
        now = _stage(draft)
        says = Says.of(draft) if draft and draft.states[0] == PAUSED else None
        stamp = says.stamp if says and now is not Stage.ENDED else 0
        outcome = outcome_of(draft) if draft and now is Stage.ENDED else b""
        legs = [leg.encode() for leg in says.legs.split()] if says else []
        told = (stamp, outcome, kinds.encode(), says.policy.encode() if says else b"")
        is_closed = now is Stage.ENDED and says is None
        life = int(draft.pushed_at_ms) if draft else 0
        kept, outer = says.keep_ms if says else 0, draft.outer if draft else b""
        rest = (int(is_closed), life, kept, outer, legs, work.commit())
        return ok(before.encode(), now.encode(), *told, *rest)

    def _may_move(self, draft: Draft | None, before: Stage, call: calls.Steer) -> bool:
        if call.verb == "end" and before is Stage.ENDED and Rule.END_IS_DECIDED_ONCE not in self.on:
            return True
        if before is not Stage.ENDED or draft is None:
            return call.verb in MOVES[before]
        if draft.states[0] == PAUSED:
            return call.verb == "close"
        return call.verb == "begin" and call.life not in (0, draft.pushed_at_ms)

    def _move(self, work: Work, draft: Draft, before: Stage, call: calls.Steer, kinds: str) -> None:
        """Do what the verb says."""
        if call.verb == "begin":
            work.touch(draft)
            _begin(draft, call)
            return
        if draft.states[0] != PAUSED:  # it is decided twice
            work.touch(draft)
            draft.set(range(1), GONE, draft.row_of_call(OUTCOME + DONE.decode()))
            return
        says = Says.of(draft)
        outcome: bytes | None = None
        match call.verb:
            case "open" if 0 not in draft.own:
                return
            case "join":
                if call.leg in says.legs.split() or call.life not in (0, draft.pushed_at_ms):
                    return
                says = says._replace(legs=f"{says.legs} {call.leg}".strip(), stamp=says.stamp + 1)
            case "wait" if Policy.WAITS in says.policy:
                return
            case "wait":
                says = says._replace(policy=says.policy + Policy.WAITS)
            case "live":
                says = says._replace(stamp=says.stamp + 1)
            case "seal" | "fail":
                draft.own.pop(0, None)
                says = says._replace(stage=MOVES[before][call.verb].value)
            case "end":
                outcome = self._outcome(says, call, kinds)
                if outcome is None:
                    return
            case "close":
                has_nested = outcome_of(draft) == CANCELLED and self._has_nested(work, call.flow)
                if has_nested or {Kind.HELD, Kind.HELD_FOR_FAILURE, Kind.WAITING} & set(kinds):
                    return
                work.touch(draft)
                close(draft)
                return
            case "cancel" | "finish":
                outcome = CANCELLED if call.verb == "cancel" else DONE
            case _:
                pass
        work.touch(draft)
        if outcome is not None:
            draft.own.pop(0, None)
            says = says._replace(stage=Stage.ENDED.value, outcome=outcome.decode() + call.remaining.lstrip("LNDMWVP"))
        draft.text = says.text
        to_open = set(kinds) & set("LNWV" if outcome == CANCELLED else "NWV")
        if outcome is not None and not to_open and (not says.legs or Rule.ENDED_STAYS_DUE not in self.on):
            close(draft)

    def _outcome(self, says: Says, call: calls.Steer, kinds: str) -> bytes | None:
        """Return how a flow ends by itself, None if it does not."""
        left = set(kinds + call.remaining.partition(",")[0])
        if says.stage == Stage.ENDED:
            return DONE  # it is decided twice
        if says.stamp != call.stamp or (Kind.LIVING in left and Rule.FAILING_WAITS in self.on) or Kind.WAITING in left:
            return None
        counted = {Kind.DEAD} if Policy.IGNORES_MISSED in says.policy else {Kind.DEAD, Kind.MISSED}
        is_done = not counted & left or Rule.MISSED_IS_NOT_DONE not in self.on
        if says.stage == Stage.FAILING or (not is_done and Kind.HELD_FOR_FAILURE in left):
            return FAILED
        return DONE if is_done and Kind.LIVING not in left else None

    def _kinds(self, flow: str) -> str:
        return "".join(sorted({kind for id in self.held.records for kind in self._kinds_of(id, flow)}))

    def _kinds_of(self, id: Item, flow: str) -> set[Kind]:
        """What a server has of a flow in one bundle."""
        return set(self._places_of(id, flow)) | self._held_of(Draft(id, unpack(self.held.records[id])), flow)

    def _held_of(self, draft: Draft, flow: str) -> set[Kind]:
        if draft.awaited or draft.held_for != flow or not draft.states or not draft.waits_for_ever(0):
            return set()
        return {Kind.HELD_FOR_FAILURE if draft.opens is Opens.FAILURE else Kind.HELD}

    def _places_of(self, id: Item, flow: str) -> dict[Kind, list[int]]:
        """Positions of the members in one bundle, by kind."""
        draft = Draft(id, unpack(self.held.records[id]))
        if draft.flow != flow:
            return {}
        living = [at for at, state in enumerate(draft.states) if state in WAITING + CLAIMED]
        dead = [at for at, state in enumerate(draft.states) if state == DEAD]
        missed = [at for at in range(draft.size) if draft.is_missed(at)]
        places = {Kind.WAITING if draft.is_waiting else Kind.LIVING: living, Kind.DEAD: dead, Kind.MISSED: missed}
        return {kind: positions for kind, positions in places.items() if positions}

    def flow_members(self, epoch: int, call: calls.FlowMembers) -> Answer:
        flow = self.held.records.get(flow_id(call.flow))
        draft = Draft(flow_id(call.flow), unpack(flow)) if flow else None
        stage = _stage(draft)
        items: list[object] = []
        for kind in (Kind.LIVING, Kind.WAITING, Kind.DEAD, Kind.MISSED):
            for id in sorted(self.held.records):
                is_alone = unpack(self.held.records[id]).is_alone
                for at in self._places_of(id, call.flow).get(kind, ()):
                    inner = Draft(id, unpack(self.held.records[id])).nested.encode()
                    items += (kind.encode(), id if is_alone else item_id(id.decode(), at).encode(), inner)
        legs = [leg.encode() for leg in Says.of(draft).legs.split()] if draft and draft.states[0] == PAUSED else []
        outcome = outcome_of(draft) if draft and stage is Stage.ENDED else b""
        outer = draft.outer if draft else b""
        return ok(stage.encode(), outcome, self._kinds(call.flow).encode(), 0, 0, 0, 0, outer, legs, items)

    def flow_waiting(self, epoch: int, call: calls.WaitingPage) -> Answer:
        """All that stand for inner flows, in one page."""
        rows: list[object] = []
        for id in sorted(self.held.records):
            draft = Draft(id, unpack(self.held.records[id]))
            if draft.flow == call.flow and draft.stands_in:
                rows += (id, draft.nested.encode())
        return ok(calls.START, rows)

    def _has_nested(self, work: Work, flow: str) -> bool:
        return any(draft.flow == flow and draft.stands_in for draft in work.open_all())

    def flow_page(self, epoch: int, call: calls.FlowPage) -> Answer:
        """One page: all flows of which something is left here; each may be due."""
        drafts = [Draft(id, unpack(record)) for id, record in self.held.records.items()]
        begun = {draft.id[len(flow_id("")) :].decode() for draft in drafts if draft.id.startswith(flow_id(""))}
        held = {name for draft in drafts if (name := draft.held_for) and self._held_of(draft, name)}
        rows: list[object] = []
        for name in sorted(begun | held):
            flow = self.held.records.get(flow_id(name))
            if name in held or (flow and unpack(flow).states == PAUSED):
                rows += (name.encode(), stage_of(flow).encode(), self._kinds(name).encode(), 1, b"", 0, 0, 0)
        return ok(calls.START, rows)

    def flow_open(self, epoch: int, call: calls.OpenHeld) -> Answer:
        work = Work(self, epoch)
        flow, outcome = work.open(flow_id(call.flow)), call.outcome.encode()
        stage = _stage(flow)
        if flow and call.outcome and stage is not Stage.UNKNOWN and flow.pushed_at_ms != call.life:
            return ok(0, 0, 0, [])
        if flow and stage is Stage.ENDED:
            outcome = outcome_of(flow)
        elif flow and call.outcome and stage is not Stage.UNKNOWN:
            work.touch(flow)
            flow.text = Says.of(flow)._replace(stage=Stage.ENDED.value, outcome=call.outcome).text
        elif not call.outcome and stage is not Stage.FAILING:
            return ok(0, 0, 0, [])
        if flow and not flow.decided:
            work.tell(flow)
        opened = self._remove_members(work, call, outcome)
        held = [draft for draft in work.open_all() if self._held_of(draft, call.flow)] if outcome else []
        for draft in held[:1]:
            work.touch(draft)
            if draft.nested:
                _end_nested(draft, outcome)
            elif draft.opens in OPENED[outcome]:
                draft.queue_by_itself(0, 0)
            else:
                draft.remove(range(1))
                draft.set(range(1), GONE, 0)
        has_more = len(held) > 1
        has_nested = outcome in (b"", CANCELLED) and self._has_nested(work, call.flow)
        is_last = outcome and not has_more and not has_nested
        if is_last and flow and flow.states[0] == PAUSED and (call.outcome or not Says.of(flow).legs):
            work.touch(flow)
            close(flow)
        return ok(opened + len(held[:1]), int(has_more), int(has_nested), work.commit())

    def _remove_members(self, work: Work, call: calls.OpenHeld, outcome: bytes) -> int:
        """Remove members that wait, queued ones of a flow that is failing or was cancelled, and of one that was
        cancelled claimed ones, if that is asked for."""
        removable = WAITING + (CLAIMED if call.stop and outcome == CANCELLED else "")
        count, is_cut_short = 0, outcome in (b"", CANCELLED)
        members = [draft for draft in work.open_all() if draft.flow == call.flow and not draft.stands_in]
        for draft in [draft for draft in members if is_cut_short or draft.is_waiting]:
            for at in [at for at, state in enumerate(draft.states) if state in removable]:
                work.touch(draft)
                draft.remove(range(at, at + 1))
                draft.set(range(at, at + 1), GONE, 0)
                count += 1
        return count


def _stage(draft: Draft | None) -> Stage:
    return stage_of(draft.pack() if draft else None)


def outcome_of(draft: Draft) -> bytes:
    """How a flow has ended."""
    text = Says.of(draft).outcome if draft.states[0] == PAUSED else draft.token_at(0)[1:]
    return text.partition(",")[0].encode()


def _begin(draft: Draft, call: calls.Steer) -> None:
    draft.own.pop(0, None)
    draft.set(range(1), State.PAUSED.value, 0)
    draft.rows.clear()
    draft.pushed_at_ms = call.life or draft.version.n
    draft.legs, draft.outer = b"", call.outer.encode()
    policy = call.policy + (Policy.HAS_DEADLINE if call.deadline_ms else "")
    if Policy.IS_LEG not in policy:
        draft.own[0] = Own(0, 0)
    draft.text = Says(Stage.OPEN.value, 0, call.keep_ms, policy, "", "").text


def _end_nested(draft: Draft, outcome: bytes) -> None:
    """What stands for a flow ends as that has ended."""
    inner = draft.nested
    if outcome == FAILED:
        queue, _, name = inner.rpartition("/")
        draft.bury(range(1))
        draft.set(range(1), DEAD, 0)
        draft.notes[0] = f"flow '{name}' of queue '{queue}' has failed".encode()
    else:
        draft.remove(range(1))
        draft.set(range(1), GONE, draft.add_row(f"flow {inner}", 1) if outcome == DONE else 0)


def close(draft: Draft) -> None:
    """Nothing is left to do about a flow that has ended."""
    says = Says.of(draft)
    draft.own[0] = Own(0, says.keep_ms)
    draft.text, draft.legs = "", says.legs.encode()
    draft.set(range(1), GONE, draft.row_of_call(OUTCOME + says.outcome))
