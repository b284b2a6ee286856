"""Check an order, price it and find it in the stock at the same time, then ship it: items that wait for others.

Each item has a name in its flow, and `after` names those that it waits for: it is held until they are acked.

Run it with ``python examples/diamond.py``. For servers of your own replace ``zkrq.embedded()`` by
``zkrq.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop", found=True)``.
"""

from __future__ import annotations

import asyncio

import zkrq

ORDERS = 5

Order = dict[str, int]


async def main() -> None:
    done = list[str]()
    async with zkrq.embedded() as cluster:
        check, ship = cluster.queue("check"), cluster.queue("ship")
        price = cluster.queue("price", results=zkrq.Results())
        stock = cluster.queue("stock", results=zkrq.Results())

        async def checked(order: Order) -> None:
            done.append(f"check {order['id']}")

        async def priced(order: Order) -> int:
            done.append(f"price {order['id']}")
            return 10 * order["id"]

        async def found(order: Order) -> str:
            done.append(f"find {order['id']}")
            return f"shelf {order['id']}"

        async def shipped(order: Order) -> None:
            cost = (await price.result(f"order-{order['id']}.price")).get()  # the id of a member is flow.name
            shelf = (await stock.result(f"order-{order['id']}.stock")).get()
            done.append(f"ship {order['id']}")
            print(f"order {order['id']}: {cost} from {shelf}")

        worker = zkrq.Worker(concurrency=10).add(check, checked).add(price, priced).add(stock, found).add(ship, shipped)
        async with worker:
            for number in range(1, ORDERS + 1):
                order = {"id": number}
                async with check.flow(f"order-{number}") as flow:
                    await flow.push(order, name="check")
                    await flow.push(order, queue=price, name="price", after="check")
                    await flow.push(order, queue=stock, name="stock", after="check")
                    await flow.push(order, queue=ship, name="ship", after=["price", "stock"])
                await flow.result(timeout=30)
    at = {step: number for number, step in enumerate(done)}
    before = ("check", "price", "find")
    early = sum(at[f"ship {n}"] < max(at[f"{step} {n}"] for step in before) for n in range(1, ORDERS + 1))
    print(f"{ORDERS} orders shipped, {early} too early, {len(done) - len(set(done))} steps twice")


if __name__ == "__main__":
    asyncio.run(main())
