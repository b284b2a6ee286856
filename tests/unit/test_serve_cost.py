"""What a request costs before its token is looked at: no more than its bytes, whatever they are.

Nothing here reads a clock.  ``Work`` counts the calls that are made, and for each call the bytes that it is given to
read, as far as a profiler sees them: those of the text whose method is called, or of the texts at hand where a pattern
or a function is.  A step that reads the whole head again for each of its parts costs four times as much for twice the
bytes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, cast

import pytest

from tests.every import every
from tests.unit.by_wire import let_in, make_connection
from zkrq.serve import connections
from zkrq.serve.connections import Places
from zkrq.serve.guard import Guard
from zkrq.serve.security import policy_for, session_of

pytestmark = pytest.mark.anyio

TOKEN = "a-long-random-text-that-nobody-guesses"
SIZE = 15_000
"""Bytes of the smaller head.  The other one has twice as many, which is more than a head may have."""

CONSTANT = {"len", "isinstance", "getattr", "hasattr", "setattr", "next", "iter", "type", "repr", "callable"}
"""Functions whose cost does not depend on the length of what they are given, or that are never given a text here."""


class Work:
    """Count the calls made while this is entered, and the bytes that they may read."""

    def __init__(self) -> None:
        self.done = 0

    def __enter__(self) -> Work:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.done += 1
        elif event == "c_call" and argument.__name__ not in CONSTANT:
            owner = getattr(argument, "__self__", None)
            if isinstance(owner, str | bytes | bytearray):
                self.done += 1 + len(owner)
            elif isinstance(owner, list | dict | set) or frame.f_globals["__name__"].startswith("h11."):
                self.done += 1  # h11 has the whole head at hand, and gives its patterns one line of it
            else:
                self.done += 1 + max(map(_length, frame.f_locals.values()), default=0)


def _length(value: object) -> int:
    return len(cast("bytes", value)) if isinstance(value, str | bytes | bytearray) else 0


async def cost_of(request: bytes) -> tuple[int, bytes]:
    """Answer a request; return what it cost, and the status."""
    connection, transport = make_connection(Guard(let_in, policy_for("0.0.0.0", (TOKEN,), ())), Places(10))
    with Work() as work:
        connection.connection_made(transport)
        connection.data_received(request)
        while not transport.sent or connection.tasks:
            await asyncio.sleep(0)
    connection.connection_lost(None)
    return work.done, bytes(transport.sent[9:12])


def head(line: str = "GET /v1/queues", **headers: str) -> bytes:
    lines = [f"{line} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


HEADS: Mapping[str, Callable[[int], bytes]] = {
    "nothing": lambda size: head(padding="x" * size),
    "a cookie of escapes": lambda size: head(Cookie='zkrq-session="' + "\\\\" * (size // 2) + '"'),
    "a cookie of octal escapes": lambda size: head(Cookie='zkrq-session="' + "\\101" * (size // 4) + '"'),
    "many cookies": lambda size: head(Cookie="a=b;" * (size // 4)),
    "a cookie of spaces": lambda size: head(Cookie=";" + " " * size + ";"),
    "cookies that begin alike": lambda size: head(Cookie=";zkrq-session" * (size // 13)),
    "a long session": lambda size: head(Cookie="zkrq-session=" + "1" * size),
    "a long token": lambda size: head(Authorization="Bearer " + "x" * size),
    "a token of spaces": lambda size: head(Authorization="Bearer" + " " * size + "x"),
    "many headers": lambda size: head(**{f"x{number}": "y" for number in range(size // 8)}),
    "the same header": lambda size: head(X="\r\nX: y" * (size // 6)),
    "a folded header": lambda size: head(X="\r\n y" * (size // 4)),
    "a long host": lambda size: head(Host2="x").replace(b"127.0.0.1", b"a." * (size // 2)),
    "a host of brackets": lambda size: head().replace(b"127.0.0.1", b"[" * size),
    "a long origin": lambda size: head("POST /login", Origin="http://" + "a:" * (size // 2)),
    "a long path": lambda size: head("GET /" + "a/" * (size // 2)),
    "an escaped path": lambda size: head("GET /" + "%41" * (size // 3)),
    "a long query": lambda size: head("GET /?" + "a=b&" * (size // 4)),
    "tokens of a connection": lambda size: head(Connection="a," * (size // 2)),
    "a long length": lambda size: head("POST /login", **{"Content-Length": "0" * size}),
    "no request": lambda size: b"x" * size + b"\r\n\r\n",
    "pages that accept anything": lambda size: head(Accept="text/html," * (size // 10)),
}


@every("kind", sorted(HEADS))
async def test_what_is_done_before_the_token_is_looked_at_grows_with_the_bytes(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(connections, "PIECE_BYTES", 4 * SIZE)
    await cost_of(HEADS[kind](10))  # what is done the first time alone
    (small, status), (large, _) = [await cost_of(HEADS[kind](size)) for size in (SIZE, 2 * SIZE)]
    assert status in (b"400", b"401", b"403", b"303")
    assert large < 2.2 * small, (small, large)


async def test_a_head_that_is_too_large_is_refused_also_if_it_arrives_at_once() -> None:
    for size, expected in ((15_000, b"401"), (30_000, b"400")):
        assert (await cost_of(HEADS["nothing"](size)))[1] == expected


def test_the_session_is_found_among_cookies() -> None:
    assert session_of("zkrq-session=12.ab.cd") == "12.ab.cd"
    assert session_of('a=b; zkrq-session="12.ab"; c') == "12.ab"
    assert session_of(";zkrq-session=1;zkrq-session=2") == "1"
    for other in ("", "session=1", "xzkrq-session=1", "zkrq-session", "zkrq-session=", "zkrq-session-2=1", "a=zkrq"):
        assert session_of(other) == ""
