"""Hold the claims of HTTP clients: each in a task of its own, inside ``async with claim``.

The task sleeps until the client has settled the claim or its lease has passed.  So every end of a claim has one place:
it leaves the body, an item whose lease has passed fails as the retry policy says, one that was lost stops the task, and
closing hands the rest back.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from zkrq.base.errors import ClaimLost, ZkrqError
from zkrq.base.retry import RetryLater
from zkrq.base.tasks import Tasks, wait_set
from zkrq.consuming.claims import ack_keeping
from zkrq.consuming.lease import Verb
from zkrq.serve.leases import ClientLease
from zkrq.serve.problems import Busy

if TYPE_CHECKING:
    from zkrq.base.checks import Duration
    from zkrq.consuming.claims import Claim

HELD_MAX = 10_000
"""Claims that one server holds for its clients; requests that wait when it is reached may still add theirs."""

ENDED_MAX = 10_000
"""Ended claims that are remembered, so that a repeated request gets the same answer."""

ENDED_SECONDS = 600.0
"""Seconds for which they are remembered."""

_log = logging.getLogger("zkrq.serve")


class Held:
    """A claim, the client's lease on it, and the token by which the client names it."""

    def __init__(self, queue: str, claim: Claim[bytes], lease: ClientLease) -> None:
        self.token = secrets.token_urlsafe(16)
        self.queue = queue
        self.claim = claim
        self.lease = lease
        self.turn = asyncio.Lock()
        """One request at a time: a repeated one waits for the outcome of the first."""
        self.changed = asyncio.Event()


class Kept(NamedTuple):
    """A result: its bytes, and the milliseconds for which it is kept."""

    result: bytes
    ttl_ms: int


