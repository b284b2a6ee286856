"""Strangers who attack a server of the HTTP API, as a process of its own: ``python -m tests.security.strangers PORT``.

Each kind of attack has some connections, which begin anew as soon as the server closes them.  All of them end with
standard input, and in any case after ``SECONDS_MAX``.  They reach nothing but this machine's loopback.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from anyio import to_thread

SECONDS_MAX = 120
CONNECTIONS = 10
"""Connections of each attack but the first."""

UNREAD = int(os.environ.get("STRANGERS", "100"))
"""Connections that never read."""

PAUSE = 0.2
"""Seconds between two drops of a drip, and until a connection that was closed begins anew."""

Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

HOST = b"Host: 127.0.0.1\r\n"
STATIC = b"GET /static/htmx-4.0.1.min.js HTTP/1.1\r\n" + HOST + b"\r\n"
LOGIN = b"POST /login HTTP/1.1\r\n" + HOST + b"Content-Type: application/x-www-form-urlencoded\r\n"
HEADERS = b"".join(b"X%d: y\r\n" % number for number in range(2_000))
MANY_FIELDS = json.dumps({f"f{number}": 0 for number in range(300_000)}).encode()
"""A body with unknown fields, just below what a body may have."""


async def do_not_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ask for files, and take no reply."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    while not writer.is_closing():
        writer.write(400 * STATIC)
        await writer.drain()
        await asyncio.sleep(PAUSE)


async def read_all(reader: asyncio.StreamReader) -> None:
    """Read until the server hangs up."""
    with suppress(OSError):
        while await reader.read(1 << 16):
            pass


def repeating(request: bytes) -> Attack:
    """Send a request again and again, and read the replies."""

    async def attack(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reading = asyncio.create_task(read_all(reader))
        try:
            while not reading.done():
                writer.write(request)
                await writer.drain()
                await asyncio.sleep(PAUSE / 10)
        finally:
            reading.cancel()

    return attack


def dripping(head: bytes, drop: bytes) -> Attack:
    """Send a beginning, and then one drop after another."""

    async def attack(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        reading = asyncio.create_task(read_all(reader))
        while not reading.done():
            await asyncio.sleep(PAUSE)
            writer.write(drop)
            await writer.drain()

    return attack


def once(request: bytes) -> Attack:
    """Send a request, read the reply, and hang up."""

    async def attack(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request)
        await writer.drain()
        await reader.read(1 << 16)

    return attack


ATTACKS: Mapping[str, Attack] = {
    "replies that are never read": do_not_read,
    "connections that send nothing": dripping(b"", b""),
    "heads, byte by byte": dripping(b"GET /livez HTTP/1.1\r\nX: ", b"x"),
    "bodies, byte by byte": dripping(LOGIN + b"Content-Length: 4000\r\n\r\n", b"x"),
    "cookies of 60 KB": repeating(
        b"GET /v1/queues HTTP/1.1\r\n" + HOST + b'Cookie: zkrq-session="' + b"\\\\" * 30_000 + b'"\r\n\r\n'
    ),
    "requests for other protocols": repeating(
        b"GET /livez HTTP/1.1\r\n" + HOST + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    ),
    "malformed requests": once(b"no request\r\n\r\n"),
    "beginnings of TLS": once(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 500),
    "bodies with 300,000 unknown fields": once(
        b"POST /v1/queues/q/push HTTP/1.1\r\n"
        + HOST
        + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(MANY_FIELDS)
        + MANY_FIELDS
    ),
    "files, one request after another": repeating(10 * STATIC),
    "wrong tokens": repeating(LOGIN + b"Content-Length: 32\r\n\r\ntoken=" + b"x" * 26),
    "paths and headers without end": repeating(
        b"GET /static/" + b"a/" * 10_000 + b" HTTP/1.1\r\n" + HOST + HEADERS + b"\r\n"
    ),
}


async def keep_on(attack: Attack, port: int) -> None:
    """Attack, and begin anew whenever the server has closed the connection."""
    while True:
        writer = None
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await attack(reader, writer)
        if writer:
            writer.transport.abort()
        await asyncio.sleep(PAUSE)


async def main(port: int) -> None:
    """Attack until standard input ends."""
    tasks = [
        asyncio.create_task(keep_on(attack, port))
        for number, attack in enumerate(ATTACKS.values())
        for _ in range(CONNECTIONS if number else UNREAD)
    ]
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS_MAX):
            await to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
