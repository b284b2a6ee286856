"""The page in a browser, of a server that a test may change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio.to_thread

import zkrq
from tests.harness import take
from tests.serving import Serving


class Stage:
    """A namespace, a server of the page, and a client that looks on."""

    def __init__(self, http: Serving, cluster: zkrq.Cluster) -> None:
        self.http = http
        self.cluster = cluster

    async def bury(self, queue: str, item: object, reason: str) -> str:
        q = self.cluster.queue(queue)
        await q.push(item)
        claim = await take(q)
        await claim.bury(reason)
        return claim.id


async def do(act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call something that blocks."""
    return await anyio.to_thread.run_sync(partial(act, *arguments, **named))
