"""Measure the physical limit: record the library's own script calls, then send them again without the library.

One client makes the calls in batches of given sizes, one operation after the other, through a recording wire.  The
queue's keys are removed, and hiredis alone sends the same calls: the same scripts with the same arguments on the same
servers.  So, whatever the library's calls look like, this is what they cost without encoding, deciding, waiting or
checking.  An operation's stages (the decision, then its application) follow each other; two operations of each kind are
in flight, a settling only after its claim is applied.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

from benchmarks.load import ITEM, Cost, Meter, open_cluster
from benchmarks.raw import RawRedis
from benchmarks.recording import Recording, ScriptCall
from zkrq import Claim, Queue
from zkrq.local import Servers
from zkrq.protocol.keys import key

IN_FLIGHT = 2
"""Operations of one kind in flight, as many as with the library's group commit."""

QUEUE = "bare"

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
    """Calls to send again: pushes; and claims, each with the settlings of its items."""

    namespace: str
    items: int
    puts: Sequence[Operation]
    claims: Sequence[tuple[Operation, Sequence[Operation]]]


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
    puts: list[Operation] = []
    claims: list[tuple[Operation, Sequence[Operation]]] = []
    async with open_cluster(servers, namespace=namespace, dial=recording.dial) as cluster:
        queue = cluster.queue(QUEUE, claim_timeout=600)
        await _warm_up(queue)
        recording.take()
        for count in _portions(items, sizes.put):
            await queue.push_many([ITEM] * count)
            puts.append(_operation(recording.take()))
        left = items
        while left:
            taken = await queue.pop_many(min(sizes.claim, left), timeout=0)
            claim = _operation(recording.take())
            settlings: list[Operation] = []
            for start in range(0, len(taken), sizes.settle):
                await asyncio.gather(*(each.ack() for each in taken[start : start + sizes.settle]))
                settlings.append(_operation(recording.take()))
            claims.append((claim, settlings))
            left -= len(taken)
    return Tape(namespace, items, puts, claims)


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
        pushing = await meter.cost(_push(wires, tape.puts))
        await _check(wires.values(), tape.namespace, tape.items)
        consuming = await meter.cost(_consume(wires, tape.claims))
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


async def _push(wires: Mapping[str, RawRedis], puts: Iterable[Operation]) -> None:
    left = iter(puts)

    async def runner() -> None:
        for operation in left:
            await _carry_out(wires, operation)

    await asyncio.gather(*(runner() for _ in range(IN_FLIGHT)))


async def _consume(wires: Mapping[str, RawRedis], claims: Sequence[tuple[Operation, Sequence[Operation]]]) -> None:
    claimed: asyncio.Queue[Operation | None] = asyncio.Queue()

    async def claimer(left: Iterator[tuple[Operation, Sequence[Operation]]]) -> None:
        for claim, settlings in left:
            await _carry_out(wires, claim)
            for settling in settlings:
                claimed.put_nowait(settling)

    async def settler() -> None:
        while operation := await claimed.get():
            await _carry_out(wires, operation)

    async def claim_all() -> None:
        left = iter(claims)
        await asyncio.gather(*(claimer(left) for _ in range(IN_FLIGHT)))
        for _ in range(IN_FLIGHT):
            claimed.put_nowait(None)

    await asyncio.gather(claim_all(), *(settler() for _ in range(IN_FLIGHT)))


async def _forget(wires: Iterable[RawRedis], namespace: str) -> None:
    """Remove all keys of the queue, and nothing else: the servers stay in the view."""
    for wire in wires:
        keys = [
            name for name in cast("list[bytes]", await wire.ask("KEYS", "*")) if name.startswith(_prefix(namespace))
        ]
        if keys:
            await wire.ask("DEL", *keys)


def _prefix(namespace: str) -> bytes:
    return key(namespace, QUEUE, "").encode()


async def _check(wires: Iterable[RawRedis], namespace: str, items: int) -> None:
    """Raise ``RuntimeError`` unless this many items are waiting or claimed."""
    for wire in wires:
        counters = cast(
            "list[bytes | None]", await wire.ask("HMGET", key(namespace, QUEUE, "lead"), "queued", "claimed")
        )
        found = sum(int(counter or 0) for counter in counters)
        if found != items:
            raise RuntimeError(f"the calls sent again left {found} items, not {items}: they were not the same")
