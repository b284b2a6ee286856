"""Encode and decode the messages between a parent, the starter of its children, and the children.  Pure.

A frame is its length, its kind, and its body.  What goes down is written by ``marshal``, because it is the parent's own
and quick to read.  What comes up is of processes that run users' code, so it is read as data alone: numbers, texts in
JSON, and the bytes of results, none of them above a bound.
"""

from __future__ import annotations

import enum
import json
import marshal
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

HEAD = struct.Struct(">IB")
"""Bytes of the body, and the kind."""

UP_MAX = 1 << 18
"""Bytes in the body of a frame that a child may send."""

DOWN_MAX = 1 << 31
"""Bytes in the body of a frame that a child reads."""

TEXT_MAX = 16_000
"""Characters of a text that a child sends: a log record's, a traceback's."""

NUMBER_MAX = 2**53
"""Greatest number that is taken from a child."""


class Kind(enum.IntEnum):
    """What a frame is: those that go down, those of a starter, those of a child."""

    BEGIN = 1
    """To a starter: what to import, and what its children need."""
    ITEM = 2
    """To a child: an item."""
    STOP = 3
    """To a child: stop the work on an item, and why."""
    ANSWER = 4
    """To a child: how a call of its handler ended."""
    END = 5
    """To a child: end."""
    SIGNAL = 6
    """To a starter: send a signal to a child."""
    FORKED = 16
    """Of a starter: a child has begun, as this process."""
    ENDED = 17
    """Of a starter: a child has ended, and how."""
    UNFIT = 18
    """Of a starter: what it imported keeps it from forking, and why."""
    READY = 32
    """Of a child: it waits for items."""
    BROKEN = 33
    """Of a child: it could not import its handlers."""
    DONE = 34
    """Of a child: a handler has returned."""
    FAILED = 35
    """Of a child: a handler has raised, or was stopped."""
    PROGRESS = 36
    """Of a child: how far the work on an item is."""
    RECORD = 37
    """Of a child: a log record."""
    CALL = 38
    """Of a child: what a handler wants done with its claim."""


class BadFrame(Exception):
    """What arrived is no frame."""


def frame(kind: Kind, body: bytes = b"") -> bytes:
    """Return a frame."""
    return HEAD.pack(len(body), kind) + body


class Frames:
    """Cut what arrives into frames."""

    def __init__(self, most: int) -> None:
        """``most``: bytes that a body may have."""
        self._most = most
        self._kept = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Iterate over the frames that are complete with this: kind and body.  Raises ``BadFrame``."""
        if self._kept:
            self._kept += data
            data = bytes(self._kept)
        at = 0
        while len(data) - at >= HEAD.size:
            size, kind = HEAD.unpack_from(data, at)
            if size > self._most:
                raise BadFrame(f"a message of {size} bytes, at most {self._most} are allowed")
            end = at + HEAD.size + size
            if end > len(data):
                break
            yield kind, data[at + HEAD.size : end]
            at = end
        self._kept = bytearray(data[at:])


# -- down --------------------------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """An item on its way to a child.

    ``number``: of the delivery, for all messages about it.  ``handler``: which one.  ``packed``, ``bundle``,
    ``position``, ``owner``, ``request``: what its claim knows.  ``seconds``: until its deadline.  ``saved``: what was
    saved of it, None: nothing.  ``unsaved``: why nothing can be saved, empty: it can.
    """

    number: int
    handler: int
    id: str
    bundle: str
    position: int
    owner: str
    request: str
    packed: bytes
    seconds: float
    headers: dict[str, str] | None
    saved: bytes | None = None
    unsaved: str = ""


_SIZE = struct.Struct(">I")


def encode_work(work: Work, payload: bytes) -> bytes:
    """Return the frame of an item."""
    told = marshal.dumps(tuple(work))
    return b"".join((HEAD.pack(_SIZE.size + len(told) + len(payload), Kind.ITEM), _SIZE.pack(len(told)), told, payload))


def decode_work(body: bytes) -> tuple[Work, bytes]:
    """Return an item and its payload."""
    size = _SIZE.size + _SIZE.unpack_from(body)[0]
    return Work(*marshal.loads(body[_SIZE.size : size])), body[size:]  # noqa: S302 - the parent's


def encode_down(kind: Kind, *values: Any) -> bytes:
    """Return a frame with plain values, from a parent."""
    return frame(kind, marshal.dumps(values))


def decode_down(body: bytes) -> tuple[Any, ...]:
    """Return the values of such a frame."""
    return marshal.loads(body)  # noqa: S302 - the parent's


# -- up ----------------------------------------------------------------------------------------------------------------

_DONE = struct.Struct(">QQ")


def encode_done(number: int, memory: int, result: bytes) -> bytes:
    """Return the frame that says that a handler has returned.  ``memory``: resident bytes, 0: not measured."""
    return frame(Kind.DONE, _DONE.pack(number, memory) + result)


def decode_done(body: bytes) -> tuple[int, int, bytes]:
    """Return number, memory and result.  Raises ``BadFrame``."""
    if len(body) < _DONE.size:
        raise BadFrame("a verdict that is cut off")
    number, memory = _DONE.unpack_from(body)
    return number, memory, body[_DONE.size :]


def encode_up(kind: Kind, **values: Any) -> bytes:
    """Return a frame with plain values, from a child or a starter."""
    return frame(kind, json.dumps(values, ensure_ascii=True, separators=(",", ":"), default=str).encode())


class Told(NamedTuple):
    """Plain values that a child has sent; each reader takes another value than the kind that it wants for nothing."""

    values: Mapping[str, object]

    def text(self, name: str, most: int = TEXT_MAX) -> str:
        """Return a text, empty if there is none."""
        value = self.values.get(name)
        return value[:most].encode(errors="replace").decode() if isinstance(value, str) else ""

    def number(self, name: str) -> int:
        """Return a whole number, 0 if there is none."""
        value = self.values.get(name)
        fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= NUMBER_MAX
        return cast("int", value) if fits else 0

    def seconds(self, name: str) -> float | None:
        """Return a number of seconds, None if there is none."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if 0 <= value <= NUMBER_MAX else None

    def flag(self, name: str) -> bool:
        """Tell whether something is true."""
        return self.values.get(name) is True


def decode_up(body: bytes) -> Told:
    """Return the values of such a frame.  Raises ``BadFrame``."""
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"no JSON: {error}") from None
    if not isinstance(values, dict):
        raise BadFrame("no object of JSON")
    return Told(cast("dict[str, object]", values))
