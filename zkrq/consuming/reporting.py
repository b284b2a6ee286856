"""Send what handlers report of their progress: at once, and then the latest of it, once a second for each claim."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from zkrq.base.errors import ZkrqError
from zkrq.protocol.calls import Report

if TYPE_CHECKING:
    from zkrq.base.tasks import Tasks
    from zkrq.consuming.lease import Lease
    from zkrq.replication.replicas import Replicas

REPORT_SECONDS = 1.0
"""Seconds between two reports of one claim."""

_log = logging.getLogger("zkrq.claims")


class Reporter:
    """Send the reports of one queue.  A report that cannot be sent is dropped: the next one says more."""

    def __init__(self, replicas: Replicas, tasks: Tasks, queue: str) -> None:
        self._replicas = replicas
        self._tasks = tasks
        self._queue = queue
        self._latest = dict[str, str]()
        """The report to send next, by the claim's item; present while its task runs."""
        self._running = set[str]()

    def report(self, lease: Lease, text: str) -> None:
        """Send a report, or keep it until the last one is a second old; a later one takes its place."""
        self._latest[lease.id] = text
        if lease.id not in self._running:
            self._running.add(lease.id)
            self._tasks.start(self._send(lease.id, lease), f"report progress in {self._queue}")

    async def _send(self, id: str, lease: Lease) -> None:
        token = lease.grant.request
        try:
            # No await stands between the last look here and the end of the loop: a report that comes later finds that
            # this claim has no task, and starts one.
            while (text := self._latest.pop(id, None)) is not None and lease.holds:
                try:
                    await self._replicas.ask(Report(self._queue, id, token, text))
                except ZkrqError as error:  # not retried: by then the handler has more to say
                    _log.debug("queue %s: the progress of %s was not reported: %s", self._queue, id, error)
                await asyncio.sleep(REPORT_SECONDS)
        finally:
            self._running.discard(id)
            self._latest.pop(id, None)
