"""Describe one call of one script: its arguments in the order of the header, and its reply as a value.

The kinds of calls: those that are combined, those that are answered page by page, those that the server's clock is
checked with, and *decisions*, by which a queue's primary decides for all servers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from zkrq.protocol.clocks import PUT_WINDOW_MS, Expected
from zkrq.protocol.records import states_of
from zkrq.protocol.scripts import SCRIPTS

if TYPE_CHECKING:
    from zkrq.protocol.calls.rows import Put

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Word = bytes | str | int
"""Parts of a command."""

Body = Sequence[Any]
"""Values after OK in a reply."""

START = b"0"
"""Cursor that begins a scan; the last page returns it again."""

FROM_NOW = 0
"""Used instead of a clock: durations count from the moment at which the server executes the call."""


class Rows:
    """Values of many items in one flat list, as on the wire: no object per item."""

    __slots__ = ("flat",)

    def __init__(self, flat: Sequence[Any] = ()) -> None:
        self.flat = flat


class Records(Rows):
    """Decided records: id, record, notes, since of each bundle; see ``lua/_reply.lua``."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self.flat) // 4

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over ids and records."""
        return zip(self.flat[::4], self.flat[1::4], strict=True)

    @property
    def ids(self) -> Sequence[bytes]:
        return self.flat[::4]

    def with_notes(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Iterate over ids, records and notes."""
        return zip(self.flat[::4], self.flat[1::4], self.flat[2::4], strict=True)

    def notes_of(self, id: bytes) -> bytes:
        """Return the notes of a bundle that is among them."""
        return self.flat[4 * self.ids.index(id) + 2]

    def gone(self) -> list[Gone]:
        """Return what was removed, of bundles of which at least half is."""
        gone: list[Gone] = []
        for id, record in self:
            states = states_of(record)
            if not states.strip(b"XF"):
                gone.append(Gone(id, b""))
            elif 2 * (removed := states.count(b"X") + states.count(b"F")) >= len(states) and removed:
                gone.append(Gone(id, bytes(at for at, state in enumerate(states) if state in b"XF")))
        return gone

    def with_payloads(self, payloads: Mapping[bytes, bytes]) -> Rows:
        """Return the rows with the payloads of each, empty for a bundle without any here."""
        flat: list[Word] = []
        rows = iter(self.flat)
        for id, record, notes, since in zip(rows, rows, rows, rows, strict=True):
            flat += (id, record, notes, since, payloads.get(id, b""))
        return Rows(flat)


class Gone(NamedTuple):
    """Items of a bundle that were removed: their positions, a byte each; empty: all."""

    id: bytes
    positions: bytes


class Call(Generic[R_co]):
    """One call of one script; ``R_co`` is the value of an OK reply."""

    __slots__ = ()

    script: ClassVar[str]
    put_window_ms: ClassVar[int] = PUT_WINDOW_MS
    queue: str
    """Queue whose keys the script uses, empty if the call is about the server itself."""
    items: Any
    """Repeated arguments, if the script has any."""

    def words(self) -> list[Word]:
        """Return the arguments after epoch and generation, as they are sent."""
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

    @property
    def weight(self) -> int | None:
        """How many items the call takes at most, 1 if its arguments' size bounds them; None: it is never combined with
        calls for other queues."""
        return None

    def changed(self, **changes: object) -> Self:
        """Return the same call with other values of these fields, as ``dataclasses.replace`` does in three times the
        time."""
        kind: Any = type(self)
        names, get = _fields(kind)
        return kind(**{**dict(zip(names, get(self), strict=True)), **changes})

    def read(self, body: Body) -> R_co:
        """Read the values after OK, as the type of the reply says.

        Its fields are the values of the header, in order: ``Records`` and ``Rows`` of a list, a bool of a number, rows
        with names of a list in which they follow one another.  A call that is made often, or whose reply is another
        thing than what the header lists, has its own.
        """
        try:
            return _reader(type(self))(iter(body))
        except StopIteration:
            raise ValueError(f"the reply of {self.script} has too few values: {len(body)}") from None


Reader = Callable[[Iterator[Any]], Any]
"""Takes what belongs to a value from those of a reply."""


def reply_of(kind: type[Call[Any]]) -> Any:
    """Return the type of the value of a call's reply."""
    bases = chain.from_iterable(vars(each).get("__orig_bases__", ()) for each in kind.__mro__)
    return next(found for base in bases for found in get_args(base) if not isinstance(found, TypeVar))


@cache
def _reader(kind: type[Call[Any]]) -> Reader:
    return _reader_of(reply_of(kind))


