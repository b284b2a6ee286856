"""Encrypt items, so that servers, their disks and their backups hold nothing that can be read: extra ``encryption``.

An encrypted item is ``zkE``, a format byte, 8 bytes that name the key, a nonce of 12 bytes, and what AES-256-GCM makes
of the other codec's bytes, 16 bytes longer.  The first part is authenticated, too.  What is not encrypted: ids, keys,
groups, headers, the queue's name, when items come and go, how long they are, and the reasons of dead letters.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from zkrq.base.errors import CodecError, ConfigError

if TYPE_CHECKING:
    from zkrq.base.codecs import Codec

T = TypeVar("T")

KEY_BYTES = 32
"""Bytes of a key."""

BEGIN = b"zkE\x01"
"""How an encrypted item begins: a mark, and the number of this format."""

NAME_BYTES = 8
"""Bytes that name the key."""

NONCE_BYTES = 12
"""Bytes drawn for each item.  So many random nonces are safe for 2**32 items with one key: change it before."""

HEAD = len(BEGIN) + NAME_BYTES

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

    Raises ``ConfigError`` for bad keys, or without the extra ``encryption``.
    """

    def __init__(self, codec: Codec[T], keys: Keys, *, accept_plain: bool = False) -> None:
        try:
            self._cipher: Any = import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM
            self._invalid: Any = import_module("cryptography.exceptions").InvalidTag
        except ImportError as error:
            raise ConfigError("Encrypted needs the extra 'encryption': pip install 'zkrq[encryption]'") from error
        self._codec = codec
        self._keys = keys
        self._accept_plain = accept_plain
        self._read: tuple[Sequence[Key], Mapping[bytes, Any]] | None = None
        self.name = f"{codec.name}, encrypted"
        self._ciphers()

    def __repr__(self) -> str:
        return f"zkrq.typed.Encrypted({self._codec!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Encrypted) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash((Encrypted, self._codec))

    @property
    def _parts(self) -> tuple[object, ...]:
        return self._codec, self._keys if callable(self._keys) else list(self._keys), self._accept_plain

    def encode(self, item: T, /) -> bytes:
        """Return the item's bytes, encrypted with the first key."""
        data = self._codec.encode(item)
        name, cipher = next(iter(self._ciphers().items()))
        nonce = secrets.token_bytes(NONCE_BYTES)
        head = BEGIN + name
        return head + nonce + cipher.encrypt(nonce, data, head)

    def decode(self, data: bytes, /) -> T:
        """Return the item.  Raises ``CodecError`` if no key fits, or the bytes were changed."""
        head, rest = data[:HEAD], data[HEAD:]
        if not head.startswith(BEGIN):
            if self._accept_plain:
                return self._codec.decode(data)
            raise CodecError("the item is not encrypted, and accept_plain is not given")
        name = head[len(BEGIN) :]
        ciphers = self._ciphers()
        if name not in ciphers:
            known = ", ".join(each.hex() for each in ciphers)
            raise CodecError(f"the item is encrypted with key {name.hex()}; this process has {known}: give it that one")
        try:
            plain: bytes = ciphers[name].decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], head)
        except (self._invalid, ValueError):
            raise CodecError("the encrypted item is damaged, or was changed") from None
        return self._codec.decode(plain)

    def _ciphers(self) -> Mapping[bytes, Any]:
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
