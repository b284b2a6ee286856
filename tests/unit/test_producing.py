"""A push: its options, its receipts, and its batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.every import every
from zkrq.base import clock
from zkrq.base.checks import MAX_DURATION, MAX_ID
from zkrq.base.errors import ConfigError, OutcomeUnknown, QueueFull, Receipt, Unavailable, ZkrqError
from zkrq.base.ids import Ids, new_ids_at
from zkrq.producing import bundling
from zkrq.producing.bundling import PUT_BYTES
from zkrq.producing.options import PLAIN, Options, read_options
from zkrq.producing.pusher import (
    _receipt_of,  # pyright: ignore[reportPrivateUsage]
    _worst,  # pyright: ignore[reportPrivateUsage]
)
from zkrq.producing.receipts import PackedReceipts, outcome
from zkrq.protocol.pushing import Done, Duplicate, Known
from zkrq.replication.batching import MAX_BATCH, MAX_BATCH_BYTES

# -- options -------------------------------------------------------------------------------------------------------


def options(
    delay: Any = None, at: Any = None, priority: Any = 0, key: Any = None, ttl: Any = None
) -> Options:  # of any type, as users give them
    return read_options(delay=delay, at=at, priority=priority, key=key, ttl=ttl)


def refused(**given: Any) -> str:
    with pytest.raises(ConfigError) as error:
        options(**given)
    return str(error.value)


def test_plain_push_has_none() -> None:
    assert options() == Options()
    every: dict[str, Any] = {"replace": False, "key_window": None, "at_latest": None, "headers": None, "group": None}
    every["task"] = None
    assert read_options(delay=None, at=None, priority=0, key=None, ttl=None, **every) is PLAIN, "by what it is"


def test_options_are_in_the_units_of_the_wire() -> None:
    assert options(delay=1.5, priority=9, key="k", ttl=2) == Options(9, 1500, "k", 2000.0)
    assert options(delay=timedelta(minutes=1), ttl=timedelta(hours=1)) == Options(0, 60_000, "", 3_600_000.0)


def test_an_end_is_never_none_at_all() -> None:
    """0 milliseconds would be no end."""
    given: dict[str, Any] = {"key": "k", "replace": True}
    assert read_options(at_latest=60, **given).at_latest_ms == 60_000
    assert read_options(at_latest=0.001, **given).at_latest_ms == 1


def test_moment_is_a_delay() -> None:
    in_a_minute = options(at=clock.now() + timedelta(minutes=1))
    assert 50_000 < in_a_minute.delay_ms <= 60_000
    assert options(at=clock.now() - timedelta(days=1)).delay_ms == 0, "it is due already"


@every("priority", range(10))
def test_priorities(priority: int) -> None:
    assert options(priority=priority).priority == priority


@every("priority", [-1, 10, True, 1.5, "1", None])
def test_bad_priority(priority: Any) -> None:
    assert "priority" in refused(priority=priority)


@every("delay", [-1, -0.001, math.nan, math.inf, MAX_DURATION * 1.01, "1", True, timedelta(-1)])
def test_bad_delay(delay: Any) -> None:
    assert "delay" in refused(delay=delay)


@pytest.mark.parametrize("at", [datetime(2030, 1, 1), 1e9, "now", datetime(9999, 1, 1, tzinfo=UTC)])  # noqa: DTZ001
def test_bad_moment(at: Any) -> None:
    assert "at " in refused(at=at)


def test_delay_and_moment_exclude_each_other() -> None:
    message = refused(delay=0, at=clock.now())
    assert "delay" in message
    assert "at" in message


@every("key", ["", " ", "a\n", " a", "a\0", "\x01pause", "x" * (MAX_ID + 1), "ä" * MAX_ID, 7, b"k"])
def test_bad_key(key: Any) -> None:
    assert "key" in refused(key=key)


@every("ttl", [0, -1, math.nan, math.inf, MAX_DURATION * 1.01, "1", True, timedelta(0)])
def test_bad_time_to_live(ttl: Any) -> None:
    assert "ttl" in refused(ttl=ttl)


def test_shortest_time_to_live_is_a_millisecond() -> None:
    assert options(ttl=1e-9).ttl_ms == 1.0


@pytest.mark.parametrize("delay", [2, 2.0001, 60])
def test_item_that_would_never_be_delivered_is_refused(delay: float) -> None:
    assert "ttl" in refused(delay=delay, ttl=2)
    assert "ttl" in refused(at=clock.now() + timedelta(seconds=delay + 1), ttl=2)
    assert options(delay=1.999, ttl=2) == Options(0, 1999, "", 2000.0)


# -- receipts ------------------------------------------------------------------------------------------------------


def ids(length: int, first: int = 0) -> Ids:
    return Ids("i", first, length)


Pushed = int | Duplicate | Known | Done


def result(id: str, told: Pushed | ZkrqError) -> int | Receipt | ZkrqError:
    return told if isinstance(told, int | ZkrqError) else outcome(id, told, is_named=False)


def receipts(*parts: Sequence[Pushed | ZkrqError]) -> PackedReceipts:
    """Receipts of several calls, whose ids count on in hexadecimal."""
    receipts = PackedReceipts()
    for results in parts:
        some = ids(len(results), len(receipts))
        receipts.add(some, [result(id, told) for id, told in zip(some, results, strict=True)])
    return receipts


def test_no_receipts() -> None:
    none = receipts()
    assert (len(none), list(none), none[:], none.errors, list(none.outcomes())) == (0, [], [], [], [])
    for index in (0, -1):
        with pytest.raises(IndexError):
            none[index]


def test_receipts_of_several_calls_are_one_sequence() -> None:
    told = receipts([3, 3], [2], [], [2, 3])
    assert list(told) == [Receipt("i10", 3), Receipt("i11", 3), Receipt("i12", 2), Receipt("i13", 2), Receipt("i14", 3)]
    assert len(told) == 5
    assert told.errors == []


COPIES = st.integers(1, 7)
RESULTS = st.one_of(
    st.integers(0, 255),
    st.builds(Duplicate, st.just("first"), COPIES),
    st.builds(Known, COPIES, st.booleans()),
    st.builds(Done, COPIES, st.booleans()),
)
PARTS = st.lists(st.lists(RESULTS, max_size=5), max_size=5)


@given(PARTS, st.integers(-30, 30))
def test_receipts_are_indexed_as_a_list_is(parts: list[list[Pushed]], index: int) -> None:
    told = receipts(*parts)
    plain = list(told)
    if -len(plain) <= index < len(plain):
        assert told[index] == plain[index] == told.outcome(index)
    else:
        for look in (told.__getitem__, told.outcome):
            with pytest.raises(IndexError):
                look(index)


@given(PARTS, st.slices(12))
def test_receipts_are_sliced_as_a_list_is(parts: list[list[Pushed]], some: slice) -> None:
    told = receipts(*parts)
    assert told[some] == list(told)[some]


@given(PARTS)
def test_receipts_are_a_sequence(parts: list[list[Pushed]]) -> None:
    told = receipts(*parts)
    known = [result(ids(1, at)[0], each) for at, each in enumerate(each for part in parts for each in part)]
    plain = [Receipt(ids(1, at)[0], each) if isinstance(each, int) else each for at, each in enumerate(known)]
    assert list(told) == list(told.outcomes()) == plain
    assert list(reversed(told)) == plain[::-1]
    assert told + told[:2] == plain + plain[:2]
    assert all(each in told for each in plain)
    assert [told.index(each) for each in plain] == [plain.index(each) for each in plain]


def test_duplicate_names_the_first() -> None:
    told = receipts([3, Duplicate("other", 3)])
    assert told[1] == Receipt("other", 3, duplicate=True, new=False)
    assert not told[0].duplicate


def test_done_is_told_apart_from_pushed_now() -> None:
    assert list(receipts([3, Done(2)])) == [Receipt("i10", 3), Receipt("i11", 2, done=True)]


@pytest.mark.parametrize(("in_doubt", "new"), [(False, False), (True, None)])
def test_id_that_was_there_is_told_apart_from_a_new_one(in_doubt: bool, new: bool | None) -> None:
    assert outcome("mine", Known(3, in_doubt), is_named=True) == Receipt("mine", 3, new=new)
    assert outcome("mine", Done(3, in_doubt), is_named=True) == Receipt("mine", 3, done=True, new=new)


def test_a_receipt_of_the_hot_path_is_one_of_the_constructor() -> None:
    assert _receipt_of(("mine", 3, False, False, True, ())) == Receipt("mine", 3)
    assert Receipt._fields == ("id", "replicas", "duplicate", "done", "new", "replaced")


@pytest.mark.parametrize("in_doubt", [False, True])
def test_id_that_the_library_made_is_always_new(in_doubt: bool) -> None:
    """Where it is known, an earlier try of the same push has stored it."""
    assert list(receipts([Known(3, in_doubt)])) == [Receipt("i10", 3)]


def test_item_that_was_not_pushed_raises_its_error() -> None:
    full, unknown = QueueFull(), OutcomeUnknown(ids=("i3",))
    told = receipts([3, full], [3], [unknown, 3])
    assert told.errors == [full, unknown]
    assert list(told.outcomes()) == [Receipt("i10", 3), full, Receipt("i12", 3), unknown, Receipt("i14", 3)]
    assert told.outcome(-2) is unknown
    assert told[2] == Receipt("i12", 3)
    for index, error in ((1, full), (3, unknown), (-2, unknown)):
        with pytest.raises(type(error)) as raised:
            told[index]
        assert raised.value is error
    assert told[4:] == [Receipt("i14", 3)]
    with pytest.raises(QueueFull):
        told[:]


def test_receipts_of_a_million_are_small() -> None:
    """A few bytes each, made when they are looked at."""
    told = PackedReceipts()
    for start in range(0, 1_000_000, MAX_BATCH):
        told.add(ids(MAX_BATCH, start), [3] * MAX_BATCH)
    assert len(told) == 1_000_000
    assert told[999_999] == Receipt(ids(1, 999_999)[0], 3)
    held = sum(len(part) for part in told._results)  # pyright: ignore[reportPrivateUsage]
    assert held == 1_000_000
    assert told._others == {}  # pyright: ignore[reportPrivateUsage]


def test_worst_error_is_the_one_whose_outcome_is_unknown() -> None:
    told = receipts(
        [QueueFull(), OutcomeUnknown(ids=("i1", "i2"))], [3, OutcomeUnknown(ids=("i2", "i3")), Unavailable()]
    )
    worst = _worst(told)
    assert isinstance(worst, OutcomeUnknown)
    assert worst.ids == ("i1", "i2", "i3"), "each once"
    assert worst.outcomes is told


def test_first_error_is_as_bad_as_any_other() -> None:
    full = QueueFull()
    told = receipts([3, full, Unavailable()])
    assert _worst(told) is full
    assert full.outcomes is told


# -- ids that are made together ------------------------------------------------------------------------------------


def test_receipts_tell_the_ids_that_were_sent() -> None:
    sent = new_ids_at(1_700_000_000_000, 40)
    told = PackedReceipts()
    told.add(sent, [3] * 40)
    assert [receipt.id for receipt in told] == list(sent)


# -- how many go together --------------------------------------------------------------------------------------------


def chunks(sizes: Sequence[int]) -> list[list[int]]:
    """What becomes one batch each, as the sizes of the payloads."""
    return [[len(payload) for payload in chunk] for chunk in bundling.chunks(bytes(size) for size in sizes)]


def test_nothing_is_no_chunk() -> None:
    assert chunks([]) == []


@every("length", [1, MAX_BATCH - 1, MAX_BATCH, MAX_BATCH + 1, 2 * MAX_BATCH, 2 * MAX_BATCH + 1])
def test_chunks_are_no_longer_than_a_batch(length: int) -> None:
    lengths = [len(chunk) for chunk in chunks([1] * length)]
    assert lengths[:-1] == [MAX_BATCH] * (len(lengths) - 1)
    assert sum(lengths) == length
    assert 0 < lengths[-1] <= MAX_BATCH


def test_chunks_weigh_no_more_than_a_batch() -> None:
    largest = MAX_BATCH_BYTES // 2 - PUT_BYTES
    assert chunks([largest] * 5) == [[largest] * 2, [largest] * 2, [largest]]
    assert chunks([largest + 1] * 3) == [[largest + 1]] * 3


def test_item_that_is_larger_than_a_batch_goes_alone() -> None:
    huge = 2 * MAX_BATCH_BYTES
    assert chunks([1, huge, 1, 1, huge, huge]) == [[1], [huge], [1, 1], [huge], [huge]]


@given(st.lists(st.sampled_from([0, 1, 1000, MAX_BATCH_BYTES // 3, MAX_BATCH_BYTES - PUT_BYTES, MAX_BATCH_BYTES + 1])))
def test_chunks_are_everything_in_order(sizes: list[int]) -> None:
    made = chunks(sizes)
    assert [size for chunk in made for size in chunk] == sizes
    weights = [sum(PUT_BYTES + size for size in chunk) for chunk in made]
    assert all(weight <= MAX_BATCH_BYTES or len(chunk) == 1 for weight, chunk in zip(weights, made, strict=True))
    for weight, following in zip(weights, made[1:], strict=False):
        assert weight + PUT_BYTES + following[0] > MAX_BATCH_BYTES, "no smaller than need be"


def test_chunks_are_made_as_they_are_taken() -> None:
    """So that a generator of a million items needs little memory."""
    taken = 0

    def payloads() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield b"x"

    made = bundling.chunks(payloads())
    for count in (1, 2, 3):
        assert len(next(made)) == MAX_BATCH
        assert taken <= count * MAX_BATCH + 1
