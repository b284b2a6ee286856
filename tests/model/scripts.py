"""What the scripts do to one queue on one server of the model, and what they reply to the library's calls.

A script runs alone and to its end.  ``test_scripts.py`` makes the same random calls here and to the real scripts, and
compares replies and records.  There is no time: a lease is over, and a push is old, when ``Clock`` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tests.model.bundle import (
    ALIVE,
    CLAIMED,
    DEAD,
    GONE,
    QUEUED,
    REMOVED,
    WAITING,
    Draft,
    filled,
    has_payload,
    lacks,
    may_lack,
    new_bundle,
    pack_notes,
    payload_at,
    put_together,
    taken_apart,
    unpack,
    unpack_notes,
)
from tests.model.rules import Rule, Rules
from zkrq.protocol import calls
from zkrq.protocol.calls import bundle_and_position
from zkrq.protocol.payloads import split
from zkrq.protocol.records import (
    FIRST,
    REFUSED,
    REQUEUED,
    Bundle,
    Row,
    State,
    Version,
    in_order,
    is_alone,
    version_of,
)
from zkrq.protocol.replies import Answer, Status

Item = bytes
"""The id of an item, or of a bundle."""

Token = str

QUEUE = "queue"

LIMITS = b"\1limits"
"""Id of the record that says whether the queue keeps an order."""

SLOTS_MAX = 1_000
"""More items than a schedule has."""

PAGE = 2
"""Bundles on a page, so that writes come between two pages."""

HEAD = slice(0, 9)
"""What ``Heads`` names of a record: format and version."""


class SettleAlone(calls.Settle):
    """What every server would be asked if there were no primary: to settle by its own records."""

    script = "settle_alone"


def owner_of(token: Token) -> str:
    return token.rpartition("/")[0]


@lru_cache(maxsize=100_000)
def place_of(id: Item) -> tuple[Item, int]:
    """The bundle of an item, and its position there."""
    bundle, position = bundle_and_position(id.decode())
    return bundle.encode(), position


def handed(reply: calls.ClaimReply | calls.TurnReply) -> Iterator[tuple[Item, Item, int, bytes | None]]:
    """What a claim hands out: item, bundle, position, payload."""
    parts = iter(reply.handed)
    alone = {id for id, record in reply.records if is_alone(record)}
    for id, first, count, part in zip(parts, parts, parts, parts, strict=True):
        for position, payload in enumerate(split(part, count), first - 1):
            item = id if id in alone else calls.item_id(id.decode(), position).encode()
            yield item, id, position, payload


def group_of(bundle: Item) -> int:
    """The group of a bundle, which follows from its id here."""
    return sum(bundle) % 2


def ok(*body: object) -> Answer:
    return Answer(Status.OK, body)


@dataclass
class Clock:
    """What the clocks of all servers say: claims whose lease is over, by their tokens, and pushes that are too old to
    be taken, by their moments."""

    lapsed: set[Token] = field(default_factory=set[Token])
    old: set[float] = field(default_factory=set[float])
    limit: int = 0
    """Of the queue, as every server knows it: items claimed at once, 0: none."""
    group_limit: int = 0
    """The same of each group."""
    ordered: bool = False
    """Whether groups keep the order of their pushes; then every item is alone, and in a group."""
    declared: bool = False
    """Whether only a record says so, which is declared meanwhile, and producers do not know of it."""


@dataclass(slots=True)
class Content:
    """All that a server holds.  ``known``: whether it has the queue.  ``fenced`` are owners."""

    epoch: int = 0
    generation: str = ""
    known: bool = False
    records: dict[Item, bytes] = field(default_factory=dict[Item, bytes])
    payloads: dict[Item, bytes] = field(default_factory=dict[Item, bytes])
    results: dict[Item, dict[int, bytes]] = field(default_factory=dict[Item, dict[int, bytes]])
    """By bundle and position."""
    owners: dict[str, int] = field(default_factory=dict[str, int])
    fenced: set[str] = field(default_factory=set[str])
    order: float = 0
    """The greatest of an item that was ever here."""
    claim_n: int = 0
    """The greatest number of a claim of such an item."""
    ended: dict[str, tuple[float, Item]] = field(default_factory=dict[str, tuple[float, Item]])
    """What a consumer ended last in each group, and its order."""

    def copy(self) -> Content:
        """What a disk has of it."""
        results = {id: dict(texts) for id, texts in self.results.items()}
        copies = dict(self.records), dict(self.payloads), results, dict(self.owners), set(self.fenced)
        return Content(self.epoch, self.generation, self.known, *copies, self.order, self.claim_n, dict(self.ended))


class Scripts:
    """One server's content, and a method for each script, by its name."""

    def __init__(self, on: Rules, clock: Clock, held: Content) -> None:
        self.on = on
        self.clock = clock
        self.held = held
        self.is_askew: Callable[[], bool] = lambda: False
        """Whether this server's own clock is wrong."""

    def run(self, epoch: int, call: calls.Call[Any]) -> Answer:
        """The answer to a call that was let in under this epoch."""
        answer: Answer = getattr(self, call.script)(epoch, call)
        return answer

    def keep(self, id: Item, packed: bytes, *, is_decided: bool = False) -> None:
        """Store a record.  ``is_decided``: here, not by another server."""
        held, bundle = self.held, unpack(packed)
        if bundle.claim_n is not None:
            self._follow(id, bundle, is_decided=is_decided)
        if id in held.results and id in held.records:
            before, now = Draft(id, unpack(held.records[id])), Draft(id, bundle)
            for at in [at for at in held.results[id] if at < min(before.size, now.size)]:
                if before.states[at] == now.states[at] == GONE and before.token_at(at) != now.token_at(at):
                    del held.results[id][at]
        if Rule.BYTES_GO_LAST not in self.on:
            self._drop_payloads(id, bundle, range(len(bundle.states)))
        if not bundle.is_alive and Rule.TOMBSTONE_STAYS not in self.on:
            held.records.pop(id, None)
        else:
            held.records[id] = packed
        if id in held.results:
            held.results[id] = {at: text for at, text in held.results[id].items() if at in bundle.own}

    def _follow(self, id: Item, bundle: Bundle, *, is_decided: bool) -> None:
        """Note what follows from the record of an item in a group that keeps the order."""
        held = self.held
        held.order = max(held.order, bundle.order)
        held.claim_n = max(held.claim_n, bundle.claim_n or 0)
        known = held.records.get(id)
        by_consumer = bundle.rows_of[0] > 0 and bundle.rows[bundle.rows_of[0] - 1].seq > 0
        if bundle.states in (GONE, DEAD) and by_consumer and (known is None or unpack(known).states != bundle.states):
            assert bundle.group is not None
            order, _ = held.ended.get(bundle.group, (0.0, b""))
            if is_decided or bundle.order >= order:
                held.ended[bundle.group] = bundle.order, id

    def keep_results(self, id: Item, bundle: Bundle, texts: Mapping[int, bytes]) -> None:
        """Store the results that came with a record, of items that have one."""
        for position, text in texts.items():
            if position in bundle.own:
                self.held.results.setdefault(id, {})[position] = text

    def complete_result(self, id: Item, held: Draft, position: int, token: Token, text: bytes) -> None:
        """Add a result to a record that came without it."""
        has_one = position < held.size and held.states[position] == GONE and position in held.own
        if has_one and held.token_at(position) == token and Rule.RESULT_IS_COMPLETED in self.on:
            self.held.results.setdefault(id, {}).setdefault(position, text)

    def recall_result(self, draft: Draft, position: int) -> bytes | None:
        """Send the result of an item with its record; return it."""
        text = self.held.results.get(draft.id, {}).get(position) if position in draft.own else None
        if text is not None:
            draft.notes[position] = text
        return text

    def _drop_payloads(self, id: Item, bundle: Bundle, positions: Iterable[int]) -> None:
        """Drop those of items that are gone."""
        whole = self.held.payloads.get(id)
        if whole is None:
            return
        gone = {at for at in positions if at < len(bundle.states) and bundle.states[at] in REMOVED}
        parts = [None if at in gone else part for at, part in enumerate(taken_apart(whole))]
        if any(part is not None for part in parts):
            self.held.payloads[id] = put_together(parts)
        else:
            del self.held.payloads[id]

    def lacks_payloads(self, id: Item, bundle: Bundle | Draft) -> bool:
        """Whether payloads of items that are not gone are missing."""
        whole = self.held.payloads.get(id)
        return lacks(bundle, whole) if Rule.PAYLOADS_BY_POSITION in self.on else whole is None

    def complete(self, id: Item, bundle: Bundle | Draft, payload: bytes) -> None:
        """Store the payloads of a bundle that was known without them."""
        if any(state in ALIVE for state in bundle.states):
            self.held.payloads.setdefault(id, payload)

    def complete_each(self, id: Item, bundle: Bundle, payload: bytes) -> None:
        """Store payloads of items that are known without them."""
        if self.lacks_payloads(id, bundle):
            whole = self.held.payloads.get(id)
            self.held.payloads[id] = filled(len(bundle.states), whole, payload) if whole else payload

    @property
    def keeps_order(self) -> bool:
        """Whether the server has heard that the queue keeps an order."""
        packed = self.held.records.get(LIMITS)
        return packed is not None and "ordered=1" in unpack(packed).text

    def declare(self, epoch: int, call: calls.Declare) -> Answer:
        work = _Work(self, epoch)
        text = f"{call.section}:{call.settings}"
        draft = work.open(LIMITS)
        if draft is None:
            self.held.known = True
            work.touch(work.begin(LIMITS, Bundle(Version(0, 0), State.PAUSED.value, text=text)))
        else:
            work.tell(draft)
        return ok(b"", work.commit())

    # -- in every server's life --------------------------------------------------------------------------------------

    def seal(self, epoch: int, call: calls.Seal) -> Answer:
        return ok()

    room = seal

    def reserve(self, epoch: int, call: calls.Reserve) -> Answer:
        """A reservation is a courtesy; here everybody gets it."""
        return ok()

    def wipe(self, epoch: int, call: calls.Wipe) -> Answer:
        self.held = Content(self.held.epoch, self.held.generation)
        return ok()

    # -- pushing -----------------------------------------------------------------------------------------------------

    def push_plain(self, epoch: int, call: calls.PushPlain) -> Answer:
        held = self.held
        if self.keeps_order and Rule.PLAIN_IS_REFUSED_IN_ORDER in self.on:
            return Answer(Status.DECIDE)
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

    def push_decided(self, epoch: int, call: calls.PushDecided) -> Answer:
        if self.keeps_order and not call.in_order and Rule.PLAIN_IS_REFUSED_IN_ORDER in self.on:
            return Answer(Status.DECIDE)
        work = _Work(self, epoch)
        outcomes = [self._push_one(work, put, again=call.again) for put in call.items]
        self.held.known = self.held.known or bool(work.opened)
        return ok(outcomes, work.commit())

    def _push_one(self, work: _Work, put: calls.Put, *, again: bool) -> bytes:
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
            return b"D"
        if new.pushed_at_ms in self.clock.old or self.is_askew():
            if again:
                self._enter(work, put, known, REFUSED)
            return b"L"
        if self.keeps_order and Rule.ORDER_BY_SETTINGS in self.on:
            put = put._replace(record=in_order(put.record))
        draft = self._enter(work, put, known, QUEUED)
        payload = put.payload
        if not is_alone:
            given = payload_at(payload, 0)
            payload = put_together([given if at == position else payload_at(whole, at) for at in range(draft.size)])
        self.held.payloads[id] = payload
        return b"+"

    def _refuse_missing(self, work: _Work, draft: Draft) -> None:
        """Refuse the items whose payloads never arrived: their push has not completed."""
        work.touch(draft)
        for position, state in enumerate(draft.states):
            if state in ALIVE and not has_payload(self.held.payloads.get(draft.id), position):
                draft.remove(range(position, position + 1))
                draft.set(range(position, position + 1), REFUSED, 0)

    def _enter(self, work: _Work, put: calls.Put, known: Draft | None, state: str) -> Draft:
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
        work = _Work(self, epoch)
        handed = self._claim(work, call)
        return ok(-1, 0, handed, 0, 0, work.commit())

    def turn(self, epoch: int, call: calls.Turn) -> Answer:
        """Settle, then claim: a bundle that both decide about gets one version."""
        work = _Work(self, epoch)
        next_token = f"{call.owner}/{call.seq}" if Rule.TURN_FINDS_ITS_OWN in self.on else ""
        lost = [self._settle_one(work, settlement, next_token) for settlement in call.items]
        refusal = self._refusal(call)
        if refusal and Rule.EACH_PART_HAS_A_VERDICT not in self.on:
            work.commit()
            return Answer(refusal)
        handed = [] if refusal else self._claim(work, call)
        verdict = refusal.value.encode() if refusal else calls.CLAIMED
        return ok(-1, 0, handed, 0, 0, work.commit(), verdict, lost)

    def _refusal(self, call: calls.Claim | calls.Turn) -> Status | None:
        """Return why a claim request gets nothing, None if it is not refused."""
        if call.owner in self.held.fenced and Rule.FENCED_TOKEN_IS_REFUSED in self.on:
            return Status.FENCED
        return Status.OUTDATED if call.seq < self.held.owners.get(call.owner, 0) else None

    def _claim(self, work: _Work, call: calls.Claim | calls.Turn) -> list[object]:
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
            if self.clock.ordered:
                self._hand_out_in_order(work, call, handed)
            else:
                self._hand_out(work, call, handed)
        return handed

    def _slots(self, work: _Work) -> int:
        """Return how many more items may be claimed; negative: too many are."""
        if not self.clock.limit:
            return SLOTS_MAX
        return self.clock.limit - sum(draft.states.count(CLAIMED) for draft in work.open_all())

    def _slots_of(self, work: _Work, bundle: Item) -> int:
        """Return how many more items of the group of a bundle may be claimed; negative: too many are."""
        if not self.clock.group_limit:
            return SLOTS_MAX
        mates = (draft for draft in work.open_all() if group_of(draft.id) == group_of(bundle))
        return self.clock.group_limit - sum(draft.states.count(CLAIMED) for draft in mates)

    def _hand(self, handed: list[object], draft: Draft, run: range) -> None:
        parts = taken_apart(self.held.payloads[draft.id])
        part = put_together([parts[at] if at < len(parts) else None for at in run])
        handed += (draft.id, run.start + 1, len(run), part)

    def _in_order(self, work: _Work) -> dict[str | None, list[Draft]]:
        """Return the items that are queued or claimed, by group, the first ones first."""
        groups: dict[str | None, list[Draft]] = {}
        for draft in sorted(work.open_all(), key=lambda draft: (draft.order or draft.pushed_at_ms, draft.id)):
            if draft.states[0] in WAITING + CLAIMED:
                groups.setdefault(draft.group, []).append(draft)
        return groups

    def _tell_ended(self, work: _Work, draft: Draft) -> None:
        """Send the end of the item before with a claim."""
        _, id = self.held.ended.get(draft.group or "", (0.0, draft.id))
        before = work.open(id) if id != draft.id and Rule.END_TRAVELS_WITH_THE_NEXT in self.on else None
        if before:
            self.recall_result(before, 0)
            work.tell(before)

    def _hand_out_in_order(self, work: _Work, call: calls.Claim | calls.Turn, handed: list[object]) -> None:
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
            if Rule.TOKENS_GROW_IN_A_GROUP in self.on:
                draft.claim_n = max(draft.version.n, self.held.claim_n + 1)
            self._tell_ended(work, draft)
            self._hand(handed, draft, range(1))
            draft.set(range(1), CLAIMED, draft.add_row(call.owner, call.seq))
            draft.count_attempts(range(1), 1)
            left -= 1

    def _is_in_order(self, work: _Work, draft: Draft, token: Token) -> bool:
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

    def _hand_out_again(self, work: _Work, token: Token, handed: list[object], too_many: int) -> None:
        for draft in work.open_all():
            if self.clock.ordered and Rule.REPEATED_IN_ORDER in self.on and not self._is_in_order(work, draft, token):
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
            if mine and self.clock.ordered:
                self._tell_ended(work, draft)
            if mine:
                if not work.is_of_this_epoch(draft):
                    for run in draft.under(lambda row: row.token == token):
                        draft.note_beginning(draft.rows_of[run[0]])
                work.tell(draft)

    def _hand_out(self, work: _Work, call: calls.Claim | calls.Turn, handed: list[object]) -> None:
        left = min(call.count, max(0, self._slots(work))) if Rule.LIMIT_COUNTS_CLAIMED in self.on else call.count
        for draft in work.open_all():
            if left == 0:
                return
            whole, row = self.held.payloads.get(draft.id), 0
            lacking = self.lacks_payloads(draft.id, draft)
            for at in [at for at, state in enumerate(draft.states) if state in WAITING]:
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
                    left -= 1

    def _requeue(self, work: _Work, wanted: Callable[[Row], bool]) -> None:
        for draft in work.open_all():
            runs = draft.under(wanted)
            if runs:
                work.touch(draft)
            for run in runs:
                draft.requeue(run, 0)

    def settle(self, epoch: int, call: calls.Settle) -> Answer:
        work = _Work(self, epoch)
        outcomes = [self._settle_one(work, settlement) for settlement in call.items]
        return ok(0, outcomes, work.commit())

    settle_alone = settle

    def _settle_one(self, work: _Work, settlement: calls.Settlement, next_token: Token = "") -> bytes:
        """Settle items of one bundle; return the positions whose claims are lost.  ``next_token``: of the claim request
        in the same turn."""
        name, items, version, token, how = settlement
        verb, result = read_how(how)
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
                if state == CLAIMED and (mine or Rule.SETTLING_CHECKS_THE_TOKEN not in self.on):
                    work.touch(draft)
                    _settle(draft, run, row, verb)
                    if result is not None:
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
        work = _Work(self, epoch)
        before = self._count_claimed()
        self._requeue(work, lambda row: row.owner == call.owner)
        flat = work.commit()
        return ok(calls.START, before - self._count_claimed(), flat)

    def _count_claimed(self) -> int:
        return sum(unpack(packed).states.count(CLAIMED) for packed in self.held.records.values())

    def claims(self, epoch: int, call: calls.Claims) -> Answer:
        drafts = _Work(self, epoch).open_all()
        return ok(calls.START, [draft.id for draft in drafts if draft.under(lambda row: row.owner == call.owner)])

    def retire(self, epoch: int, call: calls.Retire) -> Answer:
        self.held.owners.pop(call.owner, None)
        return ok()

    def redrive(self, epoch: int, call: calls.Redrive) -> Answer:
        work = _Work(self, epoch)
        redriven = [id for id in call.items if self._redrive_one(work, place_of(id.encode()), call.call)]
        return ok(0, [id.encode() for id in redriven], work.commit())

    def _redrive_one(self, work: _Work, place: tuple[Item, int], call: str) -> bool:
        id, position = place
        draft = work.open(id)
        if draft is None or position >= draft.size:
            return False
        if draft.states[position] == DEAD:
            work.touch(draft)
            draft.attempts[position] = 0
            draft.queue_by_itself(position, 0)
            draft.set(range(position, position + 1), REQUEUED, draft.row_of_call(call))
            return True
        if draft.states[position] != REQUEUED or draft.token_at(position) != call:
            return False
        work.tell(draft)
        return True

    # -- looking -----------------------------------------------------------------------------------------------------

    def results(self, epoch: int, call: calls.Results) -> Answer:
        work = _Work(self, epoch)
        told = [word for id in call.items for word in self._told(work, *place_of(id.encode()))]
        return ok(told, work.commit())

    def _told(self, work: _Work, id: Item, position: int) -> tuple[bytes, bytes]:
        """Return the reply about an item.  No caller waits here."""
        draft = work.open(id)
        state = draft.states[position] if draft and position < draft.size else REFUSED
        if draft is None or state == REFUSED:
            return b"U", b""
        row = draft.rows[draft.rows_of[position] - 1] if draft.rows_of[position] else None
        if state == DEAD:
            work.tell(draft)
            return b"D", b""
        if state != GONE:
            return (b"C", row.owner.encode()) if state == CLAIMED and row else (b"Q", b"")
        work.tell(draft)
        if row is None or not row.seq:
            return b"X" if row else b"E", b""
        text = self.recall_result(draft, position)
        return (b"A" if text is not None else b"L" if position in draft.own else b"N"), text or b""

    def statistics(self, epoch: int, call: calls.Statistics) -> Answer:
        """Without what has to do with time, but that tombstones go once a push is old."""
        bundles = [unpack(packed) for packed in self.held.records.values()]
        states = "".join(bundle.states for bundle in bundles)
        ready, claimed, dead = (sum(map(states.count, those)) for those in (WAITING, CLAIMED, DEAD))
        gone = [bundle for bundle in bundles if not bundle.is_alive and bundle.pushed_at_ms not in self.clock.old]
        tombstones = len(gone) if Rule.REMEMBERED_IDS_KEEP_A_HOME in self.on else 0
        return ok(ready, 0, claimed, dead, 0, 0, -1, 0, 0, tombstones, 0, 0, b"", 0, 0, 0, 0)

    def repair_lines(self, epoch: int, call: calls.RepairLines) -> Answer:
        """What is claimed next is whatever a record says, so no line is ever lost."""
        return ok(b"0", 0)

    # -- applying ----------------------------------------------------------------------------------------------------

    def apply(self, epoch: int, call: calls.Apply) -> Answer:
        superseded: list[object] = []
        bare: list[int] = []
        if call.fenced:
            self.held.fenced.add(call.fenced)
        for at, (id, packed, notes, payload) in enumerate(_rows(call), 1):
            self.held.known = True
            before = unpack(known) if (known := self.held.records.get(id)) else None
            counts, otherwise = self._place(id, packed)
            self._take_results(id, unpack(packed), before, unpack_notes(notes))
            if otherwise:
                superseded += (at, bytes(otherwise))
            if not counts.is_alive or id == LIMITS:
                continue
            if payload:
                self.complete_each(id, counts, payload)
            if payload or may_lack(counts) or (before and may_lack(before)):
                is_bare = self.lacks_payloads(id, counts)
            else:
                is_bare = id not in self.held.payloads
            if is_bare:
                bare.append(at)
        return ok(superseded if Rule.SUPERSEDED_IS_TOLD in self.on else [], bare)

    apply_new = apply

    def _place(self, id: Item, packed: bytes) -> tuple[Bundle, list[int]]:
        """The record that counts from now on, and where it says otherwise than the given one."""
        given, known = unpack(packed), self.held.records.get(id)
        held = unpack(known) if known is not None else None
        any_wins = Rule.GREATER_VERSION_WINS not in self.on and given.version != FIRST
        if held and given.version <= held.version and not any_wins:
            return held, self._otherwise(given, held)
        if held and given.is_alone and given.is_alive and held.states == REFUSED:
            self.held.payloads.pop(id, None)
        if held or given.is_alive or Rule.TOMBSTONE_OF_THE_UNKNOWN in self.on:
            self.keep(id, packed)
        for row in given.rows:
            if row.seq > self.held.owners.get(row.owner, 0):
                self.held.owners[row.owner] = row.seq
        return given, []

    def _take_results(self, id: Item, given: Bundle, before: Bundle | None, texts: Mapping[int, bytes]) -> None:
        """Store the results that came with a record: all, if it counts now; otherwise those that the greater one
        lacks."""
        packed = self.held.records.get(id)
        if packed is None:
            return
        held = unpack(packed)
        if held.version == given.version and (before is None or before.version != given.version):
            self.keep_results(id, held, texts)
            return
        for position, text in texts.items():
            if given.states[position] == GONE:
                self.complete_result(id, Draft(id, held), position, Draft(id, given).token_at(position), text)

    def _otherwise(self, given: Bundle, held: Bundle) -> list[int]:
        if Rule.SUPERSEDED_BY_ITEM not in self.on:
            return list(range(len(given.states)))
        mine, other = Draft(b"", given), Draft(b"", held)
        return [
            at
            for at, state in enumerate(given.states)
            if held.states[at : at + 1] != state or (state == CLAIMED and mine.token_at(at) != other.token_at(at))
        ]

    def cut(self, epoch: int, call: calls.Cut) -> Answer:
        for id, positions in call.items:
            packed = self.held.records.get(id)
            if packed is None or (not positions and not unpack(packed).is_alive):
                self.held.payloads.pop(id, None)
            elif positions:
                self._drop_payloads(id, unpack(packed), positions)
        return ok()

    # -- copying and comparing ---------------------------------------------------------------------------------------

    def queues(self, epoch: int, call: calls.Queues) -> Answer:
        return ok(calls.START, [QUEUE.encode()] if self.held.known else [])

    def metadata(self, epoch: int, call: calls.Metadata) -> Answer:
        held = self.held
        flat: list[object] = []
        for owner in sorted({*held.owners, *held.fenced}):
            flat += (owner.encode(), held.owners.get(owner, 0), 0 if owner in held.fenced else -1)
        return ok(calls.START, len(held.records), 0, 0, b"", b"", flat)

    def install(self, epoch: int, call: calls.Install) -> Answer:
        held = self.held
        held.known = True
        for owner, seq, fenced_ago_ms in _owners(call):
            if seq > held.owners.get(owner, 0):
                held.owners[owner] = seq
            if fenced_ago_ms >= 0:
                held.fenced.add(owner)
        return ok(0)

    def page(self, epoch: int, call: calls.Page) -> Answer:
        cursor, ids = self._ids_after(call.cursor)
        return ok(cursor, self._copies(ids), [], [])

    def read(self, epoch: int, call: calls.Read) -> Answer:
        ids = [id.encode() if isinstance(id, str) else id for id in call.items]
        return ok(self._copies(id for id in ids if id in self.held.records), [], [])

    def aside(self, epoch: int, call: calls.Aside) -> Answer:
        return ok(calls.START, [])  # nothing is damaged in the model

    def heads(self, epoch: int, call: calls.Heads) -> Answer:
        cursor, ids = (calls.START, call.items) if call.items else self._ids_after(call.cursor)
        flat: list[bytes] = []
        for id in ids:
            if id in self.held.records:
                flat += (id, self.held.records[id][HEAD])
        return ok(cursor, flat, [])

    def compare(self, epoch: int, call: calls.Compare) -> Answer:
        unknown: list[int] = []
        different: list[int] = []
        for at, (id, head) in enumerate(call.items, 1):
            packed = self.held.records.get(id)
            if packed is None:
                unknown.append(at)
            elif packed[HEAD] != head or (unpack(packed).is_alive and not self._is_whole(id, unpack(packed))):
                different.append(at)
        return ok(unknown, different)

    def _is_whole(self, id: Item, bundle: Bundle) -> bool:
        if id == LIMITS:
            return True
        if len(bundle.states) == 1 and not may_lack(bundle):
            return id in self.held.payloads
        return not self.lacks_payloads(id, bundle)

    def affirm(self, epoch: int, call: calls.Affirm) -> Answer:
        work = _Work(self, epoch)
        for id in call.items:
            draft = work.open(id)
            if draft and Rule.SCRUB_DECIDES in self.on:
                work.touch(draft)
            elif draft:
                draft.told = True
            for position in draft.own if draft else ():
                assert draft
                self.recall_result(draft, position)
        return ok(work.commit())

    def forward(self, epoch: int, call: calls.Forward) -> Answer:
        work = _Work(self, epoch)
        for id, packed, notes, _, payload in call.items:
            if work.open(id):
                continue
            draft = work.begin(id, unpack(packed))
            draft.notes = unpack_notes(notes)
            self.held.known = True
            if unpack(packed).is_alive and id != LIMITS:
                assert payload is not None, "the scrub forwards whole items only"
                self.held.payloads[id] = payload
            work.touch(draft)
        return ok(work.commit())

    def _ids_after(self, cursor: bytes) -> tuple[bytes, Sequence[Item]]:
        """A page of the ids that follow this one, and the cursor to go on from."""
        ids = sorted(id for id in self.held.records if cursor == calls.START or id > cursor)
        return (ids[PAGE - 1] if len(ids) > PAGE else calls.START), ids[:PAGE]

    def _copies(self, ids: Iterable[Item]) -> list[object]:
        flat: list[object] = []
        for id in ids:
            packed = self.held.records[id]
            notes = pack_notes(self.held.results.get(id, {}))
            flat += (id, packed, notes, b"0", self.held.payloads.get(id) if unpack(packed).is_alive else None)
        return flat


