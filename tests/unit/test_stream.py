"""Bytes of a real socket as replies to a receiver, on asyncio's event loop and on uvloop's."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from tests.every import every
from zkrq.replication.stream import ErrorReply, Inbox, Receiver, Stream

HANG = 20.0

LARGE = 8 << 20
"""Bytes; more than the buffers of a socket and a transport hold."""


class Ears(Receiver):
    """Notes what it is called with; ``at`` is called with every reply."""

    def __init__(self, at: Callable[[object], object] = lambda reply: None) -> None:
        self.replies: list[object] = []
        self.errors: list[OSError] = []
        self.flow: list[str] = []
        self._at = at

    def heard(self, reply: object) -> None:
        self.replies.append(reply)
        self._at(reply)

    def ended(self, error: OSError) -> None:
        self.errors.append(error)

    def pause_writing(self) -> None:
        self.flow.append("pause")

    def resume_writing(self) -> None:
        self.flow.append("resume")


class Ends:
    """Both ends of a connection: the streams of asyncio that connected it, and the server's socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, far: socket.socket) -> None:
        self.reader, self.writer, self.far = reader, writer, far
        self._loop = asyncio.get_running_loop()

    async def reply(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.far, data)

    async def asked(self, size: int = 1 << 16) -> bytes:
        return await self._loop.sock_recv(self.far, size)


Play = Callable[[Ends], Awaitable[None]]


def on(loop: str, play: Play) -> None:
    """Run a test on this event loop; nothing of it may be left."""

    async def run() -> None:
        near, far = socket.socketpair()
        far.setblocking(False)
        with far:
            async with asyncio.timeout(HANG):
                await play(Ends(*await asyncio.open_connection(sock=near), far))
        await asyncio.sleep(0.01)  # transports close in turns of their own
        assert asyncio.all_tasks() == {asyncio.current_task()}

    factory: Any = uvloop.new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())
    gc.collect()  # a transport that was left open warns, which is an error


every_loop = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


REPLIES = b"+OK\r\n:7\r\n$-1\r\n-ERR no\r\n*3\r\n$2\r\nab\r\n-WRONG kind\r\n*1\r\n:1\r\n$3\r\n\r\n\0\r\n"
READ = [b"OK", 7, None, ErrorReply("ERR no"), [b"ab", ErrorReply("WRONG kind"), [1]], b"\r\n\0"]


@every_loop
@every("pieces", [[REPLIES], [bytes([byte]) for byte in REPLIES], [REPLIES[:30], REPLIES[30:]]])
def test_replies_come_in_any_pieces(loop: str, pieces: list[bytes]) -> None:
    async def play(ends: Ends) -> None:
        ears = Ears()
        stream = Stream(ends.reader, ends.writer)
        stream.start(ears)
        for piece in pieces:
            await ends.reply(piece)
            await asyncio.sleep(0)
        await until(lambda: len(ears.replies) == len(READ))
        assert ears.replies == READ
        assert not ears.errors
        stream.close()

    on(loop, play)


@every_loop
def test_first_questions_are_answered_and_what_follows_is_passed_on(loop: str) -> None:
    """A message of a subscription may come with the reply to it."""

    async def play(ends: Ends) -> None:
        stream = Stream(ends.reader, ends.writer)
        asking = asyncio.create_task(stream.ask(b"first", b"second"))
        assert await ends.asked() == b"firstsecond"
        await ends.reply(b":1\r\n:2\r\n:3\r\n:4\r\n")
        assert await asking == [1, 2]
        ears = Ears()
        write = stream.start(ears)
        await ends.reply(b":5\r\n")
        await until(lambda: len(ears.replies) == 3)
        assert ears.replies == [3, 4, 5]
        write(b"more")
        assert await ends.asked() == b"more"
        stream.close()

    on(loop, play)


@every_loop
@every("ends_it", [True, False])
def test_a_refusal_that_came_before_the_first_question(loop: str, *, ends_it: bool) -> None:
    """It was in the buffer of asyncio's stream when that was replaced, and its end, too."""

    async def play(ends: Ends) -> None:
        await ends.reply(b"-ERR max number of clients reached\r\n")
        if ends_it:
            ends.far.shutdown(socket.SHUT_WR)
        reader: Any = ends.reader
        await until(lambda: reader._buffer and (reader._eof or not ends_it))
        stream = Stream(ends.reader, ends.writer)
        assert await stream.ask(b"first", b"second") == [ErrorReply("ERR max number of clients reached")]
        ears = Ears()
        stream.start(ears)
        assert len(ears.errors) == ends_it
        stream.close()

    on(loop, play)


