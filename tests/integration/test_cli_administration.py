"""The command line over real servers: looking at servers, shards, queues and items, and changing them."""

from __future__ import annotations

import os
import re
import signal
import socket
from datetime import UTC, datetime, timedelta, timezone

import anyio
import anyio.to_thread
import pytest

import zkrq
from tests.behaviour.helpers import bury
from tests.harness import command as ask
from tests.harness import over_zookeeper, settled, take
from tests.integration.shell import Shell, founded_shell, on_a_terminal
from zkrq import local
from zkrq.client.inner import client_of
from zkrq.operations.items import ENDED, ITEM, RESULT_OF_ITEM
from zkrq.operations.queues import GROUP_FIGURES
from zkrq.process.exits import Exit
from zkrq.serve.audit import REGISTER, decode

pytestmark = pytest.mark.anyio


async def test_servers(servers: local.Servers, prepared_zkrq: list[str]) -> None:
    shell = await founded_shell(servers, prepared_zkrq)
    await shell.value("push", "jobs", "1")
    listed = await shell.value("servers", "list")
    assert [(line["server"], line["place"]) for line in listed] == [(f"redis-{n}", "member") for n in (1, 2, 3)]
    async with local.servers(redis=1, zookeeper=0) as more:
        (added,) = await shell.value("servers", "add", more.redis[0].url, "--name", "redis-4")
        assert added["server"] == "redis-4"
        assert added["items"] == 1 or added["items"] is None, "None: another client has copied them"
        code, out, _ = await shell.run("servers", "add", more.redis[0].url, "--name", "redis-4")
        assert (code, out.partition(";")[0]) == (0, "redis-4 was in the namespace already, and is in sync")
        for line in await shell.value("servers", "list"):  # a new process that was given the other three
            assert line["connected"], line
        code, out, err = await shell.run("servers", "remove", servers.redis[0].url)
        assert (code, out, err) == (0, "redis-1 is removed\n", "")
        code, _, err = await shell.run("servers", "add", "redis://127.0.0.1:1")
        assert (code, "does not answer: nothing listens at 127.0.0.1:1" in err) == (1, True)
        code, _, err = await shell.run("servers", "remove", "redis-1")
        assert code == 2
        assert "is not a server of this namespace: redis-2, redis-3, redis-4" in err
        async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
            noted = decode((await client_of(cluster).coordinator.read(REGISTER)).data)
        assert [(line.who, line.what, line.on) for line in noted] == [
            ("the command line", what, "servers") for what in ("add", "remove")
        ]
        assert re.fullmatch(r"redis-4 was added in [\d.]+ (s|ms)(, 1 item copied)?", noted[0].result)
        code, _, err = await shell.run("servers", "recover", "redis-2", "redis-3")
        assert code == 2
        assert "nothing to recover" in err
        assert [line["server"] for line in await shell.value("servers", "list")] == ["redis-2", "redis-3", "redis-4"]


