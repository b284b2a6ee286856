"""One call on one server that misbehaves on demand: calls that may have been executed are reported so."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from unittest.mock import patch

import pytest

from tests.unit.fake_redis import (
    ABOUT,
    BROKEN,
    BUSY,
    COUNTED,
    INFO,
    LACKING,
    OK,
    SEAL,
    SILENCE,
    Redis,
    Replies,
    ask,
    fleet_of,
)
from zkrq.protocol.calls import Call
from zkrq.protocol.replies import Answer, Status, Verdict
from zkrq.protocol.view import Life, ServerId
from zkrq.replication.fleet import Fleet
from zkrq.replication.request import LATE_SECONDS, LOADS
from zkrq.replication.stream import ErrorReply
from zkrq.replication.wire import pack

pytestmark = pytest.mark.anyio

A = ServerId("a")


@pytest.fixture(params=[True, False], ids=["connected", "not connected"])
def connected(request: pytest.FixtureRequest) -> bool:
    """Whether the first try is sent as soon as the call is made."""
    return request.param


async def one(redis: Redis, *, connected: bool, command_timeout: float = 5.0) -> Fleet:
    fleet = fleet_of({A: redis}, command_timeout=command_timeout)
    if connected:
        await fleet.identify([A])
    return fleet


async def answer_of(
    fleet: Fleet,
    *,
    life: Life = Life("r1", "g1"),  # noqa: B008
    once: bool = False,
    call: Call[Any] = SEAL,
) -> Answer:
    return (await ask(fleet, A, call=call, life=life, once=once))[A]


@pytest.mark.parametrize("second", [[b"STALE", b"2"], [b"NOTINSYNC", b"g2"]])
async def test_the_first_of_two_tries_may_have_been_executed(second: object, connected: bool) -> None:
    """Its answer was lost; what the second is told says nothing about the first."""
    answer = await answer_of(await one(Redis([BROKEN, second]), connected=connected))
    assert answer.status in (Status.STALE, Status.NOTINSYNC)
    assert answer.may_have_happened


async def test_a_single_try_that_is_refused_has_not_happened(connected: bool) -> None:
    answer = await answer_of(await one(Redis([[b"STALE", b"2"]]), connected=connected))
    assert (answer.status, answer.may_have_happened) == (Status.STALE, False)


async def test_once_is_once(connected: bool) -> None:
    redis = Redis([BROKEN, OK])
    answer = await answer_of(await one(redis, connected=connected), once=True)
    assert (answer.status, answer.may_have_happened) == (Status.UNREACHABLE, True)
    assert len(redis.asked) == 1


async def test_another_life_is_not_called(connected: bool) -> None:
    redis = Redis()
    answer = await answer_of(await one(redis, connected=connected), life=Life("r0", "g1"))
    assert (answer.status, answer.may_have_happened) == (Status.GONE, False)
    assert not redis.asked


async def test_a_dropped_server_is_not_connected_to_again() -> None:
    fleet = await one(Redis(), connected=False)
    assert (await answer_of(fleet)).status is Status.OK
    server = fleet.servers[A]
    server.drop()
    assert (await answer_of(fleet)).status is Status.GONE
    assert server.identity is None


async def test_a_reply_to_a_wire_that_was_given_up_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    redis = Redis()
    fleet = await one(redis, connected=False)
    await answer_of(fleet)
    fleet.drop()
    redis.wires[0].write(pack(("FCALL",)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not caplog.records


@pytest.mark.parametrize("blocked", [True, False])
async def test_a_process_that_was_blocked_calls_no_server_late(connected: bool, *, blocked: bool) -> None:
    """Of what it missed it knows nothing: the answer is still on its way when it goes on, and it asks once more.  Each
    of the two replies goes to its own try."""
    redis, timeout = Redis([SILENCE, Replies(([b"OK", 1], [b"OK", 2])), [b"OK", 3]]), 0.1
    fleet = await one(redis, connected=connected, command_timeout=timeout)
    asking = asyncio.create_task(answer_of(fleet, call=COUNTED))
    while not redis.asked:
        await asyncio.sleep(0)
    if blocked:
        time.sleep(timeout + 2 * LATE_SECONDS)
        assert await asking == Answer(Status.OK, (2,), "OK", repeated=True)
        assert (await answer_of(fleet, call=COUNTED)).body == (3,)
        assert len(redis.wires) == 1
    else:
        assert (await asking).status is Status.TIMEOUT
        assert (await answer_of(fleet)).status is Status.UNREACHABLE, "it is left alone for a while"


async def test_what_is_in_flight_ends_with_the_call_that_timed_out() -> None:
    """A late reply could not be told from that of the next call: the connection is given up."""
    redis = Redis([SILENCE])
    fleet = await one(redis, connected=True, command_timeout=0.1)
    first = asyncio.create_task(answer_of(fleet))
    await asyncio.sleep(0.05)  # so that the second has time left when the first has none
    second = await answer_of(fleet)
    assert (await first).status is second.status is Status.TIMEOUT
    assert len(redis.wires) == 1


LOADED = (b"FUNCTION", b"FCALL")
"""The library, and the call behind it."""


@pytest.mark.parametrize(
    ("complaints", "asked"),
    [
        ([BUSY, BUSY], [b"FCALL"] * 3),
        ([LACKING], [b"FCALL", *LOADED]),
        ([BUSY, LACKING], [b"FCALL", b"FCALL", *LOADED]),
        ([LACKING, BUSY], [b"FCALL", *LOADED, b"FCALL"]),
    ],
    ids=["busy", "no library", "busy, then no library", "no library, then busy"],
)
async def test_complaints_that_can_be_dealt_with(connected: bool, complaints: list[object], asked: list[bytes]) -> None:
    redis = Redis([*complaints, OK])
    answer = await answer_of(await one(redis, connected=connected))
    assert (answer.status, answer.repeated) == (Status.OK, False)
    assert redis.asked == asked


async def test_another_client_may_load_the_library_first(connected: bool) -> None:
    redis = Redis([LACKING, OK], loaded=ErrorReply("ERR Library 'zkrq_1' already exists"))
    assert (await answer_of(await one(redis, connected=connected))).status is Status.OK


async def test_a_library_that_is_dropped_again_is_loaded_again(connected: bool) -> None:
    """Not for ever: a server that drops it each time has another fault than this call can deal with."""
    redis = Redis([*[LACKING] * LOADS, OK])
    fleet = await one(redis, connected=connected)
    assert (await answer_of(fleet)).status is Status.OK
    redis.answers = [LACKING]
    assert (await answer_of(fleet)).status is Status.BROKEN
    assert redis.asked.count(b"FUNCTION") == 2 * LOADS


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        ("NOPERM User u has no permissions to run the 'function|load' command", Status.DENIED),
        ("OOM command not allowed when used memory > 'maxmemory'.", Status.REFUSED),
        ("READONLY You can't write against a read only replica.", Status.UNFIT),
    ],
)
async def test_why_the_library_was_refused_is_the_answer(connected: bool, refusal: str, status: Status) -> None:
    """The next call tries again: the reason may have passed."""
    redis = Redis([LACKING, LACKING, LACKING, OK], loaded=ErrorReply(refusal))
    fleet = await one(redis, connected=connected)
    answer = await answer_of(fleet)
    assert (answer.status, answer.reason) == (status, refusal)
    redis.loaded = b"zkrq"
    assert (await answer_of(fleet)).status is Status.OK


async def test_a_server_without_functions_is_asked_for_nothing_and_not_evicted() -> None:
    """Its data may be a member's, which clients of an earlier version use."""
    redis = Redis()
    with patch.dict(ABOUT, {b"INFO": INFO.replace(b"7.2.0", b"6.2.14")}):
        answer = await answer_of(await one(redis, connected=False))
    assert (answer.status, answer.verdict) == (Status.DENIED, Verdict.CORRECT)
    assert answer.reason == "it is Redis 6.2.14, and zkrq needs Redis 7 or later, or Valkey"
    assert redis.asked == []


