"""How items become bytes and bytes become items."""

from __future__ import annotations

import json
from typing import Any, Protocol, TypeVar

from zkrq.errors import CodecError

T = TypeVar("T")


class Codec(Protocol[T]):
    """Turns items into bytes and back.

    Both methods may raise anything for what they cannot do; the queue raises ``CodecError`` from it.  ``name`` is for
    people.  An item that cannot be decoded goes to the dead letters with its bytes kept.
    """

    @property
    def name(self) -> str: ...

    def encode(self, item: T, /) -> bytes: ...

    def decode(self, data: bytes, /) -> T: ...


class _Json:
    """What ``json`` can write, except NaN and infinities; dict keys must be strings, tuples come back as lists."""

    name = "json"

    def __init__(self) -> None:
        self._encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
        self._decode = json.JSONDecoder().decode

    def __repr__(self) -> str:
        return "zkrq.JSON"

    def encode(self, item: Any, /) -> bytes:
        return self._encode(item).encode()

    def decode(self, data: bytes, /) -> Any:
        return self._decode(data.decode())


class _Raw:
    """Bytes as they are."""

    name = "raw"

    def __repr__(self) -> str:
        return "zkrq.RAW"

    def encode(self, item: bytes, /) -> bytes:
        if not isinstance(item, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CodecError(f"zkrq.RAW takes bytes, not {type(item).__name__}")
        return bytes(item)

    def decode(self, data: bytes, /) -> bytes:
        return data


JSON: Codec[Any] = _Json()
"""The default: what ``json`` can write."""

RAW: Codec[bytes] = _Raw()
"""Bytes as they are."""
