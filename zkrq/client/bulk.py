"""Do the same with all items that a search finds, however many there are: cancel, redrive, discard or advance them.

A page of the search is read, its items are changed, and then the next page is read, so that neither memory nor a call
grows with the number of items.  A change names ids, and passes over an item that no longer is what was looked for.
Therefore any page may be done again, and so may the whole: what is left from a run that was stopped, or whose process
or server died, is done by the next one, and nothing is done twice.

Items that come while it runs are left alone, otherwise it would not end where producers are quick: those that were
pushed after it began, and dead letters that died after that.  A retry that is ready by ``advance`` and fails again is
found once more if the primary changes.  So the last ids that were changed are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from zkrq.base import clock
from zkrq.base.errors import ConfigError, NotEnoughReplicas, OutcomeUnknown, Unavailable
from zkrq.client.administration import Cancellation
from zkrq.client.conditions import PAGE_MAX, Conditions, Where, read_conditions

if TYPE_CHECKING:
    from zkrq.client.items import FoundPage, Item, ItemState
    from zkrq.client.queue import Queue

PATIENCE = 60.0
"""Seconds for which a step that fails is repeated, each of which is patient itself, before the work ends."""

PAUSE = 1.0
"""Seconds between two tries of a step."""

REMEMBERED = 100_000
"""Ids of items that are kept because they may come again."""


class Changed(NamedTuple):
    """How many items a step has changed; ``claimed``: those of them that were claimed, if they are removed."""

    items: int
    claimed: int = 0


class Deed(NamedTuple):
    """What is done with items.

    ``state``: the one of the items in question, None: any.  ``act``: does it with these ids.  ``may_return``: whether
    an item may get back into that state.
    """

    state: ItemState | None
    act: Callable[[Queue[Any], Sequence[str], float | None], Awaitable[Changed]]
    may_return: bool = False


async def _cancel(queue: Queue[Any], ids: Sequence[str], rate: float | None) -> Changed:
    outcomes = await queue.cancel_many(ids)
    return Changed(sum(map(bool, outcomes)), outcomes.count(Cancellation.SIGNALLED))


async def _redrive(queue: Queue[Any], ids: Sequence[str], rate: float | None) -> Changed:
    return Changed(await queue.redrive(ids, rate=rate))


async def _discard(queue: Queue[Any], ids: Sequence[str], rate: float | None) -> Changed:
    return Changed(await queue.discard(ids))


async def _advance(queue: Queue[Any], ids: Sequence[str], rate: float | None) -> Changed:
    return Changed(await queue.advance(ids))


DEEDS: Mapping[str, Deed] = {
    "cancel": Deed(None, _cancel),
    "redrive": Deed("dead", _redrive, may_return=True),
    "discard": Deed("dead", _discard),
    "advance": Deed("scheduled", _advance, may_return=True),
}
"""What can be done with all items that are found."""


class Counted(NamedTuple):
    """Items that were counted; ``claimed``: those of them that are claimed; ``whole``: whether these were all."""

    items: int
    claimed: int
    whole: bool


class Bulk:
    """One deed with all items of a queue that meet some conditions: ``run``, or ``step`` by step.

    ``found``: items that met the conditions so far; ``changed``: those that were changed, ``claimed``: those of them
    that were claimed.  ``is_least``: whether more may have been changed, because the result of a call was lost.
    """

    def __init__(
        self,
        queue: Queue[Any],
        deed: str,
        where: Where,
        *,
        rate: float | None = None,
        begun: datetime | None = None,
    ) -> None:
        """``deed``: of ``DEEDS``.  ``rate``: items per second that are redriven at most, None: no limit.  ``begun``:
        what came later is left alone, None: now.  Raises ``ConfigError``."""
        self.begun = begun or clock.now()
        self.found = self.changed = self.claimed = 0
        self.is_least = False
        self._queue = queue
        self._deed = DEEDS[deed]
        self._rate = rate
        self._where = _narrowed(deed, where)
        self._after: str | None = None
        self._ids: Sequence[str] | None = None
        self._is_last = False
        self._known: dict[str, None] = {}

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self._is_last and self._ids is None

    async def count(self, seconds: float | None = None, show: Callable[[int], object] | None = None) -> Counted:
        """Count the items that ``run`` would change.  ``seconds``: stop after about that time, None: at the last item.

        ``show``: called with how many there are so far.  Raises ``Unavailable``.
        """
        loop = asyncio.get_running_loop()
        end = None if seconds is None else loop.time() + seconds
        items = claimed = 0
        after: str | None = None
        while True:
            page, meant = await self._page(after)
            items, claimed = items + len(meant), claimed + sum(item.state == "claimed" for item in meant)
            if show:
                show(items)
            if (after := page.next) is None:
                return Counted(items, claimed, whole=True)
            if end is not None and loop.time() >= end:
                return Counted(items, claimed, whole=False)

    async def run(self, show: Callable[[int], object] | None = None) -> None:
        """Do it with all of them.  ``show``: is told how many were changed so far.

        Steps that fail are repeated for ``PATIENCE`` seconds.  If this fails, or is cancelled, a part is done: run
        another one for the rest.  Raises ``Unavailable``, ``OutcomeUnknown``, ``NotEnoughReplicas``.
        """
        loop = asyncio.get_running_loop()
        failing_since: float | None = None
        while not self.is_done:
            try:
                await self.step()
            except (Unavailable, OutcomeUnknown, NotEnoughReplicas):
                failing_since = loop.time() if failing_since is None else failing_since
                if loop.time() - failing_since >= PATIENCE:
                    raise
                await asyncio.sleep(PAUSE)
                continue
            failing_since = None
            if show:
                show(self.changed)

    async def step(self) -> None:
        """Read a page and change its items; after an error, change those of the same page again.

        Raises ``Unavailable``, ``OutcomeUnknown``, ``NotEnoughReplicas``.
        """
        if self._ids is None:
            page, meant = await self._page(self._after)
            self._ids = list(dict.fromkeys(item.id for item in meant))
            self._after, self._is_last = page.next, page.next is None
            self.found += len(self._ids)
        if self._ids:
            try:
                changed = await self._deed.act(self._queue, self._ids, self._rate)
            except (OutcomeUnknown, asyncio.CancelledError):
                self.is_least = True
                raise
            self.changed, self.claimed = self.changed + changed.items, self.claimed + changed.claimed
            self._remember(self._ids)
        self._ids = None

    async def _page(self, after: str | None) -> tuple[FoundPage[Any], Sequence[Item[Any]]]:
        """Read a page; return it, and those of its items that were there at the beginning, and were not changed yet."""
        # At a rate a page is for about a second, so that what was read is changed soon.
        limit = PAGE_MAX if self._rate is None else max(1, min(PAGE_MAX, round(self._rate)))
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        page = await self._queue.find_page(**self._where, limit=limit, after=after)
        if self._deed.state == "dead":
            # Servers tell the age of a death, so its moment is late by what the reply took.
            last = self.begun + timedelta(seconds=loop.time() - asked_at)
            old = (item for item in page.items if (item.died_at or item.pushed_at) <= last)
        else:
            old = (item for item in page.items if item.pushed_at <= self.begun)
        return page, [item for item in old if item.id not in self._known]

    def _remember(self, ids: Sequence[str]) -> None:
        if not self._deed.may_return:
            return
        self._known.update(dict.fromkeys(ids))
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]


def _narrowed(deed: str, where: Where) -> Where:
    """Return the conditions with the state of a deed.  Raises ``ConfigError`` if they name another one."""
    conditions = read_conditions(deed, where)
    state = DEEDS[deed].state
    if state is None:
        if conditions == Conditions(state=conditions.state):
            raise ConfigError("name a condition beside the state: this would be every item of the queue")
    elif conditions.state not in (None, state):
        raise ConfigError(f"state is {conditions.state!r}: only {state} items can be meant")
    return cast("Where", {**where, "state": state or conditions.state})
