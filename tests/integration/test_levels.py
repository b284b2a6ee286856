"""Levels on real servers: what waits for one, who is named as too old, what raising does, and who is refused then."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import zkrq
from tests.behaviour.helpers import working
from tests.harness import command, in_process, new_namespace, over_zookeeper, settled, take, until
from tests.integration.shell import Shell
from tests.levels import LATER, Later, later_release
from zkrq import local
from zkrq.base.version import __version__
from zkrq.client import upgrading
from zkrq.client.inner import client_of
from zkrq.coordination.coordinator import VIEW
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.protocol.levels import RELEASES, SPOKEN, ClientInfo, Levels, encode
from zkrq.protocol.scripts import LIBRARY
from zkrq.protocol.view import decode
from zkrq.protocol.view import encode as encode_view

pytestmark = pytest.mark.anyio

LEVEL = SPOKEN.highest
"""What a namespace has that this release founds."""


async def ignore(item: object) -> None:
    """Handle an item."""


@pytest.fixture
def later() -> Iterator[None]:
    """Run the release after this one."""
    with later_release():
        yield


async def test_what_the_release_before_cannot_read_waits_for_its_level(servers: local.Servers, later: None) -> None:
    async with in_process(servers, new_namespace()) as cluster:
        check = client_of(cluster).shards.placement.check
        assert cluster.level == LEVEL
        told = rf"a new thing: this needs level {LATER}, and .* level {LEVEL}.*`zkrq upgrade`"
        with pytest.raises(zkrq.ConfigError, match=told):
            check(Later.THING)
        assert await cluster.upgrade() == LATER == cluster.level == cluster.view.level
        check(Later.THING)


async def test_a_raised_level_names_its_release_in_the_view(servers: local.Servers, later: None) -> None:
    async with in_process(servers, new_namespace(), hub := Hub()) as cluster:
        content = json.loads(hub.read(VIEW).data or b"")
        assert content["level"] == LEVEL
        assert "raised_by" not in content
        await cluster.upgrade()
        content = json.loads(hub.read(VIEW).data or b"")
        assert (content["level"], content["raised_by"]) == (LATER, __version__)


async def test_the_level_is_not_raised_while_a_client_does_not_speak_it(servers: local.Servers, later: None) -> None:
    """One without an entry may speak the first alone; one may be refused on purpose, and can go on then."""
    hub, namespace, events = Hub(), new_namespace(), list[zkrq.Event]()
    async with (
        in_process(servers, namespace, hub, on_event=events.append) as cluster,
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
        with pytest.raises(zkrq.ConfigError, match=rf"1 client\(s\) do not speak level {LATER}: producer \(0\.1\.9\)"):
            await cluster.upgrade()
        del hub.introduced[f"{session}.2"]
        with pytest.raises(
            zkrq.ConfigError, match=rf"do not speak level {LATER}: old consumer \(of an unknown release\)"
        ):
            await cluster.upgrade()
        assert [consumer.version for consumer in (await cluster.consumers()).values()] == [""]
        assert (cluster.level, cluster.view.epoch) == (LEVEL, 1)
        assert await cluster.upgrade(force=True) == LATER
        assert (cluster.level, cluster.view.epoch) == (LATER, 2)
        assert await cluster.upgrade(force=True) == LATER, "again: nothing changes"
        assert cluster.view.epoch == 2
        assert [event.level for event in events if isinstance(event, zkrq.LevelRaised)] == [LATER]
    with pytest.raises(zkrq.ConfigError, match="a level is never lowered"):
        async with in_process(servers, namespace, hub) as other:
            await other.upgrade(LEVEL)


async def test_a_client_that_does_not_speak_the_level_writes_nothing_more(servers: local.Servers) -> None:
    """As this release will be refused by a later one: a client that is there, and one that comes."""
    hub, namespace, events = Hub(), new_namespace(), list[zkrq.Event]()
    async with in_process(servers, namespace, hub, on_event=events.append) as cluster:
        queue = cluster.queue("q")
        await queue.push("a")
        later = replace(decode(hub.read(VIEW).data or b""), epoch=2, level=LEVEL, raised_by="0.9.0")
        data = encode_view(later).replace(b'"level":%d' % LEVEL, b'"level":9')
        assert hub.swap(VIEW, data, hub.read(VIEW).version)
        # The client hears of it, although no server does yet.
        await until(lambda: bool([event for event in events if isinstance(event, zkrq.LevelRefused)]))
        pop = partial(queue.pop_many, 1, timeout=1)
        this = re.escape(f"this zkrq {RELEASES[LEVEL]} speaks {SPOKEN}")
        told = rf"level 9, that of zkrq 0\.9\.0, and {this}: install zkrq 0\.9\.0"
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


async def test_a_shard_that_is_added_has_the_level_of_its_namespace(servers: local.Servers, later: None) -> None:
    namespace, hub = new_namespace(), Hub()
    urls = servers.redis_urls
    one, two, three = urls
    async with in_process(servers, namespace, hub, min_replicas=1) as cluster:
        await cluster.remove_server(three)
        await cluster.add_shard("more", {three: urls[three]}, min_replicas=1)
        assert {status.view.level for status in cluster.shards.values() if status.view} == {LEVEL}
        with pytest.raises(zkrq.ConfigError, match=f"needs level {LATER}"):
            client_of(cluster).shards.placement.check(Later.THING)
        await cluster.upgrade()
        assert {status.view.level for status in cluster.shards.values() if status.view} == {LATER}
        assert {one, two} <= cluster.view.servers.keys()
        client_of(cluster).shards.placement.check(Later.THING)


async def test_an_upgrade_that_is_interrupted_says_so_and_is_continued(
    servers: local.Servers, monkeypatch: pytest.MonkeyPatch, later: None
) -> None:
    async with in_process(servers, new_namespace()) as cluster:
        replicas = client_of(cluster).shards.first.replicas

        async def away(call: object) -> None:
            raise zkrq.Unavailable("no server answers")

        with monkeypatch.context() as patched:
            patched.setattr(replicas, "tell_all", away)
            with pytest.raises(zkrq.OutcomeUnknown, match="a part was done before this failed: no server answers"):
                await cluster.upgrade()
        assert cluster.level == LATER
        assert await cluster.upgrade() == LATER


async def test_libraries_that_no_client_uses_are_removed_when_the_level_is_raised(
    servers: local.Servers, later: None
) -> None:
    """One that a client of another namespace still needed is loaded again by it."""
    unused = "#!lua name=zkrq_0123456789ab\nredis.register_function('zkrq_old', function() return 1 end)"
    foreign = "#!lua name=others\nredis.register_function('other', function() return 1 end)"
    async with in_process(servers, new_namespace()) as cluster:
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
    servers: local.Servers, monkeypatch: pytest.MonkeyPatch, later: None
) -> None:
    hub, events, now_ms = Hub(), list[zkrq.Event](), [1_700_000_000_000]
    monkeypatch.setattr(upgrading.clock, "now_ms", lambda: now_ms[0])
    options: dict[str, Any] = {"on_event": events.append, "auto_upgrade": True}
    async with in_process(servers, new_namespace(), hub, **options) as cluster:
        mine = client_of(cluster).upgrading

        def reported() -> list[tuple[str, ...]]:
            return [event.releases for event in events if isinstance(event, zkrq.SeveralReleases)]

        hub.enrolled["old-1"] = "old consumer"
        await mine.look()
        await mine.look()
        assert reported() == [(__version__, "unknown")]
        del hub.enrolled["old-1"]

        async def look_for(hours: int) -> None:
            for _ in range(2 * hours):
                now_ms[0] += 1_000 * 1800
                await mine.look()

        await look_for(23)
        assert cluster.level == LEVEL
        # For two days only the former release is there, and nobody who would note that: the day begins anew.
        now_ms[0] += 1_000 * 48 * 3600
        await mine.look()
        await look_for(23)
        assert cluster.level == LEVEL
        await look_for(2)
        assert cluster.level == LATER
        assert reported() == [(__version__, "unknown")]


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
    servers: local.Servers, monkeypatch: pytest.MonkeyPatch, later: None
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
    async with in_process(servers, new_namespace(), hub) as cluster, working(cluster.queue("q"), ignore):
        await until(lambda: bool(hub.enrolled))
        hub.expire(client_of(cluster).coordinator.session.id)
        await until(lambda: len({*named}) == 2)
        assert len({*tries}) == 2
        assert await cluster.upgrade() == LATER


async def test_the_command_line_says_who_is_too_old_and_raises_the_level(
    servers: local.Servers, prepared_zkrq: list[str]
) -> None:
    shell = Shell(servers, prepared_zkrq)
    namespace = shell.environment["ZKRQ_NAMESPACE"]
    async with over_zookeeper(servers, namespace, description="mailer") as cluster:
        coordinator = client_of(cluster).coordinator
        async with over_zookeeper(servers, namespace, description="old") as old:
            other = client_of(old).coordinator
            await other.enrol("old consumer")
            code, out, err = await shell.run("upgrade", "--check")
            assert (code, err) == (0, ""), "it has named its release"
            assert out == f"level {LEVEL} is active, and every client speaks level {LEVEL}\n"
            await other.introduce(encode(ClientInfo("mailer", "host-a", "0.1.9", Levels(0, 0), "zkrq_0123456789ab")), 9)
            code, out, err = await shell.run("upgrade", "--check")
            assert code != 0
            assert "host-a  mailer  zkrq 0.1.9" in out
            assert f"1 client must be replaced by zkrq {RELEASES[LEVEL]} or later first" in err
        session = coordinator.session.id
        await coordinator.introduce("never twice in one session")
        [client] = [each for each in (await cluster.clients()).items() if each[0] == session]
        assert client[1].description == "mailer"
        code, out, err = await shell.run("upgrade")
        assert (code, out, err) == (0, f"level {LEVEL} is active, as before\n", "")
        code, _, err = await shell.run("upgrade", "--level", "7")
        assert code != 0
        assert "level 7: this release speaks" in err
        assert (await shell.run("upgrade", "--check", "--level", "7"))[::2] == (code, err), "no release is known to"
        assert await shell.value("upgrade", "--check") == [{"level": LEVEL, "wanted": LEVEL}]
