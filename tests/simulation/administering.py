"""Use a queue in other ways than pushing and claiming: look at it, remove items, pause it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.simulation.ensemble import GHOST
from tests.simulation.flowing import QUEUES
from tests.simulation.items import Item, Outcome
from tests.simulation.world import CALL_LIMIT, Client, Lane
from zkrq import Cancellation, Queue, Statistics
from zkrq.client.items import Item as SeenItem

PAUSE_SECONDS = 3600.0
"""Virtual seconds of a pause that ends by itself: more than a run has."""

RESUME_TRIES = 4


class Administrator:
    """The calls of one client, one at a time."""

    def __init__(self, client: Client, lane: Lane, chance: random.Random) -> None:
        self._client = client
        self._world = client.world
        self._ledger = lane.ledger
        self._lane = lane
        self._chance = chance

    async def act(self, queue: Queue[Any]) -> None:
        """Do something."""
        chance, setting = self._chance, self._lane.setting
        match chance.choices(("look", "size", "statistics", "consumers"), (5, 2, 2, 1))[0]:
            case "look":
                await self._look(queue)
            case "size":
                await self._size(queue)
            case "statistics":
                await self._statistics(queue)
            case _:
                await self._consumers()
        if setting.clears and chance.random() < 0.2:
            await self._clear(queue)
        if setting.deletes and chance.random() < 0.2:
            await self._delete(queue)
        if setting.pauses and chance.random() < 0.25:
            await self._pause(queue)

    # -- seeing --------------------------------------------------------------------------------------------------------

    async def _size(self, queue: Queue[Any]) -> None:
        begun_at, standing = self._world.loop.now, self._ledger.standing()
        sizes = (await self._client.do("size", queue.size(), CALL_LIMIT)).value
        if sizes is not None:
            self._ledger.check_count(sum(sizes[:3]), begun_at, standing)

    async def _statistics(self, queue: Queue[Any]) -> None:
        """Whoever finds the queue paused may let it go on: its pauser may have died."""
        ledger, pauses = self._ledger, self._ledger.pauses
        begun_at, standing, never_paused = self._world.loop.now, ledger.standing(), not pauses.ever
        statistics: Statistics | None = (await self._client.do("statistics", queue.statistics(), CALL_LIMIT)).value
        if statistics is None:
            return
        ledger.check_count(sum(statistics.sizes[:3]), begun_at, standing)
        if statistics.paused and never_paused and not pauses.ever:
            ledger.violation("paused: nobody has paused the queue")
        if ledger.found.calm and not statistics.paused and pauses.is_in_force(begun_at):
            ledger.violation("not paused: a pause had returned")
        if statistics.paused and self._chance.random() < 0.5:
            await self._resume(queue)

    async def _consumers(self) -> None:
        cluster = self._client.cluster
        if cluster is None:
            return
        begun_at = self._world.loop.now
        consumers = (await self._client.do("consumers", cluster.consumers(), 3 * CALL_LIMIT)).value or {}
        names = {client.name for client in self._world.clients}
        for owner, consumer in consumers.items():
            known = consumer.description == GHOST or consumer.description.partition(" ")[0] in names
            if not known or consumer.claims.keys() - {*QUEUES, *(lane.name for lane in self._world.lanes)}:
                self._ledger.violation(f"nobody's consumer: {owner} is {consumer}")
        claimed = sum(consumer.claims.get(self._lane.name, 0) for consumer in consumers.values())
        if self._ledger.found.calm and claimed > (most := self._ledger.there_since(begun_at)):
            self._ledger.violation(f"miscounted: {claimed} claims, there were {most} items")

    async def _look(self, queue: Queue[Any]) -> None:
        """See what there is; remove some of it now and then, and give dead letters another chance."""
        chance = self._chance
        state = chance.choice(("ready", "scheduled", "claimed", "dead", "dead"))
        seen = (await self._client.do("peek", queue.peek(5, state), CALL_LIMIT)).value or []
        items = [self._ledger.saw(one) for one in seen]
        if not seen:
            await self._client.do("scan", self._scan(queue), 10 * CALL_LIMIT)
            if self._ledger.by_id and chance.random() < 0.2:
                await self._cancel(queue, *chance.choice(list(self._ledger.by_id.items())))
            return
        at = chance.randrange(len(seen))
        await self._get(queue, seen[at].id, items[at])
        known = [(one, item) for one, item in zip(seen, items, strict=True) if item is not None]
        if state == "dead":
            await self._deal_with_letters(queue, known)
        elif known and chance.random() < 0.4:
            one, item = chance.choice(known)
            await self._cancel(queue, one.id, item)

    async def _scan(self, queue: Queue[Any]) -> int:
        return len([item async for item in queue.scan()])

    async def _get(self, queue: Queue[Any], id: str, item: Item | None) -> None:
        standing = [one for one in self._ledger.standing() if one[0] is item]
        ended = await self._client.do("get", queue.get(id), CALL_LIMIT)
        if ended.value is not None:
            self._ledger.saw(ended.value)
        elif ended.outcome is Outcome.DONE and self._ledger.found.calm and self._ledger.still(standing):
            self._ledger.violation(f"not found: {id}, which is there")

    # -- removing ------------------------------------------------------------------------------------------------------

    async def _cancel(self, queue: Queue[Any], id: str, item: Item) -> None:
        """It may be gone from now on; who was given it before may still have it."""
        ledger = self._ledger
        was_live = item.is_live(self._world.loop.now)
        ledger.begin_removal(item)
        mark = item.removals_begun
        ended = await self._client.do("cancel", queue.cancel(id), CALL_LIMIT)
        ledger.end_removal(item, ended.outcome)
        if ended.outcome is not Outcome.DONE:
            return
        assert ended.value is not None
        ledger.counts[f"cancel: {ended.value.value}"] += 1
        if ended.value is not Cancellation.NOT_FOUND:
            ledger.cancelled(item, was_held=ended.value is Cancellation.SIGNALLED)
        elif was_live and item.removals_begun == mark and item.is_live(self._world.loop.now):
            ledger.violation(f"not found: a cancel of {item.label} ({id}), which is there")

    async def _clear(self, queue: Queue[Any]) -> None:
        """Whatever was pushed before this ends may be gone; what is pushed later may not, nor anything if it is
        refused."""
        ledger = self._ledger
        ledger.open_clears += 1
        begun_at = self._world.loop.now
        concerned = list(ledger.items.values())
        ledger.excess += len(concerned)
        for item in concerned:
            item.removal_at = min(item.removal_at, begun_at)
            item.is_loose = True
            item.begin_removal()
        ended = await self._client.do("clear", queue.clear(), 4 * CALL_LIMIT)
        if ended.outcome in (Outcome.DONE, Outcome.REFUSED):
            ledger.open_clears -= 1
            ledger.excess -= len(concerned)
        if ended.outcome is Outcome.REFUSED:
            for item in concerned:
                item.take_back_removal()
            return
        for item in list(ledger.items.values())[len(concerned) :]:
            item.removal_at = min(item.removal_at, begun_at)
            item.is_loose = True
            item.begin_removal()

    async def _delete(self, queue: Queue[Any]) -> None:
        """Whatever was pushed before this ends may be gone, dead letters and a pause too.

        If it returns, all is gone of which no push was under way; and that never comes back."""
        ledger = self._ledger
        ledger.deletions += 1
        ledger.open_deletions += 1
        ledger.open_clears += 1
        ledger.open_discards += 1
        ledger.discards_begun += 1
        concerned = list(ledger.items.values())
        ledger.excess += len(concerned)
        for item in concerned:
            ledger.begin_deletion(item)
        mark = ledger.pauses.begin(paused=False)
        ended = await self._client.do("delete", queue.delete(), 20 * CALL_LIMIT)
        ledger.pauses.end(ended.outcome, mark, paused=False)
        ledger.open_deletions -= 1
        if ended.outcome is not Outcome.DONE:
            return
        ledger.open_clears -= 1
        ledger.open_discards -= 1
        ledger.excess -= len(concerned)
        for item in concerned:
            item.deleted_at = self._world.loop.now

    async def _deal_with_letters(self, queue: Queue[Any], letters: list[tuple[SeenItem[Any], Item]]) -> None:
        match self._chance.choice(("redrive", "redrive slowly", "redrive all", "discard", "discard all")):
            case "redrive":
                await self._redrive(queue, [one.id for one, _ in letters], None)
            case "redrive slowly":
                await self._redrive(queue, [one.id for one, _ in letters], 20.0)
            case "redrive all":
                await self._redrive(queue, None, None)
            case "discard":
                await self._discard(queue, [one.id for one, _ in letters])
            case _:
                await self._discard(queue, None)

    async def _redrive(self, queue: Queue[Any], ids: list[str] | None, rate: float | None) -> None:
        """Letters are to be delivered again; dead again, they may stay so."""
        ledger = self._ledger
        ledger.open_redrives += 1
        concerned = self._perhaps_dead(ids)
        ledger.excess += len(concerned)
        for item in concerned:
            ledger.redrive(item)
        ended = await self._client.do("redrive", queue.redrive(ids, rate=rate), 4 * CALL_LIMIT)
        ledger.open_redrives -= ended.outcome in (Outcome.DONE, Outcome.REFUSED)

    async def _discard(self, queue: Queue[Any], ids: list[str] | None) -> None:
        """What is no dead letter stays."""
        ledger = self._ledger
        ledger.open_discards += 1
        ledger.discards_begun += 1
        if ids is not None:
            ids = ids + [id for item, _ in ledger.standing()[:1] for id in sorted(item.ids)]
        for item in self._perhaps_dead(ids):
            ledger.discard(item)
        ended = await self._client.do("discard", queue.discard(ids), 4 * CALL_LIMIT)
        ledger.open_discards -= ended.outcome in (Outcome.DONE, Outcome.REFUSED)

    def _perhaps_dead(self, ids: list[str] | None) -> list[Item]:
        """Those of these items (None: of all) that may be dead letters."""
        some = self._ledger.items.values() if ids is None else [self._ledger.by_id[id] for id in ids]
        return [item for item in some if item.may_be_there and not item.is_live(self._world.loop.now)]

    # -- pausing -------------------------------------------------------------------------------------------------------

    async def _pause(self, queue: Queue[Any]) -> None:
        """Every other pause would end by itself, after the run: until then it holds as any other does."""
        ends = self._client.at_latest_level and not self._ledger.counts["pauses in force"] % 2
        pausing = queue.pause(seconds=PAUSE_SECONDS) if ends else queue.pause()
        mark = self._ledger.pauses.begin(paused=True)
        ended = await self._client.do("pause", pausing, CALL_LIMIT)
        self._ledger.pauses.end(ended.outcome, mark, paused=True)
        if self._ledger.pauses.since is not None:
            self._ledger.counts["pauses in force"] += 1
        await asyncio.sleep(self._chance.uniform(0.1, 4.0))
        if self._chance.random() < 0.8:
            await self._resume(queue)

    async def _resume(self, queue: Queue[Any]) -> None:
        for _ in range(RESUME_TRIES):
            if await resume(self._client, self._lane, queue):
                return
            await asyncio.sleep(0.5)


async def resume(client: Client, lane: Lane, queue: Queue[Any]) -> bool:
    """Let the queue go on; whether that is certain."""
    pauses = lane.ledger.pauses
    mark = pauses.begin(paused=False)
    ended = await client.do("resume", queue.resume(), CALL_LIMIT)
    pauses.end(ended.outcome, mark, paused=False)
    return ended.outcome is Outcome.DONE
