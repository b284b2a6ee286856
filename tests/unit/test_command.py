"""Calls of one turn of the event loop that leave together: which ones, in which order, and whose reply is whose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hiredis
import pytest

from zkrq.replication import command
from zkrq.replication.command import COMBINED_BYTES, COMBINED_CALLS, COMBINED_WEIGHT, ScriptCall, opening
from zkrq.replication.exchange import Complaint, Exchange, Round
from zkrq.replication.link import Link
from zkrq.replication.stream import ErrorReply, Receiver
from zkrq.replication.wire import pack_words

pytestmark = pytest.mark.anyio


class Held:
    """A wire that takes nothing."""

    async def prepare(self) -> str:
        return ""

    async def connect(self) -> None: ...

    async def ask(self, *commands: bytes) -> list[object]:
        raise AssertionError

    def start(self, receiver: Receiver) -> Callable[[bytes], None]:
        return lambda data: None

    def close(self) -> None: ...


class Turn:
    """One turn of the event loop in which calls leave."""

    def __init__(self) -> None:
        self.link = Link(Held(), 1.0)
        self.exchanges: list[Exchange] = []

    def call(
        self,
        script: str,
        queue: str,
        *arguments: str,
        weight: int | None = 1,
        generation: str = "g",
        command: str = "FCALL",
    ) -> Exchange:
        begin = opening(command, script, queue, [f"{queue}:a", f"{queue}:b"], 7, generation)
        exchange = Exchange()
        self.link.call(ScriptCall(begin, pack_words(arguments), weight), exchange, Round(), due=100.0)
        self.exchanges.append(exchange)
        return exchange

    @property
    def sent(self) -> list[list[str]]:
        """The words of the commands that are to be written."""
        reader = hiredis.Reader(encoding="utf-8")
        commands: list[list[str]] = []
        for each in self.link._outgoing:  # pyright: ignore[reportPrivateUsage]
            reader.feed(each.packed())
            commands.append(reader.gets())  # pyright: ignore[reportArgumentType]
        return commands

    def answer(self, *replies: object) -> list[object]:
        """Land the replies of the commands in order; return the outcome of each call."""
        for each, reply in zip(self.link._waiting, replies, strict=True):  # pyright: ignore[reportPrivateUsage]
            each.answer(reply)
        return [exchange.outcome for exchange in self.exchanges]


@pytest.fixture
async def turn() -> Turn:
    return Turn()


async def test_a_call_alone_is_as_it_was(turn: Turn) -> None:
    turn.call("put", "q", "x", "y")
    assert turn.sent == [["FCALL", "put", "2", "q:a", "q:b", "7", "g", "x", "y"]]
    assert turn.answer([b"OK", 1]) == [[b"OK", 1]]


async def test_calls_for_several_queues_are_one_command(turn: Turn) -> None:
    """Their keys, then the gate, then the number and the arguments of each."""
    turn.call("put", "q", "x", "y")
    turn.call("put", "r")
    turn.call("put", "s", "z")
    keys = ["6", "q:a", "q:b", "r:a", "r:b", "s:a", "s:b"]
    assert turn.sent == [["FCALL", "put", *keys, "7", "g", "2", "x", "y", "0", "1", "z"]]
    assert turn.answer([[b"OK", 1], [b"OK", 2], [b"FENCED"]]) == [[b"OK", 1], [b"OK", 2], [b"FENCED"]]


async def test_each_script_is_a_command(turn: Turn) -> None:
    for queue in "qr":
        turn.call("put", queue)
        turn.call("claim", queue)
    assert [words[1:3] for words in turn.sent] == [["put", "4"], ["claim", "4"]]
    replies = [[[b"OK", 1], [b"OK", 2]], [[b"OK", 3], [b"OK", 4]]]
    assert turn.answer(*replies) == [[b"OK", 1], [b"OK", 3], [b"OK", 2], [b"OK", 4]]


async def test_calls_for_one_queue_keep_their_order_and_are_never_combined(turn: Turn) -> None:
    """A script reads the clock once, and by it a queue's items are ordered."""
    turn.call("put", "q", "1")
    turn.call("put", "q", "2")
    turn.call("apply", "r", "3")
    turn.call("apply", "q", "4")
    turn.call("put", "r", "5")  # may not overtake the call for r
    turn.call("put", "s", "6")
    said = [[word for word in words if word.isdigit() and word not in "7"] for words in turn.sent]
    assert [words[1] for words in turn.sent] == ["put", "put", "apply", "put"]
    assert [words[-1] for words in said] == ["1", "2", "4", "6"]


@pytest.mark.parametrize(
    ("script", "options"),
    [("put", {"generation": "h"}), ("put", {"command": "FCALL_RO"}), ("claim", {}), ("put", {"weight": None})],
    ids=["another life", "with its text", "another script", "never combined"],
)
async def test_what_differs_is_not_combined(turn: Turn, script: str, options: dict[str, Any]) -> None:
    turn.call("put", "q")
    turn.call(script, "r", **options)
    assert len(turn.sent) == 2


async def test_a_command_is_bounded(turn: Turn, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(COMBINED_CALLS + 1):
        turn.call("put", f"q{n}")
    assert [words[2] for words in turn.sent] == [str(2 * COMBINED_CALLS), "2"]
    turn.call("claim", "a", weight=COMBINED_WEIGHT - 1)
    turn.call("claim", "b", weight=1)
    turn.call("claim", "c", weight=1)
    assert [words[2] for words in turn.sent][2:] == ["4", "2"]
    monkeypatch.setattr(command, "COMBINED_BYTES", 40)
    turn.call("cut", "a", "x" * 20)
    turn.call("cut", "b", "x" * 20)
    assert [words[2] for words in turn.sent][4:] == ["2", "2"]
    assert COMBINED_BYTES > 40


async def test_an_error_in_one_queue_is_that_queues_alone(turn: Turn) -> None:
    for queue in "qrs":
        turn.call("put", queue)
    first, second, third = turn.answer([[b"OK"], ErrorReply("WRONGTYPE of that key"), ErrorReply("ERR another")])
    assert first == [b"OK"]
    assert isinstance(second, Complaint)
    assert isinstance(third, Complaint)
    assert (str(second), str(third)) == ("WRONGTYPE of that key", "ERR another")


@pytest.mark.parametrize("reply", [[b"STALE", b"9"], [b"NOTINSYNC", b""]])
async def test_a_refusal_is_for_all(turn: Turn, reply: list[bytes]) -> None:
    turn.call("put", "q")
    turn.call("put", "r")
    assert turn.answer(reply) == [reply, reply]


@pytest.mark.parametrize("reply", [[], [[b"OK"]], 5, None])
async def test_a_reply_that_nobody_understands_is_everybodys(turn: Turn, reply: object) -> None:
    """So that each says what the server sent."""
    turn.call("put", "q")
    turn.call("put", "r")
    assert turn.answer(reply) == [reply, reply]


async def test_an_error_reply_is_for_all(turn: Turn) -> None:
    turn.call("put", "q")
    turn.call("put", "r")
    assert [str(outcome) for outcome in turn.answer(ErrorReply("ERR Function not found"))] == [
        "ERR Function not found"
    ] * 2
