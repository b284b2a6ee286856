"""One call of one script: its arguments in the order of the header, and its reply as a value."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar, cast

from zkrq.protocol.calls.rows import Rows, Word
from zkrq.protocol.clocks import PUT_WINDOW_MS, Expected
from zkrq.protocol.scripts import SCRIPTS

R_co = TypeVar("R_co", covariant=True)

Body = Sequence[Any]
"""What follows OK in a reply."""

START = b"0"
"""The cursor with which a scan begins; its last page returns it again."""

FROM_NOW = 0
"""In place of a clock: durations count from the moment at which the server executes the call."""


class Call(Generic[R_co]):
    """One call of one script; ``R_co`` is what an OK reply says."""

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
    def read(self, body: Body) -> R_co:
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


class Paging(Call[R_co]):
    """A call whose reply is one page of many, with the cursor to go on from."""

    __slots__ = ()

    def at(self, cursor: bytes) -> Self:
        """The same call for the page that begins there."""
        return cast("Self", replace(cast("Any", self), cursor=cursor))


class Clocked(Call[R_co]):
    """A call that says what the server's clock should show, so that the server notices that it was set, and whose reply
    says what it shows."""

    __slots__ = ()

    @abstractmethod
    def at_clock(self, expected: Expected) -> Self:
        """The same call with what is expected when it is sent."""

    @abstractmethod
    def clock_of(self, body: Body) -> int:
        """What the server's clock showed, in microseconds."""


class Names(NamedTuple):
    """One page of names, and the cursor to go on from."""

    cursor: bytes
    names: Sequence[bytes]


class NamesPage(Protocol):
    """A reply with one page of names; some tell more."""

    @property
    def cursor(self) -> bytes: ...

    @property
    def names(self) -> Sequence[bytes]: ...


def from_0(positions: Sequence[int]) -> Sequence[int]:
    """Positions as Python counts, of those that a script counts from 1."""
    return [position - 1 for position in positions]
