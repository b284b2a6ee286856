"""Every call of the HTTP API replies what the table of operations says, and checks what it says."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

import zkrq.testing
from tests.every import every
from tests.serving import Serving, serving
from zkrq.operations.kinds import ByName, Content, Kind, Many
from zkrq.operations.operation import Field, Record
from zkrq.operations.table import OPERATIONS

pytestmark = pytest.mark.anyio


@pytest.fixture
async def http() -> AsyncGenerator[Serving]:
    async with zkrq.testing.servers(1) as own, serving(own.connect()) as served:
        yield served


async def ask(http: Serving, name: str, body: object = None, *, query: str = "", **places: str) -> dict[str, Any]:
    """Carry out an operation, and compare the fields of its reply with the table."""
    operation = OPERATIONS[name]
    path = operation.path
    for place, value in places.items():
        path = path.replace(f"{{{place}}}", value)
    response = await http.client.request(operation.method, f"/v1{path}{query}", json=body)
    assert response.status_code == 200, response.text
    compare_told(operation.result, told := response.json())
    return told


def compare_told(kind: Kind[Any] | None, told: Any) -> None:
    match kind:
        case Record():
            assert set(told) <= {*kind.names}
            left_out = {*kind.names} - set(told)
            assert not [each for each in kind.fields if each.name in left_out and not _may_be_left_out(each)]
            for field in kind.fields:
                if told.get(field.name) is not None:
                    compare_told(field.kind, told[field.name])
        case Many(each=each):
            for one in cast("list[Any]", told):
                compare_told(each, one)
        case ByName(each=each):
            for one in cast("dict[str, Any]", told).values():
                compare_told(each, one)
        case _:
            pass


def _may_be_left_out(field: Field) -> bool:
    return field.optional or isinstance(field.kind, Content)


async def test_every_reply_has_exactly_the_fields_of_the_table(http: Serving) -> None:
    queue = {"queue": "jobs"}
    await ask(http, "change_settings", {"history": 5}, **queue)
    first = await ask(http, "push", {"item": 1, "group": "a"}, **queue)
    await ask(http, "push_many", {"items": [{"item": n} for n in range(5)]}, **queue)
    claims = (await ask(http, "claim", {"count": 5}, **queue))["claims"]
    buried_id = claims[3]["id"]
    acked, nacked, released, buried, many = ({"claim": each["claim"]} for each in claims)
    for name in ("progress", "save", "extend"):
        await ask(http, name, **acked)
    for name in ("statistics", "consumers", "queue_statistics", "groups", "settings", "find"):
        await ask(http, name, **(queue if "queue" in OPERATIONS[name].places else {}))
    following = (await ask(http, "ack", {"result": 5, "next": True}, **acked))["next"]
    await ask(http, "nack", {"delay": 60}, **nacked)
    await ask(http, "release", **released)
    await ask(http, "bury", **buried)
    await ask(http, "ack_many", {"claims": [many["claim"], following["claim"]]})
    for name in ("get", "result"):
        await ask(http, name, id=first["id"] if name == "result" else claims[1]["id"], **queue)
    await ask(http, "advance", {"ids": [first["id"]]}, **queue)
    await ask(http, "edit", {"item": 7, "by": "ann"}, id=buried_id, **queue)
    for name in ("dead_letters", "history", "redrive", "pause", "resume"):
        await ask(http, name, **queue)
    await ask(http, "cancel", id=claims[1]["id"], **queue)


async def test_an_item_is_pushed_for_a_moment(http: Serving) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    pushed = await ask(http, "push", {"item": 1, "at": soon.isoformat()}, queue="jobs")
    told = await ask(http, "get", queue="jobs", id=pushed["id"])
    assert told["state"] == "scheduled"


@every(
    ("wrong", "text"),
    [
        ({"at": "2040-01-01T00:00:00"}, "body.at: at is 2040-01-01 00:00:00: give it a time zone"),
        ({"at": "9999-01-01T00:00:00Z"}, "body: at is"),
        ({"at": "tomorrow"}, "body.at: must be a moment"),
        ({"at": 5}, "body.at: Input should be a valid datetime"),
        ({"at": "2040-01-01T00:00:00Z", "delay": 5}, "delay and at exclude each other"),
        ({"replace": True}, "replace=True needs a key: key='user-42'"),
    ],
)
async def test_what_contradicts_says_what_it_says_in_python(http: Serving, wrong: dict[str, Any], text: str) -> None:
    reply = await http.post("/queues/jobs/push", {"item": 1, **wrong})
    assert (reply.status_code, reply.json()["error"], reply.json()["happened"]) == (400, "BadRequest", "nothing")
    assert text in reply.json()["message"]
