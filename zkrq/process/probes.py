"""Answer probes for this process: ``/livez``, ``/readyz``, ``/metrics``.

What they say is asked at that moment: whether the event loop runs, and whether every in-sync server would accept a
push and a claim be possible.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotInTime
from http import HTTPStatus
from importlib.util import find_spec
from typing import TYPE_CHECKING

from zkrq.base.errors import ZkrqError
from zkrq.process.listening import Answer

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster

LIVE_SECONDS = 5.0
"""Seconds within which the event loop must run a call for ``/livez``."""

READY_SECONDS = 5.0
"""Seconds within which the servers must answer for ``/readyz``."""

READY_AT_ONCE = 10
"""Requests for ``/readyz`` that may wait for the servers at the same time, so that ``/livez`` always has a thread."""


def yes(text: str) -> Answer:
    """Answer that all is well."""
    return Answer(HTTPStatus.OK, f"{text}\n".encode())


def no(reason: object) -> Answer:
    """Answer that something is not, and why."""
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{' '.join(str(reason).split())}\n".encode())


class Probes:
    """Answer for the event loop and the cluster of this process."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cluster: Cluster | None = None
        self._why_not = "the cluster is not open yet"
        self._ready_places = threading.BoundedSemaphore(READY_AT_ONCE)

    def attach(self) -> None:
        """Answer for the running event loop."""
        self._loop = asyncio.get_running_loop()

    def begin(self, cluster: Cluster) -> None:
        """Answer for this open cluster, and collect its metrics if ``prometheus_client`` is installed."""
        self._cluster = cluster
        if has_metrics():
            from zkrq.prometheus import instrument

            instrument(cluster)

    def end(self, why: str) -> None:
        """Answer that this process is not ready any more."""
        self._cluster, self._why_not = None, why

    def respond(self, path: str) -> Answer | None:
        """Answer a request, in any thread but that of the event loop."""
        match path:
            case "/livez":
                return self._live()
            case "/readyz":
                return self._ready()
            case "/metrics":
                return _metrics()
            case _:
                return None

    def _live(self) -> Answer:
        return self._ask(lambda: asyncio.sleep(0), LIVE_SECONDS, "the event loop has not run") or yes("alive")

    def _ready(self) -> Answer:
        cluster = self._cluster
        if cluster is None:
            return no(self._why_not)
        if not self._ready_places.acquire(blocking=False):
            return no(f"{READY_AT_ONCE} requests are waiting for the servers already")
        try:
            return self._ask(cluster.ping, READY_SECONDS, "the servers have not answered") or yes("ready")
        finally:
            self._ready_places.release()

    def _ask(self, ask: Callable[[], Coroutine[object, object, None]], seconds: float, silence: str) -> Answer | None:
        """Run this on the event loop; return what to answer if it fails."""

        async def run() -> None:
            await ask()

        if self._loop is None:
            return no("the event loop does not run yet")
        call = run()
        try:
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError:
            call.close()
            return no("the event loop has ended")
        try:
            future.result(seconds)
        except NotInTime:
            return no(f"{silence} for {seconds:g} s")
        except CancelledError:
            return no("the event loop has ended")
        except ZkrqError as error:
            return no(error)
        finally:
            future.cancel()
        return None


def has_metrics() -> bool:
    """Tell whether the extra ``prometheus`` is installed."""
    return find_spec("prometheus_client") is not None


def _metrics() -> Answer:
    """Render the metrics of this process."""
    if not has_metrics():
        return Answer(HTTPStatus.NOT_IMPLEMENTED, b"metrics need prometheus_client: pip install 'zkrq[prometheus]'\n")
    from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

    return Answer(HTTPStatus.OK, generate_latest(REGISTRY), CONTENT_TYPE_LATEST)
