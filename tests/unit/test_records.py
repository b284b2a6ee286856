"""Records: reading returns what was packed, in every version."""

from __future__ import annotations

import re
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrq.consuming.lease import Verb
from zkrq.protocol.records import (
    FIRST,
    FORMAT,
    MOVES,
    PRIORITIES,
    Record,
    State,
    Version,
    fresh,
    pack,
    unpack,
    version_of,
)
from zkrq.protocol.scripts import SCRIPTS

u32 = st.integers(0, 2**32 - 1)
moments = st.floats(0, 2**53, allow_nan=False)
texts = st.text(max_size=300)
versions = st.builds(Version, u32, u32)
records = st.builds(
    Record,
    versions,
    st.sampled_from(State),
    priority=st.sampled_from(PRIORITIES),
    attempts=u32,
    failures=u32,
    pushed_at_ms=moments,
    due_us=moments,
    lease_ms=u32,
    token=st.text(max_size=60),  # at most 255 bytes
    key=texts,
    note=texts,
    ttl_ms=st.none() | st.floats(1, 2**45),
)

PUBLISHED = {
    "claimed": (
        Record(
            Version(3, 7),
            State.CLAIMED,
            priority=9,
            attempts=2,
            failures=1,
            pushed_at_ms=1_700_000_000_123,
            due_us=1_700_000_000_456_789,
            lease_ms=30_000,
            token="ann/17",
            key="welcome:ann",
            note="ünïcode",
        ),
        (
            # 29: the priority, and 20 for the key.  Until items could have keys there was no such record to be read.
            "01 03000000 07000000 43 29 02000000 01000000 00b08756febc7842 54e1946090281843 30750000"
            "06 616e6e2f3137 0b00 77656c636f6d653a616e6e 0900 c3bc6ec3af636f6465"
        ),
    ),
    "pushed": (
        Record(FIRST, State.QUEUED, priority=4, pushed_at_ms=1_700_000_000_000),
        "01 00000000 01000000 51 04 00000000 00000000 00008056febc7842 0000000000000000 00000000 00 0000 0000",
    ),
    "pushed with a time to live": (
        Record(FIRST, State.QUEUED, priority=4, pushed_at_ms=1_700_000_000_000, ttl_ms=90_000.5),
        (
            "01 00000000 01000000 51 14 00000000 00000000 00008056febc7842 0000000000000000 00000000 00 0000 0000"
            "00000000 08f9f540"
        ),
    ),
    "dead with a key and a time to live": (
        Record(Version(2, 5), State.DEAD, priority=1, token="ann/1", key="k", note="why", ttl_ms=1_000),
        (
            "01 02000000 05000000 44 31 00000000 00000000 0000000000000000 0000000000000000 00000000"
            "05 616e6e2f31 0100 6b 0300 776879 0000000000408f40"
        ),
    ),
    "paused": (
        Record(Version(4, 1), State.PAUSED, pushed_at_ms=1_700_000_000_000),
        "01 04000000 01000000 50 00 00000000 00000000 00008056febc7842 0000000000000000 00000000 00 0000 0000",
    ),
    "gone": (
        Record(Version(1, 3), State.GONE, token="ann/1"),
        (
            "01 01000000 03000000 58 00 00000000 00000000 0000000000000000 0000000000000000 00000000"
            "05 616e6e2f31 0000 0000"
        ),
    ),
}
"""Bytes of FORMAT 1 as servers and older clients hold them: never to be changed."""


@given(records)
def test_round_trip(record: Record) -> None:
    assert unpack(pack(record)) == record


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_bytes_are_readable_for_ever(name: str) -> None:
    """Wire format: an older producer's record must be understood, and a new one by an older consumer."""
    record, packed = PUBLISHED[name]
    assert unpack(bytes.fromhex(packed)) == record
    assert pack(record).hex() == packed.replace(" ", "")


