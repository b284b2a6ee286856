"""Records: reading returns what was packed, in every version."""

from __future__ import annotations

import re
from importlib import resources
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.every import every
from zkrq.consuming.lease import LETS_GO_ON, SNOOZES, Verb
from zkrq.protocol.records import (
    BUNDLE_MAX,
    FIELDS_FORMAT,
    FIRST,
    FORMAT,
    MOVES,
    PRIORITIES,
    Bundle,
    DamagedRecord,
    ItemRecord,
    Own,
    Row,
    State,
    Version,
    above,
    clock_of,
    fresh,
    is_alone,
    pack,
    states_of,
    unpack,
    version_of,
    was_put_back,
    with_fields,
)
from zkrq.protocol.scripts import SCRIPTS, read_files

T = TypeVar("T")

u16, u32 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)
moments = st.floats(0, 2**53, allow_nan=False)
texts = st.text(max_size=60)  # at most 255 bytes
versions = st.builds(Version, u32, u32)


@st.composite
def bundles(draw: st.DrawFn) -> Bundle:
    size = draw(st.integers(1, BUNDLE_MAX))
    is_alone = size == 1 and draw(st.booleans())
    rows = draw(st.lists(st.builds(Row, texts, u32, u32, moments), max_size=min(size + 1, 20)))

    def column(values: st.SearchStrategy[T]) -> list[T]:
        return draw(st.lists(values, min_size=size, max_size=size))

    expires_us = draw(moments) if is_alone else 0.0
    return Bundle(
        draw(versions),
        "".join(column(st.sampled_from("QRCDXF" if size > 1 else "QRCDXFP"))),
        column(st.integers(0, len(rows))),
        tuple(column(u16)),
        draw(st.sampled_from(PRIORITIES)),
        is_alone,
        pushed_at_ms=draw(moments),
        due_us=draw(moments),
        clock_us=draw(moments),
        soonest_us=draw(moments),
        rows=rows,
        own=draw(st.dictionaries(st.integers(0, size - 1), st.builds(Own, moments, u32), max_size=size)),
        key=draw(texts) if is_alone else "",
        expires_us=expires_us,
        ttl_us=draw(moments) if expires_us else 0,
        group=draw(st.none() | texts.filter(lambda text: "\0" not in text)),
        fields=draw(st.dictionaries(st.sampled_from("AFSZ\xff"), st.binary(max_size=30))),
    )


PUBLISHED = {
    "pushed": (
        Bundle(FIRST, "Q", priority=4, pushed_at_ms=1_700_000_000_000),
        (
            "02 00000000 01000000 04 00 00008056febc7842 0000000000000000 0000000000000000 0000000000000000"
            "51 7f 0000 00 00 00"
        ),
    ),
    "three pushed together": (
        Bundle(FIRST, "QQQ", priority=4, is_alone=False, pushed_at_ms=1_700_000_000_000),
        (
            "02 00000000 01000000 04 03 00008056febc7842 0000000000000000 0000000000000000 0000000000000000"
            "515151 7f7f7f 000000000000 00 00 00"
        ),
    ),
    "of mixed fate": (
        Bundle(
            Version(3, 7),
            "CRDX",
            [2, 1, 1, 0],
            [2, 1, 300, 0],
            priority=9,
            is_alone=False,
            pushed_at_ms=4.0,
            due_us=5.0,
            clock_us=6.0,
            soonest_us=7.0,
            rows=[Row("ann", 17, 30_000, 7.0), Row("bob", 1, 60_000, 8.0)],
            own={1: Own(9.0, 1), 2: Own(10.0, 2)},
        ),
        (
            "02 03000000 07000000 09 04 0000000000001040 0000000000001440 0000000000001840 0000000000001c40"
            "43524458 8180807f 020001002c010000 02 03616e6e 03626f62"
            "02 01 11000000 30750000 0000000000001c40 02 01000000 60ea0000 0000000000002040"
            "02 02 0000000000002240 01000000 03 0000000000002440 02000000"
        ),
    ),
    "alone, with a key and a time to live": (
        Bundle(Version(2, 5), "Q", priority=1, due_us=5.0, key="k", expires_us=7.0, ttl_us=2.0),
        # 31: the priority, 10 for the time to live, 20 for the key.
        (
            "02 02000000 05000000 31 00 0000000000000000 0000000000001440 0000000000000000 0000000000000000"
            "51 7f 0000 00 00 00 016b 0000000000001c40 0000000000000040"
        ),
    ),
    "three of a group, pushed together": (
        Bundle(FIRST, "QQQ", priority=4, is_alone=False, pushed_at_ms=1_700_000_000_000, group="g"),
        # 44: the priority, 40 for the group.
        (
            "03 00000000 01000000 44 03 00008056febc7842 0000000000000000 0000000000000000 0000000000000000"
            "515151 7f7f7f 000000000000 00 00 00 0167 0000000000000000"
        ),
    ),
    "alone, with a time to live and two fields": (
        Bundle(Version(2, 5), "Q", due_us=5.0, expires_us=7.0, ttl_us=2.0, fields={"a": b"one", "Z": b""}),
        # The fields: nine bytes, ordered by kind.
        (
            "04 02000000 05000000 10 00 0000000000000000 0000000000001440 0000000000000000 0000000000000000"
            "51 7f 0000 00 00 00 0900 5a0000 610300 6f6e65 00 0000000000001c40 0000000000000040"
        ),
    ),
    "two of a group, with a field": (
        Bundle(FIRST, "QQ", priority=4, is_alone=False, group="g", fields={"F": b"x"}),
        (
            "04 00000000 01000000 44 02 0000000000000000 0000000000000000 0000000000000000 0000000000000000"
            "5151 7f7f 00000000 00 00 00 0400 460100 78 0167 0000000000000000"
        ),
    ),
    "paused": (
        Bundle(Version(4, 1), "P", pushed_at_ms=1_700_000_000_000),
        (
            "02 04000000 01000000 00 00 00008056febc7842 0000000000000000 0000000000000000 0000000000000000"
            "50 7f 0000 00 00 00"
        ),
    ),
}
"""Bytes of FORMAT 2, 3 of items in a group, and 4 with fields, as servers and clients hold them: never changed."""

