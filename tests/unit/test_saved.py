"""What is saved of an item, as one text: it is read as it was written, and anything else is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrq.base.errors import CodecError, PayloadTooLarge
from zkrq.base.saved import SAVED_BYTES, Edit, Saved, decode, edit_in, shown

values = st.binary(max_size=300)
names = st.text(min_size=1, max_size=30)


edits = st.builds(Edit, st.integers(-(2**63), 2**63 - 1), st.text(max_size=25), values)


@given(st.builds(Saved, st.none() | values, st.dictionaries(names, values, max_size=5), st.none() | edits))
def test_round_trip(saved: Saved) -> None:
    assert decode(saved.encode()) == saved
    assert edit_in(saved.encode()) == saved.edit


@given(
    st.binary(max_size=60)
    | st.binary(max_size=60).flatmap(
        lambda text: st.sampled_from([b"\x01", b"\x02", b"\x03"]).map(lambda form: form + text)
    )
)
def test_anything_else_is_an_error_of_the_codec(text: bytes) -> None:
    edit_in(text)
    with contextlib.suppress(CodecError):
        assert decode(text).encode()


def test_the_bound_is_of_all_together() -> None:
    room = SAVED_BYTES - len(Saved(b"").encode())
    assert len(Saved(b"x" * room).encode()) == SAVED_BYTES
    with pytest.raises(PayloadTooLarge) as caught:
        Saved(b"x" * (room + 1)).encode()
    assert (caught.value.size, caught.value.limit) == (SAVED_BYTES + 1, SAVED_BYTES)
    with pytest.raises(PayloadTooLarge, match="the value of step 'one' has 40000 bytes"):
        Saved(None, {"one": b"x" * 40_000}).encode()


def test_what_is_nested_too_deeply_for_json_is_not_shown() -> None:
    deep: object = 1
    for _ in range(50):
        deep = {"in": [deep]}
    assert shown(deep) is None
    assert shown({"in": [{"x": (1, 2)}]}) == {"in": [{"x": (1, 2)}]}
    many: object = 1
    for _ in range(50):
        many = [many, many]
    assert shown(many) is None, "a value of any codec may have one part in many places"
