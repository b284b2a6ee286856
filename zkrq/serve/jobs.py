"""Do in the background what a form says about all items that are found, and keep how far each such job is.

A job lives in this process alone.  If that ends, a part is done, and the same job begun anew does the rest: see
``client/bulk.py``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from zkrq.base import clock
from zkrq.base.errors import ZkrqError
from zkrq.base.tasks import Tasks
from zkrq.serve.problems import Busy

if TYPE_CHECKING:
    from zkrq.client.bulk import Bulk
    from zkrq.serve.searching import Search

RUNNING_MAX = 4
"""Jobs that run at one time; each reads and changes pages of 500 items."""

KEPT = 50
"""Jobs that are shown after their end."""

DONE: Mapping[str, str] = {
    "cancel": "cancelled",
    "redrive": "redriven",
    "discard": "discarded",
    "advance": "ready now",
}
"""What was done with each item, by the deed of a job."""


@dataclass(eq=False, slots=True)
class Job:
    """One deed with all items of a queue that a search finds.

    ``counted``: how many there were before, None: they were not counted to the end.  ``ended_at``: None while it runs.
    ``trouble``: why it has failed, empty: it has not.
    """

    number: int
    queue: str
    deed: str
    search: Search
    bulk: Bulk
    counted: int | None
    begun_at: datetime
    state: Literal["running", "done", "stopped", "failed"] = "running"
    ended_at: datetime | None = None
    trouble: str = ""
    task: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return f"job {self.number}: all with {self.search.words or 'any property'}"

    @property
    def result(self) -> str:
        """What was done with how many items so far, for people."""
        least = "at least " if self.bulk.is_least else ""
        claimed = f", {self.bulk.claimed:,} of them claimed" if self.bulk.claimed else ""
        left = self.bulk.found - self.bulk.changed if self.bulk.is_done and not self.bulk.is_least else 0
        passed = f"; {left:,} were no longer what was looked for, or their key is taken" if left else ""
        return f"{least}{self.bulk.changed:,} {DONE[self.deed]}{claimed}{passed}"

    @property
    def seconds(self) -> float:
        """Seconds from its beginning to its end, or until now."""
        return ((self.ended_at or clock.now()) - self.begun_at).total_seconds()


class Jobs:
    """Run jobs: ``async with`` stops those that are left."""

    def __init__(self, note: Callable[[str, str, str], None]) -> None:
        """``note``: records what was done, on which queue, with which result; see ``Audit.note``."""
        self._note = note
        self._tasks = Tasks("zkrq serve: jobs")
        self._numbers = itertools.count(1)
        self._jobs: dict[int, Job] = {}

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._tasks.__aexit__(kind, error, traceback)

    @property
    def all(self) -> Sequence[Job]:
        """The jobs that run, and those that ended last, the latest first."""
        return [*reversed(self._jobs.values())]

    def start(self, queue: str, deed: str, search: Search, bulk: Bulk, counted: int | None) -> Job:
        """Begin a job.  Raises ``Busy`` while ``RUNNING_MAX`` run, ``Closed``."""
        if sum(job.state == "running" for job in self._jobs.values()) >= RUNNING_MAX:
            raise Busy(f"{RUNNING_MAX} jobs run already: wait for the end of one, or stop one")
        job = Job(next(self._numbers), queue, deed, search, bulk, counted, clock.now())
        job.task = self._tasks.start(self._run(job), f"job {job.number}")
        self._jobs[job.number] = job
        self._forget()
        return job

    def stop(self, number: int) -> Job | None:
        """Stop a job, and return it; None: there is none of that number."""
        job = self._jobs.get(number)
        if job and job.task:
            job.task.cancel()
        return job

    def _forget(self) -> None:
        """Keep the last ``KEPT`` of the jobs that have ended."""
        ended = [job.number for job in self._jobs.values() if job.state != "running"]
        for number in ended[: max(0, len(ended) - KEPT)]:
            del self._jobs[number]

    async def _run(self, job: Job) -> None:
        try:
            await job.bulk.run()
            job.state = "done"
        except asyncio.CancelledError:
            job.state = "stopped"
            raise
        except ZkrqError as error:
            job.state, job.trouble = "failed", str(error)
        finally:
            if job.state == "running":
                job.state, job.trouble = "failed", "an error inside the server; its log has it"
            job.ended_at, job.task = clock.now(), None
            why = job.trouble and f": {job.trouble}"
            self._note(job.deed, job.queue, f"{job} is {job.state}, {job.result}{why}")
