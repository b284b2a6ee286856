"""Read what the pages of a queue and of an item show: items of one state, one item, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Hashable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from zkrq.base.checks import check_id
from zkrq.base.errors import ConfigError
from zkrq.client.items import ItemState
from zkrq.client.results import reading
from zkrq.serve.failing import ITEMS_MOST
from zkrq.serve.problems import Busy

if TYPE_CHECKING:
    from zkrq.base.results import Result
    from zkrq.client.inspection import Sizes
    from zkrq.client.items import Item
    from zkrq.client.queue import Queue

T = TypeVar("T")

CONTENTS_SECONDS = 5.0
"""Seconds that a page waits for items; then it shows what is known."""

NO_QUEUE = "There is no queue of that name."

ITEMS_SHOWN = 50
"""Items on the page of a queue."""

SEARCHES_MAX = 5
"""Searches at one time."""


STATES: Mapping[str, ItemState] = {state: state for state in get_args(ItemState)}
"""The states of items by name, in the order of the page."""

Tab = Literal["ready", "scheduled", "claimed", "dead", "done", "groups", "figures", "settings"]
"""What the page of a queue shows: items of a state, those that have ended last, groups, figures, or settings."""

TABS: Mapping[str, Tab] = {tab: tab for tab in get_args(Tab)}
"""The tabs by name, in the order of the page."""


def read_state(text: str) -> Tab:
    """Read the name of a tab from an address; what is none is the first."""
    return TABS.get(text, "ready")


def first_state(sizes: Sizes) -> ItemState:
    """Return the first state in which there are items."""
    for state, count in zip(STATES.values(), sizes, strict=True):
        if count:
            return state
    return "ready"


def read_count(text: str) -> int:
    """Read from an address how many items to show."""
    return min(int(text), ITEMS_MOST) if text.isascii() and text.isdecimal() and 0 < len(text) < 9 else ITEMS_SHOWN


async def get_item(queue: Queue[bytes], id: str) -> Item[bytes] | None:
    """Return an item, None if there is none, or if nothing can have that id.  Raises ``Unavailable``."""
    try:
        check_id("id", id)
    except ConfigError:
        return None
    return await queue.get(id)


async def get_result(queue: Queue[bytes], id: str) -> Result[bytes] | None:
    """Return what became of an item that is gone, None if that is not known, or nothing can have that id.

    Raises ``Unavailable``, ``OutcomeUnknown``.
    """
    try:
        result = await reading(queue).result(id, timeout=0)
    except ConfigError:  # no such id, or the namespace is at a level without results
        return None
    return result if result.has_ended else None


class Searches:
    """Bound the searches that are made at one time, because each reads thousands of items."""

    def __init__(self) -> None:
        self._running = 0

    def check_room(self) -> None:
        """Raise ``Busy`` while there are ``SEARCHES_MAX``."""
        if self._running >= SEARCHES_MAX:
            raise Busy(f"{SEARCHES_MAX} searches are made already")

    @contextmanager
    def one_more(self) -> Generator[None]:
        """Make one search.  Raises ``Busy`` while there are ``SEARCHES_MAX``."""
        self.check_room()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


class SharedReads:
    """Read once what several pages ask for at the same time.  Nothing is kept for later ones.

    A page that asks while a reading is in flight takes part in the next one: it shows nothing older than its request.
    """

    def __init__(self) -> None:
        self._readings: dict[Hashable, _Reading] = {}

    async def read(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """Return what ``read`` returns, or what that of another caller with this key does.  Raises what it raises."""
        reading = self._readings.setdefault(key, _Reading())
        reading.callers += 1
        begun = reading.begun
        try:
            async with reading.lock:
                if reading.begun == begun or not reading.found:
                    reading.begun, reading.found = reading.begun + 1, ()
                    reading.found = (await read(),)
                return reading.found[0]
        finally:
            reading.callers -= 1
            if not reading.callers:
                del self._readings[key]


@dataclass(slots=True)
class _Reading:
    """What callers share.  ``begun``: number of readings; ``found``: what the last one has read, () if it failed."""

    callers: int = 0
    begun: int = 0
    found: tuple[Any, ...] = ()
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
