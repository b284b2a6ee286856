"""A connection over each transport, on each event loop: TCP, a unix socket, TLS with a client's certificate.

redis-py makes it, and zkrq takes over its transport; transports differ in how they buffer, pause and close.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.harness import HANG, command, new_namespace
from tests.security.conftest import Secured
from zkrq.base.tls import TLS
from zkrq.protocol.replies import Status
from zkrq.protocol.view import ServerId
from zkrq.replication.link import Link, ServerError
from zkrq.replication.server import Server
from zkrq.replication.urls import Dialler
from zkrq.replication.wire import Wire, pack

pytestmark = pytest.mark.anyio

LARGE = 12 << 20
"""Bytes; more than the buffers between this process and a server hold."""

ECHO = pack(("EVAL", "return ARGV[1]", 0, "x" * 1000))

Dial = Callable[[], Coroutine[Any, Any, Wire]]
Play = Callable[[Dial], Awaitable[None]]
Run = Callable[[Play], Awaitable[None]]


def url_of(transport: str, secured: Secured, socket: str) -> str:
    server = secured.servers.redis[0]
    urls = {"TCP": server.url, "unix": f"unix://{socket}", "TLS": f"rediss://127.0.0.1:{secured.ports[server.name]}"}
    return urls[transport]


@pytest.fixture(scope="module")
async def socket(secured_servers: Secured, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a server's socket."""
    path, server = tmp_path_factory.mktemp("sockets") / "redis", secured_servers.servers.redis[0]
    server.config["unixsocket"] = str(path)
    await server.restart()
    return str(path)


@pytest.fixture(params=["TCP", "unix", "TLS"])
async def transport(request: pytest.FixtureRequest, secured: Secured, socket: str) -> AsyncGenerator[str]:
    yield url_of(request.param, secured, socket)
    secured.servers.redis[0].resume()


@pytest.fixture
def dialler(secured: Secured) -> Dialler:
    files = secured.files
    return Dialler(tls=TLS(ca_certs=files("ca"), certfile=files("client"), keyfile=files.key("client")))


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, transport: str, dialler: Dialler) -> Run:
    """Run a test on an event loop of this kind, in a thread; no task and no transport may be left."""
    factory: Any = uvloop.new_event_loop if request.param == "uvloop" else None

    async def dial() -> Wire:
        wire = dialler(transport, HANG)()
        try:
            await wire.prepare()
            await wire.connect()
            assert await wire.ask(pack(("PING",))) == [b"PONG"]
        except BaseException:
            wire.close()
            raise
        return wire

    async def main(play: Play) -> None:
        async with asyncio.timeout(HANG):
            await play(dial)
        await asyncio.sleep(0.05)  # transports close in turns of their own
        assert asyncio.all_tasks() == {asyncio.current_task()}

    def in_thread(play: Play) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main(play))
        gc.collect()  # a transport that was left open warns, which is an error

    async def run(play: Play) -> None:
        await asyncio.to_thread(in_thread, play)

    return run


def over(wire: Wire) -> Link:
    return Link(wire, HANG)


