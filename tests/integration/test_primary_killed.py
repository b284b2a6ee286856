"""Every operation on items, with the primary killed in the middle; the same without that is in ``behaviour``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

import zkrq
from tests.behaviour.helpers import bury
from tests.harness import HANG, in_process, new_namespace, over_zookeeper, take
from tests.integration.scenes import (
    Scene,
    Stage,
    ack,
    ack_many,
    bury_them,
    cancel,
    cancel_all_found,
    cancel_many,
    clear,
    consumers,
    dead_letter_caps,
    delete,
    discard,
    edit,
    every,
    extend,
    find,
    find_key_and_letters,
    find_page,
    look,
    nack,
    pause,
    paused_before,
    peek,
    pop,
    push,
    push_into_a_limited_queue,
    push_many,
    push_with_a_key,
    push_with_a_time_to_live,
    push_with_an_id,
    redrive,
    redrive_all_found,
    redrive_some,
    release,
    resume,
    retry,
    scan,
    size,
    statistics,
    work,
)
from zkrq import local
from zkrq.base import clock
from zkrq.coordination.memory import Hub
from zkrq.protocol import calls, scrubbing
from zkrq.protocol.payloads import NO_HEADERS, join
from zkrq.protocol.records import fresh
from zkrq.protocol.replies import Status
from zkrq.protocol.scrubbing import Scrub

pytestmark = pytest.mark.anyio

SCENES: Sequence[Scene] = (
    *(push, push_with_an_id, push_with_a_key, push_with_a_time_to_live, push_into_a_limited_queue, push_many, every),
    *(pop, ack, ack_many, nack, retry, release, bury_them, extend, work, dead_letter_caps),
    *(cancel, cancel_many, clear, delete, pause, paused_before, resume, redrive, redrive_some, discard, edit),
    *(cancel_all_found, redrive_all_found),
    *(look, size, peek, scan, find, find_page, find_key_and_letters, statistics, consumers),
)

OPTIONS: Mapping[Scene, Mapping[str, Any]] = {
    push_into_a_limited_queue: {"max_size": 100},
    retry: {"retry": zkrq.Retry(max_attempts=2, backoff=zkrq.constant(0))},
    dead_letter_caps: {"dead_letters": zkrq.DeadLetters(max_count=50)},
}


@pytest.mark.parametrize("scene", [pytest.param(scene, id=scene.__name__) for scene in SCENES])
async def test_with_the_primary_killed_in_the_middle(servers: local.Servers, scene: Scene) -> None:
    async with over_zookeeper(servers, new_namespace()) as cluster:
        stage = Stage(cluster, servers, **OPTIONS.get(scene, {}))
        await scene(stage)
        assert stage.primary.name not in cluster.view.members
        assert len(cluster.view.members) == 2


# -- what else may die -----------------------------------------------------------------------------------------------

Decide = Callable[[calls.Call[Any]], Awaitable[Any]]


@asynccontextmanager
async def caller(servers: local.Servers) -> AsyncGenerator[tuple[Stage, Decide], None]:
    """A queue, and a caller that dies when the primary has decided, before it has told anybody else."""
    async with in_process(servers, new_namespace()) as cluster:
        stage = Stage(cluster, servers)

        async def decide(call: calls.Call[Any]) -> Any:
            membership, view = cluster._client.shard.membership, cluster.view  # pyright: ignore[reportPrivateUsage]
            (answer,) = (await membership.fleet.ask_in(view, [view.primary("jobs")], call)).values()
            assert answer.status is Status.OK
            return call.read(answer.body)

        yield stage, decide


def keyed_push(id: str) -> calls.PushDecided:
    return calls.PushDecided("jobs", [calls.Put(id, fresh(0, clock.now_ms(), key="k"), join([NO_HEADERS + b'"x"']))])


@pytest.mark.parametrize("operation", ["push", "cancel", "clear", "pause", "redrive", "discard"])
async def test_what_a_dead_caller_had_decided_is_carried_on(
    servers: local.Servers, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the other servers, by the scrub."""
    monkeypatch.setattr(scrubbing, "SECOND_LOOK_SECONDS", 0.01)
    async with caller(servers) as (stage, decide):
        letters = await bury(stage.queue, 2)
        waiting = [receipt.id for receipt in await stage.queue.push_many(["x", "y"])]
        match operation:
            case "push":
                await decide(keyed_push("first"))
            case "cancel":
                await decide(calls.Cancel("jobs", "", 0, "", [waiting[0]]))
            case "clear":
                await decide(calls.Clear("jobs", 500, "", 0, b""))
            case "pause":
                await decide(calls.Pause("jobs", "P", 0, 0, ""))
            case "redrive":
                await decide(calls.Redrive("jobs", 0, 500, ""))
            case _:
                await decide(calls.Cancel("jobs", "D", 500, ""))
        at_once = await stage.queue.size(), (await stage.queue.statistics()).paused, await stage.ids()
        await stage.cluster._client.shard.replicas.repair(Scrub().run("jobs"))  # pyright: ignore[reportPrivateUsage]
        await stage.primary.kill()
        left = await stage.queue.size(), (await stage.queue.statistics()).paused, await stage.ids()
        assert sorted(left[2]) == sorted(at_once[2])
        assert left[:2] == at_once[:2]
        expected: dict[str, tuple[int, set[str]]] = {
            "push": (3, {*letters, *waiting, "first"}),
            "cancel": (1, {*letters, waiting[1]}),
            "clear": (0, {*letters}),
            "redrive": (4, {*letters, *waiting}),
            "discard": (2, {*waiting}),
        }
        assert (left[0].ready, set(left[2])) == expected.get(operation, (2, {*letters, *waiting}))
        assert left[1] == (operation == "pause")


