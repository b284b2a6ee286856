"""Payloads of a bundle in one string, as servers cut it."""

from __future__ import annotations

import struct

import pytest

from zkrq.base.checks import MAX_HEADERS, check_headers
from zkrq.base.saved import SAVED_BYTES
from zkrq.protocol.payloads import DamagedPayloads, join, payload_at, split, split_payload, split_saved, with_headers

DROPPED = 1 << 31


def run_of(whole: bytes, first: int, last: int) -> bytes:
    """What ``_payloads.lua`` cuts out: a part of the table, which still counts from the beginning of the whole."""
    table = whole[4 * first : 4 * last + 8]
    begin, end = (struct.unpack_from("<I", table, at)[0] % DROPPED for at in (0, len(table) - 4))
    return table + whole[begin:end]


def dropped(whole: bytes, position: int) -> bytes:
    """The same after ``cut.lua`` has dropped a payload of no length."""
    at = 4 * position + 4
    (end,) = struct.unpack_from("<I", whole, at)
    return whole[:at] + struct.pack("<I", end + DROPPED) + whole[at + 4 :]


def test_a_run_is_taken_apart_like_the_whole() -> None:
    whole = join([b"a", b"bb", b"", b"dddd"])
    assert list(split(whole)) == [b"a", b"bb", b"", b"dddd"]
    assert list(split(run_of(whole, 1, 3), 3)) == [b"bb", b"", b"dddd"]
    assert payload_at(whole, 3) == b"dddd"
    assert payload_at(whole, 4) is None


def test_a_run_may_follow_a_payload_that_was_dropped() -> None:
    whole = dropped(join([b"a", b"", b"ccc"]), 1)
    assert list(split(whole)) == [b"a", None, b"ccc"]
    assert list(split(run_of(whole, 2, 2), 1)) == [b"ccc"]
    assert list(split(run_of(whole, 1, 2), 2)) == [None, b"ccc"]


def test_headers_go_before_the_item() -> None:
    headers = {"trace": "1", "name": "\xe4"}
    assert split_payload(with_headers(b"item", headers)) == (b"item", headers)
    assert split_payload(with_headers(b"item", {})) == (b"item", {})


@pytest.mark.parametrize("headers", [{}, {"trace": "1"}, {"": ""}], ids=str)
@pytest.mark.parametrize("saved", [None, b"", b"\0\xff" * 16384], ids=["nothing", "empty", "32 KiB"])
def test_what_was_saved_before_the_push_goes_with_the_payload(headers: dict[str, str], saved: bytes | None) -> None:
    payload = with_headers(b"item", headers, saved)
    assert split_saved(payload) == (b"item", headers, saved)
    assert split_payload(payload) == (b"item", headers)


def test_the_largest_headers_leave_room_for_what_was_saved() -> None:
    headers = {"name": "x" * (MAX_HEADERS - 8)}
    assert split_saved(with_headers(b"item", check_headers(headers), b"s" * SAVED_BYTES))[2] == b"s" * SAVED_BYTES


@pytest.mark.parametrize("damaged", [b"", b"\1", b"\4\0\1\0x\0"], ids=repr)
def test_headers_that_cannot_be_read_are_an_error(damaged: bytes) -> None:
    with pytest.raises(DamagedPayloads):
        split_saved(damaged)
