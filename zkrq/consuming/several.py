"""Claim from several queues, or from several shards of them, for one loop: they take turns, and one wait serves all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic, TypeVar

from zkrq.claims import Claim
from zkrq.consuming.pace import PrefetchLimit
from zkrq.consuming.prefetch import Prefetcher, Waiter
from zkrq.errors import Closed, ZkrqError

T = TypeVar("T")

SHARD_TURN = 500
"""Claims of one shard that the streams of a queue take before those of another one, if both have some."""

PROBE_DRAWS = 500
"""Claims drawn between two looks at queues and shards that have none ahead."""


class Several(Generic[T]):
    """Hand the claims of several prefetchers to one consumer; the part of a ``Prefetcher`` that a stream uses."""

    def __init__(self, prefetchers: Sequence[Prefetcher[T]], *, shards: int = 1) -> None:
        """``shards``: how many of the prefetchers share the items claimed ahead from one queue."""
        self.home = prefetchers[0].home
        self._prefetchers = list(prefetchers)
        self._shards = shards
        self._turn = SHARD_TURN if shards == len(prefetchers) > 1 else 1
        self._left = 0
        self._drawn = 0

    def _share(self, limit: PrefetchLimit) -> PrefetchLimit:
        """Return the part of a stream's limit that one shard claims ahead."""
        if self._shards == 1 or limit.most is None:
            return limit
        least = limit.most // self._shards
        return limit._replace(most=least + (limit.fixed and least * self._shards < limit.most))

    def join(self, limit: PrefetchLimit) -> None:
        """Claim ahead from each queue for one more stream."""
        for prefetcher in self._prefetchers:
            prefetcher.join(self._share(limit))

    def leave(self, limit: PrefetchLimit) -> None:
        """Remove a stream."""
        for prefetcher in self._prefetchers:
            prefetcher.leave(self._share(limit))

    def expect(self, limit: PrefetchLimit, now: PrefetchLimit) -> None:
        """Change the limit of items claimed ahead for a stream."""
        if (share := self._share(limit)) != (share_now := self._share(now)):
            for prefetcher in self._prefetchers:
                prefetcher.expect(share, share_now)

    def draw_one(self) -> Claim[T] | None:
        """Return a claim made ahead, of the queue or the shard whose turn it is, or None.

        A queue's turn is one claim.  A shard's turn is longer, because what is claimed together is settled together.
        """
        prefetchers = self._prefetchers
        self._drawn += 1
        if self._drawn >= PROBE_DRAWS:
            self._drawn = 0
            self._probe()
        if self._left and (claim := prefetchers[0].draw_one()):
            self._left -= 1
            return claim
        count = len(prefetchers)
        for at in range(1, count + 1):
            if claim := prefetchers[at % count].draw_one():
                self._prefetchers = prefetchers[at:] + prefetchers[:at]
                self._left = self._turn - 1
                return claim
        return None

    def _probe(self) -> None:
        """Look for items where none were claimed ahead; nobody waits there while there are enough elsewhere."""
        most = max(1, *(prefetcher.ahead for prefetcher in self._prefetchers))
        for prefetcher in self._prefetchers:
            prefetcher.probe(most)

    async def take(self, want: int, *, patient: bool, timeout: float | None = None) -> list[Claim[T]]:
        """Return up to ``want`` claims of one queue: none if nothing is ready and not ``patient``, or after
        ``timeout`` seconds.

        If the call is cancelled, the claims that it was just given go to other consumers, or back to their queue.
        Raises as ``Prefetcher.take`` does; an error of one queue's servers only if no other has answered.
        """
        if not patient:
            return await self._look(want)
        if timeout is None:
            return await self._wait(want)
        answered = [prefetcher.looks for prefetcher in self._prefetchers]
        try:
            async with asyncio.timeout(timeout):
                return await self._wait(want)
        except TimeoutError:
            if answered == [prefetcher.looks for prefetcher in self._prefetchers]:
                raise self._prefetchers[0].failure() from None
            return []

    async def _look(self, want: int) -> list[Claim[T]]:
        """Return claims of the first prefetcher that has some.

        One whose requests fail is not waited for, unless it is the same with all.
        """
        failure: ZkrqError | None = None
        has_answered = False
        for prefetcher in sorted(self._prefetchers, key=lambda prefetcher: prefetcher.is_in_trouble):
            if prefetcher.is_in_trouble and has_answered:
                break
            try:
                if claims := await prefetcher.take(want, patient=False):
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
