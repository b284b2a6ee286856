"""The HTTP API over real servers: figures of queues, their limits and groups, schedules, items that are looked for."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import zkrq
import zkrq.testing
from tests.harness import HANG, settled, take, until
from tests.integration.api_stage import Stage
from tests.serving import refused, serving
from zkrq.client.cursors import Cursor
from zkrq.client.inner import client_of
from zkrq.client.timetable import Key
from zkrq.protocol.recurring import Progress

pytestmark = pytest.mark.anyio


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


async def test_a_pause_over_http_may_end_by_itself(stage: Stage) -> None:
    client, path = stage.http.client, f"/v1{stage.path}"
    until = (datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)).isoformat()
    assert (await client.post(f"{path}/pause", json={"until": until})).json() == {"paused": True}
    assert (await client.get(path)).json()["paused_until"] == until
    assert (await client.post(f"{path}/pause", json={"seconds": 60})).json() == {"paused": True}
    assert (await client.get(path)).json()["paused_until"] < until
    for wrong in ({"until": "2020-01-31T07:00:00Z"}, {"seconds": 0}, {"seconds": 1, "until": until}, {"until": "soon"}):
        await refused(await client.post(f"{path}/pause", json=wrong), 400, "BadRequest")
    assert (await client.post(f"{path}/pause")).json() == {"paused": True}
    told = (await client.get(path)).json()
    assert (told["paused"], told["paused_until"]) == (True, None)
    await stage.queue.resume()


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


NONE: dict[str, Any] = {"concurrency": None, "rate": None, "seconds": None}
NO_SETTINGS: dict[str, Any] = {
    "limits": NONE,
    "groups": {**NONE, "ordered": False, "named": {}},
    "history": 0,
    "max_size": None,
    "dead_letters": {"max_count": 100_000, "max_age": None, "expired": False},
    "results_ttl": None,
}


async def test_a_queue_is_limited(stage: Stage) -> None:
    path, client = f"/v1/queues/{stage.name}/settings", stage.http.client
    assert (await client.get(path)).json() == NO_SETTINGS
    await stage.queue.push_many([1, 2])
    limits = {"concurrency": 1, "rate": 50, "seconds": 2.0}
    response = await client.patch(path, json={"limits": limits})
    assert (response.status_code, response.json()) == (200, {**NO_SETTINGS, "limits": limits})
    assert (await client.get(path)).json() == {**NO_SETTINGS, "limits": limits}
    await stage.claim()
    assert (await stage.http.post(f"/queues/{stage.name}/claim", {})).json() == {"claims": []}
    figures = (await client.get(f"/v1{stage.path}")).json()
    assert figures["limited"] == "limited: 1 of 1 claimed"
    for wrong in (
        *({"concurrency": 0}, {"concurrency": True}, {"rate": 1, "seconds": 4000}, {"rate": -1}, {"more": 1}),
        *({"concurrency": 1_000_001}, {"rate": 1_000_001}),
    ):
        for section in ("limits", "groups"):
            assert (await client.patch(path, json={section: wrong})).status_code == 400
    reply = await client.patch(path, json={"limits": {"seconds": 5}})
    said = "body.limits: seconds is the time of a rate: give rate too, or null to remove it"
    assert (reply.status_code, reply.json()["message"]) == (400, said)
    assert (await client.get(path)).json() == {**NO_SETTINGS, "limits": limits}
    changed = (await client.patch(path, json={"limits": {"concurrency": 3}})).json()
    assert changed["limits"] == {**limits, "concurrency": 3}, "what is not named stays"
    changed = (await client.patch(path, json={"limits": {"rate": 7}})).json()
    assert changed["limits"] == {"concurrency": 3, "rate": 7, "seconds": 1.0}
    assert (await client.patch(path, json={"limits": {"rate": None}})).json()["limits"] == {**NONE, "concurrency": 3}
    assert (await client.patch(path, json={"limits": None})).json() == NO_SETTINGS


async def test_groups_of_a_queue_are_limited(stage: Stage) -> None:
    path, client = f"/v1/queues/{stage.name}/settings", stage.http.client
    await client.patch(path, json={"limits": {"concurrency": 7}})
    every: tuple[dict[str, Any], ...] = (
        {"concurrency": 2, "ordered": False, "rate": 5, "seconds": 2.5, "named": {}},
        {"concurrency": None, "ordered": True, "rate": None, "seconds": None, "named": {}},
        {"concurrency": None, "ordered": True, "rate": 9, "seconds": 1.0, "named": {}},
    )
    expected: dict[str, Any] = {}
    for groups in every:
        response = await client.patch(path, json={"groups": groups})
        expected = {**NO_SETTINGS, "limits": {**NONE, "concurrency": 7}, "groups": groups}
        assert (response.status_code, response.json()) == (200, expected)
        assert (await client.get(path)).json() == expected
    for wrong in ({"rate": 0}, {"ordered": "yes"}, {"ordered": True, "concurrency": 2}, {"rate": 1, "seconds": 0}):
        assert (await client.patch(path, json={"groups": wrong})).status_code == 400
    assert (await client.patch(path, json={"groups": {"seconds": 5}})).status_code == 400
    refused = await client.patch(path, json={"max_size": 5, "groups": {"concurrency": 2}})
    assert (refused.status_code, refused.json()["error"]) == (400, "BadRequest"), "the order stays, and excludes it"
    assert "one item claimed at a time" in refused.json()["message"]
    assert (await client.get(path)).json() == expected, "nothing that was refused has changed anything"
    told = (await client.patch(path, json={"groups": {"ordered": False, "concurrency": 2}})).json()
    assert told["groups"] == {"concurrency": 2, "ordered": False, "rate": 9, "seconds": 1.0, "named": {}}
    told = (await client.patch(path, json={"groups": {"ordered": True}})).json()
    assert told["groups"] == every[-1], "an order takes the concurrency of groups away"
    assert (await client.patch(path, json={"groups": {"ordered": None}})).json()["groups"]["ordered"] is False
    own = {"digest": {"concurrency": 2, "rate": 9, "seconds": 1.0}, "ä/": {**NONE, "concurrency": None}}
    told = (await client.patch(path, json={"groups": {"named": own}})).json()
    assert told["groups"]["named"] == own
    assert (await client.patch(path, json=told)).json() == told, "what was read can be sent back"
    changes = {"digest": {"rate": None}, "ä/": None, "w": {}}
    told = (await client.patch(path, json={"groups": {"named": changes}})).json()
    assert told["groups"]["named"] == {"digest": {**NONE, "concurrency": 2}, "w": {**NONE, "concurrency": None}}
    unfit: tuple[Any, ...] = ({"a": {"rate": 0}}, {"a": {"size": 5}}, {"a": 5}, {"": {}}, {"a" * 201: {}}, ["a"])
    for named in unfit:
        assert (await client.patch(path, json={"groups": {"named": named}})).status_code == 400, named
    assert (await client.patch(path, json={"groups": {"named": None}})).json()["groups"]["named"] == {}
    assert (await client.patch(path, json={"groups": None})).json()["groups"] == NO_SETTINGS["groups"]
    assert (await client.get(path)).json()["limits"]["concurrency"] == 7, "what is not named stays"


async def test_a_queue_has_a_history_and_a_size(stage: Stage) -> None:
    path, client = f"/v1/queues/{stage.name}/settings", stage.http.client
    settings = {**NO_SETTINGS, "history": 5, "max_size": 1}
    assert (await client.patch(path, json={"history": 5, "max_size": 1})).json() == settings
    await stage.push(1)
    assert (await stage.http.post(f"{stage.path}/push", {"item": 2})).status_code == 429
    for wrong in ({"history": -1}, {"history": 10_001}, {"max_size": 0}, {"max_size": True}, {"max_size": 1 << 60}):
        assert (await client.patch(path, json=wrong)).status_code == 400
    assert (await client.patch(path, json={})).json() == settings
    assert (await client.patch(path, json=settings)).json() == settings, "what was read can be sent back"
    assert (await client.patch(path, json={"max_size": None})).json() == {**NO_SETTINGS, "history": 5}
    assert (await client.patch(path, json={"history": None})).json() == NO_SETTINGS


async def test_a_queue_says_what_is_kept_of_it(stage: Stage) -> None:
    path, client = f"/v1/queues/{stage.name}/settings", stage.http.client
    letters = {"max_count": 1, "max_age": 60.0, "expired": True}
    settings = {**NO_SETTINGS, "dead_letters": letters, "results_ttl": 5.0}
    assert (await client.patch(path, json={"dead_letters": letters, "results_ttl": 5})).json() == settings
    assert (await client.patch(path, json=settings)).json() == settings, "what was read can be sent back"
    await stage.queue.push_many([1, 2])
    for held in await stage.queue.pop_many(2, timeout=HANG):
        await held.bury("bad")
    assert (await client.get(f"/v1{stage.path}")).json()["dead"] == 1
    for wrong in ({"max_count": 0}, {"max_age": -1}, {"expired": None}, {"max_count": 1.5}, {"more": 1}):
        assert (await client.patch(path, json={"dead_letters": wrong})).status_code == 400
    for ttl in (0.5, "long", 31 * 86400):
        assert (await client.patch(path, json={"results_ttl": ttl})).status_code == 400
    told = (await client.patch(path, json={"dead_letters": {"max_age": None}})).json()
    assert told["dead_letters"] == {**letters, "max_age": None}, "what is not named stays"
    assert (await client.patch(path, json={"dead_letters": None, "results_ttl": None})).json() == NO_SETTINGS


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
        "group": None,
        "headers": None,
        "key": None,
        "key_window": None,
        "ttl": None,
        "task": None,
        "paused": False,
        "declared": False,
        "last": None,
        "last_loss": None,
        "losses": 0,
    }
    paused = (await client.post(f"{path}/pause")).json()
    assert (paused["paused"], paused["next"]) == (True, None)
    changed = (await client.put(path, json={"when": 0.2, "base64": "/wA=", "group": "a", "headers": {"b": "c"}})).json()
    assert (changed["paused"], changed["base64"], changed["priority"]) == (True, "/wA=", 0)
    assert (changed["group"], changed["headers"]) == ("a", {"b": "c"})
    assert [each["name"] for each in (await client.get("/v1/schedules")).json()["schedules"]] == ["every night"]
    assert (await client.post(f"{path}/run-now")).json()["new"]
    assert (await stage.http.claim(stage.name))["group"] == "a", "paused as it is"
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
        {"when": 60, "item": 1, "key_window": 60},
        {"when": 60, "item": 1, "key": "k", "catch_up": 241},
        {"when": 60, "item": 1, "delay": 1},
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
    reply = await client.post("/schedules/run-now", data=fields, follow_redirects=True)
    assert "The item of &lt;night&gt; is pushed" in reply.text
    assert (await stage.queue.size()).ready == 1
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


async def test_a_dead_letter_is_edited(stage: Stage) -> None:
    path = f"/queues/{stage.name}/dead/a/b"
    assert (await stage.http.client.put(f"/v1{path}", json={"item": 2})).status_code == 404
    queue = stage.cluster.queue(stage.name)
    await queue.push(1, id="a/b")
    await (await take(queue)).bury("bad")
    reply = await stage.http.client.put(f"/v1{path}", json={"item": {"n": 2}})
    assert reply.json() == {"redriven": True}
    item = await queue.get("a/b")
    assert item
    assert item.edited
    assert (item.item, item.state, item.edited.by) == ({"n": 2}, "ready", "HTTP")
    assert (await stage.http.client.put(f"/v1{path}", json={"item": 3})).json() == {"redriven": False}
    assert (await stage.http.client.put(f"/v1{path}", json={})).status_code == 400


async def test_what_waits_is_advanced(stage: Stage) -> None:
    queue = stage.cluster.queue(stage.name)
    named = (await queue.push(1, delay=3600)).id
    for campaign in ("spring", "autumn"):
        await queue.push(campaign, delay=3600, headers={"campaign": campaign})
    path = f"/queues/{stage.name}/advance"
    assert (await stage.http.post(path, {"ids": [named, "nobody"]})).json() == {"advanced": 1, "missing": ["nobody"]}
    assert (await stage.http.post(path, {"header": "campaign=spring"})).json() == {"advanced": 1}
    wrong: list[dict[str, Any]] = [{}, {"ids": []}, {"ids": ["a"], "key": "b"}, {"header": "campaign"}]
    for body in wrong:
        assert (await stage.http.post(path, body)).status_code == 400
    assert await queue.size() == (2, 1, 0, 0)


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
    assert (await stage.http.post(redrive, {"ids": [ids[0], "x"]})).json() == {"redriven": 1, "missing": ["x"]}
    assert (await stage.http.post(redrive)).json() == {"redriven": 2}
    assert (await stage.http.client.get(dead)).json() == {"items": []}
    assert (await stage.http.client.get(dead, params={"count": 0})).status_code == 400
