"""Connections to the HTTP API that send no whole request, over real sockets: they are closed, and keep nobody out."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

import zkrq
from tests.harness import HANG, in_process, new_namespace
from tests.security.certificates import Certificates
from tests.serving import Serving, serving
from zkrq import local
from zkrq.coordination.memory import Hub
from zkrq.serve import connections, guard
from zkrq.serve.connections import CONNECTIONS_MAX, DESCRIPTORS_KEPT, STRANGERS_SHARE, connections_max
from zkrq.serve.lines import LINES_MAX

pytestmark = pytest.mark.anyio

MOST = 8
STRANGERS = MOST // STRANGERS_SHARE
CLIENTS = MOST - STRANGERS
TOKEN = "a-long-random-text-that-nobody-guesses"
REQUEST = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CLAIM = b"POST /v1/queues/emails/claim HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
LARGE = b"GET /static/htmx-4.0.1.min.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture
async def http(shared_servers: local.Servers, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Serving]:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", MOST)
    async with serving(in_process(shared_servers, new_namespace(), Hub())) as http:
        yield http


@pytest.fixture
def trust(files: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files("ca"))


@pytest.fixture
async def https(
    shared_servers: local.Servers, monkeypatch: pytest.MonkeyPatch, files: Certificates
) -> AsyncGenerator[Serving]:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", MOST)
    given: dict[str, Any] = {"certificate": Path(files("server")), "key": Path(files.key("server"))}
    async with serving(in_process(shared_servers, new_namespace(), Hub()), **given) as https:
        yield https


@contextmanager
def strangers(http: Serving, count: int) -> Generator[list[socket.socket]]:
    with ExitStack() as stack:
        address = ("127.0.0.1", http.server.port)
        yield [stack.enter_context(socket.create_connection(address)) for _ in range(count)]


async def wait_closed(connection: socket.socket, *, begun: bytes = b"") -> None:
    """Wait until the server closes the connection; meanwhile it is kept busy with these bytes."""
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    async with asyncio.timeout(0.05):
                        if not await loop.sock_recv(connection, 65_536):
                            return
                except TimeoutError:
                    await loop.sock_sendall(connection, begun)
    except ConnectionError:
        return


def is_closed(connection: socket.socket) -> bool:
    """Tell whether the server has closed a connection on which it has sent nothing."""
    connection.setblocking(False)
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("head", [b"", b"GET /livez HTTP/1.1\r\nHost: ", REQUEST + b"GET /li"])
@pytest.mark.parametrize("more", [b"", b"x"])
async def test_a_connection_without_a_whole_head_is_closed(
    http: Serving, monkeypatch: pytest.MonkeyPatch, head: bytes, more: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    with strangers(http, 1) as (slow,):
        slow.sendall(head)
        await wait_closed(slow, begun=more)


async def test_strangers_who_hold_connections_keep_nobody_out(http: Serving) -> None:
    with strangers(http, 3 * MOST) as slow:
        for number, each in enumerate(slow):
            each.sendall(REQUEST[:number])
        for _ in range(2):
            assert (await http.client.get("/livez", headers={"Connection": "close"})).status_code == 200
        await wait_closed(slow[0])  # the one that has waited for longest


@pytest.mark.parametrize("line", [b"POST /login", b"GET /livez"])
async def test_strangers_who_send_no_body_keep_nobody_out(
    http: Serving, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    """Nor do their requests count among those that are answered at one time."""
    monkeypatch.setattr(guard, "REQUESTS_MAX", 1)
    head = line + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n"
    with strangers(http, 3 * MOST) as slow:
        for each in slow:
            each.sendall(head)
        for _ in range(2):
            assert (await http.client.get("/livez", headers={"Connection": "close"})).status_code == 200
        await wait_closed(slow[0])


async def test_strangers_who_begin_no_handshake_keep_nobody_out(https: Serving, trust: ssl.SSLContext) -> None:
    with strangers(https, 3 * MOST) as silent:
        async with httpx.AsyncClient(verify=trust, timeout=HANG, trust_env=False) as client:
            for _ in range(2):
                url = f"https://127.0.0.1:{https.server.port}/livez"
                assert (await client.get(url, headers={"Connection": "close"})).status_code == 200
        assert is_closed(silent[0])  # at once, for one that came later


async def test_a_connection_without_a_whole_handshake_is_closed(
    https: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    with strangers(https, 1) as (silent,):
        await wait_closed(silent)


async def test_a_request_that_is_being_answered_keeps_its_place(http: Serving) -> None:
    """A further client is refused; `/livez` has a place."""
    waiting = await clients_that_wait(http, CLIENTS)
    with strangers(http, 1) as (further,):
        further.sendall(CLAIM)
        assert (await asyncio.to_thread(further.recv, 12)) == b"HTTP/1.1 503"
    with strangers(http, 1) as (probe,):
        probe.sendall(REQUEST)
        assert (await asyncio.to_thread(probe.recv, 12)) == b"HTTP/1.1 200"
    for task in waiting:
        assert not task.done()
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def clients_that_wait(http: Serving, count: int, **headers: str) -> list[asyncio.Task[httpx.Response]]:
    """Have clients wait for items; each comes when the one before it was let in, because there are few places."""
    requests = http.server._uvicorn.server_state.tasks  # pyright: ignore[reportPrivateUsage]
    waiting: list[asyncio.Task[httpx.Response]] = []
    for number in range(count):
        waiting.append(asyncio.create_task(http.post("/queues/emails/claim", {"wait": 60}, **headers)))
        while len(requests) <= number:
            await asyncio.sleep(0.01)
    return waiting


async def wait_unread(http: Serving, count: int = 1) -> None:
    """Wait until the server has this many connections that take nothing of their replies."""
    held: Any = http.server._uvicorn.server_state.connections  # pyright: ignore[reportPrivateUsage]
    while sum(bool(each.transport.get_write_buffer_size()) for each in held) < count:
        await asyncio.sleep(0.01)


async def test_strangers_who_do_not_read_keep_nobody_out(
    shared_servers: local.Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who have a token keep their places and their requests; others, and `/livez`, get the stranger's place."""
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", MOST)
    monkeypatch.setattr(guard, "REQUESTS_MAX", CLIENTS)
    allowed = {"Authorization": f"Bearer {TOKEN}"}
    async with serving(in_process(shared_servers, new_namespace(), Hub()), tokens=(TOKEN,)) as http:
        waiting = await clients_that_wait(http, CLIENTS - 1, **allowed)
        with strangers(http, 3 * MOST) as unread:
            for each in unread:
                each.setblocking(False)
                with suppress(ConnectionError):  # its place may be another's already
                    await asyncio.get_running_loop().sock_sendall(each, 400 * LARGE)
            await wait_unread(http, STRANGERS)
            for _ in range(2):
                for path in ("/livez", "/v1/queues"):
                    reply = await http.client.get(path, headers={**allowed, "Connection": "close"})
                    assert reply.status_code == 200
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize("ending", [b"", b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"])
async def test_a_reply_that_is_not_read_has_a_deadline(
    http: Serving, monkeypatch: pytest.MonkeyPatch, ending: bytes
) -> None:
    """Neither the request nor the connection is left, also one that the server would close once all is read."""
    monkeypatch.setattr(connections, "READ_SECONDS", 0.1)
    server = http.server._uvicorn.server_state  # pyright: ignore[reportPrivateUsage]
    with strangers(http, 1) as (unread,):
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.setblocking(False)
        with suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(unread, 400 * LARGE + ending)
        async with asyncio.timeout(60):
            while server.tasks or server.connections:
                await asyncio.sleep(0.01)


async def test_what_strangers_send_writes_few_lines(http: Serving, caplog: pytest.LogCaptureFixture) -> None:
    """Malformed requests, in their beginning and in a body while it is answered, and requests for other protocols."""
    chunked = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
    upgrade = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    sent = [
        b"no request\r\n\r\n",
        chunked + b"\r\nno chunk\r\n",
        chunked + b"\r\n2000\r\n" + b"x" * 8192 + b"\r\n?\r\n",
    ]
    for malformed in sent:
        for _ in range(2 * LINES_MAX):
            with strangers(http, 1) as (stranger,):
                stranger.sendall(malformed)
                await wait_closed(stranger)
    with strangers(http, 1) as (stranger,):
        for _ in range(2 * LINES_MAX):
            stranger.sendall(upgrade)
            reply = b""
            while not reply.endswith(b"alive\n"):
                reply += await asyncio.to_thread(stranger.recv, 65_536)
            assert reply.startswith(b"HTTP/1.1 200")
    lines = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert len(lines) <= LINES_MAX
    assert all(line.message.startswith("Invalid HTTP request") for line in lines)


async def test_a_client_may_pause_between_requests(http: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is kept between requests for longer than a head may take."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 1.0)

    def ask() -> int:
        patient.request("GET", "/livez")
        reply = patient.getresponse()
        reply.read()
        return reply.status

    with closing(HTTPConnection("127.0.0.1", http.server.port)) as patient:
        assert await asyncio.to_thread(ask) == 200
        first = patient.sock
        await asyncio.sleep(1.2)
        assert await asyncio.to_thread(ask) == 200
        assert patient.sock is first


def set_limit(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    def limits(_: int) -> tuple[int, int]:
        return limit, limit

    monkeypatch.setattr(pytest.importorskip("resource"), "getrlimit", limits)


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        (1 << 20, CONNECTIONS_MAX),
        (-1, CONNECTIONS_MAX),
        (1024, 1024 - DESCRIPTORS_KEPT),
        (256, 128),
    ],
)
def test_descriptors_are_left_for_the_servers(monkeypatch: pytest.MonkeyPatch, limit: int, most: int) -> None:
    set_limit(monkeypatch, limit)
    assert connections_max() == most


def test_a_process_that_may_open_hardly_any_file_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limit(monkeypatch, 20)
    with pytest.raises(zkrq.ConfigError, match="ulimit"):
        connections_max()