async def test_a_busy_server_gets_the_library_later(connected: bool) -> None:
    redis = Redis([LACKING, LACKING, OK], loaded=BUSY)
    assert (await answer_of(await one(redis, connected=connected))).status is Status.OK
    assert redis.asked.count(b"FUNCTION") == 2


async def test_a_server_that_stays_busy_has_not_answered_in_time(connected: bool) -> None:
    fleet = await one(Redis([BUSY]), connected=connected, command_timeout=0.2)
    assert (await answer_of(fleet)).status is Status.TIMEOUT
    assert (await answer_of(fleet)).status is Status.UNREACHABLE, "it is left alone for a while"


@pytest.mark.parametrize(
    ("complaint", "status"),
    [("OOM command not allowed", Status.REFUSED), ("ERR something new", Status.BROKEN), ("NOPERM", Status.DENIED)],
)
async def test_other_complaints_are_the_answer(connected: bool, complaint: str, status: Status) -> None:
    redis = Redis([ErrorReply(complaint), OK])
    fleet = await one(redis, connected=connected)
    assert (await answer_of(fleet)).status is status
    assert (await answer_of(fleet)).status is Status.OK
    assert len(redis.wires) == 1


async def test_a_complaint_about_the_connection_ends_it(connected: bool) -> None:
    redis = Redis([ErrorReply("NOAUTH Authentication required."), OK])
    fleet = await one(redis, connected=connected)
    assert (await answer_of(fleet)).status is Status.DENIED
    assert (await answer_of(fleet)).status is Status.OK
    assert len(redis.wires) == 2


