"""Iterate over the claims of one consumer's loop: the streams that ``pop()`` and ``pop_batches()`` return."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from zkrq.base.errors import Closed
from zkrq.base.loop import running_loop
from zkrq.consuming.batch import Batch
from zkrq.consuming.core.pace import PrefetchLimit
from zkrq.consuming.line import Line, take_from

if TYPE_CHECKING:
    from zkrq.consuming.claims import Claim

T = TypeVar("T")

LIMITED_PREFETCH = 32
"""Items claimed ahead, at most, for a loop with a ``limit`` and without a ``prefetch`` of its own."""


PROBE_DRAWS = 500
"""Claims drawn of several queues between two looks at those that have none ahead."""


class Stream(Generic[T]):
    """What a consumer's loop has of its queues: items claimed ahead for it, and a limit."""

    def __init__(
        self,
        lines: Sequence[Line[T]],
        prefetch: int | None,
        limit: int | None,
        wait: bool,
        *,
        queues: Sequence[object],
        at_once: int = 1,
    ) -> None:
        """``lines``: of the queues, which take turns.  ``queues``: kept in use while this object is referenced.

        ``at_once``: items that the loop takes together.
        """
        self._own_loop = lines[0].own_loop
        self._lines = list(lines)
        self._queues = queues
        most = prefetch
        if limit is not None:  # never more than the loop will still take
            most = max(0, min(limit - at_once, max(LIMITED_PREFETCH, at_once) if prefetch is None else prefetch))
        self._limit = PrefetchLimit(most, fixed=prefetch is not None, at_once=at_once)
        self._left = limit
        self._wait = wait
        self._joined = False

    def _join(self) -> None:
        self._joined = True
        for line in self._lines:
            line.pace.join(self._limit)

    def _count_down(self, taken: int = 1) -> None:
        assert self._left
        assert self._limit.most is not None
        self._left -= taken
        if self._joined and self._left < self._limit.most:
            now = self._limit._replace(most=self._left)
            for line in self._lines:
                line.pace.change(self._limit, now)
            self._limit = now

    async def aclose(self) -> None:
        """End the loop; idempotent."""
        self._own_loop.check()
        self._left = 0
        self._leave()

    def _leave(self) -> None:
        if self._joined:
            self._joined = False
            _leave_all(self._lines, self._limit)

    def __del__(self) -> None:
        # A loop that was left with `break` ends here, in whichever thread the garbage collector runs.
        with suppress(Exception):
            if self._joined:
                self._own_loop.run(partial(_leave_all, self._lines, self._limit))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class Deliveries(Stream[T]):
    """Iterate over claims: ``async for claim in queue.pop()``, or of several queues, ``cluster.pop(emails, reports)``.

    As a context manager it hands back items claimed ahead as soon as it is left.
    """

    def __init__(
        self, lines: Sequence[Line[T]], prefetch: int | None, limit: int | None, wait: bool, *, queues: Sequence[object]
    ) -> None:
        super().__init__(lines, prefetch, limit, wait, queues=queues)
        self._draw = lines[0].draw_one if len(lines) == 1 else self._draw_in_turn
        self._drawn = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Claim[T]:
        if running_loop() is not self._own_loop.loop:
            raise self._own_loop.elsewhere()
        if not self._joined:
            self._join()
        claim = self._draw() if self._left != 0 else None
        if claim is None:
            claim = await self._next()
        if self._left is not None:
            self._count_down()
        return claim

    def _draw_in_turn(self) -> Claim[T] | None:
        """Return a claim made ahead, of the queue whose turn it is, or None."""
        self._drawn += 1
        if self._drawn >= PROBE_DRAWS:
            self._drawn = 0
            most = max(1, *(line.pace.target for line in self._lines))
            for line in self._lines:  # nobody waits where nothing is ahead, as long as there are enough elsewhere
                line.probe(most)
        for at, line in enumerate(self._lines, 1):
            if claim := line.draw_one():
                self._lines = self._lines[at:] + self._lines[:at]
                return claim
        return None

    async def _next(self) -> Claim[T]:
        """Wait for a claim.  Raises ``StopAsyncIteration``."""
        if self._left != 0:
            try:  # `suppress` would be three calls
                if len(self._lines) == 1:
                    claims = await self._lines[0].take(1, patient=self._wait)
                else:
                    claims = await take_from(self._lines, 1, patient=self._wait)
                for claim in claims:
                    return claim
            except Closed:
                pass
        await self.aclose()
        raise StopAsyncIteration


class Batches(Stream[T]):
    """Iterate over batches of claims: ``async for batch in queue.pop_batches(100)``.

    As a context manager it hands back items claimed ahead as soon as it is left.
    """

    def __init__(
        self,
        line: Line[T],
        size: int,
        within: float,
        prefetch: int | None,
        limit: int | None,
        wait: bool,
        *,
        queue: object,
    ) -> None:
        """``size``: claims in a batch, at most.  ``within``: seconds that a batch waits for more than its first."""
        super().__init__([line], prefetch, limit, wait, queues=(queue,), at_once=size)
        self._size = size
        self._within = within

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch[T]:
        self._own_loop.check()
        if not self._joined:
            self._join()
        want = self._size if self._left is None else min(self._size, self._left)
        claims: list[Claim[T]] = []
        if want:
            with suppress(Closed):  # closing ends the loop, as it ends that of ``Deliveries``
                claims = await self._lines[0].take_batch(want, patient=self._wait, within=self._within)
        if not claims:
            await self.aclose()
            raise StopAsyncIteration
        if self._left is not None:
            self._count_down(len(claims))
        # Once it is settled, this loop wants a full batch, however few these are: that request leaves with the ack.
        return Batch(claims, wanted=self._size)


def _leave_all(lines: Sequence[Line[T]], limit: PrefetchLimit) -> None:
    for line in lines:
        line.leave(limit)
