"""All claims of one queue that this process holds: settled in batches, extended while they are held, lost together."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

from zkrq.claims import EXTENSION_REFUSED, Claim, Verb
from zkrq.errors import ZkrqError
from zkrq.events import ClaimsLost, Events
from zkrq.replication.batching import Batcher
from zkrq.replication.records import Record
from zkrq.replication.replicas import Replicas
from zkrq.replication.wire import Arguments
from zkrq.retry import Again, Retry
from zkrq.tasks import Tasks

T = TypeVar("T")

EXTEND_AT = 2 / 3
"""A claim with less than this part of its time left is extended ..."""

LOOKS_PER_LEASE = 6
"""... at one of so many looks in the time of one claim."""

MIN_LOOK_SECONDS, MAX_LOOK_SECONDS = 0.05, 5.0

REASON_MAX = 1000
"""Characters of a failure's reason that are kept."""

CALL_BYTES = 160
"""What one settle call weighs, about."""

SettleCall = tuple[str, int, int, str, str, int, str]
"""id, version's epoch and n, token, verb, ms, text: what ``lua/settle.lua`` takes for one item."""


class Held:
    """Holds, extends and settles; implements ``claims.Holder``."""

    def __init__(
        self,
        replicas: Replicas,
        *,
        cluster: str,
        queue: str,
        claim_timeout: float,
        retry: Retry,
        tasks: Tasks,
        events: Events,
        is_certain: Callable[[], bool],
    ) -> None:
        self.claim_timeout = claim_timeout
        self._replicas = replicas
        self._cluster = cluster
        self._queue = queue
        self._retry = retry
        self._events = events
        self.is_certain = is_certain
        """Whether the session certainly lives; without that, others may have fenced this process."""
        # Weak: a claim that its consumer has dropped is extended no longer, and comes back when its time is over.
        self._claims: WeakSet[Claim[Any]] = WeakSet()
        self._tasks = tasks
        self._keeper: asyncio.Task[None] | None = None
        self._batcher: Batcher[SettleCall, bool] = Batcher(
            self._send, size=_weigh, tasks=tasks, name=f"settle in {queue}", patience=replicas.operation_timeout
        )
        self._log = logging.LoggerAdapter(logging.getLogger("zkrq.claims"), {"cluster": cluster, "queue": queue})

    @property
    def max_attempts(self) -> int:
        """Deliveries after which an item that nobody has settled is a dead letter; 0: no limit."""
        return self._retry.max_attempts or 0

    def __len__(self) -> int:
        return len(self._claims)

    def hold(self, claim: Claim[Any]) -> None:
        """Extend this claim from now on."""
        self._claims.add(claim)
        if self._keeper is None:
            self._keeper = self._tasks.keep(self._keep, f"extend claims of {self._queue}")

    def let_go(self, claim: Claim[Any]) -> None:
        """Extend it no longer."""
        self._claims.discard(claim)
        if claim.timer:
            claim.timer.cancel()
            claim.timer = None

    def settle(self, claim: Claim[Any], verb: Verb, ms: int = 0, text: str = "") -> asyncio.Future[bool]:
        """Have it decided with the next batch; False: the claim is lost.  Raises ``Closed``."""
        epoch, n = claim.version
        if text:  # a surrogate, as in the text of an exception about a file name, cannot be sent
            text = text[:REASON_MAX].encode(errors="replace").decode()
        return self._batcher.add((claim.id, epoch, n, claim.request, verb.value, ms, text))

    def after_failure(self, record: Record, delay: float | None, reason: str) -> Again | str:
        """The retry policy's word: a delay, or the reason to bury."""
        verdict = self._retry.after(
            attempts=record.attempts,
            failures=record.failures + 1,
            delay=delay,
            chance=random.random(),  # noqa: S311
            reason=reason,
        )
        return verdict if isinstance(verdict, Again) else verdict.reason

    def lose_all(self, owner: str, reason: str) -> None:
        """Every claim of ``owner`` is lost: tell the handlers."""
        lost = [claim for claim in self._claims if claim.owner == owner]
        if lost:
            self._tell_lost(lost, reason)

    def _tell_lost(self, lost: Iterable[Claim[Any]], reason: str) -> None:
        ids = tuple(claim.id for claim in lost)
        for claim in tuple(lost):
            claim.lose(reason)
        self._events.tell(ClaimsLost(self._cluster, self._queue, ids, reason), logging.WARNING)

    async def release_all(self) -> None:
        """For closing: hand back what was only claimed ahead, and stop the handlers of the rest, which comes back when
        this owner is fenced."""
        ahead = [claim for claim in self._claims if not claim.delivered]
        handled = [claim for claim in self._claims if claim.delivered and claim.holds]
        if handled:
            self._tell_lost(handled, "the cluster is closed")
        await asyncio.gather(*(claim.release() for claim in ahead), return_exceptions=True)
        for claim in ahead:
            self.let_go(claim)

    def stop(self) -> None:
        """Take no more calls."""
        self._batcher.stop()

    async def aclose(self) -> None:
        """Take no more calls, and wait for those that are under way."""
        await self._batcher.aclose()

    async def _send(self, calls: Sequence[SettleCall]) -> Sequence[bool | Exception]:
        arguments: Arguments = []
        for call in calls:
            arguments += call
        decision = await self._replicas.decide("settle", self._queue, arguments, trim=True)
        (outcomes,) = decision.body
        assert isinstance(outcomes, list)
        return [outcome == 1 for outcome in outcomes]  # pyright: ignore[reportUnknownVariableType]

    # -- extension -------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        pause = min(MAX_LOOK_SECONDS, max(MIN_LOOK_SECONDS, self.claim_timeout / LOOKS_PER_LEASE))
        while True:
            await asyncio.sleep(pause)
            # Without word from ZooKeeper others may have fenced this process: Redis is asked about every claim.
            soon = loop.time() + self.claim_timeout * EXTEND_AT if self.is_certain() else math.inf
            due = [claim for claim in self._claims if claim.deadline_at < soon and claim.timer is None]
            for claim in due:
                claim.timer = loop.call_at(claim.deadline_at, self._expire, claim)
                self._tasks.start(self._extend(claim), "extend a claim")

    async def _extend(self, claim: Claim[Any]) -> None:
        """Extend one claim; the batcher makes one call of many.  Tried again until the deadline has passed."""
        while claim in self._claims:
            try:
                return await claim.extended(self.claim_timeout)
            except ZkrqError as error:
                if claim.lost:
                    if claim.lost.reason == EXTENSION_REFUSED:  # any other loss was told by who noticed it
                        self._tell_lost([claim], claim.lost.reason)
                    return None
                self._log.info("item %s: extension failed, trying on: %s", claim.id, error)
                await asyncio.sleep(MIN_LOOK_SECONDS)
        return None

    def _expire(self, claim: Claim[Any]) -> None:
        if claim in self._claims:
            self._tell_lost([claim], "it could not be extended in time")


def _weigh(call: SettleCall) -> int:
    return CALL_BYTES + len(call[-1])
