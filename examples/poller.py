"""Receive jobs over HTTP, and poll a slow API until each is done.

The producer answers ``POST /jobs {"order": "..."}``. A job's id is made of its order, so a client that got no answer
may repeat its request: within five minutes the job exists once. The consumers ask a made-up API about each order; until
it is done they raise ``Snooze``, which frees them for other orders until this one is due again.

Run it with ``python examples/poller.py``. For servers of your own replace ``zkrq.embedded()`` by
``zkrq.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop")``, start the producer with
``uvicorn examples.poller:app``, and let workers in processes of their own (``zkrq worker``) do the polling.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Annotated

import httpx
from fastapi import Body, FastAPI, HTTPException, Request

import zkrq

ORDERS = 30
CONSUMERS = 8  # concurrent polls; many more jobs may be waiting for their next one
POLL_EVERY = 0.3
GIVE_UP_AFTER = timedelta(hours=1)

Job = dict[str, str]

# -- the producer ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Connect with the service."""
    async with zkrq.embedded() as cluster:
        # Asking again counts as nothing: a job's age limits it. Then it is a dead letter, where people see it.
        app.state.jobs = cluster.queue("jobs", retry=zkrq.Retry(max_age=GIVE_UP_AFTER))
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/jobs", status_code=202)
async def post(request: Request, order: Annotated[str, Body(embed=True)]) -> dict[str, str]:
    """Answer as soon as every in-sync server holds the job."""
    jobs: zkrq.Queue[Job] = request.app.state.jobs
    # An order is any text, but an id has at most 128 bytes: hence the digest.
    id = f"order-{hashlib.sha256(order.encode()).hexdigest()}"
    try:
        receipt = await jobs.push({"order": order}, id=id)
    except (zkrq.OutcomeUnknown, zkrq.NotEnoughReplicas, zkrq.Unavailable) as error:
        raise HTTPException(503, f"repeat the request: {error}") from error  # harmless, the id is the same
    return {"id": receipt.id}


# -- the consumers -----------------------------------------------------------------------------------------------------


class SlowApi:
    """A third-party service: it begins an order when first asked, and says only whether it is done."""

    def __init__(self) -> None:
        self.polls = 0
        self._done_at: dict[str, float] = {}

    async def is_done(self, order: str) -> bool:
        self.polls += 1
        await asyncio.sleep(0.02)  # the network
        now = asyncio.get_running_loop().time()
        return now >= self._done_at.setdefault(order, now + 0.2 + 0.4 * (len(self._done_at) % 4))


async def poll(api: SlowApi, done: asyncio.Queue[str], job: Job) -> None:
    """Ask once. Returning means ack."""
    if await api.is_done(job["order"]):
        await done.put(job["order"])
    else:
        # No sleep here: it would occupy a consumer, and be lost if this process died. The queue remembers instead.
        raise zkrq.Snooze(POLL_EVERY)


async def main() -> None:
    api, done = SlowApi(), asyncio.Queue[str]()
    async with lifespan(app):
        jobs: zkrq.Queue[Job] = app.state.jobs
        async with (
            zkrq.Worker(concurrency=CONSUMERS).add(jobs, partial(poll, api, done)),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client,
        ):
            orders = [f"order {number}" for number in range(ORDERS)] * 2  # everybody asks twice
            answers = await asyncio.gather(*(client.post("/jobs", json={"order": order}) for order in orders))
            print(f"{len(orders)} requests were answered: {dict(Counter(answer.status_code for answer in answers))}")
            finished = [await done.get() for _ in range(ORDERS)]
        finished += [done.get_nowait() for _ in range(done.qsize())]
        left = sum(await jobs.size())
    print(f"it took {api.polls} polls")
    twice = len(finished) - len(set(finished))
    print(f"{len(orders)} requests, {len(finished) - twice} jobs done, {twice} twice, {left} left")


if __name__ == "__main__":
    asyncio.run(main())
