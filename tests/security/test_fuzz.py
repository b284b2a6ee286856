"""Hostile input of every kind: only zkrq's own errors escape, nothing hangs, and what is refused writes nothing.

``FUZZ_EXAMPLES=20000`` looks longer (``make fuzz``); the default is short enough for every run of the tests.
"""

from __future__ import annotations

import asyncio
import math
import os
import string
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import zkrq
import zkrq.sync
from tests.harness import HANG, SESSION_TIMEOUT, in_process, new_namespace
from tests.proxy import Connection, Proxy
from tests.security.examples import EXAMPLES, fuzz
from zkrq import local
from zkrq.base.settings import Settings
from zkrq.client.addresses import join_hosts, name_servers
from zkrq.client.environment import VARIABLES, complete, variable_of
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.protocol.view import ServerId
from zkrq.replication.link import ServerError
from zkrq.replication.server import Server
from zkrq.replication.stream import Receiver
from zkrq.replication.urls import address, check_url, redact, with_credentials_of, without_credentials

# -- strategies --------------------------------------------------------------------------------------------------------

ANY_TEXT = st.text(max_size=30) | st.text(st.characters(), max_size=10)
"""Surrogates, control characters, combining ones and others included."""

NASTY = st.sampled_from(
    [
        "",
        " ",
        "\0",
        "\r\n",
        "a\r\nSET x 1",
        "{a}",
        "}{",
        "../..",
        "%00",
        "*",
        "a" * 129,
        "ä" * 65,
        "\ud800",
        "\u202e",
        "-1",
    ]
)
TEXTS = NASTY | ANY_TEXT | st.text(string.printable, max_size=200)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | TEXTS
    | st.binary(max_size=20)
    | st.sampled_from(
        [
            timedelta(days=-1),
            timedelta.max,
            datetime.min.replace(tzinfo=UTC),
            datetime.max.replace(tzinfo=UTC),
            math.nan,
            1e300,
        ]
    )
    | st.builds(object)
)
THINGS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.integers(), inner, max_size=4) | st.tuples(inner)
    ),
    max_leaves=12,
)
LIKE_URLS = st.builds(
    "".join,
    st.lists(
        st.sampled_from(
            ["redis://", "rediss://", "unix://", "http://", "host", ":", "@", "/", "?", "#", "[", "]", "::1"]
        )
        | st.sampled_from(
            ["6379", "0", "99999", "-1", "db=", "&", "ssl_ca_certs=", "socket_timeout=x", "%", "%zz", ",", "="]
        )
        | NASTY,
        max_size=8,
    ),
)
URLS = LIKE_URLS | TEXTS | SCALARS


# -- arguments and variables -------------------------------------------------------------------------------------------


@given(
    redis=st.lists(URLS, max_size=3) | st.dictionaries(TEXTS, URLS, max_size=3) | URLS, zookeeper=URLS | st.lists(URLS)
)
@fuzz(3)
def test_addresses(redis: Any, zookeeper: Any) -> None:
    with suppress(zkrq.ConfigError):
        name_servers(redis)
    with suppress(zkrq.ConfigError):
        join_hosts(zookeeper)
    with suppress(zkrq.ConfigError):
        zkrq.connect(redis, "zk")


@given(url=LIKE_URLS | TEXTS, other=LIKE_URLS)
@example(url="unix://redis://\ud800", other="")
@example(url="redis://host", other="redis://?client_name=\ud800")
@fuzz(3)
def test_urls(url: str, other: str) -> None:
    assert isinstance(redact(url), str)
    with suppress(zkrq.ConfigError):
        address(url)
        check_url(other)
        with_credentials_of(without_credentials(url), other)


GOOD: Mapping[str, Any] = {"redis": ["redis://one", "redis://two"], "zookeeper": "zk1"}


@given(st.dictionaries(st.sampled_from([name for name in VARIABLES if name != "on_event"]), THINGS, max_size=3))
@fuzz(3)
def test_arguments_of_connect(options: dict[str, Any]) -> None:
    with suppress(zkrq.ConfigError):
        zkrq.connect(**{**GOOD, **options})


@given(st.dictionaries(st.sampled_from(list(VARIABLES)), LIKE_URLS | TEXTS, max_size=3), st.booleans())
@fuzz(3)
def test_variables(texts: dict[str, str], of_file: bool) -> None:
    environment: dict[str, str] = {}
    for name, text in texts.items():
        with suppress(UnicodeEncodeError):  # no variable of a process has it
            os.fsencode(text)
            environment[variable_of(name) + ("_FILE" if of_file else "")] = text.replace("\0", "")
    with mock.patch.dict(os.environ, environment), suppress(zkrq.ConfigError):
        complete(dict.fromkeys(VARIABLES))
        zkrq.connect()


# -- pushing and asking ------------------------------------------------------------------------------------------------