async def test_deletion_meets_what_a_dead_caller_had_decided(servers: local.Servers) -> None:
    """Removed on the primary alone: if it forgot that, the other servers would bring the items back."""
    async with caller(servers) as (stage, decide):
        await stage.queue.push_many(range(700))
        await stage.claim(1)
        await decide(calls.Clear("jobs", 500, "", clock.now_ms(), b""))
        assert sum(await stage.queue.size()) < 700
        await stage.queue.delete()
        assert "jobs" not in await stage.cluster.statistics()
        await stage.primary.kill()
        assert await stage.ids() == []
        assert "jobs" not in await stage.cluster.statistics()


async def test_duplicate_is_told_only_of_what_every_server_has(servers: local.Servers) -> None:
    """Also where who pushed the first one is dead, and only the primary had it."""
    async with caller(servers) as (stage, decide):
        assert (await decide(keyed_push("first"))).outcomes == [b"+"]
        assert await stage.queue.push("y", key="k") == zkrq.Receipt("first", 3, duplicate=True, new=False)
        await stage.primary.kill()
        assert await stage.ids() == ["first"]
        assert (await take(stage.queue)).item == "x"


async def test_only_what_needs_the_registry_waits_for_zookeeper(servers: local.Servers) -> None:
    hub = Hub(session_timeout=HANG)
    async with in_process(servers, new_namespace(), hub) as cluster:
        queue = cluster.queue("jobs", max_size=1000)
        await queue.push("x")
        await (await take(queue)).ack()  # enrolled
        hub.suspend(hub.sessions[cluster._client.coordinator.session.id])  # pyright: ignore[reportPrivateUsage]
        first = await queue.push("first", key="k", ttl=HANG, priority=9)
        assert (await queue.push("again", key="k")).id == first.id
        assert len(await queue.push_many(range(20))) == 20
        await queue.pause()
        assert await queue.pop_one(timeout=0) is None
        await queue.resume()
        async with await take(queue) as claim:
            await claim.extend(HANG)
        claims = await queue.pop_many(10, timeout=HANG)
        claims += [await take(queue) for _ in range(10 - len(claims))]
        assert await queue.cancel(claims[0].id) is zkrq.Cancellation.SIGNALLED
        await claims[1].release()
        await claims[2].nack(delay=HANG)
        await asyncio.gather(*(claim.bury("bad") for claim in claims[3:5]))
        assert await queue.ack_many(claims[5:]) == []
        assert await queue.size() == (11, 1, 0, 2)
        assert await queue.redrive([claims[3].id]) == 1
        assert await queue.discard() == 1
        assert [item.state async for item in queue.scan("scheduled")] == ["scheduled"]
        assert (await queue.statistics()).sizes == (12, 1, 0, 0)
        assert await queue.clear() == 13
        assert await queue.delete() == 0
        consumers = asyncio.create_task(cluster.consumers())
        await asyncio.sleep(0.05)
        assert not consumers.done()
        consumers.cancel()
