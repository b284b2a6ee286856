"""How long faults of ZooKeeper may take to be overcome, and what is sent meanwhile."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack

from tests.coordination.conftest import SESSION_TIMEOUT
from zkrq.base.errors import Unavailable
from zkrq.coordination.coordinator import VIEW
from zkrq.coordination.zookeeper import ZooKeeperCoordinator

LONG = 20.0  # seconds: a session timeout that aiozk would need to notice, and we must not
BACK_WITHIN = 25.0  # seconds on a busy machine; the pauses of aiozk itself grow to a minute
HEADER = struct.Struct("!iiqi")  # length, xid, zxid, error


def frames(data: bytes) -> Iterator[bytes]:
    """The messages in a chunk; ZooKeeper's are small enough never to be split here."""
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        yield data[:end]
        data = data[end:]


async def within(seconds: float, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def works(coordinator: ZooKeeperCoordinator) -> None:
    view = await coordinator.read(VIEW)
    assert await coordinator.swap(VIEW, b"%d works" % view.version, view.version)


async def is_in(stack: AsyncExitStack, hosts: str) -> bool:
    """Try to take the only place, which an earlier look at the server may still hold."""
    try:
        await stack.enter_async_context(ZooKeeperCoordinator(hosts, session_timeout=SESSION_TIMEOUT))
    except Unavailable:
        return False
    return True
