"""Bad input is refused with a clear error, and nothing is written."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

import zkrq
from tests.behaviour.helpers import bury
from tests.every import every
from tests.harness import take

pytestmark = pytest.mark.anyio

LONG = "x" * 129
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001
FAR = datetime(9999, 1, 1, tzinfo=UTC)
OLD = "zkrq-00000000001-00000000-0"


class Stage(NamedTuple):
    """A queue with one item in each state, and its only claim."""

    cluster: zkrq.Cluster
    queue: Any  # given things that no type checker would let pass
    claim: Any


@pytest.fixture
async def stage(cluster: zkrq.Cluster, name: str) -> AsyncGenerator[Stage, None]:
    """What is refused has changed nothing of it."""
    queue = cluster.queue(name, max_payload_bytes=1000)
    await bury(queue, 1)
    await queue.push("claimed", priority=9)
    await queue.push_many(["ready"])
    await queue.push("scheduled", delay=600)
    claim = await take(queue)
    before = await queue.statistics()
    yield Stage(cluster, queue, claim)
    after = await queue.statistics()
    assert after._replace(oldest_ready=None) == before._replace(oldest_ready=None)
    assert claim.holds
    await claim.ack()


Call = Callable[[Stage], Awaitable[object]]

PUSHES: list[tuple[dict[str, Any], str]] = [
    ({"key": ""}, "key is ''"),
    ({"key": " k"}, "key is ' k'"),
    ({"key": "a\nb"}, "key is"),
    ({"key": LONG}, "key has 129 bytes"),
    ({"key": 7}, "key must be a str, not int"),
    ({"group": ""}, "must not be empty"),
    ({"group": "a\0b"}, "zero byte"),
    ({"group": 7}, "group must be a str, not int"),
    ({"group": "ä" * 101}, "group has 202 bytes, at most 200 are allowed"),
    ({"group": "\ud800"}, "group cannot be encoded"),
    ({"id": ""}, "id is ''"),
    ({"id": LONG}, "id has 129 bytes"),
    ({"id": OLD}, "older than 300 s"),
    ({"id": OLD, "key": "k"}, "older than 300 s"),
    ({"ttl": 0}, "ttl is 0 s: must be more than 0"),
    ({"ttl": -1}, "ttl is -1 s"),
    ({"ttl": math.nan}, "ttl is nan s"),
    ({"ttl": "60"}, "ttl must be seconds or a timedelta, not str"),
    ({"ttl": 5, "delay": 5}, "ttl is 5 s, not longer than the delay of 5 s"),
    ({"ttl": timedelta(minutes=1), "delay": timedelta(hours=1)}, "ttl is 60 s, not longer"),
    ({"delay": -1}, "delay is -1 s"),
    ({"delay": math.inf}, "delay is inf s"),
    ({"delay": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)}, "exclude each other"),
    ({"at": NAIVE}, "give it a time zone"),
    ({"at": FAR}, "at is"),
    ({"at": 1e9}, "at must be a datetime, not float"),
    ({"priority": 10}, "priority is 10"),
    ({"priority": -1}, "priority is -1"),
    ({"priority": 1.5}, "priority must be an int, not float"),
]


@every(("options", "message"), PUSHES)
async def test_push(stage: Stage, options: dict[str, Any], message: str) -> None:
    with pytest.raises(zkrq.ConfigError, match=message):
        await stage.queue.push("x", **options)
    if not {"id", "key"} & options.keys():
        for items in (["x"], iter(["x"])):
            with pytest.raises(zkrq.ConfigError, match=message):
                await stage.queue.push_many(items, **options)


@every("items", [{"to": "ann"}, "abc", b"abc"])
async def test_push_of_one_item_in_place_of_many(stage: Stage, items: Any) -> None:
    with pytest.raises(zkrq.ConfigError, match=f"not a {type(items).__name__}, .*piece by piece"):
        await stage.queue.push_many(items)


@every("key", [None, "k"])
@every("item", [object(), {1: "x"}, math.nan, "\ud800"])
async def test_push_of_what_cannot_be_encoded(stage: Stage, item: object, key: str | None) -> None:
    with pytest.raises(zkrq.CodecError, match="nothing was written"):
        await stage.queue.push(item, key=key)
    with pytest.raises(zkrq.CodecError, match="nothing was written"):
        await stage.queue.push_many(["x", item])


@pytest.mark.parametrize("key", [None, "k"])
async def test_push_of_what_is_too_large(stage: Stage, key: str | None) -> None:
    with pytest.raises(zkrq.PayloadTooLarge, match="1002 bytes, max_payload_bytes is 1000; nothing was written"):
        await stage.queue.push("x" * 1000, key=key)
    with pytest.raises(zkrq.PayloadTooLarge):
        await stage.queue.push_many(["x", "x" * 1000])


async def _next(stage: Stage, **options: Any) -> object:
    return await anext(stage.queue.pop(**options))


async def _scan(stage: Stage, state: str) -> object:
    return [item async for item in stage.queue.scan(state)]


CALLS: list[tuple[str, Call, str]] = [
    ("get", lambda s: s.queue.get(""), "id is ''"),
    ("get what is no str", lambda s: s.queue.get(7), "id must be a str, not int"),
    ("the record of a pause", lambda s: s.queue.get("\1pause"), "id is"),
    ("cancel", lambda s: s.queue.cancel(LONG), "id has 129 bytes"),
    ("cancel what is no str", lambda s: s.queue.cancel(None), "id must be a str, not NoneType"),
    ("cancel the record of a pause", lambda s: s.queue.cancel("\1pause"), "id is"),
    ("peek none", lambda s: s.queue.peek(0), "n is 0"),
    ("peek too many", lambda s: s.queue.peek(501), "n is 501"),
    ("peek a state", lambda s: s.queue.peek(state="asleep"), "state is 'asleep': must be one of 'ready', 'scheduled'"),
    ("scan a state", lambda s: _scan(s, "asleep"), "state is 'asleep': must be one of 'ready', 'scheduled'"),
    ("letters", lambda s: s.queue.dead_letters(0), "n is 0"),
    ("redrive a str", lambda s: s.queue.redrive("abc"), "ids is the str 'abc', must be a list"),
    ("redrive a bad id", lambda s: s.queue.redrive(["a", ""]), "id is ''"),
    ("redrive at no rate", lambda s: s.queue.redrive(rate=0), "rate is 0"),
    ("redrive at nan", lambda s: s.queue.redrive(rate=math.nan), "rate is nan"),
    ("redrive at inf", lambda s: s.queue.redrive(rate=math.inf), "rate is inf"),
    ("redrive at a str", lambda s: s.queue.redrive(rate="1"), "rate must be a number per second, not str"),
    ("discard a str", lambda s: s.queue.discard("abc"), "ids is the str 'abc', must be a list"),
    ("discard a bad id", lambda s: s.queue.discard([None]), "id must be a str, not NoneType"),
    ("pop none", lambda s: s.queue.pop_many(0), "n is 0"),
    ("pop too many", lambda s: s.queue.pop_many(1001), "n is 1001"),
    ("pop for so long", lambda s: s.queue.pop_one(timeout=-1), "timeout is -1 s"),
    ("pop ahead", lambda s: _next(s, prefetch=-1), "prefetch is -1"),
    ("pop a limit", lambda s: _next(s, limit=-1), "limit is -1"),
    ("nack", lambda s: s.claim.nack(delay=-1), "delay is -1 s"),
    ("nack with what is no str", lambda s: s.claim.nack(reason=7), "reason must be a str, not int"),
    ("bury with what is no str", lambda s: s.claim.bury(7), "reason must be a str, not int"),
    ("bury for nothing", lambda s: s.claim.bury(None), "reason must be a str, not NoneType"),
    ("extend by nothing", lambda s: s.claim.extend(0), "seconds is 0.0 s"),
    ("extend for ever", lambda s: s.claim.extend(1e9), "seconds is"),
]


@every(("what", "call", "message"), CALLS)
async def test_everything_else(stage: Stage, what: str, call: Call, message: str) -> None:
    with pytest.raises(zkrq.ConfigError, match=message):
        await call(stage)


QUEUES: list[tuple[dict[str, Any], str]] = [
    ({"max_size": 0}, "max_size is 0"),
    ({"max_size": 1.5}, "max_size must be an int, not float"),
    ({"max_payload_bytes": 0}, "max_payload_bytes is 0"),
    ({"claim_timeout": 0}, "claim_timeout is 0.0 s"),
    ({"dead_letters": 5}, "dead_letters must be a DeadLetters, not int"),
    ({"retry": 5}, "retry must be a Retry, not int"),
    ({"limits": 5}, "limits must be a Limits, not int"),
]


@pytest.mark.parametrize(("options", "message"), QUEUES)
async def test_options_of_a_queue(cluster: zkrq.Cluster, name: str, options: dict[str, Any], message: str) -> None:
    before = await cluster.queues()
    with pytest.raises(zkrq.ConfigError, match=message):
        cluster.queue(name, **options)
    with pytest.raises(zkrq.ConfigError, match="the queue's name"):
        cluster.queue(f" {name}")
    assert await cluster.queues() == before
    cluster.queue(name)
    with pytest.raises(zkrq.ConfigError, match=r"in use here with max_size=None, not 7"):
        cluster.queue(name, max_size=7)


async def test_a_queue_that_was_declared_needs_no_options(cluster: zkrq.Cluster, name: str) -> None:
    declared = cluster.queue(name, codec=zkrq.RAW, claim_timeout=timedelta(minutes=1), max_size=7)
    assert cluster.queue(name) is cluster.queue(name, claim_timeout=60, max_size=7) is declared
    with pytest.raises(zkrq.ConfigError, match=r"codec=zkrq.RAW, not zkrq.JSON"):
        cluster.queue(name, codec=zkrq.JSON)
    with pytest.raises(zkrq.ConfigError, match=r"claim_timeout=60.0, not 30"):
        cluster.queue(name, claim_timeout=30, max_size=7)
    with pytest.raises(zkrq.ConfigError, match=r"max_size=7, not None"):
        cluster.queue(name, max_size=None)
    unknown: dict[str, Any] = {"has_limits": False}
    with pytest.raises(TypeError, match="a queue has no option 'has_limits'"):
        cluster.queue(name, **unknown)
    with pytest.raises(zkrq.ConfigError, match="max_size is 0"):
        cluster.queue(name, max_size=0)
    wrong: dict[str, Any] = {"max_size": 7.0}
    with pytest.raises(zkrq.ConfigError, match="max_size must be an int, not float"):
        cluster.queue(name, **wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency is 0: must be at least 1"),
        ({"concurrency": -1}, "concurrency is -1"),
        ({"concurrency": True}, "concurrency must be an int, not bool"),
        ({"concurrency": 1.5}, "concurrency must be an int, not float"),
        ({"concurrency": 1_000_001}, "at most 1000000"),
        ({"rate": 50}, r"rate is 50: must be a number and seconds, e.g. \(50, 1.0\)"),
        ({"rate": (50,)}, "must be a number and seconds"),
        ({"rate": "50/1"}, "must be a number and seconds"),
        ({"rate": (0, 1)}, "the number in rate is 0"),
        ({"rate": (True, 1)}, "must be an int, not bool"),
        ({"rate": (2.5, 1)}, "must be an int, not float"),
        ({"rate": (50, 0)}, "the time of rate is 0 s: must be at least 0.1 and at most 3600 s"),
        ({"rate": (50, -1)}, "the time of rate is -1"),
        ({"rate": (50, 0.09)}, "the time of rate is 0.09 s"),
        ({"rate": (50, timedelta(hours=2))}, "the time of rate is 7200 s"),
        ({"rate": (50, float("nan"))}, "the time of rate is nan"),
        ({"rate": (50, True)}, "must be seconds or a timedelta, not bool"),
        ({"rate": (50, "1")}, "must be seconds or a timedelta, not str"),
    ],
)
async def test_limits(cluster: zkrq.Cluster, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(zkrq.ConfigError, match=message):
        zkrq.Limits(**options)


async def test_limits_that_are_none(cluster: zkrq.Cluster, name: str) -> None:
    before = await cluster.queues()
    with pytest.raises(zkrq.ConfigError, match=r"limits must be a Limits, not NoneType; Limits\(\) takes them away"):
        await cluster.queue(name).set_limits(None)  # pyright: ignore[reportArgumentType]
    assert await cluster.queues() == before


@pytest.mark.parametrize(
    "options", [{"max_count": 0}, {"max_count": 1.5}, {"max_age": 0}, {"max_age": -1}, {"max_age": "1"}]
)
def test_dead_letters(options: dict[str, Any]) -> None:
    with pytest.raises(zkrq.ConfigError, match=next(iter(options))):
        zkrq.DeadLetters(**options)
