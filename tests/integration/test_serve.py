"""The HTTP API over real servers, in plain HTTP."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import itertools
import json
import re
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import zkrq
import zkrq.testing
from tests.harness import HANG, in_process, new_namespace, settled, take, until
from tests.serving import Serving, refused, serving
from zkrq import local
from zkrq.client import client
from zkrq.client.cursors import Cursor
from zkrq.client.inner import client_of
from zkrq.client.timetable import Key
from zkrq.coordination.memory import Hub
from zkrq.protocol.calls import Decision
from zkrq.protocol.deciding import Decided
from zkrq.protocol.recurring import Progress
from zkrq.replication.replicas import Replicas
from zkrq.serve import api, guard, holding

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
TOKEN = "a-long-random-text-that-nobody-guesses"
NUMBERS = itertools.count()


class Stage:
    """A server of the API, a client of the library that looks on, and a queue that no other test uses."""

    def __init__(self, http: Serving, cluster: zkrq.Cluster, name: str) -> None:
        self.http = http
        self.cluster = cluster
        self.name = name
        self.path = f"/queues/{name}"
        self.queue = cluster.queue(name)
        self.push = partial(http.push, name)
        self.claim = partial(http.claim, name)


ORDERED = "orders"
"""A queue whose groups keep the order of their pushes."""


@pytest.fixture(scope="module")
async def served(shared_servers: local.Servers) -> AsyncGenerator[tuple[Serving, zkrq.Cluster]]:
    """A server and another client, for all tests that harm neither."""
    hub, namespace = Hub(), new_namespace()
    async with (
        in_process(shared_servers, namespace, hub) as cluster,
        serving(in_process(shared_servers, namespace, hub), ordered=(ORDERED,)) as http,
    ):
        yield http, cluster


@pytest.fixture
async def stage(served: tuple[Serving, zkrq.Cluster]) -> Stage:
    return Stage(*served, f"emails-{next(NUMBERS)}")


# -- push --------------------------------------------------------------------------------------------------------------


async def test_what_is_pushed_over_http_is_an_item_like_any_other(stage: Stage) -> None:
    options = {"priority": 3, "key": "k", "ttl": 60, "headers": {"traceparent": "00-1"}}
    id = await stage.push({"to": "änn"}, **options)
    claim = await take(stage.queue)
    assert (claim.id, claim.item, claim.priority, claim.key) == (id, {"to": "änn"}, 3, "k")
    assert dict(claim.headers) == {"traceparent": "00-1"}
    await claim.ack()
    await stage.push(None, delay=3600)
    assert (await stage.queue.size()).scheduled == 1


@pytest.mark.parametrize(
    "text", ['{"a": 1.10, "b":[1e400, 123456789012345678901234567890]}', '"\\ud800"', "null", "{}"]
)
async def test_an_item_that_is_json_arrives_as_it_was_pushed(stage: Stage, text: str) -> None:
    """Numbers too, which reading and writing again would change."""
    raw = stage.cluster.queue(f"raw-{stage.name}", codec=zkrq.RAW)
    await raw.push(text.encode())
    response = await stage.http.post(f"/queues/{raw.name}/claim", {"wait": 60})
    assert f'"item": {text}}}' in response.text
    assert "base64" not in response.json()["claims"][0]


@pytest.mark.parametrize("payload", [b"", b"\xff\x00", b"NaN", b"[" * 100_000, b"{} {}", b"\xef\xbb\xbf1"])
async def test_bytes_are_base64_in_both_directions(stage: Stage, payload: bytes) -> None:
    response = await stage.http.post(f"{stage.path}/push", {"base64": base64.b64encode(payload).decode()})
    assert response.status_code == 200
    claim = await stage.claim()
    assert base64.b64decode(claim["base64"]) == payload
    assert "item" not in claim


async def test_a_push_may_be_repeated_under_its_id(stage: Stage) -> None:
    for new in (True, False):
        receipt = (await stage.http.post(f"{stage.path}/push", {"item": 1, "id": "order-1"})).json()
        assert receipt == {
            "id": "order-1",
            "replicas": 3,
            "duplicate": False,
            "done": False,
            "new": new,
            "replaced": [],
        }
    assert (await stage.queue.size()).ready == 1
    await (await take(stage.queue)).ack()
    receipt = (await stage.http.post(f"{stage.path}/push", {"item": 1, "id": "order-1"})).json()
    assert receipt["done"]
    first = (await stage.http.post(f"{stage.path}/push", {"item": 2, "key": "k"})).json()
    again = (await stage.http.post(f"{stage.path}/push", {"item": 2, "key": "k"})).json()
    assert (again["duplicate"], again["id"]) == (True, first["id"])
    began = (await stage.http.post(f"{stage.path}/push", {"item": 3, "key": "w", "key_window": 60})).json()
    await stage.queue.cancel(began["id"])
    again = (await stage.http.post(f"{stage.path}/push", {"item": 3, "key": "w", "key_window": 60})).json()
    assert (again["duplicate"], again["done"], again["id"]) == (True, True, began["id"])


async def test_result_of_an_item(stage: Stage) -> None:
    """A long poll: the reply comes when the item has ended."""
    sums = stage.cluster.queue(f"sums-{stage.name}", results=zkrq.Results())
    receipt = await sums.push([1, 2])
    path = f"/queues/{sums.name}/items/{receipt.id}/result"
    told = (await stage.http.get(path)).json()
    known = {"id": receipt.id, "state": "queued", "has_result": False, "reason": None, "owner": None, "progress": None}
    assert told == known
    claim = await take(sums)
    assert (await stage.http.get(path)).json()["owner"] == claim.owner
    claim.progress(0.5, "half")
    await settled(lambda: says_half(stage, path))
    waiting = asyncio.create_task(stage.http.get(f"{path}?timeout=60"))
    await claim.ack(result={"sum": 3})
    told = (await waiting).json()
    assert (told["state"], told["has_result"], told["result"]) == ("done", True, {"sum": 3})
    buried = await sums.push("bad")
    await (await take(sums)).bury("no such order")
    told = (await stage.http.get(f"/queues/{sums.name}/items/{buried.id}/result?timeout=60")).json()
    assert (told["state"], told["reason"]) == ("dead", "no such order")
    assert (await stage.http.get(f"/queues/{sums.name}/items/nothing/result?timeout=60")).json()["state"] == "unknown"


async def says_half(stage: Stage, path: str) -> bool:
    for each in (path, path.removesuffix("/result")):
        progress = (await stage.http.get(each)).json()["progress"]
        if not progress or (progress["fraction"], progress["text"]) != (0.5, "half"):
            return False
    return True


async def test_an_ack_leaves_a_result_and_progress_is_reported(stage: Stage) -> None:
    """Clients in other languages answer callers of Python, and tell them how far they are."""
    sums = stage.cluster.queue(f"sums-{stage.name}", results=zkrq.Results())
    for body, value in (({"result": {"sum": 3}, "ttl": 60}, {"sum": 3}), ({"result": None}, None), ({}, None)):
        receipt = await sums.push([1, 2])
        claim = await stage.http.claim(sums.name)
        path = f"/claims/{claim['claim']}"
        assert (await stage.http.post(f"{path}/progress", {"fraction": 0.5, "text": "half"})).json() == {
            "reported": True
        }
        await settled(partial(says_half, stage, f"/queues/{sums.name}/items/{receipt.id}/result"))
        for _ in range(2):  # a repetition is answered like the first
            assert (await stage.http.post(f"{path}/ack", body)).json()["settled"] == "ack"
        result = await sums.result(receipt.id)
        assert (result.state, result.value, result.has_value) == ("done", value, "result" in body)
        await refused(await stage.http.post(f"{path}/progress", {"fraction": 0.5}), 410, "ClaimLost")
    await sums.push(1)
    claim = await stage.http.claim(sums.name)
    path = f"/claims/{claim['claim']}"
    await refused(await stage.http.post(f"{path}/ack", {"result": "x" * 40_000}), 413, "PayloadTooLarge")
    for call, wrong in (("ack", {"result": 1, "ttl": 0.5}), ("progress", {"fraction": 2}), ("progress", {"text": 1})):
        assert (await stage.http.post(f"{path}/{call}", wrong)).status_code == 400
    following = (await stage.http.post(f"{path}/ack", {"result": 1, "next": True})).json()
    assert following == {"settled": "ack", "next": None}
    assert (await sums.result(claim["id"])).get() == 1


async def test_many_are_pushed_together_in_order(stage: Stage) -> None:
    items = [{"item": n} for n in range(250)] + [{"item": "last", "id": "mine"}]
    outcomes = (await stage.http.post(f"{stage.path}/push-many", {"items": items})).json()["outcomes"]
    assert len({outcome["id"] for outcome in outcomes}) == 251
    claims = await stage.queue.pop_many(251, timeout=HANG)
    assert {claim.id: claim.item for claim in claims} == {
        outcome["id"]: item["item"] for outcome, item in zip(outcomes, items, strict=True)
    }


async def test_one_bad_item_of_many_is_found_before_anything_is_pushed(stage: Stage) -> None:
    for bad in ({"base64": "?"}, {"item": 1, "base64": ""}, {}, {"item": 1, "ttl": 1, "delay": 2}, {"item": 1, "x": 1}):
        response = await stage.http.post(f"{stage.path}/push-many", {"items": [{"item": 1}, bad]})
        assert response.status_code == 400
        assert response.json()["happened"] == "nothing"
    assert not any(await stage.queue.size())


async def test_the_outcome_of_each_of_many_is_told(stage: Stage) -> None:
    items = [{"item": 1}, {"item": "x" * (1 << 20)}]
    response = await stage.http.post(f"{stage.path}/push-many", {"items": items})
    await refused(response, 413, "PayloadTooLarge", "partly")
    pushed, failed = response.json()["outcomes"]
    assert pushed["replicas"] == 3
    assert (failed["error"], failed["happened"]) == ("PayloadTooLarge", "nothing")
    assert (await stage.queue.size()).ready == 1


BAD = {
    "delay": "soon",
    "priority": 10,
    "ttl": 0,
    "id": " x",
    "key": "\n",
    "key_window": 0.5,
    "headers": {"a": 1},
    "item ": 1,
}


@pytest.mark.parametrize("field", BAD)
async def test_a_bad_push_names_the_field_and_quotes_nothing(stage: Stage, field: str) -> None:
    response = await stage.http.post(f"{stage.path}/push", {"item": "secret", field: BAD[field]})
    message = await refused(response, 400, "BadRequest")
    assert f"body.{field}" in message
    assert "secret" not in message


async def test_groups_keep_their_order(stage: Stage) -> None:
    """A failed item holds its group, and the items of another group come."""
    http = stage.http
    for group, states in {"a": ("created", "paid", "sent"), "b": ("created",)}.items():
        for state in states:
            await http.push(ORDERED, state, group=group)
    message = await refused(await http.post(f"/queues/{ORDERED}/push", {"item": 1, "delay": 1}), 400, "BadRequest")
    assert "contradict the order" in message
    many = {"items": [{"item": 1, "group": "a"}, {"item": 2, "group": "a", "priority": 1}]}
    await refused(await http.post(f"/queues/{ORDERED}/push-many", many), 400, "BadRequest", "nothing")
    seen: list[tuple[str, str, int]] = []
    while len(seen) < 5:
        claim = await http.claim(ORDERED)
        seen.append((claim["group"], claim["item"], claim["attempts"]))
        fails = claim["item"] == "created" and claim["group"] == "a" and claim["attempts"] == 1
        verb, body = ("nack", {"delay": 0.2}) if fails else ("ack", None)
        await http.post(f"/claims/{claim['claim']}/{verb}", body)
    assert [each for each in seen if each[0] == "a"] == [
        ("a", "created", 1),
        ("a", "created", 2),
        ("a", "paid", 1),
        ("a", "sent", 1),
    ]
    assert seen[1] == ("b", "created", 1)


async def test_letters_of_one_group(stage: Stage) -> None:
    for group in ("a", "b"):
        await stage.push(group, group=group)
        await (await take(stage.queue)).bury("bad")
    listed = (await stage.http.get(f"{stage.path}/items?state=dead&group=b")).json()
    assert [item["group"] for item in listed["items"]] == ["b"]
    assert (await stage.http.post(f"{stage.path}/dead/redrive", {"group": "b"})).json() == {"redriven": 1}
    assert (await stage.queue.size()) == (1, 0, 0, 1)


# -- claims ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "body", "sizes"),
    [
        ("ack", None, (0, 0, 0, 0)),
        ("nack", {"delay": 3600}, (0, 1, 0, 0)),
        ("release", None, (1, 0, 0, 0)),
        ("bury", None, (0, 0, 0, 1)),
    ],
)
async def test_a_claim_is_settled_by_its_token(stage: Stage, verb: str, body: object, sizes: tuple[int, ...]) -> None:
    await stage.queue.push(1)
    token = (await stage.claim())["claim"]
    assert (await stage.queue.size()).claimed == 1
    for _ in range(2):  # the reply may have been lost
        assert (await stage.http.post(f"/claims/{token}/{verb}", body)).json() == {"settled": verb}
    other = "ack" if verb != "ack" else "nack"
    await refused(await stage.http.post(f"/claims/{token}/{other}"), 410, "ClaimLost")
    await refused(await stage.http.post(f"/claims/{token}/extend"), 410, "ClaimLost")
    assert await stage.queue.size() == sizes


async def test_several_claims_are_acked_by_one_request(stage: Stage) -> None:
    await stage.queue.push_many(range(5))
    response = await stage.http.post(f"{stage.path}/claim", {"count": 5})
    tokens = [claim["claim"] for claim in response.json()["claims"]]
    assert len(tokens) == 5
    assert (await stage.http.post(f"/claims/{tokens[1]}/nack", {"delay": 3600})).status_code == 200
    for _ in range(2):  # the reply may have been lost
        reply = await stage.http.post("/claims/ack-many", {"claims": [*tokens, tokens[0], "unknown"]})
        assert reply.json() == {"acked": 4, "lost": [tokens[1], "unknown"]}
    assert await stage.queue.size() == (0, 1, 0, 0)
    for bad in ([], ["x"] * 501, [""], ["x" * 65], [5]):
        await refused(await stage.http.post("/claims/ack-many", {"claims": bad}), 400, "BadRequest")


async def test_why_work_failed_is_kept_with_the_item(stage: Stage) -> None:
    for verb, body in (("nack", {"delay": 60, "reason": "no route"}), ("bury", {"reason": "bad address"})):
        id = await stage.push(1)
        token = (await stage.claim())["claim"]
        content = json.dumps(body)
        path, header = f"/v1/claims/{token}/{verb}", {"Content-Type": "application/json"}
        assert (await stage.http.client.post(path, content=content, headers=header)).status_code == 200
        item = await stage.queue.get(id)
        assert item
        assert item.reason == body["reason"]


async def test_an_ack_may_claim_the_next_item(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts, decide = list[str](), Replicas.decide

    async def noted(replicas: Replicas, call: Decision[Any]) -> Decided[Any]:
        scripts.append(call.script)
        return await decide(replicas, call)

    for item in ("first", "second"):
        await stage.push(item)
    claim = await stage.claim()
    monkeypatch.setattr(Replicas, "decide", noted)
    told = (await stage.http.post(f"/claims/{claim['claim']}/ack", {"next": True, "lease": 20})).json()
    assert (told["settled"], told["next"]["item"], told["next"]["lease"]) == ("ack", "second", 20)
    assert scripts == ["turn"], "one decision"
    again = (await stage.http.post(f"/claims/{claim['claim']}/ack", {"next": True})).json()
    assert again == {"settled": "ack", "next": None}
    last = (await stage.http.post(f"/claims/{told['next']['claim']}/ack", {"next": True})).json()
    assert last == {"settled": "ack", "next": None}
    assert not any(await stage.queue.size())


async def test_an_ack_that_fails_claims_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for item in ("first", "second"):
        await stage.push(item)
    claim = await stage.claim()
    assert await stage.queue.cancel(claim["id"])
    response = await stage.http.post(f"/claims/{claim['claim']}/ack", {"next": True})
    assert response.status_code == 410
    second = await take(stage.queue)
    assert (second.item, second.attempts) == ("second", 1)
    await second.ack()


async def test_an_item_comes_back_when_its_lease_has_passed(stage: Stage) -> None:
    """And counts as failed, or an item that kills its clients would be delivered for ever."""
    await stage.push(1)
    claim = await stage.claim(lease=1)
    again = await stage.claim()
    assert (again["id"], again["attempts"], again["failures"]) == (claim["id"], 2, 1)
    assert again["fencing"] > claim["fencing"]
    message = await refused(await stage.http.post(f"/claims/{claim['claim']}/ack"), 410, "ClaimLost")
    assert "lease has passed" in message
    item = await stage.queue.get(claim["id"])
    assert item
    assert item.reason == "the lease of its HTTP client has passed"


async def test_a_lease_that_is_extended_holds_for_longer(stage: Stage) -> None:
    await stage.push(1)
    token = (await stage.claim(lease=1))["claim"]
    assert (await stage.http.post(f"/claims/{token}/extend", {"lease": 600})).json() == {"lease": 600}
    await asyncio.sleep(1.2)
    assert (await stage.http.post(f"/claims/{token}/ack")).status_code == 200
    assert not any(await stage.queue.size())


async def test_a_cancelled_item_is_told_to_its_holder(stage: Stage) -> None:
    id = await stage.push(1)
    token = (await stage.claim())["claim"]
    assert await stage.queue.cancel(id) is zkrq.Cancellation.SIGNALLED
    for call in ("extend", "ack", "nack"):
        assert id in await refused(await stage.http.post(f"/claims/{token}/{call}"), 410, "ClaimLost")
    await refused(await stage.http.post("/claims/unknown/ack"), 410, "ClaimLost")


async def test_a_claim_waits_for_an_item(stage: Stage) -> None:
    assert (await stage.http.post(f"{stage.path}/claim")).json() == {"claims": []}
    waiting = asyncio.create_task(stage.claim(count=5))
    await asyncio.sleep(0.1)
    await stage.queue.push("now")
    assert (await waiting)["item"] == "now"


async def test_a_client_that_hangs_up_takes_nothing(stage: Stage) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.http.server.port)
    body = b'{"wait": 60}'
    head = f"POST /v1/queues/emails/claim HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
    await writer.drain()
    await asyncio.sleep(0.2)
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(0.1)
    await stage.queue.push("kept")
    assert (await stage.claim())["attempts"] == 1
    assert reader


async def test_many_are_claimed_at_once(stage: Stage) -> None:
    await stage.queue.push_many(range(30))
    claims = (await stage.http.post(f"{stage.path}/claim", {"count": 20})).json()["claims"]
    assert sorted(claim["item"] for claim in claims) == list(range(20))
    results = await asyncio.gather(*(stage.http.post(f"/claims/{claim['claim']}/ack") for claim in claims))
    assert {result.status_code for result in results} == {200}
    assert await stage.queue.size() == (10, 0, 0, 0)


async def test_a_call_that_two_requests_make_is_done_once(stage: Stage) -> None:
    await stage.push(1)
    token = (await stage.claim())["claim"]
    replies = await asyncio.gather(*(stage.http.post(f"/claims/{token}/nack", {"delay": 3600}) for _ in range(5)))
    assert [reply.status_code for reply in replies] == [200] * 5
    assert await stage.queue.size() == (0, 1, 0, 0)


# -- errors, bounds ----------------------------------------------------------------------------------------------------


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


async def test_figures_tell_of_queues_and_servers(stage: Stage) -> None:
    await stage.queue.push_many([1, 2])
    await stage.claim()
    await stage.queue.pause()

    async def in_sync() -> bool:  # again, after a test before this one
        servers = (await stage.http.client.get("/v1/queues")).json()["servers"]
        return list(servers.values()) == ["member"] * 3

    await settled(in_sync)
    told = (await stage.http.client.get("/v1/queues")).json()
    assert told["namespace"] == stage.cluster.namespace
    assert told["writable"]
    assert told["queues"][stage.name] == (await stage.http.client.get(f"/v1{stage.path}")).json() | {
        "oldest_ready": told["queues"][stage.name]["oldest_ready"]
    }
    assert (told["queues"][stage.name]["ready"], told["queues"][stage.name]["paused"]) == (1, True)


async def test_figures_and_page_name_shards_where_there_are_several() -> None:
    async with (
        zkrq.testing.servers(2) as own,
        own.connect(first=1) as cluster,
        serving(own.connect(first=1)) as http,
    ):
        assert "Shards" not in (await http.client.get("/", headers={"Accept": "text/html"})).text
        await cluster.add_shard("b", own.urls("redis-2"))
        await cluster.queue("jobs").push("x")
        await own.clock.advance(1)  # the other client opens it, too
        told = (await http.client.get("/v1/queues")).json()
        assert told["shards"] == {name: {"state": "open", "away": None} for name in ("b", "main")}
        assert (told["queues"]["jobs"]["away"], told["writable"]) == ([], True)
        own.kill("redis-2")
        await own.clock.advance(1)
        told = (await http.client.get("/v1/queues")).json()
        assert told["shards"]["b"]["away"].startswith("shard b is away")
        assert told["writable"]
        assert (await http.client.get("/v1/queues/jobs")).json()["away"] == ["b"]
        page = (await http.client.get("/", headers={"Accept": "text/html"})).text
        assert "without the items of shard b, which is away" in page
        assert "open, away" in page


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


async def test_items_are_looked_up_and_cancelled(stage: Stage) -> None:
    path = f"/v1/queues/{stage.name}/items"
    id = await stage.http.push(stage.name, {"big": 12345678901234567890.0}, id="a/b c", delay=60, priority=3)
    assert id == "a/b c"
    item = (await stage.http.client.get(f"{path}/a%2Fb%20c")).json()
    assert (item["id"], item["item"], item["state"], item["priority"]) == (
        id,
        {"big": 12345678901234567890.0},
        "scheduled",
        3,
    )
    assert item["seconds_left"] > 0
    assert "base64" not in item
    assert (await stage.http.client.post(f"{path}/a%2Fb%20c/cancel")).json() == {"outcome": "removed"}
    for call, where in ((stage.http.client.get, f"{path}/a%2Fb%20c"), (stage.http.client.post, f"{path}/x/cancel")):
        reply = await call(where)
        assert (reply.status_code, reply.json()["error"], reply.json()["happened"]) == (404, "NoSuchItem", "nothing")
    id = await stage.http.push(stage.name, 1)
    await stage.http.claim(stage.name)
    assert (await stage.http.client.get(f"{path}/{id}")).json()["state"] == "claimed"
    assert (await stage.http.client.post(f"{path}/{id}/cancel")).json() == {"outcome": "signalled"}


async def pages_of(stage: Stage, params: dict[str, Any]) -> list[dict[str, Any]]:
    """All pages of a search; only another primary makes it begin again."""
    epoch, pages, after = stage.cluster.view.epoch, list[dict[str, Any]](), {}
    while not pages or pages[-1]["next"] is not None:
        reply = await stage.http.client.get(f"/v1/queues/{stage.name}/items", params=params | after)
        pages.append(reply.json())
        after = {"after": pages[-1]["next"]}
        if pages[-1]["restarted"]:
            await until(lambda: stage.cluster.view.epoch > epoch)
            return await pages_of(stage, params)
    return pages


async def test_items_are_found_page_by_page(stage: Stage) -> None:
    path = f"/v1/queues/{stage.name}/items"
    spring = {"campaign": "spring"}
    ids = {await stage.http.push(stage.name, n, headers=spring, delay=60, key=f"key {n}") for n in range(5)}
    ids |= {await stage.http.push(stage.name, "other", headers={"campaign": "autumn"})}
    pages = await pages_of(stage, {"limit": 2})
    assert max(len(page["items"]) for page in pages) <= 2
    found = [item["id"] for page in pages for item in page["items"]]
    assert sorted(found) == sorted(ids)
    (item,) = (await stage.http.client.get(path, params={"key": "key 3", "header": "campaign=spring"})).json()["items"]
    assert (item["item"], item["state"], item["key"], item["headers"]) == (3, "scheduled", "key 3", spring)
    claim = await stage.http.claim(stage.name)
    (held,) = (await stage.http.client.get(path, params={"state": "claimed"})).json()["items"]
    assert held["owner"]
    await stage.http.post(f"/claims/{claim['claim']}/bury", {"reason": "Connection refused"})
    (letter,) = (await stage.http.client.get(path, params={"error": "connection", "state": "dead"})).json()["items"]
    assert (letter["item"], letter["reason"]) == ("other", "Connection refused")
    assert await pages_of(stage, {"key": "nobody"}) == [{"items": [], "next": None, "restarted": False}]


@pytest.mark.parametrize(
    "wrong", [{"state": "lost"}, {"key": " "}, {"header": "campaign"}, {"limit": 501}, {"after": "x"}, {"error": ""}]
)
async def test_what_is_not_a_search_is_a_bad_request(stage: Stage, wrong: dict[str, str]) -> None:
    reply = await stage.http.client.get(f"/v1/queues/{stage.name}/items", params=wrong)
    assert (reply.status_code, reply.json()["error"]) == (400, "BadRequest")


async def test_a_cursor_that_is_no_longer_valid_starts_over_and_says_so(stage: Stage) -> None:
    path = f"/v1/queues/{stage.name}/items"
    ids = {await stage.http.push(stage.name, n) for n in range(3)}
    told = (await stage.http.client.get(path, params={"limit": 1})).json()["next"]
    old = dataclasses.replace(Cursor.read(told), leader="redis-9 of another life").text()
    reply = (await stage.http.client.get(path, params={"after": old})).json()
    assert reply["restarted"]
    assert {item["id"] for item in reply["items"]} == ids


async def test_a_queue_is_limited(stage: Stage) -> None:
    path, client = f"/v1/queues/{stage.name}/limits", stage.http.client
    none = {"concurrency": None, "rate": None, "seconds": None}
    no_groups = {**none, "ordered": False}
    assert (await client.get(path)).json() == {**none, "groups": no_groups}
    await stage.queue.push_many([1, 2])
    limits = {"concurrency": 1, "rate": 50, "seconds": 2.0}
    response = await client.put(path, json=limits)
    assert (response.status_code, response.json()) == (200, limits)
    assert (await client.get(path)).json() == {**limits, "groups": no_groups}
    await stage.claim()
    assert (await stage.http.post(f"/queues/{stage.name}/claim", {})).json() == {"claims": []}
    figures = (await client.get(f"/v1{stage.path}")).json()
    assert figures["limited"] == "limited: 1 of 1 claimed"
    for wrong in ({"concurrency": 0}, {"concurrency": True}, {"rate": 1, "seconds": 4000}, {"rate": -1}, {"more": 1}):
        assert (await client.put(path, json=wrong)).status_code == 400
    for wrong in ({"concurrency": 1_000_001}, {"rate": 1_000_001}):
        assert (await client.put(path, json=wrong)).status_code == 400
        assert (await client.put(f"{path}/groups", json=wrong)).status_code == 400
    refused = await client.put(path, json={"seconds": 5})
    said = "body: seconds is the time of a rate: give rate too, or {} to remove the limits"
    assert (refused.status_code, refused.json()["message"]) == (400, said)
    assert (await client.get(path)).json() == {**limits, "groups": no_groups}
    assert (await client.put(path, json={})).json() == none


async def test_groups_of_a_queue_are_limited(stage: Stage) -> None:
    path, client = f"/v1/queues/{stage.name}/limits", stage.http.client
    await client.put(path, json={"concurrency": 7})
    for groups in (
        {"concurrency": 2, "ordered": False, "rate": 5, "seconds": 2.5},
        {"concurrency": None, "ordered": True, "rate": None, "seconds": None},
        {"concurrency": None, "ordered": True, "rate": 9, "seconds": 1.0},
    ):
        given = {name: value for name, value in groups.items() if value is not None}
        response = await client.put(f"{path}/groups", json=given)
        assert (response.status_code, response.json()) == (200, groups)
        assert (await client.get(path)).json() == {"concurrency": 7, "rate": None, "seconds": None, "groups": groups}
    for wrong in ({"rate": 0}, {"ordered": "yes"}, {"ordered": True, "concurrency": 2}, {"rate": 1, "seconds": 0}):
        assert (await client.put(f"{path}/groups", json=wrong)).status_code == 400
    assert (await client.put(f"{path}/groups", json={"seconds": 5})).status_code == 400
    assert (await client.get(path)).json()["groups"] == groups, "nothing that was refused has removed them"
    assert (await client.put(f"{path}/groups", json={})).json()["ordered"] is False
    assert (await client.get(path)).json()["concurrency"] == 7, "what is not named stays"


async def _has_last(stage: Stage, path: str) -> bool:
    return (await stage.http.client.get(path)).json()["last"] is not None


async def test_schedules(stage: Stage) -> None:
    """Two queues may have a schedule of one name; a repeated request changes nothing."""
    client, path = stage.http.client, f"/v1/queues/{stage.name}/schedules/every%20night"
    body = {"when": 3600, "item": {"kind": "daily"}, "priority": 3}
    first, again = [(await client.put(path, json=body)) for _ in range(2)]
    assert (first.status_code, again.json()) == (200, first.json())
    told = first.json()
    assert told.pop("next")
    assert told == {
        **body,
        "queue": stage.name,
        "name": "every night",
        "offset": 0.0,
        "zone": None,
        "catch_up": 240.0,
        "missed": "last",
        "paused": False,
        "declared": False,
        "last": None,
        "last_loss": None,
        "losses": 0,
    }
    paused = (await client.post(f"{path}/pause")).json()
    assert (paused["paused"], paused["next"]) == (True, None)
    changed = (await client.put(path, json={"when": 0.2, "base64": "/wA="})).json()
    assert (changed["paused"], changed["base64"]) == (True, "/wA=")
    assert [each["name"] for each in (await client.get("/v1/schedules")).json()["schedules"]] == ["every night"]
    assert not (await client.post(f"{path}/resume")).json()["paused"]
    assert (await stage.http.claim(stage.name))["base64"] == "/wA=", "this server pushes what is due"
    assert (await client.get(path)).json()["when"] == 0.2
    await settled(lambda: _has_last(stage, path))
    assert (await client.delete(path)).json() == {"removed": True}
    assert (await client.delete(path)).json() == {"removed": False}
    for call in (client.get(path), client.post(f"{path}/pause"), client.post(f"{path}/resume")):
        assert (await call).status_code == 404
    for wrong in (
        {"when": 60},
        {"when": 0, "item": 1},
        {"when": "x", "item": 1},
        {"when": 60, "zone": "UTC", "item": 1},
    ):
        refused = await client.put(path, json=wrong)
        assert (refused.status_code, refused.json()["happened"]) == (400, "nothing")


async def test_the_page_of_schedules(stage: Stage) -> None:
    """Its buttons are forms: they pause, resume, and ask before they remove."""
    client, fields = stage.http.client, {"queue": stage.name, "name": "<night>"}
    await client.put(f"/v1/queues/{stage.name}/schedules/%3Cnight%3E", json={"when": 3600, "item": "<b>"})
    page = (await client.get("/schedules")).text
    assert "&lt;night&gt;" in page
    assert "<b>" not in page
    assert "badge bad" not in page
    progress = Progress(1_772_000_000_000, 1_771_900_000_000, 1_772_000_000_000, losses=3)
    await client_of(stage.cluster).moment_store.advance({Key(stage.name, "<night>"): progress})
    page = (await client.get("/schedules")).text
    assert '<span class="badge bad">3</span> ' in page
    assert page.count("2026-02-2") == 2, "the last moment, and the last that was lost"
    for verb, paused in (("pause", True), ("resume", False)):
        reply = await client.post(f"/schedules/{verb}", data=fields, follow_redirects=True)
        assert reply.status_code == 200
        assert f"&lt;night&gt; is {verb}d" in reply.text
        entry = await stage.cluster.schedules().get(stage.name, "<night>")
        assert entry is not None
        assert entry.paused == paused
    asked = await client.post("/schedules/remove", data=fields)
    assert "Remove this schedule" in asked.text
    assert await stage.cluster.schedules().get(stage.name, "<night>")
    await client.post("/schedules/remove", data={**fields, "confirmed": "yes"})
    assert await stage.cluster.schedules().get(stage.name, "<night>") is None
    assert (await client.post("/schedules/remove", data={**fields, "confirmed": "yes"})).status_code != 200
    assert (await client.post("/schedules/nothing", data=fields)).status_code == 404


async def test_a_queue_is_paused_and_resumed(stage: Stage) -> None:
    await stage.http.push(stage.name, 1)
    for verb, paused in (("pause", True), ("resume", False)):
        assert (await stage.http.post(f"/queues/{stage.name}/{verb}")).json() == {"paused": paused}
        assert (await stage.http.client.get(f"/v1/queues/{stage.name}")).json()["paused"] == paused


async def test_dead_letters_are_listed_and_queued_again(stage: Stage) -> None:
    ids = [await stage.http.push(stage.name, number) for number in range(3)]
    for _ in ids:
        claim = await stage.http.claim(stage.name)
        await stage.http.post(f"/claims/{claim['claim']}/bury", {"reason": "no such address"})
    dead = f"/v1/queues/{stage.name}/dead"
    letters = (await stage.http.client.get(dead, params={"count": 2})).json()["items"]
    assert len(letters) == 2
    assert {letter["reason"] for letter in letters} == {"no such address"}
    assert all(letter["died_at"] for letter in letters)
    redrive = f"/queues/{stage.name}/dead/redrive"
    assert (await stage.http.post(redrive, {"ids": [ids[0], "x"]})).json() == {"redriven": 1}
    assert (await stage.http.post(redrive)).json() == {"redriven": 2}
    assert (await stage.http.client.get(dead)).json() == {"items": []}
    assert (await stage.http.client.get(dead, params={"count": 0})).status_code == 400


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


# -- the page of the documentation -------------------------------------------------------------------------------------


JQ = """jq() {
  python3 -c 'import json, sys
claims = [claim["claim"] for claim in json.load(sys.stdin)["claims"]]
print(claims[0] if sys.argv[1] == "-r" else json.dumps({"claims": claims}))' "$1"
}"""
"""All that the example uses of jq."""


async def test_the_examples_of_the_documentation_run(stage: Stage) -> None:
    page = (ROOT / "docs" / "http.md").read_text()
    (example,) = re.findall(r"^```sh runnable\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    script = example.replace("http://127.0.0.1:8080", stage.http.url).replace("/emails", f"/{stage.name}")
    script = re.sub(r"\bcurl -s\b", "curl -s --fail-with-body", script)
    ran = await anyio.run_process(["bash", "-euc", f"{JQ}\n{script}"], check=False)
    assert ran.returncode == 0, ran.stdout.decode() + ran.stderr.decode()
    replies = re.findall(r"\{.*?\}(?=\{|$)", ran.stdout.decode(), re.DOTALL)
    assert json.loads(replies[-1])["ready"] == 0
    assert '{"settled":"ack"}' in ran.stdout.decode()
    assert '{"acked":4,"lost":[]}' in ran.stdout.decode()
    for path in re.findall(r"^\| `(?:POST|GET) (/v1/[^\s?]+?)[`?]", page, re.MULTILINE):
        assert path in (await stage.http.client.get("/v1/openapi.json")).json()["paths"]
