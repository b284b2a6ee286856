"""Probe the servers of the view, so that an idle client notices that one has died, or that its view is old.

A client that pushes or claims notices both by its calls.  An idle client asks every server of the view periodically,
and more often while one of them is not connected, or while none can be used.  No call shows that a server's
``maxmemory-policy`` was changed, or its clock set, so each client reads them now and then, the leader more often, and
every client while a clock keeps pushes from completing.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Collection
from typing import TYPE_CHECKING

from zkrq.base.errors import ZkrqError
from zkrq.base.tasks import Rounds
from zkrq.protocol import calls

if TYPE_CHECKING:
    from zkrq.coordination.coordinator import Coordinator
    from zkrq.protocol.eviction import Evicting
    from zkrq.protocol.view import ServerId
    from zkrq.replication.obstacles import KnownObstacles
    from zkrq.replication.replicas import Replicas

PROBE_SECONDS = 10.0
"""Seconds between two probes while all servers of the view are connected."""

UNCONNECTED_SECONDS = 1.0
"""Seconds between two probes while a server of the view is not connected, or none can be used."""

FOLLOWER_SECONDS = (0.3, 0.8)
"""Least and greatest delay, in seconds, of the probes of clients that do not lead, since one eviction is enough."""


INSPECT_SECONDS = 10.0
"""Seconds until the leader reads the servers' options and clocks again.  A server that may drop items since then, or
whose clock was set wrong, is evicted."""

FOLLOWER_INSPECT_SECONDS = 60.0
"""The same for clients that do not lead, in case the leader does not reach a server."""


class Probe:
    """Ask every server of the view whether it answers, by the call that adopts the view's epoch."""

    def __init__(
        self,
        coordinator: Coordinator,
        replicas: Replicas,
        evicting: Evicting,
        obstacles: KnownObstacles,
        *,
        cluster: str,
    ) -> None:
        self._coordinator = coordinator
        self._evicting = evicting
        self._obstacles = obstacles
        self._membership = replicas.membership
        self._replicas = replicas
        self._due = 0.0
        self._inspected_at = -math.inf
        self._dropping: Collection[ServerId] = ()
        self._called = False
        self._rounds = Rounds(self._probe_if_due, seconds=UNCONNECTED_SECONDS)
        self._log = logging.LoggerAdapter(logging.getLogger("zkrq.repair.probe"), {"cluster": cluster})
        self.run = self._rounds.run
        """Probe until cancelled."""

    def look(self) -> None:
        """Probe soon."""
        self._called = True
        self._rounds.call()

    def view_changed(self) -> None:
        """Probe soon if a server of the view is not connected."""
        self._rounds.call()

    async def _probe_if_due(self) -> None:
        loop = asyncio.get_running_loop()
        in_vain = self._evicting.witness.unusable or self._obstacles.clocks.stops_pushes
        early = self._called or bool(in_vain) or not self._all_connected()
        if not early and loop.time() < self._due:
            return
        self._called = False
        if early and not self._coordinator.leading:
            await asyncio.sleep(random.uniform(*FOLLOWER_SECONDS))  # noqa: S311
        try:
            await self._replicas.tell_all(calls.Seal())
            await self._inspect_if_due()
        except ZkrqError as error:
            self._log.info("the servers could not be probed, retrying later: %s", error)
        self._due = loop.time() + PROBE_SECONDS

    async def _inspect_if_due(self) -> None:
        now = asyncio.get_running_loop().time()
        pause = INSPECT_SECONDS if self._coordinator.leading else FOLLOWER_INSPECT_SECONDS
        if now - self._inspected_at >= pause or self._obstacles.clocks.stops_pushes:
            self._inspected_at = now
            staying = await self._replicas.repair(self._evicting.inspect())
            for id in sorted(staying.keys() - set(self._dropping)):
                text = "server %s may drop items, and stays because pushes need it: %s"
                self._log.warning(text, id, staying[id], extra={"server": id})
            self._dropping = staying.keys()

    def _all_connected(self) -> bool:
        servers = (self._membership.fleet.servers.get(id) for id in self._membership.view.receivers)
        return all(server is not None and server.identity is not None for server in servers)
