"""List the flows of all queues, page by page: those that have not ended, then those whose outcome is kept."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, NamedTuple

from zkrq.base.checks import check_name
from zkrq.base.errors import Closed, ZkrqError
from zkrq.base.flows import FlowName, FlowState, FlowStatus
from zkrq.client.cursors import as_text, bad_cursor, from_text
from zkrq.client.flow_ends import state_of
from zkrq.protocol import calls
from zkrq.protocol.calls import START
from zkrq.protocol.flows import Kind, Stage

if TYPE_CHECKING:
    from zkrq.client.flow_ends import Ends
    from zkrq.client.flow_register import FlowRegister
    from zkrq.client.shards import Shards

ORDER = (Kind.RUNS, Kind.OVER)
"""Which flows come first."""


class FlowPlace(NamedTuple):
    """A place in the list: behind the flow ``at`` (as the servers name it) of this queue, among those of this kind."""

    order: int = 0
    queue: str = ""
    at: bytes = START

    def text(self) -> str:
        """Write it as a text for URLs; ``read`` reads it."""
        return as_text([self.order, self.queue, self.at.decode("latin-1")])

    @classmethod
    def read(cls, text: str) -> FlowPlace:
        """Read such a text.  Raises ``BadCursor`` for any other one."""
        try:
            order, queue, at = from_text(text)
            place = at.encode("latin-1")
            if type(order) is not int or order not in range(len(ORDER)) or place[:1].decode() != ORDER[order].value:
                raise ValueError("another order")
            return cls(order, check_name("queue", queue), place)
        except (ValueError, TypeError, AttributeError, RecursionError, ZkrqError):
            raise bad_cursor(text) from None


class FlowLists:
    """List the flows of one client's namespace."""

    def __init__(self, shards: Shards, register: FlowRegister, ends: Ends) -> None:
        self._shards = shards
        self._register = register
        self._ends = ends

    async def walk(self, state: FlowState | None, place: FlowPlace) -> AsyncGenerator[tuple[FlowStatus, FlowPlace]]:
        """Find the flows behind a place, each with its own.  ``state``: only those, None: all.

        Raises ``Unavailable``, behind the others, if some queue cannot be asked.
        """
        queues, trouble = sorted(await self._register.read()), None
        for order in range(place.order, len(ORDER)):
            if ORDER[order] is Kind.OVER and state is not None and not state.has_ended:
                break
            for queue in queues:
                if (order, queue) < place[:2]:
                    continue
                at = place.at if (order, queue) == place[:2] else START
                try:
                    async for found in self._of_queue(queue, order, at, state):
                        yield found
                except Closed:
                    raise
                except ZkrqError as error:
                    trouble = trouble or error
        if trouble:
            raise trouble

    async def _of_queue(
        self, queue: str, order: int, at: bytes, state: FlowState | None
    ) -> AsyncGenerator[tuple[FlowStatus, FlowPlace]]:
        async for flow, row in self.rows(calls.FlowPage(queue, at, kinds=ORDER[order].value)):
            status = await self._status(flow, row, state)
            if status is not None:
                yield status, FlowPlace(order, queue, ORDER[order].value.encode() + row.name)

    async def rows(self, first: calls.FlowPage) -> AsyncGenerator[tuple[FlowName, calls.FlowRow]]:
        """Find the flows whose home is a queue, each once, with what the queue's primary says of it.

        ``first``: the page to begin with; it says in which queue, and which flows.  Raises ``Unavailable``.
        """
        home, known = await self._shards.home(first.queue), set[bytes]()
        async for page, _ in home.replicas.pages(first):
            for row in page.rows:
                flow = FlowName.of(row.name)
                if flow.queue == first.queue and row.name not in known:
                    known.add(row.name)
                    yield flow, row

    async def _status(self, flow: FlowName, row: calls.FlowRow, state: FlowState | None) -> FlowStatus | None:
        """Return what is known of a flow, None if it is in another state."""
        stage = Stage(row.stage.decode())
        known = state_of(stage, row.outcome)
        if state not in (None, known):
            return None
        if stage is Stage.ENDED:
            status = FlowStatus(flow.queue, flow.name, known, 0, row.died, row.missed, row.done)
        else:
            status = await self._ends.read(flow)
        return status if status.state is not FlowState.UNKNOWN and state in (None, status.state) else None
