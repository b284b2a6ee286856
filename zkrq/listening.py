"""Answer GET requests over HTTP from threads, with the standard library's own server: for probes, not for users.

Threads, because a probe must be answered, and told why, while the event loop is blocked.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from zkrq.errors import ConfigError

REQUEST_SECONDS = 10.0
"""Seconds that a client may take to send its request."""

MAX_CONNECTIONS = 20
"""Connections that are answered at the same time; further ones are closed."""

DEFAULT_HOST = "127.0.0.1"

_log = logging.getLogger("zkrq.probes")


class Answer(NamedTuple):
    """The answer to one request."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Respond = Callable[[str], Answer | None]
"""A function that answers a path, called in threads; None: there is no such path."""


class Address(NamedTuple):
    """Where to listen on TCP; port 0: any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(text: str) -> Address:
    """Read ``port``, ``host:port`` or ``[host]:port``; without a host it is loopback.  Raises ``ConfigError``."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{text!r} is no address to listen on: PORT, HOST:PORT or [HOST]:PORT is expected")
    return Address(host.removeprefix("[").removesuffix("]") or DEFAULT_HOST, int(port))


class Listener:
    """Listen on an address while it is entered, and answer each request by ``respond``.

    Raises ``ConfigError`` if it cannot listen there.
    """

    def __init__(self, where: Address | Path, respond: Respond) -> None:
        self._where = where
        self._respond = respond
        self._server: _Server | None = None
        self.address: Address | Path = where
        """Where it listens; with the port that was found if none was given."""

    def __enter__(self) -> Self:
        try:
            if isinstance(self._where, Path):
                self._where.unlink(missing_ok=True)  # left by a process that crashed
                server = _UnixServer(str(self._where), self._respond)
            else:
                server = (_TCP6Server if ":" in self._where.host else _Server)(self._where, self._respond)
                self.address = self._where._replace(port=server.server_address[1])
        except OSError as error:
            raise ConfigError(f"cannot listen on {self._where}: {error}") from error
        self._server = server
        threading.Thread(target=server.serve_forever, name="zkrq probes", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server_version = "zkrq"
    sys_version = ""

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        answer = self.server.respond(self.path.partition("?")[0])
        if answer is None:
            answer = Answer(HTTPStatus.NOT_FOUND, b"/livez, /readyz or /metrics\n")
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)

    def address_string(self) -> str:
        return str(self.client_address)


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Answer each connection in a thread, at most ``MAX_CONNECTIONS`` at a time."""

    daemon_threads = True
    allow_reuse_address = True
    respond: Respond

    def __init__(self, address: Any, respond: Respond) -> None:
        self.respond = respond
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a probe was not answered", exc_info=True)


class _TCP6Server(_Server):
    address_family = socket.AF_INET6


class _UnixServer(_Server):
    address_family = getattr(socket, "AF_UNIX", socket.AF_INET)  # there is none on Windows
    allow_reuse_address = False
