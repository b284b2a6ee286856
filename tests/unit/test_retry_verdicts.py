"""What an exception says about an item, whatever it is."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import odd
from tests.every import every
from zkrq.base.errors import FRAMES_MAX, MESSAGE_MAX, reason_of, split
from zkrq.base.retry import Failed, Reject, RetryLater, Snooze, interrupts, judge

seeds = st.integers(0, 2**32)


def group(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("unhandled errors in a TaskGroup", errors)


@given(seeds)
def test_any_exception_is_one_failure_with_a_reason(seed: int) -> None:
    error = odd.some(random.Random(seed), odd.CLASSES)
    failed = judge(error)
    reason, _ = split(failed.reason)
    assert reason
    assert len(reason) <= MESSAGE_MAX + len("; and 1,000 more")
    assert not failed.is_wish
    assert "TaskGroup" not in reason


@given(seeds)
def test_any_wish_is_one(seed: int) -> None:
    rejected = judge(odd.some(random.Random(seed), odd.WISHES))
    assert (rejected.is_final, rejected.is_wish, bool(rejected.reason)) == (True, True, True)
    later = judge(odd.some(random.Random(seed), odd.LATER))
    assert (later.is_final, later.is_wish, bool(later.reason)) == (False, True, True)
    assert later.delay in (0, None)


@every(
    ("error", "said"),
    [
        (Reject(ValueError("no such user")), Failed("ValueError: no such user", is_final=True, is_wish=True)),
        (group(Reject("bad address")), Failed("bad address", is_final=True, is_wish=True)),
        (group(Reject("a"), group(Reject("b"), Reject("a"))), Failed("a; b", is_final=True, is_wish=True)),
        (group(RetryLater(5, "slow"), RetryLater(60, "full")), Failed("slow; full", delay=60, is_wish=True)),
        (group(RetryLater(), RetryLater(2)), Failed("RetryLater", delay=2, is_wish=True)),
        (group(RetryLater(), RetryLater()), Failed("RetryLater", is_wish=True)),
        (Snooze(30), Failed("Snooze", delay=30, is_wish=True, is_snooze=True)),
        (group(Snooze(5), group(Snooze(60))), Failed("Snooze", delay=60, is_wish=True, is_snooze=True)),
        (group(Snooze(5), RetryLater(2, "slow")), Failed("Snooze: deferred for 5 s; RetryLater: slow")),
        (group(RetryLater(2, "slow"), Reject("bad")), Failed("RetryLater: slow; Reject: bad")),
        (group(ValueError("a"), group(KeyError("b"))), Failed("ValueError: a; KeyError: 'b'")),
        (odd.Textless(), Failed("Textless: (it has no text: its __str__ raised RuntimeError)")),
        (odd.NoText(), Failed("NoText: (it has no text: its __str__ raised TypeError)")),
        (SystemExit(2), Failed("SystemExit: 2")),
    ],
)
def test_what_it_says(error: BaseException, said: Failed) -> None:
    assert judge(error) == said


def test_of_many_leaves_some_are_named() -> None:
    reason = judge(group(*(ValueError(n) for n in range(40)))).reason
    assert reason == "ValueError: 0; ValueError: 1; ValueError: 2; ValueError: 3; ValueError: 4; and 35 more"


async def _fail() -> None:
    raise ValueError("no such address")


@pytest.mark.anyio
async def test_the_places_lead_to_the_first_leaf() -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_fail())
    _, places = split(reason_of(raised.value))
    assert places
    names = [place.rpartition(" in ")[2] for place in places.splitlines()]
    assert names[0] == "_fail"
    assert "test_the_places_lead_to_the_first_leaf" in names
    assert len(names) <= FRAMES_MAX


@every(
    ("error", "cancelled", "wanted"),
    [
        (asyncio.CancelledError(), True, True),
        (asyncio.CancelledError(), False, False),
        (group(asyncio.CancelledError()), True, True),
        (group(asyncio.CancelledError()), False, False),
        (group(asyncio.CancelledError(), ValueError()), True, False),
        (KeyboardInterrupt(), False, True),
        (SystemExit(), True, False),
        (odd.TimedOut(), True, False),
        (ValueError(), True, False),
    ],
)
def test_what_interrupts(error: BaseException, cancelled: bool, wanted: bool) -> None:
    assert interrupts(error, cancelled=cancelled) is wanted
