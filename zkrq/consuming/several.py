"""Claim from several queues for one loop: the queues take turns, and one wait serves all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

from zkrq.claims import Claim
from zkrq.consuming.pace import PrefetchLimit
from zkrq.consuming.prefetch import Prefetcher, Waiter

T = TypeVar("T")


class Several(Generic[T]):
    """Hand the claims of several prefetchers to one consumer; the part of a ``Prefetcher`` that a stream uses."""

    def __init__(self, prefetchers: Sequence[Prefetcher[T]]) -> None:
        self.home = prefetchers[0].home
        self._prefetchers = list(prefetchers)

    def join(self, limit: PrefetchLimit) -> None:
        """Claim ahead from each queue for one more stream."""
        for prefetcher in self._prefetchers:
            prefetcher.join(limit)

    def leave(self, limit: PrefetchLimit) -> None:
        """Remove a stream."""
        for prefetcher in self._prefetchers:
            prefetcher.leave(limit)

    def expect(self, limit: PrefetchLimit, now: PrefetchLimit) -> None:
        """Change the limit of items claimed ahead for a stream."""
        for prefetcher in self._prefetchers:
            prefetcher.expect(limit, now)

    def draw_one(self) -> Claim[T] | None:
        """Return a claim made ahead, of the queue whose last turn is longest ago, or None."""
        for at, prefetcher in enumerate(self._prefetchers):
            if claim := prefetcher.draw_one():
                self._prefetchers.append(self._prefetchers.pop(at))
                return claim
        return None

    async def take(self, want: int, *, patient: bool) -> list[Claim[T]]:
        """Return up to ``want`` claims of one queue: none if no queue has a ready item and not ``patient``.

        If the call is cancelled, the claims that it was just given go to other consumers, or back to their queue.
        Raises as ``Prefetcher.take`` does.
        """
        if patient:
            return await self._wait(want)
        for prefetcher in tuple(self._prefetchers):
            if claims := await prefetcher.take(want, patient=False):
                return claims
        return []

    async def _wait(self, want: int) -> list[Claim[T]]:
        waiter = Waiter[T](want, True, asyncio.get_running_loop().create_future())
        try:
            for prefetcher in self._prefetchers:
                prefetcher.enlist(waiter)
            return await waiter.future
        except asyncio.CancelledError:
            for prefetcher in self._prefetchers:
                prefetcher.withdraw(waiter)
            raise
        finally:
            for prefetcher in self._prefetchers:
                prefetcher.strike(waiter)
