"""Count what the handlers of this process do with the items of one queue, and report it now and then.

Counting is done for a whole answer of the servers at a time, where claims arrive and where settlements are answered, so
it adds no call for each item.  A report is a call of best effort, sent once: what cannot be sent is dropped, and the
figures show less than was done.  Nothing waits for it but the closing of the cluster, for ``LAST_SECONDS``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zkrq.base import clock
from zkrq.base.errors import Closed, ZkrqError
from zkrq.base.tasks import wait_ended
from zkrq.consuming.lease import LETS_GO_ON, Verb
from zkrq.protocol import figures
from zkrq.protocol.calls import Figure
from zkrq.protocol.figures import (
    BEGUN,
    CLASSES,
    COUNTS,
    DEAD,
    DONE,
    DURATIONS,
    FAILED,
    LONGEST,
    OTHERS,
    TASKS_MAX,
    WAITS,
)
from zkrq.protocol.levels import Feature
from zkrq.protocol.records import first_due

if TYPE_CHECKING:
    from zkrq.base.tasks import Tasks
    from zkrq.consuming.lease import Grant
    from zkrq.replication.replicas import Replicas

REPORT_SECONDS = 10.0
"""Seconds between two reports of one queue, while something happens."""

LAST_SECONDS = 0.5
"""Seconds that closing waits for the last report."""

_LAST_CLASS = CLASSES - 1

_LONGEST_WAIT, _LONGEST_DURATION = WAITS + LONGEST, DURATIONS + LONGEST

_log = logging.getLogger("zkrq.claims")


class Figuring:
    """Count and report for one queue, in one shard."""

    def __init__(self, replicas: Replicas, tasks: Tasks, queue: str) -> None:
        self._replicas = replicas
        self._tasks = tasks
        self._queue = queue
        self._counts = dict[str, list[int]]()
        """What was done since the last report, by task."""
        self._is_running = False

    # -- counting ------------------------------------------------------------------------------------------------------

    def began(self, handed: Sequence[Any], grants: Mapping[bytes, Grant], clock_us: int, now: float) -> None:
        """Count the claims that an answer has brought.

        ``handed``: bundle, first position (from 1), number of items and payloads of each part.  ``clock_us``: when they
        were claimed, by the server's clock; ``now``: by ``loop.time()``.
        """
        if not handed:
            return
        own = self._of("")
        parts = [grants[id] for id in handed[::4]]
        due = first_due([(grant.packed, first - 1) for grant, first in zip(parts, handed[1::4], strict=True)])
        for grant, first, count, due_us in zip(parts, handed[1::4], handed[2::4], due, strict=True):
            grant.began_at = now
            key = took_ms = 0
            if due_us:  # a later delivery was due when the one before had failed, which says nothing of consumers
                took_ms = int(clock_us - due_us) // 1000
                size = took_ms.bit_length() if took_ms > 0 else 0
                key = WAITS + (size if size < _LAST_CLASS else _LAST_CLASS)
            if grant.tasks is None:
                own[BEGUN] += count
                if key:
                    own[key] += count
                    if took_ms > own[_LONGEST_WAIT]:
                        own[_LONGEST_WAIT] = took_ms
            else:
                keys = (BEGUN, key) if key else (BEGUN,)
                self._add_each(grant.tasks, range(first - 1, first - 1 + count), keys, _LONGEST_WAIT, took_ms)
        self._begin()

    def settled(
        self,
        groups: Mapping[tuple[Grant, str | bytes], Sequence[int]],
        lost: Mapping[tuple[Grant, str | bytes], Mapping[int, bool]],
    ) -> None:
        """Count claims that were settled.  ``lost``: those that were not, because they were lost."""
        now = asyncio.get_running_loop().time()
        own = self._of("")
        for key, positions in groups.items():
            grant, how = key
            keys = _ACKED if how == _ACK else _keys_of(how)
            if not keys:
                continue
            if lost:
                positions = [position for position in positions if position not in lost[key]]
            took_ms = int((now - grant.began_at) * 1000)
            size = took_ms.bit_length()
            size = DURATIONS + (size if size < _LAST_CLASS else _LAST_CLASS)
            if grant.tasks is None:
                count = len(positions)
                own[size] += count
                for each in keys:
                    own[each] += count
                if count and took_ms > own[_LONGEST_DURATION]:
                    own[_LONGEST_DURATION] = took_ms
            else:
                self._add_each(grant.tasks, positions, (size, *keys), _LONGEST_DURATION, took_ms)
        self._begin()

    def _add_each(
        self, tasks: Mapping[int, str], positions: Iterable[int], keys: Iterable[int], longest: int, took_ms: int
    ) -> None:
        """Count items one by one, because they may be for several tasks.  ``longest``: the key of the longest time."""
        for position in positions:
            counts = self._of(tasks.get(position, ""))
            for key in keys:
                counts[key] += 1
            if took_ms > counts[longest]:
                counts[longest] = took_ms

    def given_up(self, count: int) -> None:
        """Count items that became dead letters because no delivery of theirs was ever settled."""
        self._of("")[DEAD] += count
        self._begin()

    def _of(self, task: str) -> list[int]:
        """Return the counts of a task."""
        counts = self._counts.get(task)
        if counts is None:
            if len(self._counts) > TASKS_MAX:
                task = OTHERS
            counts = self._counts.setdefault(task, [0] * COUNTS)
        return counts

    # -- reporting -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._is_running:
            return
        self._is_running = True
        try:
            self._tasks.start(self._run(), f"report figures of {self._queue}")
        except Closed:
            self._is_running = False

    async def _run(self) -> None:
        try:
            while self._counts:
                await asyncio.sleep(REPORT_SECONDS)
                await self._report()
        finally:
            self._is_running = False

    async def _report(self) -> None:
        """Send what was counted.  What the servers do not take is lost."""
        counted, self._counts = self._counts, {}
        items = [(task, text) for task, counts in counted.items() if (text := figures.encode(counts))]
        if not items or self._replicas.level < Feature.FIGURES.level:
            return
        call = Figure(self._queue, clock.now_ms() // 60_000, items)
        membership = self._replicas.membership
        try:
            view = membership.view
            lives = {server: view.members[server] for server in figures.keepers(view, self._queue)}
            await membership.fleet.ask(view.epoch, lives, call, once=True)
        except ZkrqError as error:
            _log.debug("queue %s: figures were not reported: %s", self._queue, error)

    async def aclose(self) -> None:
        """Send what was counted since the last report, and wait for that for ``LAST_SECONDS``."""
        if self._counts:
            try:
                last = self._tasks.start(self._report(), f"report figures of {self._queue}")
            except Closed:
                return
            await wait_ended([last], LAST_SECONDS)


_ACK = Verb.ACK.value
_ACKED: Iterable[int] = (DONE,)

_KEYS: Mapping[str, Iterable[int]] = {
    Verb.ACK: _ACKED,
    Verb.NACK: (FAILED,),
    LETS_GO_ON: (FAILED,),
    Verb.BURY: (FAILED, DEAD),
}
"""What a settlement counts as; other verbs count as nothing."""


def _keys_of(how: str | bytes) -> Iterable[int]:
    verb = how.partition(" ")[0] if isinstance(how, str) else how.partition(b" ")[0].decode()
    return _KEYS.get(verb, ())
