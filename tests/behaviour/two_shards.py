"""A queue over two shards: clients that know one of them or both, and what happens to servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import zkrq
from zkrq.client.resharding import Resharding
from zkrq.client.shard import Shard
from zkrq.protocol.shards import ShardState
from zkrq.testing import Servers, TestCluster

SECOND = ("redis-4", "redis-5", "redis-6")


@asynccontextmanager
async def connect(own: Servers, **options: Any) -> AsyncGenerator[TestCluster]:
    """A client that was given only the servers of the first shard."""
    async with own.connect(first=3, **options) as cluster:
        yield cluster


@asynccontextmanager
async def both(own: Servers) -> AsyncGenerator[TestCluster]:
    """A client of two shards, of three servers each."""
    async with connect(own) as cluster:
        await cluster.add_shard("b", own.urls(*SECOND))
        yield cluster


async def all_of(queue: zkrq.Queue[Any], count: int) -> list[zkrq.Claim[Any]]:
    claims = [claim async for claim in queue.pop(limit=count)]
    for claim in claims:
        await claim.ack()
    return claims


def kill(own: Servers, *names: str) -> None:
    for name in names:
        own.kill(name)


def generation(own: Servers, name: str) -> object:
    """What a server itself says whose life it is in."""
    found = own._servers[name].redis.execute(b"HGET", b"{zkrq}:server", b"generation")  # pyright: ignore[reportPrivateUsage]
    assert isinstance(found, bytes)
    return found.decode()


def is_closed(resharding: Resharding, shard: Shard) -> bool:
    shards = resharding._shards  # pyright: ignore[reportPrivateUsage]
    return shards.map.shards[shard.name].state is ShardState.CLOSED
