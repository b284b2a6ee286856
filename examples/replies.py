"""Wait for a handler's outcome: a reply is an item of a queue that belongs to the client that waits.

The request says where to reply, in its headers. The worker pushes the reply before the request is acked, under an id
that is made from the request's: a request that is delivered twice has one reply. A reply is as safe as any item, lives
for ``REPLY_SECONDS`` at most, and costs nothing where no caller asks for one.

Run it with ``python examples/replies.py``. For servers of your own replace ``zkrq.embedded()`` by
``zkrq.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop", found=True)``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import zkrq

REQUESTS = 20
REPLY_SECONDS = 60.0
TIMEOUT = 20.0


class Caller:
    """Push requests and wait for their replies; one queue of replies for each caller, deleted at its end."""

    def __init__(self, cluster: zkrq.Cluster) -> None:
        self._replies = cluster.queue(f"replies-{zkrq.new_id()}")
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._replies.delete()

    async def call(self, queue: zkrq.Queue[Any], item: object, timeout: float) -> Any:
        """Push an item; return its handler's result. Raises ``TimeoutError``: it may still be worked on."""
        ticket = zkrq.new_id()
        self._waiting[ticket] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout):
                await queue.push(item, headers={"reply-to": self._replies.name, "ticket": ticket}, ttl=timeout)
                return await self._waiting[ticket]
        finally:
            del self._waiting[ticket]

    async def _listen(self) -> None:
        async for claim in self._replies.pop():
            async with claim:
                future = self._waiting.get(claim.headers["ticket"])
                if future is not None and not future.done():  # else the caller has given up
                    future.set_result(claim.item)


def replying(cluster: zkrq.Cluster, handler: Callable[[Any], object]) -> zkrq.Handler[Any]:
    """Make a handler whose result is pushed to the queue that the request names; one that fails is retried as ever."""

    async def handle(item: object, claim: zkrq.Claim[Any]) -> None:
        result = handler(item)
        if reply_to := claim.headers.get("reply-to"):
            headers = {"ticket": claim.headers["ticket"]}
            await cluster.queue(reply_to).push(result, id=f"reply-{claim.id}", ttl=REPLY_SECONDS, headers=headers)

    return handle


async def main() -> None:
    async with zkrq.embedded() as cluster:
        numbers = cluster.queue("numbers")
        worker = zkrq.Worker(concurrency=5).add(numbers, replying(cluster, lambda number: number**2))
        async with worker, Caller(cluster) as caller:
            results = await asyncio.gather(*(caller.call(numbers, number, TIMEOUT) for number in range(REQUESTS)))
            await numbers.push(7)  # no reply is awaited
        right = sum(result == number**2 for number, result in enumerate(results))
        print(f"{right} of {REQUESTS} replies are right")
        sizes = await cluster.statistics()
        print(f"{sum(sum(each.sizes) for each in sizes.values())} items left")


if __name__ == "__main__":
    asyncio.run(main())
