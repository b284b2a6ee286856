"""One connection and its calls in flight, over a wire on which everything happens by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import hiredis
import pytest

from zkrq.protocol.replies import Status
from zkrq.replication.command import ScriptCall, opening
from zkrq.replication.exchange import PENDING, Exchange, Round, TimedOut
from zkrq.replication.link import ALONE_CALLS, Link, ServerError
from zkrq.replication.stream import ErrorReply, Receiver
from zkrq.replication.wire import pack_words

pytestmark = pytest.mark.anyio

TIMEOUT = 0.2


class ByHand:
    """A wire that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = 0

    async def prepare(self) -> str:
        return ""

    async def connect(self) -> None: ...

    async def ask(self, *commands: bytes) -> list[object]:
        raise AssertionError

    def start(self, receiver: Receiver) -> Callable[[bytes], None]:
        return self.written.append

    def close(self) -> None:
        self.closed += 1

    @property
    def commands(self) -> list[list[str]]:
        """Queues of each command that was written: of all that were combined in it."""
        reader = hiredis.Reader(encoding="utf-8")
        reader.feed(b"".join(self.written))
        commands: list[list[str]] = []
        while (words := reader.gets()) is not False:
            commands.append([word for word in words if word.startswith("queue")])
        return commands


@pytest.fixture
async def wire() -> ByHand:
    return ByHand()


@pytest.fixture
async def link(wire: ByHand) -> Link:
    return Link(wire, TIMEOUT)


def call(link: Link, queue: str, *, timeout: float = TIMEOUT) -> Exchange:
    begin, exchange = opening("EVALSHA", "put", queue, [queue], 1, "g"), Exchange()
    due = asyncio.get_running_loop().time() + timeout
    link.call(ScriptCall(begin, pack_words(()), 1), exchange, Round(), due)
    return exchange


async def turn() -> None:
    await asyncio.sleep(0)


async def test_calls_of_one_turn_are_one_write(link: Link, wire: ByHand) -> None:
    for queue in ("queue-1", "queue-2", "queue-1"):
        call(link, queue)
    assert not wire.written
    await turn()
    assert len(wire.written) == 1
    assert wire.commands == [["queue-1", "queue-2"], ["queue-1"]]
    call(link, "queue-3")
    await turn()
    assert len(wire.written) == 2


async def come_alone(link: Link) -> None:
    """Make calls one at a time, until the next one is expected to be alone, too."""
    for _ in range(ALONE_CALLS):
        call(link, "queue-0")
        await turn()
        link.heard([b"OK"])


async def test_where_calls_come_one_at_a_time_none_waits_for_the_end_of_the_turn(link: Link, wire: ByHand) -> None:
    await come_alone(link)
    wire.written.clear()
    alone = call(link, "queue-2")
    assert len(wire.written) == 1
    call(link, "queue-3")
    call(link, "queue-4")
    assert len(wire.written) == 1, "one is in flight, so these leave together"
    await turn()
    assert wire.commands == [["queue-2"], ["queue-3", "queue-4"]]
    link.heard([b"OK", 2])
    assert alone.outcome == [b"OK", 2]
    link.heard([[b"OK", 3], [b"OK", 4]])
    call(link, "queue-5")
    assert len(wire.written) == 2, "the last ones were not alone"
    await turn()
    assert len(wire.written) == 3


async def test_a_call_alone_waits_while_writing_is_paused(link: Link, wire: ByHand) -> None:
    await come_alone(link)
    wire.written.clear()
    link.pause_writing()
    call(link, "queue-2")
    await turn()
    assert not wire.written
    link.resume_writing()
    await turn()
    assert wire.commands == [["queue-2"]]


