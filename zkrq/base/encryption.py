"""Encrypt items, so that servers, their disks and their backups hold nothing that can be read: extra ``encryption``.

An encrypted item is ``zkE``, a format byte, 8 bytes that name the key, its place, a nonce of 12 bytes, and what
AES-256-GCM makes of the other codec's bytes, 16 bytes longer.  All before the nonce is authenticated.  The place is
its length in two bytes, then cluster, queue and the id if the caller chose it, separated by zero bytes: the bytes are
worth nothing in another one.  Format 1 has no place: what is encrypted without a queue, and by older versions.

What is not encrypted: ids, keys, groups, headers, the queue's name, when items come and go, how long they are, and the
reasons of dead letters.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar

from zkrq.base.codecs import Place
from zkrq.base.errors import CodecError, ConfigError
from zkrq.base.ids import MARK

if TYPE_CHECKING:
    from zkrq.base.codecs import Codec

T = TypeVar("T")

KEY_BYTES = 32
"""Bytes of a key."""

UNPLACED, PLACED = b"zkE\x01", b"zkE\x02"
"""How an encrypted item begins: a mark, and the number of its format."""

NAME_BYTES = 8
"""Bytes that name the key."""

NONCE_BYTES = 12
"""Bytes drawn for each item.  So many random nonces are safe for 2**32 items with one key: change it before."""

HEAD = len(PLACED) + NAME_BYTES

PLACE_SIZE = struct.Struct(">H")
"""Precedes the place."""

Key: TypeAlias = str | bytes
"""A key: 32 bytes, or their base64 text as ``new_key`` makes it."""

Keys: TypeAlias = "Sequence[Key] | Callable[[], Sequence[Key]]"
"""Keys of which the first one encrypts and all decrypt; or what returns them, asked for each item."""


def new_key() -> str:
    """Make a key, as a text for a file or a secret."""
    return base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode()


class Encrypted(Generic[T]):
    """Encrypt what ``codec`` makes.

    ``keys``: the first one encrypts, all decrypt.  To change a key without a gap: give every process the new one as the
    *last*; when all have it, give it as the *first*; when no item of the old one is left, drop that.  A callable is
    asked for each item, and may read a file again; it must be fast.
    ``accept_plain``: also decode items that are not encrypted, while a queue that had such items is being changed.
    Otherwise they go to the dead letters, so that nobody who reaches the servers can push items past the key.
    ``accept_from``: queues whose items are decoded here as well, because you moved or imported them: ``"orders"``, or
    ``"shop/orders"`` of another cluster.  An encrypted item that anybody else copied from another queue, or to another
    id than its producer chose, goes to the dead letters.
    ``accept_unplaced``: also decode items that name no place, as older versions encrypted them.  False once none of
    them is left: they can be copied.

    Raises ``ConfigError`` for bad keys, or without the extra ``encryption``.
    """

    def __init__(
        self,
        codec: Codec[T],
        keys: Keys,
        *,
        accept_plain: bool = False,
        accept_from: Collection[str] = (),
        accept_unplaced: bool = True,
    ) -> None:
        if isinstance(accept_from, str):
            raise ConfigError(f"accept_from: a list of queues' names is expected: [{accept_from!r}]")
        self._codec = codec
        self._ring = _KeyRing(keys)
        self._accepts = accept_plain, frozenset(accept_from), accept_unplaced
        self.zkrq_place: Place | None = None
        """Where its items are stored; None: it was given to no queue."""
        self.name = f"{codec.name}, encrypted"

    def __repr__(self) -> str:
        return f"zkrq.typed.Encrypted({self._codec!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Encrypted) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash((Encrypted, self._codec))

    @property
    def _parts(self) -> tuple[object, ...]:
        return self._codec, self._ring.keys, self._accepts, self.zkrq_place

    def at(self, place: Place) -> Self:
        """Return the same codec for items that are stored at a place; queues call it with theirs."""
        placed = copy(self)
        placed.zkrq_place = place
        return placed

    def encode(self, item: T, /) -> bytes:
        """Return the item's bytes, encrypted with the first key."""
        data = self._codec.encode(item)
        name, cipher = next(iter(self._ring.ciphers().items()))
        nonce = secrets.token_bytes(NONCE_BYTES)
        place = self.zkrq_place
        head = UNPLACED + name if place is None else PLACED + name + _pack(place)
        return head + nonce + cipher.encrypt(nonce, data, head)

    def decode(self, data: bytes, /) -> T:
        """Return the item.

        Raises ``CodecError`` if no key fits, the bytes were changed, or they are of another place.
        """
        accept_plain, _, accept_unplaced = self._accepts
        begin, name, at = data[: len(PLACED)], data[len(PLACED) : HEAD], HEAD
        if begin not in {PLACED, UNPLACED}:
            if accept_plain:
                return self._codec.decode(data)
            raise CodecError("the item is not encrypted, and accept_plain is not given")
        ciphers = self._ring.ciphers()
        if name not in ciphers:
            known = ", ".join(each.hex() for each in ciphers)
            raise CodecError(f"the item is encrypted with key {name.hex()}; this process has {known}: give it that one")
        if begin == PLACED:
            at += PLACE_SIZE.size + int.from_bytes(data[HEAD : HEAD + PLACE_SIZE.size])
        head, nonce, rest = data[:at], data[at : at + NONCE_BYTES], data[at + NONCE_BYTES :]
        try:
            plain: bytes = ciphers[name].decrypt(nonce, rest, head)
        except (self._ring.invalid, ValueError):
            raise CodecError("the encrypted item is damaged, or was changed") from None
        if begin == PLACED:
            self._check_place(Place(*head[HEAD + PLACE_SIZE.size :].decode().split("\0")))
        elif self.zkrq_place and not accept_unplaced:
            raise CodecError("the encrypted item names no place, as older versions wrote them: see accept_unplaced")
        return self._codec.decode(plain)

    def _check_place(self, origin: Place) -> None:
        """Raise ``CodecError`` if an item of this place may not be where it is."""
        here = self.zkrq_place
        if here is None:
            raise CodecError("the encrypted item belongs to a queue: give the codec to that queue")
        accepted = self._accepts[1]
        if origin[:2] == here[:2]:
            if origin.id in {"", here.id}:
                return
            advice = "it was pushed under another id"
        elif f"{origin.cluster}/{origin.queue}" in accepted or (
            origin.cluster == here.cluster and origin.queue in accepted
        ):
            return
        else:
            advice = f"if you moved it, give accept_from=[{origin.cluster + '/' + origin.queue!r}]"
        raise CodecError(
            f"the item was encrypted for queue {origin.queue} of {origin.cluster}"
            f"{origin.id and f', id {origin.id}'}, and somebody copied it here; {advice}"
        )


