"""Group commit: a lone call waits for nothing, many calls share few batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

import pytest

from tests.eager import eager_task_factory
from zkrq.base import clock
from zkrq.base.errors import Closed, OutcomeUnknown
from zkrq.base.tasks import Tasks
from zkrq.replication import batching
from zkrq.replication.batching import (
    FURTHER_BYTES,
    FURTHER_LEAST,
    FURTHER_SECONDS,
    MAX_BATCH,
    MAX_BATCH_BYTES,
    MAX_IN_FLIGHT,
    Batcher,
    InFlightLimit,
)
from zkrq.replication.slack import FEW_CALLS, Slack

pytestmark = pytest.mark.anyio

HANG = 3.0
"""Seconds after which a wait is taken for a hang."""

TURNS = 5
"""Turns of the loop within which what waits for nothing has happened."""


class Line:
    """What batches are sent over: each is answered when the test says so."""

    def __init__(self, answer: Callable[[int], int | Exception] = lambda call: call * 10) -> None:
        self.sent: list[list[int]] = []
        self.under_way = 0
        self.most_under_way = 0
        self.open = asyncio.Event()
        self._answer = answer

    async def send(self, calls: Sequence[int]) -> Sequence[int | Exception]:
        self.sent.append(list(calls))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.open.wait()
        finally:
            self.under_way -= 1
        return [self._answer(call) for call in calls]


@pytest.fixture
async def tasks() -> AsyncGenerator[Tasks, None]:
    async with Tasks("test") as tasks:
        yield tasks


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def batcher(tasks: Tasks, line: Line) -> Batcher[int, int]:
    return make(tasks, line)


def make(tasks: Tasks, line: Line, limit: InFlightLimit | None = None) -> Batcher[int, int]:
    return Batcher(line.send, tasks=tasks, name="batch", patience=60, limit=limit)


async def some_turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def test_lone_call_departs_at_once(batcher: Batcher[int, int], line: Line) -> None:
    """It waits for turns of the loop, never for time."""
    future = batcher.add(7)
    await some_turns()
    assert line.sent == [[7]]
    line.open.set()
    assert await future == 70


async def test_calls_of_one_turn_go_together_in_order(batcher: Batcher[int, int], line: Line) -> None:
    line.open.set()
    futures = [batcher.add(call) for call in range(FURTHER_LEAST)]
    assert await asyncio.gather(*futures) == [call * 10 for call in range(FURTHER_LEAST)]
    assert line.sent == [list(range(FURTHER_LEAST))]


async def test_a_crowd_leaves_in_parts_in_order(batcher: Batcher[int, int], line: Line) -> None:
    """Servers work on one while the next is made."""
    crowd = range(100 * MAX_IN_FLIGHT)
    line.open.set()
    futures = [batcher.add(call) for call in crowd]
    assert await asyncio.gather(*futures) == [call * 10 for call in crowd]
    assert line.sent == [list(crowd[start : start + 100]) for start in range(0, len(crowd), 100)]


async def test_what_comes_while_a_batch_is_under_way_leaves_together(
    batcher: Batcher[int, int], line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "FURTHER_SECONDS", 60.0)
    first = batcher.add(0)
    await some_turns()
    rest: list[asyncio.Future[int]] = []
    for call in range(1, FURTHER_LEAST):
        rest.append(batcher.add(call))
        await asyncio.sleep(0)
    assert line.sent == [[0]]
    line.open.set()
    await asyncio.gather(first, *rest)
    assert line.sent == [[0], list(range(1, FURTHER_LEAST))]


async def test_callers_come_together(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was told has its next call ready before the next batch leaves: nobody waits for two round trips."""
    monkeypatch.setattr(batching, "FURTHER_SECONDS", 60.0)
    sent: list[int] = []

    async def send(calls: Sequence[int]) -> Sequence[int]:
        sent.append(len(calls))
        for _ in range(5):
            await asyncio.sleep(0)
        return calls

    async def call_again_and_again(caller: int) -> None:
        for _ in range(caller):
            await asyncio.sleep(0)
        for number in range(20):
            await batcher.add(number)

    batcher = Batcher(send, tasks=tasks, name="batch", patience=60)
    await asyncio.gather(*map(call_again_and_again, range(8)))
    assert sum(sent) == 8 * 20
    assert len(sent) <= 20 + 3


