"""Count primes in processes: handlers that compute use all cores, and none loses its claim.

One number is too large for the time limit, which stops it although it never looks up; another one kills its process.
Neither concerns the others.

Run it with ``python examples/computing.py``. For servers of your own replace ``zkrq.embedded()`` by
``zkrq.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop")``, and let
``zkrq worker examples.computing:worker --pool 8`` do the work.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import zkrq

SMALL = [20_000 + 1_000 * n for n in range(12)]
ENDLESS, DEADLY = 10**12, -1


def count_primes(below: int) -> list[int]:
    """Return how many primes there are, and the process that has counted them."""
    if below == DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
    return [sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, below)), os.getpid()]


def numbers(cluster: zkrq.Cluster) -> zkrq.ResultQueue[int, list[int]]:
    """Return the queue: an item is tried once, and its result is kept."""
    return cluster.queue("numbers", retry=zkrq.Retry(max_attempts=1), results=zkrq.Results())


def worker(cluster: zkrq.Cluster) -> zkrq.Worker:
    """Count in as many processes as handlers may run at the same time."""
    pool = zkrq.Processes(kill_after=1)
    return zkrq.Worker(concurrency=2, pool=pool).add(numbers(cluster), count_primes, time_limit=2)


async def main() -> None:
    """Push numbers, and wait for their results."""
    async with zkrq.embedded() as cluster, worker(cluster):
        queue = numbers(cluster)
        receipts = [await queue.push(number) for number in [*SMALL, ENDLESS, DEADLY]]
        *counted, endless, deadly = [await queue.result(receipt.id, timeout=60) for receipt in receipts]
        print("too long:", (endless.reason or "").partition(": ")[2])
        print("dead:", (deadly.reason or "").partition(": ")[2])
        processes = {each.get()[1] for each in counted}
        print(f"{len(counted)} numbers counted, in {'more than' if len(processes) > 1 else 'only'} one process")


if __name__ == "__main__":
    logging.getLogger("zkrq").setLevel(logging.CRITICAL)  # two items fail, as they should
    asyncio.run(main())
