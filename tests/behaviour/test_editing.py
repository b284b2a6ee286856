"""A dead letter with another content, queued again under its id."""

from __future__ import annotations

from typing import Any

import pytest

import zkrq
from tests.harness import take
from zkrq.base.saved import EDIT_BYTES
from zkrq.client.inner import client_of

pytestmark = pytest.mark.anyio


async def bury(queue: zkrq.Queue[Any], **options: Any) -> str:
    receipt = await queue.push({"to": "an"}, headers={"campaign": "spring"}, **options)
    await (await take(queue)).bury("no such address")
    return receipt.id


async def the_item(queue: zkrq.Queue[Any], id: str) -> zkrq.Item[Any]:
    item = await queue.get(id)
    assert item
    return item


async def test_every_delivery_has_the_new_content(queue: zkrq.Queue[Any]) -> None:
    id = await bury(queue)
    assert await queue.edit(id, {"to": "ann"}, by="bob")
    item = await the_item(queue, id)
    assert (item.item, item.payload, item.state, item.attempts) == ({"to": "ann"}, b'{"to":"ann"}', "ready", 0)
    assert item.edited
    assert (item.edited.by, item.saved_bytes) == ("bob", None)
    assert [each.reason for each in item.last_failures] == ["no such address"]
    for _ in range(2):
        claim = await take(queue)
        assert (claim.id, claim.item, claim.headers) == (id, {"to": "ann"}, {"campaign": "spring"})
        await claim.release()
    assert [each.item async for each in queue.scan()] == [{"to": "ann"}]
    claim = await take(queue)
    await claim.bury("once more")
    assert await queue.edit(id, {"to": "anna"})
    assert (await take(queue)).item == {"to": "anna"}
    edited = (await the_item(queue, id)).edited
    assert edited
    assert edited.by


async def test_what_was_saved_stays_and_goes_on(queue: zkrq.Queue[Any]) -> None:
    await queue.push(1, id="a")
    claim = await take(queue)
    await claim.save({"page": 12})
    await claim.step("charge", lambda: "paid")
    await claim.bury("bad")
    assert await queue.edit("a", 2, by="ann")
    claim = await take(queue)
    assert (claim.item, claim.saved) == (2, {"page": 12})
    await claim.step("send", lambda: "sent")
    await claim.release()
    claim = await take(queue)
    assert (claim.item, claim.saved) == (2, {"page": 12})
    item = await the_item(queue, "a")
    assert (item.item, item.saved, dict(item.steps)) == (2, {"page": 12}, {"charge": "paid", "send": "sent"})


async def test_only_dead_letters_are_edited(queue: zkrq.Queue[Any]) -> None:
    await queue.push(1, id="a")
    assert not await queue.edit("a", 2)
    assert not await queue.edit("unheard of", 2)
    item = await the_item(queue, "a")
    assert (item.item, item.edited) == (1, None)


async def test_a_letter_whose_key_is_taken_is_edited_and_stays_dead(queue: zkrq.Queue[Any]) -> None:
    id = await bury(queue, key="k")
    await queue.push("another", key="k")
    assert not await queue.edit(id, 2)
    item = await the_item(queue, id)
    assert (item.item, item.state) == (2, "dead")


async def test_what_cannot_be_kept_changes_nothing(queue: zkrq.Queue[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    id = await bury(queue)
    with pytest.raises(zkrq.CodecError, match="cannot be encoded"):
        await queue.edit(id, object())
    with pytest.raises(zkrq.PayloadTooLarge, match=rf"at most {EDIT_BYTES} can be edited; nothing was changed"):
        await queue.edit(id, "x" * EDIT_BYTES)
    monkeypatch.setattr(type(queue), "redrive", _unavailable)
    with pytest.raises(zkrq.OutcomeUnknown, match="call it again"):
        await queue.edit(id, 2)
    monkeypatch.undo()
    item = await the_item(queue, id)
    assert (item.state, item.item) == ("dead", 2), "the client has died in between: nothing is lost"
    assert await queue.edit(id, 3)
    assert (await take(queue)).item == 3


async def _unavailable(*_: object) -> int:
    raise zkrq.Unavailable("no server answers")


async def test_nothing_is_edited_at_a_level_that_lacks_it(
    queue: zkrq.Queue[Any], cluster: zkrq.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await bury(queue)
    monkeypatch.setattr(type(client_of(cluster).shard.replicas), "level", 1)
    with pytest.raises(zkrq.ConfigError, match=r"edited items: this needs level 2, .*`zkrq upgrade`"):
        await queue.edit(id, 2)
    assert (await the_item(queue, id)).item == {"to": "an"}


async def test_bytes_stay_as_they_are(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, codec=zkrq.RAW)
    await queue.push(b"first", id="a")
    await (await take(queue)).bury("bad")
    assert await queue.edit("a", b"\xff\0[1.10]")
    assert (await the_item(queue, "a")).payload == b"\xff\0[1.10]"
    claim = await take(queue)
    assert claim.item == b"\xff\0[1.10]"
    await claim.ack()
    assert await queue.get("a") is None