ARGUMENTS: Mapping[str, st.SearchStrategy[Any]] = {
    "id": TEXTS | SCALARS,
    "key": TEXTS | SCALARS,
    "headers": st.dictionaries(TEXTS, TEXTS, max_size=3) | THINGS,
    "priority": st.integers(-2, 11) | SCALARS,
    "delay": st.floats() | SCALARS,
    "ttl": st.floats() | SCALARS,
    "at": SCALARS,
}
OPTIONS = st.lists(st.sampled_from(list(ARGUMENTS)), max_size=2, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: ARGUMENTS[name] for name in names})
)
PUSHES = st.tuples(THINGS, OPTIONS)
ASKED = ["get", "cancel", "peek", "scan", "dead_letters", "redrive", "discard", "pop_many", "pop_one"]
CALLS = st.tuples(st.just("push") | st.sampled_from(ASKED), THINGS, OPTIONS)


@given(st.lists(CALLS, max_size=12))
@fuzz(0.5)
def test_calls_of_a_queue(calls: list[tuple[str, Any, dict[str, Any]]]) -> None:
    """A push returns and the item is there, or raises and nothing is."""

    async def play() -> None:
        async with zkrq.testing.cluster() as cluster:
            queue: Any = cluster.queue("jobs")
            for call, argument, options in calls:
                if call == "push":
                    await push(queue, argument, options)
                else:
                    await ask(queue, call, argument)

    asyncio.run(play())


async def push(queue: Any, item: object, options: dict[str, Any]) -> None:
    before = sum(await queue.size())
    try:
        receipt = await queue.push(item, **options)
    except zkrq.ZkrqError:
        assert await has_left(queue, before)
    else:
        if not receipt.duplicate and not receipt.done and await queue.get(receipt.id) is not None:
            assert await has_left(queue, before) or await has_left(queue, before + 1)


async def has_left(queue: Any, count: int) -> bool:
    """Tell whether this many items are left; those with a time to live, however short it is, may have expired."""
    counted = await queue.statistics()
    return sum(counted.sizes) == count or (counted.expiring > 0 and sum(counted.sizes) < count)


async def ask(queue: Any, name: str, argument: object) -> None:
    before = sum(await queue.size())
    try:
        match name:
            case "scan":
                async for _ in queue.scan(argument):
                    pass
            case "pop_one":
                await asyncio.wait_for(queue.pop_one(timeout=argument if argument is not None else 0), 0.01)
            case "pop_many":
                await asyncio.wait_for(queue.pop_many(argument, timeout=0), 5)
            case _:
                await getattr(queue, name)(argument)
    except TimeoutError:
        pass
    except zkrq.ZkrqError:
        assert await has_left(queue, before)


SETTINGS = ["claim_timeout", "retry", "dead_letters", "max_size", "max_payload_bytes"]


@given(
    st.lists(st.tuples(TEXTS | SCALARS, st.dictionaries(st.sampled_from(SETTINGS), THINGS, max_size=2)), max_size=20)
)
@fuzz()
def test_names_and_settings_of_a_queue(queues: list[tuple[Any, dict[str, Any]]]) -> None:
    async def play() -> None:
        async with zkrq.testing.cluster() as cluster:
            for name, options in queues:
                with suppress(zkrq.ConfigError):
                    cluster.queue(name, **options)

    asyncio.run(play())
    threads = zkrq.sync.connect(**GOOD)
    for name, options in queues:
        with suppress(zkrq.ConfigError):
            threads.queue(name, **options)


# -- zkrq.sync ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def threads(shared_servers: local.Servers) -> Generator[zkrq.sync.Cluster]:
    with zkrq.sync.connect(
        shared_servers.redis_urls,
        shared_servers.zookeeper_hosts,
        namespace=new_namespace(),
        found=True,
        session_timeout=SESSION_TIMEOUT,
    ) as cluster:
        yield cluster


@given(
    calls=st.lists(PUSHES, max_size=4),
    lists=st.lists(THINGS, max_size=5),
    name=st.sampled_from(["get", "cancel", "peek"]),
)
@fuzz(0.5)
def test_calls_of_a_thread(
    threads: zkrq.sync.Cluster, calls: list[tuple[Any, dict[str, Any]]], lists: list[Any], name: str
) -> None:
    queue: Any = threads.queue("jobs")
    for item, options in calls:
        with suppress(zkrq.ZkrqError):
            queue.push(item, **options)
    with suppress(zkrq.ZkrqError):
        assert len(queue.push_many(lists)) == len(lists)
    for argument in lists:
        with suppress(zkrq.ZkrqError):
            getattr(queue, name)(argument)
    with suppress(zkrq.ZkrqError):
        for claim in queue.pop_many(50, timeout=0):
            claim.ack()


# -- replies -----------------------------------------------------------------------------------------------------------

ATOMS = (
    st.none() | st.integers() | st.binary(max_size=30) | st.sampled_from([b"OK", b"PONG", b"run_id:x\r\nrole:master"])
)
REPLIES = st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=6), max_leaves=20)
INFO = b"run_id:1\r\nredis_version:7.0\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n"
IDENTITY = st.tuples(
    st.just(INFO) | REPLIES,
    st.lists(st.none() | st.binary(max_size=10) | REPLIES, max_size=5) | REPLIES,
    st.integers() | REPLIES,
    st.lists(st.integers().map(lambda n: str(n).encode()) | REPLIES, max_size=3) | REPLIES,
)


