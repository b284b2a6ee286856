"""Schedules that the namespace stores: added at run time, or declared in code and changed by an operator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

import zkrq
from tests.harness import A_WHILE, in_process, new_namespace, settled, take, until
from zkrq import local
from zkrq.base.clock import now
from zkrq.base.ids import made_at_ms
from zkrq.client.cluster import Cluster
from zkrq.client.schedule_store import SCHEDULES
from zkrq.coordination.memory import Hub
from zkrq.operations.push import PUSH
from zkrq.operations.schedules import LEFT_OUT, OPTIONS, SCHEDULE

pytestmark = pytest.mark.anyio


class Pair:
    """Two clients of one namespace, and what the first one reports."""

    def __init__(self, servers: local.Servers) -> None:
        self.servers = servers
        self.namespace, self.hub = new_namespace(), Hub()
        self.told = list[zkrq.Event]()

    def client(self) -> Cluster:
        return in_process(self.servers, self.namespace, self.hub, on_event=self.told.append)


@pytest.fixture
def pair(servers: local.Servers) -> Pair:
    return Pair(servers)


@pytest.fixture
async def cluster(pair: Pair) -> AsyncGenerator[Cluster, None]:
    async with pair.client() as opened:
        yield opened


async def test_what_is_added_is_pushed_once_by_all_that_run_schedules(pair: Pair, cluster: Cluster) -> None:
    queue, schedules = cluster.queue("reports"), cluster.schedules()
    async with AsyncExitStack() as stack:
        for _ in range(3):
            other = await stack.enter_async_context(pair.client())
            await stack.enter_async_context(other.schedules().run())
        before = now()
        added = await schedules.add(queue, "nightly", 0.3, {"kind": "daily"}, priority=4)
        assert added == await schedules.get("reports", "nightly")
        assert await schedules.list() == [added]
        moments = set[str]()
        for _ in range(4):
            claim = await take(queue)
            assert (claim.item, claim.priority) == ({"kind": "daily"}, 4)
            assert claim.id not in moments
            moments.add(claim.id)
            assert claim.pushed_at >= before - timedelta(seconds=0.1), "no moment of before it was added"
            await claim.ack()
        await schedules.remove(queue, "nightly")
    assert await schedules.list() == []
    assert cluster.health().ok


async def test_paused_it_pushes_nothing_and_resumed_only_what_comes(pair: Pair, cluster: Cluster) -> None:
    queue, schedules = cluster.queue("reports"), cluster.schedules()
    async with pair.client() as other, other.schedules().run():
        await schedules.add(queue, "nightly", 0.2, 1)
        await (await take(queue)).ack()
        paused = await schedules.pause("reports", "nightly")
        assert paused.paused
        assert paused.next(now()) is None
        store = other._client.schedule_store  # pyright: ignore[reportPrivateUsage]
        await until(lambda: all(entry.paused for entry in store.known.entries.values()))
        while claim := await queue.pop_one(timeout=1.0):
            await claim.ack()
        assert await queue.pop_one(timeout=A_WHILE) is None
        resumed = await schedules.resume("reports", "nightly")
        assert resumed.since
        assert not resumed.paused
        claim = await take(queue)
        assert (made_at_ms(claim.id) or 0) > resumed.since.timestamp() * 1000, "no moment of the pause"


async def test_it_is_run_now_and_its_moments_stay(pair: Pair, cluster: Cluster) -> None:
    queue, schedules = cluster.queue("reports"), cluster.schedules()
    await schedules.add(queue, "nightly", 86_400, "report", priority=3, headers={"by": "hand"})
    paused = await schedules.pause(queue, "nightly")
    receipts = [await schedules.run_now("reports", "nightly") for _ in range(2)]
    for receipt in receipts:
        claim = await take(queue)
        assert (claim.id, claim.item, claim.priority) == (receipt.id, "report", 3)
        assert claim.headers == {"by": "hand"}
        await claim.ack()
    assert await schedules.get(queue, "nightly") == paused
    with pytest.raises(zkrq.ConfigError, match="is not stored; nothing was pushed"):
        await schedules.run_now("reports", "daily")
    store = cluster._client.schedule_store  # pyright: ignore[reportPrivateUsage]
    async with cluster.every(86_400, queue, lambda moment: "made", name="made"):
        await until(lambda: any(key.name == "made" for key in store.known.entries))
        with pytest.raises(zkrq.ConfigError, match="code makes its item"):
            await schedules.run_now("reports", "made")
        await schedules.change(queue, "made", item="given")
        assert (await schedules.run_now("reports", "made")).new


async def test_changed_it_pushes_what_it_says_now(pair: Pair, cluster: Cluster) -> None:
    queue, schedules = cluster.queue("reports"), cluster.schedules()
    async with pair.client() as other, other.schedules().run():
        await schedules.add(queue, "nightly", 3600, "old", offset=60)
        changed = await schedules.change(queue, "nightly", when=0.2, item="new", priority=2)
        assert (changed.when, changed.offset, changed.priority) == (0.2, 0, 2)
        claim = await take(queue)
        assert (claim.item, claim.priority) == ("new", 2)


OPTIONS_GIVEN: dict[str, Any] = {
    "key": "k",
    "key_window": 60.0,
    "group": "tenant",
    "priority": 4,
    "ttl": 3600.0,
    "headers": {"by": "schedule"},
    "task": "report",
}
"""A value of each option of a push that pushes of a schedule have."""


async def test_a_schedule_pushes_with_the_options_of_a_push(pair: Pair, cluster: Cluster) -> None:
    """The first item of a key keeps those of later moments away, which count as pushed."""
    assert OPTIONS_GIVEN.keys() == OPTIONS.by_name.keys() == PUSH.by_name.keys() - LEFT_OUT.keys()
    queue, schedules = cluster.queue("reports"), cluster.schedules()
    async with pair.client() as other, other.schedules().run():
        added = await schedules.add(queue, "nightly", 0.2, 1, **OPTIONS_GIVEN)
        assert added.options == OPTIONS_GIVEN
        assert OPTIONS_GIVEN.items() <= SCHEDULE.tell(added).items()
        claim = await take(queue)
        assert (claim.key, claim.group, claim.priority, claim.headers) == ("k", "tenant", 4, {"by": "schedule"})
        assert claim.task == "report"
        await claim.ack()
        last = (await schedules.list())[0].last
        await settled(lambda: _has_pushed_after(schedules, last))
        assert await queue.pop_one(timeout=0) is None, "the window of its key is not over"
        changed = await schedules.change(queue, "nightly", key=None, key_window=None, headers=None, priority=0)
        assert changed.options == {"group": "tenant", "ttl": 3600.0, "task": "report"}
        claim = await take(queue)
        assert (claim.key, claim.group, claim.priority, claim.headers) == (None, "tenant", 0, {})
    assert not [event for event in pair.told if isinstance(event, zkrq.MomentsLost)]


async def _has_pushed_after(schedules: zkrq.StoredSchedules, moment: datetime | None) -> bool:
    last = (await schedules.list())[0].last
    return last is not None and (moment is None or last > moment)


async def test_code_declares_the_options_of_each_push(cluster: Cluster) -> None:
    queue = cluster.queue("reports")
    async with cluster.every(0.2, queue, "x", name="nightly", **OPTIONS_GIVEN):
        claim = await take(queue)
        assert (claim.key, claim.group, claim.priority, claim.headers) == ("k", "tenant", 4, {"by": "schedule"})
        (entry,) = await cluster.schedules().list()
        assert entry.options == OPTIONS_GIVEN
    for wrong in ("delay", "clock"):
        with pytest.raises(TypeError, match=rf"every\(\) has no option '{wrong}'"):
            cluster.every(60, queue, "x", **{wrong: 1})  # type: ignore[arg-type]


async def test_another_program_pushes_for_a_schedule_with_its_mark(pair: Pair, cluster: Cluster) -> None:
    queue, schedules = cluster.queue("reports"), cluster.schedules()
    async with pair.client() as other, other.schedules().run():
        kept = await schedules.keep(zkrq.StoredSchedule("reports", "theirs", 0.1, payload=b"1", mark="mine"))
        assert (kept.mark, kept.declared) == ("mine", True)
        await schedules.pause("reports", "theirs")
        assert (await schedules.keep(replace(kept, when=0.2))).paused, "a pause holds"
        await schedules.resume("reports", "theirs")
        assert await queue.pop_one(timeout=A_WHILE) is None
    with pytest.raises(zkrq.ConfigError, match="give it a mark"):
        await schedules.keep(replace(kept, mark=""))
    moment = zkrq.next_moments(60, now())[0]
    receipts = [await queue.push("x", id=zkrq.moment_id("theirs", moment)) for _ in range(2)]
    assert [each.new for each in receipts] == [True, False]


async def test_an_item_has_one_key(cluster: Cluster) -> None:
    """Beyond 240 seconds each item has the key of its moment, so a schedule has none."""
    queue, schedules = cluster.queue("reports"), cluster.schedules()
    with pytest.raises(zkrq.ConfigError, match="key excludes catch_up of more than 240 s"):
        cluster.every(3600, queue, "x", name="nightly", catch_up=241, key="k")
    await schedules.add(queue, "late", 3600, 1, catch_up=241, group="tenant")
    with pytest.raises(zkrq.ConfigError, match="key excludes catch_up of more than 240 s"):
        await schedules.change(queue, "late", key="k")
    await schedules.add(queue, "keyed", 3600, 1, key="k")
    with pytest.raises(zkrq.ConfigError, match="key excludes catch_up of more than 240 s"):
        await schedules.change(queue, "keyed", catch_up=241)
    assert (await schedules.change(queue, "keyed", catch_up=241, key=None)).options == {}


async def test_an_operator_pauses_what_code_declares(pair: Pair, cluster: Cluster) -> None:
    """The pause holds for a process that starts later, until it is resumed."""
    queue, schedules = cluster.queue("reports"), cluster.schedules()
    handle = cluster.every(0.2, queue, datetime.isoformat, name="nightly")
    await take(queue)
    (entry,) = await schedules.list()
    assert (entry.declared, entry.payload, str(entry)) == (True, None, "every 0.2 s")
    await schedules.pause(queue, "nightly")
    await until(lambda: "paused" in repr(handle))
    handle.cancel()
    await queue.clear()
    async with pair.client() as other:
        again = other.every(0.2, other.queue("reports"), datetime.isoformat, name="nightly")
        await until(lambda: "paused" in repr(again))
        assert await queue.pop_one(timeout=A_WHILE) is None
        await schedules.resume(queue, "nightly")
        await take(queue)
    assert not [event for event in pair.told if isinstance(event, zkrq.ScheduleChanged)]


async def test_an_operators_change_survives_a_restart_and_not_another_declaration(pair: Pair, cluster: Cluster) -> None:
    queue, schedules = cluster.queue("reports"), cluster.schedules()
    handle = cluster.every(3600, queue, "by code", name="nightly", catch_up=1)
    await settled(lambda: _has(schedules, 3600))
    await schedules.change(queue, "nightly", when=0.2, item="by an operator")
    assert (await take(queue)).item == "by an operator"
    handle.cancel()
    await queue.clear()
    same = cluster.every(3600, queue, "by code", name="nightly", catch_up=1)
    assert (await take(queue)).item == "by an operator"
    same.cancel()
    await schedules.pause(queue, "nightly")
    async with cluster.every(0.3, queue, "by new code", name="nightly") as newer:
        await settled(lambda: _has(schedules, 0.3))
        (told,) = [event for event in pair.told if isinstance(event, zkrq.ScheduleChanged)]
        assert (told.before, told.after) == ("every 0.2 s", "every 0.3 s")
        await until(lambda: "paused" in repr(newer))
        while claim := await queue.pop_one(timeout=0):
            assert claim.item == "by an operator", "the pause holds for another declaration, too"
            await claim.ack()
        await schedules.resume(queue, "nightly")
        assert (await take(queue)).item == "by new code"


async def _has(schedules: zkrq.StoredSchedules, when: float) -> bool:
    return [entry.when for entry in await schedules.list()] == [when]


async def test_removed_it_comes_back_only_when_code_declares_it(cluster: Cluster) -> None:
    queue, schedules = cluster.queue("reports"), cluster.schedules()
    handle = cluster.every(0.2, queue, 1, name="nightly")
    await take(queue)
    await schedules.remove("reports", "nightly")
    await until(lambda: "paused" in repr(handle))
    handle.cancel()
    await queue.clear()
    async with cluster.every(0.2, queue, 1, name="nightly"):
        await take(queue)
        assert len(await schedules.list()) == 1


async def test_when_zookeeper_has_lost_it_running_code_declares_it_again(pair: Pair, cluster: Cluster) -> None:
    """Nobody has removed it, so it must not end in silence; also if another client was faster to write anew."""
    queue, schedules = cluster.queue("reports"), cluster.schedules()
    async with pair.client() as other, cluster.every(0.2, queue, 1, name="nightly") as handle:
        for _ in range(2):
            await until(lambda: handle.last is not None)
            del pair.hub.registers[SCHEDULES]
            cluster._client.register_changed(SCHEDULES)  # pyright: ignore[reportPrivateUsage]
            await settled(lambda: _names(schedules, "nightly"))
        del pair.hub.registers[SCHEDULES]
        await other.schedules().add(other.queue("reports"), "hourly", 3600, 1)
        await settled(lambda: _names(schedules, "hourly", "nightly"))
        last = handle.last
        await until(lambda: handle.last != last)
        assert "running" in repr(handle)


async def _names(schedules: zkrq.StoredSchedules, *names: str) -> bool:
    return [entry.name for entry in await schedules.list()] == [*names]


async def test_a_codec_that_this_process_does_not_have(pair: Pair, cluster: Cluster) -> None:
    """What runs schedules pushes the bytes as they were stored."""
    queue = cluster.queue("pictures", codec=zkrq.RAW)
    async with pair.client() as other, other.schedules().run():
        await cluster.schedules().add(queue, "nightly", 0.2, b"\xff\x00")
        assert (await take(queue)).item == b"\xff\x00"


async def test_without_zookeeper_it_goes_on_and_a_pause_is_heard_afterwards(pair: Pair, cluster: Cluster) -> None:
    queue, schedules = cluster.queue("reports"), cluster.schedules()
    async with pair.client() as other:
        handle = other.every(0.2, other.queue("reports"), 1, name="nightly")
        await take(queue)
        coordinator = other._client.coordinator  # pyright: ignore[reportPrivateUsage]
        pair.hub.suspend(coordinator)  # pyright: ignore[reportArgumentType]
        await schedules.pause(queue, "nightly")
        last = handle.last
        await until(lambda: handle.last != last)
        pair.hub.resume(coordinator)  # pyright: ignore[reportArgumentType]
        await until(lambda: "paused" in repr(handle))


async def test_what_is_declared_while_zookeeper_is_away_waits(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.hub.session_timeout = 0.5
    async with pair.client() as cluster:
        coordinator = cluster._client.coordinator  # pyright: ignore[reportPrivateUsage]
        pair.hub.suspend(coordinator)  # pyright: ignore[reportArgumentType]
        queue = cluster.queue("reports")
        cluster.every(0.2, queue, 1, name="nightly")
        await until(lambda: "nothing is pushed yet" in caplog.text)
        pair.hub.resume(coordinator)  # pyright: ignore[reportArgumentType]
        await take(queue)


async def test_what_nobody_can_read_keeps_code_from_nothing(
    pair: Pair, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    assert pair.hub.swap(SCHEDULES, b'{"format": 99}', -1)
    queue = cluster.queue("reports")
    with pytest.raises(zkrq.ConfigError, match="upgrade"):
        await cluster.schedules().list()
    async with cluster.every(0.2, queue, 1, name="nightly"):
        await take(queue)
    assert "it cannot be paused or changed" in caplog.text


async def test_bad_arguments_change_nothing(pair: Pair, cluster: Cluster) -> None:
    queue, schedules = cluster.queue("reports"), cluster.schedules()
    await schedules.add(queue, "nightly", 60, 1)
    written = pair.hub.read(SCHEDULES)
    wrong = [
        ("already", schedules.add(queue, "nightly", 60, 1)),
        ("at least", schedules.add(queue, "other", 0.01, 1)),
        ("zone", schedules.add(queue, "other", 60, 1, zone="Europe/Berlin")),
        ("catch_up", schedules.add(queue, "other", 60, 1, catch_up=604_801)),
        ("at most 10,080 are remembered: give at most 5040 s", schedules.add(queue, "other", 0.5, 1, catch_up=5_041)),
        ("'all', 'last', 'none'", schedules.add(queue, "other", 60, 1, missed="some")),  # pyright: ignore[reportArgumentType]
        ("priority", schedules.add(queue, "other", 60, 1, priority=10)),
        ("name", schedules.add(queue, " ", 60, 1)),
        ("no schedule 'weekly' of queue 'reports'; that queue has: 'nightly'", schedules.pause(queue, "weekly")),
        ("that queue has: none", schedules.remove("other", "nightly")),
        ("say what", schedules.change(queue, "nightly")),
        ("queue's name", schedules.pause("no queue", "nightly")),
    ]
    for match, call in wrong:
        with pytest.raises(zkrq.ConfigError, match=match):
            await call
    with pytest.raises(zkrq.PayloadTooLarge, match="stored schedule"):
        await schedules.add(queue, "other", 60, "x" * 17_000)
    with pytest.raises(zkrq.CodecError):
        await schedules.add(queue, "other", 60, object())
    assert pair.hub.read(SCHEDULES) == written


async def test_a_catch_up_as_long_as_its_error_says(cluster: Cluster) -> None:
    added = await cluster.schedules().add(cluster.queue("reports"), "often", 0.5, 1, catch_up=5_040)
    assert added.catch_up == 5_040


async def test_two_operators_at_one_time(pair: Pair, cluster: Cluster) -> None:
    async with pair.client() as other:
        clusters = [cluster, other] * 4
        await asyncio.gather(
            *(
                each.schedules().add(each.queue("reports"), f"number {number}", 3600, number)
                for number, each in enumerate(clusters)
            )
        )
        assert len(await cluster.schedules().list()) == 8


async def test_a_register_that_begins_anew_is_read_although_its_version_is_the_same(
    pair: Pair, cluster: Cluster
) -> None:
    """Versions begin again if it was deleted, or ZooKeeper has lost its data: nothing of before comes back."""
    schedules = cluster.schedules()
    await schedules.add(cluster.queue("reports"), "former", 3600, 1)
    async with pair.client() as other:
        del pair.hub.registers[SCHEDULES]
        await other.schedules().add(other.queue("reports"), "present", 3600, 1)
    assert [each.name for each in await schedules.list()] == ["present"]
    await schedules.add(cluster.queue("reports"), "another", 3600, 1)
    assert [each.name for each in await schedules.list()] == ["another", "present"]


async def test_a_write_whose_answer_is_lost_and_that_another_follows_is_no_error(
    pair: Pair, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``Coordinator.swap`` returns None then, although it has written."""
    schedules, hub = cluster.schedules(), pair.hub
    swap = hub.swap
    async with pair.client() as other:
        others, follows = other.schedules(), 0

        def lost(register: str, data: bytes, expected: int, given: tuple[str, int] | None = None) -> object:
            nonlocal follows
            written = swap(register, data, expected, given)
            if written is None or register != SCHEDULES or follows:
                return written
            follows += 1
            return swap(register, data.replace(b'"nonce":"', b'"nonce":"0'), expected + 1) and None

        monkeypatch.setattr(hub, "swap", lost)
        added = await schedules.add(cluster.queue("reports"), "nightly", 3600, 1)
        assert await others.list() == [added]
        follows = 0
        await schedules.remove("reports", "nightly")
        assert follows
        assert await others.list() == []
