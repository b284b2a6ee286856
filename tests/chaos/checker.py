"""Find violations in the entries of a run.  Plain values, no I/O, no clock.

Total-queue accounting: every item that was ever pushed is acked, or may have been acked, or is still in the queue;
every other observation is a violation named below.  The fencing token orders claims in time, not the
moment of its delivery: a delivery that was in flight before an ack has a smaller token than the acked claim, whatever
the clocks of the handlers say.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations, takewhile
from typing import NamedTuple

from tests.chaos.record import Entry, Kind, Token

ACK = "ack"
NOT_FOUND = "not found"
"""What a cancel says that has found nothing."""

HANDED_BACK = frozenset({"nack", "release"})
"""Verbs after which the item is to be delivered again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one run; items are given by their ids, some with what is wrong with them.

    lost: its push returned, no ack of it returned or may have happened, and it is not in the queue at the end.
    unexpected: delivered before any push of it was begun that may have happened.
    revived: delivered, by a later claim, after an ack that returned.
    two_holders: held by two who both had reason to believe so, or an outlived claim was settled.
    stranded: in the queue, or claimed, or a dead letter, when everything should have been drained.
    duplicated: delivered more often than it was handed back by its holders.  Allowed.
    refused: pushes that were not made because another item had their key.
    cancelled: items that a cancel has found.
    misruled: sentences about what else was promised and not kept: of keys, cancels, pauses and sizes.
    recovered: a push of it raised ``OutcomeUnknown``, and it was delivered.
    fenced_late: holders who learned that they had been fenced only after the next one had begun.  Allowed for as long
    as such a holder may not know it.
    push_stall, delivery_stall: the longest time without one, in seconds, while there was load.
    """

    pushed: int
    delivered: int
    acked: int
    lost: tuple[str, ...]
    unexpected: tuple[str, ...]
    revived: tuple[str, ...]
    two_holders: tuple[str, ...]
    stranded: tuple[str, ...]
    misruled: tuple[str, ...]
    refused: int
    cancelled: int
    duplicated: int
    recovered: int
    fenced_late: int
    push_stall: float
    delivery_stall: float

    @property
    def broken(self) -> bool:
        """Whether anything happened that must not."""
        return bool(self.lost or self.unexpected or self.revived or self.two_holders or self.stranded or self.misruled)


class Span(NamedTuple):
    """One holder of an item, from its delivery until it began to settle, learned of its loss, or was stopped."""

    who: str
    token: Token
    owner: str
    begin: float
    end: float


def check(entries: Iterable[Entry], left: Mapping[str, str], *, notice: float) -> Outcome:
    """Judge a run.

    ``left``: what is in the queue at the end: id -> in which state.  ``notice``: seconds for which
    a holder that was fenced may not know it.
    """
    ordered = sorted(entries, key=lambda entry: entry.at)
    by_item: defaultdict[str, list[Entry]] = defaultdict(list)
    stops: defaultdict[str, list[float]] = defaultdict(list)
    for entry in ordered:
        if entry.id:
            by_item[entry.id].append(entry)
        elif entry.kind is Kind.STOPPED:
            stops[entry.detail].append(entry.at)
    ended = _ended(ordered)
    over = ordered[-1].at if ordered else 0.0
    two_holders: list[str] = []
    fenced_late = 0
    for id, story in by_item.items():
        spans = _spans(story, stops, over)
        late, overlaps = _overlaps(spans, ended, notice)
        fenced_late += late
        two_holders += [f"{id}: {sentence}" for sentence in (*overlaps, *_outlived(story, spans))]
    return Outcome(
        pushed=sum(_has(story, Kind.PUSHED) for story in by_item.values()),
        delivered=sum(entry.kind is Kind.DELIVERED for entry in ordered),
        acked=sum(_has(story, Kind.SETTLED, ACK) for story in by_item.values()),
        lost=tuple(id for id in _those(by_item, _is_unsettled) if id not in left),
        unexpected=_those(by_item, _is_unexpected),
        revived=_those(by_item, _is_revived),
        two_holders=tuple(two_holders),
        stranded=tuple(f"{id}: {state}" for id, state in sorted(left.items())),
        misruled=tuple(misruled(ordered, by_item)),
        refused=sum(entry.kind is Kind.DUPLICATE for entry in ordered),
        cancelled=sum(_cancelled_at(story) < math.inf for story in by_item.values()),
        duplicated=sum(map(_is_duplicated, by_item.values())),
        recovered=sum(_has(story, Kind.PUSH_UNKNOWN) and _has(story, Kind.DELIVERED) for story in by_item.values()),
        fenced_late=fenced_late,
        push_stall=_stall(ordered, Kind.PUSHED),
        delivery_stall=_stall(ordered, Kind.DELIVERED),
    )


def _ended(ordered: Sequence[Entry]) -> set[str]:
    """The owners that were fenced, or whose session was over, before all were told to end."""
    told = takewhile(lambda entry: entry.kind is not Kind.DISMISSED, ordered)
    return {entry.detail for entry in told if entry.kind is Kind.OWNER_ENDED}


def _those(by_item: Mapping[str, list[Entry]], judge: Callable[[Sequence[Entry]], bool]) -> tuple[str, ...]:
    return tuple(sorted(id for id, story in by_item.items() if judge(story)))


def _has(story: Sequence[Entry], kind: Kind, detail: str | None = None) -> bool:
    return any(entry.kind is kind and detail in (None, entry.detail) for entry in story)


def _is_unsettled(story: Sequence[Entry]) -> bool:
    """Its push returned, and neither ack nor cancel has happened: so it is to be in the queue."""
    return _has(story, Kind.PUSHED) and not (_may_be_acked(story) or _may_be_cancelled(story))


def _may_be_cancelled(story: Sequence[Entry]) -> bool:
    """Whether a cancel found it, or was begun and its outcome is not known."""
    begun = sum(entry.kind is Kind.CANCELLING for entry in story)
    in_vain = sum(
        entry.kind is Kind.CANCEL_REFUSED or (entry.kind is Kind.CANCELLED and entry.detail == NOT_FOUND)
        for entry in story
    )
    return begun > in_vain


def _may_be_acked(story: Sequence[Entry]) -> bool:
    """Whether an ack returned, or was begun and its outcome is not known: not told, or never heard of again."""
    if any(entry.kind in (Kind.SETTLED, Kind.SETTLE_UNKNOWN) and entry.detail == ACK for entry in story):
        return True
    open_acks: set[tuple[str, Token | None]] = set()
    for entry in story:
        claim = (entry.who, entry.token)
        if entry.kind is Kind.SETTLING and entry.detail == ACK:
            open_acks.add(claim)
        elif entry.kind in (Kind.SETTLE_REFUSED, Kind.LOST):
            open_acks.discard(claim)
    return bool(open_acks)


def _is_unexpected(story: Sequence[Entry]) -> bool:
    """A push that was refused did not happen, so nothing may be delivered until a later one is begun."""
    first_delivery = next((entry.at for entry in story if entry.kind is Kind.DELIVERED), None)
    if first_delivery is None:
        return False
    begun: float | None = None
    for entry in story:
        if entry.kind is Kind.PUSHING and begun is None:
            begun = entry.at
        elif entry.kind in (Kind.PUSH_REFUSED, Kind.DUPLICATE):
            begun = None
        elif entry.kind in (Kind.PUSHED, Kind.PUSH_UNKNOWN):
            break
    return begun is None or first_delivery < begun


def _is_revived(story: Sequence[Entry]) -> bool:
    acks = [(entry.token, entry.at) for entry in story if entry.kind is Kind.SETTLED and entry.detail == ACK]
    return any(
        delivery.token > token or (delivery.token == token and delivery.at > at)
        for delivery in story
        if delivery.kind is Kind.DELIVERED and delivery.token
        for token, at in acks
        if token
    )


def _is_duplicated(story: Sequence[Entry]) -> bool:
    deliveries = sum(entry.kind is Kind.DELIVERED for entry in story)
    handed_back = {
        (entry.who, entry.token)
        for entry in story
        if entry.kind in (Kind.SETTLED, Kind.SETTLE_UNKNOWN) and entry.detail in HANDED_BACK
    }
    return deliveries > 1 + len(handed_back)


# -- keys, cancels, pauses, sizes --------------------------------------------------------------------------------------


class Life(NamedTuple):
    """From when to when an item with a key was certainly there: from its push's return until somebody began to remove
    it.  ``gone``: when it certainly was there no more."""

    id: str
    key: str
    begun: float
    there: float
    doubted: float
    gone: float


def misruled(ordered: Sequence[Entry], by_item: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    """What was promised of keys, cancels, pauses and sizes, and not kept."""
    lives = {id: _life(id, story) for id, story in by_item.items()}
    yield from _shared_keys(by_item, lives)
    for id, story in by_item.items():
        yield from _false_cancels(id, story, lives[id])
    yield from _paused_deliveries(ordered)
    yield from _excess(ordered)


def _life(id: str, story: Sequence[Entry]) -> Life:
    pushing = [entry for entry in story if entry.kind is Kind.PUSHING]
    removing = [
        entry.at
        for entry in story
        if entry.kind is Kind.CANCELLING or (entry.kind is Kind.SETTLING and entry.detail == ACK)
    ]
    acked = [entry.at for entry in story if entry.kind is Kind.SETTLED and entry.detail == ACK]
    return Life(
        id,
        pushing[0].detail if pushing else "",
        begun=min((entry.at for entry in pushing), default=math.inf),
        there=min((entry.at for entry in story if entry.kind is Kind.PUSHED), default=math.inf),
        doubted=min(removing, default=math.inf),
        gone=min([*acked, _cancelled_at(story)]),
    )


def _cancelled_at(story: Sequence[Entry]) -> float:
    """When a cancel returned that had found it."""
    found = (entry.at for entry in story if entry.kind is Kind.CANCELLED and entry.detail != NOT_FOUND)
    return min(found, default=math.inf)


def _shared_keys(by_item: Mapping[str, Sequence[Entry]], lives: Mapping[str, Life]) -> Iterator[str]:
    """A key belongs to one item at a time, and to nobody when that is done."""
    holders: defaultdict[str, list[Life]] = defaultdict(list)
    for life in lives.values():
        if life.key and life.there < math.inf:
            holders[life.key].append(life)
    for some in holders.values():
        for one, other in permutations(some, 2):
            if one.there < other.begun and other.there < one.doubted:
                yield f"{other.id}: given the key {one.key}, which {one.id} had"
    for id, story in by_item.items():
        begun = 0.0
        for entry in story:
            if entry.kind is Kind.PUSHING:
                begun = entry.at
            elif entry.kind is Kind.DUPLICATE:
                first = lives.get(entry.detail)
                if first is None or first.key != lives[id].key or first.begun > entry.at or first.gone < begun:
                    yield f"{id}: told that {lives[id].key} belongs to {entry.detail}, which is {first}"


def _false_cancels(id: str, story: Sequence[Entry], life: Life) -> Iterator[str]:
    """What is there is found; what was found is neither claimed nor settled any more."""
    cancelled_at, begun = _cancelled_at(story), 0.0
    asked: dict[tuple[str, Token | None], float] = {}
    settling: dict[tuple[str, Token | None], float] = {}
    first = True
    for entry in story:
        match entry.kind:
            case Kind.CANCELLING:
                begun = entry.at
            case Kind.CANCELLED:
                doubted = min(
                    (at.at for at in story if at.kind is Kind.SETTLING and at.detail == ACK), default=math.inf
                )
                if first and entry.detail == NOT_FOUND and life.there < begun and entry.at < doubted:
                    yield f"{id}: not found by a cancel, though it was there"
                first = False
            case Kind.CANCEL_UNKNOWN:
                first = False
            case Kind.ASKED:
                asked[entry.who, entry.token] = entry.at
            case Kind.DELIVERED if asked.get((entry.who, entry.token), 0.0) > cancelled_at:
                yield f"{id}: claimed after it was cancelled"
            case Kind.SETTLING:
                settling.setdefault((entry.who, entry.token), entry.at)
            case Kind.SETTLED if settling.get((entry.who, entry.token), 0.0) > cancelled_at:
                yield f"{id}: its {entry.detail} returned, after a cancel had"
            case _:
                pass


def _paused_deliveries(ordered: Sequence[Entry]) -> Iterator[str]:
    """Between the return of a pause and the next resume, nobody who asks is given anything of the small queue."""
    pauses: list[tuple[float, float]] = []
    since: float | None = None
    for entry in ordered:
        if entry.kind is Kind.PAUSED:
            since = entry.at
        elif entry.kind is Kind.RESUMING and since is not None:
            pauses.append((since, entry.at))
            since = None
    asked: dict[tuple[str, str, Token | None], float] = {}
    for entry in ordered:
        claim = (entry.who, entry.id, entry.token)
        if entry.kind is Kind.ASKED and entry.detail:
            asked[claim] = entry.at
        elif entry.kind is Kind.DELIVERED and claim in asked:
            for begin, end in pauses:
                if begin < asked[claim] and entry.at < end:
                    yield f"{entry.id}: handed to {entry.who} at {entry.at:.3f}, paused since {begin:.3f}"


def _excess(ordered: Sequence[Entry]) -> Iterator[str]:
    """The small queue is no larger than it may be, but for calls of which nobody knows how they ended."""
    open_calls: Counter[str] = Counter()
    unknown = 0
    for entry in ordered:
        match entry.kind:
            case Kind.PUSHING | Kind.SETTLING | Kind.CANCELLING:
                open_calls[entry.id] += 1
            case Kind.PUSH_UNKNOWN | Kind.SETTLE_UNKNOWN | Kind.CANCEL_UNKNOWN | Kind.LOST:
                unknown += 1
            case Kind.SIZE:
                size, most = map(int, entry.detail.split())
                if size > most + unknown + open_calls.total():
                    yield f"{size} items in a queue of at most {most}, {unknown} outcomes were unknown"
            case _:
                pass
        if entry.kind in _ENDS and open_calls[entry.id]:
            open_calls[entry.id] -= 1


_ENDS = frozenset(
    {
        *(Kind.PUSHED, Kind.DUPLICATE, Kind.PUSH_UNKNOWN, Kind.PUSH_REFUSED),
        *(Kind.SETTLED, Kind.SETTLE_UNKNOWN, Kind.SETTLE_REFUSED, Kind.LOST),
        *(Kind.CANCELLED, Kind.CANCEL_UNKNOWN, Kind.CANCEL_REFUSED),
    }
)
"""What ends a push, a settling or a cancel."""


def _spans(story: Sequence[Entry], stops: Mapping[str, Sequence[float]], over: float) -> list[Span]:
    """The holders of one item, in the order of their tokens."""
    spans: list[Span] = []
    for entry in story:
        if entry.kind is not Kind.DELIVERED or entry.token is None:
            continue
        ends = [
            later.at
            for later in story
            if later.kind in (Kind.SETTLING, Kind.LOST)
            and (later.who, later.token) == (entry.who, entry.token)
            and later.at >= entry.at
        ]
        ends += [at for at in stops.get(entry.who, ()) if at >= entry.at]
        spans.append(Span(entry.who, entry.token, entry.detail, entry.at, min(ends, default=over)))
    return sorted(spans, key=lambda span: (span.token, span.begin))


def _overlaps(spans: Sequence[Span], ended: Collection[str], notice: float) -> tuple[int, list[str]]:
    """How many overlaps are excused because the earlier holder had been fenced and could not know yet; the others."""
    excused, bad = 0, list[str]()
    for earlier, later in combinations(spans, 2):
        seconds = min(earlier.end, later.end) - max(earlier.begin, later.begin)
        if seconds <= 0:
            continue
        if earlier.owner in ended and earlier.owner != later.owner and seconds <= notice:
            excused += 1
        else:
            bad.append(f"{_named(earlier)} and {_named(later)} both held it for {seconds:.3f} s")
    return excused, bad


def _outlived(story: Sequence[Entry], spans: Sequence[Span]) -> list[str]:
    """Claims whose settling was begun after a later claim's delivery, and was accepted."""
    begun: dict[tuple[str, Token | None], float] = {}
    accepted: dict[tuple[str, Token | None], float] = {}
    for entry in story:
        claim = (entry.who, entry.token)
        if entry.kind is Kind.SETTLING:
            begun[claim] = entry.at
        elif entry.kind is Kind.SETTLED and claim in begun:
            accepted[claim] = begun[claim]
    return [
        f"{_named(earlier)} was settled after {_named(later)} had begun"
        for earlier, later in combinations(spans, 2)
        if earlier.token < later.token and accepted.get((earlier.who, earlier.token), later.begin) > later.begin
    ]


def _named(span: Span) -> str:
    return f"{span.who} ({span.token[0]}.{span.token[1]} from {span.begin:.3f})"


def _stall(ordered: Sequence[Entry], success: Kind) -> float:
    """The longest time without a success between the begin and the end of the load."""
    if not ordered:
        return 0.0
    begin = next((entry.at for entry in ordered if entry.kind is Kind.LOAD_BEGUN), ordered[0].at)
    end = next((entry.at for entry in ordered if entry.kind is Kind.LOAD_ENDED), ordered[-1].at)
    moments = [begin, *(entry.at for entry in ordered if entry.kind is success and begin < entry.at < end), end]
    return max(later - earlier for earlier, later in pairwise(moments))