def _reader_of(of: Any) -> Reader:
    """Return what reads values of this type."""
    if of is type(None):
        return lambda values: None
    if is_named(of):
        parts = list(map(_reader_of, get_type_hints(of).values()))
        return lambda values: of(*[read(values) for read in parts])
    if of is bool or of is Records or of is Rows:
        return lambda values: of(next(values))
    if get_origin(of) is Sequence and is_named(row := get_args(of)[0]):
        return lambda values: read_rows(row, next(values))
    return next


def is_named(of: object) -> bool:
    """Tell whether values of this type have named fields."""
    return isinstance(of, type) and issubclass(of, tuple) and "_fields" in vars(cast("type[Any]", of))


def read_rows(kind: Any, flat: Sequence[Any]) -> list[Any]:
    """Read rows whose values are in one flat list."""
    parts = iter(flat)
    return [kind._make(row) for row in zip(*[parts] * len(kind._fields), strict=True)]


@cache
def _fields(kind: Any) -> tuple[Sequence[str], Callable[[object], tuple[Any, ...]]]:
    """Return the names of the fields of a kind of call, at least two, and a function that gets their values."""
    names = [each.name for each in fields(kind)]
    return names, cast("Callable[[object], tuple[Any, ...]]", attrgetter(*names))


@cache
def _shape(script: str) -> tuple[Callable[[object], tuple[Word, ...]], int]:
    """Return a function that gets the arguments that do not repeat, and the number of those that do."""
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


class Combining(Call[R_co]):
    """A call that is combined with others of its script, for other queues, that leave at the same time."""

    __slots__ = ()

    @property
    def weight(self) -> int:
        return 1


class Carrying(Call[R_co]):
    """A call that drops payloads on the way, so that this costs no call of its own."""

    __slots__ = ()

    cuts: bytes
    """What to drop (``rows.pack_gone``); empty: nothing."""

    def with_cuts(self, cuts: bytes) -> Self:
        """Return the same call with something to drop."""
        return self.changed(cuts=cuts)


class Paged(Protocol):
    """A reply that is one page of many, with the cursor to continue from."""

    @property
    def cursor(self) -> bytes: ...


class Paging(Call[R_co]):
    """A call whose reply is one page of many."""

    __slots__ = ()

    def at(self, cursor: bytes) -> Self:
        """Return the same call for the page that begins there."""
        return self.changed(cursor=cursor)

    def after(self, page: Paged) -> Self | None:
        """Return the same call for the page after this one, None if this is the last one."""
        return None if page.cursor == START else self.at(page.cursor)


class Clocked(Call[R_co]):
    """A call that says what the server's clock should show, so that the server notices if it was set, and whose reply
    has its time."""

    __slots__ = ()

    @abstractmethod
    def at_clock(self, expected: Expected) -> Self:
        """Return the same call with the expected time when it is sent."""

    @abstractmethod
    def clock_of(self, body: Body) -> int:
        """Return the time of the server's clock, in microseconds."""


class Decision(Call[R]):
    """A call by which a queue's primary decides.  The other servers of the view are then given the decided records."""

    __slots__ = ()

    always_told: ClassVar[bool] = True
    """Whether the other servers are called even if nothing was decided: they know whether this is still the primary."""

    needs_settings: ClassVar[bool] = False
    """Whether what programs have declared of the queue bounds it."""

    has_payloads: ClassVar[bool] = True
    """Whether what it removes may have payloads, which are dropped later."""

    @property
    def needs_replicas(self) -> bool:
        """Whether it is only decided where pushes are taken: what is pushed later rests on it."""
        return False

    @property
    def fenced(self) -> str:
        """Owner that every server refuses from then on, or empty."""
        return ""

    @property
    def puts(self) -> Sequence[Put]:
        """New items that the call decides about."""
        return ()

    def under(self, *, trim: bool, again: bool) -> Self:
        """Return the call as it is sent under one view.

        ``trim``: it may drop old tombstones.  ``again``: another primary may have decided the same before.
        """
        return self

    def decided(self, reply: R, epoch: int) -> Records:
        """Return the records of everything decided under this epoch: those of the reply, if it has all."""
        records: Any = getattr(reply, "records", reply)
        return records


class Trimming(Decision[R]):
    """A decision that drops old tombstones as well."""

    __slots__ = ()

    trim: bool

    def under(self, *, trim: bool, again: bool) -> Self:
        return self.changed(trim=trim) if trim != self.trim else self


class Names(NamedTuple):
    """One page of names, and the cursor to continue from."""

    cursor: bytes
    names: Sequence[bytes]


class NamesPage(Paged, Protocol):
    """A reply with one page of names, and possibly more."""

    @property
    def names(self) -> Sequence[bytes]: ...


def from_0(positions: Sequence[int]) -> Sequence[int]:
    """Convert positions that a script counts from 1 to positions from 0."""
    return [position - 1 for position in positions]
