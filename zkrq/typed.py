"""Provide codecs for items of a declared type: msgspec and pydantic, each imported when its first codec is made.

    orders = cluster.queue("orders", codec=zkrq.typed.MsgPack(Order))    # Queue[Order]

``Encrypted`` encrypts what another codec makes.

An encoded item is decoded again before anything is written, so an item of a wrong type stops its producer and not a
consumer.  A popped item is of the type, or goes to the dead letters.  The reason kept there names fields and the keys
of dicts, never a value, unless a validator of yours quotes one.

An upgraded consumer reads what an older producer wrote as long as new fields have defaults and renamed ones keep their
old name as an alias (msgspec: ``field(name="old")``, pydantic: ``AliasChoices("new", "old")``).  Fields that the type
does not know are ignored, unless the type forbids them.  ``Json``, ``Pydantic`` and the default ``zkrq.JSON`` read
each other's items.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, get_args, get_origin

from zkrq.base.codecs import JSON
from zkrq.base.encryption import Encrypted, new_key
from zkrq.base.errors import CodecError, ConfigError, message_of

if TYPE_CHECKING:
    import pydantic
    from typing_extensions import TypeForm

__all__ = ["Encrypted", "Json", "MsgPack", "Pydantic", "new_key"]

T = TypeVar("T")

ERRORS_SHOWN = 3
"""Errors of one item that its reason lists."""


class _Typed(Generic[T]):
    """Share what the codecs of this module have in common.  Two codecs of one kind and one type are equal."""

    format = "JSON"

    def __init__(self, type: object, write: Callable[[Any], bytes], read: Callable[[bytes], T]) -> None:
        self.type = type
        self.name = f"{_title(type)} in {self.format}"
        self._key: tuple[object, object] = (self.__class__, type)
        self._write = write
        self._read = read

    def __repr__(self) -> str:
        return f"zkrq.typed.{type(self).__name__}({_title(self.type)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Typed) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> tuple[type[_Typed[T]], tuple[object]]:
        """Pickle by the type, which another process imports."""
        return type(self), (self.type,)

    def encode(self, item: T, /) -> bytes:
        """Return the item's bytes.  Raises ``CodecError`` if they could not be decoded as the type."""
        try:
            data = self._write(item)
            self._read(data)
            self._check_written(item, data)
        except Exception as error:  # the type's own code runs too
            reason = self._explain(error)
            raise CodecError(f"cannot be encoded as {self.name}: {reason}; nothing was written") from error
        return data

    def decode(self, data: bytes, /) -> T:
        """Return the item.  Raises ``CodecError`` for bytes that are not of the type; it says where, and quotes no
        value."""
        try:
            return self._read(data)
        except Exception as error:  # the type's own code runs too
            raise CodecError(self._explain(error)) from None  # whose message may quote the item

    def _check_written(self, item: T, data: bytes) -> None:
        """Raise an error for bytes that can be decoded but are still wrong."""

    def _explain(self, error: Exception) -> str:
        return message_of(error)


class _Msgspec(_Typed[T]):
    def _explain(self, error: Exception) -> str:
        import msgspec

        if isinstance(error, msgspec.MsgspecError):
            return _QUOTED_VALUE.sub(r"\1", str(error))
        return super()._explain(error)


class MsgPack(_Msgspec[T]):
    """MessagePack by msgspec, the smallest and fastest.  Needs the extra ``msgspec``.

    ``type`` is any type that msgspec can decode: a Struct, dataclass, TypedDict, ``list[...]``, a union of tagged
    Structs.
    Raises ``ConfigError`` if msgspec is missing or cannot decode the type.
    """

    format = "MessagePack"

    def __init__(self, type: TypeForm[T]) -> None:
        _import("msgspec", self)
        from msgspec import msgpack

        decoder: msgpack.Decoder[Any] = _make(msgpack.Decoder, type)
        super().__init__(type, msgpack.Encoder().encode, decoder.decode)