OF_FORMAT_1 = bytes.fromhex(
    "01 00000000 01000000 51 04 00000000 00000000 00008056febc7842 0000000000000000 00000000 00 0000 0000"
)


def plain(bundle: Bundle) -> Bundle:
    """Columns that were left out, as they are read."""
    size = len(bundle.states)
    return bundle._replace(
        rows_of=list(bundle.rows_of) or [0] * size,
        attempts=tuple(bundle.attempts) or (0,) * size,
        rows=list(bundle.rows),
        own=dict(bundle.own),
    )


@given(bundles())
def test_round_trip(bundle: Bundle) -> None:
    assert unpack(pack(bundle)) == plain(bundle)


@every("name", PUBLISHED)
def test_published_bytes_are_readable_for_ever(name: str) -> None:
    """Wire format: an older producer's record must be understood, and a new one by an older consumer."""
    bundle, packed = PUBLISHED[name]
    assert unpack(bytes.fromhex(packed)) == plain(bundle)
    assert pack(bundle).hex() == packed.replace(" ", "")


@pytest.mark.parametrize("format", [0, 1, FIELDS_FORMAT + 1, 255])
def test_another_format_is_refused(format: int) -> None:
    packed = pack(Bundle(FIRST, "Q"))
    with pytest.raises(ValueError, match="format"):
        unpack(bytes([format]) + packed[1:])


@pytest.mark.parametrize("packed", [b"", OF_FORMAT_1])
def test_what_is_no_record_of_this_format_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match=f"this version of zkrq reads {FORMAT}"):
        unpack(packed)


@given(
    st.sampled_from(PRIORITIES),
    st.integers(0, 2**43),
    st.none() | st.integers(1, BUNDLE_MAX),
    st.integers(0, 2**40),
    texts,
    st.just(0) | st.floats(1, 2**45),
)
def test_fresh_is_the_record_of_a_push(
    priority: int, pushed_at_ms: int, size: int | None, delay_ms: int, key: str, ttl_ms: float
) -> None:
    bundle = Bundle(FIRST, "Q" * (size or 1), priority=priority, is_alone=size is None, pushed_at_ms=pushed_at_ms)
    bundle = bundle._replace(due_us=delay_ms * 1000)
    if size is not None:
        assert fresh(priority, pushed_at_ms, size=size, delay_ms=delay_ms) == pack(bundle)
    else:
        bundle = bundle._replace(key=key, expires_us=ttl_ms * 1000, ttl_us=ttl_ms * 1000)
        assert fresh(priority, pushed_at_ms, delay_ms=delay_ms, key=key, ttl_ms=ttl_ms) == pack(bundle)
    fields = {"F": b"home/name"}
    plain = fresh(priority, pushed_at_ms, size=size, delay_ms=delay_ms)
    assert unpack(with_fields(plain, fields)) == unpack(plain)._replace(fields=fields)
    assert with_fields(plain, {}) == plain


@pytest.mark.parametrize(
    "fields",
    ["0500 460100 78", "0300 460100 78", "0400 460200 78", "0800 460100 78 460100 78", "0800 460100 78 450100 78"],
)
def test_fields_that_do_not_fill_their_place_in_order_are_damage(fields: str) -> None:
    packed = pack(Bundle(FIRST, "Q", fields={"F": b"x"}))
    before = packed[: -len(bytes.fromhex("0400 460100 78"))]
    assert unpack(before + bytes.fromhex("0400 460100 78")) == unpack(packed)
    with pytest.raises(DamagedRecord):
        unpack(before + bytes.fromhex(fields))