class Holding:
    """Own the claims of all clients of this server: ``async with`` hands back what is left."""

    def __init__(self) -> None:
        self._tasks = Tasks("zkrq serve")
        self._held: dict[str, Held] = {}
        self._ended: OrderedDict[str, tuple[float, ClientLease]] = OrderedDict()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._held)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._tasks.__aexit__(kind, error, traceback)

    @property
    def room(self) -> int:
        """Claims that may still be added."""
        return HELD_MAX - len(self._held)

    def check_room(self) -> None:
        """Raise ``Busy`` if no claim may be added."""
        if self.room < 1:
            raise Busy(f"this server holds {HELD_MAX:,} claims for its clients")

    def queue_of(self, token: str) -> str | None:
        """Return the queue of a claim that a client holds, None if it has ended."""
        held = self._find(token)
        return held and held.queue

    def hold(self, queue: str, claims: Sequence[Claim[bytes]], seconds: float) -> list[Held]:
        """Hold these claims for a client, for ``seconds`` from now unless it extends its lease."""
        deadline = _now() + seconds
        held = [Held(queue, claim, ClientLease(claim.id, deadline)) for claim in claims]
        for each in held:
            self._held[each.token] = each
            self._idle.clear()
            self._tasks.start(self._keep(each), f"hold item {each.claim.id}")
        return held

    def hand_back(self, popping: asyncio.Task[list[Claim[bytes]]]) -> None:
        """Release what is being claimed for a client that gets no answer."""
        self._tasks.start(self._hand_back(popping), "hand back what no client gets")

    async def _hand_back(self, popping: asyncio.Task[list[Claim[bytes]]]) -> None:
        with suppress(ZkrqError):  # what cannot be handed back comes back by itself
            for claim in await popping:
                await claim.release()

    async def wait_idle(self) -> None:
        """Wait until no client holds a claim."""
        await self._idle.wait()

    # -- what clients do with a claim ------------------------------------------------------------------------------

    async def ack(self, token: str, kept: Kept | None = None) -> None:
        """Ack a claim; raises as ``Claim.ack`` does.  A repetition of what was done is answered like the first.

        ``kept``: the result that the ack leaves, None: none.
        """
        await self._settle(token, Verb.ACK, lambda claim: claim.ack() if kept is None else ack_keeping(claim, *kept))

    async def save(self, token: str, state: object) -> None:
        """Save a state of the work.  Raises as ``ack`` does, and as ``Claim.save`` for what cannot be saved."""
        held = self._find(token)
        if not held:
            self._ended_lease(token).check(_now())
            return
        async with held.turn:
            held.lease.check(_now())
            await held.claim.save(state)

    async def progress(self, token: str, fraction: float | None, text: str) -> None:
        """Report how far the work is.  Raises ``ClaimLost`` if the lease has ended."""
        held = self._find(token)
        if not held:
            self._ended_lease(token).check(_now())
            return
        held.lease.check(_now())
        held.claim.progress(fraction, text)

    async def nack(self, token: str, delay: Duration | None, reason: str | None) -> None:
        """Nack a claim; see ``ack``."""
        await self._settle(token, Verb.NACK, lambda claim: claim.nack(delay, reason))

    async def release(self, token: str, delay: Duration | None = None) -> None:
        """Hand an item back; see ``ack``."""
        await self._settle(token, Verb.RELEASE, lambda claim: claim.release(delay))

    async def bury(self, token: str, reason: str) -> None:
        """Move an item to the dead letters; see ``ack``."""
        await self._settle(token, Verb.BURY, lambda claim: claim.bury(reason))

    async def extend(self, token: str, seconds: float) -> None:
        """Let a lease last for ``seconds`` from now; every server confirms that the claim still holds.

        Raises as ``ack`` does; after any error but ``ClaimLost`` the lease is as it was.
        """
        held = self._find(token)
        if not held:
            self._ended_lease(token).check(_now())
            return
        async with held.turn:
            held.lease.check(_now())
            await held.claim.extend()
            held.lease.extend(_now(), seconds)
            held.changed.set()

    async def _settle(self, token: str, verb: Verb, act: Callable[[Claim[bytes]], Awaitable[None]]) -> None:
        held = self._find(token)
        if not held:
            self._ended_lease(token).begin(verb, _now())
            return
        async with held.turn:
            if not held.lease.begin(verb, _now()):
                return
            try:
                await act(held.claim)
            except ClaimLost as error:
                held.lease.end(held.claim.lost.reason or str(error))
                raise
            except BaseException:
                held.lease.failed()
                raise
            else:
                held.lease.done(verb)
            finally:
                held.changed.set()

    def _find(self, token: str) -> Held | None:
        return self._held.get(token)

    def _ended_lease(self, token: str) -> ClientLease:
        """Return the lease of a claim that has ended.  Raises ``ClaimLost`` for one that is not known any more."""
        if token not in self._ended:
            raise ClaimLost(
                "this server holds no such claim: it ended some time ago, or the server was started again, or another "
                "server holds it"
            )
        return self._ended[token][1]

    # -- one claim -------------------------------------------------------------------------------------------------

    async def _keep(self, held: Held) -> None:
        """Stay inside the claim until it ends."""
        try:
            async with held.claim:
                await self._wait(held)
        except ClaimLost:
            held.lease.end(held.claim.lost.reason)
        except ZkrqError as error:
            extra = {"queue": held.queue, "item": held.claim.id}
            _log.info("item %s could not go back, it comes back by itself: %s", held.claim.id, error, extra=extra)
        finally:
            held.lease.end("the server has stopped")
            self._forget(held)

    async def _wait(self, held: Held) -> None:
        """Wait until the client has settled the claim.  Raises ``RetryLater`` if its lease passes."""
        while not held.lease.ended:
            held.changed.clear()
            left = held.lease.seconds_left(_now())
            if left == 0:
                held.lease.end("its lease has passed")
                raise RetryLater(reason="the lease of its HTTP client has passed")
            await wait_set(held.changed, left)

    def _forget(self, held: Held) -> None:
        del self._held[held.token]
        if not self._held:
            self._idle.set()
        now = _now()
        self._ended[held.token] = now, held.lease
        while len(self._ended) > ENDED_MAX or next(iter(self._ended.values()))[0] < now - ENDED_SECONDS:
            self._ended.popitem(last=False)


def _now() -> float:
    return asyncio.get_running_loop().time()