def _pack(place: Place) -> bytes:
    id = "" if place.id.startswith(MARK) else place.id
    packed = "\0".join((place.cluster, place.queue, id)).encode()
    return PLACE_SIZE.pack(len(packed)) + packed


class _KeyRing:
    """The ciphers of keys, shared by all places of a codec."""

    def __init__(self, keys: Keys) -> None:
        try:
            self._cipher: Any = import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM
            self.invalid: Any = import_module("cryptography.exceptions").InvalidTag
        except ImportError as error:
            raise ConfigError("Encrypted needs the extra 'encryption': pip install 'zkrq[encryption]'") from error
        self._keys = keys
        self._read: tuple[Sequence[Key], Mapping[bytes, Any]] | None = None
        self.ciphers()

    def __reduce__(self) -> tuple[type[_KeyRing], tuple[Keys]]:
        """Pickle by the keys: a process of the same program has them, too."""
        return _KeyRing, (self._keys,)

    @property
    def keys(self) -> object:
        """The keys, or what returns them: equal for equal settings."""
        return self._keys if callable(self._keys) else list(self._keys)

    def ciphers(self) -> Mapping[bytes, Any]:
        """Return a cipher for each key, by the name of the key; the first one encrypts.  Raises ``ConfigError``."""
        keys = self._keys() if callable(self._keys) else self._keys
        if self._read is None or self._read[0] != keys:
            if isinstance(keys, str | bytes) or not keys:
                raise ConfigError("keys: one key or more expected, in a list")
            raw = [_read_key(key) for key in keys]
            self._read = list(keys), {hashlib.sha256(key).digest()[:NAME_BYTES]: self._cipher(key) for key in raw}
        return self._read[1]


def _read_key(key: Key) -> bytes:
    """Return the bytes of a key.  Raises ``ConfigError``, which quotes nothing of it."""
    try:
        raw = key if isinstance(key, bytes) and len(key) == KEY_BYTES else base64.urlsafe_b64decode(key)
    except (ValueError, TypeError):
        raw = b""
    if len(raw) != KEY_BYTES:
        raise ConfigError(f"a key is {KEY_BYTES} bytes, or their base64 text: zkrq.typed.new_key() makes one") from None
    return raw
