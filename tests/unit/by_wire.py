"""A connection of the HTTP server without a socket: what arrives is given by hand, and what is sent is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn

from zkrq.serve.connections import Connection, Places


class Transport(asyncio.Transport):
    """A connection to a stranger, of which only the reply is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.is_closed = False
        self.unsent = 0
        """Bytes that the client does not take."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: Any) -> None:
        self.sent += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


async def let_in(scope: Any, receive: Any, send: Any) -> None:
    """Stand for everything that is behind the guard."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def make_connection(app: Any, places: Places) -> tuple[Connection, Transport]:
    """A connection to an application, before it is made."""
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", access_log=False)
    config.load()
    state = uvicorn.Server(config).server_state
    return Connection(config=config, server_state=state, app_state={}, places=places), Transport()
