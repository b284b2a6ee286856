"""What the scripts do to one queue on one server of the model, and what they reply to the library's calls.

A script runs alone and to its end.  ``test_scripts.py`` makes the same random calls here and to the real scripts, and
compares replies and records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.model.bundle import (
    ALIVE,
    CLAIMED,
    DEAD,
    GONE,
    WAITING,
    Draft,
    Text,
    may_lack,
    pack_notes,
    unpack,
    unpack_notes,
    unpack_saved,
)
from tests.model.content import HEAD, LIMITS, QUEUE, Content, Item, Work, is_itself, ok, place_of
from tests.model.naming import Naming
from tests.model.rules import Rule
from zkrq.protocol import calls
from zkrq.protocol.homing import MOVED
from zkrq.protocol.records import (
    FIRST,
    REFUSED,
    Bundle,
    State,
    Version,
)
from zkrq.protocol.replies import Answer

PAGE = 2
"""Bundles on a page, so that writes come between two pages."""


class Scripts(Naming):
    """One server's content, and a method for each script, by its name."""

    def run(self, epoch: int, call: calls.Call[Any]) -> Answer:
        """The answer to a call that was let in under this epoch."""
        answer: Answer = getattr(self, call.script)(epoch, call)
        return answer

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

    def declare(self, epoch: int, call: calls.Declare) -> Answer:
        work = Work(self, epoch)
        text = f"{call.section}:{call.settings}"
        draft = work.open(LIMITS)
        if draft is None:
            self.held.known = True
            work.touch(work.begin(LIMITS, Bundle(Version(0, 0), State.PAUSED.value, text=text)))
        else:
            work.tell(draft)
        return ok(b"", call.settings.encode(), work.commit())

    # -- looking -----------------------------------------------------------------------------------------------------

    def results(self, epoch: int, call: calls.Results) -> Answer:
        work = Work(self, epoch)
        told = [word for id in call.items for word in self._told(work, *place_of(id.encode()))]
        return ok(told, work.commit())

    def _told(self, work: Work, id: Item, position: int) -> tuple[bytes, bytes]:
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
        if draft.has_left(position):
            return MOVED.encode(), b""
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
        return ok(ready, 0, claimed, dead, 0, 0, -1, 0, 0, tombstones, 0, 0, b"", 0, 0, 0, 0, 0, 0)

    def repair_lines(self, epoch: int, call: calls.RepairLines) -> Answer:
        """What is claimed next is whatever a record says, so no line is ever lost."""
        return ok(b"0", 0)

    def repair_flows(self, epoch: int, call: calls.RepairFlows) -> Answer:
        """What is left of a flow is whatever records say."""
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
            self._take_saved(id, unpack(packed), unpack_saved(notes))
            if otherwise:
                superseded += (at, bytes(otherwise))
            if not counts.is_alive or is_itself(id):
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

    def _take_saved(self, id: Item, given: Bundle, texts: Mapping[int, Text]) -> None:
        """Store the states that came with a record, whichever record counts, unless that is of another life."""
        held = self.held.records.get(id)
        if held is None or unpack(held).pushed_at_ms != given.pushed_at_ms:
            return
        if Rule.SAVED_IS_EVERYWHERE not in self.on:  # what a claim gives goes to its holder alone
            texts = {position: text for position, text in texts.items() if text.version == given.version}
        self.keep_saved(id, unpack(held), texts)

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
            if packed is not None:
                self._drop_saved(id, unpack(packed), positions)
            if packed is None or (not positions and not unpack(packed).is_alive):
                self.held.payloads.pop(id, None)
            elif positions:
                self._drop_payloads(id, unpack(packed), positions)
        return ok()

    def _drop_saved(self, id: Item, bundle: Bundle, positions: bytes) -> None:
        """Drop the saved states of items that are gone; no positions: of all."""
        saved = self.held.saved.get(id, {})
        for at in [at for at in saved if not positions or at in positions]:
            if bundle.states[at] not in ALIVE:
                del saved[at]

    # -- coming home -------------------------------------------------------------------------------------------------

    def movable(self, epoch: int, call: calls.Movable) -> Answer:
        places, bundles, adopted = self.see_movable(epoch, call.count)
        return ok(places, self._copies(bundles), [], adopted)

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
        return ok(cursor, flat, [], [], 0)

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
        if is_itself(id):
            return True
        if len(bundle.states) == 1 and not may_lack(bundle):
            return id in self.held.payloads
        return not self.lacks_payloads(id, bundle)

    def affirm(self, epoch: int, call: calls.Affirm) -> Answer:
        work = Work(self, epoch)
        for id in call.items:
            draft = work.open(id)
            if draft and Rule.SCRUB_DECIDES in self.on:
                work.touch(draft)
            elif draft:
                draft.told = True
            for position in draft.own if draft else ():
                assert draft
                self.recall_result(draft, position)
            if draft:
                self.recall_saved(draft, range(draft.size), anew=draft.decided)
        return ok(work.commit())

    def forward(self, epoch: int, call: calls.Forward) -> Answer:
        work = Work(self, epoch)
        for id, packed, notes, _, payload in call.items:
            if work.open(id):
                continue
            draft = work.begin(id, unpack(packed))
            draft.notes, draft.saved = unpack_notes(notes), unpack_saved(notes)
            self.held.known = True
            if unpack(packed).is_alive and not is_itself(id):
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
            notes = pack_notes(self.held.results.get(id, {}), self.held.saved.get(id, {}))
            flat += (id, packed, notes, b"0", self.held.payloads.get(id) if unpack(packed).is_alive else None)
        return flat


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