async def test_shards(servers: local.Servers, prepared_zkrq: list[str]) -> None:
    """From one to two, and back."""
    shell = await founded_shell(servers, prepared_zkrq)
    async with local.servers(redis=2, zookeeper=0) as more:
        one, two = (server.url for server in more.redis)
        (added,) = await shell.value("shards", "add", "b", f"x={one}", "--min-replicas", "1")
        assert added == {"shard": "b", "state": "open"}
        (added,) = await shell.value("servers", "add", two, "--name", "y", "--shard", "b")
        assert (added["server"], added["shard"]) == ("y", "b")
        b, main = await shell.value("shards", "list")
        assert (main["shard"], main["in_sync"], main["min_replicas"]) == ("main", ["redis-1", "redis-2", "redis-3"], 2)
        known = {"shard": "b", "state": "open", "away": None, "min_replicas": 1, "left": None}
        assert b == {**known, "epoch": added["epoch"], "servers": ["x", "y"], "in_sync": ["x", "y"]}
        assert {each["server"]: each["shard"] for each in await shell.value("servers", "list")} == {
            **dict.fromkeys(("redis-1", "redis-2", "redis-3"), "main"),
            **dict.fromkeys("xy", "b"),
        }
        assert "x: member of shard b, Redis " in (await shell.run("servers", "list"))[1]

        async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
            queue = cluster.queue("jobs")
            while not (left := await cluster.shard_sizes("b")):
                await queue.push("x")
            drained = await shell.run("shards", "drain", "b")
            assert drained == (0, "shard b is draining: `zkrq shards list` shows what is left in it\n", "")
            told = f"b: draining; left: {left['jobs'].ready} in jobs; in sync: x, y"
            assert (await shell.run("shards", "list"))[1].splitlines()[0] == told
            code, out, err = await shell.run("shards", "remove", "b", "--yes", "--force")
            assert (code, out) == (2, "")
            assert "cannot be removed yet: queue 'jobs' has" in err
            with on_a_terminal(shell, "shards", "drain", "b", "--wait") as draining:
                await anyio.to_thread.run_sync(draining.until, "drained b")
                await queue.clear()
                drained = await anyio.to_thread.run_sync(draining.ended)
            assert drained == (0, "shard b is draining, and nothing is left in it\n")
        code, _, err = await shell.run("shards", "remove", "b", "--force")
        assert code == 2
        assert err.startswith("zkrq shards remove: to remove shard 'b' of 'test-")
        assert await shell.value("shards", "remove", "b", "--force", "--yes") == [{"shard": "b", "state": None}]
        assert [each["shard"] for each in await shell.value("shards", "list")] == ["main"]
        code, _, err = await shell.run("shards", "drain", "main")
        assert (code, "only one that takes pushes" in err) == (2, True)


async def test_servers_recover(servers: local.Servers, prepared_zkrq: list[str]) -> None:
    shell = await founded_shell(servers, prepared_zkrq)
    await shell.value("push", "jobs", "1")
    for server in servers.redis:
        await server.restart(wipe=True)
    code, _, err = await shell.run("push", "jobs", "2", "--operation-timeout", "2")
    assert code == 1
    assert "zkrq servers recover" in err
    code, out, _ = await shell.run("servers", "recover", "redis-1", "redis-2", "redis-3")
    assert (code, out) == (0, "recovered with redis-1, redis-2, redis-3\n")
    again = ("servers", "recover", "--older-zookeeper", "redis-1", "redis-2", "redis-3")
    code, _, err = await shell.run(*again)
    assert code == 2
    assert "it did not go back" in err
    for server in servers.redis:  # as if ZooKeeper had been restored, ten seconds after the recovery
        name = f"{{{shell.environment['ZKRQ_NAMESPACE']}}}:server"
        await ask(server, "HSET", name, "epoch", "5", "repaired_until_ms", "0")
    code, _, err = await shell.run("servers", "list")
    assert (code, "`zkrq servers recover --older-zookeeper NAME...`" in err) == (2, True)
    code, out, _ = await shell.run(*again)
    assert (code, out) == (0, "recovered with redis-1, redis-2, redis-3\n")
    code, out, _ = await shell.run("servers", "list")
    assert (code, out.count(": member")) == (0, 3)
    (receipt,) = await shell.value("push", "jobs", "2")
    assert receipt["replicas"] == 3


async def test_result_of_an_item(shell: Shell, servers: local.Servers) -> None:
    (pushed,) = await shell.value("push", "sums", "[1, 2]")
    (told,) = await shell.value("result", "sums", pushed["id"], "--timeout", "0")
    assert set(told) == {*RESULT_OF_ITEM.names}
    assert (told["state"], told["has_result"]) == ("queued", False)
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        await (await take(cluster.queue("sums", results=zkrq.Results()))).ack(result={"sum": 3})
    code, out, _ = await shell.run("result", "sums", pushed["id"])
    assert (code, out) == (0, 'done  {"sum":3}\n')
    code, out, complaint = await shell.run("result", "sums", "no-such-item")
    assert (code, out) == (2, "unknown\n")
    assert "queue 'sums' has no item 'no-such-item', or it ended too long ago" in complaint


