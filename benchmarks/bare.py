"""Measure the physical limit: record the library's own script calls, then send them again without the library.

One client makes the calls in batches of given sizes, one operation after the other, through a recording wire.  The
queues' keys are removed, and hiredis alone sends the same calls: the same scripts with the same arguments on the same
servers.  So, whatever the library's calls look like, this is what they cost without encoding, deciding, waiting or
checking.  An operation's stages (the decision, then its application) follow each other, and so do the operations of a
queue: a record that is applied holds a whole bundle as it was left by the operation before.  Several queues keep the
servers busy.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, cast

from benchmarks.load import ITEM, Cost, Meter, open_cluster
from benchmarks.raw import RawRedis
from benchmarks.recording import Recording, ScriptCall
from zkrq import Claim, Queue
from zkrq.local import Servers
from zkrq.protocol.keys import key

QUEUES = tuple(f"bare-{number}" for number in range(4))
"""Each has one operation in flight: together as many as two of each kind, which is what the library keeps in flight."""

Stage = Sequence[ScriptCall]
Operation = Sequence[Stage]
"""Calls that are sent together, stage after stage."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Items per script call."""

    put: int
    claim: int
    settle: int


@dataclass(frozen=True, slots=True)
class Tape:
    """Calls to send again: for each queue the pushes; and the claims, each followed by the settlings of its items."""

    namespace: str
    items: int
    pushing: Sequence[Sequence[Operation]]
    consuming: Sequence[Sequence[Operation]]


@dataclass(frozen=True, slots=True)
class Rates:
    """Items per second."""

    push: float
    consume: float
    cost: Cost
    """Cost of the whole cycle, in microseconds per item."""

    @property
    def cycle(self) -> float:
        """Items per second of a push and then a claim with its ack."""
        return 1 / (1 / self.push + 1 / self.consume)


async def capture(servers: Servers, sizes: Sizes, items: int) -> Tape:
    """Push and consume this many items by the library in batches of these sizes; return the calls that it sends."""
    recording = Recording()
    namespace = f"bare-{secrets.token_hex(4)}"
    pushing: list[Sequence[Operation]] = []
    consuming: list[Sequence[Operation]] = []
    share = -(-items // len(QUEUES))
    async with open_cluster(servers, namespace=namespace, dial=recording.dial) as cluster:
        for name in QUEUES:
            queue = cluster.queue(name, claim_timeout=600)
            await _warm_up(queue)
            recording.take()
            pushing.append(await _push(queue, sizes, share, recording))
            consuming.append(await _consume(queue, sizes, share, recording))
    return Tape(namespace, share * len(QUEUES), pushing, consuming)


async def _push(queue: Queue[Any], sizes: Sizes, items: int, recording: Recording) -> Sequence[Operation]:
    puts: list[Operation] = []
    for count in _portions(items, sizes.put):
        await queue.push_many([ITEM] * count)
        puts.append(_operation(recording.take()))
    return puts


async def _consume(queue: Queue[Any], sizes: Sizes, items: int, recording: Recording) -> Sequence[Operation]:
    operations: list[Operation] = []
    while items:
        taken = await queue.pop_many(min(sizes.claim, items), timeout=0)
        operations.append(_operation(recording.take()))
        for start in range(0, len(taken), sizes.settle):
            await asyncio.gather(*(each.ack() for each in taken[start : start + sizes.settle]))
            operations.append(_operation(recording.take()))
        items -= len(taken)
    return operations


async def _warm_up(queue: Queue[Any]) -> None:
    """Load every script on every server, and enrol the owner."""
    await queue.push(ITEM)
    claim: Claim[Any] | None = await queue.pop_one()
    assert claim
    await claim.ack()


def _portions(whole: int, size: int) -> Iterator[int]:
    for start in range(0, whole, size):
        yield min(size, whole - start)


def _operation(calls: Iterable[ScriptCall]) -> Operation:
    return [list(stage) for _, stage in groupby(calls, key=lambda call: call.script)]


async def replay(servers: Servers, tape: Tape, meter: Meter) -> Rates:
    """Send a tape again, to the servers on which it was recorded.

    At most five minutes after its recording: later the scripts refuse its pushes.
    """
    wires = {server.url: await RawRedis.open(server.url) for server in servers.redis}
    try:
        await _forget(wires.values(), tape.namespace)
        pushing = await meter.cost(_send(wires, tape.pushing))
        await _check(wires.values(), tape.namespace, tape.items)
        consuming = await meter.cost(_send(wires, tape.consuming))
        await _check(wires.values(), tape.namespace, 0)
    finally:
        for wire in wires.values():
            wire.close()
    return rates(tape.items, pushing, consuming)


def rates(items: int, pushing: Cost, consuming: Cost) -> Rates:
    """Compute the rates of the two phases."""
    return Rates(items / pushing.wall, items / consuming.wall, (pushing + consuming).each(items))


async def _carry_out(wires: Mapping[str, RawRedis], operation: Operation) -> None:
    for stage in operation:
        for reply in [wires[call.url].call(call.words) for call in stage]:
            answer = await reply
            if not isinstance(answer, list) or answer[0] != b"OK":
                raise RuntimeError(f"{stage[0].script} sent again was answered {answer!r}")


async def _send(wires: Mapping[str, RawRedis], queues: Iterable[Sequence[Operation]]) -> None:
    async def one(operations: Iterable[Operation]) -> None:
        for operation in operations:
            await _carry_out(wires, operation)

    await asyncio.gather(*map(one, queues))


async def _forget(wires: Iterable[RawRedis], namespace: str) -> None:
    """Remove all keys of the queues, and nothing else: the servers stay in the view."""
    prefixes = tuple(key(namespace, name, "").encode() for name in QUEUES)
    for wire in wires:
        keys = [name for name in cast("list[bytes]", await wire.ask("KEYS", "*")) if name.startswith(prefixes)]
        if keys:
            await wire.ask("DEL", *keys)


async def _check(wires: Iterable[RawRedis], namespace: str, items: int) -> None:
    """Raise ``RuntimeError`` unless this many items are waiting or claimed on each server."""
    for wire in wires:
        leads = [await wire.ask("HMGET", key(namespace, name, "lead"), "queued", "claimed") for name in QUEUES]
        found = sum(int(number or 0) for number in chain.from_iterable(cast("list[list[bytes | None]]", leads)))
        if found != items:
            raise RuntimeError(f"the calls sent again left {found} items, not {items}: they were not the same")
