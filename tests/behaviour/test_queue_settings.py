"""What a queue promises is stored with it: who declares it, who changes it, and when that counts."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

import zkrq
import zkrq.testing
from tests.behaviour.conftest import Connect, PassTime
from tests.behaviour.helpers import working
from tests.harness import take
from zkrq.client.changing import change_settings, write_settings
from zkrq.client.declaring import SettingsChanged

pytestmark = pytest.mark.anyio

FIVE, SIX, TWO = (zkrq.Limits(concurrency=count) for count in (5, 6, 2))


async def declare(connect: Connect, name: str, **options: Any) -> list[zkrq.LimitsChanged]:
    """Push an item from a program with these options; return the changes of settings that it reports."""
    told = list[zkrq.Event]()
    async with connect(on_event=told.append) as program:
        queue = cast("zkrq.Queue[Any]", program.queue(name, **options))
        await queue.push("an item")
    return [event for event in told if isinstance(event, zkrq.LimitsChanged)]


async def test_programs_of_two_releases_do_not_take_turns(cluster: zkrq.Cluster, name: str, connect: Connect) -> None:
    """While one replaces the other, processes of both start again and again."""
    await declare(connect, name, limits=FIVE)
    assert [str(each.after) for each in await declare(connect, name, limits=SIX)] == ["6 at once"]
    for limits in (FIVE, SIX, FIVE):
        assert await declare(connect, name, limits=limits) == []
        assert await cluster.queue(name).limits() == SIX


async def test_an_operators_change_outlives_a_deployment_of_the_same_code(
    cluster: zkrq.Cluster, name: str, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    await declare(connect, name, limits=FIVE)
    await cluster.queue(name).set_limits(TWO)
    with caplog.at_level(logging.INFO, "zkrq"):
        assert await declare(connect, name, limits=FIVE) == []
    assert f"queue {name}: 5 at once was declared before; since then it was changed to 2 at once" in caplog.text
    assert await cluster.queue(name).limits() == TWO


async def test_code_that_declares_something_else_has_the_last_word_and_says_so(
    cluster: zkrq.Cluster, name: str, connect: Connect
) -> None:
    await declare(connect, name, limits=FIVE)
    await cluster.queue(name).set_limits(TWO)
    (change,) = await declare(connect, name, limits=SIX)
    assert (change.before, change.after) == ("2 at once", "6 at once")
    assert await cluster.queue(name).limits() == SIX


async def test_what_an_operator_took_away_stays_away(cluster: zkrq.Cluster, name: str, connect: Connect) -> None:
    queue = cluster.queue(name)
    await declare(connect, name, limits=FIVE, max_size=3, history=9)
    assert await queue.settings() == (FIVE, zkrq.Groups(), 9, 3, zkrq.DeadLetters(), None)
    await queue.set_limits(zkrq.Limits())
    await queue.set_max_size(None)
    await queue.set_history(0)
    await declare(connect, name, limits=FIVE, max_size=3, history=9)
    await queue.push_many(range(9))
    assert await queue.settings() == zkrq.QueueSettings()


async def test_of_two_operators_who_change_one_section_at_once_none_overwrites_the_other(
    cluster: zkrq.Cluster, name: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each names one field; the section is written as a whole."""
    queue = cluster.queue(name)
    async with connect() as other:
        theirs = other.queue(name)
        for _ in range(5):
            await asyncio.gather(
                change_settings(queue, {"limits": {"concurrency": 7}, "letters": {"max_age": 60}}),
                change_settings(theirs, {"limits": {"rate": (5, 1.0)}, "letters": {"expired": True}}),
            )
            letters = zkrq.DeadLetters(max_age=60, expired=True)
            assert await queue.settings() == zkrq.QueueSettings(zkrq.Limits(7, (5, 1.0)), dead_letters=letters)
            await queue.set_limits(zkrq.Limits())
            await queue.set_dead_letters(zkrq.DeadLetters())
        read = await queue.settings()
        await theirs.set_limits(FIVE)
        with pytest.raises(SettingsChanged, match="look at them again"):
            await write_settings(queue, zkrq.QueueSettings(limits=SIX), {"limits": {}}, read)
        assert await queue.settings() == zkrq.QueueSettings(limits=FIVE)

        async def stale() -> zkrq.QueueSettings:
            return read

        monkeypatch.setattr(queue, "settings", stale)
        with pytest.raises(SettingsChanged):
            await change_settings(queue, {"limits": {"concurrency": 6}})
        monkeypatch.undo()
        await change_settings(queue, {"limits": {"concurrency": 6}})
        assert await queue.limits() == SIX


LETTERS = zkrq.DeadLetters(max_count=2, max_age=600, expired=True)


async def test_dead_letters_are_kept_as_the_queue_says_whoever_buries(
    cluster: zkrq.Cluster, name: str, connect: Connect, pass_time: PassTime
) -> None:
    """Also by a program without the option, and by one with another that was declared before."""
    await declare(connect, name, dead_letters=zkrq.DeadLetters(max_count=None))
    await declare(connect, name, dead_letters=LETTERS)
    async with connect() as unaware, connect() as before:
        for program in (unaware, before):
            letters = zkrq.DeadLetters(max_count=None) if program is before else None
            queue = program.queue(name, dead_letters=letters)
            await queue.push("late", ttl=0.001)
            await pass_time(0.005)
            await queue.push_many(range(3))
            for claim in await queue.pop_many(9, timeout=0):
                await claim.bury("bad")
            assert (await queue.size()).dead == 2
            assert (await queue.settings()).dead_letters == LETTERS == (await queue.statistics()).dead_letters
        await cluster.queue(name).set_dead_letters(zkrq.DeadLetters())
        queue = before.queue(name)
        await queue.push("late", ttl=0.001)
        await pass_time(0.005)
        assert await queue.pop_one(timeout=0) is None
        assert "expired" not in {letter.reason for letter in await queue.dead_letters()}, "an operator's word stays"


