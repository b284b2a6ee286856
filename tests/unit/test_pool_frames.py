"""Frames between a parent and its children: whatever their pieces, and whatever a child sends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrq.pool.frames import (
    HEAD,
    TEXT_MAX,
    UP_MAX,
    BadFrame,
    Frames,
    Kind,
    Told,
    Work,
    decode_done,
    decode_down,
    decode_up,
    decode_work,
    encode_done,
    encode_down,
    encode_up,
    encode_work,
    frame,
)


@given(st.lists(st.tuples(st.sampled_from(Kind), st.binary(max_size=50)), max_size=8), st.integers(1, 40))
def test_frames_are_the_same_in_any_pieces(sent: list[tuple[Kind, bytes]], size: int) -> None:
    stream = b"".join(frame(kind, body) for kind, body in sent)
    frames = Frames(UP_MAX)
    heard = [got for at in range(0, len(stream), size) for got in frames.feed(stream[at : at + size])]
    assert heard == [(int(kind), body) for kind, body in sent]


def test_a_frame_above_the_bound_is_refused_before_its_body_is_there() -> None:
    frames = Frames(10)
    assert list(frames.feed(frame(Kind.DONE, b"x" * 10))) == [(Kind.DONE, b"x" * 10)]
    with pytest.raises(BadFrame, match="11 bytes, at most 10"):
        list(frames.feed(HEAD.pack(11, Kind.DONE)))


@given(st.binary(max_size=200))
def test_an_item_arrives_as_it_was(payload: bytes) -> None:
    work = Work(7, 1, "id", "bundle", 3, "owner", "request", b"\0record", 29.5, {"a": "ä"})
    ((kind, body),) = Frames(UP_MAX).feed(encode_work(work, payload))
    assert (kind, decode_work(body)) == (Kind.ITEM, (work, payload))


def test_values_go_down() -> None:
    ((kind, body),) = Frames(UP_MAX).feed(encode_down(Kind.STOP, 3, "lost", True))
    assert (kind, decode_down(body)) == (Kind.STOP, (3, "lost", True))


def test_a_verdict_goes_up() -> None:
    ((kind, body),) = Frames(UP_MAX).feed(encode_done(9, 1 << 40, b"result"))
    assert (kind, decode_done(body)) == (Kind.DONE, (9, 1 << 40, b"result"))
    with pytest.raises(BadFrame):
        decode_done(body[:5])


@given(st.binary(max_size=100))
def test_bytes_of_a_child_are_values_or_no_frame(body: bytes) -> None:
    try:
        told = decode_up(body)
    except BadFrame:
        return
    assert isinstance(told, Told)


JSONS: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(JSONS)
def test_a_value_of_another_kind_counts_for_nothing(value: Any) -> None:
    told = decode_up(json.dumps({"x": value}).encode())
    assert isinstance(told.text("x"), str)
    assert abs(told.number("x")) <= 2**53
    seconds = told.seconds("x")
    assert seconds is None or 0 <= seconds <= 2**53
    assert told.flag("x") is (value is True)


def test_texts_are_cut_and_can_be_encoded() -> None:
    ((_, body),) = Frames(UP_MAX).feed(encode_up(Kind.RECORD, text="ä" * (TEXT_MAX + 5), bad="\ud800"))
    told = decode_up(body)
    assert len(told.text("text")) == TEXT_MAX
    assert told.text("bad") == "?"


def test_the_longest_texts_fit_a_frame() -> None:
    body = encode_up(Kind.FAILED, trace="\U0001f600" * TEXT_MAX, message="\U0001f600" * 500)
    assert len(body) <= UP_MAX


def test_nested_too_deeply_is_no_frame() -> None:
    with pytest.raises(BadFrame):
        decode_up(b"[" * 100_000)
    with pytest.raises(BadFrame):
        decode_up(b"[]")
