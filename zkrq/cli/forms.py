"""Write items as text, and read them from text: the values of ``--codec``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from zkrq.base.codecs import JSON, RAW
from zkrq.base.errors import ConfigError
from zkrq.cli.flags import Flag

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster
    from zkrq.client.queue import Queue


def raw_queue(cluster: Cluster, name: str, **options: Any) -> Queue[bytes]:
    """Return a queue whose items are their payloads; ``options``: further arguments of ``Cluster.queue``."""
    return cluster.queue(name, codec=RAW, **options)


class Form(NamedTuple):
    """Describe one form of payloads.  Both functions raise ``ValueError`` or ``TypeError`` for what is not of the form.

    ``encode`` returns the payload of an item that is given as text, ``decode`` a value that JSON can write, None for a
    form that has none: then the payload itself is shown.
    """

    name: str
    encode: Callable[[bytes], bytes]
    decode: Callable[[bytes], object] | None

    def read(self, text: bytes, where: str) -> bytes:
        """Return the payload of an item.  ``where``: how an error calls it.  Raises ``ConfigError``."""
        try:
            return self.encode(text)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{where} is not JSON: {error}") from error


def _read_json(text: bytes) -> object:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _json() -> Form:
    def encode(text: bytes) -> bytes:
        return JSON.encode(_read_json(text))

    return Form("JSON", encode, _read_json)


def _msgpack() -> Form:
    try:
        import msgspec
    except ImportError as error:
        raise ConfigError("--codec msgpack needs msgspec: pip install 'zkrq[msgspec]'") from error

    def encode(text: bytes) -> bytes:
        return msgspec.msgpack.encode(_read_json(text))

    def decode(payload: bytes) -> object:
        # Bytes become base64, times ISO 8601.  What JSON cannot express raises TypeError.
        return msgspec.to_builtins(msgspec.msgpack.decode(payload), str_keys=True)

    return Form("MessagePack", encode, decode)


def _raw() -> Form:
    return Form("raw", bytes, None)


FORMS: dict[str, Callable[[], Form]] = {"json": _json, "msgpack": _msgpack, "raw": _raw}

CODEC = Flag("codec", "the items' form: json, msgpack (extra msgspec) or raw (bytes)", str, "json", "FORM")
"""The flag of every command that writes or reads items."""


def form_of(codec: str) -> Form:
    """Return the form that ``--codec`` names.  Raises ``ConfigError``."""
    make = FORMS.get(codec)
    if make is None:
        raise ConfigError(f"--codec is {codec!r}: {', '.join(FORMS)}")
    return make()
