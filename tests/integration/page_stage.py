"""The page in a browser, of a server that a test may change."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio.to_thread
import pytest

import zkrq
from tests.harness import in_process, new_namespace, take
from tests.serving import Serving, serving
from zkrq import local
from zkrq.coordination.memory import Hub


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


@asynccontextmanager
async def staged(shared_servers: local.Servers) -> AsyncGenerator[Stage]:
    """A page of a new namespace, which looks at its consumers each time that it is asked."""
    hub, namespace = Hub(), new_namespace()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zkrq.serve.watching.CONSUMERS_SECONDS", 0.0)
        async with (
            in_process(shared_servers, namespace, hub, description="worker <1>") as cluster,
            serving(in_process(shared_servers, namespace, hub)) as http,
        ):
            yield Stage(http, cluster)


async def do(act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call something that blocks."""
    return await anyio.to_thread.run_sync(partial(act, *arguments, **named))
