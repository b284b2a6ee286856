"""Work with items from the page: find them, look at them, change them; over HTTP, against real servers."""

from __future__ import annotations

import html
import re
from base64 import b64encode
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any
from urllib.parse import urlencode

import pytest

import zkrq
from tests.harness import in_process, new_namespace, settled, take
from tests.integration.page_stage import Stage, staged
from tests.serving import refused, serving
from zkrq import RAW, local
from zkrq.coordination.memory import Hub

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def stage(shared_servers: local.Servers) -> AsyncGenerator[Stage]:
    async with staged(shared_servers) as stage:
        yield stage


async def page(stage: Stage, path: str, status: int = 200) -> str:
    """The text of a page, without its marks."""
    reply = await stage.http.client.get(path)
    assert reply.status_code == status
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", reply.text)).split())


async def test_each_state_has_its_items(stage: Stage) -> None:
    queue = stage.cluster.queue("states")
    await queue.push({"n": 1}, id="held")
    claim = await take(queue)
    await queue.push({"n": 2}, id="waiting")
    await queue.push({"n": 3}, id="planned", delay=3600)
    assert "waiting" in await page(stage, "/queues/states")
    planned = await page(stage, "/queues/states?tab=scheduled")
    assert re.search(r'planned Run now (59|60) min, at [-0-9: ]+ UTC 0 {"n":3}', planned)
    assert "waiting" not in planned
    held = await page(stage, "/queues/states?tab=claimed")
    assert re.search(r'held worker <1> [\d.]+ m?s [\d.]+ m?s 1 {"n":1}', held)
    assert "waiting" in await page(stage, "/queues/states?tab=<script>")
    await claim.ack()


async def test_a_queue_opens_where_it_has_items(stage: Stage) -> None:
    queue = stage.cluster.queue("planned-only")
    await queue.push(1, id="next-year", delay=3600)

    async def shown() -> bool:
        return "next-year" in await page(stage, "/queues/planned-only")

    await settled(shown)


async def test_more_items_are_shown_on_demand(stage: Stage) -> None:
    queue = stage.cluster.queue("many")
    await queue.push_many(range(60), delay=60)
    first = await page(stage, "/queues/many?tab=scheduled")
    assert "The first 50 of 60. Show up to 500" in first
    assert "The first" not in await page(stage, "/queues/many?tab=scheduled&count=500")


async def test_an_item_tells_all_that_is_known(stage: Stage) -> None:
    queue = stage.cluster.queue("told")
    await queue.push({"customer": "acme", "sum": 1.10}, id="a/b?c", key="order-1", headers={"traceparent": "00-x"})
    text = await page(stage, "/queues/told/item?id=a%2Fb%3Fc")
    for told in ("ready in told", "under the key order-1", "traceparent 00-x", '"customer": "acme"', '"sum": 1.1'):
        assert told in text
    claim = await take(queue)

    async def is_known() -> bool:
        """Whether the page has looked at the consumers since."""
        return "it has just come" not in await page(stage, "/queues/told/item?id=a%2Fb%3Fc")

    await settled(is_known)
    text = await page(stage, "/queues/told/item?id=a%2Fb%3Fc")
    assert re.search(r"Worked on by worker <1> for [\d.]+ m?s\. The claim ends in", text)
    assert "Delivered 1 time; none of these failed." in text
    owner = re.search(r'href="/consumers/([^"]+)"', (await stage.http.client.get("/queues/told?tab=claimed")).text)
    assert owner
    assert re.search(
        r"worker <1> zkrq [\d.]+ on .*, here since .* Session .* told .* a/b\?c",
        await page(stage, f"/consumers/{owner[1]}"),
    )
    assert "Saved" not in text
    await claim.save("half of it")
    await claim.step("<charge>", lambda: "paid")
    await claim.nack(reason="no answer", delay=3600)
    text = await page(stage, "/queues/told/item?id=a%2Fb%3Fc")
    saved = "given to each further delivery; steps done: <charge>."
    assert re.search(r"The last failure: no answer [\d:]+ UTC on worker <1> after [\d.]+ m?s ", text)
    for told in ("scheduled in told", "1 of these failed", "Saved: 33 bytes", saved):
        assert told in text
    await page(stage, "/queues/told/item?id=unheard-of", 404)
    await page(stage, "/queues/told/item?id=%20", 404)
    await page(stage, "/queues/told/item", 404)
    await page(stage, "/queues/unheard-of/item?id=x", 404)
    await page(stage, "/consumers/unheard-of", 404)


