"""Say where a search goes on, as a value and as a text that programs keep for the next page."""

from __future__ import annotations

import enum
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from zkrq.base.checks import MAX_CURSOR
from zkrq.base.errors import ConfigError
from zkrq.protocol.calls import START

END = b""
"""Place in a source after its last page."""

PARTS_MAX = 500
"""Bundles that a cursor names."""

POSITIONS = 112
"""Positions that the id of an item can name; see ``calls.bundle_and_position``."""


class BadCursor(ConfigError):
    """The text is none of a cursor."""


def as_text(value: Sequence[object]) -> str:
    """Write a place, as values of JSON, as a text for URLs; ``from_text`` reads it."""
    return urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


def from_text(text: str) -> Any:
    """Read the values of such a text, which any stranger may have written.

    Raises ``ValueError``, or ``RecursionError`` for values in each other, for any other text: see ``bad_cursor``.
    """
    if len(text) > MAX_CURSOR:
        raise ValueError("too long")
    return json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def bad_cursor(text: str) -> BadCursor:
    """Return the error for a text that is none of a place."""
    return BadCursor(f"after is {text[:80]!r}: must be `next` of the page before")


class Source(enum.Enum):
    """Tell what is read to find items."""

    KEYED = "keyed"
    DEAD = "dead"
    ALL = "all"


_AT = {
    Source.KEYED: re.compile(rb"0|"),
    Source.DEAD: re.compile(rb"0||[0-9]{1,20}(\.[0-9]{1,20})?(e\+[0-9]{1,2})? .*", re.DOTALL),
    Source.ALL: re.compile(rb"[0-9]{1,19}|"),
}
"""What servers say of their place in each: score and name of a dead letter, or a number of a scan."""


class Part(NamedTuple):
    """A bundle that is still to be read; ``positions``: of the items that are wanted, None: all."""

    bundle: str
    positions: tuple[int, ...] | None

    @classmethod
    def of(cls, bundle: str, positions: Sequence[int] | None) -> Part:
        """Return a part of these positions."""
        return cls(bundle, None if positions is None else tuple(positions))


@dataclass(frozen=True, slots=True)
class Cursor:
    """``done``: shards on which the search has ended.  ``shard``: where it goes on, empty: on any other one.

    ``source``: what is read there, None: the first one of the search.  ``at``: what the server said of its place in it,
    ``START`` to begin, ``END`` after the last page.  ``leader``: which server said so, in which life.  ``rest``:
    bundles to read first.
    """

    done: tuple[str, ...] = ()
    shard: str = ""
    source: Source | None = None
    at: bytes = START
    leader: str = ""
    rest: tuple[Part, ...] = ()

    @property
    def has_begun(self) -> bool:
        """Whether anything of the source was read."""
        return self.at != START or bool(self.rest)

    def past_shard(self) -> Cursor:
        """Return the cursor of a search that has ended on its shard."""
        return Cursor((*self.done, self.shard))

    def text(self) -> str:
        """Write the cursor as a text for URLs; ``read`` reads it."""
        at = self.at.decode("latin-1")
        source = self.source and self.source.value
        return as_text([list(self.done), self.shard, source, at, self.leader, [list(part) for part in self.rest]])

    @classmethod
    def read(cls, text: str) -> Cursor:
        """Read the text of a cursor.  Raises ``BadCursor`` for any other text."""
        try:
            done, shard, source, at, leader, rest = from_text(text)
            known = None if source is None else Source(source)
            _check(_are(str, [*done, shard, at, leader]) and len(rest) <= PARTS_MAX)
            place = at.encode("latin-1")
            _check(_AT[known].fullmatch(place) if known else place == START and not rest)
            return cls(tuple(done), shard, known, place, leader, tuple(_read_part(part) for part in rest))
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise bad_cursor(text) from None


BEGINNING = Cursor()
"""Cursor of a search that has not begun."""


def _read_part(value: Any) -> Part:
    bundle, positions = value
    _check(_are(str, [bundle]) and bundle.encode())
    if positions is None:
        return Part(bundle, None)
    _check(_are(int, positions) and all(0 <= position < POSITIONS for position in positions))
    return Part(bundle, tuple(cast("list[int]", positions)))


def _are(kind: type, values: Sequence[object]) -> bool:
    return all(type(value) is kind for value in values)


def _check(holds: object) -> None:
    if not holds:
        raise ValueError
