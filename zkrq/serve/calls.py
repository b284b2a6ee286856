"""Make the routes of the HTTP API from the table of operations: path, parameters, reply and errors of each.

What carries a call out is a method under the name of its operation.  It is called with the parameters that the path
has, those that the query has, or ``body``, and with ``request`` if it wants that.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Security
from fastapi.security import HTTPBearer

from zkrq.base.errors import ConfigError
from zkrq.operations.table import PLACES
from zkrq.serve.bodies import Problem, body_of, in_path, in_query, reply_of
from zkrq.serve.problems import KINDS, BadQuery

if TYPE_CHECKING:
    from zkrq.operations.operation import Operation, Parameter

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        400: "The request is wrong. Nothing happened.",
        401: "The token is missing or wrong. Nothing happened.",
        403: "Not from this page, or not on this server. Nothing happened.",
        413: "The item, or the whole body, is too large. Nothing happened.",
        415: "The body is not announced as JSON. Nothing happened.",
        421: "The server does not answer by that name. Nothing happened.",
        429: "The queue is full. Nothing happened; retry later.",
        500: "An error inside the server; its log has it. It may have happened.",
        503: "Nothing happened; retry later.",
        504: "It may have happened: repeat the request; a push under the same id.",
        "4XX": "The request is wrong in another way. Nothing happened.",
    }.items()
}

STATUS = {error.__name__: kind.status for error, kind in KINDS.items()}
"""The status of each error, by its name."""

SLASHES = ("id", "name", "server")
"""What may contain slashes in a path."""


def make_router(operations: Iterable[Operation], handlers: object) -> APIRouter:
    """Return the routes of operations.  The schema names the token in any case; the guard asks for it."""
    token = HTTPBearer(scheme_name="token", description="A token of `--token-file`, if there is one.", auto_error=False)
    router = APIRouter(
        prefix="/v1",
        responses=PROBLEMS,
        dependencies=[Security(token)],
        generate_unique_id_function=lambda route: route.name,
    )
    for each in sorted(operations, key=_takes_all):
        assert each.result
        router.add_api_route(
            functools.reduce(lambda path, name: path.replace(f"{{{name}}}", f"{{{name}:path}}"), SLASHES, each.path),
            call_of(each, getattr(handlers, each.name)),
            methods=[each.method],
            name=each.name,
            description="\n\n".join(filter(None, (each.sentence, each.more))),
            response_model=reply_of(each.result),
            responses={
                STATUS[failure.error]: {"model": Problem, "description": failure.sentence} for failure in each.failures
            },
            tags=[each.subject],
        )
    return router


def _takes_all(operation: Operation) -> bool:
    """Tell whether a path ends with what may contain slashes: those that go on after it are compared before."""
    return operation.path.endswith(tuple(f"{{{name}}}" for name in SLASHES))


def call_of(operation: Operation, handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return what FastAPI calls for an operation: the handler, with the parameters of the table in its signature."""
    named = {name: PLACES[name] if name in PLACES else operation.by_name[name] for name in operation.places}
    parameters = [_parameter(name, in_path(each)) for name, each in named.items()]
    if "request" in inspect.signature(handler).parameters:
        parameters.append(_parameter("request", Request))
    others = operation.without(named)
    if operation.method == "GET":
        parameters += [_parameter(each.name, in_query(each), each.default) for each in others]
        if operation.rules:  # those of a body are checked with the body
            handler = _obeying(operation, handler)
    elif others:
        body = body_of(operation)
        is_needed = _needs_body(operation, others)
        parameters.append(_parameter("body", body) if is_needed else _parameter("body", body | None, None))
    call: Any = functools.partial(handler)
    call.__signature__ = inspect.Signature(parameters)
    return call


def _obeying(operation: Operation, handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler that checks the rules between the parameters first.  It raises ``BadQuery``."""

    async def call(**values: Any) -> Any:
        try:
            operation.check({name: value for name, value in values.items() if name in operation.by_name})
        except ConfigError as error:
            raise BadQuery(str(error)) from error
        return await handler(**values)

    return call


def _needs_body(operation: Operation, parameters: Iterable[Parameter]) -> bool:
    return operation.has_item or operation.method == "PATCH" or any(each.required for each in parameters)


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
