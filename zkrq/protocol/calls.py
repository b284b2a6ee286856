"""Typed calls: for every script a class whose fields are its arguments, and a value for its reply.

This is the only module that knows a script's arguments by their positions and reads a reply by positions.  A field has
the name that the argument has in the header of its Lua file, and a reply's values come in the header's order; a test
compares both.  Arguments that repeat in the header (after its slash) are the field ``items``.

Units: names in ``_ms`` are milliseconds; ``clock`` and names in ``_us`` are microseconds since 1970 by the clock of
the server that is called, 0 where that is unknown.  Scripts count positions in a list from 1; the values here count
from 0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast

from zkrq.protocol.clocks import PUT_WINDOW_MS
from zkrq.protocol.records import GONE_BYTE, STATE_AT, Record, State, Version, above, pack
from zkrq.protocol.scripts import SCRIPTS

R = TypeVar("R")

Word = bytes | str | int
"""What a command is made of."""

Body = Sequence[Any]
"""What follows OK in a reply."""

START = b"0"
"""The cursor with which a scan begins; its last page returns it again."""

FROM_NOW = 0
"""In place of a clock: durations count from the moment at which the server executes the call."""


class Call(Generic[R]):
    """One call of one script; ``R`` is what an OK reply says."""

    __slots__ = ()

    script: ClassVar[str]
    put_window_ms: ClassVar[int] = PUT_WINDOW_MS
    queue: str
    """The queue whose keys the script uses, empty where it concerns the server alone."""
    items: Any
    """The arguments that repeat, where the script has such."""

    def words(self) -> list[Word]:
        """The arguments that follow epoch and generation, as they are sent."""
        single, width = _shape(self.script)
        words = [int(word) if isinstance(word, bool) else word for word in single(self)]
        if width:
            items = self.items
            if isinstance(items, Rows):
                words += items.flat
            elif width == 1:
                words += items
            else:
                words += chain.from_iterable(items)
        return words

    @abstractmethod
    def read(self, body: Body) -> R:
        """What the values after OK say."""


@cache
def _shape(script: str) -> tuple[Callable[[object], tuple[Word, ...]], int]:
    """How to get the arguments that do not repeat, and how many do."""
    header = SCRIPTS[script]
    names = header.arguments[2:]
    match len(names):
        case 0:
            return (lambda _: ()), len(header.repeated)
        case 1:
            get = attrgetter(names[0])
            return (lambda call: (get(call),)), len(header.repeated)
        case _:
            return cast("Callable[[object], tuple[Word, ...]]", attrgetter(*names)), len(header.repeated)


class Paging(Call[R]):
    """A call whose reply is one page of many, with the cursor to go on from."""

    __slots__ = ()

    def at(self, cursor: bytes) -> Self:
        """The same call for the page that begins there."""
        return cast("Self", replace(cast("Any", self), cursor=cursor))


class Rows:
    """Values of many items in one flat list, as they are on the wire: no object for each item."""

    __slots__ = ("flat",)

    def __init__(self, flat: Sequence[Any] = ()) -> None:
        self.flat = flat


class Records(Rows):
    """Decided records: id, record, left_ms of each item; an empty record is like the one before it.

    ``left_ms`` is the time until the item is due, or until its claim ends; negative for what is past.
    """

    __slots__ = ()

    def __len__(self) -> int:
        return len(self.flat) // 3

    def __iter__(self) -> Iterator[tuple[bytes, bytes, int]]:
        parts = iter(self.flat)
        return zip(parts, parts, parts, strict=True)

    def __add__(self, others: Records) -> Records:
        return Records([*self.flat, *others.flat])

    @property
    def ids(self) -> Sequence[bytes]:
        return self.flat[::3]

    def gone(self) -> list[bytes]:
        """Ids of the items that were removed."""
        ids: list[bytes] = []
        is_gone = False
        for id, record, _ in self:
            if record:
                is_gone = record[STATE_AT] == GONE_BYTE
            if is_gone:
                ids.append(id)
        return ids

    def with_payloads(self, payloads: Mapping[bytes, bytes]) -> Rows:
        """The rows with a payload each, empty for an item that is not among these."""
        flat: list[Word] = []
        for id, record, left_ms in self:
            flat += (id, record, left_ms, payloads.get(id, b""))
        return Rows(flat)


class Put(NamedTuple):
    """One push: the record that the producer made, the milliseconds until the item is due (as a text also, after a
    space, until it expires), and the encoded item."""

    id: str
    record: bytes
    delay_ms: int | str
    payload: bytes

    def above(self, n: int) -> Put:
        """The same push, of an id that has tombstones of up to this ``n``."""
        return self._replace(record=above(self.record, n))


class Copied(NamedTuple):
    """One item as one server holds it.  ``payload`` is None where that server has none."""

    id: bytes
    record: bytes
    left_ms: bytes
    payload: bytes | None


# -- in every server's life -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seal(Call[None]):
    """Have the server adopt the epoch; the answer also shows that it is in sync."""

    script: ClassVar[str] = "seal"
    queue: str = ""

    def read(self, body: Body) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Room(Call[None]):
    """Ask whether the server takes what needs memory."""

    script: ClassVar[str] = "room"
    queue: str = ""

    def read(self, body: Body) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Enrol(Call[None]):
    """Give the server a new generation if it still has the ``expected`` one and ``clock`` is at most ``window_ms`` ago.

    ``deployment`` is the nonce of the namespace's founding.  ``holding``: whether it may hold queues.
    """

    script: ClassVar[str] = "enrol"
    expected: str
    name: str
    deployment: str
    clock: int
    window_ms: int
    holding: bool
    queue: str = ""

    def read(self, body: Body) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Reserve(Call[None]):
    """Take, or keep, the right to repair the server for ``hold_ms``."""

    script: ClassVar[str] = "reserve"
    repairer: str
    hold_ms: int
    queue: str = ""

    def read(self, body: Body) -> None:
        return None


# -- pushing ----------------------------------------------------------------------------------------------------------


class PutReply(NamedTuple):
    """Positions of the puts that were refused for their age, and, of those whose id is gone, the ``n`` of its
    tombstone by position."""

    late: Sequence[int]
    gone: Mapping[int, int]


_ALL_PUT = PutReply((), {})


@dataclass(frozen=True, slots=True)
class PutAll(Call[PutReply]):
    """Apply plain pushes of new ids."""

    script: ClassVar[str] = "put"
    queue: str
    items: Sequence[Put]

    def read(self, body: Body) -> PutReply:
        late, gone = body
        if not late and not gone:
            return _ALL_PUT
        return PutReply(_from_0(late), dict(zip(_from_0(gone[::2]), gone[1::2], strict=True)))


# -- deciding ---------------------------------------------------------------------------------------------------------


class Decision(Call[R]):
    """A call by which a queue's primary decides.  The other servers of the view are then given the decided records."""

    __slots__ = ()

    always_told: ClassVar[bool] = True
    """Whether the other servers are asked where nothing was decided, too: they know if this is still the primary."""

    @property
    def fenced(self) -> str:
        """The owner that every server refuses from then on, or empty."""
        return ""

    @property
    def puts(self) -> Sequence[Put]:
        """The new items that the call decides about."""
        return ()

    def under(self, *, trim: bool, again: bool) -> Self:
        """The call as it is sent under one view.

        ``trim``: it may drop old tombstones.  ``again``: another primary may have decided the same before.
        """
        return self

    def decided(self, reply: R, epoch: int) -> Records:
        """The records of everything that was decided under this epoch: those of the reply, where it has all."""
        records: Any = getattr(reply, "records", reply)
        return records


