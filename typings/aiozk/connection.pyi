import asyncio
import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from aiozk.protocol import WatchEvent
from aiozk.protocol.request import Request

_Answer = TypeVar("_Answer")

size_struct: struct.Struct

class Connection:
    host: str
    port: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter | None
    watch_handler: Callable[[WatchEvent], None]
    pending: dict[int, asyncio.Future[Any]]
    pending_specials: dict[int | None, list[asyncio.Future[Any]]]

    def __init__(
        self, host: str, port: int, watch_handler: Callable[[WatchEvent], None], read_timeout: float | None
    ) -> None: ...
    async def read_response(self, initial_connect: bool = False) -> tuple[int, int, Any]: ...
    async def _read(self, size: int = -1) -> bytes: ...
    def send(self, request: Request[_Answer], xid: int | None = None) -> asyncio.Future[tuple[int, _Answer]]: ...
    def drain_all_pending(self) -> Iterator[asyncio.Future[Any]]: ...
