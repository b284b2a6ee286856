"""The HTTP API over real servers: errors, bounds, tokens, probes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator

import pytest

import zkrq
import zkrq.testing
from tests.harness import HANG, in_process, new_namespace, settled
from tests.integration.api_stage import TOKEN, Stage
from tests.serving import Serving, refused, serving
from zkrq import local
from zkrq.client import client
from zkrq.coordination.memory import Hub
from zkrq.serve import api, guard, holding

pytestmark = pytest.mark.anyio


async def test_errors_of_the_servers_are_told_as_what_they_are(servers: local.Servers) -> None:
    async with serving(in_process(servers, new_namespace(), operation_timeout=1.0, command_timeout=0.5)) as http:
        await http.push("emails", 1)
        token = (await http.claim("emails"))["claim"]
        for server in servers.redis:
            server.pause()
        response = await http.post("/queues/emails/push", {"item": 2})
        told = response.json()
        assert response.status_code in (503, 504)
        assert told["happened"] == {503: "nothing", 504: "unknown"}[response.status_code]
        if response.status_code == 504:
            assert len(told["ids"]) == 1
        else:
            assert response.headers["retry-after"] == "1"
        assert (await http.post(f"/claims/{token}/ack")).status_code in (503, 504)
        assert (await http.post("/claims/ack-many", {"claims": [token]})).status_code in (503, 504)
        assert (await http.post("/claims/ack-many", {"claims": [token, "unknown"]})).status_code == 504
        assert (await http.post("/queues/emails/claim")).status_code == 503
        for server in servers.redis:
            server.resume()

        async def acked() -> bool:
            return (await http.post(f"/claims/{token}/ack")).status_code == 200

        await settled(acked)


async def test_bodies_are_bounded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_MAX", 100)
    path, announced = f"/v1{stage.path}/push", {"Content-Type": "application/json"}
    await refused(await stage.http.client.post(path, content=b" " * 101, headers=announced), 413, "BodyTooLarge")

    async def pieces() -> AsyncGenerator[bytes]:
        for _ in range(11):
            yield b" " * 10

    await refused(await stage.http.client.post(path, content=pieces(), headers=announced), 413, "BodyTooLarge")
    await refused(await stage.http.client.post(path, content=b'{"item": 1}'), 415, "NotJson")
    monkeypatch.setattr(guard, "BODIES_MAX", 5)
    await refused(await stage.http.post(f"{stage.path}/push", {"item": 1}), 503, "Busy")
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.http.server.port)
    writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n".encode())
    answer = await reader.read(-1)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"RequestTimeout" in answer
    writer.close()
    assert not any(await stage.queue.size())


async def test_bodies_count_while_they_arrive(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many that are sent slowly take memory like those that have arrived; a connection that ends gives it back."""
    monkeypatch.setattr(guard, "BODIES_MAX", 1_000)
    head = f"POST /v1{stage.path}/push HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

    async def begin() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.http.server.port)
        writer.write(f"{head}Content-Length: 700\r\n\r\n".encode() + b" " * 600)
        return reader, writer

    begun = [await begin() for _ in range(2)]
    answers = [asyncio.create_task(reader.readuntil(b"\r\n\r\n")) for reader, _ in begun]
    try:
        done, waiting = await asyncio.wait(answers, timeout=HANG, return_when=asyncio.FIRST_COMPLETED)
        assert [answer.result().split()[1] for answer in done] == [b"503"]
        assert len(waiting) == 1
    finally:
        for answer, (_, writer) in zip(answers, begun, strict=True):
            answer.cancel()
            writer.close()

    async def has_room() -> bool:
        return (await stage.http.post(f"{stage.path}/push", {"item": "x" * 500})).status_code == 200

    await settled(has_room)


async def test_what_needs_no_token_has_small_bodies(stage: Stage) -> None:
    response = await stage.http.client.post("/login", data={"token": "x" * guard.OPEN_BODY_MAX})
    await refused(response, 413, "BodyTooLarge")


async def test_work_at_one_time_is_bounded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.queue.push_many([1, 2, 3])
    monkeypatch.setattr(holding, "HELD_MAX", stage.http.server.held + 2)
    claims = (await stage.http.post(f"{stage.path}/claim", {"count": 3})).json()["claims"]
    assert len(claims) == 2
    await refused(await stage.http.post(f"{stage.path}/claim"), 503, "Busy")
    assert (await stage.http.post(f"/claims/{claims[0]['claim']}/ack")).status_code == 200
    assert (await stage.http.post(f"{stage.path}/claim")).status_code == 200
    monkeypatch.undo()
    monkeypatch.setattr(api, "WAITING_MAX", 0)
    await refused(await stage.http.post(f"{stage.path}/claim"), 503, "Busy")
    monkeypatch.setattr(guard, "REQUESTS_MAX", 0)
    await refused(await stage.http.client.get("/v1/queues"), 503, "Busy")


