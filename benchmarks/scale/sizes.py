"""Pack what ZooKeeper would hold and send, with the project's own packing where there is one."""

from __future__ import annotations

import json

from zkrq.protocol.view import Life, ServerId, View, encode

OWNER = "1000a5b2c3d000f-0123abcd"
"""An owner id as ZooKeeper's sessions give it: the session's number and eight digits of chance."""

FRAME_BYTES = 4 + 16
"""Length and header (request, transaction, error) in front of each of ZooKeeper's answers."""

STAT_BYTES = 6 * 8 + 5 * 4
"""A znode's stat, at the end of most answers."""

LENGTH_BYTES = 4
"""In front of each text, and of a list."""


def shard_name(number: int) -> str:
    """Return a short name for a shard, as an operator might choose it."""
    return f"shard-{number:04d}"


def shard_map(shards: int) -> bytes:
    """Pack the planned shard map: a state for each name."""
    return json.dumps(
        {"version": 1, "shards": {shard_name(n): "open" for n in range(shards)}}, separators=(",", ":")
    ).encode()


def view(shard: str, servers: int = 3) -> bytes:
    """Pack the view of a shard whose servers are all members, with names and URLs of usual length."""
    ids = [ServerId(f"{shard}-{letter}") for letter in "abcdefg"[:servers]]
    return encode(
        View(
            epoch=100,
            members={id: Life("0123456789abcdef0123456789abcdef01234567", "0123456789abcdef") for id in ids},
            learners={},
            eligible={},
            servers={id: f"rediss://{id}.redis.example.internal:6379" for id in ids},
            min_replicas=2,
            by="0123456789abcdef",
            deployment="0123456789abcdef",
        )
    )


def children_reply(children: int, name: str = OWNER) -> int:
    """Return the bytes of ZooKeeper's answer that lists a znode's children."""
    return FRAME_BYTES + LENGTH_BYTES + children * (LENGTH_BYTES + len(name)) + STAT_BYTES


def data_reply(data: int) -> int:
    """Return the bytes of ZooKeeper's answer that has a znode's data."""
    return FRAME_BYTES + LENGTH_BYTES + data + STAT_BYTES


def most(limit: int, *, unit: int, fixed: int = 0) -> int:
    """Return how many parts of ``unit`` bytes fit into ``limit`` bytes."""
    return (limit - fixed) // unit
