"""Keep up to when the moments of each schedule are done, in a register of its own.

It is apart from the register of the schedules (``schedule_store.py``), because it is written every few seconds, and
everything that follows the schedules would read them again each time.  Nothing follows it: a process reads it when it
begins, before it reports losses, and now and then while others push.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from zkrq.base.checks import check_id, check_name
from zkrq.base.errors import ConfigError, Unavailable
from zkrq.client.registers import rewrite
from zkrq.client.timetable import SCHEDULES_MAX, Key
from zkrq.protocol.recurring import Progress
from zkrq.protocol.znodes import count, read_object

if TYPE_CHECKING:
    from zkrq.coordination.coordinator import Coordinator, Versioned

MOMENTS = "moments"
"""Name of the register that holds them."""

FORMAT = 1
"""Number of the format in which they are stored."""

KEPT_MAX = 2 * SCHEDULES_MAX
"""Schedules of which moments are stored; beyond, those of the removed ones that were done first are forgotten."""

MS_MAX = 221_845_392_000_000
"""Milliseconds since 1970 from which on a stored moment cannot be read: it is in the year 9000."""

Known: TypeAlias = Mapping[Key, Progress]
"""What is stored, by schedule."""


class MomentStore:
    """Read and advance the progress of schedules.  Costs nothing until it is used."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._lock = asyncio.Lock()

    async def read(self) -> Known:
        """Read them.  Raises ``Unavailable`` without ZooKeeper, ``ConfigError`` if they cannot be read."""
        return decode((await self._coordinator.read(MOMENTS)).data)

    async def advance(self, news: Known) -> Known:
        """Add news of some schedules to what is stored; return what is stored then.

        Raises ``Unavailable``: they may be stored, and may be given again; ``ConfigError`` if what is stored cannot be
        read.
        """

        def add(known: Known) -> Known:
            return {**known, **{key: known[key].merged(new) if key in known else new for key, new in news.items()}}

        return await self._change(add)

    async def forget(self, key: Key) -> None:
        """Forget a schedule that was removed.  Raises as ``advance``."""
        await self._change(lambda known: {each: known[each] for each in known if each != key})

    async def _change(self, change: Callable[[Known], Known]) -> Known:
        after: Known = {}

        def write(found: Versioned) -> bytes | None:
            nonlocal after
            before = decode(found.data)
            after = change(before)
            return None if after == before else encode(after, secrets.token_hex(8))

        async with self._lock:
            if await rewrite(self._coordinator, MOMENTS, write) is None:
                raise Unavailable("other clients write moments of schedules at the same time: repeat it")
        return after


def encode(known: Known, nonce: str) -> bytes:
    """Return what is stored; ``nonce`` makes each attempt to write unique."""
    kept = sorted(known.items(), key=lambda entry: entry[1].done)[-KEPT_MAX:]
    content = {"format": FORMAT, "nonce": nonce, "moments": [[*key, *progress] for key, progress in kept]}
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def decode(data: bytes | None) -> Known:
    """Read what is stored, None if nothing was ever.  Raises ``ConfigError`` if it cannot be read at all.

    One entry that cannot be read is left out: its schedule goes on as one of which nothing is stored.
    """
    if data is None:
        return MappingProxyType({})
    try:
        stored = read_object(data)
        if stored["format"] != FORMAT:
            raise ConfigError(
                f"moments of schedules are stored in format {stored['format']!r:.80}, and this client reads {FORMAT}: "
                "upgrade"
            )
        rows = list[Any](stored["moments"])
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"the znode `{MOMENTS}` does not hold moments of schedules ({error}): delete it") from error
    found = dict[Key, Progress]()
    for row in rows:
        try:
            queue, name, done, last, lost, losses = row
            key = Key(check_name("the queue's name", queue), check_id("a schedule's name", name))
            found[key] = Progress(_ms(done), _ms_or_none(last), _ms_or_none(lost), count(losses))
        except (TypeError, ValueError):  # ConfigError is one of them
            continue
    return found


def _ms_or_none(value: object) -> int | None:
    return None if value is None else _ms(value)


def _ms(value: object) -> int:
    ms = count(value)
    if ms >= MS_MAX:
        raise ValueError(f"{ms} is no moment")
    return ms