@pytest.mark.parametrize("format", [0, FORMAT + 1, 255])
def test_another_format_is_refused(format: int) -> None:
    packed = pack(Record(FIRST, State.QUEUED))
    with pytest.raises(ValueError, match="format"):
        unpack(bytes([format]) + packed[1:])


def test_nothing_is_no_record() -> None:
    with pytest.raises(ValueError, match="format"):
        unpack(b"")


def test_text_cut_within_a_character_is_readable() -> None:
    """Scripts cut a reason by bytes."""
    packed = pack(Record(FIRST, State.DEAD, note="xx"))
    assert unpack(packed[:-2] + "€".encode()[:2]).note == "\N{REPLACEMENT CHARACTER}"


@given(st.sampled_from(PRIORITIES), st.integers(0, 2**43), texts, st.none() | st.floats(1, 2**45))
def test_fresh_is_the_record_of_a_push(priority: int, pushed_at_ms: int, key: str, ttl_ms: float | None) -> None:
    record = Record(FIRST, State.QUEUED, priority=priority, pushed_at_ms=pushed_at_ms, key=key, ttl_ms=ttl_ms)
    assert fresh(priority, pushed_at_ms, key, ttl_ms) == pack(record)


@given(st.sampled_from(PRIORITIES), st.integers(0, 2**43))
def test_record_of_a_plain_push_has_no_tail(priority: int, pushed_at_ms: int) -> None:
    """Wire format: who uses neither keys nor times to live writes what clients before these understand."""
    packed = fresh(priority, pushed_at_ms)
    assert packed[10] == priority
    assert packed[-4:] == bytes(4)


@given(records)
def test_version_alone(record: Record) -> None:
    assert version_of(pack(record)) == record.version


@given(versions, versions)
def test_versions_are_ordered_by_epoch_then_number(one: Version, other: Version) -> None:
    assert (one < other) == ((one.epoch, one.n) < (other.epoch, other.n))


# -- the table of moves --------------------------------------------------------------------------------------------


def settle_verbs() -> dict[str, str]:
    """Verb and state, as ``settle.lua`` lists them."""
    listed = re.findall(r"^  (\w+) = \{state = '(\w)'", SCRIPTS["settle"].body, re.MULTILINE)
    return dict(listed)


def decided_states(script: str) -> set[str]:
    """The states that a script writes down by name."""
    text = (resources.files("zkrq.protocol") / "lua" / f"{script}.lua").read_text()
    return set(re.findall(r"\bdecide\(\w+, \w+, '(\w)'", text))


def test_every_state_has_a_row() -> None:
    assert set(MOVES) == set(State)


def test_nothing_leaves_the_tombstones() -> None:
    """But the queue's own record, which is no item: there GONE says that the queue goes on."""
    assert MOVES[State.GONE] == {"pause": State.PAUSED, "push": State.QUEUED}
    assert MOVES[State.PAUSED] == {"resume": State.GONE}


def test_settling_moves_as_the_script_does() -> None:
    by_others = {"fence", "expire", "cancel"}
    assert settle_verbs() == {verb: to for verb, to in MOVES[State.CLAIMED].items() if verb not in by_others}


def test_claims_know_the_verbs_of_the_script() -> None:
    assert {str(verb) for verb in Verb} == settle_verbs().keys()


@pytest.mark.parametrize("script", ["clear", "fence"])
def test_script_moves_as_the_table_says(script: str) -> None:
    (target,) = {moves[script] for moves in MOVES.values() if script in moves}
    assert decided_states(script) == {target}


def test_every_decision_of_a_claim_is_in_the_table() -> None:
    """Queued items are claimed, buried, or dropped; claims expire; dead letters are dropped.  What becomes of an item
    that outlives its time is the caller's to say, by the argument `expired`."""
    queued = {str(to) for verb, to in MOVES[State.QUEUED].items() if verb != "clear"}
    assert decided_states("claim") == {*queued, str(MOVES[State.CLAIMED]["expire"])}
    assert MOVES[State.DEAD]["drop"] in decided_states("claim")
    assert "expired" in SCRIPTS["claim"].arguments
