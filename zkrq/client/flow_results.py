"""Read the results of the members of a flow: in queues with ``results``, while the flow runs and after its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from zkrq.base.results import Result, ResultState
from zkrq.operations.push import PUSH_MEMBER
from zkrq.protocol import calls

if TYPE_CHECKING:
    from zkrq.base.flows import FlowName
    from zkrq.client.results import ResultQueue
    from zkrq.client.shards import Shards

_BEHIND_ALL = b">\xff"
"""The cursor behind every id: such a page tells the legs of a flow alone."""

Find = Callable[[str], "ResultQueue[Any, Any]"]
"""Return the queue of a name, as one that reads results."""


async def each_result(shards: Shards, find: Find, flow: FlowName) -> AsyncGenerator[Result[Any]]:
    """Read the results of all members; see ``Flow.results``."""
    queues = {flow.queue: None}
    asked = set[str]()
    while left := [queue for queue in queues if queue not in asked]:
        queue = left[0]
        asked.add(queue)
        call: calls.FlowResults | None = calls.FlowResults(queue, flow.key)
        while call is not None:
            page = await _page(shards, call)
            if queue == flow.queue:
                queues |= _legs(page)
            for row in page.rows:
                yield find(queue)._as_kept(row.id.decode(), row.text, is_lost=bool(row.is_lost))  # pyright: ignore[reportPrivateUsage]
            call = call.after(page)


async def result_of(shards: Shards, find: Find, flow: FlowName, name: str) -> Result[Any]:
    """Read the result of one member; see ``Flow.result_of``."""
    PUSH_MEMBER.check({"name": name})
    id = flow.id_of(name)
    page = await _page(shards, calls.FlowResults(flow.queue, flow.key, _BEHIND_ALL))
    for queue in (flow.queue, *_legs(page)):
        result = await find(queue).result(id, timeout=0)
        if result.state is not ResultState.UNKNOWN:
            return result
    return Result(id, ResultState.UNKNOWN)


async def _page(shards: Shards, call: calls.FlowResults) -> calls.FlowResultsReply:
    home = await shards.home(call.queue)
    return await home.replicas.ask(call)


def _legs(page: calls.FlowResultsReply) -> Mapping[str, None]:
    return dict.fromkeys(leg.decode() for leg in page.legs)
