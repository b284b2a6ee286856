"""Make item ids: unique, ordered, and with the time at which they were made.

``zkrq-019aa5f2c31-3f9c2a71-21b``: a mark, milliseconds since 1970, a random number of the process, and a count prefixed
with the number of its digits (2, then 1b); all in hexadecimal.  The time lets a server refuse a push that is too late.
Servers sort items of one millisecond by their ids as text: without the number of digits, 100 would come before ff.
Items that are pushed together form a bundle: its id is made like that of an item, and theirs is the bundle's with the
position behind it: ``zkrq-019aa5f2c31-3f9c2a71-21b~00``.
A bundle that has a name in a flow is ``zkrq-FLOW.NAME.NUMBER`` instead: ``zkrq-import-7.page-1.0~00``; these are ids of
``push_many`` alone, which makes them again when it is repeated.
``id=`` may also be any other short text; then the time of the push counts.  It cannot begin with the mark, so no text
that means something else to the caller is read as a time, a bundle or a shard.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import overload

from zkrq.base import clock
from zkrq.base.checks import MAX_ID, check_id
from zkrq.base.errors import ConfigError
from zkrq.base.forks import call_in_forks

MARK = "zkrq-"
"""How every id begins that zkrq makes, and no other."""

_OWN_FORMAT = re.compile(MARK + r"([0-9a-f]{11})-[0-9a-f]{8}-[0-9a-f]+(@[a-z0-9_-]+)?(~[0-9a-f]{2})?")


class Ids(Sequence[str]):
    """A batch of ids made together; stored as the first one and their number."""

    __slots__ = ("_begin", "_first", "_length")

    def __init__(self, begin: str, first: int, length: int) -> None:
        self._begin = begin
        self._first = first
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        counts = range(self._first, self._first + self._length)[index]
        return [self._id(count) for count in counts] if isinstance(counts, range) else self._id(counts)

    def __iter__(self) -> Iterator[str]:
        return map(self._id, range(self._first, self._first + self._length))

    def _id(self, count: int) -> str:
        return self._begin + _text(count)


def _text(count: int) -> str:
    """Write a count so that a greater count is a greater text (up to 15 digits)."""
    digits = f"{count:x}"
    return f"{len(digits):x}{digits}"


class _Maker:
    """Make the ids of this process; a forked child starts with a new random number."""

    def __init__(self) -> None:
        self.begin()
        call_in_forks(self.begin)

    def begin(self) -> None:
        self._process = secrets.token_hex(4)
        self._next = 0

    def make(self, now_ms: int) -> str:
        count = self._next
        self._next = count + 1
        return f"{MARK}{now_ms:011x}-{self._process}-{_text(count)}"

    def make_many(self, now_ms: int, length: int) -> Ids:
        first = self._next
        self._next = first + length
        return Ids(f"{MARK}{now_ms:011x}-{self._process}-", first, length)


_maker = _Maker()


def new_id() -> str:
    """Return a new id, to be pushed soon.  Make it before the push to be able to repeat the push safely."""
    return _maker.make(clock.now_ms())


def new_id_at(now_ms: int) -> str:
    """Return a new id that carries this moment."""
    return _maker.make(now_ms)


def new_ids_at(now_ms: int, length: int) -> Ids:
    """Return ``length`` new ids that carry this moment."""
    return _maker.make_many(now_ms, length)


def made_at_ms(id: str) -> int | None:
    """Return the time that an id carries, in milliseconds since 1970; None for an id that was not made here."""
    match = _OWN_FORMAT.fullmatch(id)
    return int(match[1], 16) if match else None


def id_of_copy(reason: str, *named: str) -> str:
    """Return the id of a copy: the same each time for what is named, and of nothing else; readable if it fits."""
    id = ":".join((reason, *named))
    if len(id.encode()) <= MAX_ID:
        return id
    return f"{reason}:{hashlib.blake2b(id.encode(), digest_size=20).hexdigest()}"


def check_push_id(id: str, what: str = "id") -> int | None:
    """Check an id under which the caller pushes; return the time that it carries, as ``made_at_ms``.

    Raises ``ConfigError``.
    """
    made_ms = made_at_ms(check_id(what, id))
    if made_ms is None and id.startswith(MARK):
        raise ConfigError(
            f"{what} is {id!r}: only ids that zkrq makes begin with {MARK!r}. To repeat a push, give its whole id; or "
            f"put something before yours, as in {'id:' + id!r}"
        )
    return made_ms
