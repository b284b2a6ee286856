"""The schedules that a namespace stores: the calls of the HTTP API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fastapi import Response
from fastapi.responses import JSONResponse

from zkrq.base.errors import ConfigError
from zkrq.operations.push import RECEIPT
from zkrq.operations.schedules import SCHEDULE, SCHEDULES
from zkrq.serve.bodies import with_item
from zkrq.serve.calls import make_router
from zkrq.serve.problems import BadSchedule, NoSuchSchedule

if TYPE_CHECKING:
    from fastapi import APIRouter

    from zkrq.client.cluster import Cluster
    from zkrq.client.timetable import StoredSchedule
    from zkrq.serve.bodies import Payload
    from zkrq.serve.queues import Queues


def told(entry: StoredSchedule) -> str:
    """Write a schedule as JSON."""
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
        return make_router(SCHEDULES.values(), self)

    async def list_schedules(self) -> Response:
        entries = ", ".join(map(told, await self._schedules.list()))
        return Response(f'{{"schedules": [{entries}]}}', media_type="application/json")

    async def get_schedule(self, queue: str, name: str) -> Response:
        return _tell(await self._existing(queue, name))

    async def put_schedule(self, queue: str, name: str, body: Payload) -> Response:
        options = dict(body.given())
        try:
            when, payload = options.pop("when"), body.payload()
            put = await self._schedules.add(self._queues[queue], name, when, payload, replace=True, **options)
        except ConfigError as error:
            raise BadSchedule(str(error)) from error
        return _tell(put)

    async def pause_schedule(self, queue: str, name: str) -> Response:
        await self._existing(queue, name)
        return _tell(await self._schedules.pause(queue, name))

    async def resume_schedule(self, queue: str, name: str) -> Response:
        await self._existing(queue, name)
        return _tell(await self._schedules.resume(queue, name))

    async def run_schedule_now(self, queue: str, name: str) -> Response:
        await self._existing(queue, name)
        try:
            return JSONResponse(RECEIPT.tell(await self._schedules.run_now(self._queues[queue], name)))
        except ConfigError as error:
            raise BadSchedule(str(error)) from error

    async def remove_schedule(self, queue: str, name: str) -> Response:
        found = await self._schedules.get(queue, name)
        if found:
            await self._schedules.remove(queue, name)
        return JSONResponse({"removed": found is not None})

    async def _existing(self, queue: str, name: str) -> StoredSchedule:
        if (entry := await self._schedules.get(queue, name)) is None:
            raise NoSuchSchedule
        return entry
