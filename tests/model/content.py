"""What one server of the model holds of one queue, and how scripts store it.

There is no time: a lease is over, and a push is old, when ``Clock`` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from tests.model.bundle import (
    ALIVE,
    DEAD,
    GONE,
    REMOVED,
    Draft,
    Text,
    filled,
    lacks,
    pack_notes,
    put_together,
    saves_in,
    taken_apart,
    unpack,
)
from tests.model.rules import Rule, Rules
from zkrq.protocol import calls
from zkrq.protocol.calls import bundle_and_position
from zkrq.protocol.flows import Stage
from zkrq.protocol.payloads import split
from zkrq.protocol.records import (
    Bundle,
    State,
    Version,
    is_alone,
)
from zkrq.protocol.replies import Answer, Status

Item = bytes
"""The id of an item, or of a bundle."""

Token = str

QUEUE = "queue"

LIMITS = b"\1limits"
"""Id of the record that says whether the queue keeps an order."""

PAUSED = State.PAUSED.value
"""The state of a record that is about the queue itself, and in force."""

SLOTS_MAX = 1_000
"""More items than a schedule has."""

HEAD = slice(0, 9)
"""What ``Heads`` names of a record: format and version."""


def flow_id(name: str) -> Item:
    """The id of the record of a flow."""
    return f"\1flow {name}".encode()


def stage_of(packed: bytes | None) -> Stage:
    """How far a flow is whose record this is."""
    if packed is None:
        return Stage.UNKNOWN
    flow = unpack(packed)
    return Stage(flow.text[0]) if flow.states == PAUSED else Stage.ENDED


def is_itself(id: Item) -> bool:
    """Tell whether a record is about the queue itself."""
    return id[:1] == b"\1"


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
    homed: bool = False
    """Whether the limit or the order holds where a record says so, and the items of other shards come home for it."""


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
    saved: dict[Item, dict[int, Text]] = field(default_factory=dict[Item, dict[int, Text]])
    """The same of saved states."""
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
        saved = {id: dict(texts) for id, texts in self.saved.items()}
        copies = dict(self.records), dict(self.payloads), results, saved, dict(self.owners), set(self.fenced)
        return Content(self.epoch, self.generation, self.known, *copies, self.order, self.claim_n, dict(self.ended))


class Storing:
    """Store records, payloads and results on one server."""

    def __init__(self, on: Rules, clock: Clock, held: Content) -> None:
        self.on = on
        self.clock = clock
        self.held = held
        self.is_askew: Callable[[], bool] = lambda: False
        """Whether this server's own clock is wrong."""

    def keep(self, id: Item, packed: bytes, *, is_decided: bool = False) -> None:
        """Store a record.  ``is_decided``: here, not by another server."""
        held, bundle = self.held, unpack(packed)
        if bundle.claim_n is not None:
            self._follow(id, bundle, is_decided=is_decided)
        if id in held.results and id in held.records:
            before, now = Draft(id, unpack(held.records[id])), Draft(id, bundle)
            for at in [at for at in held.results[id] if at < min(before.size, now.size)]:
                is_same = before.states[at] == now.states[at] and before.token_at(at) == now.token_at(at)
                if before.states[at] == GONE and not is_same:
                    del held.results[id][at]
        if Rule.BYTES_GO_LAST not in self.on:
            self._drop_payloads(id, bundle, range(len(bundle.states)))
        if not bundle.is_alive and Rule.TOMBSTONE_STAYS not in self.on:
            held.records.pop(id, None)
        else:
            held.records[id] = packed
        if id in held.results:
            held.results[id] = {at: text for at, text in held.results[id].items() if at in bundle.own}
        if id in held.saved:
            named = saves_in(bundle)
            if Rule.SAVED_TEXT_GOES_LAST not in self.on:
                named = {at: number for at, number in named.items() if bundle.states[at] in ALIVE}
            held.saved[id] = {at: text for at, text in held.saved[id].items() if at in named}

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

    def keep_saved(self, id: Item, bundle: Bundle, texts: Mapping[int, Text]) -> None:
        """Store the states that came for items that have one, unless a later one is there."""
        for position, text in texts.items():
            held = self.held.saved.get(id, {}).get(position)
            is_later = not held or text.version > held.version or Rule.SAVED_TEXT_HAS_A_VERSION not in self.on
            if is_later and position in saves_in(bundle):
                self.held.saved.setdefault(id, {})[position] = text

    def recall_saved(self, draft: Draft, positions: Iterable[int], *, anew: bool) -> None:
        """Send the states of items with their record; ``anew``: as saved by its version."""
        held = self.held.saved.get(draft.id, {})
        for position in positions:
            if position in draft.saves and (text := draft.saved.get(position, held.get(position))):
                is_anew = anew and Rule.SAVED_IS_EVERYWHERE in self.on
                draft.saved[position] = text._replace(version=draft.version) if is_anew else text

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

    @property
    def needs_home(self) -> bool:
        """Whether the server has heard that one server has to decide about all claims of the queue."""
        return self.clock.homed and LIMITS in self.held.records


class Work:
    """The bundles that a call has opened; what it decides about one is one new version."""

    def __init__(self, scripts: Storing, epoch: int) -> None:
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

    def _came(self, draft: Draft) -> str:
        """As what a member of a bundle had come to life before this call."""
        known = self._scripts.held.records.get(draft.id)
        return "" if known is None else Draft(draft.id, unpack(known)).coming

    def _raise_stamp(self, name: str) -> None:
        """Note that a member of a flow has come to life."""
        flow = self.open(flow_id(name))
        runs = flow and flow.states[0] == PAUSED and flow.text[0] != Stage.ENDED
        if flow and runs and Rule.LIFE_RAISES_THE_STAMP in self._scripts.on:
            self.touch(flow)
            stage, stamp, rest = flow.text.split(" ", 2)
            flow.text = f"{stage} {int(stamp) + 1} {rest}"

    def commit(self) -> list[object]:
        """Store what was decided; return it, and what was told, as the reply carries it."""
        for draft in list(self.opened.values()):
            if draft.flow and draft.decided and draft.coming not in ("", self._came(draft)):
                self._raise_stamp(draft.flow)
        flat: list[object] = []
        for id, draft in self.opened.items():
            if draft.decided:
                draft.packed = draft.pack()
                self._scripts.keep(id, draft.packed, is_decided=True)
                self._scripts.keep_results(id, unpack(draft.packed), draft.notes)
                self._scripts.keep_saved(id, unpack(draft.packed), draft.saved)
            if draft.decided or draft.told:
                flat += (id, draft.packed, pack_notes(draft.notes, draft.saved), b"")
        return flat
