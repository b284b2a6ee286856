"""Send puts to a shard: items without an identity to any, and the others to the home of their queue.

An item without an identity may go to another shard if one refuses it with certainty; if the outcome is unknown it never
does, because the item might exist twice.  What has an id or a key must meet all other items of that id or key, so it
goes to the shard that its id names, or to the queue's home, and nowhere else (see ``placement.py``).  So does
every item of a queue that is homed.

Both wait and place anew if a server asks for a newer shard map and nothing was written.  If something may have been
written, the push stays where it is, if the newer map leaves it there (``Attempts.place_again``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from zkrq.base.errors import NotEnoughReplicas, OutcomeUnknown, Unavailable, ZkrqError, own
from zkrq.base.tasks import together
from zkrq.producing.placement import Placement, Target
from zkrq.producing.receipts import Results, results_of
from zkrq.protocol.calls import OfKey, PushDecided
from zkrq.protocol.replies import Why
from zkrq.protocol.shards import ShardName
from zkrq.replication.runner import MapChanged, PrimaryDecides

if TYPE_CHECKING:
    from zkrq.protocol.calls import Put
    from zkrq.protocol.pushing import Pushes
    from zkrq.replication.causes import Causes

M = TypeVar("M")

MAP_PAUSE = 0.1
"""Seconds until the shard map is read again if it is not yet as new as a server asks for."""


class Named(NamedTuple):
    """A put of one item that has an identity.

    ``by_caller``: its id was given, so it may have been pushed before.
    """

    put: Put
    by_caller: bool
    of_key: OfKey = OfKey()


class Sender:
    """Send the puts of one queue."""

    def __init__(self, queue: str, placement: Placement, *, keeps_order: bool = False, has_size: bool = False) -> None:
        """``keeps_order``: whether this program gives every item a place in an order; ``has_size``: whether it declares
        a limit of the queue's size."""
        self.is_decided = keeps_order or has_size
        """Whether the primary decides about every push, as far as this client knows; the servers say so when they
        refuse a plain push."""
        self.taken_away: Callable[[], None] = lambda: None
        """Called when an order or a limit of the size is found to be gone: an operator took it away, or the queue was
        deleted, and what this program declares of it is gone, too."""
        self._why = Why(order=False, size=False)
        """What the servers have said last."""
        self._gives_order = keeps_order
        self._queue = queue
        self._placement = placement

    @property
    def keeps_order(self) -> bool:
        """Whether groups of the queue keep an order, as far as this client knows."""
        return self._gives_order or self._why.order

    def learn(self, why: Why) -> None:
        """Push as the settings of the queue say from now on."""
        before, self._why = self._why, why
        if (before.order and not why.order) or (before.size and not why.size):
            self.taken_away()
        self.is_decided = self.keeps_order or why.size

    async def anywhere(
        self, make: Callable[[str], tuple[Sequence[Put], M]], count: int, *, at_home: bool = False
    ) -> tuple[Pushes, M, Causes]:
        """Send ``count`` items without an identity to one shard; to another one, under new ids, if nothing was written
        there.  ``at_home``: only to the home of the queue.

        ``make`` makes the puts, with ids of this ending, and what the caller wants to know of them.  Raises what the
        last shard did; ``PrimaryDecides`` if the primary decides about every push, which is known from then on.
        """
        placement, tried = self._placement, set[ShardName]()
        while True:
            map_number = placement.map.number
            target = await (placement.home(self._queue) if at_home else placement.plain(self._queue, tried))
            tried.add(target.name)
            has_other = map_number > 0 and not at_home and placement.has_other(self._queue, tried)
            puts, more = make(placement.ending(target))
            target.under_way += count
            try:
                pushes = await target.replicas.push_plain(
                    self._queue,
                    puts,
                    map_number=map_number,
                    patient=not has_other,
                    confirm=partial(self._confirm, target, puts),
                )
            except MapChanged:
                await self._refresh(map_number)
                tried.clear()
            except PrimaryDecides as error:
                self.learn(error.why)
                raise
            except (NotEnoughReplicas, Unavailable):
                target.avoid()
                if not has_other:
                    raise
            else:
                return pushes, more, target.replicas.causes
            finally:
                target.under_way -= count

    async def at_home(
        self,
        items: Sequence[Named],
        *,
        decided: bool,
        in_turn: bool = False,
        refused: Callable[[Sequence[int]], object] = lambda _: None,
    ) -> Results:
        """Send items that have an identity, each to its shard; return the result of each.

        ``decided``: the primary decides about each, because a key may be taken, the queue full, the id a former
        bundle's, or because the queue keeps an order.  ``in_turn``: these items follow others; if the queue turns out
        to have the primary decide, nothing is pushed, and this raises ``PrimaryDecides``.  ``refused``: called with the
        positions of those that servers leave to the primary.
        """
        results: dict[int, Results] = {}
        changed = set[int]()  # numbers of maps by which something was placed wrongly
        has_refused = False  # whether servers have refused a plain push of these, as of members of a sealed flow

        async def send(target: Target, group: Sequence[int], map_number: int) -> Sequence[int]:
            """Return those that must be placed anew, or decided."""
            nonlocal has_refused
            puts, first = [items[at].put for at in group], items[group[0]]
            confirm = partial(self._confirm, target, puts)
            try:
                if decided or has_refused or self.is_decided:
                    call = PushDecided(
                        self._queue,
                        puts,
                        in_order=self.keeps_order,
                        **first.of_key._asdict(),
                    )
                    pushes = await target.replicas.push_decided(call, map_number=map_number, confirm=confirm)
                    if pushes.why is not None:
                        self.learn(pushes.why)
                else:
                    pushes = await target.replicas.push_plain(self._queue, puts, map_number=map_number, confirm=confirm)
                    if pushes.why is not None:  # some servers had taken it, others left it to the primary
                        refused(group)
            except MapChanged:
                changed.add(map_number)
                return group
            except PrimaryDecides as error:
                self.learn(error.why)
                has_refused = True
                refused(group)
                if in_turn:
                    raise
                return group
            except ZkrqError as error:
                results.update((at, [_own(error, items[at].put.id)]) for at in group)
            else:
                for number, at in enumerate(group):
                    ids, causes = (items[at].put.id,), target.replicas.causes
                    results[at] = results_of(pushes, number, ids, causes, are_named=items[at].by_caller)
            return ()

        left: Sequence[int] = range(len(items))
        while left:
            map_number, groups = self._placement.map.number, dict[tuple[Target, OfKey], list[int]]()
            for at in left:
                try:
                    target = await self._placement.find(self._queue, items[at].put.id)
                except ZkrqError as error:
                    results[at] = [error]
                else:
                    groups.setdefault((target, items[at].of_key), []).append(at)
            again = await together(send(target, group, map_number) for (target, _), group in groups.items())
            left = [at for some in again for at in some]
            if map_number in changed:
                await self._refresh(map_number)
        return [results[at][0] for at in range(len(items))]

    async def _confirm(self, target: Target, puts: Sequence[Put], needed: int) -> int:
        """Return the number of a map, this one or a newer one, by which these puts belong on this shard when they are
        pushed again under their ids; 0 if that cannot be told yet.

        Raises ``Unavailable`` if one of them belongs elsewhere, ``ConfigError`` if the shard was removed.
        """
        placement = self._placement
        try:
            if placement.map.number < needed:
                await placement.refresh()
            map_number = placement.map.number
            places = {await placement.find(self._queue, put.id) for put in puts}
        except Unavailable:  # ZooKeeper does not answer, or the shard is closed: it may take pushes again
            with suppress(Unavailable):
                await placement.refresh()
            return 0
        if places != {target}:
            raise Unavailable(f"the home of queue {self._queue!r} is another shard than {target.name} by now")
        return map_number

    async def _refresh(self, map_number: int) -> None:
        """Read the shard map after a server has asked for a newer one than this."""
        if self._placement.map.number <= map_number:
            await self._placement.refresh()
            if self._placement.map.number <= map_number:
                await asyncio.sleep(MAP_PAUSE)


def _own(error: ZkrqError, id: str) -> ZkrqError:
    """Return the error for one of the pushes that failed together."""
    copied = own(error)
    if isinstance(copied, OutcomeUnknown):
        copied.ids = (id,)
    return copied
