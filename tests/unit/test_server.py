"""One server over a wire that misbehaves on demand: what may have happened is never told as what did not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import hiredis
import pytest

from zkrq.protocol.replies import Status
from zkrq.protocol.view import Life, ServerId
from zkrq.replication.server import LATE_SECONDS, Server
from zkrq.replication.wire import Dial, Wire, pack
from zkrq.tasks import Tasks

pytestmark = pytest.mark.anyio

INFO = b"redis_version:7.2.0\r\nrun_id:r1\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n"

Answering = Callable[[int], object]


class FakeWire:
    """Answers what identifies a server by itself, and scripts as ``answer`` says; an exception breaks the wire."""

    def __init__(self, answer: Answering) -> None:
        self._answer = answer
        self._replies: asyncio.Queue[object] = asyncio.Queue()

    async def connect(self) -> None:
        pass

    async def send(self, commands: Sequence[bytes]) -> None:
        reader: Any = hiredis.Reader()
        for packed in commands:
            reader.feed(packed)
            self._reply_to(reader.gets()[0])

    def _reply_to(self, word: bytes) -> None:
        replies: dict[bytes, object] = {
            b"INFO": INFO,
            b"HMGET": [b"g1", b"1", b"a", b"d"],
            b"SCARD": 0,
            b"TIME": [b"1", b"0"],
        }
        self._replies.put_nowait(replies[word] if word in replies else self._answer(1))

    async def receive(self) -> object:
        reply = await self._replies.get()
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def close(self) -> None:
        pass


@pytest.fixture
async def tasks() -> AsyncGenerator[Tasks, None]:
    async with Tasks("test") as tasks:
        yield tasks


def server_that_answers(tasks: Tasks, *answers: object) -> Server:
    """One wire after the other gives one answer."""
    left = list(answers)

    def make() -> Wire:
        answer = left.pop(0) if len(left) > 1 else left[0]
        return FakeWire(lambda _: answer)

    dial: Dial = lambda url, timeout: make  # noqa: E731
    return Server(ServerId("a"), "redis://a", namespace="n", command_timeout=5, tasks=tasks, dial=dial)


BROKEN = ConnectionResetError("cut")


@pytest.mark.parametrize("second", [[b"STALE", b"2"], [b"NOTINSYNC", b"g2"]])
async def test_the_first_of_two_tries_may_have_been_executed(tasks: Tasks, second: object) -> None:
    """Its answer was lost; what the second is told says nothing about the first."""
    answer = await server_that_answers(tasks, BROKEN, second).call("seal", "", 1, Life("r1", "g1"))
    assert answer.status in (Status.STALE, Status.NOTINSYNC)
    assert answer.may_have_happened


async def test_a_single_try_that_is_refused_has_not_happened(tasks: Tasks) -> None:
    answer = await server_that_answers(tasks, [b"STALE", b"2"]).call("seal", "", 1, Life("r1", "g1"))
    assert (answer.status, answer.may_have_happened) == (Status.STALE, False)


async def test_once_is_once(tasks: Tasks) -> None:
    answer = await server_that_answers(tasks, BROKEN, [b"OK"]).call("seal", "", 1, Life("r1", "g1"), once=True)
    assert (answer.status, answer.may_have_happened) == (Status.UNREACHABLE, True)


async def test_another_life_is_not_called(tasks: Tasks) -> None:
    answer = await server_that_answers(tasks, [b"OK"]).call("seal", "", 1, Life("r0", "g1"))
    assert (answer.status, answer.may_have_happened) == (Status.GONE, False)


async def test_a_dropped_server_is_not_connected_to_again(tasks: Tasks) -> None:
    server = server_that_answers(tasks, [b"OK"])
    assert (await server.call("seal", "", 1, Life("r1", "g1"))).status is Status.OK
    server.drop()
    assert (await server.call("seal", "", 1, Life("r1", "g1"))).status is not Status.OK
    assert server.identity is None


async def test_a_reply_to_a_wire_that_was_given_up_is_nobodys(tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    wires: list[FakeWire] = []

    def make() -> Wire:
        wires.append(FakeWire(lambda _: [b"OK"]))
        return wires[-1]

    server = Server(
        ServerId("a"), "redis://a", namespace="n", command_timeout=5, tasks=tasks, dial=lambda url, timeout: make
    )
    await server.call("seal", "", 1, Life("r1", "g1"))
    server.drop()
    await wires[0].send([pack(("EVALSHA",))])
    for _ in range(3):
        await asyncio.sleep(0)
    assert not caplog.records


class SlowWire(FakeWire):
    """The first call of a script is answered only when the second one comes."""

    def __init__(self) -> None:
        super().__init__(lambda _: [b"OK"])
        self.sent = asyncio.Event()

    def _reply_to(self, word: bytes) -> None:
        if word == b"EVALSHA" and not self.sent.is_set():
            self.sent.set()
        else:
            for _ in range(2 if word == b"EVALSHA" else 1):
                super()._reply_to(word)


@pytest.mark.parametrize(("blocked", "status"), [(True, Status.OK), (False, Status.TIMEOUT)])
async def test_a_process_that_was_blocked_calls_no_server_late(tasks: Tasks, *, blocked: bool, status: Status) -> None:
    """Of what it missed it knows nothing: the answer is still on its way when it goes on, and it asks once more."""
    wire, timeout = SlowWire(), 0.1
    dial: Dial = lambda url, timeout: lambda: wire  # noqa: E731
    server = Server(ServerId("a"), "redis://a", namespace="n", command_timeout=timeout, tasks=tasks, dial=dial)
    asking = asyncio.create_task(server.call("seal", "", 1, Life("r1", "g1")))
    await wire.sent.wait()
    if blocked:
        time.sleep(timeout + 2 * LATE_SECONDS)
    assert (await asking).status is status
