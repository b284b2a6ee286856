"""Look for flows that are due, while this client leads: those that their own clients did not bring to an end."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from zkrq.base.errors import Closed, ZkrqError
from zkrq.base.flows import FlowName
from zkrq.base.tasks import Rounds, together
from zkrq.client.flow_register import is_old
from zkrq.protocol import calls
from zkrq.protocol.flows import Kind

if TYPE_CHECKING:
    from zkrq.client.flow_ends import Ends
    from zkrq.client.flow_register import FlowRegister
    from zkrq.client.shards import Shards
    from zkrq.coordination.coordinator import Coordinator

LOOK_SECONDS = 10.0
"""Seconds between two looks of the leader for flows that are due."""

QUEUES_AT_ONCE = 16
"""Queues that are looked at together, each with a page of its flows: one that does not answer delays few others."""

STUCK_ROUNDS = 12
"""Looks of which one is also at flows that wait for a redrive and have in a queue what they had there at the look
before."""

_log = logging.getLogger("zkrq.flows")


class FlowLooks:
    """Look for flows that are due."""

    def __init__(self, shards: Shards, coordinator: Coordinator, register: FlowRegister, ends: Ends) -> None:
        self._shards = shards
        self._coordinator = coordinator
        self._register = register
        self._ends = ends
        self._round = 0
        self._seen = dict[tuple[FlowName, str], bytes]()
        """What flows had in their queues that wait for a redrive, as letters."""
        self._rounds = Rounds(self.look, seconds=LOOK_SECONDS)
        self.run = self._rounds.run
        """Look until cancelled."""

    async def look(self) -> None:
        """Look at all queues that have flows, if this client leads."""
        if not self._coordinator.leading:
            return
        self._round += 1
        if self._round % STUCK_ROUNDS == 0:
            self._seen.clear()
        places = asyncio.Semaphore(QUEUES_AT_ONCE)
        try:
            queues = await self._register.read()
            are_gone = await together([self._look_at(queue, at_ms, places) for queue, at_ms in queues.items()])
            if gone := [queue for queue, is_gone in zip(queues, are_gone, strict=True) if is_gone]:
                await self._register.remove(gone, queues)
        except Closed:
            raise
        except ZkrqError as error:
            _log.info("flows are not looked at for now: %s", error)

    async def _look_at(self, queue: str, entered_ms: int, places: asyncio.Semaphore) -> bool:
        """End what is due in a queue; return whether it was entered long ago and has no flows, so that the register
        need not name it."""
        is_empty = True
        async with places:
            try:
                home = await self._shards.home(queue)
                async for page, _ in home.replicas.pages(calls.FlowPage(queue)):
                    is_empty = is_empty and not page.rows
                    due = {FlowName.of(row.name): row.kinds for row in page.rows if row.is_due}
                    await together([self._end(flow, queue, kinds) for flow, kinds in due.items()])
                return is_empty and is_old(entered_ms) and not await self._has_ended(queue)
            except Closed:
                raise
            except ZkrqError as error:
                _log.info("flows of queue %s are not looked at for now: %s", queue, error, extra={"queue": queue})
                return False

    async def _has_ended(self, queue: str) -> bool:
        """Tell whether a queue has flows of which the outcome is kept, so that they are listed.  Raises
        ``Unavailable``."""
        home = await self._shards.home(queue)
        async for page, _ in home.replicas.pages(calls.FlowPage(queue, kinds=Kind.OVER.value)):
            if page.rows:
                return True
        return False

    async def _end(self, flow: FlowName, queue: str, kinds: bytes) -> None:
        """End one flow, and have its trouble, as of a leg that does not answer, be no other's.

        ``kinds``: letters of what it has in this queue."""
        if self._ends.is_stuck(flow):
            # A letter that was discarded, or whose ack was the last thing that its client did, is told by nobody.
            before, self._seen[flow, queue] = self._seen.get((flow, queue)), kinds
            if kinds == before:
                return
        try:
            await self._ends.look(flow, queue=queue)
        except Closed:
            raise
        except ZkrqError as error:
            _log.info("%s could not be looked at: %s", flow, error, extra={"queue": queue})
