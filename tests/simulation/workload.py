"""The work of the clients: producers and consumers that use every call, in the ways of users."""

from __future__ import annotations

import asyncio
import random
from typing import Any, NamedTuple, cast

import zkrq
from tests.simulation.administering import Administrator
from tests.simulation.faults.servers import AWAY_SECONDS
from tests.simulation.items import LONGEST_LEASE, Holder, Item, Outcome
from tests.simulation.producing import Producer
from tests.simulation.saving import Saver, saves
from tests.simulation.world import CALL_LIMIT, CLAIM_TIMEOUT, Client, Ended, Lane
from zkrq import Claim, Queue

_WAYS_TO_SETTLE = (
    ("ack", 40),
    ("block", 25),
    ("nack", 6),
    ("release", 4),
    ("bury", 3),
    ("raise", 6),
    ("later", 3),
    ("reject", 2),
    ("extend", 5),
    ("leak", 2),
)

STREAM_SECONDS = 300.0
"""Within this a consumer has as many items as it wants, or its queue is known to be empty."""

Held = tuple[Claim[Any], Item, Holder]
"""A claim in the hands of a consumer, and whose it is."""


class HandlerFailed(Exception):
    """What a user's handler raises."""


class Settling(NamedTuple):
    """One try to settle a claim; ``before``: another one may have done it already."""

    verb: str
    begun_at: float
    before: bool

    @property
    def removes(self) -> bool:
        return self.verb in ("ack", "bury")


