"""Receive jobs over HTTP, and poll a slow API until each is done.

The producer answers ``POST /jobs {"order": "..."}``. A job's id is made of its order, so a client that got no answer
may repeat its request: within five minutes the job exists once. The consumers ask a made-up API about each order; until
it is done they raise ``RetryLater``, which frees them for other orders until this one is due again.

Run it with ``python examples/poller.py``. For servers of your own replace ``zkrq.embedded()`` in ``main`` by
``zkrq.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop", found=True)``; then producer
and consumers may be processes on many machines.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial

import zkrq

ORDERS = 30
CONSUMERS = 8  # concurrent polls; many more jobs may be waiting for their next one
POLL_EVERY = 0.3
GIVE_UP_AFTER = timedelta(hours=1)
MAX_BODY = 65_536
REQUEST_TIMEOUT = 20.0

Job = dict[str, str]


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


# -- the producer ------------------------------------------------------------------------------------------------------


async def serve(jobs: zkrq.Queue[Job], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection with one request."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            status, answer = await respond(jobs, reader)
            body = json.dumps(answer).encode()
            head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
            await writer.drain()
    except (OSError, EOFError, asyncio.LimitOverrunError):  # TimeoutError is an OSError
        pass  # the client is gone, slow, or not an HTTP client; it may repeat its request
    finally:
        writer.close()


async def respond(jobs: zkrq.Queue[Job], reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """Handle a request; return status and body."""
    request, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    if not request.startswith("POST /jobs "):
        return "404 Not Found", {"error": "there is only POST /jobs"}
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    try:
        length = int(headers.get("content-length", "0"))
        if not 0 <= length <= MAX_BODY:
            return "413 Content Too Large", {"error": f"at most {MAX_BODY} bytes"}
        order = str(json.loads(await reader.readexactly(length))["order"])
        # An order is any text, but an id has at most 128 bytes: hence the digest.
        id = f"order-{hashlib.sha256(order.encode()).hexdigest()}"
    except (ValueError, LookupError, TypeError, RecursionError):
        return "400 Bad Request", {"error": 'expected {"order": "..."}'}
    try:
        # When this returns, every in-sync server holds the job; only then the client gets its answer.
        receipt = await jobs.push({"order": order}, id=id)
    except (zkrq.OutcomeUnknown, zkrq.NotEnoughReplicas, zkrq.Unavailable) as error:
        return "503 Service Unavailable", {"error": f"repeat the request: {error}"}  # harmless, the id is the same
    return "202 Accepted", {"id": receipt.id}


def post(port: int, order: str) -> int:
    """Send a client's request; return the status of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT)
    try:
        connection.request("POST", "/jobs", json.dumps({"order": order}))
        return connection.getresponse().status
    finally:
        connection.close()


# -- the consumers -----------------------------------------------------------------------------------------------------


async def poll(api: SlowApi, done: asyncio.Queue[str], job: Job, claim: zkrq.Claim[Job]) -> None:
    """Ask once. Returning means ack."""
    if await api.is_done(job["order"]):
        await done.put(job["order"])
    elif datetime.now(UTC) - claim.pushed_at > GIVE_UP_AFTER:
        raise zkrq.Reject("the API never said done")  # to the dead letters, where people see it
    else:
        # No sleep here: it would occupy a consumer, and be lost if this process died. The queue remembers instead.
        raise zkrq.RetryLater(delay=POLL_EVERY)


async def main() -> None:
    api = SlowApi()
    done: asyncio.Queue[str] = asyncio.Queue()
    async with zkrq.embedded() as cluster:
        # Asking again is not a failure, but it counts as an attempt: a job's age limits it here, not the number.
        jobs: zkrq.Queue[Job] = cluster.queue("jobs", retry=zkrq.Retry(max_attempts=None))
        server = await asyncio.start_server(partial(serve, jobs), "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        print(f"POST /jobs is served on port {port}, {CONSUMERS} consumers")
        async with server, zkrq.Worker(concurrency=CONSUMERS).add(jobs, partial(poll, api, done)):
            orders = [f"order {number}" for number in range(ORDERS)] * 2  # everybody asks twice
            statuses = await asyncio.gather(*(asyncio.to_thread(post, port, order) for order in orders))
            print(f"{len(orders)} requests were answered: {dict(Counter(statuses))}")
            finished = [await done.get() for _ in range(ORDERS)]
        finished += [done.get_nowait() for _ in range(done.qsize())]
        left = sum(await jobs.size())
    print(f"it took {api.polls} polls")
    twice = len(finished) - len(set(finished))
    print(f"{len(orders)} requests, {len(finished) - twice} jobs done, {twice} twice, {left} left")


if __name__ == "__main__":
    asyncio.run(main())
