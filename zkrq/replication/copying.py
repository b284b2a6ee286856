"""Items from one server to another: the same few calls serve catch-up, recovery, fencing and late payloads.

A ``Place`` is one server in one life under one epoch.  Everything goes through ``apply``, which keeps what is newer, so
copying may be repeated, interrupted, and done twice at the same time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, cast

from zkrq.protocol.clocks import PUT_WINDOW_MS
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.view import ServerId
from zkrq.replication.wire import Arguments

READ_MAX = 200
"""Items read in one call."""

PAGE = 200
"""Items copied in one step: a few milliseconds of each server."""


class Place(NamedTuple):
    """Where items are: a server, and how to run a script there."""

    server: ServerId
    call: Callable[[str, str, Arguments], Awaitable[Answer]]

    async def ask(self, script: str, queue: str, arguments: Arguments) -> tuple[object, ...]:
        """What follows OK.  Raises ``CopyFailed``."""
        answer = await self.call(script, queue, arguments)
        if answer.status is not Status.OK:
            raise CopyFailed(self.server, answer)
        return answer.body


class CopyFailed(Exception):
    """A server did not answer as it should; never leaves the package."""

    def __init__(self, server: ServerId, answer: Answer) -> None:
        super().__init__(f"{server}: {answer.reason}")
        self.server = server
        self.answer = answer


class Copied(NamedTuple):
    """One item as ``read`` and ``page`` tell it."""

    id: bytes
    record: bytes
    left_ms: bytes
    payload: bytes | None


class Moments(NamedTuple):
    """From when the times of copied items count, by the source's clock and by the target's: one pair for a whole copy
    keeps the order of its items.  Microseconds; 0: from now."""

    source: int
    target: int


NOW = Moments(0, 0)


async def read_items(
    source: Place, queue: str, ids: Sequence[bytes], moments: Moments = NOW
) -> AsyncGenerator[list[Copied]]:
    """Items by their ids, in parts of which each fits into memory; those are left out that are unknown.

    Raises ``CopyFailed``.
    """
    left = list(ids)
    while left:
        flat, beyond = await source.ask("read", queue, [moments.source, *left[:READ_MAX]])
        left = cast("list[bytes]", beyond) + left[READ_MAX:]
        yield list(read_copied(flat))


async def copy_items(source: Place, target: Place, queue: str, ids: Sequence[bytes], moments: Moments = NOW) -> None:
    """Have ``target`` learn what ``source`` knows of these items.  Raises ``CopyFailed``."""
    async for items in read_items(source, queue, ids, moments):
        await install_items(target, queue, items, moments)


async def install_items(target: Place, queue: str, items: Sequence[Copied], moments: Moments = NOW) -> None:
    """Apply items as they were read elsewhere.  Raises ``CopyFailed``."""
    for with_payload in (False, True):
        given: Arguments = [queue, PUT_WINDOW_MS, 0, "", int(with_payload), moments.target]
        some = [item for item in items if (item.payload is not None) == with_payload]
        for id, record, left_ms, payload in some:
            given += (id, record, left_ms) if payload is None else (id, record, left_ms, payload)
        if some:
            await target.ask("apply", queue, given)


class QueueCopy:
    """The copy of one queue from one life of its source, which goes on where it was."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._moments: Moments | None = None
        self._cursor = b"0"
        self.copied = 0
        """Items copied so far."""
        self.done = False
        """Whether all that the source held from the beginning is copied."""

    async def go_on(self, source: Place, target: Place, copied: Callable[[int], Awaitable[None]]) -> None:
        """Have ``target`` learn all that ``source`` knows of the queue, tombstones included; ``copied`` gets the count.

        What ``source`` holds from the beginning to the end is copied; what comes meanwhile need not be.  Memory: one
        page.  Raises ``CopyFailed``: go on again, with the same life of both, under a newer view perhaps.
        """
        self._moments = moments = self._moments or await _copy_standing(source, target, self._queue)
        while not self.done:
            body = await source.ask("page", self._queue, [moments.source, self._cursor, PAGE])
            cursor, flat, beyond = cast("tuple[bytes, object, list[bytes]]", body)
            items = list(read_copied(flat))
            await install_items(target, self._queue, items, moments)
            await copy_items(source, target, self._queue, beyond, moments)
            self._cursor, self.done = cursor, cursor == b"0"
            self.copied += len(items) + len(beyond)
            await copied(len(items) + len(beyond))


async def copy_queue(source: Place, target: Place, queue: str, copied: Callable[[int], Awaitable[None]]) -> None:
    """Have ``target`` learn all that ``source`` knows of a queue; see ``QueueCopy``.  Raises ``CopyFailed``."""
    await QueueCopy(queue).go_on(source, target, copied)


async def _copy_standing(source: Place, target: Place, queue: str) -> Moments:
    """What is known of a queue besides its items, its owners page by page; returns from when the items' times count."""
    cursor, moments = b"0", None
    while moments is None or cursor != b"0":
        body = await source.ask("standing", queue, [cursor])
        cursor, _, there, floor_ms, owners = cast("tuple[bytes, int, int, bytes, list[bytes | int]]", body)
        (here,) = await target.ask("install", queue, [queue, floor_ms, *owners])
        moments = moments or Moments(there, cast("int", here))
    return moments


async def queues_at(source: Place) -> list[str]:
    """The names of the queues that a server knows.  Raises ``CopyFailed``."""
    cursor, found = b"0", set[bytes]()
    while True:
        cursor, names = cast("tuple[bytes, list[bytes]]", await source.ask("queues", "", [cursor]))
        found.update(names)
        if cursor == b"0":
            return sorted(name.decode() for name in found)


def read_copied(flat: object) -> Iterable[Copied]:
    """The items in a reply."""
    parts = iter(cast("list[object]", flat))
    return (Copied(*cast("tuple[bytes, bytes, bytes, bytes | None]", item)) for item in zip(*[parts] * 4, strict=True))
