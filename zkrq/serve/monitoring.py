"""Answer those who watch the server: ``/livez``, ``/readyz`` and ``/metrics``, with the meanings of ``zkrq.probes``.

The first two need no token, so they tell yes or no and not why; the log and the page do.
"""

from __future__ import annotations

import asyncio
import logging

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from zkrq.cluster import Cluster
from zkrq.errors import ZkrqError
from zkrq.probes import READY_SECONDS, has_metrics

_log = logging.getLogger("zkrq.serve")


class Monitoring:
    """Answer probes and scrapes for one server."""

    def __init__(self, cluster: Cluster, stopping: asyncio.Event) -> None:
        """Collect metrics from now on, if ``prometheus_client`` is installed."""
        self._cluster = cluster
        self._stopping = stopping
        self._asking: asyncio.Task[bool] | None = None
        self._metrics = None
        if has_metrics():
            from prometheus_client import CollectorRegistry

            from zkrq.prometheus import instrument

            self._metrics = instrument(cluster, CollectorRegistry(), every_queue=True)

    def router(self) -> APIRouter:
        """Return the answers, with their paths."""
        router = APIRouter(include_in_schema=False)
        router.add_route("/livez", self.livez)
        router.add_route("/readyz", self.readyz)
        router.add_route("/metrics", self.metrics)
        return router

    async def livez(self, request: Request) -> Response:
        """Answer as soon as the event loop runs."""
        return PlainTextResponse("alive\n")

    async def readyz(self, request: Request) -> Response:
        """Answer whether a push and a claim could be made now.  Questions at the same time ask the servers once."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="zkrq serve: ready?")
        if await asyncio.shield(self._asking):
            return PlainTextResponse("ready\n")
        return PlainTextResponse("not ready\n", 503)

    async def _ask(self) -> bool:
        if self._stopping.is_set():
            return False
        try:
            async with asyncio.timeout(READY_SECONDS):
                await self._cluster.ping()
        except (ZkrqError, TimeoutError) as error:
            _log.info("not ready: %s", error or "no answer in time", extra={"cluster": self._cluster.namespace})
            return False
        return True

    async def metrics(self, request: Request) -> Response:
        """Ask the servers, then show all metrics."""
        if self._metrics is None:
            return PlainTextResponse("metrics need prometheus_client: pip install 'zkrq[prometheus]'\n", 501)
        from zkrq.prometheus import CONTENT_TYPE

        return Response(await self._metrics.expose(), media_type=CONTENT_TYPE)