async def test_bytes_are_shown_in_hexadecimal(stage: Stage) -> None:
    queue = stage.cluster.queue("binary", codec=RAW)
    await queue.push(b"\x00\xff<b>", id="bytes")
    assert "000000 00 ff 3c 62 3e ..<b>" in await page(stage, "/queues/binary/item?id=bytes")
    await queue.push(b"text", id="text")
    text = await page(stage, "/queues/binary/item?id=text")
    assert "4 bytes, text" in text
    assert "74 65 78 74" in await page(stage, "/queues/binary/item?id=text&as=hex")


async def test_items_are_found_by_id_key_and_text(stage: Stage) -> None:
    queue = stage.cluster.queue("sought")
    await queue.push({"name": "Ann"}, id="order-1", key="mail:ann")
    await queue.push({"name": "Bob"}, id="order-2", delay=60, task="welcome")
    await stage.bury("sought-dead", {"name": "Eve"}, "no route to host")
    for query, found in (
        ("text=order-2", "Scheduled, with this id or key: order-2 0 items found."),
        ("text=mail:ann", "Ready, with this id or key: order-1"),
        ("text=BOB", "Items 1 to 1, which are all."),
        ("text=bob&state=ready", "0 items found."),
        ("task=welcome", "Items 1 to 1, which are all."),
        ("id_prefix=order-", "Items 1 to 2, which are all."),
        ("until=2001-01-01T00:00:00", "0 items found."),
        ("since=2001-01-01T00:00&key=mail:ann", "order-1 key mail:ann ready"),
        ("", "Items 1 to 2, which are all."),
    ):
        assert found in await page(stage, f"/queues/sought/find?{query}"), query
    for query, wrong in (
        ("header=x", "'x' must be a name, '=' and a text"),
        ("since=soon", "'soon' must be a moment"),
        ("state=lost", "state is 'lost'"),
        ("text=x&after=nonsense", "after is 'nonsense'"),
    ):
        assert wrong in await page(stage, f"/queues/sought/find?{query}", 400)
    assert "0 items found" in await page(stage, "/queues/sought/find?text=%3Cscript%3E")
    assert "no route to host" in await page(stage, "/queues/sought-dead/find?error=ROUTE")
    await page(stage, "/queues/unheard-of/find?text=x", 404)
    async with stage.http.client.stream("GET", "/live"):
        pass

    async def everywhere() -> bool:
        return "order-2 , scheduled in sought" in await page(stage, "/find?text=order-2")

    await settled(everywhere)
    assert "has an item with this id" in await page(stage, "/find?text=unheard-of")


