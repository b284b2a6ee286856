"""Servers and levels over HTTP: seen by all, changed by administrators alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.harness import in_process
from tests.serving import Serving, serving
from zkrq import local
from zkrq.client.inner import client_of
from zkrq.coordination.memory import Hub
from zkrq.protocol.levels import RELEASES, SPOKEN, ClientInfo, Levels, encode
from zkrq.serve import servers as server_calls

pytestmark = pytest.mark.anyio

ANN, OPERATOR = "a-token-that-administers", "a-token-that-operates"


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
async def http(servers: local.Servers, namespace: str, hub: Hub) -> AsyncGenerator[Serving]:
    opened = in_process(servers, namespace, hub)
    async with serving(opened, tokens=(OPERATOR,), administrators=(f"ann {ANN}",)) as http:
        http.client.headers["Authorization"] = f"Bearer {ANN}"
        yield http


async def test_a_server_is_removed_and_added_again(http: Serving, servers: local.Servers) -> None:
    client = http.client
    told = (await client.get("/v1/servers")).json()
    assert {name: each["place"] for name, each in told["servers"].items()} == dict.fromkeys(
        ("redis-1", "redis-2", "redis-3"), "member"
    )
    assert (told["trouble"], told["servers"]["redis-1"]["shard"]) == ([], "main")
    assert (await client.delete("/v1/servers/redis-3")).json() == {"server": "redis-3"}
    assert {*(await client.get("/v1/servers")).json()["servers"]} == {"redis-1", "redis-2"}
    added = await client.post("/v1/servers", json={"url": servers.redis_urls["redis-3"], "name": "back/3"})
    assert (added.status_code, added.json()["server"], added.json()["seconds"] >= 0) == (200, "back/3", True)
    assert (await client.get("/v1/servers")).json()["servers"]["back/3"]["place"] == "member"
    audit = (await client.get("/audit")).text
    assert "redis-3 was removed" in audit
    assert "back/3 was added in " in audit
    assert (await client.delete("/v1/servers/back/3")).json() == {"server": "back/3"}


async def test_the_level_is_checked_and_raised(http: Serving, servers: local.Servers, namespace: str, hub: Hub) -> None:
    level = SPOKEN.highest
    told = (await http.client.get("/v1/upgrade")).json()
    assert told == {"level": level, "wanted": level, "release": RELEASES[level], "late": []}
    assert (await http.client.post("/v1/upgrade")).json() == {"level": level, "before": level}
    async with in_process(servers, namespace, hub) as old:
        info = ClientInfo("mailer", "host-a", "0.1.9", Levels(0, 0), "zkrq_0123456789ab")
        await client_of(old).coordinator.introduce(encode(info), 9)
        (late,) = (await http.client.get("/v1/upgrade")).json()["late"]
    assert late == {"host": "host-a", "description": "mailer", "version": "0.1.9"}


async def test_what_is_wrong_is_said_and_operators_change_nothing(
    http: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = http.client
    for method, path, body, status, says in (
        ("DELETE", "/servers/redis-9", None, 400, "is not a server of this namespace"),
        ("POST", "/servers", {}, 400, "url"),
        ("POST", "/servers", {"url": "nonsense"}, 400, "nonsense"),
        ("POST", "/servers", {"url": "redis://127.0.0.1:1", "shard": "x"}, 400, "shard"),
        ("POST", "/servers", {"url": "redis://127.0.0.1:1"}, 503, "nothing listens at 127.0.0.1:1"),
        ("POST", "/upgrade", {"level": 99}, 400, "this release speaks"),
        ("GET", "/upgrade?level=99", None, 400, "this release speaks"),
    ):
        reply = await client.request(method, f"/v1{path}", json=body)
        assert (reply.status_code, says in reply.json()["message"]) == (status, True), reply.text
        assert reply.json()["happened"] == "nothing"
    monkeypatch.setattr(server_calls, "ADDED_MAX", 0)
    assert (await client.post("/v1/servers", json={"url": "redis://127.0.0.1:1"})).json()["error"] == "Busy"
    operator = {"Authorization": f"Bearer {OPERATOR}"}
    assert (await client.get("/v1/servers", headers=operator)).status_code == 200
    for method, path in (("POST", "/servers"), ("DELETE", "/servers/redis-3"), ("POST", "/upgrade")):
        reply = await client.request(method, f"/v1{path}", json={}, headers=operator)
        assert (reply.status_code, "the right to administer" in reply.json()["message"]) == (403, True)
    assert len((await client.get("/v1/servers")).json()["servers"]) == 3