async def test_a_caller_waits_for_a_connection_no_longer_than_its_own_time() -> None:
    """The first one to call is connecting, and is not answered; the second one comes later."""
    redis = Redis(silent=True)
    fleet = await one(redis, connected=False, command_timeout=0.2)
    first = asyncio.create_task(answer_of(fleet))
    while not redis.wires:
        await asyncio.sleep(0)
    second = await answer_of(fleet)
    assert second.status in (Status.TIMEOUT, Status.UNREACHABLE)
    assert (await first).status is Status.TIMEOUT


async def test_a_call_is_not_late_while_those_before_it_are_answered() -> None:
    """Each reply takes a third of the time-out, on a slow line, say; the server is never silent for all of it."""
    redis = Redis()
    fleet = await one(redis, connected=True, command_timeout=2.4)
    redis.pace = 0.8
    answers = await asyncio.gather(*[answer_of(fleet) for _ in range(5)])
    assert [answer.status for answer in answers] == [Status.OK] * 5
    assert len(redis.asked) == 5
    assert len(redis.wires) == 1, "no connection was given up"


async def test_a_call_does_not_wait_behind_others_for_ever() -> None:
    redis = Redis()
    fleet = await one(redis, connected=True, command_timeout=0.4)
    redis.pace = 0.15
    answers = await asyncio.gather(*[answer_of(fleet) for _ in range(30)])
    assert answers[0].status is Status.OK
    assert answers[-1].status is Status.TIMEOUT


async def test_a_call_that_waited_behind_others_is_not_sent_again_after_the_servers_silence() -> None:
    """Its time was longer because of them; that is no sign that this process was late."""
    redis = Redis([OK, SILENCE])
    fleet = await one(redis, connected=True, command_timeout=1.0)
    redis.pace = 0.6
    first, second = await asyncio.gather(answer_of(fleet), answer_of(fleet))
    assert (first.status, second.status) == (Status.OK, Status.TIMEOUT)
    assert len(redis.asked) == 2


async def test_waiting_for_this_clients_own_host_is_not_the_servers_silence() -> None:
    """However long a name or credentials take: no call times out for it, and each waits for two attempts at most."""
    redis = Redis(hindered=0.2)
    fleet = await one(redis, connected=False, command_timeout=0.05)
    answers = await asyncio.gather(*(answer_of(fleet) for _ in range(20)))
    assert {answer.status for answer in answers} == {Status.HINDERED}
    assert len(redis.wires) <= 2
    redis.hindered = 0.0
    assert (await answer_of(fleet)).status is Status.OK
