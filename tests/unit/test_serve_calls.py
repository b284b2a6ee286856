"""The HTTP API is that of the table of operations: its paths, its parameters, its replies."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from fastapi import FastAPI
from pydantic import ValidationError

from tests.every import every
from zkrq.client.inspection import Sizes, Statistics
from zkrq.operations.flows import FLOWS
from zkrq.operations.kinds import ByName, Choice, Content, Count, Kind, Many
from zkrq.operations.operation import Field, Operation, Parameter, Record
from zkrq.operations.push import PUSH
from zkrq.operations.queues import FIGURES, QUEUE_STATISTICS
from zkrq.operations.schedules import SCHEDULES
from zkrq.operations.servers import SERVERS
from zkrq.operations.table import OPERATIONS
from zkrq.serve.api import Api
from zkrq.serve.bodies import CALLED, body_of
from zkrq.serve.calls import make_router
from zkrq.serve.flows import FlowApi
from zkrq.serve.schedules import ScheduleApi
from zkrq.serve.servers import ServerApi

NOTHING: Any = None


def schema_of(operations: Collection[Operation] = OPERATIONS.values()) -> dict[str, Any]:
    """Return the OpenAPI document of operations."""
    app = FastAPI(separate_input_output_schemas=False)
    of_schedules = [each for each in operations if each.name in SCHEDULES]
    of_flows = [each for each in operations if each.name in FLOWS]
    of_servers = [each for each in operations if each.name in SERVERS]
    others = [each for each in operations if each.name not in (*SCHEDULES, *FLOWS, *SERVERS)]
    app.include_router(make_router(others, Api(NOTHING, NOTHING, NOTHING, NOTHING)))
    app.include_router(make_router(of_schedules, ScheduleApi(Mock(), NOTHING)))
    app.include_router(make_router(of_flows, FlowApi(NOTHING, NOTHING)))
    app.include_router(make_router(of_servers, ServerApi(NOTHING)))
    return app.openapi()


SCHEMA = schema_of()


def names_in(schema: Mapping[str, Any], operation: Operation) -> dict[str, set[str]]:
    """Return the parameters of an operation: those of its path, of its query, and of its body."""
    call = schema["paths"][f"/v1{operation.path}"][operation.method.lower()]
    found: dict[str, set[str]] = {"path": set(), "query": set(), "body": set()}
    for each in call.get("parameters", ()):
        found[each["in"]].add(each["name"])
    if "requestBody" in call:
        name = CALLED.get(operation.name, "".join(map(str.capitalize, operation.name.split("_"))))
        body = schema["components"]["schemas"][name]
        assert body["additionalProperties"] is False
        found["body"] = set(body["properties"])
    return found


def fields_in(record: Record) -> set[str]:
    """Return the fields that a reply may have."""
    contents = {"base64"} if any(isinstance(each.kind, Content) for each in record.fields) else set[str]()
    return {*record.names} | contents


@every("name", OPERATIONS)
def test_a_call_has_the_parameters_of_the_table(name: str) -> None:
    operation = OPERATIONS[name]
    places = set(operation.places)
    others = set(operation.by_name) - places
    item = {"item", "base64"} if operation.has_item else set[str]()
    in_query = operation.method == "GET"
    assert names_in(SCHEMA, operation) == {
        "path": places,
        "query": others if in_query else set(),
        "body": set() if in_query else others | item,
    }
    call = SCHEMA["paths"][f"/v1{operation.path}"][operation.method.lower()]
    assert call["operationId"] == name
    assert call["description"].startswith(operation.sentence)


@every("name", OPERATIONS)
def test_a_reply_has_the_fields_of_the_table(name: str) -> None:
    compare(OPERATIONS[name].result)


def compare(kind: Kind[Any] | None) -> None:
    """Compare the schema of a record, and those of the records in it."""
    match kind:
        case Record():
            schema = SCHEMA["components"]["schemas"][kind.name]
            assert set(schema["properties"]) == fields_in(kind)
            always = {each.name for each in kind.fields if not each.optional and not isinstance(each.kind, Content)}
            assert set(schema.get("required", ())) == always
            for field in kind.fields:
                compare(field.kind)
        case Many(each=each) | ByName(each=each):
            compare(each)
        case _:
            pass


def test_there_are_no_other_calls() -> None:
    calls = {(method.upper(), path) for path, found in SCHEMA["paths"].items() for method in found}
    assert calls == {(each.method, f"/v1{each.path}") for each in OPERATIONS.values()}


def test_a_parameter_more_is_read_checked_and_described() -> None:
    more = Parameter("colour", Choice(("red", "blue")), "The colour of the item.")
    copy = replace(PUSH, parameters=(*PUSH.parameters, more))
    body = body_of(copy)
    assert body.model_validate({"item": 1, "colour": "red"}).given() == {"colour": "red"}
    with pytest.raises(ValidationError, match="colour is 'green'"):
        body.model_validate({"item": 1, "colour": "green"})
    described = schema_of([copy])["components"]["schemas"]["Push"]["properties"]["colour"]
    assert described["description"] == "The colour of the item."
    assert described["anyOf"][0] == {"type": "string", "enum": ["red", "blue"]}
    assert "colour" not in SCHEMA["components"]["schemas"]["Push"]["properties"]


def test_a_parameter_more_of_a_query_is_described() -> None:
    find = OPERATIONS["find"]
    copy = replace(find, parameters=(*find.parameters, Parameter("most", Count(1, 5), "At most this much.")))
    assert "most" in names_in(schema_of([copy]), copy)["query"]


def test_a_field_more_is_told_and_described() -> None:
    copy = replace(
        FIGURES, fields=(*FIGURES.fields, Field("waiting", Count(), "Items that wait.", source="sizes.ready"))
    )
    assert copy.tell(Statistics(Sizes(7, 0, 0, 0), False, None, 0, 0, 0, 0))["waiting"] == 7
    described = schema_of([replace(QUEUE_STATISTICS, result=copy)])["components"]["schemas"][FIGURES.name]
    assert described["properties"]["waiting"]["description"] == "Items that wait."
    assert "waiting" in described["required"]
