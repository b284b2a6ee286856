"""The servers of a namespace, and its level: the calls of the HTTP API for administrators."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fastapi import Response
from fastapi.responses import JSONResponse

from zkrq.base.errors import ConfigError
from zkrq.client.inner import client_of
from zkrq.client.texts import show_duration
from zkrq.operations.servers import LATE, SERVER, SERVERS
from zkrq.serve.audit import say
from zkrq.serve.calls import make_router
from zkrq.serve.problems import BadServer, Busy

if TYPE_CHECKING:
    from fastapi import APIRouter

    from zkrq.client.cluster import Cluster
    from zkrq.serve.bodies import Body

ADDED_MAX = 3
"""Servers that are added at the same time by requests."""


class ServerApi:
    """Carry out the calls of HTTP clients about servers and levels.  Which right they need stands in ``rights``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._adding = 0

    def router(self) -> APIRouter:
        """Return the calls, with their paths."""
        return make_router(SERVERS.values(), self)

    async def list_servers(self) -> Response:
        health = await self._cluster.check_health()
        servers = {name: SERVER.tell(each) for name, each in health.servers.items()}
        return JSONResponse({"servers": servers, "trouble": [*health.trouble], "warnings": [*health.warnings]})

    async def add_server(self, body: Body) -> Response:
        wanted = dict(body.given())
        if self._adding >= ADDED_MAX:
            raise Busy(f"{ADDED_MAX} servers are being added already")
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._adding += 1
        try:
            with _wrong_request():
                name = await self._cluster.add_server(wanted.pop("url"), **wanted)
        finally:
            self._adding -= 1
        seconds = loop.time() - began
        say(f"{name} was added in {show_duration(seconds)}")
        return JSONResponse({"server": name, "seconds": seconds})

    async def remove_server(self, server: str) -> Response:
        with _wrong_request():
            await self._cluster.remove_server(server)
        say(f"{server} was removed")
        return JSONResponse({"server": server})

    async def check_upgrade(self, level: int | None) -> Response:
        with _wrong_request():
            wanted, release, late = await client_of(self._cluster).upgrading.find_late(level)
        told = [LATE.tell(each) for each in late.values()]
        return JSONResponse({"level": self._cluster.level, "wanted": wanted, "release": release, "late": told})

    async def upgrade(self, body: Body | None) -> Response:
        before = self._cluster.level
        with _wrong_request():
            level = await self._cluster.upgrade(**(body.given() if body else {}))
        say(f"from level {before} to level {level}")
        return JSONResponse({"level": level, "before": before})


@contextmanager
def _wrong_request() -> Generator[None]:
    """Say of what the cluster refuses that the request is wrong: nothing was changed."""
    try:
        yield
    except ConfigError as error:
        raise BadServer(str(error)) from error
