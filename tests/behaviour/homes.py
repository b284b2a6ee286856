"""A namespace of two shards of two servers each, and the queues that are at home on one of them."""

from __future__ import annotations

from typing import Any

import zkrq
from zkrq.protocol.shards import FIRST, ShardName
from zkrq.protocol.shards import home as hashed_home
from zkrq.testing import Servers, TestCluster

SERVERS = 4

B = ShardName("b")
SECOND = ("redis-3", "redis-4")
ONE = zkrq.Limits(concurrency=1)


def name_at(home: ShardName, kind: str = "queue") -> str:
    """A queue whose home is this shard, of two."""
    return next(name for name in (f"{kind}-{n}" for n in range(99)) if hashed_home(name, [B, FIRST]) == home)


def connect(own: Servers) -> TestCluster:
    return own.connect(first=2)


async def there(cluster: zkrq.Cluster, name: str, shard: str) -> int:
    return sum((await cluster.shard_sizes(shard)).get(name, ()))


async def all_now(queue: zkrq.Queue[Any]) -> list[zkrq.Claim[Any]]:
    """What can be claimed, of all shards; held."""
    claims = list[zkrq.Claim[Any]]()
    while more := await queue.pop_many(100, timeout=0):  # which every shard has to answer
        claims += more
    return claims
