"""Claim from several queues for one loop: they take turns, and one wait serves all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

from zkrq.base.errors import Closed, ZkrqError
from zkrq.consuming.claims import Claim
from zkrq.consuming.line import Line, Waiter
from zkrq.consuming.pace import PrefetchLimit

T = TypeVar("T")

PROBE_DRAWS = 500
"""Claims drawn between two looks at queues that have none ahead."""


class Several(Generic[T]):
    """Hand the claims of several lines to one consumer; the part of a ``Line`` that a stream uses."""

    def __init__(self, lines: Sequence[Line[T]]) -> None:
        self.home = lines[0].home
        self._lines = list(lines)
        self._drawn = 0

    def join(self, limit: PrefetchLimit) -> None:
        """Claim ahead from each queue for one more stream."""
        for line in self._lines:
            line.join(limit)

    def leave(self, limit: PrefetchLimit) -> None:
        """Remove a stream."""
        for line in self._lines:
            line.leave(limit)

    def expect(self, limit: PrefetchLimit, now: PrefetchLimit) -> None:
        """Change the limit of items claimed ahead for a stream."""
        for line in self._lines:
            line.expect(limit, now)

    def draw_one(self) -> Claim[T] | None:
        """Return a claim made ahead, of the queue whose turn it is, or None."""
        self._drawn += 1
        if self._drawn >= PROBE_DRAWS:
            self._drawn = 0
            self._probe()
        for at, line in enumerate(self._lines, 1):
            if claim := line.draw_one():
                self._lines = self._lines[at:] + self._lines[:at]
                return claim
        return None

    def _probe(self) -> None:
        """Look for items where none were claimed ahead; nobody waits there while there are enough elsewhere."""
        most = max(1, *(line.pace.target for line in self._lines))
        for line in self._lines:
            line.probe(most)

    async def take(self, want: int, *, patient: bool, timeout: float | None = None) -> list[Claim[T]]:
        """Return up to ``want`` claims of one queue: none if nothing is ready and not ``patient``, or after
        ``timeout`` seconds.

        If the call is cancelled, the claims that it was just given go to other consumers, or back to their queue.
        Raises as ``Line.take`` does; an error of one queue's servers only if no other has answered.
        """
        if not patient:
            return await self._look(want)
        if timeout is None:
            return await self._wait(want)
        answered = [line.looks for line in self._lines]
        try:
            async with asyncio.timeout(timeout):
                return await self._wait(want)
        except TimeoutError:
            if answered == [line.looks for line in self._lines]:
                raise self._lines[0].failure() from None
            return []

    async def _look(self, want: int) -> list[Claim[T]]:
        """Return claims of the first queue that has some.

        One whose requests fail is not waited for, unless it is the same with all.
        """
        failure: ZkrqError | None = None
        has_answered = False
        for line in sorted(self._lines, key=lambda line: line.is_in_trouble):
            if line.is_in_trouble and has_answered:
                break
            try:
                if claims := await line.take(want, patient=False):
                    return claims
                has_answered = True
            except Closed:
                raise
            except ZkrqError as error:
                failure = error
        if failure and not has_answered:
            raise failure
        return []

    async def _wait(self, want: int) -> list[Claim[T]]:
        waiter = Waiter[T](want, True, asyncio.get_running_loop().create_future())
        try:
            for line in self._lines:
                line.enlist(waiter)
            return await waiter.future
        except asyncio.CancelledError:
            for line in self._lines:
                line.withdraw(waiter)
            raise
        finally:
            for line in self._lines:
                line.strike(waiter)
