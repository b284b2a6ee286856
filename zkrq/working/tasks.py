"""Give each item to the handler of its task, and put off an item whose task no handler of this worker knows.

Such items are usual while a deployment is in the middle: new producers name tasks that workers of before do not know.
So the item goes back for other workers, and it has not failed.  The servers count nothing of that: each worker
remembers by itself how often it has refused an item, and since when.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from zkrq.base import clock
from zkrq.base.events import shorten
from zkrq.base.retry import GivenUp, NotKnown, Reject, exponential
from zkrq.consuming.claims import lease_of

if TYPE_CHECKING:
    from zkrq.consuming.claims import Claim
    from zkrq.working.delivery import Handling

UNKNOWN_AFTER = 86_400.0
"""Seconds since its push after which an item whose task no handler knows becomes a dead letter, unless the worker says
otherwise."""

REFUSED_LEAST = 3_600.0
"""Seconds for which a worker has refused an item, at least, before it makes it a dead letter.  So an item that is
delivered long after its push, because it was scheduled or redriven, is none yet at its first delivery.  The time begins
anew for an item that did not come for as long."""

REFUSALS_KEPT = 10_000
"""Items of a queue for which a worker remembers that it refused them; the oldest ones are forgotten."""

TOLD_MAX = 100
"""Unknown tasks of a queue that a worker reports, each once."""

PUT_OFF = exponential(1.0, maximum=300.0)
"""Seconds until a refused item may be delivered again, by how often this worker has refused it."""


class Routes:
    """The handlings of one queue, by the tasks of its items.

    Servers know the policy of the queue alone.  An item of a task with a policy of its own that no consumer has settled
    in as many deliveries as that allows is buried here, before its handler is called once more.
    """

    def __init__(self, handlings: Mapping[str, Handling], unknown: Handling) -> None:
        """``handlings``: empty for items without a task; ``unknown``: for items whose task is none of these."""
        self._handlings = handlings
        self._unknown = unknown

    def of(self, claim: Claim[Any]) -> Handling:
        """Return how an item is handled, and have it fail as its task says."""
        handling = self._handlings.get(claim.task or "", self._unknown)
        if handling.retry is None:
            return handling
        lease_of(claim).retry = handling.retry
        most = handling.retry.max_attempts
        if most is None or claim.attempts <= most:
            return handling
        return replace(handling, call=_bury, in_thread=False)


async def _bury(claim: Claim[Any]) -> NoReturn:
    raise Reject(f"delivered {claim.attempts - 1} times, and settled by none of those consumers")


class _Refused(NamedTuple):
    """What a worker remembers of an item: when it refused it first and last, in seconds, and how often."""

    since: float
    last: float
    times: int


def _time() -> float:
    return asyncio.get_running_loop().time()


class Refusing:
    """Refuse the items of a queue whose task no handler knows.  Called with the claim, as a handler is.

    ``after``: as ``Worker.add`` has it.  ``tell``: called once for each task that is met.
    """

    def __init__(
        self,
        known: Sequence[str],
        after: float | None,
        tell: Callable[[str | None], object],
        time: Callable[[], float] = _time,
    ) -> None:
        self._known = shorten([repr(name) if name else "items without a task" for name in known])
        self._after = after
        self._tell = tell
        self._time = time
        self._refused = OrderedDict[str, _Refused]()
        self._told = set[str | None]()

    async def __call__(self, claim: Claim[Any]) -> NoReturn:
        """Refuse an item.  Raises ``NotKnown``, which puts it off, or ``GivenUp``, which makes it a dead letter."""
        task = claim.task
        if task not in self._told and len(self._told) < TOLD_MAX:
            self._told.add(task)
            self._tell(task)
        refused = self._note(claim.id)
        age = (clock.now() - claim.pushed_at).total_seconds()
        what = "an item without a task" if task is None else f"task {task!r}"
        if self._after is not None and age >= self._after and refused.last - refused.since >= self._least:
            del self._refused[claim.id]
            raise GivenUp(f"no handler for {what} within {age:.0f} s of its push: this worker knows {self._known}")
        raise NotKnown(PUT_OFF(refused.times, random.random()), what)  # noqa: S311

    @property
    def _least(self) -> float:
        return REFUSED_LEAST if self._after is None else min(REFUSED_LEAST, self._after)

    def _note(self, id: str) -> _Refused:
        now = self._time()
        before = self._refused.pop(id, None)
        if before is None or now - before.last > REFUSED_LEAST:
            before = _Refused(now, now, 0)
        refused = self._refused[id] = _Refused(before.since, now, before.times + 1)
        if len(self._refused) > REFUSALS_KEPT:
            self._refused.popitem(last=False)
        return refused
