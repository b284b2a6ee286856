"""Know which queues have flows: one register of ZooKeeper, which the leader reads before it looks at them.

A client enters a queue before it begins a flow there, or makes it a leg of one, and again once its entry may be old.
The leader removes an entry for which no flow was found, if it is much older than that.  So no flow is begun in a queue
that is not entered, though nobody waits for ZooKeeper but at the first flow of each quarter of an hour.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from zkrq.base import clock
from zkrq.base.errors import ConfigError, Unavailable
from zkrq.client.registers import moments_in, rewrite, with_moments

if TYPE_CHECKING:
    from zkrq.coordination.coordinator import Coordinator, Versioned

REGISTER = "flows"

FRESH_SECONDS = 900.0
"""Seconds after which a client enters a queue again before it begins a flow there."""

KEPT_SECONDS = 3600.0
"""Seconds for which an entry is kept, at least."""

QUEUES_MAX = 4_000
"""Queues that may have flows at the same time: what a register has room for."""

KNOWN_MAX = 10_000
"""Queues of which a client remembers that they are entered."""

_log = logging.getLogger("zkrq.flows")


def decode(data: bytes | None) -> dict[str, int]:
    """Return the queues that have flows, and when each was entered last, in milliseconds since 1970; none from what
    cannot be read: it is written anew."""
    return moments_in(data, "queues")


def encode(queues: Mapping[str, int]) -> bytes:
    """Encode what ``decode`` reads, unlike any other writing of the same."""
    return with_moments("queues", queues)


def is_old(entered_ms: int) -> bool:
    """Tell whether an entry may be removed, if its queue has no flows."""
    return entered_ms < clock.now_ms() - 1000 * KEPT_SECONDS


class FlowRegister:
    """Enter queues, and remove them."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._entered = dict[str, float]()
        """When this client found each queue to be entered, by the time of its event loop."""
        self._lock = asyncio.Lock()

    async def enter(self, queue: str) -> None:
        """Return once a queue is entered, and will be for long.  Raises ``Unavailable``, ``ConfigError``."""
        if self._is_fresh(queue):
            return
        async with self._lock:  # calls of this client would only be in each other's way
            if not self._is_fresh(queue):
                await self._enter(queue)

    def _is_fresh(self, queue: str) -> bool:
        now = asyncio.get_running_loop().time()
        return self._entered.get(queue, now - 2 * FRESH_SECONDS) + FRESH_SECONDS > now

    async def _enter(self, queue: str) -> None:
        def enter(found: Versioned) -> bytes | None:
            queues, now_ms = decode(found.data), clock.now_ms()
            if abs(now_ms - queues.get(queue, 0)) < 1000 * FRESH_SECONDS:
                return None
            if len(queues) >= QUEUES_MAX and queue not in queues:
                raise ConfigError(f"{len(queues)} queues have flows, more than {QUEUES_MAX} cannot; nothing was begun")
            return encode({**queues, queue: now_ms})

        now = asyncio.get_running_loop().time()
        if await rewrite(self._coordinator, REGISTER, enter) is None:
            raise Unavailable("other clients begin their first flows at the same time; nothing was begun, retry")
        self._note(queue, now)

    def _note(self, queue: str, now: float) -> None:
        if len(self._entered) >= KNOWN_MAX:
            self._entered.clear()
        self._entered[queue] = now

    async def read(self) -> Mapping[str, int]:
        """Return the queues that have flows, or had some, and when each was entered last.  Raises ``Unavailable``."""
        return decode((await self._coordinator.read(REGISTER)).data)

    async def remove(self, queues: Collection[str], read: Mapping[str, int]) -> None:
        """Remove queues without flows, unless they are entered again since they were ``read``, or were lately.

        Raises ``Unavailable``.
        """
        found = await self._coordinator.read(REGISTER)
        known = decode(found.data)
        gone = {name for name in queues if name in known and known[name] == read.get(name) and is_old(known[name])}
        if gone:
            left = {name: moment for name, moment in known.items() if name not in gone}
            await self._coordinator.swap(REGISTER, encode(left), found.version)
