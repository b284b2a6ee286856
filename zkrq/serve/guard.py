"""Stand before the application: judge and bound every request, and give every reply the headers that browsers obey.

The body is read here, as a whole, before anything else is done: within ``BODY_SECONDS`` and ``BODY_MAX``, and only
while all bodies together have room.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from zkrq.base.errors import ZkrqError
from zkrq.serve.connections import CONNECTION, Connection
from zkrq.serve.problems import (
    NOT_JSON,
    TIMEOUT,
    TOO_LARGE,
    UNAUTHORIZED,
    Busy,
    Kind,
    describe,
    headers_of,
    kind_of,
)
from zkrq.serve.rights import CALLER, NOBODY
from zkrq.serve.security import STATIC, Asked, Policy, caller_of, is_known, is_open, judge, session_of

BODY_MAX = 4 << 20
"""Bytes of one request's body."""

BODIES_MAX = 64 << 20
"""Bytes of the bodies of all requests at one time."""

OPEN_BODY_MAX = 4 << 10
"""Bytes of the body of a request that needs no token: anyone may send those."""

BODY_SECONDS = 30.0
"""Seconds for a body to arrive."""

REQUESTS_MAX = 1_000
"""Requests of clients that are answered at one time, those that wait for items among them."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class _Refused(Exception):
    """A request is not let in."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Guard:
    """An ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app = app
        self._policy = policy
        self._requests = 0
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here.  The server sends nothing but HTTP requests."""
        assert scope["type"] == "http"

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers["Cache-Control"] = "no-cache" if scope["path"].startswith(STATIC) else "no-store"
            await send(message)

        asked, now = _asked(scope), time.time()
        connection: Connection = scope["state"][CONNECTION]
        try:
            caller = caller_of(self._policy, asked, now)
            if refusal := judge(self._policy, asked, caller):
                raise _Refused(refusal.kind, refusal.message)
            known = is_known(self._policy, asked, caller)
            if not connection.let_in(known=known):
                raise Busy
            CALLER.set(caller or NOBODY)
            async with self._body(asked, receive) as body:
                with self._counted() if known else nullcontext():
                    await self._app(scope, _replay(body, receive), send_with_headers)
        except _Refused as refused:
            await _answer(asked, refused)(scope, receive, send_with_headers)
        except ZkrqError as error:
            await _answer(asked, _Refused(kind_of(error), str(error)))(scope, receive, send_with_headers)
        except ClientDisconnect:
            pass

    @contextmanager
    def _counted(self) -> Generator[None]:
        """Count a client's request while it is answered; raises ``Busy``.

        Not before its body has arrived: heads alone would keep others out.  Those of strangers are as many as there are
        places for their connections.
        """
        if self._requests == REQUESTS_MAX:
            raise Busy
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    @asynccontextmanager
    async def _body(self, asked: Asked, receive: Receive) -> AsyncGenerator[bytes]:
        """Read the body; each byte counts among those of all requests from its arrival until the context is left.

        Raises ``_Refused``, ``Busy``, ``ClientDisconnect``.
        """
        most = OPEN_BODY_MAX if is_open(asked.path) else BODY_MAX
        if _announced(asked) > most:
            raise _Refused(TOO_LARGE, f"a body has at most {most:,} bytes")
        parts: list[bytes] = []
        size, more = 0, True
        try:
            deadline = asyncio.get_running_loop().time() + BODY_SECONDS
            while more:
                part, more = await _receive(receive, deadline)
                parts.append(part)
                size += len(part)
                self._bytes += len(part)
                if size > most:
                    raise _Refused(TOO_LARGE, f"a body has at most {most:,} bytes")
                if self._bytes > BODIES_MAX:
                    raise Busy
            if size and asked.path.startswith("/v1/") and not _is_json(asked.headers.get("content-type", "")):
                raise _Refused(NOT_JSON, "the body is not announced as JSON")
            yield b"".join(parts)
        finally:
            self._bytes -= size


async def _receive(receive: Receive, deadline: float) -> tuple[bytes, bool]:
    """Return the next part of a body, and whether more follow.  Raises ``_Refused``, ``ClientDisconnect``."""
    try:
        async with asyncio.timeout_at(deadline):
            message = await receive()
    except TimeoutError:
        raise _Refused(TIMEOUT, f"the body did not arrive within {BODY_SECONDS:g} s") from None
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


def _asked(scope: Scope) -> Asked:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return Asked(scope["method"], scope["path"], headers, session_of(headers.get("cookie", "")))


def _is_short(asked: Asked) -> bool:
    """Tell whether a request has no body, or one that may be read to its end for anybody."""
    return _announced(asked) <= OPEN_BODY_MAX and "transfer-encoding" not in asked.headers


def _announced(asked: Asked) -> float:
    """Return the bytes of the body that are announced, without end if that is no number."""
    announced = asked.headers.get("content-length", "0")
    return int(announced) if announced.isdecimal() else math.inf


def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/json"


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return what gives the body that was read, and then whatever else the client sends."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _answer(asked: Asked, refused: _Refused) -> Response:
    """Return the reply to a request that is not let in: the login page for people, JSON for programs."""
    kind = refused.kind
    if kind is UNAUTHORIZED and asked.method == "GET" and "text/html" in asked.headers.get("accept", ""):
        return RedirectResponse("/login", 303)
    headers = headers_of(kind)
    if kind is UNAUTHORIZED and "hx-request" in asked.headers:
        headers["HX-Redirect"] = "/login"
    if kind in (TIMEOUT, TOO_LARGE) or (kind is UNAUTHORIZED and not _is_short(asked)):
        headers["Connection"] = "close"  # the rest of the body is not read
    return JSONResponse(describe(kind, str(refused)), kind.status, headers)
