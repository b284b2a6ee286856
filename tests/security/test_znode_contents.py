"""What is stored in ZooKeeper may be anything: each decoder reads it or refuses it, and what it reads can be used.

Where many things are stored, one that is damaged stops only itself.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import zkrq
from tests.harness import in_process, new_namespace, take
from tests.security.examples import fuzz
from zkrq import local
from zkrq.base.errors import ConfigError
from zkrq.client import consumers, timetable_form, upgrading
from zkrq.client.inner import client_of
from zkrq.client.moment_store import MOMENTS
from zkrq.client.schedule_store import SCHEDULES
from zkrq.client.timetable import StoredSchedule, Timetable
from zkrq.coordination.coordinator import VIEW, Versioned, latest
from zkrq.coordination.memory import Hub
from zkrq.producing.placement import read_home, register_of
from zkrq.protocol import levels, shards, view
from zkrq.protocol.levels import SPOKEN, ClientInfo
from zkrq.protocol.view import Accusation, Life, ServerId, View

# -- damage ------------------------------------------------------------------------------------------------------------

VALUES: list[Any] = [
    *(None, True, 0, -1, 1.5, 10**30, 10**400, 1e308, float("nan"), float("inf"), "", "x", "9" * 30, "\ud800", "\0"),
    *([], {}, ["a", "b"], {"a": 1}, [[]], {"\ud800": 1}),
]
TEXTS = [
    b"",
    b"null",
    b"[]",
    b'"\\ud800"',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"9" * 5000,
    b"\xff\xfe",
    b"{}",
    b"1e999",
]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def places(value: object) -> list[tuple[Any, Any]]:
    """Every place in a JSON value: the object or list, and the name or index there."""
    inner = list[tuple[Any, Any]]()
    if isinstance(value, dict):
        inner += cast("dict[Any, Any]", value).items()
    elif isinstance(value, list):
        inner += enumerate(cast("list[Any]", value))
    return [(cast("Any", value), at) for at, _ in inner] + [place for _, part in inner for place in places(part)]


def damaged(data: bytes, seed: int) -> bytes:
    """The same in one of the ways in which what is stored goes wrong."""
    rng = random.Random(seed)
    match rng.randrange(8):
        case 0:
            return rng.choice(TEXTS)
        case 1:
            return data[: rng.randrange(len(data) + 1)]
        case 2:
            return rng.randbytes(rng.randrange(40))
        case 3:
            at = rng.randrange(len(data))
            return data[:at] + rng.randbytes(1) + data[at + 1 :]
        case _:
            content = json.loads(data)
            for _ in range(rng.choice((1, 1, 2))):
                holder, at = rng.choice(places(content) or [(cast("Any", [0]), 0)])
                if isinstance(at, str) and rng.randrange(5) == 0:
                    holder[rng.choice(["", "x", "\ud800", "removed"])] = holder.pop(at)
                else:
                    holder[at] = deepcopy(rng.choice([*VALUES, nested(30)])) if rng.randrange(20) else nested(800)
            return json.dumps(content).encode()


SEEDS = st.integers(0, 2**32)
A = ServerId("a")
GOOD_VIEW = View(
    epoch=7,
    members={A: Life("run", "generation")},
    learners={ServerId("b"): Life("run-b", "generation-b")},
    eligible={},
    servers={ServerId(id): f"redis://{id}" for id in "abc"},
    min_replicas=1,
    by="me",
    deployment="mine",
    map_number=1,
    accusations={A: Accusation("you", "generation")},
    level=SPOKEN.highest,
    raised_by="0.2.0",
    left_ms={ServerId("c"): 5},
    unknown={"later": {"more": [1]}},
)
GOOD_MAP = shards.joined(replace(shards.ShardMap(), homed={"q": 1}), shards.ShardName("b"), "views/b-1", "me")
GOOD_CLIENT = ClientInfo("worker", "host", "0.2.0", SPOKEN, "library", 1.7e9, 4)
GOOD_ENTRY = StoredSchedule("q", "n", 60.0, payload=b"1", since=datetime(2026, 1, 1, tzinfo=UTC), mark="m")
GOOD_TABLE = timetable_form.encode(
    Timetable({each.key: each for each in (GOOD_ENTRY, replace(GOOD_ENTRY, name="cron", when="0 * * * *"))}), "nonce"
)


# -- decoders ----------------------------------------------------------------------------------------------------------


@given(SEEDS)
@fuzz(12)
def test_a_view(seed: int) -> None:
    with suppress(ValueError):
        read = view.decode(damaged(view.encode(GOOD_VIEW), seed))
        assert read.primary("q") in read.servers
        for life in read.receivers.values():
            " ".join(life).encode()
        assert hash(tuple(read.receivers.items()))
        assert view.decode(view.encode(read)) == read


@given(SEEDS)
@fuzz(12)
def test_a_shard_map(seed: int) -> None:
    with suppress(ValueError):
        read = shards.decode(damaged(shards.encode(GOOD_MAP), seed))
        assert shards.home("q", read.hashed or [shards.FIRST])
        assert read.is_settling in (True, False)
        assert shards.decode(shards.encode(read)) == read


@given(SEEDS)
@fuzz(12)
def test_a_client(seed: int) -> None:
    """It is read as one of which nothing is known, if it cannot be read; people can be shown either."""
    read = levels.decode(damaged(levels.encode(GOOD_CLIENT).encode(), seed).decode(errors="replace"))
    shown = consumers.describe_consumer(read, {})
    f"{shown} {read.label} {shown.release} {shown.slots:,} {shown.since}".encode()
    assert levels.too_old({"s": read}, 1) is not None


@given(
    st.dictionaries(st.text(max_size=5) | st.sampled_from(["s", "s.2", "s.10", "s.x", "s." + "9" * 5000]), st.text())
)
@fuzz()
def test_names_of_clients(told: dict[str, str]) -> None:
    assert latest(told).keys() == {name.partition(".")[0] for name in told}


@given(SEEDS)
@example(2)
@fuzz(20)
def test_schedules(seed: int) -> None:
    """Each can be listed, and its next moment asked for, and what is not read is written again as it was."""
    with suppress(ConfigError):
        read = timetable_form.decode(damaged(GOOD_TABLE, seed))
        for entry in sorted(read.entries.values(), key=lambda each: each.key):
            f"{entry} {entry.key} {entry.upcoming}".encode()
            with suppress(ConfigError):
                entry.next(datetime(2026, 1, 1, tzinfo=UTC))
        again = timetable_form.decode(timetable_form.encode(read, "other"))
        assert again.entries == read.entries
        assert json.dumps(again.unreadable) == json.dumps(read.unreadable)
        assert again.removed(GOOD_ENTRY.key).entries.keys() == read.entries.keys() - {GOOD_ENTRY.key}


@given(st.binary(max_size=30) | st.sampled_from([b"nan nan x", b"inf inf x", b"-inf 1 x", b"1e999 5 x", b"5 1 x"]))
@fuzz()
def test_moments_of_the_upgrade(data: bytes) -> None:
    since, looked = upgrading._moments(data)  # pyright: ignore[reportPrivateUsage]
    assert 0 <= since <= looked < float("inf")


# -- one that is damaged stops only itself -----------------------------------------------------------------------------

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def pair(servers: local.Servers) -> AsyncGenerator[tuple[Hub, zkrq.Cluster, Callable[[], zkrq.Cluster]]]:
    hub, namespace = Hub(), new_namespace()

    def connect() -> zkrq.Cluster:
        return in_process(servers, namespace, hub)

    async with connect() as cluster:
        yield hub, cluster, connect


def write(hub: Hub, register: str, data: bytes) -> None:
    """Write a register as somebody does who is no client, and notify all."""
    found = hub.read(register)
    hub.registers[register] = Versioned(data, found.version + 1)
    for coordinator in hub.sessions.values():
        coordinator.register_changed(register)


SAID = [
    "",
    "\ud800",
    "[" * 100_000,
    '{"levels":[1e999,1],"description":"","host":"","version":""}',
    '{"started":1e300}',
]
LATER = json.dumps(GOOD_CLIENT._asdict() | {"levels": [1, 2], "started": 1e300, "slots": -5})


@pytest.mark.parametrize("said", [*SAID, LATER])
async def test_a_damaged_client_or_consumer_stops_no_other(servers: local.Servers, said: str) -> None:
    async with pair(servers) as (hub, cluster, connect):
        session = client_of(cluster).coordinator.session.id
        hub.introduced |= {session: said, f"{session}.x": said, "other.x": said, "other": said}
        hub.enrolled["other.x"] = said.encode(errors="replace").decode()
        async with connect() as second:
            queue = second.queue("jobs")
            await queue.push("x")
            await take(queue)
            found = await cluster.consumers()
            assert len(found) == 2
            f"{found}".encode()
        # the claim of the other, which has ended without settling it, is given back
        claim = await take(cluster.queue("jobs"))
        await claim.ack()
        assert (await client_of(cluster).upgrading.clients()).keys() >= {"other", session}


ENTRIES: list[Any] = [None, 5, "x", [], {}, {"queue": [], "name": "bad"}, {"queue": "jobs", "name": "bad"}]
BAD: list[Any] = ENTRIES + [
    {**json.loads(GOOD_TABLE)["schedules"][0], "queue": "jobs", "name": "bad", **change}
    for change in (
        {"when": None},
        {"when": 1e300},
        {"offset": "x"},
        {"zone": 5},
        {"zone": "\ud800"},
        {"catch_up": float("nan")},
        {"priority": 10**30},
        {"payload": 5},
        {"since": "2026-01-01"},
        {"since": "9999-12-31T23:59:59+00:00"},
        {"since": "0001-01-01T00:00:00+14:00"},
        {"queue": ["q"]},
        {"name": 5},
    )
]


def kept(hub: Hub) -> list[str]:
    return [repr(each) for each in json.loads(hub.read(SCHEDULES).data or b"")["schedules"]]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad!r:.60}")
async def test_a_damaged_schedule_stops_no_other(
    servers: local.Servers, bad: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(servers) as (hub, cluster, _):
        schedules, queue = cluster.schedules(), cluster.queue("jobs")
        good = await schedules.add(queue, "good", 0.3, "item")
        async with schedules.run():
            content = json.loads(hub.read(SCHEDULES).data or b"")
            content["schedules"].insert(0, bad)
            write(hub, SCHEDULES, json.dumps(content).encode())
            assert await schedules.list() == [good]
            assert "cannot be read are not run" in caplog.text
            await (await take(queue)).ack()
            await schedules.pause("jobs", "good")
            assert repr(bad) in kept(hub)
            if "'queue': 'jobs', 'name': 'bad'" in repr(bad):
                await schedules.remove("jobs", "bad")
                assert len(kept(hub)) == 1


@pytest.mark.parametrize("data", TEXTS, ids=lambda data: f"{data!r:.20}")
async def test_schedules_that_cannot_be_read_at_all(servers: local.Servers, data: bytes) -> None:
    """Nothing else is stopped, and what code declares is pushed as it says."""
    async with pair(servers) as (hub, cluster, _):
        write(hub, SCHEDULES, data)
        with pytest.raises(zkrq.ConfigError, match="does not hold schedules"):
            await cluster.schedules().list()
        async with cluster.schedules().run():
            cluster.every(0.3, cluster.queue("jobs"), "item", name="declared")
            await (await take(cluster.queue("jobs"))).ack()


@pytest.mark.parametrize("register", [VIEW, "shards", "upgrade"])
@pytest.mark.parametrize("data", TEXTS, ids=lambda data: f"{data!r:.20}")
async def test_a_register_that_cannot_be_read(servers: local.Servers, register: str, data: bytes) -> None:
    """Those that know what it was work on, and close; those that come are refused."""
    async with pair(servers) as (hub, cluster, connect):
        await cluster.queue("jobs").push(1)
        write(hub, register, data)
        with suppress(zkrq.ZkrqError):
            await client_of(cluster).shard.membership.refresh(cluster.view)
        with suppress(zkrq.ZkrqError):
            await client_of(cluster).shards.refresh()
        await client_of(cluster).upgrading.look()
        await (await take(cluster.queue("jobs"))).ack()
        with suppress(zkrq.ConfigError):
            async with connect() as second:
                await second.queue("jobs").push(2)


@pytest.mark.parametrize("data", [b"\xff\xfe", b" ", b"garbage", b"views", b"view\xff", b"\0"])
async def test_a_home_that_cannot_be_read_stops_its_queue_alone(servers: local.Servers, data: bytes) -> None:
    async with pair(servers) as (hub, cluster, _):
        coordinator = client_of(cluster).coordinator
        write(hub, register_of("bad"), data)
        with pytest.raises(zkrq.ConfigError, match="the home of queue 'bad' cannot be read"):
            await read_home(coordinator, "bad")
        write(hub, register_of("bad"), b"views/b-1 nonce")
        assert (await read_home(coordinator, "bad"))[0] == "views/b-1", "what a backup has"
        assert await read_home(coordinator, "good") == (None, -1)
        write(hub, register_of("good"), b"views/b-1 nonce")
        assert (await read_home(coordinator, "good"))[0] == "views/b-1"


@pytest.mark.parametrize("data", TEXTS, ids=lambda data: f"{data!r:.20}")
async def test_moments_that_cannot_be_read(
    servers: local.Servers, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Schedules are listed and push, as if nothing were stored of their moments."""
    async with pair(servers) as (hub, cluster, _):
        write(hub, MOMENTS, data)
        schedules, queue = cluster.schedules(), cluster.queue("jobs")
        added = await schedules.add(queue, "good", 0.3, "item")
        async with schedules.run(), cluster.every(0.3, queue, "by code", name="declared"):
            pushed = set[str]()
            while len(pushed) < 2:  # one may push again before the other one does
                pushed.add((await take(queue)).item)
            assert pushed == {"item", "by code"}
        assert [each.last for each in await schedules.list()] == [None, None]
        assert await schedules.get("jobs", "good") == added
        await schedules.remove("jobs", "good")
    assert "does not hold moments of schedules" in caplog.text