class Trimming(Decision[R]):
    """A decision that drops old tombstones as well."""

    __slots__ = ()

    trim: bool

    def under(self, *, trim: bool, again: bool) -> Self:
        return cast("Self", replace(cast("Any", self), trim=trim)) if trim != self.trim else self


class PushReply(NamedTuple):
    """``outcomes`` by position: ``+`` there, ``=`` and the id of the item that has the key, ``D`` pushed before and
    gone, ``F`` the queue is full, ``L`` too late."""

    outcomes: Sequence[bytes]
    records: Records


@dataclass(frozen=True, slots=True)
class Push(Decision[PushReply]):
    """Decide pushes of items that have a key, whose queue has a limit (``max_size``, 0: none), or whose id is gone.

    ``again``: another primary may have decided the same pushes before.
    """

    script: ClassVar[str] = "push"
    queue: str
    max_size: int
    items: Sequence[Put]
    again: bool = False

    @property
    def puts(self) -> Sequence[Put]:
        return self.items

    def under(self, *, trim: bool, again: bool) -> Push:
        return replace(self, again=again) if again != self.again else self

    def read(self, body: Body) -> PushReply:
        outcomes, records = body
        return PushReply(outcomes, Records(records))


class ClaimReply(NamedTuple):
    """``next_ms`` until something becomes ready by itself, 0: ask again immediately, -1: nothing is on its way.

    ``payloads`` are those of the first records, None for a record that was decided and not handed out.  ``clock`` is
    the server's.
    """

    next_ms: int
    dropped_letters: int
    payloads: Sequence[bytes | None]
    clock: int
    records: Records