class _Work:
    """The bundles that a call has opened; what it decides about one is one new version."""

    def __init__(self, scripts: Scripts, epoch: int) -> None:
        self._scripts = scripts
        self._epoch = epoch
        self.opened: dict[Item, Draft] = {}

    def open(self, id: Item) -> Draft | None:
        """A bundle, None if it is not known."""
        if id in self.opened:
            return self.opened[id]
        packed = self._scripts.held.records.get(id)
        if packed is None:
            return None
        return self.opened.setdefault(id, Draft(id, unpack(packed), packed))

    def open_all(self) -> list[Draft]:
        drafts = (self.open(id) for id in sorted(self._scripts.held.records))
        return [draft for draft in drafts if draft]

    def begin(self, id: Item, bundle: Bundle) -> Draft:
        """A bundle that is not known here, or begins a new life."""
        self.opened[id] = Draft(id, bundle)
        return self.opened[id]

    def touch(self, draft: Draft) -> None:
        """Decide about a bundle: what the call changes belongs to its next version."""
        if not draft.decided:
            draft.decided = True
            draft.version = Version(self._epoch, draft.version.n + 1)

    def is_of_this_epoch(self, draft: Draft) -> bool:
        return draft.version.epoch == self._epoch

    def tell(self, draft: Draft) -> None:
        """Report a bundle as it is; what was decided under an earlier epoch is decided again."""
        if draft.version.epoch < self._epoch and Rule.STAMPED_ANEW in self._scripts.on:
            self.touch(draft)
        else:
            draft.told = True

    def commit(self) -> list[object]:
        """Store what was decided; return it, and what was told, as the reply carries it."""
        flat: list[object] = []
        for id, draft in self.opened.items():
            if draft.decided:
                draft.packed = draft.pack()
                self._scripts.keep(id, draft.packed, is_decided=True)
                self._scripts.keep_results(id, unpack(draft.packed), draft.notes)
            if draft.decided or draft.told:
                flat += (id, draft.packed, pack_notes(draft.notes), b"")
        return flat