async def test_calls_and_large_payloads(run: Run) -> None:
    """In both directions, with an error between other replies."""

    async def play(dial: Dial) -> None:
        link, key, payload = over(await dial()), new_namespace(), b"\0\r\n" * (LARGE // 3)
        assert await link.ask(*[ECHO] * 300) == [b"x" * 1000] * 300
        with pytest.raises(ServerError, match="unknown command") as failed:
            await link.ask(pack(("NONSENSE",)))
        assert failed.value.answer.status is Status.BROKEN
        words: Any = ("SET", key, payload)
        assert await link.ask(pack(words), pack(("GET", key)), pack(("DEL", key))) == [b"OK", payload, 1]
        link.give_up(ServerError(Status.GONE, "over"))

    await run(play)


async def test_a_server_that_does_not_read_delays_no_other(run: Run, secured: Secured) -> None:
    """Calls to it wait here, and are answered when it goes on."""

    async def play(dial: Dial) -> None:
        link, other = over(await dial()), secured.servers.redis[1]
        wire = Dialler()(other.url, HANG)()
        await wire.prepare()
        await wire.connect()
        secured.servers.redis[0].pause()
        large = await fill(link)
        asking = [asyncio.create_task(link.ask(ECHO)) for _ in range(50)]
        for _ in range(50):
            assert await wire.ask(ECHO) == [b"x" * 1000]
        assert not any(each.done() for each in large + asking)
        secured.servers.redis[0].resume()
        assert await asyncio.gather(*large, *asking) == [*[[b"OK"]] * len(large), *[[b"x" * 1000]] * 50]
        wire.close()
        link.give_up(ServerError(Status.GONE, "over"))

    await run(play)


async def test_giving_up_a_server_that_does_not_read(run: Run, secured: Secured) -> None:
    """What is in the buffers is not waited for; ``run`` looks for what is left."""

    async def play(dial: Dial) -> None:
        link = over(await dial())
        secured.servers.redis[0].pause()
        asking = await fill(link)
        link.give_up(ServerError(Status.TIMEOUT, "no answer"))
        assert await asyncio.gather(*asking, return_exceptions=True) == [link.lost] * len(asking)

    await run(play)


async def fill(link: Link) -> list[asyncio.Task[list[object]]]:
    """Write to a server that hangs until the transport wants no more; TLS takes all of the first payload."""
    payload: Any = ("SET", new_namespace(), b"x" * LARGE, "PX", 60_000)
    asking: list[asyncio.Task[list[object]]] = []
    while not link._paused:  # pyright: ignore[reportPrivateUsage]
        asking.append(asyncio.create_task(link.ask(pack(payload))))
        await asyncio.sleep(0.01)
    return asking


async def test_a_connection_that_the_server_ends(run: Run, secured: Secured) -> None:
    async def play(dial: Dial) -> None:
        link = over(await dial())
        asking = asyncio.create_task(link.ask(pack(("BLPOP", new_namespace(), 0))))
        await asyncio.sleep(0.01)
        await command(secured.servers.redis[0], "CLIENT", "KILL", "TYPE", "normal")
        with pytest.raises(ServerError) as failed:
            await asking
        assert failed.value.answer.status is Status.UNREACHABLE
        assert link.lost

    await run(play)


async def test_connecting_that_is_cancelled(run: Run, secured: Secured) -> None:
    """At any of its turns."""

    async def play(dial: Dial) -> None:
        for turns in range(40):
            dialling = asyncio.create_task(dial())
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            dialling.cancel()
            (ended,) = await asyncio.gather(dialling, return_exceptions=True)
            if not isinstance(ended, BaseException):
                ended.close()

    await run(play)


async def test_messages_of_a_channel(run: Run, secured: Secured, transport: str, dialler: Dialler) -> None:
    async def play(dial: Dial) -> None:
        server = Server(ServerId("a"), transport, namespace="n", command_timeout=HANG, dial=dialler)
        heard, channel = asyncio.Queue[bytes](), new_namespace()
        listening, tried = asyncio.Event(), asyncio.Event()
        listener = asyncio.create_task(server.listen(channel, heard.put_nowait, listening, tried))
        await listening.wait()
        wire = await dial()
        assert await wire.ask(*[pack(("PUBLISH", channel, number)) for number in range(100)]) == [1] * 100
        assert [await heard.get() for _ in range(100)] == [b"%d" % number for number in range(100)]
        wire.close()
        await command(secured.servers.redis[0], "CLIENT", "KILL", "TYPE", "pubsub")
        with pytest.raises(ServerError) as failed:
            await listener
        assert failed.value.answer.status is Status.UNREACHABLE
        assert not listening.is_set()

    await run(play)


async def test_a_wire_that_is_not_there_any_more(run: Run, secured: Secured) -> None:
    """What is written to a connection that has just ended is lost without a word; the end itself is reported."""

    async def play(dial: Dial) -> None:
        link = over(await dial())
        await command(secured.servers.redis[0], "CLIENT", "KILL", "TYPE", "normal")
        with pytest.raises(ServerError) as failed:
            for _ in range(1000):
                await link.ask(ECHO)
        assert failed.value.answer.status is Status.UNREACHABLE

    await run(play)
