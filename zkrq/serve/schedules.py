"""The schedules that a namespace stores: the calls of the HTTP API."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Path, Response, Security
from fastapi.security import HTTPBearer
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from zkrq.base.checks import MAX_ID, check_id
from zkrq.base.errors import ConfigError
from zkrq.client.moments import CATCH_UP, MAX_CATCH_UP, MIN_CATCH_UP, MIN_PERIOD
from zkrq.client.timetable import as_told
from zkrq.protocol.recurring import Missed  # noqa: TC001 (pydantic reads it)
from zkrq.serve.api import MISSING, PROBLEMS
from zkrq.serve.bodies import Payload, QueueName, with_item
from zkrq.serve.problems import BadSchedule, NoSuchSchedule

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster
    from zkrq.client.timetable import StoredSchedule
    from zkrq.serve.queues import Queues

CRON_MAX = 200
"""Characters of a cron expression."""

ScheduleName = Annotated[
    str,
    AfterValidator(lambda name: check_id("a schedule's name", name)),
    Path(description="The schedule's name.", min_length=1, max_length=MAX_ID),
]


class PutSchedule(Payload):
    """A schedule: when to push which item."""

    when: (
        Annotated[float, Field(ge=MIN_PERIOD, le=366 * 86400, allow_inf_nan=False)]
        | Annotated[str, Field(min_length=1, max_length=CRON_MAX)]
    ) = Field(description="Seconds between two moments, at least 0.1, or a cron expression.")
    offset: Annotated[float, Field(ge=0, le=366 * 86400, allow_inf_nan=False)] = Field(
        0.0, description="Seconds after each multiple of the period since 1970; left out: 0."
    )
    zone: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        None, description="The time zone of a cron expression, such as `Europe/Berlin`; left out: UTC."
    )
    catch_up: Annotated[float, Field(ge=MIN_CATCH_UP, le=MAX_CATCH_UP, allow_inf_nan=False)] = Field(
        CATCH_UP, description="Seconds by which a moment may be pushed late, at most a week; left out: 240."
    )
    missed: Missed = Field(
        "last",
        description="Which of several moments that are due are pushed: all, the last, or none that is 10 seconds late; "
        "left out: `last`.",
    )
    priority: Annotated[int, Field(ge=0, le=9)] = Field(
        0, description="Of the items; higher is delivered first; left out: 0."
    )


class Schedule(BaseModel):
    """A schedule that the namespace stores."""

    model_config = ConfigDict(extra="forbid")

    queue: str
    name: str
    when: float | str = Field(description="Seconds between two moments, or a cron expression.")
    offset: float
    zone: str | None
    catch_up: float
    missed: Missed
    priority: int
    paused: bool = Field(description="Whether nothing is pushed until it is resumed.")
    declared: bool = Field(description="Whether code declares it; then the processes of that code push its items.")
    next: datetime | None = Field(description="Its next moment; null while it is paused.")
    last: datetime | None = Field(description="The last moment that was pushed; null: none was.")
    last_loss: datetime | None = Field(description="The last moment that was lost: not pushed; null: none was.")
    losses: int = Field(description="How many moments were lost.")
    item: Any = Field(None, description="The item, if its bytes are JSON; null if the code makes it.")
    base64: str | None = Field(None, description="Otherwise: its bytes in base64.")


class Schedules(BaseModel):
    """The schedules that the namespace stores, by queue and name."""

    schedules: list[Schedule]


class Removed(BaseModel):
    """Whether the schedule is removed."""

    removed: bool


def told(entry: StoredSchedule) -> str:
    """Write a schedule as JSON; see ``Schedule``."""
    known = as_told(entry)
    return json.dumps(known | {"item": None}) if entry.payload is None else with_item(known, entry.payload)


def _tell(entry: StoredSchedule) -> Response:
    return Response(told(entry), media_type="application/json")


class ScheduleApi:
    """Carry out the calls of HTTP clients about schedules."""

    def __init__(self, cluster: Cluster, queues: Queues) -> None:
        self._schedules = cluster.schedules()
        self._queues = queues

    def router(self) -> APIRouter:
        """Return the calls, with their paths."""
        router = APIRouter(
            prefix="/v1",
            responses=PROBLEMS,
            dependencies=[Security(HTTPBearer(scheme_name="token", auto_error=False))],
            generate_unique_id_function=lambda route: route.name,
            tags=["schedules"],
        )
        one = "/queues/{queue}/schedules/{name:path}"
        router.get("/schedules", response_model=Schedules)(self.list_schedules)
        # Before the schedule itself, whose name may contain slashes.
        router.post(f"{one}/pause", response_model=Schedule, responses=MISSING)(self.pause_schedule)
        router.post(f"{one}/resume", response_model=Schedule, responses=MISSING)(self.resume_schedule)
        router.get(one, response_model=Schedule, responses=MISSING)(self.get_schedule)
        router.put(one, response_model=Schedule)(self.put_schedule)
        router.delete(one, response_model=Removed)(self.remove_schedule)
        return router

    async def list_schedules(self) -> Response:
        """List the schedules that were added at run time, and those that code declares with a name."""
        entries = ", ".join(map(told, await self._schedules.list()))
        return Response(f'{{"schedules": [{entries}]}}', media_type="application/json")

    async def get_schedule(self, queue: QueueName, name: ScheduleName) -> Response:
        """Look up one schedule."""
        return _tell(await self._existing(queue, name))

    async def put_schedule(self, queue: QueueName, name: ScheduleName, body: PutSchedule) -> Response:
        """Add a schedule, or replace the one of that name, from the next moment on. A pause holds."""
        payload = body.payload()
        options: dict[str, Any] = {
            "offset": body.offset,
            "zone": body.zone,
            "catch_up": body.catch_up,
            "missed": body.missed,
            "priority": body.priority,
        }
        try:
            put = await self._schedules.add(self._queues[queue], name, body.when, payload, replace=True, **options)
        except ConfigError as error:
            raise BadSchedule(str(error)) from error
        return _tell(put)

    async def pause_schedule(self, queue: QueueName, name: ScheduleName) -> Response:
        """Push nothing more for a schedule, until `resume`; also if code declares it."""
        await self._existing(queue, name)
        return _tell(await self._schedules.pause(queue, name))

    async def resume_schedule(self, queue: QueueName, name: ScheduleName) -> Response:
        """Push again for a schedule, at the moments that come."""
        await self._existing(queue, name)
        return _tell(await self._schedules.resume(queue, name))

    async def remove_schedule(self, queue: QueueName, name: ScheduleName) -> Removed:
        """Remove a schedule, if there is one. What it has pushed stays."""
        found = await self._schedules.get(queue, name)
        if found:
            await self._schedules.remove(queue, name)
        return Removed(removed=found is not None)

    async def _existing(self, queue: str, name: str) -> StoredSchedule:
        if (entry := await self._schedules.get(queue, name)) is None:
            raise NoSuchSchedule
        return entry