@dataclass(frozen=True, slots=True)
class Claim(Trimming[ClaimReply]):
    """Claim up to ``count`` items for ``lease_ms``; a request that is repeated under its ``seq`` gets the same items.

    ``waiter`` is the channel to wake when something becomes ready, empty: none.  An item that was delivered
    ``max_attempts`` times is a dead letter, 0: no limit.  ``expired``: the state of an item that outlived its time to
    live.  ``dead_max`` dead letters are kept for ``dead_age_ms``, 0: without limit.  ``clock``: what the server's clock
    should say by now.
    """

    script: ClassVar[str] = "claim"
    always_told: ClassVar[bool] = False  # made again and again, mostly in vain
    queue: str
    owner: str
    seq: int
    count: int
    lease_ms: int
    waiter: str
    max_attempts: int
    expired: str
    dead_max: int
    dead_age_ms: int
    clock: int = 0
    trim: bool = False

    def at_clock(self, clock: int) -> Claim:
        """The same request with what the server's clock should say when it is sent."""
        return replace(self, clock=clock)

    def read(self, body: Body) -> ClaimReply:
        next_ms, dropped, payloads, clock, records = body
        return ClaimReply(next_ms, dropped, payloads, clock, Records(records))


Settlement = tuple[str, bytes, str, str]
"""What is to become of one claim: id, version, token, how.  ``version`` is the record's, ``token`` names the claim
request; ``how`` is a verb, for all but ``ack`` followed by milliseconds and a text, with a space between.  A plain
tuple, because one is made for every item that is settled."""


class SettleReply(NamedTuple):
    """``outcomes`` by position: 0 the claim is lost, 1 done, more: acked, and the ``n`` of the item's version now.

    ``records`` tell of everything but those acks; ``buried_us`` is the moment that their tombstones carry.
    """

    dropped_letters: int
    buried_us: int
    outcomes: Sequence[int]
    records: Records


@dataclass(frozen=True, slots=True)
class Settle(Trimming[SettleReply]):
    """Decide what becomes of claimed items; ``dead_max`` and ``dead_age_ms`` as for ``Claim``."""

    script: ClassVar[str] = "settle"
    queue: str
    dead_max: int
    dead_age_ms: int
    items: Sequence[Settlement]
    trim: bool = False

    def read(self, body: Body) -> SettleReply:
        dropped, buried_us, outcomes, records = body
        return SettleReply(dropped, buried_us, outcomes, Records(records))

    def decided(self, reply: SettleReply, epoch: int) -> Records:
        """Make the records of the plain acks, which the reply leaves out to save bytes."""
        flat: list[Word] = []
        known: tuple[int, str] | None = None
        record = b""
        for (id, _, token, _), n in zip(self.items, reply.outcomes, strict=True):
            if n > 1:
                if known != (n, token):
                    known = n, token
                    record = pack(_tombstone(epoch, n, token, reply.buried_us))
                flat += (id.encode(), record, 0)
                record = b""  # those that follow are alike
        return Records([*reply.records.flat, *flat]) if flat else reply.records


class FenceReply(NamedTuple):
    """The cursor to go on from, and the claims that were requeued."""

    cursor: bytes
    records: Records