async def test_what_has_ended_and_what_blocks_a_group(shell: Shell) -> None:
    code, _, complaint = await shell.run("list", "ended", "--state", "done")
    assert code == 2
    assert "queue 'ended' keeps no history: `zkrq queues set ended --history 1000`" in complaint
    code, _, complaint = await shell.run("list", "ended", "--state", "finished")
    assert (code, "`zkrq list QUEUE --state done`" in complaint) == (2, True)
    code, _, complaint = await shell.run("list", "ended", "--state", "done", "--group", "tenant")
    assert (code, "leave it out" in complaint) == (2, True)
    code, _, complaint = await shell.run("find", "ended")
    assert (code, "`zkrq export ended`" in complaint) == (2, True)
    assert (await shell.run("queues", "set", "ended", "--history", "10"))[0] == 0
    (pushed,) = await shell.value("push", "ended", "1", "--group", "tenant")
    await shell.run("pop", "ended")
    (item,) = await shell.value("list", "ended", "--state", "done")
    assert (item["id"], item["state"], item["group"]) == (pushed["id"], "done", "tenant")
    assert set(item) == {*ENDED.names}
    assert item["took"] >= 0
    _, out, _ = await shell.run("list", "ended", "--state", "done")
    assert re.fullmatch(rf"{pushed['id']}  done [-\d]+ [:\d]+ UTC after [.\d]+ s by \S+\n", out)
    await shell.run("push", "ended", "2", "--group", "tenant")
    (group,) = await shell.value("groups", "ended")
    assert (group["name"], group["waiting"], group["standing"], group["held"]) == ("tenant", 1, "in line", [])
    assert set(group) == {*GROUP_FIGURES.names, "held"}
    _, out, _ = await shell.run("groups", "ended")
    assert out.startswith("tenant  in line  1 wait, the next for ")


async def test_looking_and_administering(shell: Shell) -> None:
    (first,) = await shell.value("push", "jobs", '{"n": 1}', "--key", "one", "--ttl", "600")
    (again,) = await shell.value("push", "jobs", '{"n": 2}', "--key", "one")
    assert (again["duplicate"], again["new"], again["id"]) == (True, False, first["id"])
    windowed = ("push", "windows", "1", "--key", "k", "--key-window", "60")
    (began,) = await shell.value(*windowed)
    _, out, _ = await shell.run("clear", "windows", "--yes")
    _, out, _ = await shell.run(*windowed)
    assert out == f"{began['id']}  has begun the window of the key, and is done\n"
    _, out, _ = await shell.run("push", "jobs", '{"n": 3}', "--key", "one", "--id", first["id"])
    assert out == f"{first['id']}  is in the queue already\n"
    (item,) = await shell.value("get", "jobs", first["id"])
    assert (item["item"], item["state"], item["key"], item["died_at"]) == ({"n": 1}, "ready", "one", None)
    assert set(item) == {*ITEM.names, "payload", "held_by", "waits"}
    assert [each["id"] for each in await shell.value("peek", "jobs")] == [first["id"]]
    assert (await shell.value("pause", "jobs"))[0]["paused"]
    assert (await shell.value("stats"))[0]["queues"]["jobs"]["paused"]
    assert await shell.value("pop", "jobs") == []
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    _, out, _ = await shell.run("pause", "jobs", "--until", f"{until.astimezone(timezone(timedelta(hours=5)))}")
    assert out == f"jobs is paused: no item is claimed until {until.isoformat()}\n"
    assert (await shell.value("stats"))[0]["queues"]["jobs"]["paused_until"] == until.isoformat()
    assert f"paused until {until:%Y-%m-%d %H:%M:%S} UTC" in (await shell.run("stats"))[1]
    assert (await shell.value("pause", "jobs", "--for", "3600"))[0]["paused"]
    code, _, err = await shell.run("pause", "jobs", "--until", "2020-01-31T08:00:00Z")
    assert (code, "--until is 2020-01-31T08:00:00+00:00, which has passed" in err) == (2, True)
    code, _, err = await shell.run("pause", "jobs", "--until", until.isoformat(), "--for", "5")
    assert (code, "--for and --until exclude each other" in err) == (2, True)
    assert not (await shell.value("resume", "jobs"))[0]["paused"]
    assert (await shell.value("cancel", "jobs", first["id"]))[0]["outcome"] == "removed"
    for command in ("get", "cancel"):
        code, out, err = await shell.run(command, "jobs", first["id"])
        assert (code, out, err) == (2, "", f"zkrq {command}: queue 'jobs' has no item '{first['id']}'\n")


