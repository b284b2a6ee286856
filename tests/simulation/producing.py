"""Produce items: pushes of every kind, as users make them."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from typing import Any

import zkrq
from tests.simulation.items import Item, Outcome, Push
from tests.simulation.world import CALL_LIMIT, OPERATION_TIMEOUT, Client, Ended, Lane
from zkrq import Closed, ConfigError, OutcomeUnknown, Queue, QueueFull, Receipt, Receipts, ZkrqError
from zkrq.producing.bundling import chunks

FOR_EVER = 100_000.0
"""Seconds to live that no run lasts."""


def with_ballast(label: str, ballast: int) -> str:
    """An item that is found by its label, and larger than that."""
    return label.ljust(len(label) + ballast)


class Producer:
    """One client's producer for one queue."""

    def __init__(self, client: Client, lane: Lane, chance: random.Random, *, items: int, until: float) -> None:
        self._client = client
        self._lane = lane
        self._ledger = lane.ledger
        self._setting = lane.setting
        self._chance = chance
        self._items = items
        self._until = until
        self._numbers = itertools.count()

    async def run(self) -> None:
        """Push so many items, or for so long."""
        loop, chance = self._client.world.loop, self._chance
        pause = min(1.0, self._client.world.shape.seconds / max(1, self._items)) * 2
        left = self._items
        while left > 0 and loop.now < self._until:
            queue = self._client.queue(self._lane)
            if queue is None:
                await asyncio.sleep(0.5)
                continue
            match chance.choice(("push", "push", "repeat", "repeat", "many", "many", "burst")):
                case "push":
                    await self._push(queue)
                    left -= 1
                case "repeat":
                    await self._push_until_known(queue)
                    left -= 1
                case "many":
                    left -= await self._push_many(queue)
                case _:
                    left -= await self._burst(queue)
            await asyncio.sleep(chance.random() ** 2 * pause)

    def _new_item(self, options: dict[str, Any]) -> Item:
        """An item, and the group that it is to be pushed into."""
        label = f"{self._lane.name} {self._client.name}-{next(self._numbers)}"
        return self._ledger.new_item(
            label,
            delay=options.get("delay", 0.0),
            priority=options.get("priority", 0),
            key=options.get("key", ""),
            ttl=options.get("ttl"),
            group=options.get("group", self._ledger.default_group),
            window=options.get("key_window", 0.0),
        )

    def _packed(self, item: Item) -> str:
        return with_ballast(item.label, self._client.world.shape.ballast)

    def _options(self) -> dict[str, Any]:
        chance, setting = self._chance, self._setting
        options: dict[str, Any] = {}
        if chance.random() < 0.2:
            options["delay"] = chance.uniform(0.1, 6.0)
        if chance.random() < 0.2:
            options["priority"] = chance.randrange(10)
        if chance.random() < setting.expiring:
            living = chance.choice((chance.uniform(0.2, 5.0), chance.uniform(5.0, 30.0), FOR_EVER))
            options["ttl"] = options.get("delay", 0.0) + living
        if setting.ordered:
            options.pop("delay", None)
            options.pop("priority", None)
        return options

    def _group(self) -> dict[str, Any]:
        groups = self._setting.groups if self._client.at_latest_level else 0
        if not groups or self._chance.random() >= 0.8:
            return {}
        self._ledger.counts["pushed into a group"] += 1
        return {"group": f"group {self._chance.randrange(groups)}"}

    def _options_of_one(self) -> dict[str, Any]:
        options = self._options() | self._group()
        if self._chance.random() < self._setting.keyed:
            options["key"] = self._chance.choice(self._setting.keys)
            setting = self._setting
            replacing, windows = (setting.replacing, setting.windows) if self._client.at_latest_level else (0.0, 0.0)
            if replacing and self._chance.random() < replacing:
                options["replace"] = True
            elif windows and self._chance.random() < windows:
                options["key_window"] = self._chance.choice((1.0, 4.0, 15.0))
        return options

    def _note(self, push: Push, ended: Ended[Receipt], *, is_plain: bool = False) -> None:
        self._ledger.counts["plain pushes"] += is_plain
        if is_plain and self._client.world.only_shards_go and ended.outcome is Outcome.REFUSED:
            self._ledger.violation(f"not pushed, though a shard is there: {push.item.label}, {ended.error!r}")
        if self._client.world.only_maps_change and _has_failed(ended):
            self._ledger.violation(f"not pushed, though only the map changes: {push.item.label}, {ended.error!r}")
        if ended.outcome is Outcome.DONE:
            if not self._client.is_unaware(self._lane):
                self._ledger.declared()
            assert ended.value
            self._ledger.pushed(push, self._client.code.translated(ended.value))
        else:
            self._ledger.push_failed(push, ended.outcome, ended.error)

    async def _push(self, queue: Queue[Any]) -> None:
        options = self._options_of_one()
        item = self._new_item(options)
        if "key" in options:
            options["id"] = zkrq.new_id()
            self._ledger.name(item, options["id"])
        push = self._ledger.begin_push(item, replaces="replace" in options)
        self._note(push, await self._client.do("push", queue.push(self._packed(item), **options), CALL_LIMIT))

    async def _push_until_known(self, queue: Queue[Any]) -> None:
        """As users are told to: again with the same id, until it is known to be there."""
        options = self._options_of_one()
        item = self._new_item(options)
        id = f"own {item.label}" if self._chance.random() < 0.5 else zkrq.new_id()
        self._ledger.name(item, id)
        await self._repeat(item, id, options)

    async def _repeat(self, item: Item, id: str, options: dict[str, Any]) -> None:
        while self._client.world.loop.now < self._until:
            open_queue = self._client.queue(self._lane)
            if open_queue is None:
                await asyncio.sleep(0.5)
                continue
            push = self._ledger.begin_push(item, replaces="replace" in options)
            ended = await self._client.do(
                "push again", open_queue.push(self._packed(item), id=id, **options), CALL_LIMIT
            )
            self._note(push, ended)
            if ended.outcome is Outcome.DONE or isinstance(ended.error, ConfigError):
                return
            await asyncio.sleep(0.3)

    def _several(self, *, many: bool) -> tuple[dict[str, Any], list[Item]]:
        """Items to be pushed together, most of them in bundles: those have no life of their own.

        ``many``: by one call, so into one group.
        """
        chance = self._chance
        options = self._options() if chance.random() < 0.3 else {}
        group, count = self._group(), chance.randint(2, self._setting.together)
        return options, [self._new_item(options | (group if many else self._group())) for _ in range(count)]

    async def _push_many(self, queue: Queue[Any]) -> int:
        options, items = self._several(many=True)
        pushes = [self._ledger.begin_push(item) for item in items]
        packed = [self._packed(item) for item in items]
        work = queue.push_many(packed, **_with_group(options, items[0]))
        # Batches of an ordered queue leave one after the other, each with a time of its own.
        batches = len(list(chunks(text.encode() for text in packed))) if self._setting.ordered else 1
        ended = await self._client.do("push_many", work, CALL_LIMIT + (batches - 1) * OPERATION_TIMEOUT)
        await self._end_several(options, pushes, self._outcomes(ended, len(items)))
        return len(items)

    async def _burst(self, queue: Queue[Any]) -> int:
        """Single pushes that leave together."""
        options, items = self._several(many=False)
        pushes = [self._ledger.begin_push(item) for item in items]
        works = [queue.push(self._packed(item), **_with_group(options, item)) for item in items]
        await self._end_several(
            options, pushes, await asyncio.gather(*(self._client.do("push", work, CALL_LIMIT) for work in works))
        )
        return len(items)

    async def _end_several(self, options: dict[str, Any], pushes: list[Push], ended: list[Ended[Receipt]]) -> None:
        """Mostly repeat, one by one, those of which it is not known whether they happened."""
        unknown: list[tuple[Item, str]] = []
        for push, outcome, id in zip(pushes, ended, _ids(ended), strict=True):
            self._note(push, outcome, is_plain=self._setting.max_size is None)
            if id:
                self._ledger.name(push.item, id)
                unknown.append((push.item, id))
        self._ledger.counts["items of several pushed again"] += len(unknown)
        for item, id in unknown:
            if self._chance.random() < 0.8:
                await self._repeat(item, id, _with_group(options, item))

    def _outcomes(self, ended: Ended[Receipts], count: int) -> list[Ended[Receipt]]:
        """How each push of a ``push_many`` ended."""
        if ended.value is not None:
            return [Ended(Outcome.DONE, receipt) for receipt in ended.value]
        receipts = ended.error.outcomes if isinstance(ended.error, ZkrqError) else None
        if receipts is None:
            return [Ended(ended.outcome, None, ended.error)] * count
        return [
            self._client.judge("push_many", outcome) if isinstance(outcome, ZkrqError) else Ended(Outcome.DONE, outcome)
            for outcome in receipts.outcomes()
        ]


def _has_failed(ended: Ended[Receipt]) -> bool:
    """Tell whether a push has failed, for another reason than that its queue is full or its cluster is closed.

    Nor for an item before it in an ordered group, which is judged by itself.
    """
    if "since an item before it was not" in str(ended.error):
        return False
    return ended.outcome in (Outcome.UNKNOWN, Outcome.REFUSED) and not isinstance(ended.error, QueueFull | Closed)


def _with_group(options: dict[str, Any], item: Item) -> dict[str, Any]:
    return options | {"group": item.group} if item.group else options


def _ids(ended: list[Ended[Receipt]]) -> list[str]:
    """The id under which each push may have happened, empty if it is known whether it did.

    Pushes that share an error are its ids, in order.
    """
    ids: list[str] = []
    of_error: dict[int, Iterator[str]] = {}
    for one in ended:
        error = one.error
        if isinstance(error, OutcomeUnknown):
            ids.append(next(of_error.setdefault(id(error), iter(error.ids)), ""))
        else:
            ids.append("")
    return ids
