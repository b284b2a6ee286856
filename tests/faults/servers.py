"""Real servers in the states in which faults are looked for: full, forgetful, with disks, killed together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.harness import HANG, command
from zkrq import local


@asynccontextmanager
async def no_room(server: local.LocalRedis, *, break_all: bool = False) -> AsyncGenerator[None]:
    """Let a server reach its ``maxclients``; with ``break_all``, all connections that there were have ended as well."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        async with asyncio.timeout(HANG):
            writer.write(b"CONFIG SET maxclients 1\r\n" + b"CLIENT KILL SKIPME yes\r\n" * break_all)
            await reader.readline()
        yield
    finally:
        async with asyncio.timeout(HANG):
            writer.write(b"CONFIG SET maxclients 10000\r\nQUIT\r\n")
            await reader.read(-1)
        writer.close()


@asynccontextmanager
async def dropping(*servers: local.LocalRedis) -> AsyncGenerator[None, None]:
    """Have servers drop keys when their memory is full, as somebody sets it at run time."""
    try:
        for server in servers:
            await command(server, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        yield
    finally:
        for server in servers:
            await command(server, "CONFIG", "SET", "maxmemory-policy", "noeviction")


@asynccontextmanager
async def full(*servers: local.LocalRedis) -> AsyncGenerator[None, None]:
    """Let servers have no memory left: they refuse what needs more."""
    try:
        for server in servers:
            await command(server, "CONFIG", "SET", "maxmemory", "1")
        yield
    finally:
        for server in servers:
            await command(server, "CONFIG", "SET", "maxmemory", "0")


@asynccontextmanager
async def servers_with_disks() -> AsyncGenerator[local.Servers, None]:
    """Start servers that keep what they have when they are killed."""
    # Without fsync: for its sake everysec postpones writing when the disk is busy, and a killed process loses that.
    config = {"appendonly": "yes", "appendfsync": "no"}
    async with local.servers(redis=3, zookeeper=0, redis_config=config) as servers:
        yield servers


async def kill_all(servers: local.Servers) -> None:
    await asyncio.gather(*(server.kill() for server in servers.redis))