async def test_schedules(shell: Shell, servers: local.Servers) -> None:
    added = ["schedules", "add", "jobs", "nightly", "3600", '{"kind": "daily"}', "--priority", "2"]
    (value,) = await shell.value(*added)
    assert value.pop("next")
    assert value == {
        "queue": "jobs",
        "name": "nightly",
        "when": 3600.0,
        "offset": 0.0,
        "zone": None,
        "catch_up": 240.0,
        "missed": "last",
        "priority": 2,
        **dict.fromkeys(("group", "headers", "key", "key_window", "task", "ttl")),
        **dict.fromkeys(("paused", "declared"), False),
        **dict.fromkeys(("last", "last_loss")),
        "losses": 0,
        "item": {"kind": "daily"},
    }
    code, out, err = await shell.run(*added)
    assert (code, out) == (2, "")
    assert "there is a schedule 'nightly' of queue 'jobs' already: change it, or use another name" in err
    assert len(await shell.value(*added, "--replace")) == 1
    paused = 'jobs  nightly  every 3600 s; paused; item {"kind": "daily"}\n'
    assert await shell.run("schedules", "pause", "jobs", "nightly") == (0, paused, "")
    assert await shell.run("schedules", "list") == (0, paused, "")
    (pushed,) = await shell.value("schedules", "run-now", "jobs", "nightly")
    assert (pushed["new"], pushed["duplicate"]) == (True, False)
    (value,) = await shell.value("schedules", "change", "jobs", "nightly", "--when", "0.2", "--item", "7")
    assert (value["when"], value["item"], value["paused"]) == (0.2, 7, True)
    async with (
        over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster,
        shell.start("schedules", "run", prepared=False) as running,
    ):
        by_hand = await take(cluster.queue("jobs"))
        assert (by_hand.id, by_hand.item) == (pushed["id"], {"kind": "daily"})
        await by_hand.ack()
        await shell.value("schedules", "resume", "jobs", "nightly")
        assert (await take(cluster.queue("jobs"))).item == 7

        async def has_last() -> bool:
            return (await cluster.schedules().list())[0].last is not None

        await settled(has_last)
        running.terminate()
        assert await running.wait() == 0
    (value,) = await shell.value("schedules", "list")
    code, out, _ = await shell.run("schedules", "list")
    assert (code, f"; last {value['last']}; " in out) == (0, True)
    (value,) = await shell.value("schedules", "change", "jobs", "nightly", "--catch-up", "1200", "--missed", "all")
    assert (value["catch_up"], value["missed"]) == (1200, "all")
    options = ["--group", "tenant", "--ttl", "60", "--catch-up", "240", "--key", "k", "--key-window", "600"]
    (value,) = await shell.value("schedules", "change", "jobs", "nightly", *options)
    assert (value["group"], value["ttl"], value["priority"]) == ("tenant", 60, 2)
    assert (value["key"], value["key_window"]) == ("k", 600)
    assert await shell.run("schedules", "remove", "jobs", "nightly") == (0, "removed\n", "")
    assert await shell.run("schedules", "list") == (0, "", "")
    for wrong, says in (
        (("pause", "jobs", "nightly"), "there is no schedule 'nightly' of queue 'jobs'"),
        (("add", "jobs", "nightly", "0.01", "1"), "the period is 0.01 s"),
        (("add", "jobs", "nightly", "60", "{"), "the item is not JSON"),
        (("add", "jobs", "nightly", "60", "1", "--key-window", "60"), "--key-window needs a key: --key user-42"),
        (
            ("add", "jobs", "nightly", "60", "1", "--key", "k", "--catch-up", "241"),
            "--key excludes --catch-up of more than 240 s",
        ),
        (("add", "jobs", "nightly", "60", "1", "--missed", "some"), "must be one of 'all', 'last', 'none'"),
    ):
        code, out, err = await shell.run("schedules", *wrong)
        assert (code, out) == (2, "")
        assert says in err


