"""What the clients do: producers and consumers who use every call there is, in ways that users do."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import zkrq
from tests.simulation.ledger import Holder, Item
from tests.simulation.world import CLAIM_TIMEOUT, OPERATION_TIMEOUT, SLACK, Client, Ended, Outcome
from zkrq import Claim, Queue

CALL_LIMIT = 2 * OPERATION_TIMEOUT + SLACK
"""A call may wait for a batch to leave, then for its batch."""

PRODUCING_SECONDS = 30.0

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


class HandlerFailed(Exception):
    """What a user's handler raises."""


class Workload:
    """One client's producers and consumers."""

    def __init__(
        self,
        client: Client,
        chance: random.Random,
        *,
        items: int,
        until: float,
        consume_from: float,
        clears: bool,
    ) -> None:
        self._client = client
        self._world = client.world
        self._chance = chance
        self._items = items
        self._until = until
        self._consume_from = consume_from
        self._clears = clears
        self._numbers = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Start; runs in the client's process."""
        self._tasks = [
            self._client.start(self._produce(), "producer"),
            *(self._client.start(self._consume(), "consumer") for _ in range(self._chance.choice((1, 1, 2)))),
        ]

    async def end(self) -> None:
        """Have everything end: consumers by cancellation, unless the cluster is to be closed under them."""
        if self._chance.random() < 0.5:
            for task in self._tasks:
                task.cancel()
        await self._client.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for task in self._tasks:
            if not task.cancelled() and (error := task.exception()):
                self._world.ledger.violation(f"{self._client.name}: {task.get_name()} ended with {error!r}")

    # -- producers -----------------------------------------------------------------------------------------------------

    def _label(self) -> str:
        return f"{self._client.name}-{next(self._numbers)}"

    async def _produce(self) -> None:
        loop, chance = self._world.loop, self._chance
        pause = min(1.0, PRODUCING_SECONDS / max(1, self._items)) * 2
        left = self._items
        while left > 0 and loop.now < self._until:
            queue = self._client.queue()
            if queue is None:
                await asyncio.sleep(0.5)
                continue
            match chance.choice(("push", "push", "repeat", "repeat", "many")):
                case "push":
                    await self._push(queue)
                    left -= 1
                case "repeat":
                    await self._push_until_known(queue)
                    left -= 1
                case _:
                    left -= await self._push_many(queue)
            await asyncio.sleep(chance.random() ** 2 * pause)

    def _options(self) -> dict[str, Any]:
        chance = self._chance
        options: dict[str, Any] = {}
        if chance.random() < 0.2:
            options["delay"] = chance.uniform(0.1, 6.0)
        if chance.random() < 0.2:
            options["priority"] = chance.randrange(10)
        return options

    def _note_push(self, items: list[Item], ended: Ended[Any]) -> None:
        for item in items:
            match ended.outcome:
                case Outcome.DONE:
                    item.confirmed = True
                    item.open_calls -= 1
                case Outcome.REFUSED:
                    item.open_pushes -= 1
                    item.open_calls -= 1
                case _:
                    pass

    async def _push(self, queue: Queue[Any]) -> None:
        options = self._options()
        item = self._world.ledger.new_item(self._label(), options.get("delay", 0.0))
        item.begin_push()
        self._note_push([item], await self._client.do("push", queue.push(item.label, **options), CALL_LIMIT))

    async def _push_until_known(self, queue: Queue[Any]) -> None:
        """As users are told to: again with the same id, until it is known to be there."""
        options = self._options()
        item = self._world.ledger.new_item(self._label(), options.get("delay", 0.0))
        id = zkrq.new_id()
        while not item.confirmed and self._world.loop.now < self._until:
            open_queue = self._client.queue()
            if open_queue is None:
                await asyncio.sleep(0.5)
                continue
            item.begin_push()
            work = open_queue.push(item.label, id=id, **options)
            self._note_push([item], await self._client.do("push again", work, CALL_LIMIT))
            if not item.confirmed:
                await asyncio.sleep(0.3)

    async def _push_many(self, queue: Queue[Any]) -> int:
        options = self._options()
        labels = [self._label() for _ in range(self._chance.randint(2, 6))]
        items = [self._world.ledger.new_item(label, options.get("delay", 0.0)) for label in labels]
        for item in items:
            item.begin_push()
        self._note_push(items, await self._client.do("push_many", queue.push_many(labels, **options), CALL_LIMIT))
        return len(items)

    # -- consumers -----------------------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        await asyncio.sleep(max(0.0, self._consume_from - self._world.loop.now))
        while True:
            queue = self._client.queue()
            if queue is None:
                await asyncio.sleep(0.5)
                continue
            match self._chance.choice(("stream", "stream", "one", "many", "size", "look")):
                case "stream":
                    await self._client.do("pop", self._stream(queue), 300.0)
                case "one":
                    timeout = self._chance.choice((0, 0.5, 3.0))
                    limit = (timeout or CALL_LIMIT) + 0.01
                    ended = await self._client.do("pop_one", self._take(queue, 1, timeout), limit)
                    await self._settle_all(ended)
                case "many":
                    timeout = self._chance.choice((0, 0.5, 3.0))
                    limit = (timeout or CALL_LIMIT) + 0.01
                    count = self._chance.randint(2, 8)
                    await self._settle_all(await self._client.do("pop_many", self._take(queue, count, timeout), limit))
                case "look":
                    await self._look(queue)
                case _:
                    await self._client.do("size", queue.size(), CALL_LIMIT)
            if self._clears and self._chance.random() < 0.1:
                await self._clear(queue)
            await asyncio.sleep(self._chance.random() * 0.5)

    async def _clear(self, queue: Queue[Any]) -> None:
        """Whatever was pushed before this ends may be gone; what is pushed later may not."""
        self._world.ledger.open_clears += 1
        ended = await self._client.do("clear", queue.clear(), 4 * CALL_LIMIT)
        if ended.outcome is Outcome.DONE:
            self._world.ledger.open_clears -= 1
        for item in self._world.ledger.items.values():
            item.open_removals += 1
            item.open_calls += 1

    async def _look(self, queue: Queue[Any]) -> None:
        """See what there is; cancel one item now and then, and give dead letters another chance."""
        chance = self._chance
        state = chance.choice(("ready", "scheduled", "claimed", "dead"))
        seen = (await self._client.do("peek", queue.peek(5, state), CALL_LIMIT)).value or []
        if not seen:
            await self._client.do("scan", self._scan(queue), 10 * CALL_LIMIT)
            return
        one = chance.choice(seen)
        await self._client.do("get", queue.get(one.id), CALL_LIMIT)
        if state == "dead":
            await self._redrive(queue, [item.id for item in seen], [str(item.item) for item in seen])
        elif chance.random() < 0.3:
            await self._cancel(queue, one.id, str(one.item))

    async def _scan(self, queue: Queue[Any]) -> int:
        return len([item async for item in queue.scan()])

    async def _cancel(self, queue: Queue[Any], id: str, label: str) -> None:
        """It may be gone from now on; who was given it before may still have it."""
        item = self._world.ledger.items[label]
        item.ids.add(id)
        item.open_removals += 1
        item.open_calls += 1
        ended = await self._client.do("cancel", queue.cancel(id), CALL_LIMIT)
        if ended.outcome is Outcome.REFUSED:
            item.open_removals -= 1
            item.open_calls -= 1

    async def _redrive(self, queue: Queue[Any], ids: list[str], labels: list[str]) -> None:
        """They are to be delivered again."""
        items = [self._world.ledger.items[label] for label in labels]
        for item, id in zip(items, ids, strict=True):
            item.ids.add(id)
            item.redriven = True
            item.open_removals += 1  # dead again, it may stay so
            item.open_calls += 1
        await self._client.do("redrive", queue.redrive(ids), 4 * CALL_LIMIT)

    async def _settle_all(self, ended: Ended[list[tuple[Claim[Any], Item, Holder]]]) -> None:
        for claim, item, holder in ended.value or ():
            await self._handle(claim, item, holder)

    async def _take(self, queue: Queue[Any], count: int, timeout: float) -> list[tuple[Claim[Any], Item, Holder]]:
        if count == 1:
            claim = await queue.pop_one(timeout=timeout)
            claims = [] if claim is None else [claim]
        else:
            claims = await queue.pop_many(count, timeout=timeout)
        return [(claim, *self._client.given(claim)) for claim in claims]

    async def _stream(self, queue: Queue[Any]) -> None:
        chance = self._chance
        limit = chance.choice((None, 5, 20))
        async with queue.pop(prefetch=chance.choice((None, 0, 3)), limit=limit, wait=chance.random() < 0.8) as stream:
            async for claim in stream:
                await self._handle(claim, *self._client.given(claim))

    async def _handle(self, claim: Claim[Any], item: Item, holder: Holder) -> None:
        """What one consumer does with one claim; ends without an error, unless it is cancelled."""
        chance = self._chance
        work = chance.random() ** 3 * 1.5
        if chance.random() < 0.05:
            work += CLAIM_TIMEOUT * 1.2  # only extensions keep it
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
                await self._client.do("extend", claim.extend(chance.uniform(1.0, 10.0)), CALL_LIMIT)
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
            outcome = await self._settle("ack", claim.ack(), item, holder)
            if outcome not in (Outcome.UNKNOWN, Outcome.REFUSED):
                return
            await asyncio.sleep(0.2)

    async def _settle(self, verb: str, work: Any, item: Item, holder: Holder) -> Outcome:
        removes = verb in ("ack", "bury")
        before = holder.settling
        holder.settling = True
        item.open_removals += removes
        item.open_calls += 1
        ended = await self._client.do(verb, work, CALL_LIMIT)
        self._note_settled(verb, ended.outcome, item, holder, before=before)
        return ended.outcome

    def _note_settled(self, verb: str, outcome: Outcome, item: Item, holder: Holder, *, before: bool) -> None:
        removes = verb in ("ack", "bury")
        match outcome:
            case Outcome.DONE:
                item.acked = item.acked or verb == "ack"
                item.buried = item.buried or verb == "bury"
                item.open_removals -= removes
                item.open_calls -= 1
            case Outcome.REFUSED | Outcome.LOST:
                item.open_removals -= removes
                item.open_calls -= 1
                holder.settling = before
            case _:
                pass

    async def _handle_in_block(self, claim: Claim[Any], item: Item, holder: Holder, way: str, work: float) -> None:
        """``async with claim``, left in one way or another."""
        verb = {"block": "ack", "reject": "bury"}.get(way, "nack")
        removes = verb in ("ack", "bury")
        leaving = False

        async def handle() -> None:
            nonlocal leaving
            async with claim:
                await asyncio.sleep(work)
                leaving = holder.settling = True
                item.open_removals += removes
                item.open_calls += 1
                match way:
                    case "raise":
                        raise HandlerFailed(way)
                    case "later":
                        raise zkrq.RetryLater(self._chance.uniform(0.0, 3.0))
                    case "reject":
                        raise zkrq.Reject("no good")
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
            self._note_settled(verb, ended.outcome, item, holder, before=False)
        elif ended.outcome is Outcome.CANCELLED:
            holder.settling = True  # it is being handed back
            item.open_calls += 1
