"""What the scripts do that bring items home from another shard, or remove them."""

from __future__ import annotations

from tests.model.bundle import GONE, NEVER_US, WAITING, has_payload, new_bundle, payload_at, put_together, unpack
from tests.model.content import Item, Work, ok, place_of
from tests.model.deciding import Deciding
from tests.model.rules import Rule
from zkrq.protocol import calls
from zkrq.protocol.homing import MOVED
from zkrq.protocol.records import REFUSED, REQUEUED, Own, State, Version
from zkrq.protocol.replies import Answer

_NAMES = {REQUEUED: State.QUEUED.value, REFUSED: GONE}
"""The letter of each state in a reply: several are one to the caller."""


class Moving(Deciding):
    """The scripts that move items."""

    def see_movable(self, epoch: int, count: int) -> tuple[list[object], list[Item], list[Item]]:
        """Return places of items that are queued, their bundles, and the ids of those that were adopted."""
        places: list[object] = []
        bundles: list[Item] = []
        adopted: list[Item] = []
        for draft in Work(self, epoch).open_all():
            for at in [at for at, state in enumerate(draft.states) if state in WAITING]:
                if draft.is_adopted(at) and not has_payload(self.held.payloads.get(draft.id), at):
                    continue
                if draft.is_adopted(at):
                    adopted.append(draft.id if draft.is_alone else calls.item_id(draft.id.decode(), at).encode())
                elif len(places) < 2 * count:
                    places += (draft.id, at + 1)
                    bundles.append(draft.id)
        return places, list(dict.fromkeys(bundles)), adopted

    def adopt(self, epoch: int, call: calls.Adopt) -> Answer:
        work = Work(self, epoch)
        is_late = call.as_of_ms in self.clock.old
        outcomes = [self._adopt_one(work, item, is_late=is_late) for item in call.items]
        self.held.known = self.held.known or bool(work.opened)
        return ok(outcomes, work.commit())

    def _adopt_one(self, work: Work, item: calls.Adopted, *, is_late: bool) -> bytes:
        given, (id, position) = unpack(item.record), place_of(item.id.encode())
        known, is_alone = work.open(id), id == item.id.encode()
        state = known.states[position] if known and position < known.size else REFUSED
        if known and state != REFUSED and not known.is_adopted(position):
            work.tell(known)
            return b"D" if state == GONE else b"K"
        is_there = known is not None and state != REFUSED
        if not is_there and is_late:
            return b"L"
        if known is None or (is_alone and not is_there):
            n = max(given.version.n, known.version.n if known else 0)
            begun = given if is_alone else new_bundle(given)._replace(attempts=given.attempts)
            known = work.begin(id, begun._replace(version=Version(0, n), own={}))
        if not is_alone and not is_there:
            known.make_room(position)
        work.touch(known)
        never_us = NEVER_US if Rule.NOT_DUE in self.on else 0
        known.adopt(position, never_us + given.own[0].moment_us, given.own[0].failures)
        known.attempts[position] = given.attempts[0]
        payload, whole = item.payload, self.held.payloads.get(id)
        if is_there and has_payload(whole, position):
            return b"K"
        if not is_alone:
            mine = payload_at(payload, 0)
            payload = put_together([mine if at == position else payload_at(whole, at) for at in range(known.size)])
        self.held.payloads[id] = payload
        return b"K" if is_there else b"+"

    def admit(self, epoch: int, call: calls.Admit) -> Answer:
        work = Work(self, epoch)
        for item, has_come in call.items:
            id, position = place_of(item.encode())
            draft = work.open(id)
            if draft is None:
                continue
            if position >= draft.size or not draft.is_adopted(position):
                work.tell(draft)
                continue
            work.touch(draft)
            if has_come:
                moment_us, failures = draft.own[position]
                draft.own[position] = Own(moment_us - NEVER_US, failures)
            else:
                draft.remove(range(position, position + 1))
                draft.set(range(position, position + 1), REFUSED, 0)
        return ok(work.commit())

    def cancel(self, epoch: int, call: calls.Cancel) -> Answer:
        work = Work(self, epoch)
        states = [self._cancel_one(work, id, call) for id in call.items]
        return ok(states, work.commit())

    def _cancel_one(self, work: Work, item: str, call: calls.Cancel) -> bytes:
        id, position = place_of(item.encode())
        draft, is_move = work.open(id), call.wanted == MOVED
        if draft is None or position >= draft.size:
            return b""
        run = range(position, position + 1)
        state = _NAMES.get(draft.states[position], draft.states[position])
        if state == GONE:
            work.tell(draft)
            if draft.has_left(position):
                return MOVED.encode()
            token = draft.token_at(position)
            return (token[0] if call.call and token[1:] == call.call else state).encode()
        if not call.wanted or state == (State.QUEUED.value if is_move else call.wanted):
            work.touch(draft)
            row = draft.row_of_call((call.wanted if is_move else state) + call.call)
            draft.remove(run)
            draft.set(run, GONE, row)
        return state.encode()