async def test_delete(shell: Shell, servers: local.Servers) -> None:
    await shell.value("push", "jobs", "-", stdin="1\n2\n")
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        claim = await take(cluster.queue("jobs"))
        code, _, err = await shell.run("delete", "jobs")
        assert code == 2
        assert err.startswith("zkrq delete: to delete queue 'jobs' in 'test-")
        assert err.endswith("with 2 items, claimed ones included without being asked on a terminal, give --yes\n")
        assert await shell.run("delete", "jobs", "--yes") == (0, "queue 'jobs' is deleted: 2 items removed\n", "")
        assert (await shell.value("stats"))[0]["queues"] == {}
        assert await claim.lost


async def test_dead_letters(shell: Shell, servers: local.Servers) -> None:
    namespace = shell.environment["ZKRQ_NAMESPACE"]
    async with zkrq.connect(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace) as cluster:
        queue = cluster.queue("jobs")
        await queue.push_many([1, 2, 3])
        for claim in await queue.pop_many(3, timeout=10):
            await claim.bury("no such address")
    letters = await shell.value("dead", "list", "jobs")
    assert [(each["item"], each["reason"]) for each in letters] == [(n, "no such address") for n in (1, 2, 3)]
    (failure,) = letters[0]["last_failures"]
    assert (failure["reason"], failure["where"]) == ("no such address", f"{socket.gethostname()}:{os.getpid()}")
    _, out, _ = await shell.run("get", "jobs", letters[0]["id"])
    where = re.escape(failure["where"])
    assert re.search(rf"\n  failed [\d-]+ [\d:]+ UTC on {where} after [\d.]+ s: no such address\n", out)
    assert await shell.value("dead", "redrive", "jobs", letters[0]["id"]) == [{"redriven": 1}]
    assert (await shell.run("dead", "discard", "jobs"))[0] == 2
    assert await shell.value("dead", "discard", "jobs", "--yes") == [{"removed": 2}]
    assert (await shell.value("stats"))[0]["queues"]["jobs"]["ready"] == 1