async def test_a_search_goes_on_until_its_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little a page reads, each item is on one of them, and the last one says that it is."""
    monkeypatch.setattr("zkrq.serve.searching.FOUND_SHOWN", 7)
    monkeypatch.setattr("zkrq.serve.searching.SEARCH_SECONDS", 0.0)
    monkeypatch.setattr("zkrq.client.finding.CALLS_MAX", 1)
    queue = stage.cluster.queue("long")
    await queue.push_many(range(30), headers={"campaign": "autumn"})
    wanted = {(await queue.push(number, headers={"campaign": "spring"})).id for number in range(60)}
    path, seen, texts = "/queues/long/find?header=campaign%3Dspring", list[str](), list[str]()
    while path:
        text = (await stage.http.client.get(path)).text
        rows = re.search(r'<table id="found">(.*?)</table>', text, re.DOTALL)
        seen += re.findall(r"item\?id=([^\"]+)", rows[1]) if rows else []
        texts += re.findall(r'<p id="range">([^<]*)', text)
        assert ('hx-trigger="load"' in text) == (rows is None and "next-found" in text), "it goes on by itself"
        follow = re.search(r'id="next-found" href="([^"]+)"', text)
        path = html.unescape(follow[1]) if follow else ""
    assert sorted(seen) == sorted(wanted)
    assert len(texts) > 60 / 7
    assert texts[0] in ("Items 1 to 7.", "0 items found so far.")
    assert re.fullmatch(r"60 items found, all on the pages before\.|Items \d+ to 60(, which are all)?\.", texts[-1])


async def test_few_searches_are_made_at_one_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zkrq.serve.contents.SEARCHES_MAX", 0)
    await stage.bury("busy", 1, "broken")
    assert "searches are made already" in await page(stage, "/queues/busy/find?text=x", 503)
    assert "searches are made already" in await page(stage, "/queues/busy?tab=dead&error=x")
    form = {"by": "reason", "group": "broken", "error": "x"}
    assert (await stage.http.client.post("/queues/busy/redrive", data=form)).status_code == 503
    assert "broken" in await page(stage, "/queues/busy?tab=dead")


async def test_letters_of_one_reason_are_redriven_and_the_others_stay(stage: Stage) -> None:
    """From the group's button over the question to the line that says what was done."""
    queue = stage.cluster.queue("reasons")
    for number in range(4):
        await stage.bury("reasons", {"customer": "acme" if number else "globex"}, f"late by {number + 3} s")
    await stage.bury("reasons", {"customer": "globex"}, "no price")
    text = await page(stage, "/queues/reasons?tab=dead")
    assert re.search(r"late by … s 4 .* no price 1 ", text)
    assert re.search(r"globex 2 .*", await page(stage, "/queues/reasons?tab=dead&by=field+customer"))
    chosen = await page(stage, "/queues/reasons?tab=dead&group=no+price")
    assert "Dead letters of “no price”" in chosen
    assert "late by 3 s" not in chosen

    post = partial(stage.http.client.post, "/queues/reasons/redrive")
    asked = (await post(data={"by": "reason", "group": "late by … s"})).text
    assert "Redrive 4 dead letters of “late by … s”?" in asked
    assert (await queue.size()).dead == 5
    await stage.bury("reasons", 9, "late by 9 s")  # after the question: it was not counted, so it stays
    form = {
        "id": re.findall(r'name="id" value="([^"]*)"', asked),
        **dict(re.findall(r'name="(by|group|confirmed)" value="([^"]*)"', asked)),
    }
    reply = await post(data=form)
    assert reply.status_code == 303
    assert "4 dead letters of reasons redriven." in await page(stage, reply.headers["location"])
    assert await queue.size() == (4, 0, 0, 2)
    assert (await post(data={"by": "reason", "group": "unheard of"})).status_code == 400


