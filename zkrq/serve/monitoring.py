"""Answer those who watch the server: ``/livez``, ``/readyz`` and ``/metrics``, with the meanings of ``zkrq.probes``.

The first two need no token.  Where the others do, ``/readyz`` gives the kind of the reason, without names of servers;
the log and the page have the whole.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from zkrq.base.errors import NotEnoughReplicas, ZkrqError
from zkrq.process.probes import READY_SECONDS, has_metrics
from zkrq.serve.lines import FewLines

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster

_log = logging.getLogger("zkrq.serve.monitoring")
_log.addFilter(FewLines())


class Monitoring:
    """Answer probes and scrapes for one server."""

    def __init__(self, cluster: Cluster, stopping: asyncio.Event, *, frank: bool) -> None:
        """Collect metrics from now on, if ``prometheus_client`` is installed.  ``frank``: name servers to anybody."""
        self._frank = frank
        self._cluster = cluster
        self._stopping = stopping
        self._asking: asyncio.Task[str] | None = None
        self._why_not = ""
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
        if why := await asyncio.shield(self._asking):
            return PlainTextResponse(f"not ready: {why}\n", 503)
        return PlainTextResponse("ready\n")

    async def _ask(self) -> str:
        """Return why the server is not ready, empty if it is."""
        if self._stopping.is_set():
            return "this server is stopping"
        try:
            async with asyncio.timeout(READY_SECONDS):
                await self._cluster.ping()
        except (ZkrqError, TimeoutError) as error:
            silence = f"the servers have not answered for {READY_SECONDS:g} s"
            text = " ".join(str(error).split()) or silence
            self._note(text)
            return text if self._frank else _kind(error) or silence
        self._note("")
        return ""

    def _note(self, why_not: str) -> None:
        """Write into the log whether the server is ready, when that or the reason changes."""
        if why_not != self._why_not:
            self._why_not = why_not
            text = f"not ready: {why_not}" if why_not else "ready again"
            _log.info("%s", text, extra={"cluster": self._cluster.namespace})

    async def metrics(self, request: Request) -> Response:
        """Ask the servers, then show all metrics."""
        if self._metrics is None:
            return PlainTextResponse("metrics need prometheus_client: pip install 'zkrq[prometheus]'\n", 501)
        from zkrq.prometheus import CONTENT_TYPE

        return Response(await self._metrics.expose(), media_type=CONTENT_TYPE)


def _kind(error: Exception) -> str:
    """Say what kind of error it is, without names; empty for none of the library's."""
    match error:
        case NotEnoughReplicas(members=members, min_replicas=needed):
            return f"{members} of at least {needed} servers are in sync"
        case ZkrqError():
            return (type(error).__doc__ or type(error).__name__).split("\n", 1)[0]
        case _:
            return ""
