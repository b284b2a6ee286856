"""Pack the payloads of a bundle into one string, and take it apart.

A table (four bytes each) says where the first payload begins and where each ends, and by its highest bits, which are
missing.  Then follow, for each, the length of its headers (two bytes), the headers, and the encoded item.  Servers cut
this string without reading the rest, and what they cut out has the same form, with a table that counts from the
beginning of the whole; ``lua/_payloads.lua`` does so.

Headers are texts, each with its length: name, value, name, value ...  One without a partner at their end is what was
saved of the item before it was pushed, as of one that was moved: the payload has it, so that every server does when the
push returns, and each delivery is given it until something else is saved.  Releases that know of no such thing fail to
read the payload.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate, pairwise


class DamagedPayloads(ValueError):
    """Stored payloads that cannot be taken apart."""


_LENGTH = struct.Struct("<H")
NO_HEADERS = bytes(2)
"""Beginning of a payload without headers."""

_CUT = 1 << 31
_SIZE_MAX = 255  # items in a bundle, as far as a record can say


def with_headers(item: bytes, headers: Mapping[str, str], saved: bytes | None = None) -> bytes:
    """Return an encoded item with its headers, as one payload; ``saved``: what was saved of it before."""
    if not headers and saved is None:
        return NO_HEADERS + item
    texts: list[bytes] = []
    for name, text in headers.items():
        for part in (name.encode(), text.encode()):
            texts += (_LENGTH.pack(len(part)), part)
    if saved is not None:
        texts += (_LENGTH.pack(len(saved)), saved)
    packed = b"".join(texts)
    return b"".join((_LENGTH.pack(len(packed)), packed, item))


def split_payload(payload: bytes) -> tuple[bytes, Mapping[str, str]]:
    """Return the encoded item of a payload, and its headers.  Raises ``DamagedPayloads``."""
    content, headers, _ = split_saved(payload)
    return content, headers


def split_saved(payload: bytes) -> tuple[bytes, Mapping[str, str], bytes | None]:
    """Return the encoded item of a payload, its headers, and what was saved of it before it was pushed, None: nothing.

    Raises ``DamagedPayloads``.
    """
    try:
        return _split_payload(payload)
    except struct.error as error:
        raise DamagedPayloads(f"a payload whose headers cannot be read: {error}") from error


def _split_payload(payload: bytes) -> tuple[bytes, Mapping[str, str], bytes | None]:
    (length,) = _LENGTH.unpack_from(payload)
    if not length:
        return payload[2:], {}, None
    texts: list[bytes] = []
    at = 2
    while at < 2 + length:
        (size,) = _LENGTH.unpack_from(payload, at)
        texts.append(payload[at + 2 : at + 2 + size])
        at += 2 + size
    saved = texts.pop() if len(texts) % 2 else None
    named = [text.decode(errors="replace") for text in texts]
    return payload[2 + length :], dict(zip(named[::2], named[1::2], strict=True)), saved


@cache
def _table(size: int) -> struct.Struct:
    return struct.Struct(f"<{size + 1}I")


def join(payloads: Sequence[bytes]) -> bytes:
    """Pack payloads together."""
    table = _table(len(payloads))
    ends = accumulate(map(len, payloads), initial=table.size)
    return table.pack(*ends) + b"".join(payloads)


def split(packed: bytes, size: int | None = None) -> Sequence[bytes | None]:
    """Take a string of ``size`` payloads apart (None: of a whole bundle); None stands for one that was dropped.

    Raises ``DamagedPayloads``.
    """
    try:
        if size is None:
            (begin,) = struct.unpack_from("<I", packed)
            size = begin % _CUT // 4 - 1
            if not 0 <= size <= _SIZE_MAX:
                raise DamagedPayloads(f"a table of {size} payloads")
        table = _table(size)
        ends = table.unpack_from(packed)
    except struct.error as error:
        raise DamagedPayloads(f"payloads whose table cannot be read: {error}") from error
    shift = table.size - ends[0] % _CUT  # of a run, it also says whether the payload before was dropped
    if max(ends) < _CUT:
        return [packed[begin + shift : end + shift] for begin, end in pairwise(ends)]
    pairs = pairwise(ends)
    return [None if end >= _CUT else packed[begin % _CUT + shift : end + shift] for begin, end in pairs]


def payload_at(packed: bytes, position: int) -> bytes | None:
    """Return one payload of a whole bundle, None if it is not there."""
    payloads = split(packed)
    return payloads[position] if position < len(payloads) else None
