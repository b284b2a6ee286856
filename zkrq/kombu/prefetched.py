"""Know which of the tasks that a worker of Celery has fetched it will never begin, since it was told to stop.

A worker with a prefork pool fetches more than its processes run.  The rest waits in the main process, and is in no
process of the pool.  A worker that stops first forgets it (``Consumer.on_close``), and then waits for the tasks that
run.  Celery tells its transport nothing of that, so this compares what Celery notes of a task: one that was reserved,
is so no longer, and was never passed on to the pool, is one that it has forgotten.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


class Prefetched:
    """Tasks that a channel has delivered and that are not acked, by their delivery tags."""

    def __init__(self) -> None:
        self._requests: dict[str, Any] = {}

    def note(self, tag: str, message: Mapping[str, Any]) -> None:
        """Note what Celery has made of a message that it was given; nothing, if it is no worker or has run it."""
        state = _state()
        request = state.requests.get(message["headers"].get("id")) if state and message.get("headers") else None
        # A retry has the same id as the task before it, which may be running still.
        if request is not None and request.message.delivery_tag == tag and request in state.reserved_requests:
            self._requests[tag] = request

    def drop(self, tag: str) -> None:
        """Forget a message that is settled or lost."""
        self._requests.pop(tag, None)

    def forgotten(self) -> list[str]:
        """Return the tags of the tasks that will never begin here."""
        state = _state()
        return [
            tag
            for tag, request in self._requests.items()
            if request not in state.reserved_requests and not _has_begun(request)
        ]


def _state() -> Any:
    """Return Celery's notes on the tasks of this worker, None in a program that runs no worker."""
    return sys.modules.get("celery.worker.state")


def _has_begun(request: Any) -> bool:
    """Tell whether a task may have reached a process of the pool."""
    return request._apply_result is not None or request.time_start is not None
