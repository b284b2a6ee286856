"""Ids: unique, ordered, and with the time at which they were made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.every import every
from zkrq.base.checks import MAX_ID
from zkrq.base.ids import Ids, made_at_ms, new_id, new_id_at, new_ids_at

moments = st.integers(0, 16**11 - 1)  # until the year 2527

FORK = """
import json, os
from zkrq.base.ids import new_id, new_ids_at
before = [new_id(), *new_ids_at(0, 2)]
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, json.dumps([new_id(), *new_ids_at(0, 2)]).encode())
    os._exit(0)
os.wait()
print(json.dumps([before, [new_id(), *new_ids_at(0, 2)], json.loads(os.read(read, 10_000))]))
"""


def test_ids_are_unique() -> None:
    assert len({new_id() for _ in range(10_000)}) == 10_000


@given(moments, moments)
def test_ids_are_unique_whatever_the_clock_does(one: int, other: int) -> None:
    assert new_id_at(one) != new_id_at(other)


@given(moments, moments)
def test_later_ids_are_greater(one: int, other: int) -> None:
    if one < other:
        assert new_id_at(one) < new_id_at(other)


@given(moments, st.integers(1, 14), st.integers(1, 40))
def test_ids_of_one_moment_sort_as_they_were_made(now_ms: int, digits: int, length: int) -> None:
    """Also where the count gets one more digit: servers hand out items of one millisecond in the order of their ids."""
    begin = max(0, 16**digits - length // 2)
    together = list(Ids(f"{now_ms:011x}-3f9c2a71-", begin, length))
    assert together == sorted(together)
    one_by_one = [new_id_at(now_ms) for _ in range(300)]
    assert one_by_one == sorted(one_by_one)


@given(moments)
def test_id_carries_its_time(now_ms: int) -> None:
    assert made_at_ms(new_id_at(now_ms)) == now_ms


def test_new_id_carries_the_present_time() -> None:
    before = time.time_ns() // 1_000_000
    made = made_at_ms(new_id())
    assert made is not None
    assert before <= made <= time.time_ns() // 1_000_000


@every(
    "id",
    [
        "",
        "order-17",
        "49151234567-20261123-01",
        "zkrq-019aa5f2c31",
        "zkrq-019aa5f2c31-3f9c2a71",
        "zkrq-019aa5f2c31-3f9c2a71-",
        "zkrq-x19aa5f2c31-3f9c2a71-1b",
        "zkrq-019AA5F2C31-3f9c2a71-1b",
        "zkrq-019aa5f2c31-3f9c2a71-1b\n",
        " zkrq-019aa5f2c31-3f9c2a71-1b",
        "zkrq-019aa5f2c31-3f9c2a71-1b-2",
        "zkrq-zkrq-019aa5f2c31-3f9c2a71-1b",
    ],
)
def test_other_ids_carry_no_time(id: str) -> None:
    assert made_at_ms(id) is None


def test_ids_are_short() -> None:
    assert len(new_id()) < 40 < MAX_ID


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_child_makes_ids_of_its_own() -> None:
    """Both go on counting where the parent stood; the process's own number tells them apart."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, check=True, timeout=60)
    before, parent, child = json.loads(done.stdout)
    assert len({*before, *parent, *child}) == 9


# -- made together ---------------------------------------------------------------------------------------------------


@given(moments, st.integers(0, 40))
def test_ids_made_together_are_as_ids_made_one_by_one(now_ms: int, length: int) -> None:
    before, ids, after = new_id_at(now_ms), new_ids_at(now_ms, length), new_id_at(now_ms)
    assert len(ids) == length
    assert len({before, *ids, after}) == length + 2
    assert all(made_at_ms(id) == now_ms for id in ids)
    counts = [int(id.rpartition("-")[2][1:], 16) for id in (before, *ids, after)]
    assert counts == list(range(counts[0], counts[0] + length + 2))


@given(moments, st.integers(0, 20), st.integers(-30, 30), st.slices(20))
def test_ids_made_together_are_a_sequence(now_ms: int, length: int, index: int, some: slice) -> None:
    ids = new_ids_at(now_ms, length)
    plain = list(ids)
    assert ids[some] == plain[some]
    assert list(reversed(ids)) == plain[::-1]
    assert [ids.index(id) for id in plain] == list(range(length))
    if -length <= index < length:
        assert ids[index] == plain[index]
    else:
        with pytest.raises(IndexError):
            ids[index]


def test_ids_count_in_hexadecimal() -> None:
    assert list(Ids("begin-", 14, 4)) == ["begin-1e", "begin-1f", "begin-210", "begin-211"]
    assert Ids("", 0, 10**9)[-1] == f"8{10**9 - 1:x}", "however many: only their number is kept"
