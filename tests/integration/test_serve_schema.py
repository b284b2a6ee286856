"""The HTTP API does what its OpenAPI schema says, whatever is sent.

``make http`` tries far more: ``HTTP_EXAMPLES=1000`` requests of each kind.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import Any

import anyio.to_thread
import pytest

import zkrq.testing
from tests.harness import in_process, new_namespace
from tests.serving import Serving, serving
from zkrq import local
from zkrq.operations.servers import SERVERS

pytestmark = [
    pytest.mark.anyio,
    # Hypothesis sees that the server, which runs in the other thread, takes random numbers while it makes a request.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module"),
]

TOKEN = "a-long-random-text-that-nobody-guesses"

EXAMPLES = int(os.environ.get("HTTP_EXAMPLES", "4"))
"""Requests of each kind that are generated."""


@pytest.fixture
async def http(servers: local.Servers) -> AsyncGenerator[Serving]:
    async with serving(in_process(servers, new_namespace()), tokens=(TOKEN,)) as served:
        yield served


def try_all(url: str) -> int:
    """Send generated requests, good and bad ones, to each path of the schema; return how many there were."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis import GenerationMode
    from schemathesis.core.failures import FailureGroup
    from schemathesis.specs.openapi import checks

    schema: Any = schemathesis.openapi.from_url(f"{url}/v1/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"})
    schema.config.generation.update(modes=list(GenerationMode))
    lenient: list[Any] = [vars(checks)["positive_data_acceptance"]]  # some rules of texts no schema can say
    sent = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize="HTTP_EXAMPLES" not in os.environ,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        )
        def send(case: Any) -> None:
            nonlocal sent
            body: Any = case.body
            if isinstance(body, dict) and "wait" in body:
                body["wait"] = 0  # there is nothing to wait for
            allowed = {"Authorization": f"Bearer {TOKEN}"}
            response = case.call(timeout=60, headers=allowed)
            sent += 1
            assert response.status_code != 500, response.text
            case.validate_response(response, headers=allowed, excluded_checks=lenient)

        try:
            send()
        except FailureGroup as failures:
            raise AssertionError(str(failures)) from None
    return sent


async def test_it_does_what_its_schema_says(http: Serving) -> None:
    sent = await anyio.to_thread.run_sync(try_all, http.url)
    assert sent >= EXAMPLES
    allowed = {"Authorization": f"Bearer {TOKEN}"}
    assert (await http.client.get("/v1/queues", headers=allowed)).status_code == 200


REQUESTS = ("Push", "PushMany", "ClaimItems", "AckMany", "Nack", "Bury", "Extend", "Redrive")


async def test_a_client_that_is_generated_is_pleasant_to_use() -> None:
    """Calls have names, optional fields can be left out, and the token has a place."""
    async with zkrq.testing.servers(1) as own, serving(own.connect()) as open_to_all:
        schema = (await open_to_all.client.get("/v1/openapi.json")).json()
    calls = {call["operationId"]: call for path in schema["paths"].values() for call in path.values()}
    settling = {"ack", "ack_many", "nack", "release", "bury", "extend", "save"}
    managing = {"find", "get", "result", "cancel", "pause", "resume", "settings", "change_settings"}
    managing |= {"dead_letters", "redrive", "list_schedules", "get_schedule", "put_schedule", "remove_schedule"}
    managing |= {"history", "groups", "consumers", "backlog", *SERVERS}
    managing |= {"pause_schedule", "resume_schedule", "run_schedule_now", "progress"}
    managing |= {f"{verb}_flow" for verb in ("get", "begin", "seal", "cancel", "finish", "redrive")}
    managing |= {"list_flows", "push_member", "push_follower", "advance", "quiet", "unquiet", "edit", "figures"}
    assert calls.keys() == {"push", "push_many", "claim", "statistics", "queue_statistics"} | settling | managing
    assert all(call["security"] == [{"token": []}] for call in calls.values())
    assert schema["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    bodies = schema["components"]["schemas"]
    for name in REQUESTS:
        assert not any("default" in field for field in bodies[name]["properties"].values()), name
    assert {name: bodies[name]["required"] for name in REQUESTS if "required" in bodies[name]} == {
        "PushMany": ["items"],
        "AckMany": ["claims"],
    }
