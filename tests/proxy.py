"""A TCP proxy for one server that misbehaves on demand: for fault tests of any protocol.

    async with Proxy("127.0.0.1", 6379) as proxy:
        proxy.address                    # connect the client here
        proxy.cut(); proxy.cut(reset=True)   # end all connections: FIN or RST; new ones are welcome
        proxy.refuse(); await proxy.accept() # the port is closed; open it again, the same one
        proxy.stall()                    # a black hole: drop every byte, on new connections too
        proxy.hold()                     # as a paused server: keep every byte ...
        proxy.flow()                     # ... until now; dropped ones are lost
        proxy.lose_reply_to(b"SET x")    # this request arrives, and the connection breaks instead of the reply
        proxy.on_reply = f               # f(connection, data) -> data to pass on instead
        proxy.bandwidth = 4e6            # bytes a second in each direction, all connections together; None: no bound

All of it, but for listening, can be done to one connection only: ``proxy.connections[0].cut()``.  A connection may
also be forgotten, as by a NAT: ``proxy.connections[0].forget()``.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Self

CHUNK = 64 * 1024  # bytes


class Flow(enum.Enum):
    PASS = "pass"
    HOLD = "hold"
    SWALLOW = "swallow"


class Connection:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, flow: Flow) -> None:
        self.lost = False  # whether replies are dropped, and the next one ends it
        self._flow = flow
        self._forgotten = False
        self._moving = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self.set_flow(flow)

    @property
    def is_open(self) -> bool:
        return not any(writer.is_closing() for writer in self._writers)

    def forget(self) -> None:
        """Drop every byte from now on, for good: neither end learns of it."""
        self.set_flow(Flow.SWALLOW)
        self._forgotten = True

    def set_flow(self, flow: Flow) -> None:
        if self._forgotten:
            return
        self._flow = flow
        if flow is Flow.HOLD:
            self._moving.clear()
        else:
            self._moving.set()

    def cut(self, *, reset: bool = False) -> None:
        for writer in self._writers:
            if reset:
                with suppress(OSError):
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
            else:
                writer.close()

    def add(self, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)

    async def may_pass(self) -> bool:
        await self._moving.wait()
        return self._flow is Flow.PASS


Tamper = Callable[[Connection, bytes], bytes]


class Nat:
    """What is between one client and its Redis servers, and forgets its idle connections: ``proxy.on_request =
    nat.see`` for each."""

    def __init__(self) -> None:
        self.subscriptions = set[Connection]()
        """Those that were not forgotten."""
        self.asked = 0
        """Requests that ask whether the server still knows the connection."""

    def see(self, connection: Connection, data: bytes) -> bytes:
        if b"SUBSCRIBE" in data:
            self.subscriptions.add(connection)
        self.asked += b"PING" in data
        return data

    def forget(self) -> list[Connection]:
        """Drop whatever goes over the subscriptions that there are, without a word; return these."""
        gone = [connection for connection in self.subscriptions if connection.is_open]
        self.subscriptions.clear()
        for connection in gone:
            connection.forget()
        return gone


class Proxy:
    """Listens on ``bind`` while entered.  ``on_request`` and ``on_reply`` see, and may change, every chunk."""

    def __init__(self, host: str, port: int, *, bind: str = "127.0.0.1") -> None:
        self.host = bind
        self.port = 0
        self.connections: list[Connection] = []
        self.on_request: Tamper = lambda connection, data: data
        self.on_reply: Tamper = lambda connection, data: data
        self.bandwidth: float | None = None
        self._free_at: dict[Tamper, float] = {}
        self._upstream = (host, port)
        self._flow = Flow.PASS
        self._needle: bytes | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper = socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET)

    def __repr__(self) -> str:
        return f"<Proxy {self.address} {self._flow.value} connections={len(self.connections)}>"

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        # bound and never listening: keeps the port ours while we refuse
        self._keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._keeper.bind((self.host, 0))
        self.port = self._keeper.getsockname()[1]
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        self.cut(reset=True)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._keeper.close()

    async def accept(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, self.host, self.port, reuse_address=True)

    def refuse(self) -> None:
        """Stop listening; connections that there are go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def cut(self, *, reset: bool = False) -> None:
        for connection in tuple(self.connections):
            connection.cut(reset=reset)

    def stall(self) -> None:
        self._set_flow(Flow.SWALLOW)

    def hold(self) -> None:
        self._set_flow(Flow.HOLD)

    def flow(self) -> None:
        self._set_flow(Flow.PASS)

    def lose_reply_to(self, needle: bytes) -> None:
        """Pass on the next request that contains ``needle``; cut its connection as soon as the server replies."""
        self._needle = needle

    def _set_flow(self, flow: Flow) -> None:
        self._flow = flow
        for connection in self.connections:
            connection.set_flow(flow)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = Connection(self._flow)
        connection.add(writer)
        self.connections.append(connection)
        replies: asyncio.Task[None] | None = None
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._upstream)
            connection.add(server_writer)
            replies = asyncio.create_task(self._pump(connection, server_reader, writer, self._reply))
            self._tasks.add(replies)
            await self._pump(connection, reader, server_writer, self._request)
            await replies
        except (OSError, asyncio.CancelledError):
            pass  # the server refuses, or the proxy is closed
        finally:
            connection.cut()
            self.connections.remove(connection)
            self._tasks -= {task, replies}
            if replies is not None:
                replies.cancel()

    async def _pump(
        self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tamper: Tamper
    ) -> None:
        try:
            while data := await reader.read(CHUNK):
                if not await connection.may_pass():
                    continue
                data = tamper(connection, data)
                await self._take_turn(tamper, len(data))
                if data:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        connection.cut()

    async def _take_turn(self, direction: Tamper, size: int) -> None:
        """Wait until a line of bounded bandwidth has carried so many bytes, after those before them."""
        if self.bandwidth is not None:
            now = asyncio.get_running_loop().time()
            free_at = self._free_at[direction] = max(now, self._free_at.get(direction, now)) + size / self.bandwidth
            await asyncio.sleep(free_at - now)

    def _request(self, connection: Connection, data: bytes) -> bytes:
        if self._needle is not None and self._needle in data:
            self._needle = None
            connection.lost = True
        return self.on_request(connection, data)

    def _reply(self, connection: Connection, data: bytes) -> bytes:
        if connection.lost:
            connection.cut(reset=True)
            return b""
        return self.on_reply(connection, data)
