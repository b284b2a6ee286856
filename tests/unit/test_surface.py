"""Public objects show users only public names; internal names belong to types of their own."""

from __future__ import annotations

import zkrq
from tests.every import every

SURFACE: dict[type, set[str]] = {
    zkrq.Claim: {
        "ack",
        "attempts",
        "bury",
        "deadline",
        "extend",
        "failures",
        "headers",
        "holds",
        "id",
        "item",
        "key",
        "lost",
        "nack",
        "on_lost",
        "owner",
        "priority",
        "pushed_at",
        "queue",
        "release",
        "settled",
        "token",
    },
    zkrq.Lost: {"reason"},
    zkrq.Queue: {
        "ack_many",
        "cancel",
        "clear",
        "dead_letters",
        "delete",
        "discard",
        "get",
        "held",
        "pause",
        "peek",
        "pop",
        "pop_batches",
        "pop_many",
        "pop_one",
        "push",
        "push_many",
        "redrive",
        "resume",
        "scan",
        "size",
        "statistics",
        "work",
    },
    zkrq.Cluster: {
        "aclose",
        "add_server",
        "add_shard",
        "drain_shard",
        "consumers",
        "every",
        "health",
        "observe",
        "open",
        "ping",
        "pop",
        "queue",
        "queues",
        "queues_in_use",
        "recover",
        "remove_server",
        "remove_shard",
        "shard_sizes",
        "shards",
        "statistics",
        "view",
    },
    zkrq.Batch: {"ack", "count", "index", "items", "lost", "nack", "queue", "release"},
    zkrq.Batches: {"aclose"},
    zkrq.Deliveries: {"aclose"},
    zkrq.Recurring: {"cancel"},
}


@every("kind", SURFACE)
def test_public_names_are_those_of_users(kind: type) -> None:
    assert {name for name in dir(kind) if not name.startswith("_")} == SURFACE[kind]
