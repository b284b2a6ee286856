"""Pass items through two queues without duplicates, to a database that refuses the late write of a paused consumer.

Packing takes an order and pushes a parcel, under an id made of the order's own: if the packer dies between its push and
its ack, the order is delivered again, and the parcel is pushed again but exists once. Shipping writes each parcel into
SQLite together with ``claim.token``, which grows with every claim of an item. A consumer that was paused for longer
than its claim lasted, and does not know it, has a smaller token than its successor, and is refused.

Run it with ``python examples/pipeline.py``. For servers of your own replace ``zkrq.embedded()`` in ``main`` by
``zkrq.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop", found=True)``.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys
import time
from contextlib import closing

import zkrq

ORDERS = 40
CLAIM_TIMEOUT = 1.0
PAUSE = 1.5

Item = dict[str, int]


class Database:
    """A table with one row per parcel, fenced by tokens."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._db.execute("CREATE TABLE parcels (id TEXT PRIMARY KEY, number INT, by TEXT, epoch INT, n INT)")

    def write(self, claim: zkrq.Claim[Item], by: str) -> bool:
        """Write the row; return whether it was written. One statement compares and writes, so no other writer can
        interfere.

        Equal tokens pass: a consumer may repeat its own write. Tokens of different items are unrelated, so the row is
        identified by the item's id.
        """
        cursor = self._db.execute(
            """
            INSERT INTO parcels VALUES (?, ?, ?, ?, ?)
            ON CONFLICT (id) DO UPDATE SET by = excluded.by, epoch = excluded.epoch, n = excluded.n
            WHERE (excluded.epoch, excluded.n) >= (parcels.epoch, parcels.n)
            """,
            (claim.id, claim.item["order"], by, *claim.token),
        )
        return cursor.rowcount == 1

    def owner(self, claim: zkrq.Claim[Item]) -> str:
        return self._db.execute("SELECT by FROM parcels WHERE id = ?", (claim.id,)).fetchone()[0]

    def count(self) -> tuple[int, int]:
        """Count the rows, and the distinct orders."""
        return self._db.execute("SELECT count(*), count(DISTINCT number) FROM parcels").fetchone()


async def main(db: Database) -> None:
    # The loss of a claim is a warning in the log, shown here with the output.
    logging.basicConfig(stream=sys.stdout, format="  log of %(name)s: %(message)s")
    pushes = 0
    packed, shipped = set[int](), set[int]()
    all_packed, all_shipped = asyncio.Event(), asyncio.Event()

    async with zkrq.embedded() as cluster:
        orders: zkrq.Queue[Item] = cluster.queue("orders")
        parcels: zkrq.Queue[Item] = cluster.queue("parcels", claim_timeout=CLAIM_TIMEOUT)

        async def pack(item: Item, claim: zkrq.Claim[Item]) -> None:
            nonlocal pushes
            # If this raises, even OutcomeUnknown, the order comes again and is pushed under the same id. Servers know
            # an id while its item is queued, and some minutes longer; after that the database's key decides.
            await parcels.push(item, id=f"parcel-{claim.id}")
            pushes += 1
            if claim.attempts == 1 and item["order"] % 4 == 0:
                raise zkrq.RetryLater(0, "as if the process had died between its push and its ack")
            packed.add(item["order"])
            if len(packed) == ORDERS:
                all_packed.set()

        async def ship(item: Item, claim: zkrq.Claim[Item]) -> None:
            if db.write(claim, "worker"):
                shipped.add(item["order"])
            if len(shipped) == ORDERS:
                all_shipped.set()

        await orders.push_many({"order": number} for number in range(ORDERS))
        async with zkrq.Worker(concurrency=4).add(orders, pack):
            await all_packed.wait()
        print(f"{pushes} pushes, {(await parcels.size()).ready} parcels")

        # Claims are extended while a process runs, so a claim expires only if the process is paused, for instance in a
        # suspended machine. This blocks the event loop, and so the extension.
        paused = await parcels.pop_one(timeout=10)
        assert paused
        print(f"the paused consumer holds {paused.id}, token {tuple(paused.token)}, and stands still")
        time.sleep(PAUSE)  # noqa: ASYNC251
        async with zkrq.Worker(concurrency=4).add(parcels, ship):
            await all_shipped.wait()

        print("all are shipped by others, now the paused consumer goes on")
        late = "written" if db.write(paused, "the paused consumer") else "refused"
        print(f"its write is {late}, the row is still of: {db.owner(paused)}")
        try:
            await paused.ack()
        except zkrq.ClaimLost as error:
            print(f"its ack is refused: {error}")
        left = sum(await orders.size()) + sum(await parcels.size())

    rows, distinct = db.count()
    print(f"{ORDERS} orders, {distinct} shipped, {rows - distinct} twice, {left} left, late write {late}")


if __name__ == "__main__":
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        asyncio.run(main(Database(connection)))
