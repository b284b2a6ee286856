"""Levels on real servers: what waits for one, who is named as too old, what raising does, and who is refused then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import zkrq
from tests.behaviour.helpers import working
from tests.harness import command, in_process, new_namespace, over_zookeeper, settled, take, until
from tests.history import NO_HISTORY, has_history
from tests.integration.shell import Shell
from tests.simulation.code import load_before
from zkrq import local
from zkrq.base.version import __version__
from zkrq.client import upgrading
from zkrq.client.inner import client_of
from zkrq.client.stored import StoredResults
from zkrq.coordination.coordinator import VIEW
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.protocol.levels import SPOKEN, ClientInfo, Levels, encode
from zkrq.protocol.scripts import LIBRARY
from zkrq.protocol.view import decode
from zkrq.protocol.view import encode as encode_view

pytestmark = pytest.mark.anyio


async def ignore(item: object) -> None:
    """Handle an item."""


FEATURES: dict[str, Callable[[zkrq.Cluster], Awaitable[object]]] = {
    "group": lambda cluster: cluster.queue("q").push("a", group="g"),
    "many in a group": lambda cluster: cluster.queue("q").push_many(["a"], group="g"),
    "groups": lambda cluster: cluster.queue("grouped", groups=zkrq.Groups()).push("a"),
    "limits of groups": lambda cluster: cluster.queue("q").set_groups(zkrq.Groups(concurrency=1)),
    "rates of groups": lambda cluster: cluster.queue("rated", groups=zkrq.Groups(rate=(1, 1))).push("a", group="g"),
    "limits": lambda cluster: cluster.queue("q").set_limits(zkrq.Limits(concurrency=1)),
    "limits as an option": lambda cluster: cluster.queue("limited", limits=zkrq.Limits(concurrency=1)).push("a"),
    "results": lambda cluster: cluster.queue("sums", results=zkrq.Results()).push("a"),
    "results of a consumer": lambda cluster: cluster.queue("sums", results=zkrq.Results()).pop_one(timeout=0),
    "a result": lambda cluster: cluster.queue("sums", results=zkrq.Results()).result("x", timeout=0),
    "ordered groups": lambda cluster: cluster.queue("ordered", groups=zkrq.Groups(ordered=True)).push("a", group="g"),
    "a result of a framework": lambda cluster: StoredResults(cluster.queue("tasks", codec=zkrq.RAW)).store(
        "x", b"1", ttl=60
    ),
    "history": lambda cluster: cluster.queue("q").set_history(10),
    "history as an option": lambda cluster: cluster.queue("kept", history=10).push("a"),
    "dead letters": lambda cluster: cluster.queue("q").set_dead_letters(zkrq.DeadLetters(5)),
    "catch_up of a schedule": lambda cluster: cluster.schedules().add(
        cluster.queue("q"), f"nightly {cluster.level}", 3600, "a", catch_up=241
    ),
    "key_window": lambda cluster: cluster.queue("q").push("a", key="k", key_window=60),
    "replace": lambda cluster: cluster.queue("q").push("a", key="k", replace=True),
}


@pytest.mark.parametrize("feature", FEATURES)
async def test_what_the_release_before_cannot_read_waits_for_its_level(servers: local.Servers, feature: str) -> None:
    """Nothing is written, and everything else works."""
    async with in_process(servers, new_namespace(), level=1) as cluster:
        assert cluster.level == 1
        with pytest.raises(zkrq.ConfigError, match=r"needs level 2, and the namespace is at level 1.*`zkrq upgrade`"):
            await FEATURES[feature](cluster)
        assert [name for name, told in (await cluster.statistics()).items() if any(told.sizes)] == []
        await cluster.queue("plain").push("a", key="k", delay=0)
        await (await take(cluster.queue("plain"))).ack()
        assert await cluster.upgrade() == 2 == cluster.level == cluster.view.level
        await FEATURES[feature](cluster)


async def test_a_program_that_began_below_a_level_declares_when_it_is_raised(servers: local.Servers) -> None:
    """Until then its size and its dead letters hold for itself only."""
    letters = zkrq.DeadLetters(max_count=2)
    async with in_process(servers, new_namespace(), level=1) as cluster:
        queue = cluster.queue("q", max_size=9, dead_letters=letters)
        await queue.push_many(range(3))
        assert await queue.settings() == zkrq.QueueSettings()
        for claim in await queue.pop_many(3):
            await claim.bury("bad")
        assert (await queue.size()).dead == 2
        await cluster.upgrade()
        await queue.push("next")
        assert await queue.settings() == zkrq.QueueSettings(max_size=9, dead_letters=letters)


async def test_what_is_written_at_the_first_level_is_what_the_release_before_writes(servers: local.Servers) -> None:
    async with in_process(servers, new_namespace(), hub := Hub(), level=1):
        content = json.loads(hub.read(VIEW).data or b"")
        assert content["format"] == 2
        assert not content.keys() & {"level", "raised_by"}


async def test_the_level_is_not_raised_while_a_client_does_not_speak_it(servers: local.Servers) -> None:
    """A consumer without an entry is of a release without levels; one may be refused on purpose, and can go on then."""
    hub, namespace, events = Hub(), new_namespace(), list[zkrq.Event]()
    async with (
        in_process(servers, namespace, hub, level=1, on_event=events.append) as cluster,
        in_process(servers, namespace, hub, description="old consumer") as old,
        working(old.queue("q"), ignore),
    ):
        await until(lambda: bool(hub.enrolled))
        session = client_of(old).coordinator.session.id
        await until(lambda: f"{session}.2" in hub.introduced)  # with the slots of its worker
        assert (await cluster.clients())[session].version == __version__
        hub.introduced[f"{session}.2"] = encode(
            ClientInfo("producer", "host-a", "0.1.9", Levels(1, 1), "zkrq_0123456789ab")
        )
        with pytest.raises(zkrq.ConfigError, match=r"1 client\(s\) do not speak level 2: producer \(0\.1\.9\)"):
            await cluster.upgrade()
        del hub.introduced[f"{session}.2"]
        with pytest.raises(zkrq.ConfigError, match=r"do not speak level 2: old consumer \(before 0\.2\.0\)"):
            await cluster.upgrade()
        assert [consumer.version for consumer in (await cluster.consumers()).values()] == [""]
        assert (cluster.level, cluster.view.epoch) == (1, 1)
        assert await cluster.upgrade(force=True) == 2
        assert (cluster.level, cluster.view.epoch) == (2, 2)
        assert await cluster.upgrade(force=True) == 2, "again: nothing changes"
        assert cluster.view.epoch == 2
        assert [event.level for event in events if isinstance(event, zkrq.LevelRaised)] == [2]
    with pytest.raises(zkrq.ConfigError, match="a level is never lowered"):
        async with in_process(servers, namespace, hub) as later:
            await later.upgrade(1)


async def test_a_client_that_does_not_speak_the_level_writes_nothing_more(servers: local.Servers) -> None:
    """As this release will be refused by a later one: a client that is there, and one that comes."""
    hub, namespace, events = Hub(), new_namespace(), list[zkrq.Event]()
    async with in_process(servers, namespace, hub, on_event=events.append) as cluster:
        queue = cluster.queue("q")
        await queue.push("a")
        later = replace(decode(hub.read(VIEW).data or b""), epoch=2, level=2, raised_by="0.9.0")
        data = encode_view(later).replace(b'"level":2', b'"level":9')
        assert hub.swap(VIEW, data, hub.read(VIEW).version)
        # The client hears of it, although no server does yet.
        await until(lambda: bool([event for event in events if isinstance(event, zkrq.LevelRefused)]))
        pop = partial(queue.pop_many, 1, timeout=1)
        told = r"level 9, that of zkrq 0\.9\.0, and this zkrq 0\.2\.0 speaks levels 1 to 2: install zkrq 0\.9\.0"
        add = partial(cluster.schedules().add, queue, "nightly", 60, 1)
        more = partial(cluster.add_shard, "more", {"redis-9": "redis://127.0.0.1:1"}, min_replicas=1)
        limit = partial(queue.set_limits, zkrq.Limits(concurrency=1))
        calls = (partial(queue.push, "b"), partial(queue.cancel, "x"), queue.pause, queue.size, pop, add, more, limit)
        for attempt in calls:
            with pytest.raises(zkrq.ConfigError, match=told):
                await attempt()
        refusals = [event for event in events if isinstance(event, zkrq.LevelRefused)]
        assert len(refusals) == 1
        assert refusals[0].reason in cluster.health().trouble
        assert not cluster.health().ok
        with pytest.raises(zkrq.ConfigError, match=told):
            async with in_process(servers, namespace, hub):
                pass
    assert hub.read(VIEW).data == data
    assert hub.registers.keys() == {VIEW}


async def test_a_client_that_does_not_speak_the_level_leads_no_more(
    servers: local.Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the leader does for all, such as the scrub, would be left undone for as long as it lives."""
    monkeypatch.setattr(upgrading, "LOOK_SECONDS", 0.05)
    hub, namespace = Hub(), new_namespace()
    async with in_process(servers, namespace, hub) as old, in_process(servers, namespace, hub) as new:
        await until(lambda: client_of(old).coordinator.leading)
        client_of(old).shard.membership.refusal = "it is at level 9"
        await until(lambda: client_of(new).coordinator.leading)
        assert not client_of(old).coordinator.leading