@every_loop
@every("before", [True, False])
def test_an_end_is_reported_once(loop: str, *, before: bool) -> None:
    """In the middle of a reply, before the stream was taken over or after it; what was complete is passed on."""

    async def play(ends: Ends) -> None:
        ears = Ears()
        stream = None if before else Stream(ends.reader, ends.writer)
        if stream:
            stream.start(ears)
        await ends.reply(b":1\r\n$5\r\nab")
        ends.far.close()
        reader: Any = ends.reader
        await until(lambda: ears.errors or reader._eof)
        if not stream:
            stream = Stream(ends.reader, ends.writer)
            stream.start(ears)
        await asyncio.sleep(0.01)
        assert ears.replies == [1]
        assert [type(error) for error in ears.errors] == [ConnectionResetError]
        stream.close()

    on(loop, play)


@every_loop
def test_a_question_that_is_not_answered_fails(loop: str) -> None:
    async def play(ends: Ends) -> None:
        stream = Stream(ends.reader, ends.writer)
        asking = asyncio.create_task(stream.ask(b"first"))
        await ends.asked()
        ends.far.close()
        with pytest.raises(ConnectionResetError):
            await asking
        stream.close()

    on(loop, play)


@every_loop
@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400\r\n", b"\x15\x03\x03\0\x02\x02\x28", b"*-5\r\n", b"\0" * 100])
def test_what_is_no_reply_ends_the_connection(loop: str, garbage: bytes) -> None:
    async def play(ends: Ends) -> None:
        ears = Ears()
        stream = Stream(ends.reader, ends.writer)
        stream.start(ears)
        await ends.reply(b":1\r\n" + garbage + b":2\r\n")
        await until(lambda: ears.errors)
        assert ears.replies == [1]
        assert "not a reply of Redis" in str(ears.errors[0])
        stream.close()

    on(loop, play)


@every_loop
def test_nothing_is_passed_on_after_closing(loop: str) -> None:
    """Not even what came in the same packet as the reply at which the receiver closed it."""

    async def play(ends: Ends) -> None:
        stream = Stream(ends.reader, ends.writer)
        ears = Ears(lambda reply: stream.close())
        stream.start(ears)
        await ends.reply(b":1\r\n:2\r\n")
        await until(lambda: ears.replies)
        stream.close()
        await asyncio.sleep(0.01)
        assert ears.replies == [1]
        assert not ears.errors
        assert await ends.asked() == b""

    on(loop, play)


@every_loop
def test_a_server_that_does_not_read_is_written_to_later(loop: str) -> None:
    async def play(ends: Ends) -> None:
        ears = Ears()
        stream = Stream(ends.reader, ends.writer)
        write = stream.start(ears)
        sent = bytes(range(256)) * (LARGE // 256)
        write(sent)
        await until(lambda: ears.flow)
        assert ears.flow == ["pause"]
        await ends.reply(b":1\r\n")
        await until(lambda: ears.replies)  # what it says is read meanwhile
        received = b""
        while len(received) < len(sent):
            received += await ends.asked(1 << 20)
        assert received == sent
        await until(lambda: len(ears.flow) > 1)
        assert ears.flow == ["pause", "resume"]
        stream.close()

    on(loop, play)


@every_loop
def test_closing_does_not_wait_for_a_server_that_does_not_read(loop: str) -> None:
    async def play(ends: Ends) -> None:
        ears = Ears()
        stream = Stream(ends.reader, ends.writer)
        stream.start(ears)(b"x" * LARGE)
        await until(lambda: ears.flow)
        stream.close()
        stream.close()
        received = b"x"
        while received:
            received = await ends.asked(1 << 20)
        assert not ears.errors

    on(loop, play)


@pytest.mark.anyio
async def test_an_inbox_without_its_replies() -> None:
    inbox = Inbox()
    taking = asyncio.create_task(inbox.take(2))
    inbox.heard(1)
    inbox.ended(BrokenPipeError("cut"))
    with pytest.raises(BrokenPipeError):
        await taking
