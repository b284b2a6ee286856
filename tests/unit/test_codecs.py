"""Encoding items as bytes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.every import every
from zkrq.base.codecs import JSON, RAW
from zkrq.base.errors import CodecError

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


@every("item", [b"bytes", {1, 2}, object(), {"a": 1j}, "\ud800"])
def test_json_refuses_what_it_cannot_write(item: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        JSON.encode(item)


@every(
    ("item", "place"),
    [
        ({"user": {"name": "Zoë", "born": datetime(2000, 1, 1, tzinfo=UTC)}}, "['user']['born']"),
        ({"a": [1, (2, {3})], "b": set[int]()}, "['a'][1][1]"),
        ([0.5, float("nan")], "[1]"),
        ({"x" * 1_000: object()}, "['" + "x" * 99 + "]"),
    ],
)
def test_json_names_the_part_that_it_cannot_write(item: object, place: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(f"(at {place})") + "$"):
        JSON.encode(item)


def test_json_refuses_an_item_that_contains_itself() -> None:
    item: list[object] = []
    item.append(item)
    with pytest.raises(ValueError, match="Circular"):
        JSON.encode(item)


@every("data", [b"", b"{", b"\xff", b"{}x", b"{}{}", b"[1]]", b"1 2"])
def test_json_refuses_bytes_that_are_none(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        JSON.decode(data)


OLDER = '{"to":"Zoë","n":[1,-2.5,1e+22,true,null],"deep":{"":"\\"\\n\\u0000"},"2":"😀"}'.encode()


def test_json_bytes_stay_as_they_are() -> None:
    """Older producers wrote these, and older consumers read them."""
    item = {"to": "Zoë", "n": [1, -2.5, 1e22, True, None], "deep": {"": '"\n\0'}, "2": "😀"}
    assert JSON.decode(OLDER) == item
    assert JSON.encode(item) == OLDER


@pytest.mark.parametrize("data", [b' {"a": [1, 2]}\n', b'{"a":[1,2]}\r\n', b'\t{"a":[1,2]}'])
def test_json_reads_what_people_and_other_programs_write(data: bytes) -> None:
    assert JSON.decode(data) == {"a": [1, 2]}


@every("key", [1, -1, 1.5, 1e300, True, False, None, (1, 2), b"a"])
def test_json_keys_that_are_no_strings_are_refused(key: object) -> None:
    """They would come back as strings, and 1 and "1" as one."""
    for item in ({key: "a"}, {"1": "b", key: "a"}, [0, ({"deep": {"er": {key: 1}}},)]):
        with pytest.raises(TypeError, match="keys must be"):
            JSON.encode(item)


@pytest.mark.parametrize(
    "item", [{"1": {"-2.5e3": 1}}, {"true": 1, "null": [{"false": 2}]}, ['"1":', "null"], {"1:": '"'}]
)
def test_json_strings_that_look_like_numbers_are_fine(item: object) -> None:
    assert JSON.decode(JSON.encode(item)) == item


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


@every("item", ["text", 5, None, [1, 2], True])
def test_raw_refuses_anything_else(item: Any) -> None:
    with pytest.raises(CodecError, match=type(item).__name__):
        RAW.encode(item)


def test_codecs_say_who_they_are() -> None:
    assert (repr(JSON), repr(RAW)) == ("zkrq.JSON", "zkrq.RAW")
    assert (JSON.name, RAW.name) == ("json", "raw")


@every(
    ("item", "place"),
    [
        ({"user": {"names": ["a", "\ud83d"]}}, r"['user']['names'][1]"),
        ({"a": {"\ud83d": 1}}, r"['a']['\ud83d']"),
        (["\udc00"], "[0]"),
        ("\udc00", "the item itself"),
    ],
)
def test_a_lone_surrogate_is_named_with_its_place(item: Any, place: str) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"surrogate, which is half of a character, has no UTF-8 (at {place})")
    ):
        JSON.encode(item)