async def test_a_few_more_leave_with_the_rest(batcher: Batcher[int, int], line: Line) -> None:
    """They would have to wait for them otherwise."""
    line.open.set()
    await asyncio.gather(*(batcher.add(call) for call in range(2 * FURTHER_LEAST - 1)))
    assert [len(batch) for batch in line.sent] == [2 * FURTHER_LEAST - 1]


async def test_large_calls_leave_though_a_batch_is_under_way(
    tasks: Tasks, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "FURTHER_SECONDS", 60.0)
    batcher = make(tasks, line)
    half = FURTHER_BYTES // 2
    futures = [batcher.add(0, half)]
    await some_turns()
    futures.append(batcher.add(1, half))
    await asyncio.sleep(0)
    assert line.sent == [[0]]
    futures.append(batcher.add(2, half))
    await some_turns()
    assert line.sent == [[0], [1, 2]]
    line.open.set()
    await asyncio.gather(*futures)


async def test_many_leave_though_batches_are_under_way(
    batcher: Batcher[int, int], line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "FURTHER_SECONDS", 60.0)
    futures: list[asyncio.Future[int]] = []
    for call in range(MAX_IN_FLIGHT * FURTHER_LEAST):
        futures.append(batcher.add(call))
        if call % FURTHER_LEAST == FURTHER_LEAST - 1:
            await some_turns()
    assert line.under_way == MAX_IN_FLIGHT
    line.open.set()
    await asyncio.gather(*futures)


async def test_nobody_waits_long_for_a_batch_to_return(batcher: Batcher[int, int], line: Line) -> None:
    """As long as there may be a further one."""
    futures: list[asyncio.Future[int]] = []
    for call in range(MAX_IN_FLIGHT):
        futures.append(batcher.add(call))
        await asyncio.sleep(2 * FURTHER_SECONDS)
    async with asyncio.timeout(30):
        while line.under_way < MAX_IN_FLIGHT:
            await asyncio.sleep(FURTHER_SECONDS)
    assert [call for batch in line.sent for call in batch] == list(range(MAX_IN_FLIGHT))
    line.open.set()
    await asyncio.gather(*futures)


async def test_many_callers_become_few_batches(batcher: Batcher[int, int], line: Line) -> None:
    """1,000 calls while as many batches as may be are under way cost as many round trips more."""
    first = [batcher.add(call) for call in range(MAX_IN_FLIGHT * MAX_BATCH)]
    await some_turns()
    rest = [batcher.add(call) for call in range(len(first), len(first) + 1_000)]
    await some_turns()
    assert len(line.sent) == MAX_IN_FLIGHT
    line.open.set()
    assert await asyncio.gather(*first, *rest) == [call * 10 for call in range(len(first) + 1_000)]
    assert len(line.sent) <= 2 * MAX_IN_FLIGHT
    assert [call for batch in line.sent for call in batch] == list(range(len(first) + 1_000))


async def test_no_more_batches_under_way_than_allowed(batcher: Batcher[int, int], line: Line) -> None:
    futures = [batcher.add(call) for call in range(MAX_BATCH * 5)]
    await some_turns()
    assert line.under_way == MAX_IN_FLIGHT
    line.open.set()
    await asyncio.gather(*futures)
    assert line.most_under_way == MAX_IN_FLIGHT


async def test_batch_has_no_more_calls_than_allowed(batcher: Batcher[int, int], line: Line) -> None:
    line.open.set()
    await asyncio.gather(*(batcher.add(call) for call in range(MAX_BATCH * MAX_IN_FLIGHT + 1)))
    assert [len(batch) for batch in line.sent] == [MAX_BATCH] * MAX_IN_FLIGHT + [1]