async def test_all_letters_are_reached_page_by_page_and_by_their_reason(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are; what is done with a group concerns the page on which it was shown."""
    monkeypatch.setattr("zkrq.serve.failing.ITEMS_MOST", 3)
    for number in range(7):
        await stage.bury("endless", number, "no price" if number % 2 else "no answer")
    path, seen = "/queues/endless?tab=dead", list[str]()
    text = (await stage.http.client.get(path)).text
    assert "Sorted here are the 3 oldest of 7" in text
    follow = re.search(r'id="paged-letters" href="([^"]+)"', text)
    while follow:
        path = html.unescape(follow[1])
        text = (await stage.http.client.get(path)).text
        assert "hx-sse:connect" not in text
        seen += re.findall(r'<tr id="letter-([^"]+)"', text)
        follow = re.search(r'id="next-letters" href="([^"]+)"', text)
    queue = stage.cluster.queue("endless")
    assert seen == [item.id for item in await queue.dead_letters(10)]

    monkeypatch.setattr("zkrq.serve.failing.ITEMS_MOST", 100)
    text = await page(stage, "/queues/endless?tab=dead&error=ANSWER")
    assert "Shown are 4 dead letters whose reason contains “ANSWER”, of 7" in text
    assert "no price" not in text
    assert "Redrive all" not in text  # it would be of others, too
    form = {"by": "field of none", "group": "", "error": "ANSWER"}
    asked = (await stage.http.client.post("/queues/endless/redrive", data=form)).text
    assert "Redrive 4 dead letters of “none”?" in asked
    assert 'name="error" value="ANSWER"' in asked
    for nonsense in ("after=nonsense", f"error={'%00'}"):
        assert "All dead letters" in await page(stage, f"/queues/endless?tab=dead&{nonsense}")


async def test_one_letter_is_retried_without_a_question(stage: Stage) -> None:
    id = await stage.bury("single", 1, "broken")
    reply = await stage.http.client.post("/queues/single/redrive", data={"id": id})
    assert reply.headers["location"].startswith(f"/queues/single/item?id={id}&done=redrive")
    assert "1 dead letter of single redriven." in await page(stage, reply.headers["location"])


async def test_a_letter_is_edited_and_sent_again(stage: Stage) -> None:
    queue = stage.cluster.queue("edited")
    await queue.push({"sum": 1}, id="a/b")
    await (await take(queue)).bury("no such sum")
    assert "Edit and redrive" in await page(stage, "/queues/edited/item?id=a%2Fb")
    form = await page(stage, "/queues/edited/edit?id=a%2Fb")
    assert '{ "sum": 1 }' in form
    post = partial(stage.http.client.post, "/queues/edited/edit")
    reply = await post(data={"id": "a/b", "item": '\n{"sum": <2>}'})
    assert reply.status_code == 400
    text = html.unescape(reply.text)
    assert "this is not JSON: Expecting value: line 2 column 9" in text
    assert '{"sum": <2>}\n--------^</pre>' in text
    assert 'aria-describedby="trouble" autofocus>\n\n{"sum": <2>}</textarea>' in text, "nothing that was typed is lost"
    reply = await post(data={"id": "a/b", "item": '{\r\n  "sum": 1.10\r\n}'})
    assert reply.status_code == 303
    text = await page(stage, reply.headers["location"])
    assert "The item is redriven, with its new content." in text
    assert re.search(r"Edited [\d:]+ UTC by unnamed \(operate\), on the page\.", text)
    item = await queue.get("a/b")
    assert item
    assert (item.payload, item.state) == (b'{"sum":1.10}', "ready")
    reply = await post(data={"id": "a/b", "item": "1"})
    assert reply.status_code == 409
    assert "The item is not redriven: it is no dead letter" in reply.text
    assert "\n1</textarea>" in reply.text
    await page(stage, "/queues/edited/edit?id=a%2Fb", 404)  # it is no dead letter now
    await page(stage, "/queues/edited/edit?id=%20", 404)
    raw = stage.cluster.queue("edited-bytes", codec=RAW)
    await raw.push(b"\xff", id="bytes")
    await (await take(raw)).bury("no text")
    assert "Only JSON" in await page(stage, "/queues/edited-bytes/edit?id=bytes", 400)


async def test_an_item_is_cancelled_after_a_question(stage: Stage) -> None:
    queue = stage.cluster.queue("cancelled")
    post = partial(stage.http.client.post, "/queues/cancelled/cancel")
    await queue.push(1, id="ready")
    await queue.push(2, id="held", priority=9)
    claim = await take(queue)
    assert "Cancel this item? This cannot be undone." in (await post(data={"id": "ready"})).text
    assert (await queue.size()).ready == 1
    for id, told in (("ready", "The item is cancelled."), ("held", "told to stop"), ("ready", "No item has that id")):
        reply = await post(data={"id": id, "confirmed": "yes"})
        assert told in await page(stage, reply.headers["location"])
    assert await queue.size() == (0, 0, 0, 0)
    assert (await post()).status_code == 400  # of no item in particular
    del claim


async def test_nothing_is_changed_where_nothing_may_be(shared_servers: local.Servers) -> None:
    """No button is shown, and no form is accepted."""
    hub, namespace = Hub(), new_namespace()
    async with (
        in_process(shared_servers, namespace, hub) as cluster,
        serving(in_process(shared_servers, namespace, hub), read_only=True) as http,
    ):
        id = await Stage(http, cluster).bury("orders", 1, "broken")
        for path in ("/queues/orders?tab=dead", f"/queues/orders/item?id={id}", "/"):
            text = (await http.client.get(path)).text
            assert "<button class=" not in text
            assert 'method="post"' not in text
        for verb in ("redrive", "discard", "cancel"):
            reply = await http.client.post(f"/queues/orders/{verb}", data={"id": id, "confirmed": "yes"})
            assert reply.status_code == 403
        assert (await cluster.queue("orders").size()).dead == 1


async def test_a_form_with_too_many_fields_changes_nothing(stage: Stage) -> None:
    id = await stage.bury("fields", 1, "broken")
    form = {"id": [id] * 2001, "confirmed": "yes"}
    assert (await stage.http.client.post("/queues/fields/discard", data=form)).status_code == 400
    assert (await stage.cluster.queue("fields").size()).dead == 1


async def test_a_lone_surrogate_takes_no_page_down(stage: Stage) -> None:
    """JSON can write one as an escape, in a name and in a value; the page shows the escape."""
    queue = stage.cluster.queue("halves", codec=RAW)
    for payload in (b'{"\\ud800": 1}', b'{"user": "\\ud800"}', b'"\\ud800"'):
        await queue.push(payload)
        await (await take(queue)).bury("broken")
    assert r'{"user": "\ud800"}' in await page(stage, "/queues/halves?tab=dead")
    for by, value in (("field user", r"\ud800"), (r"field \ud800", "1")):
        shown = await page(stage, f"/queues/halves?{urlencode({'tab': 'dead', 'by': by})}")
        assert value in shown
        form = {"by": by, "group": value, "confirmed": "yes"}
        assert (await stage.http.client.post("/queues/halves/redrive", data=form)).status_code == 303
    assert (await queue.size()).dead == 1
    assert (await stage.http.get("/queues/halves/dead")).json()["items"][0]["item"] == "\ud800"
    body = {"when": 3600, "base64": b64encode(b'{"a": "\\ud800"}').decode()}
    put = await stage.http.client.put("/v1/queues/halves/schedules/half", json=body)
    assert put.json()["item"] == (await stage.http.get("/schedules")).json()["schedules"][0]["item"] == {"a": "\ud800"}


async def test_what_is_wrong_in_a_request_is_an_error_of_the_request(stage: Stage) -> None:
    too_many = {f"field{number}": "x" for number in range(11)}
    for verb in ("pause", "resume", "remove"):
        for form in (too_many, {"queue": "a b", "name": "x"}, {"queue": "q", "name": " "}, {}):
            assert (await stage.http.client.post(f"/schedules/{verb}", data=form)).status_code == 400, (verb, form)
    reply = await stage.http.post("/queues/q/push", {"item": 1, "id": "zkrq-mine"})
    assert "only ids that zkrq makes begin with" in await refused(reply, 400, "BadRequest")
    reply = await stage.http.post("/queues/q/push-many", {"items": [{"item": 1}, {"item": 1, "id": "zkrq-mine"}]})
    assert "body.items.1.id" in await refused(reply, 400, "BadRequest")
    sent: dict[str, Any] = {
        "content": rb'{"item": {"text": "\ud83d"}}',
        "headers": {"Content-Type": "application/json"},
    }
    reply = await stage.http.client.post("/v1/queues/q/push", **sent)
    assert "(at ['text'])" in await refused(reply, 400, "CodecError")


async def test_a_cookie_lets_nobody_in_after_logging_out(shared_servers: local.Servers) -> None:
    token = "a-long-random-text-that-nobody-guesses"
    async with serving(in_process(shared_servers, new_namespace(), Hub()), tokens=(token,)) as http:
        (first, second) = [(await http.client.post("/login", data={"token": token})).cookies for _ in range(2)]
        http.client.cookies.clear()
        cookies = [{"Cookie": f"zkrq-session={each['zkrq-session']}"} for each in (first, second)]
        assert [(await http.client.get("/v1/queues", headers=each)).status_code for each in cookies] == [200, 200]
        assert (await http.client.post("/logout", headers=cookies[0])).status_code == 303
        assert [(await http.client.get("/v1/queues", headers=each)).status_code for each in cookies] == [401, 200]


async def test_the_table_of_queues_is_sorted_filtered_and_streamed(stage: Stage) -> None:
    await stage.cluster.queue("table-a").push_many(range(3))
    await stage.cluster.queue("table-b").push_many(range(7))

    async def order(query: str) -> list[str]:
        text = (await stage.http.client.get(f"/{query}")).text
        return re.findall(r'<tr id="queue-(table-[^"]*)"', text)

    async def both() -> bool:
        return len(await order("?text=table-")) == 2

    await settled(both)
    assert await order("?text=TABLE-&sort=ready") == ["table-b", "table-a"]
    assert await order("?text=table-&sort=ready&order=up") == ["table-a", "table-b"]
    assert await order("?text=table-a") == ["table-a"]
    assert "2 queues 10 0 0 0" in await page(stage, "/?text=table-")
    text = (await stage.http.client.get("/?text=table-&sort=ready")).text
    assert 'hx-sse:connect="/live?sort=ready&amp;order=down&amp;text=table-"' in text
    assert 'aria-sort="descending"' in text


async def test_what_has_ended_last_is_told_with_its_result(stage: Stage) -> None:
    await stage.cluster.queue("told").push(0, delay=3600)
    text = await page(stage, "/queues/told?tab=done")
    assert "This queue keeps no history" in text
    queue = stage.cluster.queue("ended", history=100, results=zkrq.Results())
    await queue.push(1, id="ended-1", key="user <7>")
    await (await take(queue)).ack(result={"sum": 42})
    await queue.push(2, id="ended-2")
    await queue.cancel("ended-2")

    async def names_the_worker() -> bool:  # consumers are looked up every few seconds
        return "worker <1>" in await page(stage, "/queues/ended?tab=done")

    await settled(names_the_worker)
    text = await page(stage, "/queues/ended?tab=done")
    assert "The last 2 items that ended, of up to 100 that are kept" in text
    assert re.search(
        r"ended-2 cancelled [\d:]+ UTC 0 ended-1 key user <7> done [\d:]+ UTC [\d.]+ m?s worker <1> 1", text
    )
    marked = (await stage.http.client.get("/queues/ended?tab=done")).text
    assert '<td class="short">done</td>' in marked, "beside a long group, a word of the table is not broken"
    assert '{ "sum": 42 }' in await page(stage, "/queues/ended/item?id=ended-1")
    assert "cancelled in ended" in await page(stage, "/queues/ended/item?id=ended-2")
    told = (await stage.http.client.get("/v1/queues/ended/history?limit=1")).json()
    assert (told["kept"], [item["id"] for item in told["items"]]) == (100, ["ended-2"])


async def test_largest_groups_are_told_and_which_claims_block_them(stage: Stage) -> None:
    await stage.cluster.queue("told").push(0, delay=3600)
    assert "No item that is ready or claimed is in a group." in await page(stage, "/queues/told?tab=groups")
    queue = stage.cluster.queue("tenants", groups=zkrq.Groups(concurrency=1))
    for number in range(3):
        await queue.push(number, group="tenant <7>", id=f"tenant-{number}")
    claim = await take(queue)
    blocked = r"tenant <7> 2 1 [\d.]+ m?s ago blocked by its claims tenant-\d by worker <1> for [\d.]+ m?s"

    async def is_told() -> bool:
        """Whether the page has looked at the consumers since, too."""
        return bool(re.search(blocked, await page(stage, "/queues/tenants?tab=groups")))

    await settled(is_told)
    text = await page(stage, "/queues/tenants?tab=groups")
    assert "1 group; 0 in line, 1 blocked (1 at once in each group)" in text
    (group,) = (await stage.http.client.get("/v1/queues/tenants/groups")).json()["groups"]
    assert (group["name"], group["waiting"], group["standing"]) == ("tenant <7>", 2, "blocked")
    item = (await stage.http.client.get(f"/v1/queues/tenants/items/{claim.id}")).json()
    assert item["held_for"] >= 0
    await claim.ack()
    await stage.cluster.queue("rated", groups=zkrq.Groups(concurrency=2, rate=(1, 3600))).push_many([1, 2], group="a")
    await (await take(stage.cluster.queue("rated"))).ack()
    assert re.search(r"a 1 0 [\d.]+ m?s ago blocked by its rate", await page(stage, "/queues/rated?tab=groups"))
