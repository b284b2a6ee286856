"""Do each step of an order once, though the worker dies between them.

The value of a step is on every in-sync server before the next one begins. Here each order is left after the first step,
as if the process had been killed; the next delivery goes on with the second.

Run it with ``python examples/order_steps.py``. For servers of your own replace ``zkrq.embedded()`` by
``zkrq.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop", found=True)``.
"""

from __future__ import annotations

import asyncio

import zkrq

charged: list[str] = []
mailed: list[str] = []


async def charge(order: str) -> str:
    charged.append(order)
    return f"receipt of {order}"


async def handle(order: str, claim: zkrq.Claim[str]) -> None:
    receipt = await claim.step("charge", charge, order)
    if claim.attempts == 1:
        raise zkrq.RetryLater(0)  # as if the worker had died here
    async with claim.step("mail") as step:
        if not step.done:  # `step.key` is the same at each delivery, for services that refuse to do a thing twice
            mailed.append(receipt)
            step.value = step.key


async def main() -> None:
    async with zkrq.embedded() as cluster:
        orders = cluster.queue("orders", results=zkrq.Results())
        receipts = await orders.push_many([f"order {number}" for number in range(10)])
        async with zkrq.Worker(concurrency=5).add(orders, handle):
            await orders.results([receipt.id for receipt in receipts], timeout=30)
    print(f"{len(charged)} orders charged, {len(charged) - len(set(charged))} twice, {len(mailed)} mailed")


if __name__ == "__main__":
    asyncio.run(main())
