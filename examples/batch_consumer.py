"""Claim items a hundred at a time, insert them into SQLite together, then ack or nack each one.

One bulk insert is far cheaper than a hundred single ones, and so is one ack. A bad item is nacked by itself, and is a
dead letter in the end, without holding up the rest of its batch.

Run it with ``python examples/batch_consumer.py``. For servers of your own replace ``zkrq.embedded()`` in ``main`` by
``zkrq.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop", found=True)``.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import zkrq

READINGS = 1_000
BATCH = 100
LINGER = 0.2
LATE_SENSOR, BROKEN_SENSOR = 7, 13  # of READINGS // 20 sensors

Reading = dict[str, Any]
Row = tuple[str, int, float]


def row_of(claim: zkrq.Claim[Reading]) -> Row:
    """Return the row to insert. Raises ``ValueError``."""
    sensor, value = claim.item["sensor"], claim.item["value"]
    if sensor == LATE_SENSOR and claim.attempts == 1:
        raise ValueError("the sensor is not registered yet")  # waiting helps
    return claim.id, sensor, float(value)  # the broken sensor's value is not a number, and never will be


def insert(db: sqlite3.Connection, rows: list[Row]) -> None:
    """Insert all or none. Items may come again after their commit (see ``main``): their ids prevent duplicates."""
    with db:
        db.executemany("INSERT INTO readings VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING", rows)


async def work_on(db: sqlite3.Connection, batch: zkrq.Batch[Reading], *, dies: bool) -> None:
    """Process one batch."""
    rows: list[Row] = []
    failed: list[tuple[zkrq.Claim[Reading], str]] = []
    for claim in batch:
        try:
            rows.append(row_of(claim))
        except ValueError as error:
            failed.append((claim, str(error)))
    await asyncio.to_thread(insert, db, rows)  # the claims are extended meanwhile, however long it takes
    if dies:
        print("  committed, but the consumer dies before the acks: the batch comes again")
        await batch.release()
        return
    await asyncio.gather(*(claim.nack(reason=reason) for claim, reason in failed))
    print(f"  {len(batch):3} items: {len(rows)} acked, {len(failed)} nacked")


async def main() -> None:
    db = sqlite3.connect(":memory:", check_same_thread=False)  # used by one thread at a time: one batch after the other
    db.execute("CREATE TABLE readings (id TEXT PRIMARY KEY, sensor INTEGER, value REAL)")
    async with zkrq.embedded() as cluster:
        retry = zkrq.Retry(max_attempts=4, backoff=zkrq.constant(0.3))
        readings: zkrq.Queue[Reading] = cluster.queue("readings", retry=retry)
        sensors = READINGS // 20
        await readings.push_many(
            {"sensor": n % sensors, "value": "broken" if n % sensors == BROKEN_SENSOR else n} for n in range(READINGS)
        )
        batches = 0
        async with readings.pop_batches(BATCH, within=LINGER) as stream:
            async for batch in stream:
                batches += 1
                async with batch:  # acks what the body has not settled; if the insert fails, all are nacked
                    await work_on(db, batch, dies=batches == 2)
                sizes = await readings.size()
                if not (sizes.ready or sizes.scheduled or sizes.claimed):
                    break
        letters = await readings.dead_letters()
        sizes = await readings.size()
    print(f"{batches} batches; a dead letter says: {letters[0].reason}")
    (rows, distinct) = db.execute("SELECT count(*), count(DISTINCT value) FROM readings").fetchone()
    db.close()
    lost = READINGS - distinct - sizes.dead
    print(f"{READINGS} pushed, {distinct} inserted, {rows - distinct} twice, {sizes.dead} dead letters, {lost} lost")


if __name__ == "__main__":
    asyncio.run(main())
