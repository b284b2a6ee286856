"""A server of the HTTP API inside the test's process, and a client for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx

from tests.harness import HANG
from zkrq.client.cluster import Cluster
from zkrq.serve.program import Options, Server, start


class Serving:
    """A server, and a client that speaks plain HTTP to it."""

    def __init__(self, server: Server, client: httpx.AsyncClient, task: asyncio.Task[None]) -> None:
        self.server = server
        self.client = client
        self.task = task

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    async def post(self, path: str, body: object = None, **headers: str) -> httpx.Response:
        return await self.client.post(f"/v1{path}", json=body, headers=headers)

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(f"/v1{path}")

    async def push(self, queue: str, item: object, **options: Any) -> str:
        response = await self.post(f"/queues/{queue}/push", {"item": item, **options})
        assert response.status_code == 200, response.text
        return response.json()["id"]

    async def claim(self, queue: str, **wishes: Any) -> dict[str, Any]:
        """The one claim that must come."""
        response = await self.post(f"/queues/{queue}/claim", {"wait": 60, **wishes})
        assert response.status_code == 200, response.text
        (claim,) = response.json()["claims"]
        return claim


@asynccontextmanager
async def serving(cluster: Cluster, *, port: int = 0, **options: Any) -> AsyncGenerator[Serving]:
    """Serve a cluster that is not open yet, on a free port unless it is given; stopped at the end."""
    async with start(cluster, Options(port=port, **options)) as server:
        task = asyncio.create_task(server.run(grace=0))
        url = f"http://127.0.0.1:{server.port}"
        try:
            async with httpx.AsyncClient(base_url=url, timeout=HANG, trust_env=False) as client:
                yield Serving(server, client, task)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def refused(response: httpx.Response, status: int, error: str, happened: str = "nothing") -> str:
    """Check a reply that reports an error; return its message."""
    assert response.status_code == status, response.text
    told = response.json()
    assert (told["error"], told["happened"]) == (error, happened)
    assert told["next"]
    return told["message"]
