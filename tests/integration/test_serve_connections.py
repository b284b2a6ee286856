"""Connections to the HTTP API that send no whole request, over real sockets: they are closed, and keep nobody out."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, closing, contextmanager
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
from zkrq.serve.connections import CONNECTIONS_MAX, DESCRIPTORS_KEPT, connections_max

pytestmark = pytest.mark.anyio

MOST = 8
REQUEST = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


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
    waiting = [asyncio.create_task(http.post("/queues/emails/claim", {"wait": 60})) for _ in range(MOST)]
    requests = http.server._uvicorn.server_state.tasks  # pyright: ignore[reportPrivateUsage]
    while len(requests) < MOST:
        await asyncio.sleep(0.01)
    with strangers(http, 1) as (further,):
        assert (await asyncio.to_thread(further.recv, 12)) == b"HTTP/1.1 503"
    for task in waiting:
        assert not task.done()
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


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