@dataclass(frozen=True, slots=True)
class Fence(Decision[FenceReply]):
    """Refuse a dead owner from now on and requeue a page of its claims."""

    script: ClassVar[str] = "fence"
    queue: str
    owner: str
    cursor: bytes = START

    @property
    def fenced(self) -> str:
        return self.owner

    def read(self, body: Body) -> FenceReply:
        cursor, records = body
        return FenceReply(cursor, Records(records))


class CancelReply(NamedTuple):
    """The state of each item before this call, empty for an unknown one."""

    states: Sequence[bytes]
    records: Records


@dataclass(frozen=True, slots=True)
class Cancel(Trimming[CancelReply]):
    """Remove items: the ones named in ``items``, or, where none is, the ``count`` dead letters that died first.

    ``wanted``: the state that they must be in, empty: any.  ``call`` names this call, so that a repetition is known.
    """

    script: ClassVar[str] = "cancel"
    queue: str
    wanted: str
    count: int
    call: str
    items: Sequence[str] = ()
    trim: bool = False

    def read(self, body: Body) -> CancelReply:
        states, records = body
        return CancelReply(states, Records(records))


class RedriveReply(NamedTuple):
    """``executed_before``: the reply repeats what the first try did."""

    executed_before: bool
    records: Records


@dataclass(frozen=True, slots=True)
class Redrive(Decision[RedriveReply]):
    """Queue dead letters again: the ones named in ``items``, or ``count`` of them, after the first ``skip``."""

    script: ClassVar[str] = "redrive"
    queue: str
    skip: int
    count: int
    call: str
    items: Sequence[str] = ()

    def read(self, body: Body) -> RedriveReply:
        executed_before, records = body
        return RedriveReply(bool(executed_before), Records(records))


class ClearReply(NamedTuple):
    """``before_ms``: what was pushed later stays.  ``cursor`` is empty at the end."""

    executed_before: bool
    before_ms: int
    cursor: bytes
    records: Records


@dataclass(frozen=True, slots=True)
class Clear(Trimming[ClearReply]):
    """Remove a page of the items that are ready or scheduled and were pushed up to ``before_ms``."""

    script: ClassVar[str] = "clear"
    queue: str
    count: int
    call: str
    before_ms: int
    cursor: bytes
    trim: bool = False

    def read(self, body: Body) -> ClearReply:
        executed_before, before_ms, cursor, records = body
        return ClearReply(bool(executed_before), before_ms, cursor, Records(records))


@dataclass(frozen=True, slots=True)
class Pause(Decision[Records]):
    """Pause the queue (``state`` P) or let it go on (X)."""

    script: ClassVar[str] = "pause"
    queue: str
    state: str
    call: str

    def read(self, body: Body) -> Records:
        return Records(body[0])


@dataclass(frozen=True, slots=True)
class Affirm(Decision[Records]):
    """Decide that items are what they are on the primary."""

    script: ClassVar[str] = "affirm"
    queue: str
    items: Sequence[bytes]

    def read(self, body: Body) -> Records:
        return Records(body[0])


@dataclass(frozen=True, slots=True)
class Forward(Decision[Records]):
    """Finish pushes of which only another server knows, if ``clock`` is at most ``window_ms`` ago."""

    script: ClassVar[str] = "forward"
    queue: str
    clock: int
    window_ms: int
    items: Sequence[Copied]

    def read(self, body: Body) -> Records:
        return Records(body[0])


# -- applying ---------------------------------------------------------------------------------------------------------

NO_PAYLOADS, ALL_PAYLOADS, SOME_PAYLOADS = 0, 1, 2
"""Whether the items of ``Apply`` have a payload each; of some payloads the empty ones are none."""


class ApplyReply(NamedTuple):
    """Positions of the items of which the server holds a greater version, and of those that lack their payload."""

    superseded: Sequence[int]
    bare: Sequence[int]


_ALL_APPLIED = ApplyReply((), ())


