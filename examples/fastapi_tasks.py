"""A FastAPI service that hands its slow work to tasks of taskiq, over zkrq.

The service sends a task and answers; a worker runs it, and runs it again if it fails. Whatever happens to a server or
to a worker, a task whose ``kiq`` returned is run.

Run it with ``python examples/fastapi_tasks.py``. For servers of your own replace ``zkrq.embedded`` by
``partial(zkrq.connect, redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop")``, start the service
with ``uvicorn examples.fastapi_tasks:app`` and as many workers as you like, on any machine, with
``taskiq worker examples.fastapi_tasks:broker``. Here one worker runs in the same process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI
from taskiq import SimpleRetryMiddleware
from taskiq.api import run_receiver_task

import zkrq
from zkrq.taskiq import ZkrqBroker

PEOPLE = 20
FAILURES = 3
TIMEOUT = 30.0

broker = ZkrqBroker(zkrq.embedded, queue_name="emails")
broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=5))
tried: Counter[str] = Counter()
sent: Counter[str] = Counter()


@broker.task(retry_on_error=True)
async def welcome(address: str) -> None:
    """Send an e-mail; the mail server refuses the first try for some."""
    tried[address] += 1
    if tried[address] == 1 and len(tried) <= FAILURES:
        raise ConnectionError("the mail server is busy")
    sent[address] += 1


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Connect with the service; a worker of taskiq does so by itself."""
    await broker.startup()
    yield
    await broker.shutdown()


app = FastAPI(lifespan=lifespan)


@app.post("/sign-up", status_code=202)
async def sign_up(address: str) -> str:
    """Answer as soon as every in-sync server has the task."""
    task = await welcome.kiq(address)
    return task.task_id


async def main() -> None:
    logging.getLogger("taskiq").setLevel(logging.CRITICAL)  # it would print the failures
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            answers = await asyncio.gather(
                *(client.post("/sign-up", params={"address": f"person-{n}@example.org"}) for n in range(PEOPLE))
            )
        for status, count in Counter(answer.status_code for answer in answers).items():
            print(f"{count} requests were answered: {status}")
        worker = asyncio.create_task(run_receiver_task(broker))
        async with asyncio.timeout(TIMEOUT):
            while any(await broker.queue().size()):  # noqa: ASYNC110  (only the servers know)
                await asyncio.sleep(0.05)
        left = sum(await broker.queue().size())
        worker.cancel()
        await asyncio.wait([worker])
    twice, repeated = sum(count > 1 for count in sent.values()), tried.total() - len(sent)
    print(f"{len(sent)} e-mails sent, {twice} twice, {repeated} tries failed and were repeated, {left} left")


if __name__ == "__main__":
    asyncio.run(main())
