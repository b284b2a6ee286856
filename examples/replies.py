"""Wait for a handler's result: push an item and wait in one line, or wait for many items by their ids.

What the handler returns is kept on every in-sync server for ``KEPT_SECONDS`` after its item was acked, so a caller may
ask late, ask again, or ask from another process. A caller that waits is woken by the ack.

Run it with ``python examples/replies.py``. For servers of your own replace ``zkrq.embedded()`` by
``zkrq.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop", found=True)``.
"""

from __future__ import annotations

import asyncio

import zkrq

REQUESTS = 20
KEPT_SECONDS = 60.0
TIMEOUT = 20.0


async def square(number: int) -> int:
    if number < 0:
        raise zkrq.Reject("no negative numbers here")
    return number**2


async def main() -> None:
    async with zkrq.embedded() as cluster:
        numbers = cluster.queue("numbers", results=zkrq.Results(ttl=KEPT_SECONDS))
        worker = zkrq.Worker(concurrency=5).add(numbers, square)
        async with worker:
            calls = (numbers.call(number, timeout=TIMEOUT) for number in range(REQUESTS))
            replies = await asyncio.gather(*calls)
            right = sum(reply == number**2 for number, reply in enumerate(replies))
            print(f"{right} of {REQUESTS} replies are right")

            receipts = await numbers.push_many(range(REQUESTS))
            results = await numbers.results([receipt.id for receipt in receipts], timeout=TIMEOUT)
            print(f"{sum(result.has_value for result in results.values())} of {REQUESTS} results are here")

            rejected = await (await numbers.push(-1)).result(timeout=TIMEOUT)
            print(f"-1 is {rejected.state}: {rejected.reason}")


if __name__ == "__main__":
    asyncio.run(main())
