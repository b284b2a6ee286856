"""Iterate over the claims of one consumer's loop: the stream that ``pop()`` returns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from zkrq.base.errors import Closed
from zkrq.base.loop import Home, running_loop
from zkrq.consuming.claims import Claim
from zkrq.consuming.pace import PrefetchLimit

T = TypeVar("T")

LIMITED_PREFETCH = 32
"""Items claimed ahead, at most, for a loop with a ``limit`` and without a ``prefetch`` of its own."""


class Source(Protocol[T]):
    """The part of a ``Line`` that a stream uses; ``Several`` is another one."""

    home: Home

    def join(self, limit: PrefetchLimit) -> None: ...
    def leave(self, limit: PrefetchLimit) -> None: ...
    def expect(self, limit: PrefetchLimit, now: PrefetchLimit) -> None: ...
    def draw_one(self) -> Claim[T] | None: ...
    async def take(self, want: int, *, patient: bool, timeout: float | None = None) -> list[Claim[T]]: ...


class Deliveries(Generic[T]):
    """Iterate over claims: ``async for claim in queue.pop()``, or of several queues, ``cluster.pop(emails, reports)``.

    As a context manager it hands back items claimed ahead as soon as it is left.
    """

    def __init__(
        self, source: Source[T], prefetch: int | None, limit: int | None, wait: bool, *, queues: Sequence[object]
    ) -> None:
        """``queues``: kept in use while this object is referenced."""
        self._source = source
        self._queues = queues
        most = prefetch
        if limit is not None:  # never more than the loop will still take
            most = min(limit - 1, LIMITED_PREFETCH if prefetch is None else prefetch) if limit else 0
        self._limit = PrefetchLimit(most, fixed=prefetch is not None)
        self._left = limit
        self._wait = wait
        self._joined = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Claim[T]:
        if running_loop() is not self._source.home.loop:
            raise self._source.home.elsewhere()
        if not self._joined:
            self._joined = True
            self._source.join(self._limit)
        claim = self._source.draw_one() if self._left != 0 else None
        if claim is None:
            claim = await self._next()
        if self._left is not None:
            self._count_down()
        return claim

    def _count_down(self) -> None:
        assert self._left
        assert self._limit.most is not None
        self._left -= 1
        if self._joined and self._left < self._limit.most:
            now = self._limit._replace(most=self._left)
            self._source.expect(self._limit, now)
            self._limit = now

    async def _next(self) -> Claim[T]:
        """Wait for a claim.  Raises ``StopAsyncIteration``."""
        if self._left != 0:
            try:  # `suppress` would be three calls
                for claim in await self._source.take(1, patient=self._wait):
                    return claim
            except Closed:
                pass
        await self.aclose()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the loop; idempotent."""
        self._source.home.check()
        self._left = 0
        self._leave()

    def _leave(self) -> None:
        if self._joined:
            self._joined = False
            self._source.leave(self._limit)

    def __del__(self) -> None:
        # A loop that was left with `break` ends here, in whichever thread the garbage collector runs.
        with suppress(Exception):
            if self._joined:
                self._source.home.run(partial(self._source.leave, self._limit))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