async def test_a_shard_that_is_added_has_the_level_of_its_namespace(servers: local.Servers) -> None:
    namespace, hub = new_namespace(), Hub()
    urls = servers.redis_urls
    one, two, three = urls
    async with in_process(servers, namespace, hub, level=1, min_replicas=1) as cluster:
        await cluster.remove_server(three)
        await cluster.add_shard("more", {three: urls[three]}, min_replicas=1)
        assert {status.view.level for status in cluster.shards.values() if status.view} == {1}
        with pytest.raises(zkrq.ConfigError, match="needs level 2"):
            await cluster.queue("q").push("a", group="g")
        await cluster.upgrade()
        assert {status.view.level for status in cluster.shards.values() if status.view} == {2}
        assert {one, two} <= cluster.view.servers.keys()
        await cluster.queue("q").push("a", group="g")


async def test_an_upgrade_that_is_interrupted_says_so_and_is_continued(
    servers: local.Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_process(servers, new_namespace(), level=1) as cluster:
        replicas = client_of(cluster).shards.first.replicas

        async def away(call: object) -> None:
            raise zkrq.Unavailable("no server answers")

        with monkeypatch.context() as patched:
            patched.setattr(replicas, "tell_all", away)
            with pytest.raises(zkrq.OutcomeUnknown, match="a part was done before this failed: no server answers"):
                await cluster.upgrade()
        assert cluster.level == 2
        assert await cluster.upgrade() == 2


async def test_libraries_that_no_client_uses_are_removed_when_the_level_is_raised(servers: local.Servers) -> None:
    """One that a client of another namespace still needed is loaded again by it."""
    unused = "#!lua name=zkrq_0123456789ab\nredis.register_function('zkrq_old', function() return 1 end)"
    foreign = "#!lua name=others\nredis.register_function('other', function() return 1 end)"
    async with in_process(servers, new_namespace(), level=1) as cluster:
        await cluster.queue("q").push("a")
        for server in servers.redis:
            for text in (unused, foreign):
                await command(server, "FUNCTION", "LOAD", "REPLACE", text)
        await cluster.upgrade()
        for server in servers.redis:
            listed = await command(server, "FUNCTION", "LIST")
            assert b"zkrq_0123456789ab" not in listed
            assert LIBRARY.name.encode() in listed
            assert b"others" in listed
            await command(server, "FUNCTION", "DELETE", "others")
            await command(server, "FUNCTION", "DELETE", LIBRARY.name)
        await (await take(cluster.queue("q"))).ack()


async def test_the_leader_reports_several_releases_and_upgrades_a_day_after_the_last_old_one(
    servers: local.Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, events, now_ms = Hub(), list[zkrq.Event](), [1_700_000_000_000]
    monkeypatch.setattr(upgrading.clock, "now_ms", lambda: now_ms[0])
    options: dict[str, Any] = {"level": 1, "on_event": events.append, "auto_upgrade": True}
    async with in_process(servers, new_namespace(), hub, **options) as cluster:
        mine = client_of(cluster).upgrading

        def reported() -> list[tuple[str, ...]]:
            return [event.releases for event in events if isinstance(event, zkrq.SeveralReleases)]

        hub.enrolled["old-1"] = "old consumer"
        await mine.look()
        await mine.look()
        assert reported() == [(__version__, "older")]
        del hub.enrolled["old-1"]

        async def look_for(hours: int) -> None:
            for _ in range(2 * hours):
                now_ms[0] += 1_000 * 1800
                await mine.look()

        await look_for(23)
        assert cluster.level == 1
        # For two days only the former release is there, and nobody who would note that: the day begins anew.
        now_ms[0] += 1_000 * 48 * 3600
        await mine.look()
        await look_for(23)
        assert cluster.level == 1
        await look_for(2)
        assert cluster.level == SPOKEN.highest
        assert reported() == [(__version__, "older")]


async def test_a_client_is_named_in_each_of_its_sessions(servers: local.Servers) -> None:
    hub = Hub()
    async with in_process(servers, new_namespace(), hub, description="mailer") as cluster:
        first = client_of(cluster).coordinator.session.id
        assert {info.description for info in (await cluster.clients()).values()} == {"mailer"}
        hub.expire(first)

        async def is_named() -> bool:
            return [session for session in await cluster.clients() if session != first] != []

        await settled(is_named)
        (info,) = (await cluster.clients()).values()
        assert (info.description, info.levels, info.library) == ("mailer", SPOKEN, LIBRARY.name)


async def test_a_client_that_could_not_name_its_release_does_so_later(
    servers: local.Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it seems too old, and nobody can raise the level."""
    monkeypatch.setattr(upgrading, "LOOK_SECONDS", 0.05)
    hub, introduce, tries, named = Hub(), MemoryCoordinator.introduce, list[str](), list[str]()

    async def fail_twice(coordinator: MemoryCoordinator, text: str, number: int = 1) -> None:
        tries.append(coordinator.session.id)
        if tries[-1] != tries[0] and tries.count(tries[-1]) <= 2:
            raise zkrq.Unavailable("ZooKeeper does not answer")
        await introduce(coordinator, text, number)
        named.append(coordinator.session.id)

    monkeypatch.setattr(MemoryCoordinator, "introduce", fail_twice)
    async with in_process(servers, new_namespace(), hub, level=1) as cluster, working(cluster.queue("q"), ignore):
        await until(lambda: bool(hub.enrolled))
        hub.expire(client_of(cluster).coordinator.session.id)
        await until(lambda: len({*named}) == 2)
        assert len({*tries}) == 2
        assert await cluster.upgrade() == SPOKEN.highest


@pytest.mark.skipif(not has_history(), reason=NO_HISTORY)
async def test_a_program_of_the_release_before_that_only_pushes_is_found_by_its_functions(
    servers: local.Servers,
) -> None:
    """It has no entry, and is no consumer: nothing else tells of it."""
    before, namespace, hub = load_before(), new_namespace(), Hub()
    settings = before.make_settings(namespace=namespace, description="only pushes")
    async with in_process(servers, namespace, hub, level=1) as cluster:
        find = client_of(cluster).upgrading.find_unnamed
        await find(wait=0.001)  # what was left over
        assert (await find()).libraries == {}
        async with before.make_cluster(servers.redis_urls, MemoryCoordinator(hub), settings) as old:
            await old.queue("q").push(1)
            assert [each.version for each in (await cluster.clients()).values()] == [__version__]
            library: str = before.module("protocol.scripts").LIBRARY.name
            used = {server: [library] for server in servers.redis_urls}
            assert (await find()).libraries == used
            looking = asyncio.create_task(find(wait=0.2))
            while not looking.done():
                await old.queue("q").push(2)
            assert looking.result().libraries == used
        assert (await find(wait=0.001)).libraries == {}


async def test_the_command_line_tells_of_programs_that_no_list_has(
    servers: local.Servers, prepared_zkrq: list[str]
) -> None:
    shell, (one, *_) = Shell(servers, prepared_zkrq), servers.redis
    found = "#!lua name=zkrq_0123456789ab\nredis.register_function('zkrq_seal_0123456789ab', function() end)"

    async def load() -> None:
        assert b"zkrq_0123456789ab" in await command(one, "FUNCTION", "LOAD", "REPLACE", found)

    async def keep_loading() -> None:
        while True:
            await load()

    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        coordinator = client_of(cluster).coordinator
        view = await coordinator.read(VIEW)
        founded = replace(decode(view.data or b""), level=1, raised_by="")
        assert await coordinator.swap(VIEW, encode_view(founded), view.version)
        await load()
        code, out, err = await shell.run("upgrade", "--check")
        assert (code, err) == (0, "")
        assert f"{one.name}  has functions that no listed client uses: zkrq_0123456789ab" in out
        assert "a program of zkrq before 0.2.0 that only pushes names no release" in out
        assert "`zkrq upgrade --check --wait 60`" in out
        using = asyncio.create_task(keep_loading())
        code, out, err = await shell.run("upgrade", "--check", "--wait", "0.1")
        using.cancel()
        await asyncio.wait([using])
        assert code == 1
        assert "one has loaded its functions again" in err
        assert await command(one, "ACL", "SETUSER", "default", "-function|delete") == b"+OK\r\n+OK\r\n"
        code, out, err = await shell.run("upgrade", "--check", "--wait", "0.001")
        await command(one, "ACL", "SETUSER", "default", "+function|delete")
        assert (code, err) == (0, "")
        assert f"{one.name}  whether a program uses functions of another release is not known: " in out
        code, out, err = await shell.run("upgrade", "--check", "--wait", "0.001")
        assert (code, err) == (0, "")
        assert out == "level 1 is active, and every client that is known speaks level 2\n"


async def test_the_command_line_says_who_is_too_old_and_raises_the_level(
    servers: local.Servers, prepared_zkrq: list[str]
) -> None:
    shell = Shell(servers, prepared_zkrq)
    namespace = shell.environment["ZKRQ_NAMESPACE"]
    async with over_zookeeper(servers, namespace, description="mailer") as cluster:
        coordinator = client_of(cluster).coordinator
        found = await coordinator.read(VIEW)
        founded = replace(decode(found.data or b""), level=1, raised_by="")
        assert await coordinator.swap(VIEW, encode_view(founded), found.version)
        session = coordinator.session.id
        await coordinator.introduce("never twice in one session")
        async with over_zookeeper(servers, namespace, description="old") as old:
            other = client_of(old).coordinator
            await other.enrol("old consumer")
            code, out, err = await shell.run("upgrade", "--check")
            assert (code, err) == (0, ""), "it has named its release"
            assert "level 1 is active, and every client that is known speaks level 2" in out
        [client] = [each for each in (await cluster.clients()).items() if each[0] == session]
        assert client[1].description == "mailer"
        code, out, err = await shell.run("upgrade")
        assert (code, out, err) == (0, "level 2 is active; before: 1\n", "")
        code, out, err = await shell.run("upgrade")
        assert (code, out, err) == (0, "level 2 is active, as before\n", "")
        code, _, err = await shell.run("upgrade", "--level", "7")
        assert code != 0
        assert "level" in err
        assert await shell.value("upgrade", "--check") == [{"level": 2, "wanted": 2}]
