"""What the scripts do that decide: pushes, claims, and how items end."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.bundle import (
    ALIVE,
    CLAIMED,
    DEAD,
    GONE,
    NEVER_US,
    QUEUED,
    WAITING,
    Draft,
    Text,
    has_payload,
    new_bundle,
    payload_at,
    put_together,
    taken_apart,
    unpack,
)
from tests.model.content import SLOTS_MAX, Item, Storing, Token, Work, flow_id, group_of, ok, place_of, stage_of
from tests.model.rules import Rule
from zkrq.protocol import calls
from zkrq.protocol.flows import Stage
from zkrq.protocol.records import (
    MEMBER,
    REFUSED,
    REQUEUED,
    Row,
    in_order,
    is_alone,
    version_of,
)
from zkrq.protocol.replies import Answer, Status

TOKENS_FROM = 1 << 32
"""Above the version of any item."""


class SettleAlone(calls.Settle):
    """What every server would be asked if there were no primary: to settle by its own records."""

    script = "settle_alone"


class Deciding(Storing):
    """The scripts that decide: a push, a claim, how an item ends."""

    # -- pushing -----------------------------------------------------------------------------------------------------

    def push_plain(self, epoch: int, call: calls.PushPlain) -> Answer:
        held = self.held
        if self.keeps_order and Rule.PLAIN_IS_REFUSED_IN_ORDER in self.on:
            return Answer(Status.DECIDE, (b"o",))
        if any(not self.takes_plain(put) for put in call.items):
            return Answer(Status.DECIDE, (b"f",))
        late: list[int] = []
        told: list[object] = []
        for at, put in enumerate(call.items, 1):
            id, pushed = put.id.encode(), unpack(put.record)
            known = held.records.get(id)
            if known is None:
                if pushed.pushed_at_ms in self.clock.old or self.is_askew():
                    late.append(at)
                else:
                    held.known = True
                    held.records[id], held.payloads[id] = put.record, put.payload
                continue
            here = unpack(known)
            lost = [at for at in range(len(pushed.states)) if here.states[at : at + 1] not in tuple(ALIVE)]
            if lost or is_alone(put.record):
                told += (at, here.version.n, bytes(lost))
            self.complete(id, here, put.payload)
        return ok(late, told)

    def stage_of(self, flow: str) -> Stage:
        """How far a flow is, as this server knows it."""
        return stage_of(self.held.records.get(flow_id(flow)))

    def takes_plain(self, put: calls.Put) -> bool:
        """Whether this server takes a plain push: of a member only while its flow is open."""
        flow = unpack(put.record).fields.get(MEMBER, b"").decode()
        return not flow or self.stage_of(flow) is Stage.OPEN or Rule.PUSH_LOOKS_AT_ITS_FLOW not in self.on

    def push_decided(self, epoch: int, call: calls.PushDecided) -> Answer:
        if self.keeps_order and not call.in_order and Rule.PLAIN_IS_REFUSED_IN_ORDER in self.on:
            return Answer(Status.DECIDE, (b"o",))
        work = Work(self, epoch)
        outcomes = [self._push_one(work, put, again=call.again) for put in call.items]
        self.held.known = self.held.known or bool(work.opened)
        return ok(outcomes, work.commit(), b"o" if self.keeps_order else b"")

    def _push_one(self, work: Work, put: calls.Put, *, again: bool) -> bytes:
        new, (id, position) = unpack(put.record), place_of(put.id.encode())
        known, whole, is_alone = work.open(id), self.held.payloads.get(id), id == put.id.encode()
        state = known.states[position] if known and position < known.size else ""
        if known and state and state in ALIVE and not is_alone and not has_payload(whole, position):
            self._refuse_missing(work, known)
            state = REFUSED
        if known and state and state in ALIVE:
            self.complete(id, known, put.payload)
            if new.version.n > known.version.n:
                known.version = known.version._replace(n=new.version.n)
                work.touch(known)
            work.tell(known)
            return b"K"
        if known and state == GONE:
            work.tell(known)
            return b"K" if known.has_left(position) else b"D"
        if new.pushed_at_ms in self.clock.old or self.is_askew():
            if again:
                self._enter(work, put, known, REFUSED)
            return b"L"
        pushed = Draft(id, new)
        flows = [flow for flow in (pushed.flow, pushed.held_for) if flow]
        if not all(self.stage_of(flow).takes_members for flow in flows):
            if again:
                self._enter(work, put, known, REFUSED)
            return b"E"
        if self.keeps_order and Rule.ORDER_BY_SETTINGS in self.on:
            put = put._replace(record=in_order(put.record))
        draft = self._enter(work, put, known, QUEUED)
        payload = put.payload
        if not is_alone:
            given = payload_at(payload, 0)
            payload = put_together([given if at == position else payload_at(whole, at) for at in range(draft.size)])
        self.held.payloads[id] = payload
        return b"+"

    def _refuse_missing(self, work: Work, draft: Draft) -> None:
        """Refuse the items whose payloads never arrived: their push has not completed."""
        work.touch(draft)
        for position, state in enumerate(draft.states):
            if state in ALIVE and not has_payload(self.held.payloads.get(draft.id), position):
                draft.remove(range(position, position + 1))
                draft.set(range(position, position + 1), REFUSED, 0)

    def _enter(self, work: Work, put: calls.Put, known: Draft | None, state: str) -> Draft:
        """Write the item in this state."""
        new, (id, position) = unpack(put.record), place_of(put.id.encode())
        n = max(new.version.n, known.version.n if known else 0)
        if new.claim_n is not None and Rule.ORDER_IS_DECIDED in self.on:
            self.held.order += 1
            new = new._replace(order=self.held.order)
        if known is None or id == put.id.encode():
            known = work.begin(id, new if id == put.id.encode() else new_bundle(new))
        known.version = known.version._replace(n=n)
        work.touch(known)
        if id == put.id.encode():
            known.set(range(1), state)
            if known.held_for and state == QUEUED:
                known.adopt(0, NEVER_US, 0)
            return known
        known.make_room(position)
        if state == QUEUED:
            known.queue_by_itself(position, 0)
            state = REQUEUED
        known.set(range(position, position + 1), state, 0)
        return known

    # -- consuming ---------------------------------------------------------------------------------------------------

    def claim(self, epoch: int, call: calls.Claim) -> Answer:
        if refusal := self._refusal(call):
            return Answer(refusal)
        work = Work(self, epoch)
        handed = self._claim(work, call)
        return ok(-1, 0, handed, 0, 0, work.commit())

    def turn(self, epoch: int, call: calls.Turn) -> Answer:
        """Settle, then claim: a bundle that both decide about gets one version."""
        work = Work(self, epoch)
        next_token = f"{call.owner}/{call.seq}" if Rule.TURN_FINDS_ITS_OWN in self.on else ""
        lost = [self._settle_one(work, settlement, next_token) for settlement in call.items]
        refusal = self._refusal(call)
        if refusal and Rule.EACH_PART_HAS_A_VERDICT not in self.on:
            work.commit()
            return Answer(refusal)
        handed = [] if refusal else self._claim(work, call)
        verdict = refusal.value.encode() if refusal else calls.CLAIMED
        return ok(-1, 0, handed, 0, 0, work.commit(), verdict, lost, [])

    def _refusal(self, call: calls.Claim | calls.Turn) -> Status | None:
        """Return why a claim request gets nothing, None if it is not refused."""
        if call.owner in self.held.fenced and Rule.FENCED_TOKEN_IS_REFUSED in self.on:
            return Status.FENCED
        return Status.OUTDATED if call.seq < self.held.owners.get(call.owner, 0) else None

    def _claim(self, work: Work, call: calls.Claim | calls.Turn) -> list[object]:
        held, on = self.held, self.on
        handed: list[object] = []
        if call.seq == held.owners.get(call.owner, 0) and Rule.REPEATED_CLAIM_GETS_THE_SAME in on:
            too_many = max(0, -self._slots(work)) if Rule.REPEATED_WITHIN_THE_LIMIT in on else 0
            self._hand_out_again(work, f"{call.owner}/{call.seq}", handed, too_many)
        else:
            held.known = True
            held.owners[call.owner] = call.seq
            if Rule.CLAIMS_HAVE_A_DEADLINE in on:
                self._requeue(work, lambda row: row.token in self.clock.lapsed)
            if call.elsewhere and self.needs_home and Rule.HELD_ELSEWHERE in on:
                pass
            elif self.clock.ordered and (self.keeps_order or not self.clock.homed):
                self._hand_out_in_order(work, call, handed)
            else:
                self._hand_out(work, call, handed)
        return handed

    def _slots(self, work: Work) -> int:
        """Return how many more items may be claimed; negative: too many are."""
        if not self.clock.limit or (self.clock.homed and not self.needs_home):
            return SLOTS_MAX
        return self.clock.limit - sum(draft.states.count(CLAIMED) for draft in work.open_all())

    def _slots_of(self, work: Work, bundle: Item) -> int:
        """Return how many more items of the group of a bundle may be claimed; negative: too many are."""
        if not self.clock.group_limit:
            return SLOTS_MAX
        mates = (draft for draft in work.open_all() if group_of(draft.id) == group_of(bundle))
        return self.clock.group_limit - sum(draft.states.count(CLAIMED) for draft in mates)

    def _hand(self, handed: list[object], draft: Draft, run: range) -> None:
        parts = taken_apart(self.held.payloads[draft.id])
        part = put_together([parts[at] if at < len(parts) else None for at in run])
        handed += (draft.id, run.start + 1, len(run), part)

    def _in_order(self, work: Work) -> dict[str | None, list[Draft]]:
        """Return the items that are queued or claimed, by group, the first ones first."""
        groups: dict[str | None, list[Draft]] = {}
        for draft in sorted(work.open_all(), key=lambda draft: (draft.order or draft.pushed_at_ms, draft.id)):
            if draft.states[0] in WAITING + CLAIMED and not draft.is_adopted(0):
                groups.setdefault(draft.group, []).append(draft)
        return groups

    def _tell_ended(self, work: Work, draft: Draft) -> None:
        """Send the end of the item before with a claim."""
        _, id = self.held.ended.get(draft.group or "", (0.0, draft.id))
        before = work.open(id) if id != draft.id and Rule.END_TRAVELS_WITH_THE_NEXT in self.on else None
        if before:
            self.recall_result(before, 0)
            work.tell(before)

    def _hand_out_in_order(self, work: Work, call: calls.Claim | calls.Turn, handed: list[object]) -> None:
        left = call.count
        for mates in self._in_order(work).values():
            is_held = any(draft.states[0] == CLAIMED for draft in mates)
            draft = next((draft for draft in mates if draft.states[0] in WAITING), None)
            if draft is None or left == 0 or (is_held and Rule.ORDERED_ONE_BY_ONE in self.on):
                continue
            if draft.id not in self.held.payloads:
                if draft.pushed_at_ms in self.clock.old:
                    work.touch(draft)
                    draft.remove(range(1))
                    draft.set(range(1), GONE, 0)
                continue
            work.touch(draft)
            by_settings = self.keeps_order and Rule.TOKENS_BY_SETTINGS in self.on
            if Rule.TOKENS_GROW_IN_A_GROUP in self.on and (by_settings or draft.claim_n is not None):
                floor = TOKENS_FROM if by_settings else 0
                draft.claim_n = max(draft.version.n, self.held.claim_n + 1, floor)
            self._tell_ended(work, draft)
            self._hand(handed, draft, range(1))
            draft.set(range(1), CLAIMED, draft.add_row(call.owner, call.seq))
            draft.count_attempts(range(1), 1)
            self._give_saved(draft, range(1))
            left -= 1

    def _is_in_order(self, work: Work, draft: Draft, token: Token) -> bool:
        """Whether an item is the first of its group and the only one claimed; otherwise queue it again if this request
        was given it before, and this epoch has not decided about it."""
        mates = self._in_order(work).get(draft.group, [])
        is_only = [mate for mate in mates if mate.states[0] == CLAIMED] == [draft]
        if is_only and mates[0] is draft:
            return True
        for run in () if work.is_of_this_epoch(draft) else draft.under(lambda row: row.token == token):
            work.touch(draft)
            draft.count_attempts(run, -1)
            draft.requeue(run)
        return False

    def _hand_out_again(self, work: Work, token: Token, handed: list[object], too_many: int) -> None:
        for draft in work.open_all():
            is_ordered = self.clock.ordered and (not self.clock.homed or draft.claim_n is not None)
            if is_ordered and Rule.REPEATED_IN_ORDER in self.on and not self._is_in_order(work, draft, token):
                continue
            over = max(0, -self._slots_of(work, draft.id)) if Rule.REPEATED_WITHIN_THE_GROUP in self.on else 0
            if (too_many or over) and not work.is_of_this_epoch(draft):
                for run in draft.under(lambda row: row.token == token):
                    some = run[: max(too_many, over)]
                    if some:
                        work.touch(draft)
                        draft.count_attempts(some, -1)
                        draft.requeue(some)
                        too_many, over = max(0, too_many - len(some)), max(0, over - len(some))
            mine, whole = draft.under(lambda row: row.token == token), self.held.payloads.get(draft.id)
            if mine and self.lacks_payloads(draft.id, draft):
                mine = [range(at, at + 1) for run in mine for at in run if has_payload(whole, at)]
            for run in mine:
                self._hand(handed, draft, run)
            if mine and is_ordered:
                self._tell_ended(work, draft)
            if mine:
                if not work.is_of_this_epoch(draft):
                    for run in draft.under(lambda row: row.token == token):
                        draft.note_beginning(draft.rows_of[run[0]])
                work.tell(draft)
                for run in draft.under(lambda row: row.token == token):
                    self.recall_saved(draft, run, anew=True)

    def _hand_out(self, work: Work, call: calls.Claim | calls.Turn, handed: list[object]) -> None:
        left = min(call.count, max(0, self._slots(work))) if Rule.LIMIT_COUNTS_CLAIMED in self.on else call.count
        for draft in work.open_all():
            if left == 0:
                return
            whole, row = self.held.payloads.get(draft.id), 0
            lacking = self.lacks_payloads(draft.id, draft)
            for at in [
                at for at, state in enumerate(draft.states) if state in WAITING and not draft.waits_for_ever(at)
            ]:
                run = range(at, at + 1)
                if whole is None or (lacking and not has_payload(whole, at)):
                    if draft.pushed_at_ms in self.clock.old:
                        work.touch(draft)
                        draft.remove(run)
                        draft.set(run, GONE, 0)
                elif left and (Rule.GROUP_COUNTS_CLAIMED not in self.on or self._slots_of(work, draft.id) > 0):
                    work.touch(draft)
                    row = row or draft.add_row(call.owner, call.seq)
                    self._hand(handed, draft, run)
                    draft.set(run, CLAIMED, row)
                    draft.count_attempts(run, 1)
                    self._give_saved(draft, run)
                    left -= 1

    def _give_saved(self, draft: Draft, run: range) -> None:
        """Give the saved states of a run with the claim, which counts its saves anew."""
        for position in run:
            if position in draft.saves:
                draft.saves[position] = 0
        self.recall_saved(draft, run, anew=True)

    def _requeue(self, work: Work, wanted: Callable[[Row], bool]) -> None:
        for draft in work.open_all():
            runs = draft.under(wanted)
            if runs:
                work.touch(draft)
            for run in runs:
                draft.requeue(run, 0)

    def settle(self, epoch: int, call: calls.Settle) -> Answer:
        work = Work(self, epoch)
        outcomes = [self._settle_one(work, settlement) for settlement in call.items]
        return ok(0, outcomes, work.commit(), [])

    settle_alone = settle

    def _settle_one(self, work: Work, settlement: calls.Settlement, next_token: Token = "") -> bytes:
        """Settle items of one bundle; return the positions whose claims are lost.  ``next_token``: of the claim request
        in the same turn."""
        name, items, version, token, how = settlement
        verb, result = read_how(how)
        save = read_save(result[1]) if verb == "save" and result else None
        draft = work.open(name.encode())
        lost: list[int] = []
        if draft and version_of(b"\1" + version) > draft.version:
            token = ""
        for first, last in zip(items[::2], items[1::2], strict=True):
            if draft is None or last >= draft.size:
                lost += range(first, last + 1)
                continue
            for run, state, row in draft.each_run(first, last + 1):
                mine = row > 0 and draft.token_at(run.start) == token
                is_given = state == CLAIMED and draft.token_at(run.start) == next_token
                is_late = save and mine and state == CLAIMED and save[0] < draft.saves.get(run.start, 0)
                if is_late and Rule.SAVES_ARE_NUMBERED in self.on:
                    work.tell(draft)
                elif save and ((state == CLAIMED and mine) or Rule.SAVE_NEEDS_THE_CLAIM not in self.on):
                    work.touch(draft)
                    if state in ALIVE:
                        _save(draft, run, save)
                elif state == CLAIMED and (mine or Rule.SETTLING_CHECKS_THE_TOKEN not in self.on):
                    work.touch(draft)
                    _settle(draft, run, row, verb)
                    if result is not None and verb == "ack":
                        draft.keep_result(run, result)
                elif (mine and state in _BECAME[verb]) or (is_given and _BECAME[verb] == WAITING):
                    for position in run if state == GONE else ():
                        if result is not None:
                            self.complete_result(draft.id, draft, position, token, result[1])
                        self.recall_result(draft, position)
                    work.tell(draft)
                else:
                    lost += run
                    if Rule.REFUSAL_IS_SPREAD in self.on:
                        work.tell(draft)
        if draft and Rule.ROWS_STAY not in self.on:
            live = {row for row, state in zip(draft.rows_of, draft.states, strict=True) if state == CLAIMED}
            draft.rows_of = [row if row in live else 0 for row in draft.rows_of]
        return bytes(lost)

    def fence(self, epoch: int, call: calls.Fence) -> Answer:
        self.held.fenced.add(call.owner)
        work = Work(self, epoch)
        before = self._count_claimed()
        self._requeue(work, lambda row: row.owner == call.owner)
        flat = work.commit()
        return ok(calls.START, before - self._count_claimed(), flat)

    def _count_claimed(self) -> int:
        return sum(unpack(packed).states.count(CLAIMED) for packed in self.held.records.values())

    def claims(self, epoch: int, call: calls.Claims) -> Answer:
        drafts = Work(self, epoch).open_all()
        return ok(calls.START, [draft.id for draft in drafts if draft.under(lambda row: row.owner == call.owner)])

    def retire(self, epoch: int, call: calls.Retire) -> Answer:
        self.held.owners.pop(call.owner, None)
        return ok()

    def redrive(self, epoch: int, call: calls.Redrive) -> Answer:
        work = Work(self, epoch)
        redriven = [id for id in call.items if self._redrive_one(work, place_of(id.encode()), call.call)]
        return ok(0, [id.encode() for id in redriven], work.commit())

    def _redrive_one(self, work: Work, place: tuple[Item, int], call: str) -> bool:
        id, position = place
        draft = work.open(id)
        if draft is None or position >= draft.size:
            return False
        if draft.states[position] == DEAD:
            if draft.nested:
                return False
            work.touch(draft)
            draft.attempts[position] = 0
            draft.queue_by_itself(position, 0)
            draft.set(range(position, position + 1), REQUEUED, draft.row_of_call(call))
            return True
        if draft.states[position] != REQUEUED or draft.token_at(position) != call:
            return False
        work.tell(draft)
        return True


def _save(draft: Draft, run: range, save: tuple[int, bytes]) -> None:
    for position in run:
        draft.saves[position] = save[0]
        draft.saved[position] = Text(draft.version, save[1])


def read_save(text: bytes) -> tuple[int, bytes]:
    """The number of a save, and the state."""
    number, _, state = text.split(b" ", 2)
    return int(number), state


def read_how(how: str | bytes) -> tuple[str, tuple[int, bytes] | None]:
    """The verb of a settlement; and of an ack with a result for how long that is kept, and the result."""
    if isinstance(how, str):
        return how.partition(" ")[0], None
    verb, ttl_ms, text = how.split(b" ", 2)
    return verb.decode(), (int(ttl_ms), text)


_BECAME = {
    "ack": GONE,
    "nack": WAITING,
    "release": WAITING,
    "snooze": WAITING,
    "bury": DEAD,
    "extend": CLAIMED,
    "save": CLAIMED,
}


def _settle(draft: Draft, run: range, row: int, verb: str) -> None:
    match verb:
        case "ack":
            draft.remove(run)
        case "nack":
            for position in run:
                draft.queue_by_itself(position, draft.failures(position) + 1)
        case "release":
            draft.count_attempts(run, -1)
            draft.requeue(run)
        case "snooze":
            draft.count_attempts(run, -1)
            for position in run:
                draft.queue_by_itself(position, draft.failures(position))
        case "bury":
            draft.bury(run, failed=True)
        case _:
            draft.note_beginning(row)
            if draft.rows_of.count(row) != len(run):
                owner, seq = draft.rows[row - 1].owner, draft.rows[row - 1].seq
                draft.set(run, CLAIMED, draft.add_row(owner, seq))
