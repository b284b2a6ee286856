"""The same call on several servers at once, each of which may answer, be silent, complain or break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

import hiredis
import pytest

from zkrq.protocol.calls import Count, Install, Rows, Seal
from zkrq.protocol.replies import Status
from zkrq.protocol.view import Life, ServerId
from zkrq.replication.fleet import Fleet
from zkrq.replication.server import Server
from zkrq.replication.wire import ErrorReply, Wire
from zkrq.tasks import Tasks

pytestmark = pytest.mark.anyio

INFO = b"redis_version:7.2.0\r\nrun_id:r1\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n"
ABOUT = {b"INFO": INFO, b"HMGET": [b"g1", b"1", b"a", b"d"], b"SCARD": 0, b"TIME": [b"1", b"0"]}
PATIENCE = 0.3  # seconds: command_timeout
OK = [b"OK"]
NOSCRIPT = ErrorReply("NOSCRIPT No matching script.")
BUSY = ErrorReply("BUSY Redis is busy running a script.")
BROKEN = ConnectionResetError("cut")


class Silence:
    """No answer."""


SILENCE = Silence()


@dataclass
class Redis:
    """Says who it is, then gives these answers to scripts, the last one again and again.  Exceptions break the wire."""

    answers: list[object] = field(default_factory=lambda: [OK])
    asked: list[bytes] = field(default_factory=list[bytes])
    silent: bool = False

    def answer(self, command: Sequence[bytes]) -> object:
        if self.silent:
            return SILENCE
        if command[0] in ABOUT:
            return ABOUT[command[0]]
        self.asked.append(command[0])
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class FakeWire:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._replies: asyncio.Queue[object] = asyncio.Queue()
        self._reader = hiredis.Reader()

    async def connect(self) -> None: ...

    async def send(self, commands: Sequence[bytes]) -> None:
        for packed in commands:
            self._reader.feed(packed)
            answer = self._redis.answer(self._reader.gets())
            if answer is not SILENCE:
                self._replies.put_nowait(answer)

    async def receive(self) -> object:
        reply = await self._replies.get()
        if isinstance(reply, BaseException):
            raise reply
        return reply

    async def close(self) -> None: ...


Make = Callable[..., Fleet]


@pytest.fixture
async def tasks() -> AsyncGenerator[Tasks, None]:
    async with Tasks("test") as tasks:
        yield tasks


@pytest.fixture
def make(tasks: Tasks) -> Make:
    def make(**redis: Redis) -> Fleet:
        def make_server(id: ServerId, url: str) -> Server:
            def make_wire() -> Wire:
                return FakeWire(redis[id])

            return Server(
                id, url, namespace="n", command_timeout=PATIENCE, tasks=tasks, dial=lambda url, timeout: make_wire
            )

        urls = {ServerId(id): f"redis://{id}" for id in redis}
        return Fleet(urls, make_server, namespace="n")

    return make


async def connected(fleet: Fleet, *ids: str) -> None:
    for id in ids:
        await fleet.servers[ServerId(id)].identify()


async def ask(fleet: Fleet, *ids: str) -> dict[str, tuple[Status, bool]]:
    """What each answered, and whether that answers a second try."""
    lives = {ServerId(id): Life("r1", "g1") for id in ids}
    answers = await fleet.ask(1, lives, Seal())
    return {id: (answer.status, answer.repeated) for id, answer in answers.items()}


async def test_all_answer(make: Make) -> None:
    a, b = Redis(), Redis()
    fleet = make(a=a, b=b)
    await connected(fleet, "a", "b")
    assert await ask(fleet, "a", "b") == {"a": (Status.OK, False), "b": (Status.OK, False)}
    assert a.asked == b.asked == [b"EVALSHA"]


@pytest.mark.parametrize("first", [NOSCRIPT, BUSY], ids=["NOSCRIPT", "BUSY"])
@pytest.mark.parametrize("known", [True, False], ids=["connected", "not connected"])
async def test_a_complaint_is_dealt_with_while_another_server_is_silent(
    make: Make, first: ErrorReply, known: bool
) -> None:
    """It has its whole time for that: the silent one is to blame for its own silence only."""
    a, b = Redis([first, OK]), Redis()
    fleet = make(a=a, b=b)
    await connected(fleet, "a", *("b" if known else ""))
    b.silent = True
    assert await ask(fleet, "a", "b") == {"a": (Status.OK, False), "b": (Status.TIMEOUT, False)}
    assert len(a.asked) == 2


async def test_broken_connection_is_made_again_while_another_server_is_silent(make: Make) -> None:
    a, b = Redis([BROKEN, OK]), Redis()
    fleet = make(a=a, b=b)
    await connected(fleet, "a", "b")
    b.silent = True
    loop = asyncio.get_running_loop()
    before = loop.time()
    asking = asyncio.create_task(ask(fleet, "a", "b"))
    while len(a.asked) < 2:
        await asyncio.sleep(0)
    assert loop.time() < before + PATIENCE, "before the other one's time was over"
    assert await asking == {"a": (Status.OK, True), "b": (Status.TIMEOUT, False)}


async def test_silent_server_does_not_hold_up_the_next_rounds(make: Make) -> None:
    """It is left alone for a while, and nobody's answer is taken for another one's."""
    a, b = Redis(), Redis()
    fleet = make(a=a, b=b)
    await connected(fleet, "a", "b")
    b.silent = True
    answers = await asyncio.gather(*(ask(fleet, "a", "b") for _ in range(5)))
    assert answers == [{"a": (Status.OK, False), "b": (Status.TIMEOUT, False)}] * 5
    b.silent = False
    assert (await ask(fleet, "a", "b"))["b"] == (Status.UNREACHABLE, False)


async def test_server_that_is_removed_meanwhile_is_gone(make: Make) -> None:
    a, b = Redis(), Redis([SILENCE])
    fleet = make(a=a, b=b)
    await connected(fleet, "a", "b")
    asking = asyncio.create_task(ask(fleet, "a", "b"))
    while not b.asked:
        await asyncio.sleep(0)
    fleet.servers.pop(ServerId("b")).drop()
    assert await asking == {"a": (Status.OK, False), "b": (Status.GONE, True)}
    assert await ask(fleet, "a", "b") == {"a": (Status.OK, False), "b": (Status.GONE, False)}


async def test_rounds_land_in_their_order(make: Make) -> None:
    """Also those that have to load the script first."""
    a, b = Redis([*[NOSCRIPT] * 4, OK]), Redis()
    fleet = make(a=a, b=b)
    await connected(fleet, "a", "b")
    landed: list[int] = []

    async def one(number: int) -> None:
        await ask(fleet, "a", "b")
        landed.append(number)

    await asyncio.gather(*map(one, range(8)))
    assert landed[:4] == sorted(landed[:4])
    assert sorted(landed) == list(range(8))
    assert a.asked == [b"EVALSHA"] * 8 + [b"EVAL"] * 4


async def test_cancelled_round_leaves_the_connection_in_step(make: Make) -> None:
    a = Redis([[b"OK", number] for number in range(3)])
    fleet = make(a=a)
    await connected(fleet, "a")
    asking = asyncio.create_task(ask(fleet, "a"))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    answers = await fleet.ask(1, {ServerId("a"): Life("r1", "g1")}, Install("q", 0, Rows()))
    assert answers[ServerId("a")].body == (1,), "not what the cancelled one was answered"


@pytest.mark.parametrize("reply", [b"OK", [b"OK"], [b"OK", 1, 2, 3], [b"OK", 1, 2, 3, []], [b"STALE"], [[]], None])
async def test_reply_that_no_header_promises_is_reported(make: Make, reply: object) -> None:
    """It does not raise where the reply is read, and says nothing of what happened on that server."""
    fleet = make(a=Redis([reply]), b=Redis([[b"OK", 1, 2, 3, 4]]))
    await connected(fleet, "a", "b")
    lives = {ServerId(id): Life("r1", "g1") for id in "ab"}
    answers = await fleet.ask(1, lives, Count("q"))
    a, b = answers.values()
    assert (a.status, a.may_have_happened, b.status) == (Status.BROKEN, True, Status.OK)
    assert repr(reply) in a.reason
    assert Count("q").read(b.body) == (1, 2, 3, 4)
