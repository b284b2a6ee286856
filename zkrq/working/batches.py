"""Deliver a batch: as ``delivery.py``, with one call of the handler and one ack for all its items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from zkrq.consuming.batch import Batch
from zkrq.working.delivery import Delivery, Handling, in_words, is_answered
from zkrq.working.outcomes import Ending, Outcome

if TYPE_CHECKING:
    import anyio

    from zkrq.consuming.claims import Claim


class BatchDelivery(Delivery):
    """Work on the items of a batch."""

    __slots__ = ("_batch", "_given")

    def __init__(
        self,
        handling: Handling,
        claims: Sequence[Claim[Any]],
        limiter: anyio.CapacityLimiter | None,
        handled: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(handling, claims, limiter, handled)
        self.work = self._batch = self._given = Batch(claims)

    def __repr__(self) -> str:
        return f"batch of {len(self.claims)} items from {self.claims[0].id}"

    def _left(self) -> Batch[Any] | None:
        held = [claim for claim in self.claims if claim.holds]
        if len(held) < len(self.claims):
            self._given = Batch(held)
        return self._given if held else None

    async def _ack(self) -> None:
        results = self._results()
        while not await is_answered(self._given.ack(results)):
            pass

    def _results(self) -> Sequence[object] | None:
        """Return what the handler returned for each item, None if there is nothing to keep.

        Raises ``TypeError`` if it has not returned one result for each.
        """
        if self._result is None or not self._keeps_results:
            return None
        results, wanted = self._result, len(self._given)
        if isinstance(results, list | tuple) and len(cast("Sequence[object]", results)) == wanted:
            return cast("Sequence[object]", results)
        raise TypeError(f"{self._handling.name} must return a list of {wanted} results, one for each item, or None")

    def _log(self, error: BaseException | None, outcomes: Sequence[Outcome]) -> None:
        """Log one line about a batch whose items were not all acked, or whose handler failed."""
        log = self._handling.log
        endings = Counter(outcome.ending for outcome in outcomes)
        told = ", ".join(f"{count} {ending}" for ending, count in endings.items())
        about = {"item": self.claims[0].id}
        if self._has_failed(error):
            text = "%r of queue %s failed in %s: %s"
            log.error(text, self, self.claims[0].queue, self._handling.name, told, exc_info=error, extra=about)
        elif endings.keys() != {Ending.ACKED}:
            text = "%r of queue %s: %s (%s raised: %s)"
            log.info(text, self, self.claims[0].queue, told, self._handling.name, in_words(error), extra=about)