async def test_a_timer_that_finds_all_calls_answered_costs_no_further_turns(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("replies are waited for that have come")

    monkeypatch.setattr(link, "_read_on", refuse)
    call(link, "queue-1", timeout=0.01)
    await turn()
    link.heard([b"OK"])
    await asyncio.sleep(0.03)
    assert call(link, "queue-2").outcome is PENDING


async def test_calls_gather_while_writing_is_paused(link: Link, wire: ByHand) -> None:
    """Those of several queues are combined meanwhile, and all keep their order."""
    first = call(link, "queue-1")
    await turn()
    link.pause_writing()
    later = [call(link, queue) for queue in ("queue-2", "queue-1")]
    await turn()
    later += [call(link, queue) for queue in ("queue-3", "queue-2")]
    await turn()
    assert wire.commands == [["queue-1"]]
    link.heard([b"OK", 1])
    assert first.outcome == [b"OK", 1], "what was sent before is answered"
    link.resume_writing()
    later.append(call(link, "queue-4"))
    await turn()
    assert wire.commands == [["queue-1"], ["queue-2", "queue-1", "queue-3"], ["queue-2", "queue-4"]]
    assert len(wire.written) == 2
    link.heard([[b"OK", 2], [b"OK", 3], [b"OK", 4]])
    link.heard([[b"OK", 5], [b"OK", 6]])
    assert [each.outcome for each in later] == [[b"OK", number] for number in range(2, 7)]


async def test_a_call_that_waits_for_writing_times_out(link: Link, wire: ByHand) -> None:
    link.pause_writing()
    with pytest.raises(TimedOut):
        await call(link, "queue-1", timeout=0.02).reply()
    assert not wire.written


async def test_writing_that_is_resumed_after_the_end(link: Link, wire: ByHand) -> None:
    link.pause_writing()
    exchange = call(link, "queue-1")
    link.give_up(ServerError(Status.TIMEOUT, "no answer"))
    link.resume_writing()
    await turn()
    assert not wire.written
    assert isinstance(exchange.outcome, ServerError)


ENDS: list[tuple[Callable[[Link], None], Status]] = [
    (lambda link: link.ended(ConnectionResetError("cut")), Status.UNREACHABLE),
    (lambda link: link.heard(ErrorReply("NOAUTH Authentication required.")), Status.DENIED),
    (lambda link: link.give_up(ServerError(Status.TIMEOUT, "no answer")), Status.TIMEOUT),
]


@pytest.mark.parametrize(("end", "status"), ENDS, ids=["broken", "refused", "given up"])
async def test_the_end_is_the_end_of_every_call(
    link: Link, wire: ByHand, end: Callable[[Link], None], status: Status
) -> None:
    """Of those that were sent, and of those that were not; what comes later is nobody's."""
    calls = [call(link, "queue-1")]
    await turn()
    calls.append(call(link, "queue-2"))
    end(link)
    assert [each.outcome for each in calls] == [link.lost] * 2
    assert link.lost
    assert link.lost.answer.status is status
    link.heard([b"OK"])
    link.ended(ConnectionResetError("again"))
    await turn()
    assert len(wire.written) == wire.closed == 1
    assert link.lost.answer.status is status
    with pytest.raises(ServerError):
        call(link, "queue-1")


UNASKED = [ErrorReply("ERR max number of clients reached"), ErrorReply("ERR x"), [b"OK"]]
"""Replies to no call."""


@pytest.mark.parametrize("reply", UNASKED)
async def test_a_reply_to_no_call_ends_the_connection(link: Link, wire: ByHand, reply: object) -> None:
    link.heard(reply)
    assert link.lost
    assert wire.closed == 1


@pytest.mark.parametrize("reply", UNASKED)
@pytest.mark.parametrize("paused", [False, True], ids=["at the end of the turn", "while writing is paused"])
async def test_a_reply_that_comes_before_its_call_has_left_ends_the_connection(
    link: Link, wire: ByHand, reply: object, paused: bool
) -> None:
    """The call is not answered by it: the server never had it."""
    sent = call(link, "queue-1")
    await turn()
    if paused:
        link.pause_writing()
    unsent = call(link, "queue-2")
    link.heard([b"OK", 1])
    assert sent.outcome == [b"OK", 1], "what has left is answered as ever"
    link.heard(reply)
    assert unsent.outcome is link.lost
    assert link.lost is not None
    assert wire.closed == 1
    link.resume_writing()
    await turn()
    assert len(wire.written) == 1
