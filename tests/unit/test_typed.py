"""Typed items: how they are written and read, and which side refuses bad ones."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,  # pydantic takes no other before Python 3.12
    cast,
)

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypedDict

from tests.every import every
from zkrq import typed
from zkrq.base.codecs import JSON, Codec
from zkrq.base.errors import CodecError, ConfigError

WHEN = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
SECRET = "hunter2-not-for-the-logs"


class Line(msgspec.Struct):
    name: str
    count: int


class Order(msgspec.Struct):
    """As it is today: ``note`` and ``lines`` are new, ``customer`` was once ``user``, ``coupon`` has gone."""

    id: str
    customer: str = msgspec.field(name="user")
    total: float
    placed: datetime
    lines: list[Line] = msgspec.field(default_factory=list[Line])
    note: str | None = None


class OrderModel(pydantic.BaseModel):
    id: str
    customer: str = pydantic.Field(validation_alias=pydantic.AliasChoices("customer", "user"))
    total: float
    placed: datetime
    lines: list[dict[str, Any]] = []
    note: str | None = None


class Paid(msgspec.Struct, tag="paid"):
    id: str


class Sent(msgspec.Struct, tag="sent"):
    id: str
    parcel: int


class PaidModel(pydantic.BaseModel):
    kind: Literal["paid"] = "paid"
    id: str


class SentModel(pydantic.BaseModel):
    kind: Literal["sent"] = "sent"
    id: str
    parcel: int


class Email(TypedDict):
    to: str
    cc: NotRequired[list[str]]


@dataclass
class Point:
    x: int
    y: int = 0
    labels: dict[str, str] = field(default_factory=dict[str, str])


class Measured(msgspec.Struct):
    value: float
    error: float | None = None
    text: str = ""


class MeasuredModel(pydantic.BaseModel):
    value: float
    error: float | None = None
    text: str = ""


ORDER = Order("7", "ann", 9.5, WHEN, [Line("tea", 2)], "ring twice")
ORDER_MODEL = OrderModel(id="7", customer="ann", total=9.5, placed=WHEN, lines=[{"name": "tea"}], note="ring twice")

KINDS: list[Callable[[Any], Codec[Any]]] = [typed.MsgPack, typed.Json, typed.Pydantic]
MSGSPEC = KINDS[:2]

# -- there and back ----------------------------------------------------------------------------------------------------


@every("kind", KINDS)
@every(
    ("form", "item"),
    [
        (Point, Point(1, 2, {"a": "b"})),
        (Email, {"to": "ann@example.org"}),
        (Email, {"to": "ann@example.org", "cc": ["bob@example.org"]}),
        (list[Point], [Point(1), Point(2)]),
        (Point | None, None),
        (Point | None, Point(3)),
        (dict[str, list[int]], {"a": [1, 2]}),
        (dict[int, str], {1: "a"}),
        (tuple[int, str], (1, "a")),
        (datetime, WHEN),
        (Any, {"a": [None, 1.5]}),
    ],
)
def test_round_trip(kind: Callable[[Any], Codec[Any]], form: Any, item: object) -> None:
    codec = kind(form)
    assert codec.decode(codec.encode(item)) == item


@pytest.mark.parametrize("kind", MSGSPEC)
def test_structs_and_tagged_unions(kind: Callable[[Any], Codec[Any]]) -> None:
    assert kind(Order).decode(kind(Order).encode(ORDER)) == ORDER
    either = kind(Paid | Sent)
    for item in (Paid("7"), Sent("7", 5)):
        assert either.decode(either.encode(item)) == item


def test_models_and_discriminated_unions() -> None:
    codec = typed.Pydantic(OrderModel)
    assert codec.decode(codec.encode(ORDER_MODEL)) == ORDER_MODEL
    either = typed.Pydantic(Annotated[PaidModel | SentModel, pydantic.Field(discriminator="kind")])
    for item in (PaidModel(id="7"), SentModel(id="7", parcel=5)):
        assert either.decode(either.encode(item)) == item


@given(st.builds(Point, st.integers(-(2**63), 2**63 - 1), st.integers(0, 9), st.dictionaries(st.text(), st.text())))
def test_any_point_comes_back(point: Point) -> None:
    for kind in KINDS:
        codec = kind(Point)
        assert codec.decode(codec.encode(point)) == point


def test_the_json_codecs_read_each_other() -> None:
    """A queue may move between these without being emptied."""
    item = {"to": "Zoë", "cc": ["bob@example.org"]}
    codecs: list[Codec[Any]] = [JSON, typed.Json(Email), typed.Pydantic(Email)]
    for writer in codecs:
        for reader in codecs:
            assert reader.decode(writer.encode(item)) == item


# -- what an older producer wrote --------------------------------------------------------------------------------------

WRITTEN = '{"id":"7","user":"Zoë","total":9.5,"placed":"2024-02-29T12:30:00Z","coupon":"SPRING"}'.encode()
WRITTEN_PACKED = bytes.fromhex(
    "85a26964a137"  # id: "7"
    "a475736572a45a6fc3ab"  # user: "Zoë"
    "a5746f74616ccb4023000000000000"  # total: 9.5
    "a6706c61636564b4323032342d30322d32395431323a33303a30305a"  # placed
    "a6636f75706f6ea6535052494e47"  # coupon: "SPRING", which no longer exists
)


@pytest.mark.parametrize(("kind", "data"), [(typed.MsgPack, WRITTEN_PACKED), (typed.Json, WRITTEN)])
def test_an_upgraded_consumer_reads_older_structs(kind: Callable[[Any], Codec[Order]], data: bytes) -> None:
    assert kind(Order).decode(data) == Order("7", "Zoë", 9.5, WHEN)


def test_an_upgraded_consumer_reads_older_models() -> None:
    expected = OrderModel(id="7", customer="Zoë", total=9.5, placed=WHEN)
    codec = typed.Pydantic(OrderModel)
    assert codec.decode(WRITTEN) == expected
    assert b'"customer"' in codec.encode(expected)


def test_what_typed_codecs_write_stays_as_it_is() -> None:
    packed = bytes.fromhex("83a17801a17900a66c6162656c7380")
    text = b'{"x":1,"y":0,"labels":{}}'
    assert typed.MsgPack(Point).encode(Point(1)) == packed
    assert typed.Json(Point).encode(Point(1)) == typed.Pydantic(Point).encode(Point(1)) == text
    assert typed.MsgPack(Point).decode(packed) == typed.Json(Point).decode(text) == Point(1)
    assert typed.MsgPack(Paid | Sent).encode(Paid("7")).hex() == "82a474797065a470616964a26964a137"
    assert typed.Json(Paid | Sent).encode(Paid("7")) == b'{"type":"paid","id":"7"}'


def test_a_field_that_got_an_alias_is_still_read_by_its_name() -> None:
    class Before(pydantic.BaseModel):
        email: str

    class After(pydantic.BaseModel):
        email: str = pydantic.Field(alias="e-mail")

    written = typed.Pydantic(Before).encode(Before(email="ann"))
    codec = typed.Pydantic(After)
    assert codec.decode(written).email == "ann"
    assert codec.encode(codec.decode(written)) == b'{"e-mail":"ann"}'


def test_computed_fields_are_not_written() -> None:
    class Square(pydantic.BaseModel, extra="forbid"):
        side: int

        @pydantic.computed_field
        @property
        def area(self) -> int:
            return self.side**2

    assert typed.Pydantic(Square).encode(Square(side=3)) == b'{"side":3}'


# -- what cannot be read -----------------------------------------------------------------------------------------------


@every(
    ("codec", "data", "reason"),
    [
        (typed.Json(Line), b'{"name":"tea"}', "Object missing required field `count`"),
        (typed.Json(Line), b'{"name":5,"count":1}', "Expected `str`, got `int` - at `$.name`"),
        (typed.Json(list[Line]), b'[{"name":"tea","count":"2"}]', "Expected `int`, got `str` - at `$[0].count`"),
        (typed.Json(Line), b'{"name":"tea', "Input data was truncated"),
        (typed.Json(Line), b"{} {}", "Object missing required field `name`"),
        (typed.Json(Line), b"", "Input data was truncated"),
        (typed.Json(Paid | Sent), b'{"type":"burnt"}', "Invalid value - at `$.type`"),
        (typed.Json(Literal["a", "b"]), b'"c - at `x`"', "Invalid enum value"),
        (typed.Json(Literal[1, 2]), b"5", "Invalid enum value"),
        (typed.MsgPack(Line), b"\x81\xa4name\xa3tea", "Object missing required field `count`"),
        (typed.MsgPack(Line), b"\x81\xa4name\x05", "Expected `str`, got `int` - at `$.name`"),
        (typed.MsgPack(Line), b"\x81\xa4na", "Input data was truncated"),
        (typed.MsgPack(int), b"\x01\x02", "MessagePack data is malformed: trailing characters (byte 1)"),
        (typed.Pydantic(SentModel), b'{"id":"7"}', "parcel: Field required"),
        (typed.Pydantic(SentModel), b'{"id":7,"parcel":"x"}', "id: Input should be a valid string; parcel: Input shou"),
        (typed.Pydantic(SentModel), b'{"id":', "Invalid JSON: EOF while parsing a value at line 1 column 6"),
        (typed.Pydantic(list[int]), b'["a","b","c","d","e"]', "0: Input should be a valid integer"),
    ],
)
def test_reasons_read_well(codec: Codec[Any], data: bytes, reason: str) -> None:
    with pytest.raises(CodecError) as caught:
        codec.decode(data)
    assert str(caught.value).startswith(reason)


def test_a_long_list_of_what_is_wrong_is_cut() -> None:
    with pytest.raises(CodecError, match=r"; and 97 more$"):
        typed.Pydantic(list[int]).decode(JSON.encode(["a"] * 100))


TAGGED = Annotated[PaidModel | SentModel, pydantic.Field(discriminator="kind")]


@every(
    ("codec", "item"),
    [
        (typed.Json(Point), {"x": SECRET}),
        (typed.Json(Point), {"x": 1, "labels": {SECRET: 5}}),
        (typed.Json(Literal["a"]), SECRET),
        (typed.Json(Literal["a"]), f"{SECRET} - at `{SECRET}`"),
        (typed.Json(dict[str, Literal["a", "b"]]), {"x": f"{SECRET}\n - at `$.x`\n{SECRET}"}),
        (typed.Json(Paid | Sent), {"type": SECRET}),
        (typed.Json(datetime), SECRET),
        (typed.Pydantic(SentModel), {"id": 5, "parcel": SECRET}),
        (typed.Pydantic(SentModel), [SECRET]),
        (typed.Pydantic(PaidModel | SentModel), {"kind": SECRET}),
        (typed.Pydantic(cast("type[PaidModel | SentModel]", TAGGED)), {"kind": SECRET}),
        (typed.Pydantic(datetime), SECRET),
    ],
)
def test_reasons_quote_no_value(codec: Codec[Any], item: object) -> None:
    with pytest.raises(CodecError) as caught:
        codec.decode(JSON.encode(item))
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__, "a traceback would print the library's error, which may quote the item"


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.binary(max_size=40))
def test_whatever_the_bytes_it_is_a_codec_error(kind: Callable[[Any], Codec[Point]], data: bytes) -> None:
    try:
        point = kind(Point).decode(data)
    except CodecError:
        return
    assert isinstance(point, Point)


# -- what cannot be written --------------------------------------------------------------------------------------------


@every("kind", KINDS)
@every(
    "item",
    [5, None, "text", [Point(1)], {"y": 2}, Point(cast("int", "one")), Point(cast("int", None)), object(), 1j],
)
def test_what_could_not_be_read_back_is_not_written(kind: Callable[[Any], Codec[Any]], item: object) -> None:
    with pytest.raises(
        CodecError, match=r"^cannot be encoded as Point in (JSON|MessagePack): .+; nothing was written$"
    ):
        kind(Point).encode(item)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_while_encoding_quote_no_value(kind: Callable[[Any], Codec[Any]]) -> None:
    with pytest.raises(CodecError) as caught:
        kind(Point).encode(Point(cast("int", SECRET)))
    assert SECRET not in str(caught.value)


def test_one_of_another_type_is_refused() -> None:
    with pytest.raises(CodecError, match="missing required field `parcel`"):
        typed.MsgPack(Sent).encode(cast("Sent", {"type": "sent", "id": "7"}))
    with pytest.raises(CodecError, match=r"Invalid value - at `\$.type`"):
        typed.MsgPack(Sent).encode(cast("Sent", Paid("7")))
    with pytest.raises(CodecError, match="parcel: Field required"):
        typed.Pydantic(SentModel).encode(cast("SentModel", PaidModel(id="7")))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_json_writes_no_null_for_a_number(number: float) -> None:
    """A number that would come back as None, or not at all, is refused, as by the default codec."""
    for item in (Measured(number), Measured(1.0, number)):
        with pytest.raises(CodecError, match="nothing was written"):
            typed.Json(Measured).encode(item)
        codec = typed.MsgPack(Measured)
        assert str(codec.decode(codec.encode(item))) == str(item)
    for model in (MeasuredModel(value=number), MeasuredModel(value=1.0, error=number)):
        with pytest.raises(CodecError, match="nothing was written"):
            typed.Pydantic(MeasuredModel).encode(model)


@pytest.mark.parametrize("text", ["", "null", "NaN", "Infinity"])
def test_json_writes_other_nulls(text: str) -> None:
    assert typed.Json(Measured).decode(typed.Json(Measured).encode(Measured(1.0, None, text))).error is None
    codec = typed.Pydantic(MeasuredModel)
    assert codec.decode(codec.encode(MeasuredModel(value=1.0, text=text))).error is None


@pytest.mark.parametrize("how", ["constants", "strings"])
def test_a_model_may_say_how_nan_is_written(how: Literal["constants", "strings"]) -> None:
    class Reading(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(ser_json_inf_nan=how)
        value: float
        error: float | None = None

    codec = typed.Pydantic(Reading)
    assert math.isnan(codec.decode(codec.encode(Reading(value=math.nan))).value)


@given(st.binary(), st.lists(st.integers()))
def test_bytes_and_numbers_that_look_like_nan_are_fine(data: bytes, numbers: list[int]) -> None:
    class Mixed(msgspec.Struct):
        data: bytes
        numbers: list[int]
        nothing: None = None

    codec = typed.Json(Mixed)
    small = [number % 2**63 for number in numbers]
    for item in (Mixed(data, small), Mixed(b"\xcb\x7f\xf8" + data, small)):
        assert codec.decode(codec.encode(item)) == item


# -- codecs as values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_two_for_the_same_type_are_equal(kind: Callable[[Any], Codec[Any]]) -> None:
    """``Cluster.queue`` takes them for the same options."""
    assert kind(Point) == kind(Point)
    assert hash(kind(Point)) == hash(kind(Point))
    assert kind(list[Point]) == kind(list[Point])
    assert kind(Point | None) == kind(Point | None)
    assert kind(Point) != kind(Email)
    assert kind(Point) != Point
    assert len({each(Point) for each in KINDS}) == 3


def test_they_say_who_they_are() -> None:
    assert repr(typed.MsgPack(Point)) == "zkrq.typed.MsgPack(Point)"
    assert repr(typed.Json(Paid | Sent)) == "zkrq.typed.Json(Paid | Sent)"
    assert typed.MsgPack(Point).name == "Point in MessagePack"
    assert typed.Json(Point).name == typed.Pydantic(Point).name == "Point in JSON"
    assert typed.Json(Point | None).name == "Point | None in JSON"
    assert typed.Json(list[int]).name == "list[int] in JSON"


@pytest.mark.parametrize(
    ("kind", "form"), [(typed.MsgPack, Order | Line), (typed.Json, Order | Line), (typed.Pydantic, object.__new__)]
)
def test_types_without_a_codec(kind: Callable[[Any], Codec[Any]], form: object) -> None:
    with pytest.raises(ConfigError, match="there is no codec for "):
        kind(form)


@pytest.mark.parametrize(
    ("kind", "library"), [(typed.MsgPack, "msgspec"), (typed.Json, "msgspec"), (typed.Pydantic, "pydantic")]
)
def test_the_missing_extra_is_named(
    kind: Callable[[Any], Codec[Any]], library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"needs {library}: pip install 'zkrq\[{library}\]'"):
        kind(Point)
