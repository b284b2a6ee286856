"""Bring items home that were pushed to other shards before their queue got limits or an order.

One server has to decide about all claims of such a queue.  Nothing is handed out on other shards (``lua/claim.lua``),
so what is queued there comes home, under its id, with all that is known of it.  For each page of items:

1. Home adopts them: each is there from now on, and never due.
2. The shard from which they come removes those that are still queued there; their rows say that they have moved.
3. Home admits those that have moved.

The second step decides.  So an item is never handed out on both shards, and what was cancelled before it is handed out
on none.  If a client dies in between, the next one goes on: what was adopted names its shard by its id, and that shard
says whether it has moved, has ended, or is claimed there and may be queued again.

What is claimed or dead on another shard stays there until it is queued again, and what the queue has no room for until
it has.  Who looks for an item by its id asks the shard that the id names first, and then home.
"""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from zkrq.base import clock
from zkrq.base.errors import Closed, ZkrqError
from zkrq.base.tasks import Rounds
from zkrq.protocol import calls
from zkrq.protocol.homing import MOVED, are_at_home, are_everywhere, bundles_of, have_come, to_adopt
from zkrq.protocol.shards import shard_of

if TYPE_CHECKING:
    from zkrq.client.shard import Shard
    from zkrq.client.shards import Shards
    from zkrq.coordination.coordinator import Coordinator
    from zkrq.protocol.deciding import Decided
    from zkrq.protocol.shards import ShardName

HOMING_SECONDS = 30.0
"""Seconds between two looks of the leader for items that are to come home."""

SWEEP_ROUNDS = 10
"""Looks of which one is at all queues: a queue that has lost its limits may still have adopted items."""

HOMING_PAGE = 100
"""Items that come home together."""

_log = logging.getLogger("zkrq.shards")


class Homing:
    """Bring items home: of queues for which this client has declared that, and of all others while it leads."""

    def __init__(self, shards: Shards, coordinator: Coordinator) -> None:
        self._shards = shards
        self._coordinator = coordinator
        self._wanted = dict[str, None]()
        self._round = 0
        self._rounds = Rounds(self.look, seconds=HOMING_SECONDS)
        self.run = self._rounds.run
        """Bring items home until cancelled."""

    def want(self, queue: str) -> None:
        """Look soon at a queue that was given limits or an order."""
        self._wanted[queue] = None
        self._rounds.call()

    async def look(self) -> None:
        """Bring home what can come."""
        wanted, self._wanted = self._wanted, {}
        if len(self._shards.map.used) == 1:
            return
        queues = [*wanted]
        if self._coordinator.leading:
            self._round += 1
            is_sweep = self._round % SWEEP_ROUNDS == 0
            queues += await self._all_queues() if is_sweep else self._shards.map.homed
        for queue in dict.fromkeys(queues):
            try:
                await bring_home(self._shards, queue)
            except Closed:
                raise
            except ZkrqError as error:
                _log.info("items of queue %s do not come home for now: %s", queue, error, extra={"queue": queue})

    async def _all_queues(self) -> Sequence[str]:
        names = set(self._shards.map.homed)
        for shard in here(self._shards):
            try:
                names.update(await shard.replicas.names(calls.Queues()))
            except Closed:
                raise
            except ZkrqError as error:
                _log.info("shard %s could not be asked for its queues: %s", shard.name, error)
        return sorted(names)


def here(shards: Shards) -> Sequence[Shard]:
    """Return the shards that can be asked now."""
    return [shard for shard in shards.open.values() if not shard.away and shards.map.shard_with(shard.register)]


async def bring_home(shards: Shards, queue: str) -> int:
    """Bring the items of a queue home that are queued on other shards, if it needs a home; return how many came.

    Ends what other clients have begun in any case.  A shard that is away stops nothing but its own items.  Raises
    ``Unavailable``, ``OutcomeUnknown``; then the next call continues.
    """
    return await Bringing(shards, queue).bring_all()


class Bringing:
    """Bring the items of one queue home: see ``bring_home``.  ``protocol/homing.py`` says what each step is for."""

    page: ClassVar = HOMING_PAGE
    """Items that come together."""

    def __init__(self, shards: Shards, queue: str) -> None:
        self._shards = shards
        self._queue = queue

    async def bring_all(self) -> int:
        """Bring what can come; return how many came."""
        shards, queue, came = self._shards, self._queue, 0
        home = await shards.home(queue) if queue in shards.map.homed else None
        for shard in here(shards):
            adopted = await self.adopted_on(shard)
            if adopted:
                await self._go_on(shard, adopted)
        for shard in here(shards):
            while home and shard is not home and (some := await self._bring_page(shard, home)):
                came += some
        if came:
            _log.info("%d items of queue %s have come home", came, queue, extra={"queue": queue})
        return came

    async def adopted_on(self, home: Shard) -> Sequence[str]:
        """Return the ids of adopted items that wait at home, and are on all its servers.

        The client that adopted them may have died while only the primary had them.  If their shard let them go then,
        and the primary failed, they would be lost.
        """
        look = calls.Movable(self._queue, 0)
        if not (ids := (await home.replicas.ask(look)).adopted):
            return ()
        decided = await home.replicas.decide(calls.Affirm(self._queue, bundles_of(ids)))
        # The primary may be another one by now, which has no payloads to give to the others.
        return are_everywhere(set(ids), (await home.replicas.ask(look)).adopted, decided.superseded)

    async def _bring_page(self, shard: Shard, home: Shard) -> int:
        """Bring the first items home that are queued on a shard; return how many came."""
        as_of_ms = clock.now_ms()
        items = to_adopt(await shard.replicas.ask(calls.Movable(self._queue, self.page)))
        if not items or not (taken := await self.adopt(home, as_of_ms, items)):
            return 0
        has_come = await self.leave(shard, taken)
        await self.admit(home, has_come)
        return sum(has_come.values())

    async def _go_on(self, home: Shard, ids: Sequence[str]) -> None:
        """Have the shards from which these adopted items come decide about them."""
        by_shard: dict[ShardName | None, list[str]] = defaultdict(list)
        for id in ids:
            by_shard[shard_of(id)].append(id)
        there = {shard.name: shard for shard in here(self._shards)}
        for name, named in by_shard.items():
            shard = there.get(name) if name else None
            if shard and shard is not home:
                await self.admit(home, await self.leave(shard, named))
            elif name not in self._shards.map.shards:  # removed, when nothing was left there
                await self.admit(home, dict.fromkeys(named, True))

    async def adopt(self, home: Shard, as_of_ms: int, items: Sequence[calls.Adopted]) -> Sequence[str]:
        """Have home adopt items; return those that may leave their shard."""
        call = calls.Adopt(self._queue, as_of_ms, items)
        return are_at_home(items, await home.replicas.decide(call, map_number=self._shards.map.number))

    async def leave(self, shard: Shard, ids: Sequence[str]) -> Mapping[str, bool]:
        """Have a shard remove what is queued there and was adopted at home; return what has become of each."""
        call = calls.Cancel(self._queue, MOVED, 0, secrets.token_hex(4), ids)
        return self.judge(ids, await shard.replicas.decide(call))

    def judge(self, ids: Sequence[str], decided: Decided[calls.CancelReply]) -> Mapping[str, bool]:
        """Return which items have come, or have ended."""
        return have_come(ids, decided)

    async def admit(self, home: Shard, has_come: Mapping[str, bool]) -> None:
        """Have home let those be due that have come, and forget those that have ended."""
        if has_come:
            await home.replicas.decide(calls.Admit(self._queue, [(id, int(come)) for id, come in has_come.items()]))
