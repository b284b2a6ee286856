"""How items become bytes."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrq.codecs import JSON, RAW
from zkrq.errors import CodecError

json_items = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_items)
def test_json_round_trip(item: Any) -> None:
    assert JSON.decode(JSON.encode(item)) == item


def test_json_is_compact_and_readable() -> None:
    assert JSON.encode({"to": "Zoë", "n": [1, 2]}) == '{"to":"Zoë","n":[1,2]}'.encode()


@pytest.mark.parametrize("item", [float("nan"), float("inf"), {"deep": [float("-inf")]}])
def test_json_refuses_what_others_cannot_read(item: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        JSON.encode(item)


@pytest.mark.parametrize("item", [b"bytes", {1, 2}, object(), {"a": 1j}, "\ud800"])
def test_json_refuses_what_it_cannot_write(item: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        JSON.encode(item)


def test_json_refuses_an_item_that_contains_itself() -> None:
    item: list[object] = []
    item.append(item)
    with pytest.raises(ValueError, match="Circular"):
        JSON.encode(item)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"{}x"])
def test_json_refuses_bytes_that_are_none(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        JSON.decode(data)


def test_json_tuples_come_back_as_lists() -> None:
    assert JSON.decode(JSON.encode((1, (2,)))) == [1, [2]]


@given(st.binary())
def test_raw_round_trip(item: bytes) -> None:
    assert RAW.encode(item) == RAW.decode(item) == item


@pytest.mark.parametrize("item", [bytearray(b"x"), memoryview(b"x")])
def test_raw_takes_whatever_is_bytes(item: Any) -> None:
    encoded = RAW.encode(item)
    assert (encoded, type(encoded)) == (b"x", bytes)


def test_raw_keeps_a_copy() -> None:
    """What the caller changes afterwards is not what was pushed."""
    item = bytearray(b"before")
    encoded = RAW.encode(cast("bytes", item))
    item[:] = b"after!"
    assert encoded == b"before"


@pytest.mark.parametrize("item", ["text", 5, None, [1, 2], True])
def test_raw_refuses_anything_else(item: Any) -> None:
    with pytest.raises(CodecError, match=type(item).__name__):
        RAW.encode(item)


def test_codecs_say_who_they_are() -> None:
    assert (repr(JSON), repr(RAW)) == ("zkrq.JSON", "zkrq.RAW")
    assert (JSON.name, RAW.name) == ("json", "raw")
