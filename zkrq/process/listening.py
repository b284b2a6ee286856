"""Answer GET requests over HTTP from threads, with the standard library's own server: for probes, not for users.

Threads, because a probe must be answered, and told why, while the event loop is blocked.

Strangers may connect, too.  A request has one deadline, however slowly its bytes arrive.  When all places are taken,
the client that has been waited for longest loses its place, so a request that is sent in one piece is answered.
"""

from __future__ import annotations

import io
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from zkrq.base.errors import ConfigError
from zkrq.base.forks import undone_in_forks

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

REQUEST_SECONDS = 10.0
"""Seconds that a client may take to send its whole request, and again to take the answer."""

MAX_CONNECTIONS = 20
"""Connections at the same time; a further one takes the place of the slowest client, if one is waited for."""

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

    def __init__(self, where: Address, respond: Respond) -> None:
        self._where = where
        self._respond = respond
        self._stack = ExitStack()
        self.address = where
        """Where it listens; with the port that was found if none was given."""

    def __enter__(self) -> Self:
        try:
            server = (_TCP6Server if ":" in self._where.host else _Server)(self._where, self._respond)
        except OSError as error:
            raise ConfigError(f"cannot listen on {self._where}: {error}") from error
        self.address = self._where._replace(port=server.server_address[1])
        self._stack.callback(server.server_close)
        # A child that outlives this process would keep the port, and answer nobody.
        self._stack.enter_context(undone_in_forks(server.socket.close))
        threading.Thread(target=server.serve_forever, name="zkrq probes", daemon=True).start()
        self._stack.callback(server.shutdown)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()


class Answerer:
    """Answer the requests on connections that are handed over, by ``respond``."""

    def __init__(self, respond: Respond) -> None:
        self._server = _Server(Address(DEFAULT_HOST, 0), respond, listens=False)
        self._server.server_close()

    def take(self, connection: socket.socket) -> None:
        """Answer the request that arrives on this connection, in a thread, and close it."""
        self._server.process_request(connection, "a supervisor")


class _Handler(BaseHTTPRequestHandler):
    connection: socket.socket
    server_version = "zkrq"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Incoming(self.connection, time.monotonic() + REQUEST_SECONDS))

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        answer = self.server.answer(self.connection, self.path.partition("?")[0])
        self.connection.settimeout(REQUEST_SECONDS)
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


class _Incoming(io.RawIOBase):
    """What arrives on a connection until a deadline; a timeout of the socket would begin anew with each byte."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request did not arrive in time")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Answer each connection in a thread, at most ``MAX_CONNECTIONS`` at a time."""

    daemon_threads = True
    allow_reuse_address = True
    respond: Respond

    def __init__(self, address: Any, respond: Respond, *, listens: bool = True) -> None:
        self.respond = respond
        self._lock = threading.Lock()
        self._waited_for = dict[socket.socket, None]()
        """Connections whose clients are sending, or taking the answer; the oldest first."""
        self._answering = set[socket.socket]()
        super().__init__(address, _Handler, bind_and_activate=listens)

    def answer(self, connection: socket.socket, path: str) -> Answer | None:
        """Answer a request.  Meanwhile its client is not waited for, so it keeps its place."""
        with self._lock:
            self._waited_for.pop(connection, None)
            self._answering.add(connection)
        try:
            return self.respond(path)
        finally:
            with self._lock:
                self._answering.discard(connection)
                self._waited_for[connection] = None

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._has_place(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _has_place(self, request: socket.socket) -> bool:
        """Give a connection a place: a free one, or that of the client that has been waited for longest."""
        with self._lock:
            if len(self._waited_for) + len(self._answering) >= MAX_CONNECTIONS:
                slowest = next(iter(self._waited_for), None)
                if slowest is None:
                    return False
                del self._waited_for[slowest]
                with suppress(OSError):  # the client has gone
                    slowest.shutdown(socket.SHUT_RDWR)  # its thread waits no longer, and closes it
            self._waited_for[request] = None
            return True

    def finish_request(self, request: Any, client_address: Any) -> None:
        try:
            super().finish_request(request, client_address)
        finally:
            with self._lock:
                self._waited_for.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a probe was not answered", exc_info=True)


class _TCP6Server(_Server):
    address_family = socket.AF_INET6