async def test_batch_has_no_more_bytes_than_allowed(tasks: Tasks, line: Line) -> None:
    batcher = make(tasks, line)
    line.open.set()
    await asyncio.gather(*(batcher.add(call, MAX_BATCH_BYTES // 3) for call in range(7)))
    assert line.sent == [[0, 1, 2], [3, 4, 5], [6]]


async def test_larger_call_goes_alone(tasks: Tasks, line: Line) -> None:
    batcher: Batcher[int, int] = Batcher(line.send, tasks=tasks, name="batch", patience=60)
    line.open.set()
    sizes = [1, MAX_BATCH_BYTES * 5, 1, 1]
    assert await asyncio.gather(*map(batcher.add, range(4), sizes)) == [0, 10, 20, 30]
    assert line.sent == [[0], [1], [2, 3]]


async def test_one_exception_is_one_callers(tasks: Tasks) -> None:
    line = Line(lambda call: LookupError(str(call)) if call == 1 else call)
    batcher = make(tasks, line)
    line.open.set()
    outcomes = await asyncio.gather(*(batcher.add(call) for call in range(3)), return_exceptions=True)
    assert outcomes[::2] == [0, 2]
    assert isinstance(outcomes[1], LookupError)


async def test_failing_send_is_told_to_every_caller(tasks: Tasks) -> None:
    async def send(calls: Sequence[int]) -> Sequence[int | Exception]:
        raise LookupError(f"{len(calls)} calls")

    batcher: Batcher[int, int] = Batcher(send, tasks=tasks, name="batch", patience=60)
    outcomes = await asyncio.gather(*(batcher.add(call) for call in range(3)), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["3 calls"] * 3


async def test_failing_send_does_not_stop_the_next(tasks: Tasks) -> None:
    failing = [True] * (MAX_IN_FLIGHT + 1)

    async def send(calls: Sequence[int]) -> Sequence[int | Exception]:
        if failing:
            failing.pop()
            raise LookupError
        return list(calls)

    batcher: Batcher[int, int] = Batcher(send, tasks=tasks, name="batch", patience=60)
    for _ in range(MAX_IN_FLIGHT + 1):
        with pytest.raises(LookupError):
            await batcher.add(0)
    assert await batcher.add(7) == 7


async def test_cancelled_caller_does_not_disturb_the_others(batcher: Batcher[int, int], line: Line) -> None:
    """Its call is carried out all the same: it may be on its way already."""

    async def call(number: int) -> int:
        return await batcher.add(number)

    callers = [asyncio.create_task(call(number)) for number in range(3)]
    await some_turns()
    callers[1].cancel()
    await asyncio.wait([callers[1]])
    assert callers[1].cancelled()
    line.open.set()
    assert await callers[0] == 0
    assert await callers[2] == 20
    assert line.sent == [[0, 1, 2]]


async def test_caller_that_is_cancelled_before_departure_is_carried_out_too(
    batcher: Batcher[int, int], line: Line
) -> None:
    line.open.set()
    cancelled, kept = batcher.add(0), batcher.add(1)
    cancelled.cancel()
    assert await kept == 10
    assert line.sent == [[0, 1]]


async def test_closing_tells_those_that_wait(batcher: Batcher[int, int], line: Line) -> None:
    """What is under way is answered, and waited for; what has not departed never will be."""
    departed = [batcher.add(call) for call in range(MAX_BATCH * MAX_IN_FLIGHT)]
    await some_turns()
    waiting = [batcher.add(call) for call in range(3)]
    closing = asyncio.create_task(batcher.aclose())
    for future in waiting:
        with pytest.raises(Closed):
            await future
    await some_turns()
    assert not closing.done()
    line.open.set()
    await closing
    assert [future.result() for future in departed] == [call * 10 for call in range(MAX_BATCH * MAX_IN_FLIGHT)]
    assert len(line.sent) == MAX_IN_FLIGHT


async def test_closing_before_departure_sends_nothing(batcher: Batcher[int, int], line: Line) -> None:
    future = batcher.add(1)
    await batcher.aclose()
    with pytest.raises(Closed):
        await future
    await some_turns()
    assert line.sent == []


async def test_closing_twice_waits_twice(batcher: Batcher[int, int], line: Line) -> None:
    batcher.add(1)
    await some_turns()
    closing = [asyncio.create_task(batcher.aclose()) for _ in range(2)]
    await some_turns()
    line.open.set()
    async with asyncio.timeout(HANG):
        await asyncio.gather(*closing)


async def test_closed_takes_no_more(batcher: Batcher[int, int]) -> None:
    await batcher.aclose()
    with pytest.raises(Closed):
        batcher.add(1)


async def test_closing_that_is_given_up_leaves_the_batch_alone(batcher: Batcher[int, int], line: Line) -> None:
    """Closing is bounded: whoever waits for it may stop waiting."""
    future = batcher.add(1)
    await some_turns()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await batcher.aclose()
    line.open.set()
    assert await future == 10


@pytest.mark.parametrize("turns", range(TURNS))
async def test_callers_are_told_in_whichever_turn_the_batch_is_stopped(line: Line, turns: int) -> None:
    """The cluster is closed with a batch about to depart, departed, begun: nobody is left waiting for ever."""
    async with Tasks("test") as tasks:
        batcher = make(tasks, line)
        future = batcher.add(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        closing = asyncio.create_task(batcher.aclose())
        await asyncio.sleep(0)
    async with asyncio.timeout(HANG):
        await closing
        with pytest.raises((Closed, OutcomeUnknown)) as told:
            await future
    assert told.type is (OutcomeUnknown if line.sent else Closed)


# -- a limit over several batchers -------------------------------------------------------------------------------------


@pytest.fixture
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch in flight counts as hanging only when the test says so."""
    monkeypatch.setattr(batching, "LATE_SECONDS", 10 * HANG)


async def test_batchers_beyond_the_limit_gather_calls_until_one_lands(tasks: Tasks, line: Line, no_hurry: None) -> None:
    limit = InFlightLimit(2)
    batchers = [make(tasks, line, limit) for _ in range(4)]
    futures = [each.add(number) for number, each in enumerate(batchers)]
    await some_turns()
    assert line.sent == [[0], [1]]
    futures += [each.add(10 + number) for number, each in enumerate(batchers[2:], 2)]
    await some_turns()
    assert line.sent == [[0], [1]]
    line.open.set()
    async with asyncio.timeout(HANG):
        assert await asyncio.gather(*futures) == [0, 10, 20, 30, 120, 130]
    assert line.sent[2:] == [[2, 12], [3, 13]], "first come first served, and together with what came meanwhile"
    assert line.most_under_way == 2


async def test_callers_that_were_answered_go_on_before_the_line_does(tasks: Tasks, line: Line, no_hurry: None) -> None:
    """Their next calls leave with those that waited."""
    limit = InFlightLimit(1)
    one, other = make(tasks, line, limit), make(tasks, line, limit)

    async def twice() -> None:
        await one.add(1)
        await other.add(2)

    caller = asyncio.create_task(twice())
    await some_turns()
    waiting = other.add(3)
    await some_turns()
    line.open.set()
    async with asyncio.timeout(HANG):
        await asyncio.gather(caller, waiting)
    assert line.sent == [[1], [3, 2]]


async def test_batches_that_hang_hold_nobody_back_for_long(
    tasks: Tasks, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "LATE_SECONDS", 0.01)
    limit = InFlightLimit(1)
    batchers = [make(tasks, line, limit) for _ in range(4)]
    futures = [each.add(number) for number, each in enumerate(batchers)]
    async with asyncio.timeout(HANG):
        while len(line.sent) < 4:
            await asyncio.sleep(0)
    line.open.set()
    async with asyncio.timeout(HANG):
        await asyncio.gather(*futures)
        again = [each.add(number) for number, each in enumerate(batchers)]
        await asyncio.gather(*again)
    assert limit._in_flight == 0  # pyright: ignore[reportPrivateUsage]


async def test_a_batcher_that_closes_in_line_fails_its_calls_and_the_next_one_goes_on(
    tasks: Tasks, line: Line, no_hurry: None
) -> None:
    limit = InFlightLimit(1)
    first, closing, last = (make(tasks, line, limit) for _ in range(3))
    futures = [each.add(1) for each in (first, closing, last)]
    await some_turns()
    closing.stop()
    with pytest.raises(Closed):
        await futures[1]
    line.open.set()
    async with asyncio.timeout(HANG):
        assert await asyncio.gather(futures[0], futures[2]) == [10, 10]


# -- slack -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def slack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop and the servers have slack."""
    monkeypatch.setattr(Slack, "allows", lambda _, calls: calls <= FEW_CALLS)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


async def test_a_few_calls_leave_at_once_where_there_is_slack(
    tasks: Tasks, line: Line, slack: None, no_hurry: None
) -> None:
    batcher = make(tasks, line, InFlightLimit())
    futures: list[asyncio.Future[int]] = []
    for call in range(FEW_CALLS):
        futures.append(batcher.add(call))
        await some_turns()
        assert line.sent[-1] == [call]
    for call in range(FEW_CALLS, 2 * FEW_CALLS):
        futures.append(batcher.add(call))
        await some_turns()
    assert line.most_under_way == FEW_CALLS
    line.open.set()
    assert await asyncio.gather(*futures) == [10 * call for call in range(2 * FEW_CALLS)]
    assert line.sent[FEW_CALLS:] == [[*range(FEW_CALLS, 2 * FEW_CALLS)]], "more than a few leave together"


async def test_a_few_calls_in_each_of_many_queues_are_a_crowd(
    tasks: Tasks, line: Line, slack: None, no_hurry: None
) -> None:
    limit = InFlightLimit()
    batchers = [make(tasks, line, limit) for _ in range(FEW_CALLS)]
    futures = [batcher.add(n) for n, batcher in enumerate(batchers)]
    await some_turns()
    futures.append(batchers[0].add(7))
    await some_turns()
    assert [7] not in line.sent
    line.open.set()
    assert await asyncio.gather(*futures) == [*range(0, 10 * FEW_CALLS, 10), 70]


async def test_calls_of_one_turn_leave_together_where_there_is_slack(tasks: Tasks, line: Line, slack: None) -> None:
    batcher = make(tasks, line, InFlightLimit())
    futures = [batcher.add(0)]
    await some_turns()
    futures += [batcher.add(1), batcher.add(2)]
    await some_turns()
    assert line.sent == [[0], [1, 2]]
    line.open.set()
    await asyncio.gather(*futures)


async def test_calls_of_a_batcher_without_a_limit_wait_for_each_other(
    tasks: Tasks, line: Line, slack: None, no_hurry: None
) -> None:
    batcher = make(tasks, line)
    futures = [batcher.add(0)]
    await some_turns()
    futures += [batcher.add(1)]
    await some_turns()
    assert line.sent == [[0]]
    line.open.set()
    assert await asyncio.gather(*futures) == [0, 10]


async def test_slack_is_measured_by_what_has_landed(
    tasks: Tasks, no_hurry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lone calls that are answered tell that the loop and the servers are idle."""
    monkeypatch.setattr(clock, "worked", lambda: 0.0)
    monkeypatch.setattr("zkrq.replication.slack.WINDOW_SECONDS", 1e-9)
    monkeypatch.setattr("zkrq.replication.slack.STRETCH_MOST", 1e9)
    line = Line()
    line.open.set()
    batcher = make(tasks, line, InFlightLimit())
    for call in range(2):
        await batcher.add(call)
        await some_turns()
    line.open.clear()
    futures = [batcher.add(2)]
    await some_turns()
    futures.append(batcher.add(3))
    await some_turns()
    assert line.sent == [[0], [1], [2], [3]]
    line.open.set()
    await asyncio.gather(*futures)


async def test_tasks_that_run_as_soon_as_they_are_made(tasks: Tasks) -> None:
    """With ``asyncio.eager_task_factory`` the calls of one turn leave together, and later ones leave as well."""
    loop = asyncio.get_running_loop()
    usual = loop.get_task_factory()
    loop.set_task_factory(eager_task_factory)
    try:
        line = Line()
        line.open.set()
        batcher = Batcher(line.send, tasks=tasks, name="test", patience=HANG)
        async with asyncio.timeout(HANG):
            assert await asyncio.gather(*map(batcher.add, range(10))) == [10 * call for call in range(10)]
            assert await asyncio.gather(*map(batcher.add, range(3))) == [0, 10, 20]
        assert line.sent == [list(range(10)), list(range(3))]
    finally:
        loop.set_task_factory(usual)
