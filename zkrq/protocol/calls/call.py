"""One call of one script: its arguments in the order of the header, and its reply as a value."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast

from zkrq.protocol.calls.rows import Rows, Word
from zkrq.protocol.clocks import PUT_WINDOW_MS
from zkrq.protocol.scripts import SCRIPTS

R = TypeVar("R")

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


class Names(NamedTuple):
    """One page of names, and the cursor to go on from."""

    cursor: bytes
    names: Sequence[bytes]


def from_0(positions: Sequence[int]) -> Sequence[int]:
    """Positions as Python counts, of those that a script counts from 1."""
    return [position - 1 for position in positions]
