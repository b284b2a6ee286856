"""What a client of the scenarios of flows does."""

from __future__ import annotations

from typing import Any, TypeVar

from tests.simulation.stage import Actor
from zkrq import Queue
from zkrq.base import clock
from zkrq.protocol import calls
from zkrq.protocol.flow_names import named
from zkrq.protocol.flows import Look, Tending
from zkrq.protocol.flows import Stage as Step
from zkrq.protocol.operations import OPERATIONS
from zkrq.protocol.payloads import join, with_headers
from zkrq.protocol.pushing import Pushes
from zkrq.protocol.records import HELD, MEMBER, Opens, fresh, held_for, waiting_for, with_fields
from zkrq.protocol.steps import Operation
from zkrq.replication.replicas import Replicas

T = TypeVar("T")

KEEP_MS = 600_000

OTHER = "other"
"""A further queue in which the flow has members."""


class Maker:
    """What a client does with flows."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.queue = actor.queue.name
        self.flow = f"{self.queue}/f"

    async def run(self, operation: Operation[T], queue: str = "") -> T:
        client: Any = self.actor.cluster._client  # pyright: ignore[reportPrivateUsage]
        replicas: Replicas = (await client.shards.home(queue or self.queue)).replicas

        async def work() -> T:
            return await replicas.run(operation)

        return await self.actor.do(work())

    async def tend(self, tending: Tending[T]) -> T:
        """Carry out what is about several queues."""
        result: Any = None
        try:
            while True:
                queue, operation, _ = tending.send(result)
                result = await self.run(operation, queue)
        except StopIteration as stop:
            return stop.value

    async def steer(self, verb: str, queue: str = "", **given: Any) -> Step:
        queue = queue or self.queue
        reply = await self.run(OPERATIONS.steer(queue, self.flow, verb, keep_ms=KEEP_MS, **given), queue)
        return Step(reply.now.decode())

    async def join(self, queue: str = OTHER) -> Look:
        return await self.tend(OPERATIONS.join_leg(queue, self.flow))

    async def push(self, id: str, queue: str = "") -> Pushes:
        queue = queue or self.queue
        return await self.run(OPERATIONS.push_plain(queue, [self._put(id, MEMBER)]), queue)

    async def add(self, id: str, kind: str = MEMBER, *, queue: str = "", opens: Opens = Opens.THEN) -> Pushes:
        queue = queue or self.queue
        call = calls.PushDecided(queue, [self._put(id, kind, opens)], in_order=True)
        return await self.run(OPERATIONS.push_decided(call), queue)

    async def follow(self, id: str, *, queue: str = "", opens: Opens = Opens.THEN) -> Pushes:
        return await self.add(id, HELD, queue=queue, opens=opens)

    def _put(self, id: str, kind: str, opens: Opens = Opens.THEN) -> calls.Put:
        field = held_for(self.flow.encode(), opens) if kind == HELD else self.flow.encode()
        record = with_fields(fresh(0, clock.now_ms()), {kind: field})
        return calls.Put(id, record, join([with_headers(b'"%b"' % id.encode(), {})]))

    async def wait(self, id: str, *names: str, queue: str = "", of: str = "") -> Pushes:
        """Add a member that waits for others, of the queue ``of``."""
        queue, of = queue or self.queue, of or self.queue
        await self.steer("wait")
        fields = {MEMBER: self.flow.encode(), HELD: waiting_for([named(of, name) for name in names])}
        put = calls.Put(
            id, with_fields(fresh(0, clock.now_ms()), fields), join([with_headers(b'"%b"' % id.encode(), {})])
        )
        return await self.run(OPERATIONS.push_decided(calls.PushDecided(queue, [put], in_order=True)), queue)

    async def end(self) -> Look:
        return await self.tend(OPERATIONS.tend_flow(self.queue, self.flow))


async def ack(actor: Actor, queue: Queue[Any], item: str) -> None:
    """Claim and ack the next item of a queue, which has to be this one."""
    claim = await actor.do(queue.pop_one(timeout=20))
    assert claim
    assert claim.item == item
    await actor.do(claim.ack())