@given(bundles(), u32)
def test_parts_are_read_alone(bundle: Bundle, n: int) -> None:
    packed = pack(bundle)
    assert version_of(packed) == bundle.version
    assert clock_of(packed) == bundle.clock_us
    assert is_alone(packed) == bundle.is_alone
    assert states_of(packed) == bundle.states.encode()
    raised = Version(bundle.version.epoch, max(n, bundle.version.n))
    assert unpack(above(packed, n)) == plain(bundle)._replace(version=raised)


@given(bundles())
def test_items_are_what_the_columns_say(bundle: Bundle) -> None:
    for position, state in enumerate(bundle.states):
        item = bundle.item(position)
        assert item.state == {"R": "Q", "F": "X"}.get(state, state)
        assert item.attempts == bundle.attempts[position]
        row = bundle.rows_of[position]
        assert (item.token, item.deadline_us) == (
            (bundle.rows[row - 1].token, bundle.rows[row - 1].deadline_us) if row else ("", 0)
        )
        own = bundle.own.get(position)
        assert (item.due_us, item.failures) == (own if own else (bundle.due_us, 0))


@given(versions, versions)
def test_versions_are_ordered_by_epoch_then_number(one: Version, other: Version) -> None:
    assert (one < other) == ((one.epoch, one.n) < (other.epoch, other.n))


# -- the table of moves --------------------------------------------------------------------------------------------


def settle_verbs() -> dict[str, str]:
    """Verb and state, as ``_settling.lua`` lists them."""
    listed = re.findall(r"^    (\w+) = \{became = '\[?(\w)", read_files()["_settling"], re.MULTILINE)
    return dict(listed)


def decided_states(script: str) -> set[str]:
    """The states to which a script moves items, by the functions that it calls (``_bundle.lua``)."""
    text = (resources.files("zkrq.protocol") / "lua" / f"{script}.lua").read_text()
    return {state for call, state in MOVING.items() if re.search(call, text)}


MOVING = {
    r"\brequeue\(r, ": "Q",
    r"\bset\(r, \w+, \w+, CLAIMED": "C",
    r"\bbury\(r, ": "D",
    r"\bremove\(r, ": "X",
}


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
    assert {LETS_GO_ON, SNOOZES, *map(str, Verb)} == settle_verbs().keys()


@pytest.mark.parametrize("script", ["clear", "fence"])
def test_script_moves_as_the_table_says(script: str) -> None:
    (target,) = {moves[script] for moves in MOVES.values() if script in moves}
    assert decided_states(script) == {target}


def test_every_decision_of_a_claim_is_in_the_table() -> None:
    """Queued items are claimed, buried, or dropped; claims expire; dead letters are dropped.  What becomes of an item
    that outlives its time is the caller's to say, by the argument `expired`."""
    queued = {str(to) for verb, to in MOVES[State.QUEUED].items() if verb != "clear"}
    assert decided_states("_claiming") | decided_states("_housekeeping") == {
        *queued,
        str(MOVES[State.CLAIMED]["expire"]),
    }
    assert decided_states("_dead_letters") == {MOVES[State.DEAD]["drop"]}
    assert "expired" in SCRIPTS["claim"].arguments


ENDS = st.sampled_from(("nack", "release", "expiry"))


@given(st.integers(0, 3), st.integers(1, 4), st.lists(ENDS, min_size=1, max_size=6), st.booleans())
def test_what_was_put_back_is_told_by_the_counts(failures: int, more: int, ends: list[str], is_claimed: bool) -> None:
    """``ends``: of the claim in question, and of the later ones."""
    counted = {"nack": (1, 0), "release": (0, -1), "expiry": (0, 0)}
    claimed = ItemRecord(FIRST, State.CLAIMED, attempts=failures + more, failures=failures)
    now = claimed._replace(state=State.QUEUED)
    for at, end in enumerate(ends):
        failed, attempted = counted[end]
        now = now._replace(failures=now.failures + failed, attempts=now.attempts + attempted + (at > 0))
    if is_claimed:
        now = now._replace(state=State.CLAIMED, attempts=now.attempts + 1)
    own, *others = ends
    told = was_put_back(claimed, now, failed=own == "nack")
    assert told == (own != "expiry" and "expiry" not in others)
    if own == "expiry":
        assert not was_put_back(claimed, now, failed=True)


@every("state", (State.DEAD, State.GONE, State.PAUSED))
def test_counts_of_an_item_that_has_ended_tell_nothing(state: State) -> None:
    claimed = ItemRecord(FIRST, State.CLAIMED, attempts=1)
    assert not was_put_back(claimed, ItemRecord(FIRST, state, attempts=0), failed=False)
