"""What the scripts do about members of a flow that wait for others."""

from __future__ import annotations

from tests.model.bundle import CLAIMED, DEAD, REFUSED, WAITING, Draft, unpack
from tests.model.content import Work, ok
from tests.model.ending import Ending
from tests.model.rules import Rule
from zkrq.protocol import calls
from zkrq.protocol.flow_names import ACKED, MISSED, UNKNOWN
from zkrq.protocol.flows import Kind
from zkrq.protocol.replies import Answer


class Naming(Ending):
    """The scripts about members that others wait for."""

    def flow_named(self, epoch: int, call: calls.NamedStates) -> Answer:
        return ok([self._state_of(id.encode()) for id in call.items])

    def _state_of(self, id: bytes) -> bytes:
        """What has become of a bundle, as a letter."""
        packed = self.held.records.get(id)
        draft = Draft(id, unpack(packed)) if packed else None
        if draft is None or set(draft.states) <= {REFUSED}:
            return UNKNOWN
        if Rule.RELEASE_NEEDS_ACKS not in self.on:
            return ACKED
        if any(state in WAITING + CLAIMED for state in draft.states) or draft.has_left(0):
            return Kind.LIVING.encode()
        if DEAD in draft.states:
            return Kind.DEAD.encode()
        return MISSED if any(map(draft.is_missed, range(draft.size))) else ACKED

    def flow_waiting(self, epoch: int, call: calls.WaitingPage) -> Answer:
        """One page: all that wait, or all that stand for inner flows."""
        if call.letter == Kind.NESTED:
            return super().flow_waiting(epoch, call)
        drafts = [Draft(id, unpack(self.held.records[id])) for id in sorted(self.held.records)]
        waiting = [draft for draft in drafts if draft.flow == call.flow and draft.is_waiting]
        return ok(calls.START, [word for draft in waiting for word in (draft.id, draft.awaited.encode())])

    def flow_release(self, epoch: int, call: calls.Release) -> Answer:
        work, count = Work(self, epoch), 0
        runs = self.stage_of(call.flow).takes_members
        for id in call.items:
            draft = work.open(id.encode())
            if draft is None or draft.flow != call.flow:
                continue
            if runs and draft.is_waiting:
                work.touch(draft)
                draft.queue_by_itself(0, draft.failures(0))
                count += 1
            else:
                work.tell(draft)
        return ok(count, work.commit())
