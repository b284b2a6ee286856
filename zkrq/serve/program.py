"""Run the server as a program: listen, serve until a signal, drain, stop.

The first SIGTERM or SIGINT drains: nothing more is claimed, requests that wait for items end, and clients have the
grace to settle what they hold; everything else is still answered.  Then the connections are closed, and what is held
goes back uncounted.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from starlette.types import ASGIApp

from zkrq.base.errors import ConfigError
from zkrq.base.tasks import Tasks, see_through
from zkrq.serve.app import make_app
from zkrq.serve.audit import Audit
from zkrq.serve.connections import Connection, Places, TlsServer, connections_max
from zkrq.serve.holding import Holding
from zkrq.serve.jobs import Jobs
from zkrq.serve.page import Owned
from zkrq.serve.queues import Queues
from zkrq.serve.security import Policy, policy_for
from zkrq.serve.server_page import Changes
from zkrq.serve.watching import Watching

if TYPE_CHECKING:
    from zkrq.base.retry import Retry
    from zkrq.client.cluster import Cluster

IDLE_SECONDS = 75
"""Seconds for which an idle connection is kept."""

CLOSE_SECONDS = 5
"""Seconds that requests in flight have to end when the server stops."""

ACCEPTED_AT_ONCE = 16
"""Connections that are accepted in one turn of the event loop; ``connections.TURN_BYTES`` lets as many short requests
be read, so a connection is not given up for a newer one before its request is read."""

PENDING_MAX = 2_000
"""Connections that wait to be accepted, if the system allows it; a client whose connection finds no room there tries
again after a second."""

SEND_BYTES = 256 << 10
"""Bytes of replies that the system keeps of each connection while they are not taken.  Left to itself it keeps up to
four megabytes, and connections that never read would use up what it has for all programs together."""

_log = logging.getLogger("zkrq.serve")


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a server.

    ``port`` 0: any free one.  ``hosts``, ``tokens``, ``readers``, ``administrators``, ``read_only``: see ``Policy``.

    ``retry``: the policy for items that clients nack, or whose lease passes.  ``grace``: seconds that
    clients have to settle what they hold when the server stops.  ``certificate`` and ``key``: PEM files for HTTPS,
    None: plain HTTP.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    hosts: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    read_only: bool = False
    retry: Retry | None = None
    grace: float = 30.0
    certificate: Path | None = None
    key: Path | None = None
    readers: tuple[str, ...] = ()
    administrators: tuple[str, ...] = ()

    def policy(self) -> Policy:
        """Return whom the server lets in.  Raises ``ConfigError``."""
        return policy_for(
            self.host,
            self.tokens,
            self.hosts,
            read_only=self.read_only,
            readers=self.readers,
            administrators=self.administrators,
        )


class Server:
    """A server that listens.  Made by ``start``."""

    def __init__(
        self, app: ASGIApp, listener: socket.socket, holding: Holding, stopping: asyncio.Event, options: Options
    ) -> None:
        self.grace = options.grace
        self.host, self.port = listener.getsockname()[:2]
        self._listener = listener
        self._holding = holding
        self._stopping = stopping
        self._cut_off = 0
        self._uvicorn = _Uvicorn(_configuration(app, options))

    async def run(self, grace: float) -> None:
        """Serve until cancelled; then drain within ``grace`` seconds, which a second cancellation ends."""
        _log.info("listening on %s, port %d", self.host, self.port)
        serving = asyncio.create_task(self._uvicorn.serve([self._listener]), name="zkrq serve")
        try:
            await asyncio.wait([serving])
        finally:
            self._stopping.set()
            try:
                async with asyncio.timeout(0 if serving.done() else grace):
                    await self._holding.wait_idle()
            except TimeoutError:
                _log.warning("%d claims are handed back: their clients did not settle them", len(self._holding))
            finally:
                self._cut_off = len(self._holding)
                self._uvicorn.should_exit = True
                await see_through(serving, cancelled=self._hurry)

    def _hurry(self) -> None:
        self._uvicorn.force_exit = True

    @property
    def held(self) -> int:
        """Claims that clients hold."""
        return len(self._holding)

    def was_cut_off(self) -> bool:
        """Tell whether clients still held claims when the grace was over."""
        return self._cut_off > 0


@asynccontextmanager
async def start(cluster: AbstractAsyncContextManager[Cluster], options: Options) -> AsyncGenerator[Server]:
    """Open the cluster and listen; ``Server.run`` serves.  Raises ``ConfigError``, and what opening raises."""
    policy = options.policy()
    connections_max()
    with _listen(options) as listener:
        stopping = asyncio.Event()
        async with cluster as opened, Holding() as holding:
            queues = Queues(opened, options.retry)
            async with (
                Watching(opened, queues, stopping) as watching,
                Audit(opened) as audit,
                Jobs(audit.note) as jobs,
                Changes(opened, audit.note) as changes,
            ):
                owned = Owned(holding, watching, audit, jobs, changes)
                app = make_app(opened, queues, owned, policy, stopping=stopping)
                schedules = opened.schedules().run(queue=queues.__getitem__)
                async with nullcontext() if options.read_only else schedules:
                    yield Server(app, listener, holding, stopping, options)


@contextmanager
def _listen(options: Options) -> Generator[socket.socket]:
    try:
        family = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((options.host, options.port), family=family)
    except OSError as error:
        raise ConfigError(f"cannot listen on {options.host}, port {options.port}: {error}") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)  # of each connection that it accepts
        yield listener


def _configuration(app: ASGIApp, options: Options) -> uvicorn.Config:
    configuration = uvicorn.Config(
        app,
        http=Connection,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
    )
    try:
        configuration.load()
    except (OSError, ValueError) as error:
        raise ConfigError(f"the certificate or its key cannot be used: {error}") from error
    return configuration


class _Uvicorn(uvicorn.Server):
    """Uvicorn with bounded connections, and without signal handlers: the program has its own."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to exit."""
        async with Tasks("zkrq serve") as self._tasks:
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on one socket that is open."""
        (listener,) = sockets or []
        places = Places(connections_max())
        make = partial(Connection, config=self.config, server_state=self.server_state, app_state={}, places=places)
        if self.config.ssl:
            self.servers = [TlsServer(make, listener, self.config.ssl, places, self._tasks)]  # type: ignore[list-item]
        else:
            accepting = asyncio.get_running_loop().create_server(make, sock=listener, backlog=ACCEPTED_AT_ONCE)
            self.servers = [await accepting]
        listener.listen(PENDING_MAX)  # which `create_server` sets to what it accepts in one turn
        self.started = True

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        raise NotImplementedError
