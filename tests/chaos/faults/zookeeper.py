"""Faults of ZooKeeper servers."""

from __future__ import annotations

import asyncio

from tests.chaos.faults.base import Fault, Lane
from tests.chaos.stage import Pace


class ZooKeeperLeaderKilled(Fault):
    """The ensemble elects another one."""

    name = "zookeeper-leader-killed"
    lane = Lane.ZOOKEEPER

    async def begin(self) -> str:
        leader = await self.stage.servers.zookeeper_leader()
        await leader.kill()
        self.fired += not leader.running
        return leader.name

    async def end(self) -> None:
        await asyncio.gather(*(server.start() for server in self.stage.servers.zookeeper))


class ZooKeeperDown(ZooKeeperLeaderKilled):
    """All of ZooKeeper is away."""

    name = "zookeeper-down"

    @classmethod
    def seconds(cls, pace: Pace) -> float:
        return pace.zookeeper_down

    async def begin(self) -> str:
        servers = self.stage.servers.zookeeper
        await asyncio.gather(*(server.kill() for server in servers))
        self.fired += not any(server.running for server in servers)
        return "all"