@dataclass(frozen=True, slots=True)
class Apply(Call[ApplyReply]):
    """Install decided records where they are newer than what is held.

    ``fenced``: an owner to refuse from now on, or empty.  ``clock``: the moment from which durations count.
    """

    script: ClassVar[str] = "apply"
    queue: str
    items: Rows | Sequence[Sequence[Word]]
    trim: bool = False
    fenced: str = ""
    payloads_given: int = NO_PAYLOADS
    clock: int = FROM_NOW

    def read(self, body: Body) -> ApplyReply:
        superseded, bare = body
        if not superseded and not bare:
            return _ALL_APPLIED
        return ApplyReply(_from_0(superseded), _from_0(bare))


@dataclass(frozen=True, slots=True)
class ApplyNew(Apply):
    """``Apply`` for new items, which a full server refuses."""

    script: ClassVar[str] = "apply_new"


@dataclass(frozen=True, slots=True)
class Cut(Call[None]):
    """Drop the payloads of removed items."""

    script: ClassVar[str] = "cut"
    queue: str
    items: Sequence[bytes]

    def read(self, body: Body) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Retire(Call[None]):
    """Forget an owner whose claims were all requeued."""

    script: ClassVar[str] = "retire"
    queue: str
    owner: str

    def read(self, body: Body) -> None:
        return None


# -- copying and comparing --------------------------------------------------------------------------------------------


class Names(NamedTuple):
    """One page of names, and the cursor to go on from."""

    cursor: bytes
    names: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Queues(Paging[Names]):
    """Name a page of the queues that ever had an item or a consumer."""

    script: ClassVar[str] = "queues"
    cursor: bytes = START
    queue: str = ""

    def read(self, body: Body) -> Names:
        return Names(*body)


@dataclass(frozen=True, slots=True)
class Owners(Paging[Names]):
    """Name a page of the owners that have claimed and were not retired."""

    script: ClassVar[str] = "owners"
    queue: str
    cursor: bytes = START

    def read(self, body: Body) -> Names:
        return Names(*body)


@dataclass(frozen=True, slots=True)
class Claims(Paging[Names]):
    """Name a page of the items that an owner holds."""

    script: ClassVar[str] = "claims"
    queue: str
    owner: str
    cursor: bytes = START

    def read(self, body: Body) -> Names:
        return Names(*body)


class Copies(NamedTuple):
    """Items, and the ids of those for which the reply had no room."""

    items: Sequence[Copied]
    beyond: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Read(Call[Copies]):
    """Read items by their ids; unknown ones are left out.  ``clock``: the moment from which durations count."""

    script: ClassVar[str] = "read"
    queue: str
    items: Sequence[bytes | str]
    clock: int = FROM_NOW

    def read(self, body: Body) -> Copies:
        flat, beyond = body
        return Copies(_copied(flat), beyond)


class CopyPage(NamedTuple):
    """A page of items, and the cursor to go on from."""

    cursor: bytes
    items: Sequence[Copied]
    beyond: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Page(Paging[CopyPage]):
    """Read about ``count`` of all items, tombstones included."""

    script: ClassVar[str] = "page"
    queue: str
    cursor: bytes
    count: int
    clock: int = FROM_NOW

    def read(self, body: Body) -> CopyPage:
        cursor, flat, beyond = body
        return CopyPage(cursor, _copied(flat), beyond)


@dataclass(frozen=True, slots=True)
class Peek(Call[Copies]):
    """Read the first ``count`` items of an index (ready, scheduled, claimed or dead) in its order."""

    script: ClassVar[str] = "peek"
    queue: str
    state: str
    count: int
    clock: int = FROM_NOW

    def read(self, body: Body) -> Copies:
        flat, beyond = body
        return Copies(_copied(flat), beyond)


class StandingReply(NamedTuple):
    """What a server knows of a queue besides its items: how many these are, its clock, the moment before which it takes
    no put, and a page of the owners (id, number of the last claim request, milliseconds since it was fenced or -1)."""

    cursor: bytes
    items: int
    clock: int
    floor_ms: bytes | int
    owners: Rows


@dataclass(frozen=True, slots=True)
class Standing(Paging[StandingReply]):
    """Read what a server knows of a queue besides its items, a page of its owners at a time."""

    script: ClassVar[str] = "standing"
    queue: str
    cursor: bytes = START

    def read(self, body: Body) -> StandingReply:
        cursor, items, clock, floor_ms, owners = body
        return StandingReply(cursor, items, clock, floor_ms, Rows(owners))