class Json(_Msgspec[T]):
    """JSON by msgspec: readable with any tool.  Needs the extra ``msgspec``.

    ``type`` is as for ``MsgPack``.  NaN and infinities are refused, as by ``zkrq.JSON``.  Raises ``ConfigError`` if
    msgspec is missing or cannot decode the type.
    """

    def __init__(self, type: TypeForm[T]) -> None:
        _import("msgspec", self)
        from msgspec import json

        decoder: json.Decoder[Any] = _make(json.Decoder, type)
        super().__init__(type, json.Encoder().encode, decoder.decode)

    def _check_written(self, item: T, data: bytes) -> None:
        """Raise ``ValueError`` for a null that was a NaN."""
        if b"null" in data:
            import msgspec

            if _NOT_FINITE.search(msgspec.msgpack.encode(item)):
                JSON.encode(msgspec.to_builtins(item, str_keys=True))


class Pydantic(_Typed[T]):
    """JSON, validated by pydantic.  Needs the extra ``pydantic``.

    ``type`` is any type that ``pydantic.TypeAdapter`` takes: a model, dataclass, TypedDict, ``list[...]``, a union.
    The model's own configuration applies (``strict``, ``extra``, ...).  Fields are written under their alias, computed
    ones are not written, and both names are read.  NaN and infinities are refused, unless the model says how to write
    them. Raises ``ConfigError`` if pydantic is missing or cannot validate the type.
    """

    def __init__(self, type: TypeForm[T]) -> None:
        _import("pydantic", self)
        self._adapter: pydantic.TypeAdapter[T] = _make(_adapter, type)
        validate = self._adapter.validator.validate_json
        dump = self._adapter.serializer.to_json

        def write(item: Any) -> bytes:
            # Reading the bytes back finds what does not fit the type; pydantic's warning would quote the value.
            return dump(item, by_alias=True, round_trip=True, warnings=False)

        def read(data: bytes) -> T:
            return validate(data, by_alias=True, by_name=True)

        super().__init__(type, write, read)

    def _check_written(self, item: T, data: bytes) -> None:
        """Raise ``ValueError`` for a null that was a NaN."""
        if b"null" in data and not _NAMED.search(data):
            import pydantic_core

            plain = self._adapter.serializer.to_python(item, mode="json", round_trip=True, warnings=False)
            if _NAMED.search(pydantic_core.to_json(plain, inf_nan_mode="constants")):
                raise ValueError("NaN and infinities are not JSON")

    def _explain(self, error: Exception) -> str:
        import pydantic

        if not isinstance(error, pydantic.ValidationError):
            return super()._explain(error)
        wrong = [_line(detail) for detail in error.errors(include_url=False, include_input=False)]
        more = [f"and {len(wrong) - ERRORS_SHOWN} more"] if len(wrong) > ERRORS_SHOWN else []
        return "; ".join(wrong[:ERRORS_SHOWN] + more)


_NAMED = re.compile(rb"NaN|Infinity")

_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""NaN and the infinities in MessagePack; may also match other bytes."""

_QUOTED_VALUE = re.compile(r"^(Invalid (?:enum )?value) .*?(?= - at `[^`]*`\Z|\Z)", re.DOTALL)
"""Messages of msgspec that quote the value they found."""


def _line(detail: Any) -> str:
    """Describe one of pydantic's errors, without the values that it quotes."""
    message: str = detail["msg"]
    if detail["type"] == "union_tag_invalid":
        context = detail["ctx"]
        message = f"the tag {context['discriminator']} is none of the expected: {context['expected_tags']}"
    where = ".".join(map(str, detail["loc"]))
    return f"{where}: {message}" if where else message


def _import(library: str, codec: _Typed[Any]) -> None:
    try:
        import_module(library)
    except ModuleNotFoundError as error:
        kind = type(codec).__name__
        raise ConfigError(f"zkrq.typed.{kind} needs {library}: pip install 'zkrq[{library}]'") from error


def _make(factory: Callable[[Any], T], type: object) -> T:
    """Make the library's own object for the type.  Raises ``ConfigError`` if it cannot make one."""
    try:
        return factory(type)
    except Exception as error:  # of several classes
        raise ConfigError(f"there is no codec for {_title(type)}: {_first_line(error)}") from error


def _adapter(type: Any) -> pydantic.TypeAdapter[Any]:
    import pydantic

    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(type)
    adapter.rebuild(raise_errors=True)  # now, and not with the first item
    return adapter


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def _title(form: object) -> str:
    """Return the type's name for error texts."""
    if get_origin(form) in (Union, types.UnionType):
        return " | ".join(map(_title, get_args(form)))
    if form is types.NoneType:
        return "None"
    return form.__name__ if isinstance(form, type) else repr(form)
