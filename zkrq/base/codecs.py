"""Encode items as bytes, and decode them."""

from __future__ import annotations

import json
import json.encoder
import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from zkrq.base.errors import CodecError, text_of

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


class Codec(Protocol[T]):
    """Encode items as bytes and decode them.

    Both methods may raise any exception for what they cannot do; the queue raises ``CodecError`` from it.  ``name`` is
    for people.  An item that cannot be decoded goes to the dead letters with its bytes kept.
    """

    @property
    def name(self) -> str: ...

    def encode(self, item: T, /) -> bytes: ...

    def decode(self, data: bytes, /) -> T: ...


class Place(NamedTuple):
    """Where an item is stored.  ``queue``: its name, or ``topic`` and a topic's.  ``id``: empty for all items there."""

    cluster: str
    queue: str
    id: str = ""


class PlacedCodec(Protocol[T]):
    """Is a ``Codec`` whose bytes cannot be decoded in another place.  ``zkrq_place``: None for any."""

    zkrq_place: Place | None

    def at(self, place: Place) -> Codec[T]: ...


def codec_at(codec: Codec[T], place: Place) -> Codec[T]:
    """Return the codec of a queue or a topic."""
    return cast("PlacedCodec[T]", codec).at(place) if hasattr(codec, "zkrq_place") else codec


def place_of(codec: Codec[Any]) -> Place | None:
    """Return the place of a codec that has one."""
    return getattr(codec, "zkrq_place", None)


def codec_of_item(codec: Codec[T], id: str) -> Codec[T]:
    """Return the codec of an item, from that of its queue."""
    place = place_of(codec)
    return codec if place is None else codec_at(codec, place._replace(id=id))


def call_codec(call: Callable[[U], V], value: U, what: str) -> V:
    """Return what a method of any codec makes of a value; ``what``: how its error begins.  Raises ``CodecError``."""
    try:
        return call(value)
    except (CodecError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise CodecError(f"{what}: {text_of(error)}") from error


class _Json:
    """Everything that ``json`` can write, except NaN, infinities and lone surrogates; dict keys must be strings, tuples
    come back as lists."""

    name = "json"

    def __init__(self) -> None:
        self._usual, self._parts = _make_encoders()
        self._decode = json.JSONDecoder().decode
        # As `raw_decode`, without a call of Python.
        self._scan: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]

    def __repr__(self) -> str:
        return "zkrq.JSON"

    def __reduce__(self) -> str:
        """Pickle by name."""
        return "JSON"

    def encode(self, item: Any, /) -> bytes:
        try:
            text = "".join(self._parts(item, 0)) if self._parts else self._usual(item)
        except RecursionError:
            raise ValueError("Circular reference detected, or nested too deeply") from None
        except (TypeError, ValueError) as error:
            if place := _place_refused(item):
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"{error} (at {place})") from None
            raise
        if _WAS_PERHAPS_NO_STRING.search(text):
            _check_keys(item)
        try:
            return text.encode()
        except UnicodeEncodeError:
            place = _place_refused(item) or "the item itself"
            raise ValueError(f"a lone surrogate, which is half of a character, has no UTF-8 (at {place})") from None

    def decode(self, data: bytes, /) -> Any:
        text = data.decode()
        if text[:1] in "{[":  # written by this codec: there is no whitespace to look for
            try:
                item, end = self._scan(text, 0)
            except StopIteration:  # the usual decoder says what is wrong
                return self._decode(text)
            if end == len(text):
                return item
        return self._decode(text)


def _make_encoders() -> tuple[Callable[[Any], str], Callable[[Any, int], Iterable[str]] | None]:
    """Return the documented encoder, and a twice as fast one that is not made anew for each item.

    The second one is not a documented part of ``json``: None if it is not as it was in Python 3.11.
    """
    usual = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    sample: dict[str, list[Any]] = {"a": [1, "ä", None, 0.5, {}]}
    try:
        make: Any = vars(json.encoder)["c_make_encoder"]
        parts: Callable[[Any, int], Iterable[str]] = make(
            None, usual.default, vars(json.encoder)["encode_basestring"], None, ":", ",", False, False, False
        )
        alike = "".join(parts(sample, 0)) == usual.encode(sample)
    except (KeyError, TypeError):
        return usual.encode, None
    return usual.encode, parts if alike else None


_WAS_PERHAPS_NO_STRING = re.compile(r'"(?:[-0-9][^"]*|true|false|null)":')
"""Matches keys that may not have been strings: ``json`` turns numbers, booleans and None into strings, and two keys may
become one."""


def _check_keys(item: object) -> None:
    """Raise ``TypeError`` for a dict key that is not a string."""
    if isinstance(item, dict):
        for key in cast("dict[object, object]", item):
            if not isinstance(key, str):
                raise TypeError(f"keys must be strings, not {type(key).__name__}: they would come back as strings")
        item = cast("dict[object, object]", item).values()
    elif not isinstance(item, list | tuple):
        return
    for inner in cast("Iterable[object]", item):
        _check_keys(inner)


PLACES_MAX = 10_000
"""Parts of an item that are searched for the one that cannot be encoded."""


def _place_refused(item: object) -> str:
    """Return the place of the first part of an item that JSON cannot express, as ``['user']['born']``.

    Empty if it is the item itself, or is not found among the first ``PLACES_MAX`` parts."""
    left: list[tuple[str, object]] = [("", item)]
    for _ in range(PLACES_MAX):
        if not left:
            return ""
        place, part = left.pop()
        inner: Iterable[tuple[object, object]]
        if isinstance(part, dict):
            inner = cast("dict[object, object]", part).items()
        elif isinstance(part, list | tuple):
            inner = enumerate(cast("Sequence[object]", part))
        elif _is_plain(part):
            continue
        else:
            return place
        parts = [(f"{place}[{key!r:.100}]", key, each) for key, each in islice(inner, PLACES_MAX)]
        if bad := next((at for at, key, _ in parts if isinstance(key, str) and not _is_utf8(key)), ""):
            return bad
        left += [(at, each) for at, _, each in reversed(parts)]
    return ""


def _is_plain(part: object) -> bool:
    """Tell whether a part without parts can be written."""
    match part:
        case str():
            return _is_utf8(part)
        case float():
            return math.isfinite(part)
        case _:
            return part is None or isinstance(part, int)


def _is_utf8(text: str) -> bool:
    """Tell whether a text can be encoded: it has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Raw:
    """Bytes, stored unchanged."""

    name = "raw"

    def __repr__(self) -> str:
        return "zkrq.RAW"

    def __reduce__(self) -> str:
        """Pickle by name."""
        return "RAW"

    def encode(self, item: bytes, /) -> bytes:
        if not isinstance(item, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CodecError(f"zkrq.RAW takes bytes, not {type(item).__name__}")
        return bytes(item)

    def decode(self, data: bytes, /) -> bytes:
        return data


JSON: Codec[Any] = _Json()
"""The default codec: everything that ``json`` can write."""

RAW: Codec[bytes] = _Raw()
"""Bytes, stored unchanged."""
