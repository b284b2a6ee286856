"""Flows over HTTP."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.harness import HANG, settled, take
from tests.integration.api_stage import Stage

pytestmark = pytest.mark.anyio


def told_of(told: dict[str, Any]) -> tuple[str, int, int, int]:
    return told["state"], told["left"], told["dead"], told["missed"]


async def test_a_member_waits_for_others_over_http(stage: Stage) -> None:
    path = f"/flows/{stage.name}/order-7"
    await stage.http.client.put(f"/v1{path}")
    for name in ("price", "stock"):
        await stage.http.post(f"{path}/push", {"item": name, "name": name})
    ship = {"item": "ship", "after": ["price", "stock"]}
    assert (await stage.http.post(f"{path}/push", ship)).json()["new"]
    refused = await stage.http.post(f"{path}/push", {"item": "ship", "after": ["weight"]})
    assert (refused.status_code, refused.json()["happened"]) == (400, "nothing")
    assert "has no such member" in refused.text
    late = await stage.http.post(f"{path}/then", {"item": "report", "at": "2100-01-01T00:00:00Z"})
    assert (late.status_code, late.json()["happened"]) == (400, "nothing")
    await stage.http.post(f"{path}/seal")
    first = [await stage.http.claim(stage.name) for _ in range(2)]
    assert {claim["item"] for claim in first} == {"price", "stock"}
    for claim in first:
        await stage.http.post(f"/claims/{claim['claim']}/ack")
    last = await stage.http.claim(stage.name)
    assert last["item"] == "ship"
    await stage.http.post(f"/claims/{last['claim']}/ack")


async def test_a_flow_over_http(stage: Stage) -> None:
    path, reports = f"/flows/{stage.name}/import-7", stage.cluster.queue(f"{stage.name}-reports")
    get = f"/v1{path}"
    assert (await stage.http.client.get(get)).json()["state"] == "unknown"
    assert (await stage.http.post(f"{path}/push", {"item": 1})).status_code == 409
    begun = (await stage.http.client.put(get, json={"keep": 60})).json()
    assert told_of(begun) == ("open", 0, 0, 0)
    assert (await stage.http.post(f"{path}/push", {"item": 0, "priority": 3})).json()["new"]
    for is_new in (True, False):  # repeatable while the flow runs
        told = (await stage.http.post(f"{path}/push", {"item": 1, "priority": 3, "name": "row"})).json()
        assert (told["id"], told["new"]) == ("import-7.row", is_new)
    refused = await stage.http.post(f"{path}/push", {"item": 1, "name": "row", "id": "own"})
    assert (refused.status_code, refused.json()["happened"]) == (400, "nothing")
    then = (await stage.http.post(f"{path}/then", {"item": "report", "into": reports.name})).json()
    assert (await stage.http.post(f"{path}/then", {"item": "sorry", "when": "never"})).status_code == 400
    listed = (await stage.http.client.get("/v1/flows", params={"state": "open"})).json()["flows"]
    assert (stage.name, "import-7") in [(each["queue"], each["name"]) for each in listed]
    assert told_of((await stage.http.post(f"{path}/seal")).json())[:2] == ("running", 2)
    first = await stage.http.claim(stage.name)
    assert first["priority"] == 3
    await stage.http.post(f"/claims/{first['claim']}/bury", {"reason": "no such row"})
    second = await stage.http.claim(stage.name)
    await stage.http.post(f"/claims/{second['claim']}/ack")

    async def is_held_up() -> bool:
        told = (await stage.http.client.get(get)).json()
        return (told["held_up"], told["ids"]["dead"]) == ("1 dead letter", [first["id"]])

    await settled(is_held_up)
    assert (await stage.http.post(f"{path}/redrive")).json() == {"redriven": 1}
    again = await stage.http.claim(stage.name)
    assert again["id"] == first["id"]
    await stage.http.post(f"/claims/{again['claim']}/ack")
    claim = await take(reports)
    assert (claim.id, claim.item) == (then["id"], "report")
    await claim.ack()
    ended = (await stage.http.client.get(get)).json()
    assert (ended["state"], ended["done"], ended["held_up"]) == ("done", 2, None)
    refused = await stage.http.client.put(get)
    assert (refused.status_code, refused.json()["error"]) == (409, "FlowEnded")


async def test_a_flow_is_cancelled_or_finished_over_http(stage: Stage) -> None:
    for verb, state in (("cancel", "cancelled"), ("finish", "done")):
        path = f"/flows/{stage.name}/{verb}-it"
        await stage.http.client.put(f"/v1{path}")
        await stage.http.post(f"{path}/push", {"item": 1})
        assert (await stage.http.post(f"{path}/{verb}")).json()["state"] == state
        assert (await stage.http.client.get(f"/v1{path}")).json()["state"] == state
        assert (await stage.http.post(f"{path}/push", {"item": 1})).status_code == 409
    for wrong in ("a/b", "x" * 65):
        assert (await stage.http.client.get(f"/v1/flows/{stage.name}/{wrong}")).status_code in (400, 404)


async def test_flows_are_listed_page_by_page(stage: Stage) -> None:
    """Also those that have ended, over HTTP and on the page."""
    names = [f"{stage.name[-20:]}-{number}" for number in range(5)]
    for name in names:
        async with stage.queue.flow(name) as flow:
            pass
        assert (await flow.result(timeout=HANG)).state == "done"
    found, after = list[str](), None
    while True:
        params: dict[str, Any] = {"state": "done", "limit": 2, **({"after": after} if after else {})}
        told = (await stage.http.client.get("/v1/flows", params=params)).json()
        assert len(told["flows"]) <= 2
        found += [each["name"] for each in told["flows"] if each["queue"] == stage.name]
        after = told["next"]
        if after is None:
            break
    assert found == names
    assert (await stage.http.client.get("/v1/flows", params={"after": "nowhere"})).status_code == 400
    assert (await stage.http.client.get("/v1/flows", params={"state": "over"})).status_code in (400, 422)
    client, seen, path = stage.http.client, list[str](), "/flows?state=done"
    for _ in range(100):
        page = (await client.get(path)).text
        assert 'href="/flows?state=done" aria-current="true"' in page
        seen += [name for name in names if f'<a href="/flows/{stage.name}/{name}">' in page]
        further = re.search('<a href="(/flows[^"]*after=[^"]*)">Show the next ones</a>', page)
        if not further:
            break
        path = further[1].replace("&amp;", "&")
    assert sorted(seen) == names
    assert (await client.get("/flows?after=nowhere")).status_code == 400
    assert (await client.get("/flows?state=over")).status_code == 200


async def test_the_pages_of_flows(stage: Stage) -> None:
    client, name = stage.http.client, "<nightly>"
    assert (await client.get(f"/flows/{stage.name}/%3Cnightly%3E")).status_code == 404, "no name of a flow"
    name = "nightly"
    others = stage.cluster.queue(f"{stage.name}-others")
    async with stage.queue.flow(name) as flow:
        bad = await flow.push("bad", queue=others)
        left = await flow.push("left")
    await (await take(others)).bury("<no> such row")
    path = f"/flows/{stage.name}/{name}"
    page = (await client.get("/flows")).text
    assert f'<a href="{path}">{name}</a>' in page
    assert 'aria-label="1 left, 1 dead"' in page
    page = (await client.get(path)).text
    assert "&lt;no&gt; such row" in page
    assert f"/queues/{stage.name}/item?id={left.id}" in page
    assert f"/queues/{others.name}/item?id={bad.id}" in page
    assert "held up" not in page, "a member is left"
    await (await take(stage.queue)).ack()

    async def is_held_up() -> bool:
        return "It is held up by 1 dead letter" in (await client.get(path)).text

    await settled(is_held_up)
    assert "held up by 1 dead letter" in (await client.get("/flows")).text
    reply = await client.post(f"{path}/redrive", follow_redirects=True)
    assert "The dead letters of nightly are redriven." in reply.text
    assert (await others.size()).ready == 1
    assert (await take(others)).id == bad.id
    asked = await client.post(f"{path}/finish")
    assert "End this flow as done, without 1 member?" in asked.text
    assert not (await flow.status()).state.has_ended
    reply = await client.post(f"{path}/finish", data={"confirmed": "yes"}, follow_redirects=True)
    assert "nightly has ended as done." in reply.text
    assert "<button" not in reply.text.partition("</header>")[2], "nothing is to be done about it any more"
    other = await stage.queue.flow("other").begin()
    assert "Cancel this flow?" in (await client.post(f"/flows/{stage.name}/other/cancel")).text
    await client.post(f"/flows/{stage.name}/other/cancel", data={"confirmed": "yes"})
    assert (await other.status()).state.value == "cancelled"
    assert (await client.post(f"{path}/nothing")).status_code == 404
    assert (await client.post(f"{path}/redrive", content=b"&".join([b"a=b"] * 99))).status_code == 400