class Workload:
    """One client's producers and consumers of one queue."""

    def __init__(
        self,
        client: Client,
        lane: Lane,
        chance: random.Random,
        *,
        items: int,
        until: float,
        consume_from: float,
    ) -> None:
        self._client = client
        self._world = client.world
        self._lane = lane
        self._chance = chance
        self._consume_from = consume_from
        self._producer = Producer(client, lane, chance, items=items, until=until)
        self._steerer = Administrator(client, lane, chance)
        own_chance = client.world.chance_for(f"{client.name} {lane.name} saving")
        self._saver = Saver(client, lane, own_chance) if saves(client.world) else None
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Start; runs in the client's process."""
        self._tasks = [
            self._client.start(self._producer.run(), "producer"),
            *(self._client.start(self._consume(), "consumer") for _ in range(self._chance.choice((1, 1, 2)))),
        ]

    async def end(self) -> None:
        """Have everything end: consumers by cancellation, unless the cluster is to be closed under them."""
        if self._chance.random() < 0.5:
            self.cancel()
        await self._client.close()
        self.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for task in self._tasks:
            if not task.cancelled() and (error := task.exception()):
                self._world.found.violation(f"{self._client.name}: {task.get_name()} ended with {error!r}")

    def cancel(self) -> None:
        """End all tasks."""
        for task in self._tasks:
            task.cancel()

    # -- consumers -----------------------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        await asyncio.sleep(max(0.0, self._consume_from - self._world.loop.now))
        while True:
            queue = self._client.queue(self._lane)
            if queue is None:
                await asyncio.sleep(0.5)
                continue
            match self._chance.choice(("stream", "stream", "one", "many", "steer", "steer")):
                case "stream":
                    # What comes back while all else is away waits at the other shard until that is back, too.
                    limit = STREAM_SECONDS + AWAY_SECONDS[1] * self._world.found.away
                    await self._client.do("pop", self._stream(queue), limit)
                case "one":
                    timeout = self._chance.choice((0, 0.5, 3.0))
                    limit = (timeout or CALL_LIMIT) + 0.01
                    ended = await self._client.do("pop_one", self._take(queue, 1, timeout), limit)
                    await self._settle_all(queue, ended)
                case "many":
                    timeout = self._chance.choice((0, 0.5, 3.0))
                    limit = (timeout or CALL_LIMIT) + 0.01
                    count = self._chance.randint(2, self._lane.setting.together + 2)
                    ended = await self._client.do("pop_many", self._take(queue, count, timeout), limit)
                    await self._settle_all(queue, ended)
                case _:
                    if self._lane.setting.results and self._chance.random() < 0.6:
                        await self._ask(cast("zkrq.ResultQueue[Any, Any]", queue))
                    else:
                        await self._steerer.act(queue)
            await asyncio.sleep(self._chance.random() * 0.5)

    async def _ask(self, queue: zkrq.ResultQueue[Any, Any]) -> None:
        """Wait for the results of some items."""
        chance, known = self._chance, [item for item in self._lane.ledger.items.values() if item.ids]
        if not known:
            return
        some = [chance.choice(known) for _ in range(chance.randint(1, 5))]
        by_id = {min(item.ids): item for item in some}
        timeout = chance.choice((0.0, 0.5, 5.0))
        begun_at = self._client.world.loop.now
        ended = await self._client.do("results", queue.results(by_id, timeout=timeout), timeout + 2 * CALL_LIMIT)
        for id, result in (ended.value or {}).items():
            self._lane.ledger.told(by_id[id], result, begun_at)

    async def _settle_all(self, queue: Queue[Any], ended: Ended[list[Held]]) -> None:
        await self._settle_held(queue, ended.value or [])

    async def _settle_held(self, queue: Queue[Any], held: list[Held], batch: zkrq.Batch[Any] | None = None) -> None:
        if held and self._chance.random() < 0.3:
            await asyncio.sleep(self._chance.random())
            await self._ack_together(queue, held, batch)
            return
        if len(held) > 1 and self._chance.random() < 0.6:
            work = (
                self._work() if self._chance.random() < 0.7 else None
            )  # ending together, they are settled in one call
            await asyncio.gather(*(self._handle(claim, item, holder, work) for claim, item, holder in held))
            return
        for claim, item, holder in held:
            await self._handle(claim, item, holder)

    async def _ack_together(self, queue: Queue[Any], held: list[Held], batch: zkrq.Batch[Any] | None = None) -> None:
        """As users are told to: again with the same claims, until it is known of each."""
        for _ in range(4):
            begun = [self._begin_settling("ack", item, holder) for _, item, holder in held]
            work = batch.ack() if batch else queue.ack_many([claim for claim, _, _ in held])
            ended = await self._client.do("ack_many", work, CALL_LIMIT)
            lost = ended.value or []
            for settling, (claim, item, holder) in zip(begun, held, strict=True):
                outcome = Outcome.DONE if claim.settled else Outcome.UNKNOWN
                if ended.outcome is Outcome.DONE:
                    outcome = Outcome.LOST if any(claim is one for one in lost) else Outcome.DONE
                self._end_settling(settling, outcome, item, holder)
            if ended.outcome not in (Outcome.UNKNOWN, Outcome.REFUSED):
                return
            held = [one for one in held if not one[0].settled]
            await asyncio.sleep(0.2)

    async def _take(self, queue: Queue[Any], count: int, timeout: float) -> list[Held]:
        if count == 1:
            claim = await queue.pop_one(timeout=timeout)
            claims = [] if claim is None else [claim]
        else:
            claims = await queue.pop_many(count, timeout=timeout)
        return [(claim, *self._client.given(self._lane, claim)) for claim in claims]

    async def _stream(self, queue: Queue[Any]) -> None:
        chance = self._chance
        limit = chance.choice((None, 5, 20))
        if limit == 20:
            await self._batches(queue)
            return
        async with queue.pop(prefetch=chance.choice((None, 0, 3)), limit=limit, wait=chance.random() < 0.8) as stream:
            async for claim in stream:
                await self._handle(claim, *self._client.given(self._lane, claim))

    async def _batches(self, queue: Queue[Any]) -> None:
        chance = self._chance
        size, within = chance.randint(1, self._lane.setting.together + 2), chance.choice((0.0, 0.0, 0.5))
        stream = queue.pop_batches(
            size,
            within=within,
            prefetch=chance.choice((None, None, 3)),
            limit=chance.choice((None, 20)),
            wait=chance.random() < 0.8,
        )
        async with stream:
            async for batch in stream:
                held = [(claim, *self._client.given(self._lane, claim)) for claim in batch]
                await self._settle_held(queue, held, batch)

    def _work(self) -> float:
        """Seconds that an item takes."""
        chance = self._chance
        work = chance.random() ** 3 * 1.5
        if chance.random() < 0.05:
            work += CLAIM_TIMEOUT * 1.2  # only extensions keep it
        return work

    async def _handle(self, claim: Claim[Any], item: Item, holder: Holder, work: float | None = None) -> None:
        """What one consumer does with one claim; ends without an error, unless it is cancelled.

        ``work``: seconds that it takes, None: as it comes.
        """
        chance = self._chance
        work = self._work() if work is None else work
        if self._saver:
            await self._saver.work(claim, item)
        ways, weights = zip(*_WAYS_TO_SETTLE, strict=True)
        way = chance.choices(ways, weights)[0]
        if way in ("block", "raise", "later", "reject"):
            await self._handle_in_block(claim, item, holder, way, work)
            return
        await asyncio.sleep(work)
        match way:
            case "ack":
                await self._settle_until_known(claim, item, holder)
            case "extend":
                await self._client.do("extend", claim.extend(chance.uniform(1.0, LONGEST_LEASE)), CALL_LIMIT)
                await self._settle_until_known(claim, item, holder)
            case "nack":
                await self._settle("nack", claim.nack(chance.uniform(0.0, 3.0)), item, holder)
            case "release":
                await self._settle("release", claim.release(), item, holder)
            case "bury":
                await self._settle("bury", claim.bury("no good"), item, holder)
            case _:
                pass  # forgotten: comes back when its time is over

    async def _settle_until_known(self, claim: Claim[Any], item: Item, holder: Holder) -> None:
        for _ in range(4):
            result = item.label if self._lane.setting.results else None
            ack = claim.ack(result=result) if result else claim.ack()
            outcome = await self._settle("ack", ack, item, holder)
            if outcome is Outcome.DONE and result:
                self._lane.ledger.left(item, result)
            if outcome not in (Outcome.UNKNOWN, Outcome.REFUSED):
                return
            await asyncio.sleep(0.2)

    async def _settle(self, verb: str, work: Any, item: Item, holder: Holder) -> Outcome:
        settling = self._begin_settling(verb, item, holder)
        ended = await self._client.do(verb, work, CALL_LIMIT)
        self._end_settling(settling, ended.outcome, item, holder)
        return ended.outcome

    def _begin_settling(self, verb: str, item: Item, holder: Holder) -> Settling:
        settling = Settling(verb, self._world.loop.now, holder.settling)
        holder.settling = True
        if verb == "nack" and not self._lane.setting.holds_group:
            self._lane.ledger.let_group_go_on(item)
        if settling.removes:
            self._lane.ledger.begin_removal(item, by_consumer=True)
        else:
            item.open_calls += 1
        return settling

    def _end_settling(self, settling: Settling, outcome: Outcome, item: Item, holder: Holder) -> None:
        ledger = self._lane.ledger
        if settling.removes:
            letters_go = self._lane.setting.drops_letters or bool(ledger.discards_begun)
            ledger.end_removal(item, outcome, letters_go=settling.verb == "bury" and letters_go)
        elif outcome in (Outcome.DONE, Outcome.REFUSED, Outcome.LOST):
            item.open_calls -= 1
        puts_back = settling.verb in ("nack", "release") and not settling.before and not self._world.rolling
        if outcome is Outcome.LOST and puts_back and not holder.claim.lost.in_doubt:
            ledger.told_lost(item, holder.claim)
        if outcome in (Outcome.REFUSED, Outcome.LOST):
            holder.settling = settling.before
        if outcome is Outcome.DONE:
            match settling.verb:
                case "ack":
                    ledger.acked(item, settling.begun_at)
                case "bury":
                    ledger.buried(item, settling.begun_at)
                case verb:
                    ledger.check_settled(verb, item, settling.begun_at)

    async def _handle_in_block(self, claim: Claim[Any], item: Item, holder: Holder, way: str, work: float) -> None:
        """``async with claim``, left in one way or another."""
        verb = {"block": "ack", "reject": "bury"}.get(way, "nack")
        leaving: Settling | None = None
        retry = self._client.code.module("base.retry")

        async def handle() -> None:
            nonlocal leaving
            async with claim:
                await asyncio.sleep(work)
                leaving = self._begin_settling(verb, item, holder)
                match way:
                    case "raise":
                        raise HandlerFailed(way)
                    case "later":
                        raise retry.RetryLater(self._chance.uniform(0.0, 3.0))
                    case "reject":
                        raise retry.Reject("no good")
                    case _:
                        pass

        async def guarded() -> None:
            try:
                await handle()
            except HandlerFailed as error:
                if getattr(error, "__notes__", None):
                    raise zkrq.OutcomeUnknown("could not be nacked") from error

        try:
            ended = await self._client.do(f"handle, {way}", guarded(), work + CALL_LIMIT)
        except asyncio.CancelledError:
            holder.settling = True
            item.open_calls += 1
            raise
        if leaving:
            self._end_settling(leaving, ended.outcome, item, holder)
        elif ended.outcome is Outcome.CANCELLED:
            holder.settling = True  # it is being handed back
            item.open_calls += 1
