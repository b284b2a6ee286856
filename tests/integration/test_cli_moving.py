"""The command line over real servers: items that are moved, exported and imported."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import zkrq
from tests.behaviour.helpers import bury
from tests.harness import over_zookeeper, take
from tests.integration.shell import NO_SETTINGS, Shell
from zkrq import local

pytestmark = pytest.mark.anyio


async def test_dead_letters_are_moved(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        emails, fixed = cluster.queue("emails"), cluster.queue("emails-fixed")
        await bury(emails, 120)
        assert await shell.value("move", "dead", "emails", "emails-fixed", "--error", "bad 7") == [
            {"moved": 11, "kept": 0}
        ]
        code, out, err = await shell.run("move", "dead", "emails", "emails-fixed")
        assert (code, out, err) == (0, "109 dead letters moved to 'emails-fixed'\n", "")
        assert (await emails.size(), await fixed.size()) == ((0, 0, 0, 0), (120, 0, 0, 0))
        assert {item.item async for item in fixed.scan()} == set(range(120))
        code, _, err = await shell.run("move", "dead", "emails", "emails")
        assert (code, "zkrq dead redrive emails" in err) == (2, True)


async def test_export_and_import(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        source, target = cluster.queue("emails", codec=zkrq.RAW), cluster.queue("copies", codec=zkrq.RAW)
        await source.push(b'{"n":1}', id="mine", key="user-42", priority=7, headers={"campaign": "spring"}, ttl=900)
        await source.push(b"\xff \0", delay=600)
        await source.push(b'{"n": 1.0}')
        await source.push(b"dead", priority=9)
        await (await take(source)).bury("bad")
        await source.push(b"claimed", priority=9)
        await take(source)
        code, exported, err = await shell.run("export", "emails")
        assert (code, err) == (0, "claimed items among these: 1; import pushes a copy of each\n")
        assert len(exported.splitlines()) == 5
        code, out, err = await shell.run("import", "copies", stdin=exported)
        said = "4 pushed, 1 left out, because they are dead letters (--dead pushes them)\n"
        assert (code, out, err) == (0, said, "")
        code, out, err = await shell.run("import", "copies", stdin=exported)
        assert (code, out.startswith("0 pushed, 4 there already, 1 left out"), err) == (0, True, "")
        items = {item.payload: item async for item in target.scan()}
        assert items.keys() == {b'{"n":1}', b"\xff \0", b'{"n": 1.0}', b"claimed"}
        mine = items[b'{"n":1}']
        assert (mine.id, mine.key, mine.priority, mine.headers) == ("mine", "user-42", 7, {"campaign": "spring"})
        assert mine.expires_in is not None
        assert 800 < mine.expires_in <= 900
        assert 500 < (items[b"\xff \0"].seconds_left or 0) <= 600
        (told,) = await shell.value("import", "copies", "--dead", stdin=exported)
        assert (told["pushed"], told["there"]) == (1, 4)


async def test_what_was_saved_is_moved_exported_and_shown(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        orders, fixed, copies = (cluster.queue(name) for name in ("orders", "orders-fixed", "copies"))
        await orders.push("order", id="order-7", task="charge")
        claim = await take(orders)
        await claim.save({"page": 12})
        await claim.step("charge", lambda: "paid")
        await claim.bury("bad")
        code, out, _ = await shell.run("get", "orders", "order-7")
        assert (code, out.splitlines()[3:]) == (0, ['  saved: {"page": 12}', '  step charge: "paid"'])
        (item,) = await shell.value("get", "orders", "order-7")
        assert (item["saved"], item["steps"]) == ({"page": 12}, {"charge": "paid"})
        _, exported, _ = await shell.run("export", "orders")
        assert (await shell.run("import", "copies", "--dead", stdin=exported))[0] == 0
        assert (await shell.run("move", "dead", "orders", "orders-fixed"))[0] == 0
        for queue in (fixed, copies):
            claim = await take(queue)
            assert (claim.saved, claim.task) == ({"page": 12}, "charge")
            assert await claim.step("charge", lambda: "again") == "paid"
            await claim.ack()


async def test_an_import_keeps_the_order_of_each_group(shell: Shell, servers: local.Servers) -> None:
    """The program does not say that the queue keeps one.  An export is not sorted."""
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        source, target = cluster.queue("source"), cluster.queue("target")
        await target.set_groups(zkrq.Groups(ordered=True))
        await source.push_many(range(5), group="a")  # before the order, in a bundle
        await source.set_groups(zkrq.Groups(ordered=True))
        await source.push_many(range(5, 150), group="a")
        await source.push_many(range(20))
        _, exported, _ = await shell.run("export", "source")
        lines = exported.splitlines()
        backwards = "".join(f"{line}\n" for line in reversed(lines))
        assert await shell.run("import", "target", stdin=backwards) == (0, "170 pushed\n", "")
        claims = [claim async for claim in acked(target, 170)]
        for group, count in (("a", 150), (None, 20)):
            assert [claim.item for claim in claims if claim.group == group] == list(range(count))
            tokens = [claim.token for claim in claims if claim.group == group]
            assert tokens == sorted({*tokens})


async def test_an_export_has_the_settings_of_the_queue_and_import_can_give_them(shell: Shell) -> None:
    flags = ("--ordered", "--group-rate", "5/s", "--history", "7", "--dead-letters-age", "60", "--results-ttl", "90")
    await shell.value("push", "emails", "-", stdin="1\n2\n")
    (settings,) = await shell.value("queues", "set", "emails", *flags)
    code, exported, _ = await shell.run("export", "emails")
    first, *items = exported.splitlines(keepends=True)
    assert (code, json.loads(first)) == (0, {"queue": settings.pop("queue"), "settings": settings})
    code, out, err = await shell.run("import", "copies", stdin=exported)
    assert (code, out) == (0, "2 pushed\n")
    assert err.startswith("the exported queue had other settings (in order, 5 in 1 s within each group; ")
    assert await shell.settings("copies") == {**NO_SETTINGS, "queue": "copies"}
    twice = f"{exported}{exported}"
    assert await shell.run("import", "copies", "--settings", stdin=twice) == (0, "0 pushed, 4 there already\n", "")
    assert await shell.settings("copies") == {"queue": "copies", **settings}
    assert await shell.run("import", "copies", stdin=exported) == (0, "0 pushed, 2 there already\n", "")
    _, exported, _ = await shell.run("export", "others")
    assert exported == "", "no line for a queue without settings"
    odd = json.dumps({"queue": "emails", "settings": {**settings, "groups": {"odd": 1}}})
    code, _, err = await shell.run("import", "copies", stdin="".join((odd, "\n", *items)))
    assert (code, "the settings of queue 'emails' are not of this release" in err) == (2, True)


async def test_a_full_queue_stops_an_import_and_a_move_and_both_are_repeated(
    shell: Shell, servers: local.Servers
) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        emails, full = cluster.queue("emails"), cluster.queue("full")
        await emails.push_many(range(20))
        _, exported, _ = await shell.run("export", "emails")
        await full.set_max_size(15)
        code, out, err = await shell.run("import", "full", stdin=exported)
        assert (code, out, "15 pushed; then: " in err) == (1, "", True)
        step = "let consumers take items, or `zkrq queues set full --max-size N`; then import the same lines again"
        assert step in err
        await shell.value("queues", "set", "full", "--max-size", "25")
        assert await shell.run("import", "full", stdin=exported) == (0, "5 pushed, 15 there already\n", "")
        for claim in await emails.pop_many(20, timeout=0):
            await claim.bury("bad")
        code, out, err = await shell.run("move", "dead", "emails", "full")
        assert (code, out, "5 dead letters moved to 'full'; then: " in err) == (1, "", True)
        assert "--max-size N`; then repeat the command" in err
        assert ((await emails.size()).dead, (await full.size()).ready) == (15, 25)
        for claim in await full.pop_many(20, timeout=0):
            await claim.ack()
        assert await shell.value("move", "dead", "emails", "full") == [{"moved": 15, "kept": 0}]


async def acked(queue: zkrq.Queue[Any], count: int) -> AsyncGenerator[zkrq.Claim[Any]]:
    """Claim and ack this many items, one after the other."""
    async for claim in queue.pop(limit=count):
        await claim.ack()
        yield claim


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2 is not a line of `zkrq export`"),
        ('{"id": "x"}', "exactly one of item and base64"),
        ('{"item": 1, "prioriy": 2}', "unknown field 'prioriy'"),
        ('{"item": 1, "due_at": "2030-01-01T00:00:00"}', "no time zone"),
        ('{"item": 1, "priority": 77}', "0 pushed; then: priority is 77"),
        ('{"item": 1, "id": 7}', "0 pushed; then: id must be a str"),
    ],
)
async def test_a_line_that_is_none_of_export_is_named(shell: Shell, line: str, says: str) -> None:
    code, out, err = await shell.run("import", "jobs", stdin=f"\n{line}\n")
    assert (code, out, says in err) == (2, "", True), err