@dataclass(frozen=True, slots=True)
class Install(Call[int]):
    """Take over what ``Standing`` has read on another server; the reply is this server's clock."""

    script: ClassVar[str] = "install"
    queue: str
    floor_ms: bytes | int
    items: Rows

    def read(self, body: Body) -> int:
        return body[0]


class HeadsReply(NamedTuple):
    """The beginning of each record (format, version, state) by id, and the cursor to go on from."""

    cursor: bytes
    heads: Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Heads(Paging[HeadsReply]):
    """Read which items a server knows and in which version: a page of all, or those named in ``items``."""

    script: ClassVar[str] = "heads"
    queue: str
    cursor: bytes
    count: int
    items: Sequence[bytes] = ()

    def read(self, body: Body) -> HeadsReply:
        cursor, flat = body
        return HeadsReply(cursor, dict(zip(flat[::2], flat[1::2], strict=True)))


class Differences(NamedTuple):
    """Positions of the heads whose items are unknown, and of those that the server knows otherwise or without their
    payload."""

    unknown: Sequence[int]
    different: Sequence[int]


@dataclass(frozen=True, slots=True)
class Compare(Call[Differences]):
    """Compare another server's heads with what is known here."""

    script: ClassVar[str] = "compare"
    queue: str
    items: Sequence[tuple[bytes, bytes]]

    def read(self, body: Body) -> Differences:
        unknown, different = body
        return Differences(_from_0(unknown), _from_0(different))


class TrimReply(NamedTuple):
    """How many tombstones were dropped, and how far back removals are remembered, -1: as far as promised."""

    dropped: int
    remembered_ms: int


@dataclass(frozen=True, slots=True)
class Trim(Call[TrimReply]):
    """Drop a page of old tombstones."""

    script: ClassVar[str] = "trim"
    queue: str

    def read(self, body: Body) -> TrimReply:
        return TrimReply(*body)


@dataclass(frozen=True, slots=True)
class Wipe(Call[None]):
    """Forget a queue, on a server that is in no view."""

    script: ClassVar[str] = "wipe"
    queue: str

    def read(self, body: Body) -> None:
        return None


# -- reading ----------------------------------------------------------------------------------------------------------


class Counts(NamedTuple):
    """Items by state."""

    ready: int
    scheduled: int
    claimed: int
    dead: int


@dataclass(frozen=True, slots=True)
class Count(Call[Counts]):
    """Count the items by state."""

    script: ClassVar[str] = "count"
    queue: str

    def read(self, body: Body) -> Counts:
        return Counts(*body)


class StatisticsReply(NamedTuple):
    """A queue at a glance; ``waited_ms`` is how long the oldest ready item has been due, negative: none is ready."""

    ready: int
    scheduled: int
    claimed: int
    dead: int
    paused: int
    waited_ms: int
    keyed: int
    expiring: int
    tombstones: int


@dataclass(frozen=True, slots=True)
class Statistics(Call[StatisticsReply]):
    """Read a queue's figures."""

    script: ClassVar[str] = "statistics"
    queue: str

    def read(self, body: Body) -> StatisticsReply:
        return StatisticsReply(*body)


class HoldersReply(NamedTuple):
    """How many claims each owner has, and the cursor to go on from."""

    cursor: bytes
    claims: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Holders(Paging[HoldersReply]):
    """Count a page of the claims by owner."""

    script: ClassVar[str] = "holders"
    queue: str
    cursor: bytes = START

    def read(self, body: Body) -> HoldersReply:
        cursor, flat = body
        counts: dict[str, int] = {}
        for owner, count in zip(flat[::2], flat[1::2], strict=True):
            counts[owner.decode()] = counts.get(owner.decode(), 0) + count
        return HoldersReply(cursor, counts)


def _from_0(positions: Sequence[int]) -> Sequence[int]:
    return [position - 1 for position in positions]


def _copied(flat: Sequence[Any]) -> list[Copied]:
    parts = iter(flat)
    return [Copied(*item) for item in zip(parts, parts, parts, parts, strict=True)]


def _tombstone(epoch: int, n: int, token: str, buried_us: int) -> Record:
    return Record(Version(epoch, n), State.GONE, due_us=buried_us, token=token)
