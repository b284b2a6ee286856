"""Moving dead letters and importing items, with a failure in the middle: nothing is lost, nothing is there twice."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import zkrq
from tests.harness import HANG, take
from zkrq.base import clock
from zkrq.base.ids import id_of_copy
from zkrq.cli import moving
from zkrq.cli.moving import move_letters, push_copies
from zkrq.client.copies import exported, id_of_moved, imported

pytestmark = pytest.mark.anyio

Raw = zkrq.Queue[bytes]


class Died(Exception):
    """The mover is gone."""


@pytest.fixture
async def source(cluster: zkrq.Cluster, name: str) -> Raw:
    return cluster.queue(name, codec=zkrq.RAW)


@pytest.fixture
async def target(cluster: zkrq.Cluster, name: str) -> Raw:
    return cluster.queue(f"{name}-fixed", codec=zkrq.RAW)


async def letters(queue: Raw, count: int) -> list[str]:
    await queue.push_many(b"%d" % number for number in range(count))
    claims = [await take(queue) for _ in range(count)]
    for claim in claims:
        await claim.bury("bad")
    return [claim.id for claim in claims]


async def move(source: Raw, target: Raw, **conditions: Any) -> int:
    return sum([some.moved async for some in move_letters(source, target, **conditions)])


async def contents(queue: Raw) -> list[bytes]:
    return sorted([item.payload async for item in queue.scan()])


async def test_a_mover_that_dies_before_it_removes_makes_no_doubles(
    source: Raw, target: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run finds the copies by their ids, whether they are still there, claimed or done."""
    await letters(source, 12)
    with monkeypatch.context() as patched:

        async def die(queue: Raw, ids: object) -> int:
            raise Died

        patched.setattr(zkrq.Queue, "discard", die)
        with pytest.raises(Died):
            await move(source, target)
    assert (await source.size()).dead == 12
    done = await take(target)
    await done.ack()
    held = await take(target)
    assert await move(source, target) == 12
    assert await source.size() == (0, 0, 0, 0)
    assert len(await contents(target)) == 11
    await held.ack()
    assert len({done.item, held.item, *await contents(target)}) == 12


