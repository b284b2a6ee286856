"""End flows: look whether anything is left of them, decide their end, and open what is held; see ``protocol/flows.py``.

Any client may do so.  It does where it knows of something to end: after a seal, when it waits for a result, and when
the leader finds a flow that is due (``flow_looks.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from zkrq.base.errors import Closed, Unavailable, ZkrqError
from zkrq.base.flows import FlowName
from zkrq.base.tasks import wait_set
from zkrq.protocol.flows import Look, Stage
from zkrq.protocol.operations import OPERATIONS

if TYPE_CHECKING:
    from zkrq.base.tasks import Tasks
    from zkrq.client.shards import Shards
    from zkrq.protocol.flows import Tending

T = TypeVar("T")

FIRST_PAUSE, LAST_PAUSE = 0.05, 2.0
"""Seconds between two looks of a caller that waits for the end of a flow: more from look to look."""

_log = logging.getLogger("zkrq.flows")


class Ends:
    """End the flows that this client looks at."""

    def __init__(self, shards: Shards, tasks: Tasks) -> None:
        self._shards = shards
        self._tasks = tasks
        self._looks = dict[FlowName, asyncio.Task[Look]]()
        self._waits = defaultdict[FlowName, set[asyncio.Event]](set)
        """What to set when a flow ends, for callers that wait."""

    async def look(self, flow: FlowName) -> Look:
        """End a flow if nothing is left of it, and open what is held; return what was found.

        Looks at one flow that are under way are one.  Raises ``Unavailable``, ``OutcomeUnknown``: look again.
        """
        if flow not in self._looks:
            task = self._looks[flow] = self._tasks.start(self._look(flow), f"end {flow}")
            task.add_done_callback(lambda _: self._looks.pop(flow, None))
        return await asyncio.shield(self._looks[flow])

    async def _look(self, flow: FlowName) -> Look:
        found = await self.tend(OPERATIONS.tend_flow(flow.queue, flow.key))
        if found.stage is Stage.ENDED:
            self.tell(flow)
        return found

    async def tend(self, tending: Tending[T]) -> T:
        """Carry out what is about several queues, each on the shard that is its home.  Raises as its operations do."""
        result: Any = None
        try:
            while True:
                queue, operation = tending.send(result)
                result = await (await self._shards.home(queue)).replicas.run(operation)
        except StopIteration as stop:
            return stop.value
        finally:
            tending.close()

    def look_soon(self, flow: FlowName) -> None:
        """Look at a flow in the background; one that cannot be asked is looked at by others."""
        with suppress(Closed):
            self._tasks.start(self._try_look(flow), f"look at {flow}")

    async def _try_look(self, flow: FlowName) -> None:
        try:
            await self.look(flow)
        except ZkrqError as error:
            _log.info("%s could not be looked at: %s", flow, error, extra={"queue": flow.queue})

    def tell(self, flow: FlowName) -> None:
        """Have callers that wait for a flow look at it: it has ended."""
        for waiting in self._waits.get(flow, ()):
            waiting.set()

    async def wait(self, flow: FlowName, seconds: float | None) -> Look:
        """Return how a flow has ended, or, after ``seconds`` (None: never), what is left of it.

        Raises ``Unavailable`` if it could not be asked by then.
        """
        now = asyncio.get_running_loop().time
        until = None if seconds is None else now() + seconds
        told, pause = asyncio.Event(), FIRST_PAUSE
        self._waits[flow].add(told)
        try:
            while True:
                is_last = until is not None and now() >= until
                told.clear()
                try:
                    found = await self.look(flow)
                    if found.stage in (Stage.ENDED, Stage.UNKNOWN) or is_last:
                        return found
                except Unavailable:
                    if is_last:
                        raise
                left = pause if until is None else min(pause, max(0.0, until - now()))
                await wait_set(told, left)
                pause = min(LAST_PAUSE, pause * 1.5)
        finally:
            self._waits[flow].discard(told)
            if not self._waits[flow]:
                del self._waits[flow]
