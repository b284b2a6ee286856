"""Claim items a hundred at a time, insert them into SQLite together, then ack or nack each one.

One bulk insert is far cheaper than a hundred single ones. Acks are per item, so that a bad item is nacked, and finally
a dead letter, without holding up the rest of its batch; acks that are awaited together are sent together.

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


async def work_on(db: sqlite3.Connection, claims: list[zkrq.Claim[Reading]], *, dies: bool) -> None:
    """Process one batch."""
    rows: list[Row] = []
    good: list[zkrq.Claim[Reading]] = []
    failed: list[tuple[zkrq.Claim[Reading], str]] = []
    for claim in claims:
        try:
            rows.append(row_of(claim))
            good.append(claim)
        except ValueError as error:
            failed.append((claim, str(error)))
    try:
        await asyncio.to_thread(insert, db, rows)  # the claims are extended meanwhile, however long it takes
    except sqlite3.Error as error:
        failed += [(claim, str(error)) for claim in good]
        good = []
    if dies:
        print("  committed, but the consumer dies before the acks: the batch comes again")
        await asyncio.gather(*(claim.release() for claim in claims))
        return
    settled = await asyncio.gather(
        *(claim.ack() for claim in good),
        *(claim.nack(reason=reason) for claim, reason in failed),
        return_exceptions=True,  # one lost claim must not stop the other acks
    )
    for error in settled:
        if isinstance(error, zkrq.ZkrqError):
            print(f"  comes again: {error}")
        elif error is not None:
            raise error
    print(f"  {len(claims):3} items: {len(good)} acked, {len(failed)} nacked")


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
        # The ready items, at most a hundred, as soon as there are any; nothing for two seconds: done.
        while claims := await readings.pop_many(BATCH, timeout=2):
            batches += 1
            await work_on(db, claims, dies=batches == 2)
            if len(claims) < BATCH:  # no more were ready: let some more gather before the next insert
                await asyncio.sleep(LINGER)
        letters = await readings.dead_letters()
        sizes = await readings.size()
    print(f"{batches} batches; a dead letter says: {letters[0].reason}")
    (rows, distinct) = db.execute("SELECT count(*), count(DISTINCT value) FROM readings").fetchone()
    db.close()
    lost = READINGS - distinct - sizes.dead
    print(f"{READINGS} pushed, {distinct} inserted, {rows - distinct} twice, {sizes.dead} dead letters, {lost} lost")


if __name__ == "__main__":
    asyncio.run(main())
