"""The HTTP API over real servers, in plain HTTP: pushes and claims."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import zkrq
from tests.harness import HANG, settled, take
from tests.integration.api_stage import ORDERED, Stage
from tests.serving import refused
from zkrq.protocol.calls import Decision
from zkrq.protocol.deciding import Decided
from zkrq.replication.replicas import Replicas

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


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
    known |= {"traceback": None, "is_lost": False}
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
    "task": "a b",
    "item ": 1,
}


@pytest.mark.parametrize("field", BAD)
async def test_a_bad_push_names_the_field_and_quotes_nothing(stage: Stage, field: str) -> None:
    response = await stage.http.post(f"{stage.path}/push", {"item": "secret", field: BAD[field]})
    message = await refused(response, 400, "BadRequest")
    assert f"body.{field}" in message
    assert "secret" not in message


async def test_what_is_said_of_a_wrong_field_is_short(stage: Stage) -> None:
    """A number has as many digits as JSON may have."""
    response = await stage.http.post(f"{stage.path}/push", {"item": 1, "priority": 10**4000})
    assert len(await refused(response, 400, "BadRequest")) < 1_100


async def test_groups_keep_their_order(stage: Stage) -> None:
    """A failed item holds its group, and the items of another group come."""
    http = stage.http
    for group, states in {"a": ("created", "paid", "sent"), "b": ("created",)}.items():
        for state in states:
            await http.push(ORDERED, state, group=group)
    message = await refused(await http.post(f"/queues/{ORDERED}/push", {"item": 1, "delay": 1}), 400, "BadRequest")
    assert "which a delay or a priority would contradict" in message
    many = {"items": [{"item": 1, "group": "a"}, {"item": 2, "group": "a", "priority": 1}]}
    response = await http.post(f"/queues/{ORDERED}/push-many", many)
    await refused(response, 400, "BadRequest", "partly")
    first, second = response.json()["outcomes"]
    assert (first["new"], second["error"]) == (True, "BadRequest")
    seen: list[tuple[str, str | int, int]] = []
    while len(seen) < 6:
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
        ("a", 1, 1),
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
        ("release", {"delay": 3600}, (0, 1, 0, 0)),
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
        if call.queue == stage.name:  # others release what earlier tests have dropped
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
    for path in re.findall(r"^- `(?:POST|GET) (/v1/[^\s?]+?)[`?]", page, re.MULTILINE):
        assert path in (await stage.http.client.get("/v1/openapi.json")).json()["paths"]


async def test_what_is_saved_over_http_is_given_to_the_next_claim(stage: Stage) -> None:
    await stage.push(1)
    first = await stage.claim()
    assert first["saved"] is None
    path = f"/claims/{first['claim']}"
    assert (await stage.http.post(f"{path}/save", {"state": {"page": 12}})).json() == {"saved": True}
    await refused(await stage.http.post(f"{path}/save", {"state": "x" * 40_000}), 413, "PayloadTooLarge")
    await stage.http.post(f"{path}/nack", {"delay": 0})
    await refused(await stage.http.post(f"{path}/save", {"state": 1}), 410, "ClaimLost")
    again = await stage.claim()
    assert again["saved"] == {"page": 12}
    item = (await stage.http.get(f"/queues/{stage.name}/items/{again['id']}")).json()
    assert (item["saved"], item["steps"]) == ({"page": 12}, {})
    await stage.http.post(f"/claims/{again['claim']}/ack")
