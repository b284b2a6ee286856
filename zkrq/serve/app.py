"""Put the API, the page and the guard together, as one ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from zkrq.base.errors import ZkrqError
from zkrq.base.version import __version__
from zkrq.serve.api import Api
from zkrq.serve.audit import Recorded
from zkrq.serve.files import Files
from zkrq.serve.flows import FlowApi
from zkrq.serve.guard import Guard
from zkrq.serve.monitoring import Monitoring
from zkrq.serve.page import Page
from zkrq.serve.problems import (
    BAD_REQUEST,
    INTERNAL,
    NOT_ALLOWED,
    NOT_FOUND,
    Kind,
    describe,
    describe_error,
    headers_of,
    kind_of,
)
from zkrq.serve.rendering import HERE
from zkrq.serve.schedules import ScheduleApi
from zkrq.serve.security import STATIC
from zkrq.serve.servers import ServerApi

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster
    from zkrq.serve.page import Owned
    from zkrq.serve.queues import Queues
    from zkrq.serve.security import Policy

WRONGS_SAID = 10
"""Wrong fields that a reply names."""

WRONG_SAID = 1_000
"""Characters of what it says of each: a number of thousands of digits is not repeated whole."""

DESCRIPTION = """
Push, claim and settle items of a zkrq namespace over HTTP.

Each error tells in `happened` whether anything may have been done. After `nothing` repeat the request as it was; after
`unknown` too: a push under the same `id`, a settling of the same claim.
"""


def make_app(
    cluster: Cluster,
    queues: Queues,
    owned: Owned,
    policy: Policy,
    *,
    stopping: asyncio.Event,
) -> ASGIApp:
    """Make the application for an open cluster.

    ``stopping``: set when nothing more is to be claimed.
    """
    app = FastAPI(
        title="zkrq",
        version=__version__,
        description=DESCRIPTION,
        openapi_url="/v1/openapi.json",
        docs_url=None,  # these load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    # First, because paths are compared in this order, and strangers may ask for these.
    app.add_route(f"{STATIC}{{name}}", Files(HERE / "static").give, include_in_schema=False)
    app.include_router(Api(cluster, queues, owned.holding, stopping).router())
    app.include_router(ScheduleApi(cluster, queues).router())
    app.include_router(FlowApi(cluster, queues).router())
    app.include_router(ServerApi(cluster).router())
    app.include_router(Page(cluster, queues, owned, policy).router())
    app.include_router(Monitoring(cluster, stopping, frank=not policy.known).router())
    app.add_exception_handler(ZkrqError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_bug)
    return Guard(Recorded(app, owned.audit), policy)


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    kind = kind_of(cast("ZkrqError", error))
    return JSONResponse(describe_error(cast("ZkrqError", error)), kind.status, headers_of(kind))


async def _on_bad_request(request: Request, error: Exception) -> JSONResponse:
    """Say what is wrong, without quoting what was sent: it may be secret."""
    wrongs = cast("RequestValidationError", error).errors()
    said = ((_place(wrong["loc"]), wrong["msg"].removeprefix("Value error, ")) for wrong in wrongs[:WRONGS_SAID])
    text = "; ".join(f"{place}: {message:.{WRONG_SAID}}" for place, message in said)
    return _reply(BAD_REQUEST, text)


def _place(location: Iterable[object]) -> str:
    return ".".join(map(str, location))


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Say in JSON what Starlette says in plain text: no such path, no such method, a body that is no JSON."""
    raised = cast("HTTPException", error)
    kind = {404: NOT_FOUND, 405: NOT_ALLOWED}.get(raised.status_code, BAD_REQUEST)
    reply = _reply(kind, raised.detail)
    reply.headers.update(raised.headers or {})
    return reply


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    return _reply(INTERNAL, "an error inside the server")


def _reply(kind: Kind, message: str) -> JSONResponse:
    return JSONResponse(describe(kind, message), kind.status, headers_of(kind))
