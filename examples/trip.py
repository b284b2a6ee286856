"""Book a flight, a hotel and a car for each trip, or undo what was booked: a saga.

What may follow is held first, then the parts are pushed. With `fail_fast` the first part that becomes a dead letter
fails the flow: parts that are still queued are cancelled, those that run are awaited, and then the refund becomes
ready, and the confirmation is dropped. The refund undoes each part that was booked, once each, though it may be
delivered again: it keeps what it has done in steps.

Run it with ``python examples/trip.py``. For servers of your own replace ``zkrq.embedded()`` by
``zkrq.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop", found=True)``.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import zkrq

TRIPS, PARTS = 10, ("flight", "hotel", "car")

Item = dict[str, object]


async def main() -> None:
    booked, confirmed = set[str](), list[object]()
    async with zkrq.embedded() as cluster:
        bookings = cluster.queue("bookings", results=zkrq.Results())
        confirmations, refunds = cluster.queue("confirmations"), cluster.queue("refunds")

        async def book(item: Item) -> str:
            if item["trip"] in (3, 7) and item["book"] == "hotel":
                raise zkrq.Reject("the hotel is full")
            booking = f"{item['book']} of trip {item['trip']}"
            booked.add(booking)
            return booking

        async def undo(booking: str) -> None:
            booked.remove(booking)  # a second time would raise KeyError

        async def refund(item: Item, claim: zkrq.Claim[Item]) -> None:
            assert claim.flow is not None
            for part in PARTS:
                result = await claim.flow.result_of(part)
                if result.state == "done":
                    await claim.step(f"undo {part}", undo, result.get())
            if claim.attempts == 1:
                raise zkrq.RetryLater(0, "as if the process had died before its ack")

        async def confirm(item: Item) -> None:
            confirmed.append(item["trip"])

        worker = zkrq.Worker(concurrency=10).add(bookings, book).add(confirmations, confirm).add(refunds, refund)
        states = list[str]()
        async with worker:
            for trip in range(1, TRIPS + 1):
                flow = bookings.flow(f"trip-{trip}", fail_fast=True)
                with suppress(zkrq.FlowEnded):  # a part has failed before the last one was pushed
                    async with flow:
                        await flow.then({"trip": trip}, queue=confirmations)
                        await flow.on_failure({"trip": trip}, queue=refunds)
                        for part in PARTS:
                            await flow.push({"trip": trip, "book": part}, name=part)
                states.append((await flow.result(timeout=30)).state)
            while any([sum(await queue.size()) for queue in (confirmations, refunds)]):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    print(f"{states.count('done')} trips booked, {states.count('failed')} refunded")
    print(f"{len(confirmed)} confirmations, {len(booked)} bookings are left")


if __name__ == "__main__":
    asyncio.run(main())
