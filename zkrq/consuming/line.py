"""Let the consumers of one queue in this process wait in one line, whichever shard of the queue serves them.

Streams take claims that were made ahead of one shard at a time, because claims that were made together are settled
together: a turn lasts until that shard's are used up, or for as many as the consumers take in a moment (``pace.py``).
The shards' prefetchers ask here for their part of what the consumers want (``turns.py``).
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from zkrq.base.errors import Closed, ZkrqError
from zkrq.base.loop import Home, running_loop
from zkrq.consuming.claims import Claim
from zkrq.consuming.pace import AHEAD_SECONDS, Pace, PrefetchLimit
from zkrq.consuming.turns import PROBE_SECONDS, Standing, asked_of, is_spared

T = TypeVar("T")


class Supplier(Protocol[T]):
    """The part of a ``Prefetcher`` that a line uses: it claims from one shard."""

    standing: Standing
    buffer: deque[Claim[T]]
    is_looking: bool
    looks: int

    @property
    def is_in_trouble(self) -> bool: ...
    def look(self) -> None: ...
    def probe(self, count: int) -> None: ...
    def draw(self, want: int, *, fresh: bool = False) -> list[Claim[T]]: ...
    def take_back(self, claims: Sequence[Claim[T]]) -> None: ...
    def release(self, count: int | None = None) -> None: ...
    def failure(self) -> ZkrqError: ...
    def close(self) -> None: ...


@dataclass(eq=False, slots=True)
class Waiter(Generic[T]):
    """Wait for claims: a call that wants up to ``want`` claims: now or, if ``patient``, as soon as there are some."""

    want: int
    patient: bool
    future: asyncio.Future[list[Claim[T]]]
    server: Supplier[T] | None = None
    """Where its claims come from, None before it has some."""
    heard: dict[Supplier[T], ZkrqError | None] | None = None
    """Who had nothing for it, or failed.  None: nobody."""


_WANT = attrgetter("want")


class Line(Generic[T]):
    """Hand the claims of a queue to its consumers in this process, first come first served."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.pace = Pace()
        self._waiters: deque[Waiter[T]] = deque()
        self._suppliers: Sequence[Supplier[T]] = ()
        """In the order in which they are asked: the one that has served last comes last."""
        self._buffers: Sequence[deque[Claim[T]]] = ()
        self._is_alone = True
        self._turn: Supplier[T]
        self._left = 0
        self._closed = False

    def use(self, suppliers: Sequence[Supplier[T]]) -> None:
        """Claim from these from now on.  Claims of others stay as they are."""
        gone = [supplier for supplier in self._suppliers if supplier not in suppliers]
        self._suppliers = suppliers
        self._buffers = [supplier.buffer for supplier in suppliers]
        self._is_alone = len(suppliers) == 1
        self._turn, self._left = suppliers[0], sys.maxsize if self._is_alone else 0
        self.pace.shards = len(suppliers)
        for supplier in gone:
            supplier.close()
        for waiter in tuple(self._waiters):
            self._end_if_over(waiter)
        if self._waiters:
            self.look()

    def close(self) -> None:
        """End every wait with ``Closed``.  Claims that were not handed out go back with ``Leases.release_all``."""
        self._closed = True
        for supplier in self._suppliers:
            supplier.close()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(Closed())
                waiter.future.exception()

    # -- called by consumers -----------------------------------------------------------------------------------------

    def join(self, limit: PrefetchLimit) -> None:
        """Claim ahead for one more stream."""
        self.pace.join(limit)

    def leave(self, limit: PrefetchLimit) -> None:
        """Remove a stream.  Items claimed ahead go back if no consumer is left."""
        self.pace.leave(limit)
        self.hand_back()

    def expect(self, limit: PrefetchLimit, now: PrefetchLimit) -> None:
        """Change the limit of items claimed ahead for a stream."""
        self.pace.change(limit, now)

    def draw_one(self) -> Claim[T] | None:
        """Return a claim made ahead, or None if there is none or another consumer has waited longer."""
        if self._waiters or self._closed:
            return None
        if not self._turn.buffer:
            if self._is_alone or not self._begin_turn():
                return None
        elif not self._left:
            self._begin_turn()
        self._left -= 1
        drawn = self._turn.draw(1)
        return drawn[0] if drawn else None

    async def take(self, want: int, *, patient: bool, timeout: float | None = None) -> list[Claim[T]]:
        """Return up to ``want`` claims: none if nothing is ready and not ``patient``, or after ``timeout`` seconds.

        Raises ``Closed``.  If no request was answered and the caller would not wait longer, raises ``Unavailable``, or
        ``ConfigError`` if a server does not let this client in.
        """
        if running_loop() is not self.home.loop:
            raise self.home.elsewhere()
        if self._closed:
            raise Closed()
        if not self._waiters:
            for supplier in self._suppliers:
                if supplier.buffer and (drawn := supplier.draw(want)):
                    return drawn
        waiter = Waiter(want, patient, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        for supplier in self._suppliers:
            if not supplier.is_looking:
                supplier.look()
        looks = 0 if timeout is None else self.looks
        try:
            if timeout is None:
                return await waiter.future
            async with asyncio.timeout(timeout):
                return await waiter.future
        except TimeoutError:
            self.withdraw(waiter)
            if self.looks == looks:
                raise self.failure() from None
            return []
        except asyncio.CancelledError:
            self.withdraw(waiter)
            raise

    def enlist(self, waiter: Waiter[T]) -> None:
        """Let a patient waiter wait here that other queues may serve, too.  Raises ``Closed``."""
        if self._closed:
            raise Closed()
        self._waiters.append(waiter)
        self.look()

    def strike(self, waiter: Waiter[T]) -> None:
        """Remove a waiter that another queue has served."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        self.hand_back()

    def withdraw(self, waiter: Waiter[T]) -> None:
        """Remove a waiter that has stopped waiting.  Claims that it was just given here go to the next one."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        future, server = waiter.future, waiter.server
        if server and server in self._suppliers and future.done() and not future.cancelled() and not future.exception():
            server.take_back(future.result())
            self.serve(server)
        self.hand_back()

    def probe(self, count: int) -> None:
        """Claim up to this many items ahead, once, unless some are: the streams take from other queues and do not
        wait."""
        for supplier in () if self.ahead else self._suppliers:
            supplier.probe(count)

    # -- what suppliers and queues ask for -----------------------------------------------------------------------------

    @property
    def looks(self) -> int:
        """Requests that were answered."""
        return sum(supplier.looks for supplier in self._suppliers)

    @property
    def is_in_trouble(self) -> bool:
        """Whether every shard is."""
        return all(supplier.is_in_trouble for supplier in self._suppliers)

    @property
    def ahead(self) -> int:
        """Items claimed ahead."""
        return sum(map(len, self._buffers))

    @property
    def is_patient(self) -> bool:
        """Whether somebody waits until there are claims."""
        return any(waiter.patient for waiter in self._waiters)

    @property
    def waiting(self) -> tuple[Waiter[T], ...]:
        """All who wait."""
        return tuple(self._waiters)

    def failure(self) -> ZkrqError:
        """Return the error for a caller whose time is over, and whom no server has answered."""
        return min(self._suppliers, key=lambda supplier: not supplier.is_in_trouble).failure()

    def wanted_of(self, supplier: Supplier[T]) -> int:
        """Return how many items this one is to claim now."""
        count = sum(map(_WANT, self._waiters)) + max(0, self.pace.target - self.ahead)
        if self._is_alone or not count:
            return count
        at = self._suppliers.index(supplier)
        before, after = self._suppliers[:at], self._suppliers[at + 1 :]
        return asked_of(count, supplier.standing, [each.standing for each in before], [each.standing for each in after])

    def is_spared(self, supplier: Supplier[T]) -> bool:
        """Tell whether consumers are here that this one is not asked for, because others have items."""
        others = [other.standing for other in self._suppliers if other is not supplier]
        return self.has_consumers and is_spared(supplier.standing, others)

    def pause_of(self, supplier: Supplier[T], longest: float) -> float:
        """Return how many seconds after its last request, at most, this one is to look again."""
        if self.ahead > self.pace.fixed:
            longest = min(longest, AHEAD_SECONDS)
        return min(longest, PROBE_SECONDS) if self.is_spared(supplier) else longest

    # -- called by suppliers -------------------------------------------------------------------------------------------

    def serve(self, supplier: Supplier[T], *, fresh: bool = False) -> None:
        """Give what this one has claimed to those who wait.  ``fresh``: Redis has just granted it."""
        while self._waiters and supplier.buffer:
            waiter = self._waiters[0]
            if not waiter.future.done():
                drawn = supplier.draw(waiter.want, fresh=fresh)
                if not drawn:
                    break
                waiter.server = supplier
                waiter.future.set_result(drawn)
            self._waiters.popleft()
        if not self._is_alone and supplier in self._suppliers:
            self._suppliers = [*(other for other in self._suppliers if other is not supplier), supplier]

    def answer(self, asking: Iterable[Waiter[T]], supplier: Supplier[T], error: ZkrqError | None = None) -> None:
        """Tell those who asked that this one has nothing for them, or has failed."""
        for waiter in asking:
            if not waiter.patient and not waiter.future.done():
                waiter.heard = {**(waiter.heard or {}), supplier: error}
                self._end_if_over(waiter)

    def look(self) -> None:
        """Let every shard look what is to be claimed."""
        for supplier in self._suppliers:
            supplier.look()

    def look_elsewhere(self, supplier: Supplier[T], *, with_items: bool = False) -> None:
        """Let the others look what is to be claimed; ``with_items``: those that have some."""
        for other in self._suppliers:
            if other is not supplier and not (with_items and other.standing.is_dry):
                other.look()

    def hand_back(self) -> None:
        """Release the items claimed ahead if no consumer is left."""
        if not self.has_consumers:
            for supplier in self._suppliers:
                supplier.release()

    def hand_back_untaken(self) -> None:
        """Release items that the consumers will not take soon, because consumers of other processes may want them."""
        surplus = self.pace.surplus(asyncio.get_running_loop().time(), self.ahead)
        for supplier in self._suppliers if surplus else ():
            count = min(surplus, len(supplier.buffer))
            supplier.release(count)
            surplus -= count

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def has_consumers(self) -> bool:
        """Whether consumers are here: they wait, or iterate over claims."""
        return bool(self._waiters or self.pace.streams)

    def _begin_turn(self) -> bool:
        """Let another shard that has claims have its turn.  Return whether one has."""
        for supplier in (*(other for other in self._suppliers if other is not self._turn), self._turn):
            if supplier.buffer:
                self._turn, self._left = supplier, max(self.pace.target, len(supplier.buffer))
                supplier.look()
                return True
        return False

    def _end_if_over(self, waiter: Waiter[T]) -> None:
        """End the wait of one who would not wait longer, if every shard had nothing.

        One whose requests fail is not waited for, unless it is the same with all.
        """
        heard = waiter.heard or {}
        silent = [supplier for supplier in self._suppliers if supplier not in heard]
        errors = [error for supplier, error in heard.items() if error and supplier in self._suppliers]
        has_answer = len(silent) + len(errors) < len(self._suppliers)
        if not (all(supplier.is_in_trouble for supplier in silent) if has_answer else errors and not silent):
            return
        self._waiters.remove(waiter)
        if has_answer:
            waiter.future.set_result([])
        else:
            waiter.future.set_exception(errors[0])