async def test_a_dead_letter_is_edited(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("mails")
        (id,) = await bury(queue, 1)
        assert await shell.value("dead", "edit", "mails", id, '{"to": "ann"}', "--by", "bob") == [
            {"id": id, "redriven": True}
        ]
        (item,) = await shell.value("get", "mails", id)
        assert (item["item"], item["state"], item["edited"]["by"]) == ({"to": "ann"}, "ready", "bob")
        code, out, err = await shell.run("dead", "edit", "mails", id, "1")
        why = "it is no dead letter, or another item has its key"
        assert (code, out, err) == (1, "", f"zkrq dead edit: item {id!r} was not changed: {why}\n")
        code, _, err = await shell.run("dead", "edit", "mails", "nobody", "1")
        assert (code, err) == (2, "zkrq dead edit: queue 'mails' has no item 'nobody'\n")
        assert (await shell.run("dead", "edit", "mails", id, "{"))[0] == 2


async def test_finding(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("jobs")
        await queue.push_many(range(30), headers={"campaign": "spring"})
        keyed = await queue.push("keyed", key="user-42", delay=600)
        await queue.push("other", headers={"campaign": "autumn"}, priority=9)
        claim = await take(queue)
        await claim.bury("Connection refused")
        (found,) = await shell.value("find", "jobs", "--key", "user-42")
        assert (found["id"], found["state"]) == (keyed.id, "scheduled")
        assert len(await shell.value("find", "jobs", "--header", "campaign=spring")) == 30
        assert await shell.value("find", "jobs", "--header", "campaign=spring", "--state", "dead") == []
        code, out, err = await shell.run("find", "jobs", "--error", "connection", "--state", "dead")
        assert (code, out, err) == (0, f'{claim.id}  dead  "other"  Connection refused\n', "")
        assert [each["id"] for each in await shell.value("list", "jobs", "--state", "scheduled")] == [keyed.id]
        (found,) = await shell.value("find", "jobs", "--text", "OTHE", "--id-prefix", claim.id[:-2])
        assert found["id"] == claim.id
        for moment, count in (("2001-01-01T00:00:00Z", 32), ("2999-01-01T00:00:00Z", 0)):
            assert len(await shell.value("find", "jobs", "--since", moment)) == count
        assert len(await shell.value("export", "jobs", "--text", "keyed")) == 1
        code, _, err = await shell.run("find", "jobs", "--state", "dead")
        assert (code, "`zkrq list jobs --state dead`" in err) == (2, True)
        code, _, err = await shell.run("find", "jobs", "--header", "campaign")
        assert (code, "'campaign' must be a name, '=' and a text" in err) == (2, True)


async def test_what_was_found_is_cancelled(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("jobs")
        await queue.push_many(range(30), headers={"campaign": "spring"})
        await take(queue)
        await queue.push("other")
        campaign = ("cancel", "jobs", "--header", "campaign=spring")
        code, out, err = await shell.run(*campaign)
        assert (code, out) == (2, "")
        assert err.startswith("zkrq cancel: to cancel 30 items of queue 'jobs' in 'test-")
        assert ", 1 of them claimed without being asked" in err
        assert await shell.run(*campaign, "--yes") == (0, "30 items cancelled, 1 of them claimed\n", "")
        assert await shell.run(*campaign) == (0, "0 items cancelled\n", "")
        assert (await queue.size())[:2] == (1, 0)
        ids = [receipt.id for receipt in await queue.push_many([1, 2])]
        code, out, err = await shell.run("cancel", "jobs", *ids, "nobody")
        told = "".join(f"{id}  cancelled\n" for id in ids)
        assert (code, out, err) == (2, told, "zkrq cancel: queue 'jobs' has no item 'nobody'\n")
        for wrong in ("cancel", "jobs"), ("cancel", "jobs", "x", "--key", "y"), ("cancel", "jobs", "--state", "dead"):
            code, _, err = await shell.run(*wrong)
            assert (code, "either ids, or at least one" in err) == (2, True)


async def test_a_command_that_is_stopped_says_how_to_go_on(shell: Shell, servers: local.Servers) -> None:
    """By Ctrl-C; the command once more does the rest."""
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("jobs")
        await bury(queue, 30)
        redrive = ("dead", "redrive", "jobs", "--error", "bad", "--yes")
        async with shell.start(*redrive, "--rate", "5") as process:

            async def has_begun() -> bool:
                return (await queue.size()).ready > 0

            await settled(has_begun)
            process.send_signal(signal.SIGINT)
            assert process.stderr
            said = b"".join([part async for part in process.stderr]).decode()
            assert await process.wait() == Exit.SIGNAL + signal.SIGINT
        assert re.fullmatch(r"stopped: (at least )?\d+ items? changed; repeat the command for the rest: .*\n", said)
        left = (await queue.size()).dead
        assert left > 0
        assert await shell.run(*redrive) == (0, f"{left} items redriven\n", "")
        assert await queue.size() == (30, 0, 0, 0)


async def test_dead_letters_by_reason(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("jobs")
        await bury(queue, 22)  # bad 0 ... bad 21
        code, out, err = await shell.run("dead", "redrive", "jobs", "--error", "bad 2")
        assert (code, out) == (2, "")
        assert "to redrive 3 dead letters of queue 'jobs'" in err
        assert await shell.value("dead", "redrive", "jobs", "--error", "BAD 2", "--yes") == [{"redriven": 3}]
        assert await shell.value("dead", "discard", "jobs", "--error", "bad 1", "--yes") == [{"removed": 11}]
        assert await shell.value("dead", "discard", "jobs", "--error", "nothing") == [{"removed": 0}]
        assert await shell.value("dead", "discard", "jobs", "--since", "2999-01-01T00:00:00Z") == [{"removed": 0}]
        assert (await shell.run("dead", "discard", "jobs", "x", "--error", "bad"))[0] == 2
        assert (await queue.size()) == (3, 0, 0, 8)


async def test_what_waits_is_advanced(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("jobs")
        ids = [(await queue.push(number, delay=3600, group=f"g{number % 2}")).id for number in range(5)]
        assert await shell.value("advance", "jobs", ids[0]) == [{"advanced": 1}]
        code, out, err = await shell.run("advance", "jobs", "--group", "g1")
        assert (code, out) == (2, "")
        assert "to have 2 items of queue 'jobs'" in err
        assert await shell.value("advance", "jobs", "--until", "2001-01-01T00:00:00Z") == [{"advanced": 0}]
        await queue.pause()
        assert await shell.run("advance", "jobs", "--group", "g1", "--yes") == (
            0,
            "2 items ready\n",
            "none of these is claimed yet: the queue is paused: `zkrq resume jobs`\n",
        )
        for wrong in ("advance", "jobs"), ("advance", "jobs", "x", "--key", "y"):
            code, _, err = await shell.run(*wrong)
            assert (code, "either ids, or at least one" in err) == (2, True)
        assert await queue.size() == (3, 2, 0, 0)


async def test_what_an_item_waits_for(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        orders = cluster.queue("orders", groups=zkrq.Groups(ordered=True), retry=zkrq.Retry(backoff=zkrq.constant(60)))
        first, second = [receipt.id for receipt in await orders.push_many(["created", "paid"], group="order-1")]
        assert "waits" not in (await shell.run("get", "orders", second))[1]
        claim = await take(orders)
        _, out, _ = await shell.run("get", "orders", second)
        assert out.splitlines()[3:] == [f"  waits: {first} of its group 'order-1' is claimed by {claim.owner}"]
        await claim.nack(reason="no answer")
        await orders.pause()
        (told,) = await shell.value("get", "orders", second)
        paused, failed = told["waits"]
        assert paused == "the queue is paused: `zkrq resume orders`"
        assert failed.startswith(f"{first} of its group 'order-1' failed, and comes again in ")
        assert failed.endswith("no answer")


async def test_an_item_of_a_group_that_rests_waits_for_its_rate(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        rated = cluster.queue("rated", groups=zkrq.Groups(rate=(1, 3600)))
        first, second = [receipt.id for receipt in await rated.push_many([1, 2], group="a")]
        assert "waits" not in (await shell.run("get", "rated", first))[1]
        await (await take(rated)).ack()
        (told,) = await shell.value("get", "rated", second)
        _, out, _ = await shell.run("groups", "rated")
        assert out.startswith("a  blocked by its rate  1 wait")
        assert told["waits"] == ["perhaps the rate of its group (1 in 3600 s in each group): 1 group blocked"]


async def test_items_of_a_group(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("jobs")
        for group in ("a", "b"):
            await queue.push_many([1, 2, 3], group=group)
        for claim in await queue.pop_many(4, timeout=0):
            await claim.bury("bad")
        assert len(await shell.value("find", "jobs", "--group", "a")) == 3
        assert await shell.value("dead", "redrive", "jobs", "--group", "a", "--yes") == [{"redriven": 2}]
        assert await shell.value("dead", "discard", "jobs", "--group", "b", "--yes") == [{"removed": 2}]
        assert await shell.value("cancel", "jobs", "--group", "b", "--yes") == [{"cancelled": 1, "claimed": 0}]
        assert await shell.value("clear", "jobs", "--group", "a", "--yes") == [{"removed": 3}]


async def test_failures_are_counted_by_what_they_have_in_common(shell: Shell, servers: local.Servers) -> None:
    """Also where more died than are listed."""
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("jobs")
        for number, task in enumerate(("send", "send", "send", "print")):
            await queue.push(number, task=task)
            await (await take(queue)).bury("no paper" if task == "print" else f"late by {number + 1} s")
        counted = await shell.value("failures", "--by", "task")
        assert [(each["task"], each["items"], each["reasons"]) for each in counted] == [
            ("send", 3, {"late by … s": 3}),
            ("print", 1, {"no paper": 1}),
        ]
        assert [each["reason"] for each in await shell.value("failures", "--error", "PAPER")] == ["no paper"]
        assert await shell.run("failures", "--queue", "others") == (
            0,
            "0 items failed\n",
            "there is no queue 'others'\n",
        )
        assert (await shell.run("failures", "--state", "daed"))[0] == 2
        code, _, err = await shell.run("failures", "--by", "taks")
        assert (code, "'taks' is no property of items" in err, "did you mean 'task'?" in err) == (2, True, True)
        code, _, err = await shell.run("failures", "--by", "header campaing")
        assert (code, err) == (0, "none of these has the header campaing; they have: reason, task\n")
        _, out, err = await shell.run("dead", "list", "jobs", "--count", "2")
        assert (len(out.splitlines()), "oldest 2 of 4" in err) == (2, True)
        code, _, err = await shell.run("find", "jobs", "--state", "dead")
        assert (code, "`zkrq list jobs --state dead`" in err) == (2, True)
