"""Look for flows that are due, while this client leads: those that their own clients did not bring to an end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from zkrq.base.errors import Closed, ZkrqError
from zkrq.base.flows import FlowName
from zkrq.base.tasks import Rounds
from zkrq.protocol import calls

if TYPE_CHECKING:
    from zkrq.client.flow_ends import Ends
    from zkrq.client.flow_register import FlowRegister
    from zkrq.client.shards import Shards
    from zkrq.coordination.coordinator import Coordinator

LOOK_SECONDS = 10.0
"""Seconds between two looks of the leader for flows that are due."""

STUCK_ROUNDS = 12
"""Looks of which one is at flows that wait for a redrive, which is noticed without: it brings members to life."""

_log = logging.getLogger("zkrq.flows")


class FlowLooks:
    """Look for flows that are due."""

    def __init__(self, shards: Shards, coordinator: Coordinator, register: FlowRegister, ends: Ends) -> None:
        self._shards = shards
        self._coordinator = coordinator
        self._register = register
        self._ends = ends
        self._round = 0
        self._rounds = Rounds(self.look, seconds=LOOK_SECONDS)
        self.run = self._rounds.run
        """Look until cancelled."""

    async def look(self) -> None:
        """Look at all queues that have flows, if this client leads."""
        if not self._coordinator.leading:
            return
        self._round += 1
        try:
            queues = await self._register.read()
            empty = [queue for queue in queues if await self._look_at(queue)]
            if empty:
                await self._register.remove(empty, queues)
        except Closed:
            raise
        except ZkrqError as error:
            _log.info("flows are not looked at for now: %s", error)

    async def _look_at(self, queue: str) -> bool:
        """End what is due in a queue; return whether it has no flows."""
        is_empty, due = True, dict[FlowName, None]()
        try:
            home = await self._shards.home(queue)
            async for page, _ in home.replicas.pages(calls.FlowPage(queue)):
                for row in page.rows:
                    is_empty = False
                    if row.is_due:
                        due[FlowName.of(row.name)] = None
            for flow in due:
                if self._round % STUCK_ROUNDS == 0 or not self._ends.is_stuck(flow):
                    await self._ends.look(flow, queue=queue)
        except Closed:
            raise
        except ZkrqError as error:
            _log.info("flows of queue %s are not looked at for now: %s", queue, error, extra={"queue": queue})
            return False
        return is_empty
