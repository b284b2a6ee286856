"""Keep results under ids of the caller's, for frameworks whose tasks have ids of their own.

Such a result belongs to no item: a tombstone with a note (``lua/store.lua``), replicated and merged as the result of
an item is, in the namespace's first shard.  One of more than ``RESULT_BYTES`` is kept in parts: they are stored first,
each under an id that nobody has used, and then what names them, so a reader finds all of them or the result before.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
import secrets
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from zkrq.base.checks import Duration, check_duration
from zkrq.base.errors import Changes, ConfigError, PayloadTooLarge
from zkrq.base.limits import RESULT_BYTES, RESULT_TTL_LEAST, RESULT_TTL_MAX
from zkrq.client.awaiting import Awaiting
from zkrq.protocol.calls import Store, Stored, StoredRow

if TYPE_CHECKING:
    from zkrq.client.queue import Queue
    from zkrq.client.shard import Shard
    from zkrq.protocol.calls import Read, Told
    from zkrq.protocol.replies import Answer

STORED_MAX = 1048576
"""Bytes of one result, with all its parts."""

PART_BYTES = RESULT_BYTES - 1
"""Bytes of a part, beside the byte that tells what it is."""

PARTS_AT_ONCE = 8
"""Parts that one call stores: a quarter of a mebibyte."""

ASKED_AT_ONCE = 30
"""Results that one call reads: a mebibyte at most."""

READ_TRIES = 3
"""How often a result is read whose parts are gone."""

ID_BYTES = 128
"""Bytes of an id; a longer one is known by its hash."""

_WHOLE, _IN_PARTS = b"\0", b"\1"
_NAMES_PARTS = struct.Struct("<I16s")

_WAITS = "\0stored"
"""Name of the wait in ``QueueParts.waits``, beside those of shards."""


class Rank(enum.IntEnum):
    """How far a result is; one of greater rank is not replaced."""

    PRESENT = 0
    """The task has not ended."""
    FAILED = 1
    """It has, and may be done again."""
    DONE = 2
    """It is done."""


class StoredResult(NamedTuple):
    """A result that is kept.  ``is_last``: whether it ends the task."""

    value: bytes
    is_last: bool


class StoredResults:
    """Results under ids of the caller's, beside the items of a queue, which usually has none."""

    def __init__(self, queue: Queue[bytes]) -> None:
        """``queue``: its name is what the results are known by.  All calls belong to the cluster's event loop."""
        self._parts = queue._parts  # pyright: ignore[reportPrivateUsage]
        self._queue = queue

    async def store(self, id: str, value: bytes, *, ttl: Duration, rank: Rank = Rank.DONE) -> None:
        """Keep a result in place of the present one, for ``ttl`` seconds.  When this returns, every in-sync server has
        it.

        It is ignored while one of greater rank is kept.  Raises ``ConfigError`` for the id of an item of the queue and
        ``PayloadTooLarge`` beyond 1 MiB: nothing was kept; ``Unavailable``: nothing was kept; ``OutcomeUnknown``: it
        may be kept, store it again.
        """
        how = f"set {_ttl_ms(ttl)}"
        if len(value) > STORED_MAX:
            said = f"the result has {len(value)} bytes, at most {STORED_MAX} are kept"
            raise PayloadTooLarge(len(value), STORED_MAX, said)
        head, rows = _WHOLE + value, list[StoredRow]()
        if len(value) > PART_BYTES:
            token = secrets.token_bytes(16)
            count = -(-len(value) // PART_BYTES)
            rows = [
                StoredRow(
                    _part(token, at),
                    _new_call(),
                    f"{how} {Rank.DONE:d}",
                    value[at * PART_BYTES : (at + 1) * PART_BYTES],
                )
                for at in range(count)
            ]
            for start in range(0, count, PARTS_AT_ONCE):
                await self._decide(rows[start : start + PARTS_AT_ONCE])
            head = _IN_PARTS + _NAMES_PARTS.pack(count, token)
        (kept,) = await self._decide([StoredRow(_id(id), _new_call(), f"{how} {rank:d}", head)])
        if kept != 1:  # nothing names these parts
            forgotten = [row._replace(call=_new_call(), how="forget", text=b"") for row in rows]
            for start in range(0, len(forgotten), ASKED_AT_ONCE):
                await self._decide(forgotten[start : start + ASKED_AT_ONCE])
        _check_not_an_item(self._queue.name, id, kept)

    async def count(self, id: str, counter: str, *, ttl: Duration) -> int:
        """Count a result once, whatever calls it how often; return the value of the counter, 0 if that was forgotten.

        Raises as ``store`` does.
        """
        how = f"count {_ttl_ms(ttl)}"
        (value,) = await self._decide([StoredRow(_id(id), _new_call(), how, _id(counter).encode())])
        _check_not_an_item(self._queue.name, id, value)
        return value

    async def forget(self, ids: Iterable[str]) -> None:
        """Forget these results.

        Raises ``Unavailable``: none was forgotten; ``OutcomeUnknown``: some may be, forget them again.
        """
        rows = [StoredRow(_id(id), _new_call(), "forget") for id in ids]
        with Changes() as changes:
            for start in range(0, len(rows), ASKED_AT_ONCE):
                await self._decide(rows[start : start + ASKED_AT_ONCE])
                changes.made += 1

    async def get(self, ids: Sequence[str]) -> list[StoredResult | None]:
        """Return the present results, None for an id without one.  Raises ``Unavailable``, ``OutcomeUnknown``."""
        told = await self._ask([_id(id) for id in ids])
        return list(await asyncio.gather(*map(self._read, map(_id, ids), told)))

    async def wait(self, id: str, *, timeout: Duration | None = None) -> StoredResult | None:
        """Wait for the last result of an id; return the present one after ``timeout`` seconds (None: no limit).

        The wait survives the death of servers.  Raises ``Unavailable``, ``OutcomeUnknown``.
        """
        seconds = None if timeout is None else check_duration("timeout", timeout)
        try:
            async with asyncio.timeout(seconds):
                return await self._read(_id(id), await self._awaiting().wait(_id(id)))
        except TimeoutError:
            return (await self.get([id]))[0]

    async def _decide(self, rows: Sequence[StoredRow]) -> Sequence[int]:
        self._parts.check_open()
        return (await self._shard.replicas.decide(Store(self._queue.name, rows))).reply.counted

    async def _ask(self, ids: Sequence[str]) -> list[Told]:
        self._parts.check_open()
        awaiting = self._awaiting()
        starts = range(0, len(ids), ASKED_AT_ONCE)
        pages = await asyncio.gather(*(awaiting.ask(ids[start : start + ASKED_AT_ONCE]) for start in starts))
        return [told for page in pages for told in page]

    async def _read(self, id: str, told: Told) -> StoredResult | None:
        """Return a result with all its parts; None if a part is no longer kept."""
        for _ in range(READ_TRIES):
            result, is_whole = await self._read_parts(told)
            if is_whole:
                return result
            (told,) = await self._ask([id])  # it may have been replaced meanwhile, and its parts with it
        return None

    async def _read_parts(self, told: Told) -> tuple[StoredResult | None, bool]:
        """Return a result, and whether all its parts were there."""
        if told.letter == b"Q" or not told.text:
            return None, True
        kind, value = told.text[:1], told.text[1:]
        if kind not in (_WHOLE, _IN_PARTS):  # a counter's value
            value = told.text
        if kind == _IN_PARTS:
            count, token = _NAMES_PARTS.unpack(value)
            parts = await self._ask([_part(token, at) for at in range(count)])
            if any(part.letter != b"A" for part in parts):
                return None, False
            value = b"".join(part.text for part in parts)
        return StoredResult(value, told.letter == b"A"), True

    @property
    def _shard(self) -> Shard:
        return self._parts.everywhere.shards.first

    def _awaiting(self) -> Awaiting:
        """Return the wait of this process for results under these ids."""
        shard, known = self._shard, self._parts.waits.get(_WAITS)
        if known is None or known.replicas is not shard.replicas:
            if known is not None:
                known.close()
            known = self._parts.waits[_WAITS] = Awaiting(
                shard.replicas,
                shard.wakeups,
                _ask_nobody,
                cluster=self._queue.cluster,
                queue=self._queue.name,
                tasks=self._parts.context.tasks,
                question=Stored,
            )
        return known


async def _ask_nobody(call: Read) -> Sequence[Answer]:
    """No id is unknown here: one without a result may have one later."""
    return ()


def _id(id: str) -> str:
    """Return the id by which a result is kept."""
    return id if len(id.encode()) <= ID_BYTES else f"sha256-{hashlib.sha256(id.encode()).hexdigest()}"


def _check_not_an_item(queue: str, id: str, outcome: int) -> None:
    if outcome < 0:
        raise ConfigError(
            f"{id!r} is the id of an item of queue {queue!r}, whose result its consumer leaves: keep results of tasks "
            "under other ids, or beside a queue without items; nothing was kept"
        )


def _part(token: bytes, at: int) -> str:
    return f"part-{token.hex()}-{at}"


def _new_call() -> str:
    return secrets.token_hex(8)


def _ttl_ms(ttl: Duration) -> int:
    seconds = check_duration("the ttl of a result", ttl)
    if not RESULT_TTL_LEAST <= seconds <= RESULT_TTL_MAX:
        raise ConfigError(
            f"the ttl of a result is {seconds:g} s: must be {RESULT_TTL_LEAST:g} s to {RESULT_TTL_MAX:.0f} s"
        )
    return round(seconds * 1000)