def read_how(how: str | bytes) -> tuple[str, tuple[int, bytes] | None]:
    """The verb of a settlement; and of an ack with a result for how long that is kept, and the result."""
    if isinstance(how, str):
        return how.partition(" ")[0], None
    verb, ttl_ms, text = how.split(b" ", 2)
    return verb.decode(), (int(ttl_ms), text)


_BECAME = {"ack": GONE, "nack": WAITING, "release": WAITING, "bury": DEAD, "extend": CLAIMED}


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
        case "bury":
            draft.bury(run, failed=True)
        case _:
            draft.note_beginning(row)
            if draft.rows_of.count(row) != len(run):
                owner, seq = draft.rows[row - 1].owner, draft.rows[row - 1].seq
                draft.set(run, CLAIMED, draft.add_row(owner, seq))


def _rows(call: calls.Apply) -> Iterator[tuple[Item, bytes, bytes, bytes]]:
    """Id, record, results and payloads of each bundle; empty if none are given."""
    items = call.items
    if isinstance(items, calls.Rows):
        width, flat = 5 if call.whole else 4, items.flat
        items = [flat[at : at + width] for at in range(0, len(flat), width)]
    for id, record, notes, _, *rest in items:
        assert isinstance(record, bytes)
        yield _encoded(id), record, _encoded(notes), _encoded(rest[0]) if rest else b""


def _encoded(word: object) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


def _owners(call: calls.Install) -> Iterator[tuple[str, int, int]]:
    parts = iter(call.items.flat)
    for owner, seq, fenced_ago_ms in zip(parts, parts, parts, strict=True):
        yield owner.decode(), int(seq), int(fenced_ago_ms)
