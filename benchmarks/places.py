"""Start the servers of zkrq and of its peers, one kind at a time."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple

from benchmarks import brokers, load
from zkrq import local
from zkrq.local import Servers

Kind = Literal["zkrq", "redis", "nats", "rabbitmq"]

_BROKERS: Mapping[Kind, type[brokers.Nats | brokers.RabbitMQ]] = {"nats": brokers.Nats, "rabbitmq": brokers.RabbitMQ}


class Place(NamedTuple):
    """Where clients find servers, and process ids of them, one of each group."""

    urls: list[str]
    pids: list[int]
    zookeeper: str = ""

    @property
    def groups(self) -> set[int]:
        """Process groups of the servers, with everything that they have started."""
        return {os.getpgid(pid) for pid in self.pids}


def of_servers(group: Servers) -> Place:
    """Return where these servers are."""
    pids = [server.pid for server in group.all if server.pid is not None]
    return Place(list(group.redis_urls.values()), pids, group.zookeeper_hosts)


@asynccontextmanager
async def opened(kind: Kind) -> AsyncGenerator[Place]:
    """Start one Redis server, or three servers of another kind: with three ZooKeeper servers for zkrq.

    They are removed at the end.  Raises ``BrokerFailed``, also if they are not installed.
    """
    if kind == "zkrq":
        async with load.servers() as group:
            if not group.zookeeper:
                raise brokers.BrokerFailed("ZooKeeper is not installed")
            yield of_servers(group)
    elif kind == "redis":
        async with local.servers(redis=1, zookeeper=0) as group:
            yield of_servers(group)
    else:
        async with brokers.running(_BROKERS[kind]) as broker:
            yield Place(broker.urls, [process.pid for process in broker.processes])
