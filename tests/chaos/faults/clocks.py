"""A fault of a Redis server's clock."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import cast

from tests.chaos.faults.redis import RedisFault
from tests.chaos.stage import Stage, command
from tests.shift import ServerClock, Shift
from zkrq import local

CLOCK_STEPS = (-3600, -200, -20, 20, 200, 3600)
"""Seconds by which a server's clock is set."""

CLOCK_LATE_MAX = 30
"""Seconds that items may be late, and by which the clock of a server that decides when items are due is set at most.
More would leave items behind that are due long after the run: what is delayed or retried while the clock is ahead."""


class ClockSet(RedisFault):
    """A server's clock is set, and right again later: by so little that the server stays in the view, by so much that
    it leaves, and by so much that it refuses pushes."""

    name = "redis-clock-set"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._clocks: dict[str, ServerClock] = {}
        self._by = 0

    async def prepare(self) -> None:
        servers = self.stage.servers.redis
        made = Shift(Path(tempfile.mkdtemp(dir=servers[0].directory.parent)))  # removed with the servers
        for server in servers:
            self._clocks[server.name] = made.clock_of(server)
            await server.restart()
            await self.stage.become_whole(self.stage.pace.whole)

    async def begin(self) -> str:
        self._by = self.stage.chance.choice(CLOCK_STEPS)
        return f"{await super().begin()} {self._by:+} s"

    def pick(self) -> local.LocalRedis:
        sight, servers = self.stage.look(), self.stage.servers.redis
        followers = [each for each in servers if each.name not in (sight.primary, sight.primary_of_small)]
        return super().pick() if abs(self._by) <= CLOCK_LATE_MAX else self.stage.chance.choice(followers)

    async def hit(self, server: local.LocalRedis) -> None:
        self._clocks[server.name].set(self._by)
        reply = await command(server, "TIME")
        assert isinstance(reply, list)
        self.fired += abs(int(cast("list[bytes]", reply)[0]) - self._by - time.time()) < min(map(abs, CLOCK_STEPS)) / 2

    async def end(self) -> None:
        for clock in self._clocks.values():
            clock.set(0)

    async def look_back(self) -> None:
        for clock in self._clocks.values():
            clock.give_back()