async def test_results_are_kept_for_as_long_as_the_queue_says(
    cluster: zkrq.Cluster, name: str, connect: Connect, pass_time: PassTime
) -> None:
    queue = cluster.queue(name, results=zkrq.Results(ttl=3600))
    assert (await queue.settings()).results_ttl is None, "before anything is pushed nothing is declared"
    first = await queue.push(1)
    assert (await queue.settings()).results_ttl == 3600
    await (await take(queue)).ack(result="long")
    async with connect() as operator:
        await operator.queue(name).set_results_ttl(1)
        second = await queue.push(2)
        await (await take(queue)).ack(result="brief")
        assert await declare(connect, name, results=zkrq.Results(ttl=3600)) == []
        assert (await operator.queue(name).settings()).results_ttl == 1
        await pass_time(1.1)
        assert (await first.result(timeout=0)).value == "long", "what is kept already keeps its time"
        assert not (await second.result(timeout=0)).has_value
        await operator.queue(name).set_results_ttl(None)
        assert (await operator.queue(name).settings()).results_ttl is None


@pytest.mark.parametrize("over", ["no data", "their data"])
async def test_what_programs_declare_holds_again_after_all_servers_came_back_empty(over: str) -> None:
    """Without a restart, and before a program claims there again."""
    most = now = 0

    async def handle(item: int) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.05)
        now -= 1

    async with zkrq.testing.cluster() as cluster, cluster.servers.connect() as other:
        queue = cluster.queue("q", limits=TWO, max_size=50)
        async with working(queue, handle, concurrency=9):
            producer = other.queue("q")
            await producer.push_many(range(10))
            while any(await producer.size()):
                await cluster.clock.advance(0.1)
            await producer.set_limits(zkrq.Limits(concurrency=1))
            for name in cluster.servers.names:
                cluster.servers.kill(name)
            for name in cluster.servers.names:
                cluster.servers.start(name, wipe=over == "no data")
            if over == "no data":
                await other.recover(cluster.servers.names)
            most = 0
            while True:
                try:
                    await producer.push_many(range(20))
                    break
                except zkrq.ZkrqError:
                    await cluster.clock.advance(0.5)
            while any(await producer.size()):
                await cluster.clock.advance(0.1)
            assert most == (2 if over == "no data" else 1)
            with pytest.raises(zkrq.QueueFull):
                await producer.push_many(range(51))


async def lose_everything(cluster: zkrq.testing.TestCluster, repairing: zkrq.Cluster) -> None:
    """All servers of Redis come back without data, and the namespace starts from nothing."""
    for name in cluster.servers.names:
        cluster.servers.kill(name)
    for name in cluster.servers.names:
        cluster.servers.start(name, wipe=True)
    await repairing.recover(cluster.servers.names)


DECLARED: dict[str, tuple[dict[str, Any], zkrq.QueueSettings]] = {
    "limits": ({"limits": FIVE}, zkrq.QueueSettings(limits=FIVE)),
    "groups": ({"groups": zkrq.Groups(2, rate=(5, 1))}, zkrq.QueueSettings(groups=zkrq.Groups(2, rate=(5, 1)))),
    "order": ({"groups": zkrq.Groups(ordered=True)}, zkrq.QueueSettings(groups=zkrq.Groups(ordered=True))),
    "history": ({"history": 7}, zkrq.QueueSettings(history=7)),
    "size": ({"max_size": 9}, zkrq.QueueSettings(max_size=9)),
    "dead letters": ({"dead_letters": LETTERS}, zkrq.QueueSettings(dead_letters=LETTERS)),
    "results": ({"results": zkrq.Results(ttl=60)}, zkrq.QueueSettings(results_ttl=60)),
}


@pytest.mark.parametrize("options", DECLARED)
async def test_each_setting_is_declared_again_when_all_servers_came_back_empty(options: str) -> None:
    """By a program that runs on, although it makes no call: others may claim."""
    given, expected = DECLARED[options]
    async with zkrq.testing.cluster() as cluster, cluster.servers.connect() as other:
        queue = cast("zkrq.Queue[Any]", cluster.queue("q", **given))
        await queue.push(1)
        assert await queue.settings() == expected
        await lose_everything(cluster, other)
        for _ in range(100):
            await cluster.clock.advance(0.5)
            if await other.queue("q").settings() == expected:
                return
        pytest.fail("it is not declared again")


async def test_schedules_go_on_when_all_servers_came_back_empty() -> None:
    """They are kept in ZooKeeper, so that nothing of them is lost, and what an operator has changed stays changed."""
    async with zkrq.testing.cluster() as cluster, cluster.servers.connect() as other:
        queue = cluster.queue("q")
        async with cluster.every(60, queue, "tick", name="nightly"):
            await cluster.clock.advance(61)
            await (await take(queue)).ack()
            await other.schedules().change(other.queue("q"), "nightly", when=120)
            await lose_everything(cluster, other)
            await cluster.clock.advance(121)
            assert (await take(queue)).item == "tick"
            (entry,) = await other.schedules().list()
            assert entry.when == 120