class Saying:
    """A wire to a server that gives these replies, whatever it is asked."""

    def __init__(self, replies: tuple[object, ...]) -> None:
        self._replies = list(replies)

    async def prepare(self) -> str:
        return ""

    async def connect(self) -> None: ...

    async def ask(self, *commands: bytes) -> list[object]:
        return self._replies

    def start(self, receiver: Receiver) -> Callable[[bytes], None]:
        return lambda data: None

    def close(self) -> None: ...


@given(IDENTITY)
@fuzz(3)
def test_identity_of_a_server(replies: tuple[object, ...]) -> None:
    """It is read, or the server is one that cannot be used."""

    async def play() -> None:
        server = Server(
            ServerId("a"),
            "redis://a",
            namespace="test",
            command_timeout=0.05,
            dial=lambda url, timeout: lambda: Saying(replies),
        )
        with suppress(ServerError):
            await server.identify()

    asyncio.run(play())


# -- replies over a socket ---------------------------------------------------------------------------------------------

GARBAGE = [
    b"",
    b"*-1\r\n",
    b"$-1\r\n",
    b"+OK\r\n",
    b":1\r\n",
    b"-ERR no\r\n",
    b"-\r\n",
    b"$5\r\nab",
    b"$99999999999999999999\r\n",
    b"*1000000000\r\n",
    b"*3\r\n$2\r\nOK\r\n",
    b"*1\r\n" * 5000 + b":1\r\n",
    b"$-2\r\n",
    b"$3000000\r\n%b\r\n" % (b"x" * 3_000_000),
    b"\x15\x03\x03\x00\x02\x02\x28",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\0" * 100,
    b"*2\r\n$2\r\nOK\r\n*2\r\n:1\r\n:2\r\n",
    b"*2\r\n$5\r\nSTALE\r\n:-1\r\n",
    b"*2\r\n$9\r\nNOTINSYNC\r\n$1\r\nx\r\n",
    b"*1\r\n$6\r\nFENCED\r\n",
]


@contextmanager
def twisted(proxy: Proxy, plan: list[tuple[int, bytes | int]]) -> Generator[None]:
    """Replace the replies that the plan numbers, by garbage or by as many of their own bytes."""
    numbered, number = dict(plan), 0

    def twist(connection: Connection, data: bytes) -> bytes:
        nonlocal number
        number += 1
        other = numbered.get(number)
        return data if other is None else data[:other] if isinstance(other, int) else other

    before, proxy.on_reply = proxy.on_reply, twist
    yield
    proxy.on_reply = before


@pytest.mark.anyio
@pytest.mark.skipif("redis" not in local.available(), reason="redis-server is not installed")
async def test_a_server_that_talks_nonsense(servers: local.Servers) -> None:
    """One of three: calls return or raise one of zkrq's errors, in time; afterwards everything works as before."""
    plans = examples(
        st.lists(st.tuples(st.integers(1, 12), st.sampled_from(GARBAGE) | st.integers(0, 30)), min_size=1, max_size=6)
    )
    async with Proxy(servers.redis[2].host, servers.redis[2].port) as proxy:
        urls = {**servers.redis_urls, "redis-3": f"redis://{proxy.address}"}
        for plan in plans:
            hub, namespace = Hub(), new_namespace()
            given = Settings(
                namespace=namespace, found=True, min_replicas=2, command_timeout=0.3, operation_timeout=1.5
            )
            async with in_process(servers, namespace, hub, min_replicas=2) as healthy:
                with twisted(proxy, plan):
                    async with asyncio.timeout(HANG):
                        await talk(zkrq.Cluster(urls, MemoryCoordinator(hub), given))
                proxy.cut()
                async with asyncio.timeout(HANG):
                    assert (await healthy.queue("other").push("x")).replicas >= 2


async def talk(cluster: zkrq.Cluster) -> None:
    with suppress(zkrq.ZkrqError):
        async with cluster:
            queue = cluster.queue("jobs", claim_timeout=5)
            for number in range(2):
                with suppress(zkrq.ZkrqError):
                    await queue.push(number, key=str(number))
                with suppress(zkrq.ZkrqError):
                    await queue.push_many(range(3))
                with suppress(zkrq.ZkrqError):
                    for claim in await queue.pop_many(2, timeout=0):
                        await claim.ack()
                with suppress(zkrq.ZkrqError):
                    await queue.peek()
                    await queue.statistics()


def examples(strategy: st.SearchStrategy[Any]) -> list[Any]:
    """Examples for a test that runs on the event loop of the servers."""
    found: list[Any] = []

    @given(strategy)
    @settings(max_examples=max(3, EXAMPLES // 10), deadline=None, database=None)
    def draw(example: Any) -> None:
        found.append(example)

    draw()
    return found
