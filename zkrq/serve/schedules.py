"""The schedules that a namespace stores: the calls of the HTTP API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import APIRouter, Path, Response, Security
from fastapi.security import HTTPBearer
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

from zkrq.base.checks import MAX_ID, check_id
from zkrq.base.errors import ConfigError
from zkrq.operations.schedules import (
    CATCH_UP,
    CRON_MAX,
    MAX_CATCH_UP,
    MIN_CATCH_UP,
    MIN_PERIOD,
    OPTIONS,
    PUT_SCHEDULE,
    SCHEDULE,
    ZONE_MAX,
)
from zkrq.protocol.recurring import Missed
from zkrq.serve.api import MISSING, PROBLEMS
from zkrq.serve.bodies import Payload, Push, QueueName, with_item
from zkrq.serve.problems import BadSchedule, NoSuchSchedule

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster
    from zkrq.client.timetable import StoredSchedule
    from zkrq.serve.queues import Queues

ScheduleName = Annotated[
    str,
    AfterValidator(lambda name: check_id("a schedule's name", name)),
    Path(description="The schedule's name.", min_length=1, max_length=MAX_ID),
]


_HELP = {each.name: each.help for each in PUT_SCHEDULE.parameters}

_EachPush = create_model(
    "EachPush",
    __base__=Payload,
    **cast("Any", {name: (Push.model_fields[name].annotation, Push.model_fields[name]) for name in OPTIONS.by_name}),
)


class PutSchedule(_EachPush):
    """A schedule: when to push which item, with which options of a push."""

    when: (
        Annotated[float, Field(ge=MIN_PERIOD, le=366 * 86400, allow_inf_nan=False)]
        | Annotated[str, Field(min_length=1, max_length=CRON_MAX)]
    ) = Field(description=_HELP["when"])
    offset: Annotated[float, Field(ge=0, le=366 * 86400, allow_inf_nan=False)] = Field(0.0, description=_HELP["offset"])
    zone: Annotated[str, Field(min_length=1, max_length=ZONE_MAX)] | None = Field(None, description=_HELP["zone"])
    catch_up: Annotated[float, Field(ge=MIN_CATCH_UP, le=MAX_CATCH_UP, allow_inf_nan=False)] = Field(
        CATCH_UP, description=_HELP["catch_up"]
    )
    missed: Missed = Field("last", description=_HELP["missed"])

    def options(self) -> dict[str, Any]:
        """Return the options that are given, beside when and what."""
        given = self.model_fields_set & PUT_SCHEDULE.by_name.keys()
        return {name: getattr(self, name) for name in given - {"when"}}


_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("queue", "name"), str),
    "when": float | str,
    **dict.fromkeys(("offset", "catch_up"), float),
    "missed": Missed,
    **{name: Push.model_fields[name].annotation for name in OPTIONS.by_name},
    **dict.fromkeys(("paused", "declared"), bool),
    **dict.fromkeys(("next", "last", "last_loss"), datetime | None),
    "losses": int,
}
"""Types of the fields that are no text or null."""

_FIELDS = {
    each.name: (_TYPES.get(each.name, str | None), Field(description=each.sentence))
    for each in SCHEDULE.fields
    if each.name != "item"
}
_Told = create_model("Told", __config__=ConfigDict(extra="forbid"), **cast("Any", _FIELDS))


class Schedule(_Told):
    """A schedule that the namespace stores."""

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
    known = SCHEDULE.tell(entry)
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
        try:
            put = await self._schedules.add(
                self._queues[queue], name, body.when, payload, replace=True, **body.options()
            )
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
