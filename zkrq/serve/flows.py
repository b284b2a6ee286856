"""The calls of the HTTP API about flows."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from fastapi.responses import JSONResponse

from zkrq.base.flows import check_state, name_of_flow
from zkrq.client.flow_lists import FlowPlace
from zkrq.client.inner import client_of
from zkrq.consuming.flow import Flow
from zkrq.operations.flows import BEGIN_FLOW, FLOW, FLOWS
from zkrq.operations.push import RECEIPT
from zkrq.serve.calls import make_router

if TYPE_CHECKING:
    from fastapi import APIRouter, Response

    from zkrq.base.flows import FlowStatus
    from zkrq.client.cluster import Cluster
    from zkrq.serve.bodies import Body, Payload
    from zkrq.serve.queues import Queues


def flow_in(cluster: Cluster, queue: str, flow: str) -> Flow:
    """Return a flow that was begun somewhere, by its name.  Raises ``ConfigError``."""
    return Flow(client_of(cluster).flows, name_of_flow(queue, flow))


async def page_of(
    cluster: Cluster, state: str | None, limit: int, after: str | None
) -> tuple[list[FlowStatus], str | None]:
    """Return a page of the flows, and where the next one begins, None: these were the last ones.

    Raises ``ConfigError`` for what is no place, ``Unavailable`` if a queue cannot be asked.
    """
    found: list[FlowStatus] = []
    last = FlowPlace.read(after) if after else FlowPlace()
    async with aclosing(client_of(cluster).flows.lists.walk(check_state(state), last)) as flows:
        async for status, place in flows:
            if len(found) == limit:
                return found, last.text()
            found.append(status)
            last = place
    return found, None


class FlowApi:
    """Carry out the calls of HTTP clients about flows."""

    def __init__(self, cluster: Cluster, queues: Queues) -> None:
        self._cluster = cluster
        self._queues = queues

    def router(self) -> APIRouter:
        """Return the calls, with their paths."""
        return make_router(FLOWS.values(), self)

    def _flow(self, queue: str, flow: str) -> Flow:
        assert self._queues[queue]  # opened as it is here: its items are bytes
        return flow_in(self._cluster, queue, flow)

    async def _tell(self, flow: Flow) -> Response:
        return JSONResponse(FLOW.tell(await flow.status()))

    async def list_flows(self, state: str | None, limit: int, after: str | None) -> Response:
        page, following = await page_of(self._cluster, state, limit, after)
        return JSONResponse({"flows": [FLOW.tell(status) for status in page], "next": following})

    async def get_flow(self, queue: str, flow: str) -> Response:
        return await self._tell(self._flow(queue, flow))

    async def begin_flow(self, queue: str, flow: str, body: Body | None) -> Response:
        given = {**BEGIN_FLOW.defaults, **(body.given() if body else {})}
        home, outer = self._queues[queue], given.pop("outer", None)
        if outer is None:
            return await self._tell(await home.flow(flow, **given).begin())
        return await self._tell(await self._flow(*outer.split("/")).flow(flow, queue=home, **given).begin())

    async def push_member(self, queue: str, flow: str, body: Payload) -> Response:
        options: dict[str, Any] = dict(body.given())
        into = self._queues[options.pop("into", queue)]
        receipt = await self._flow(queue, flow).push(body.payload(), queue=into, **options)
        return JSONResponse(RECEIPT.tell(receipt))

    async def push_follower(self, queue: str, flow: str, body: Payload) -> Response:
        options: dict[str, Any] = dict(body.given())
        into, when = self._queues[options.pop("into", queue)], options.pop("when", "done")
        found = self._flow(queue, flow)
        hold = {"done": found.then, "failed": found.on_failure, "ended": found.always}[when]
        return JSONResponse(RECEIPT.tell(await hold(body.payload(), queue=into, **options)))

    async def seal_flow(self, queue: str, flow: str) -> Response:
        found = self._flow(queue, flow)
        await found.seal()
        return await self._tell(found)

    async def cancel_flow(self, queue: str, flow: str, body: Body | None) -> Response:
        found = self._flow(queue, flow)
        await found.cancel(**(body.given() if body else {}))
        return await self._tell(found)

    async def finish_flow(self, queue: str, flow: str) -> Response:
        found = self._flow(queue, flow)
        await found.finish()
        return await self._tell(found)

    async def redrive_flow(self, queue: str, flow: str) -> Response:
        return JSONResponse({"redriven": await self._flow(queue, flow).redrive()})