async def test_letters_whose_push_fails_stay(source: Raw, target: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are moved; the error is raised then, and the next run moves the rest."""
    ids = await letters(source, 8)
    push: Callable[..., Awaitable[zkrq.Receipt]] = zkrq.Queue[bytes].push

    async def refuse(queue: Raw, item: bytes, **options: Any) -> zkrq.Receipt:
        if item in (b"3", b"5"):
            raise zkrq.QueueFull
        return await push(queue, item, **options)

    with monkeypatch.context() as patched:
        patched.setattr(zkrq.Queue, "push", refuse)
        with pytest.raises(zkrq.QueueFull):
            await move(source, target)
    assert await contents(source) == [b"3", b"5"]
    assert len(ids) == len(await contents(target)) + 2
    assert await move(source, target) == 2
    assert await contents(target) == [b"%d" % number for number in range(8)]


async def test_a_push_of_unknown_outcome_is_repeated_without_doubles(
    source: Raw, target: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    await letters(source, 3)
    push: Callable[..., Awaitable[zkrq.Receipt]] = zkrq.Queue[bytes].push

    async def lose_the_reply(queue: Raw, item: bytes, **options: Any) -> zkrq.Receipt:
        await push(queue, item, **options)
        raise zkrq.OutcomeUnknown

    with monkeypatch.context() as patched:
        patched.setattr(zkrq.Queue, "push", lose_the_reply)
        with pytest.raises(zkrq.OutcomeUnknown):
            await move(source, target)
    assert (await source.size()).dead == 3
    assert await move(source, target) == 3
    assert await contents(target) == [b"0", b"1", b"2"]


async def test_a_copy_is_like_its_letter(source: Raw, target: Raw) -> None:
    await source.push(b"x", id="mine", key="user-42", group="large", priority=7, headers={"campaign": "spring"})
    await (await take(source)).bury("bad")
    (letter,) = await source.dead_letters()
    assert await move(source, target) == 1
    claim = await take(target)
    assert (claim.item, claim.key, claim.priority, claim.headers) == (b"x", "user-42", 7, {"campaign": "spring"})
    assert (claim.attempts, claim.id, claim.group) == (1, id_of_moved(source.name, letter), "large")


async def save(queue: zkrq.Queue[Any]) -> zkrq.Claim[Any]:
    """Do a part of the work on the next item."""
    claim = await take(queue)
    await claim.save({"page": 12})
    await claim.step("charge", lambda: "paid")
    return claim


def fail() -> None:
    raise AssertionError("it is done")


async def test_a_copy_is_given_what_was_saved_of_its_letter(source: Raw, target: Raw) -> None:
    """By each delivery, until it saves something else; also by a copy of the copy."""
    await source.push(b"x", headers={"campaign": "spring"})
    await (await save(source)).bury("bad")
    assert await move(source, target) == 1
    claim = await take(target)
    assert (claim.saved, await claim.step("charge", fail)) == ({"page": 12}, "paid")
    assert (claim.item, claim.headers) == (b"x", {"campaign": "spring"})
    await claim.nack(0)
    item = await target.get(claim.id)
    assert item
    assert (item.saved, item.steps, item.headers) == ({"page": 12}, {"charge": "paid"}, {"campaign": "spring"})
    again = await take(target)
    assert again.saved == {"page": 12}
    await again.save({"page": 13})
    await again.nack(0)
    third = await take(target)
    assert third.saved == {"page": 13}
    await third.bury("bad")
    assert await move(target, source) == 1
    last = await take(source)
    assert (last.saved, await last.step("charge", fail)) == ({"page": 13}, "paid")
    await last.ack()


async def test_what_was_saved_is_moved_and_stays_encrypted(cluster: zkrq.Cluster, name: str) -> None:
    """It names the queue that it comes from, which has to be accepted, as for items."""
    typed = pytest.importorskip("zkrq.typed")
    pytest.importorskip("cryptography")
    keys = [typed.new_key()]
    source = cluster.queue(name, codec=zkrq.RAW, saved=typed.Encrypted(zkrq.JSON, keys))
    await source.push(b"x", id="mine")
    await (await save(source)).bury("bad")
    copies = [imported(line, "line") for line in await lines_of(source)]

    async def given(ending: str, accepts: list[str]) -> tuple[zkrq.Claim[bytes], zkrq.Item[bytes]]:
        codec = typed.Encrypted(zkrq.JSON, keys, accept_from=accepts)
        target = cluster.queue(name + ending, codec=zkrq.RAW, saved=codec)
        await push_copies(target, copies)
        claim, item = await take(target), await target.get("mine")
        assert item
        return claim, item

    claim, item = await given("-fixed", [name])
    assert claim.saved == item.saved == {"page": 12}
    assert item.steps == {"charge": "paid"}
    await claim.ack()
    claim, item = await given("-strict", [])
    assert (item.saved, item.steps) == (None, {"charge": None})
    with pytest.raises(zkrq.CodecError, match="somebody copied it here"):
        _ = claim.saved
    await claim.ack()


async def test_a_letter_whose_key_is_taken_stays(source: Raw, target: Raw) -> None:
    await source.push(b"x", key="user-42")
    await (await take(source)).bury("bad")
    await target.push(b"other", key="user-42")
    assert [some async for some in move_letters(source, target)] == [moving.Moved(0, 1)]
    assert await contents(source) == [b"x"]
    await (await take(target)).ack()
    assert await move(source, target, key="user-42") == 1


async def test_another_life_of_an_id_is_another_letter(source: Raw) -> None:
    """Otherwise the second one would be taken for the first, which was moved before, and be lost."""
    await source.push(b"first", id="mine")
    await (await take(source)).bury("bad")
    (first,) = await source.dead_letters()
    again = replace(first, pushed_at=first.pushed_at + timedelta(seconds=900))
    assert id_of_moved(source.name, again) != id_of_moved(source.name, first)
    assert id_of_moved("another", first) != id_of_moved(source.name, first)


def test_long_ids_are_shortened_and_stay_apart() -> None:
    ids = {id_of_copy("moved", "q" * 100, "x" * 60, end) for end in "abc"}
    assert len(ids) == 3
    assert max(map(len, ids)) < 60
    assert id_of_copy("moved", "emails", "mine") == "moved:emails:mine"


# -- export and import ---------------------------------------------------------------------------------------------


async def lines_of(queue: Raw) -> list[bytes]:
    return [json.dumps(exported(item)).encode() async for item in queue.scan()]


async def test_an_imported_item_is_in_its_group(source: Raw, target: Raw) -> None:
    await source.push(b"x", group="large")
    await source.push(b"y")
    await push_copies(target, [imported(line, "line") for line in await lines_of(source)])
    assert {item.payload: item.group async for item in target.scan()} == {b"x": "large", b"y": None}


async def test_an_imported_item_is_given_what_was_saved(source: Raw, target: Raw) -> None:
    await source.push_many([b"x", b"y"])
    saved = await save(source)
    await saved.release()
    lines = await lines_of(source)
    assert [b'"saved"' in line for line in lines].count(True) == 1, "the others can be read by former releases"
    told, _ = await push_copies(target, [imported(line, "line") for line in lines])
    assert told == {"pushed": 2}
    claims = {claim.item: claim for claim in [await take(target), await take(target)]}
    assert [claims[item].saved for item in (saved.item, *{b"x", b"y"} - {saved.item})] == [{"page": 12}, None]
    assert await claims[saved.item].step("charge", fail) == "paid"


@pytest.mark.parametrize(
    "bad", ["-", 7, "", "AAAA", "/w==", b64encode(b"\1\0\x80\0" + b"s" * 32768).decode()], ids=range(6)
)
async def test_an_import_refuses_what_nobody_has_saved(bad: object) -> None:
    line = json.dumps({"item": 1, "saved": bad}).encode()
    with pytest.raises(zkrq.ConfigError, match="line 3 is not a line of `zkrq export`"):
        imported(line, "line 3")


async def test_an_import_that_is_repeated_makes_no_doubles(source: Raw, target: Raw) -> None:
    """Also after it ended in the middle, and whatever has become of the items since, within the time of their ids."""
    await source.push_many(b"%d" % number for number in range(20))
    await source.push(b"mine", id="mine")
    copies = [imported(line, "line") for line in await lines_of(source)]
    told, failure = await push_copies(target, copies[:12])
    assert (told, failure) == ({"pushed": 12}, None)
    await (await take(target)).ack()
    await take(target)
    told, failure = await push_copies(target, copies)
    assert (told, failure) == ({"pushed": 9, "there": 11, "done": 1}, None)
    assert len(await contents(target)) == 20


async def test_outcomes_of_an_import_are_told_apart(cluster: zkrq.Cluster, name: str, source: Raw) -> None:
    await source.push(b"a", key="one")
    await source.push(b"b", key="two")
    copies = [imported(line, "line") for line in await lines_of(source)]
    small = cluster.queue(f"{name}-small", codec=zkrq.RAW, max_size=1)
    await small.push(b"other", key="one")
    told, failure = await push_copies(small, copies)
    assert told == {"key taken": 1}
    assert isinstance(failure, zkrq.QueueFull)


async def test_moments_are_absolute(source: Raw) -> None:
    await source.push(b"later", delay=600, ttl=900)
    (line,) = await lines_of(source)
    copy = imported(line, "line")
    assert copy.payload == b"later"
    assert not copy.is_over
    assert copy.due_at is not None
    assert copy.due_at > clock.now() + timedelta(seconds=500)
    assert 800 < (copy.ttl or 0) <= 900
    value = json.loads(line)
    over = {**value, "expires_at": value["due_at"]}
    assert imported(json.dumps(over).encode(), "line").is_over
    assert not imported(b'{"item": 1}', "line").is_over


@pytest.mark.parametrize(
    "payload", [b"1", b"1.0", b'{"a":[1,"\xc3\xa9"]}', b"\xff\0", b"", b'{"a": 1}', b'{"a":1,"a":2}', b"NaN", b"1e400"]
)
async def test_payloads_come_back_byte_for_byte(source: Raw, payload: bytes) -> None:
    await source.push(payload)
    (line,) = await lines_of(source)
    assert imported(line, "line").payload == payload


async def test_letters_are_exported_with_their_reasons(cluster: zkrq.Cluster, name: str, source: Raw) -> None:
    await source.push(b"1")
    claim = await source.pop_one(timeout=HANG)
    assert claim
    await claim.bury("no such address")
    (line,) = await lines_of(source)
    value = json.loads(line)
    assert (value["state"], value["reason"], value["attempts"]) == ("dead", "no such address", 1)
    assert value["died_at"] is not None
    assert imported(line, "line").state == "dead"