async def test_clients_may_name_any_number_of_queues(
    shared_servers: local.Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that nobody uses cost the server nothing, and no new name is refused."""
    monkeypatch.setattr(client, "IDLE_MAX", 10)
    hub, namespace = Hub(), new_namespace()
    serves = in_process(shared_servers, namespace, hub)
    async with serving(serves) as http:
        for number in range(60):
            assert (await http.post(f"/queues/name-{number}/claim")).json()["claims"] == []
        assert len(serves.queues_in_use) <= 20
        await http.push("name-0", 1)
        assert (await http.claim("name-0"))["item"] == 1


async def test_ended_claims_are_remembered_within_bounds(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 10  # claims of other tests may end meanwhile, too
    monkeypatch.setattr(holding, "ENDED_MAX", most)
    tokens: list[str] = []
    for n in range(most + 2):
        await stage.push(n)
        tokens.append((await stage.claim())["claim"])
        assert (await stage.http.post(f"/claims/{tokens[-1]}/ack")).status_code == 200
    await asyncio.sleep(0)
    first, last = [(await stage.http.post(f"/claims/{token}/ack")).status_code for token in (tokens[0], tokens[-1])]
    assert (first, last) == (410, 200)


async def test_what_does_not_exist_is_told_in_json(stage: Stage) -> None:
    await refused(await stage.http.client.get("/v1/nothing"), 404, "NotFound")
    await refused(await stage.http.client.put("/v1/queues"), 405, "MethodNotAllowed")
    await refused(await stage.http.post("/queues/a%20b/push", {"item": 1}), 400, "BadRequest")
    header = {"Content-Type": "application/json"}
    for content in (b"{", b"[" * 100_000, b'{"item": 1' + b"1" * 5000 + b"}", b"\xff"):
        response = await stage.http.client.post(f"/v1{stage.path}/push", content=content, headers=header)
        await refused(response, 400, "BadRequest")


async def test_a_token_is_asked_for_and_a_server_may_only_show(servers: local.Servers) -> None:
    hub, namespace = Hub(), new_namespace()
    async with (
        serving(in_process(servers, namespace, hub), tokens=(TOKEN,)) as http,
        serving(in_process(servers, namespace, hub), read_only=True) as shown,
    ):
        await refused(response := await http.post("/queues/emails/push", {"item": 1}), 401, "Unauthorized")
        assert response.headers["www-authenticate"] == "Bearer"
        allowed = {"Authorization": f"Bearer {TOKEN}"}
        assert (await http.post("/queues/emails/push", {"item": 1}, **allowed)).status_code == 200
        await refused(await shown.post("/queues/emails/push", {"item": 1}), 403, "Forbidden")
        assert (await shown.client.get("/v1/queues/emails")).json()["ready"] == 1
        page = {"Accept": "text/html"}
        assert (await http.client.get("/", headers=page)).headers["location"] == "/login"


async def test_probes_and_metrics(stage: Stage, servers: local.Servers) -> None:
    await stage.push(1)
    answers = [await stage.http.client.get(path) for path in ("/livez", "/readyz", "/metrics")]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert re.search(rf'zkrq_queue_items{{.*queue="{stage.name}",state="ready"}} 1.0', answers[2].text)
    assert re.search(rf'zkrq_pushes_total{{.*outcome="pushed",queue="{stage.name}"}} 1.0', answers[2].text)
    hub, namespace = Hub(), new_namespace()
    async with serving(in_process(servers, namespace, hub, command_timeout=0.5), tokens=(TOKEN,)) as http:
        answers = [await http.client.get(path) for path in ("/livez", "/readyz", "/metrics")]
        assert [answer.status_code for answer in answers] == [200, 200, 401]
        for server in servers.redis:
            server.pause()
        alive, ready = await http.client.get("/livez"), await http.client.get("/readyz")
        assert (alive.status_code, ready.status_code, ready.text) == (
            200,
            503,
            "not ready: the servers have not answered for 5 s\n",
        )


async def test_a_server_that_is_not_ready_says_why() -> None:
    """All of it where nobody needs a token; otherwise without names of servers."""
    async with zkrq.testing.servers(2) as own:
        for tokens, text in (
            ((), "not ready: 1 server(s) in sync, min_replicas is 2; redis-1 is not brought back"),
            ((TOKEN,), "not ready: 1 of at least 2 servers are in sync\n"),
        ):
            async with serving(own.connect(), tokens=tokens) as http:
                assert (await http.client.get("/readyz")).text == "ready\n"
                own.kill("redis-1")

                async def told(http: Serving = http, text: str = text) -> bool:
                    return (await http.client.get("/readyz")).text.startswith(text)

                await settled(told)
                assert not (tokens and "redis" in (await http.client.get("/readyz")).text)
                own.start("redis-1")
                await settled(lambda http=http: _is_ready(http))


async def _is_ready(http: Serving) -> bool:
    return (await http.client.get("/readyz")).status_code == 200


async def test_every_reply_has_the_headers_that_browsers_obey(stage: Stage) -> None:
    for path in ("/v1/queues", "/v1/nothing", "/v1/openapi.json"):
        headers = (await stage.http.client.get(path)).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
        assert "server" not in headers
