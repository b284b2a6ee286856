"""The rights that docs/security.md gives to a Redis user suffice for everything, and none of them is left over."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

import zkrq
import zkrq.sync
from tests.harness import (
    HANG,
    SESSION_TIMEOUT,
    command,
    consumer_process,
    new_namespace,
    settled,
    stolen,
    take,
    until,
)
from tests.security import rights
from zkrq import local
from zkrq.client.cluster import Cluster
from zkrq.protocol import scripts
from zkrq.protocol.server_info import questions
from zkrq.replication.stream import ErrorReply
from zkrq.replication.urls import dial
from zkrq.replication.wire import pack

LUA = Path(scripts.__file__).parent / "lua"
USER, PASSWORD = "least", "p4ssw0rd-of-the-least"


# -- what the code sends -----------------------------------------------------------------------------------------------


def test_each_right_is_needed_by_a_command_in_the_code() -> None:
    sent = {"fcall", "function|load", "subscribe"} | {words[0].lower() for words in questions("shop")}
    for file in LUA.glob("*.lua"):
        text = file.read_text()
        sent |= {name.lower() for name in re.findall(r"\b(?:p?call|write)\('([A-Z]+)'", text)}
    assert rights.commands() == sent


def test_scripts_name_their_commands_literally() -> None:
    """So the test above sees all of them; ``write`` passes on the name that it is given."""
    calls = [call for file in LUA.glob("*.lua") for call in re.findall(r"redis\.p?call\(.", file.read_text())]
    assert {call for call in calls if not call.endswith("'")} == {"redis.call(c"}


RARE = {
    "hsetnx": "stores the payloads of a push that arrives after a decision about it",
    "ltrim": "drops tombstones that are twenty minutes old",
    "zmscore": "drops tombstones that are twenty minutes old where a history keeps some",
    "zrank": "continues a clear behind items that were pushed after it began",
}
"""Commands for which no test waits; that they are needed is shown by the scripts that name them."""


# -- what the servers see ----------------------------------------------------------------------------------------------


@pytest.fixture
async def namespace(servers: local.Servers) -> AsyncGenerator[str]:
    """A namespace whose user has the rights of the page, also after a restart of a server; no complaint is logged."""
    namespace = new_namespace()
    rule = rights.rule(USER, PASSWORD, namespace)
    await rights.each(servers, "ACL", "SETUSER", *rule)
    await rights.each(servers, "ACL", "LOG", "RESET")
    await rights.each(servers, "CONFIG", "RESETSTAT")
    for server in servers.redis:
        server.config["user"] = " ".join(word for word in rule if word != "reset")
    yield namespace
    for server in servers.redis:
        del server.config["user"]
    await rights.each(servers, "ACL", "DELUSER", USER)


def urls(servers: local.Servers) -> dict[str, str]:
    return {server.name: f"redis://{USER}:{PASSWORD}@{server.address}" for server in servers.redis}


def connect(servers: local.Servers, namespace: str, **options: Any) -> Cluster:
    settings: dict[str, Any] = {"found": True, "session_timeout": SESSION_TIMEOUT, **options}
    return zkrq.connect(urls(servers), servers.zookeeper_hosts, namespace=namespace, **settings)


async def called(server: local.LocalRedis) -> set[str]:
    """Commands that a server has executed since its start, or since its figures were reset."""
    text = (await command(server, "INFO", "commandstats")).decode()
    found: Mapping[str, str] = dict(re.findall(r"cmdstat_(\S+?):calls=(\d+)", text))
    return {name for name, calls in found.items() if int(calls)}


async def log_is_empty(servers: local.Servers) -> None:
    for server in servers.redis:
        assert await command(server, "ACL", "LOG") == b"*0\r\n+OK\r\n"


@pytest.mark.anyio
async def test_everything_works_with_these_rights(
    servers: local.Servers, namespace: str, prepared_zkrq: list[str]
) -> None:
    told: list[zkrq.Event] = []
    async with connect(servers, namespace, on_event=told.append) as cluster:
        await items(cluster)
        await looking(cluster)
        await working(cluster)
        await asyncio.to_thread(threads, servers, namespace)
        await command_line(servers, namespace, prepared_zkrq)
        await cluster._client.shard.repairer.scrub()  # pyright: ignore[reportPrivateUsage]
        await log_is_empty(servers)
        used = set[str]().union(*[await called(server) for server in servers.redis])
        await death_and_return(servers, cluster, told)
        await log_is_empty(servers)
        used |= set[str]().union(*[await called(server) for server in servers.redis])
        assert cluster.health().ok
    await log_is_empty(servers)
    assert rights.commands() - used <= RARE.keys()
    assert not [event for event in told if isinstance(event, zkrq.WakeupsRefused | zkrq.ServerUnusableHere)]


@pytest.fixture
async def libraries(servers: local.Servers) -> AsyncGenerator[None]:
    """Afterwards the servers have zkrq's library as it should be, whatever a test has made of it."""
    yield
    await rights.each(servers, "FUNCTION", "LOAD", "REPLACE", scripts.LIBRARY.text)


def test_the_two_lines_differ_by_the_right_to_load_functions() -> None:
    loose, strict = rights.rule(**rights.WRITTEN), rights.rule(**rights.WRITTEN, strict=True)
    assert [word for word in loose if word != "+function|load"] == strict


@pytest.mark.anyio
async def test_a_library_that_an_administrator_has_loaded_is_enough(servers: local.Servers, libraries: None) -> None:
    """The price: a server that comes back without it stays out of sync until it has been loaded again."""
    namespace, user = new_namespace(), "calls-only"
    rule = rights.rule(user, PASSWORD, namespace, strict=True)
    await rights.each(servers, "ACL", "SETUSER", *rule)
    first = servers.redis[0]
    first.config["user"] = " ".join(word for word in rule if word != "reset")
    try:
        for server in servers.redis:
            assert not (await command(server, "FUNCTION", "FLUSH")).startswith(b"-")
        reaching = {server.name: f"redis://{user}:{PASSWORD}@{server.address}" for server in servers.redis}
        options: dict[str, Any] = {"namespace": namespace, "found": True, "session_timeout": SESSION_TIMEOUT}
        with pytest.raises(
            zkrq.ConfigError, match=r"function\|load.*the rights \+fcall \+function\|load.*administrator"
        ):
            async with zkrq.connect(reaching, servers.zookeeper_hosts, **options):
                pass
        await rights.each(servers, "FUNCTION", "LOAD", scripts.LIBRARY.text)
        async with zkrq.connect(reaching, servers.zookeeper_hosts, **options) as cluster:
            queue = cluster.queue("called")
            await queue.push("x")
            await (await take(queue)).ack()
            await first.restart(wipe=True)
            await queue.push("without it")
            await until(lambda: any("function|load" in text for text in cluster.health().warnings))
            assert first.name not in cluster.view.members
            assert not (await command(first, "FUNCTION", "LOAD", scripts.LIBRARY.text)).startswith(b"-")
            await until(lambda: first.name in cluster.view.members)
    finally:
        first.config.pop("user", None)
        await rights.each(servers, "ACL", "DELUSER", user)


def spying(library: str) -> str:
    """zkrq's library, which does the same, keeps what every caller passes to it, and gives that to anybody who asks."""
    begin, call = "local HASH", "callback = function(KEYS, ARGV) return"
    keeping = call.replace("return", "stolen[#stolen + 1] = table.concat(ARGV, ' ') return")
    changed = library.replace(begin, f"local stolen = {{}} {begin}", 1).replace(call, keeping)
    return f"{changed}\nredis.register_function('all_that_was_stolen', function() return stolen end)\n"


async def as_user(server: local.LocalRedis, user: str, *words: str) -> object:
    """The reply to one command under the rights of a user."""
    wire = dial(f"redis://{user}:{PASSWORD}@{server.address}", HANG)()
    await wire.prepare()
    await wire.connect()
    try:
        (reply,) = await wire.ask(pack(words))
        return reply
    finally:
        wire.close()


@pytest.mark.anyio
@pytest.mark.parametrize("strict", [False, True], ids=["trusting", "strict"])
async def test_who_may_load_functions_reads_the_items_of_every_namespace(
    servers: local.Servers, libraries: None, strict: bool
) -> None:
    """While both are at work, by replacing the library; the stricter line of the page keeps a user from that."""
    namespaces = {"victim": new_namespace(), "thief": new_namespace()}
    await rights.each(servers, "FUNCTION", "LOAD", "REPLACE", scripts.LIBRARY.text)
    for user, namespace in namespaces.items():
        await rights.each(servers, "ACL", "SETUSER", *rights.rule(user, PASSWORD, namespace, strict=strict))
    try:
        reaching = {server.name: f"redis://victim:{PASSWORD}@{server.address}" for server in servers.redis}
        options: dict[str, Any] = {"found": True, "session_timeout": SESSION_TIMEOUT}
        async with zkrq.connect(
            reaching, servers.zookeeper_hosts, namespace=namespaces["victim"], **options
        ) as cluster:
            await cluster.queue("letters").push("before")
            replaced = [
                await as_user(server, "thief", "FUNCTION", "LOAD", "REPLACE", spying(scripts.LIBRARY.text))
                for server in servers.redis
            ]
            await cluster.queue("letters").push("a private letter")
        stolen = [await as_user(server, "thief", "FCALL", "all_that_was_stolen", "0") for server in servers.redis]
        if strict:
            assert all(isinstance(reply, ErrorReply) and "NOPERM" in reply.text for reply in replaced)
            assert all(isinstance(reply, ErrorReply) and "Function not found" in reply.text for reply in stolen)
        else:
            assert {*replaced} == {scripts.LIBRARY.name.encode()}
            assert all("a private letter" in str(reply) for reply in stolen)
    finally:
        for user in namespaces:
            await rights.each(servers, "ACL", "DELUSER", user)


async def items(cluster: Cluster) -> None:
    """Push and settle in every way; keys, delays, times to live, limits, dead letters."""
    queue = cluster.queue("items", retry=zkrq.Retry(max_attempts=2, backoff=zkrq.constant(0)), max_size=10_000)
    taking = asyncio.create_task(take(queue))
    await asyncio.sleep(0.5)  # the consumer is subscribed
    await queue.push("waited for")
    await (await taking).ack()
    await queue.push("keyed", key="k", priority=1, ttl=3600, headers={"a": "b"})
    assert (await queue.push("again", key="k")).duplicate
    late = await queue.push("late", delay=3600)
    short = await queue.push("short", ttl=0.2)
    await queue.push_many(range(300))
    await queue.push_many([f"{n}" for n in range(20)], delay=0.1)
    await asyncio.sleep(0.4)
    assert await queue.get(short.id) is None or await queue.push("drops what is expired")
    assert (await queue.size()).scheduled == 1
    assert await queue.cancel(late.id)
    claims = await queue.pop_many(20, timeout=HANG)
    assert await queue.cancel(claims[-1].id)
    await claims[0].extend(40)
    await claims[1].nack(0, "once more")
    await claims[2].bury("for a test")
    await claims[3].release()
    await stolen(claims[4]).ack()
    await queue.ack_many(claims[5:-1])
    await queue.redrive()
    for claim in await queue.pop_many(2, timeout=HANG):
        await claim.bury("once more")
    await queue.discard()
    async with cluster.listen("topic") as listener:
        assert await cluster.broadcast("topic", "heard") == 1
        assert await anext(listener) == "heard"
    few = cluster.queue("few", dead_letters=zkrq.DeadLetters(max_count=2, max_age=timedelta(days=1), expired=True))
    await few.push_many(range(5))
    for claim in await few.pop_many(5, timeout=HANG):
        await claim.bury("one of many")
    await few.push("to expire", ttl=0.1)
    await asyncio.sleep(0.2)
    await few.push("looks at it")
    assert await few.pop_one(timeout=HANG)
    grouped = cluster.queue("grouped", history=1, groups=zkrq.Groups(ordered=True))
    for _ in range(3):
        await grouped.push_many(range(2), group="g")
    for _ in range(2):
        await (await take(grouped)).ack()
    assert [len(await grouped.history()), len((await grouped.groups()).groups)] == [1, 1]


async def looking(cluster: Cluster) -> None:
    """Look at everything, and administer it."""
    queue = cluster.queue("looking")
    await queue.pause()
    await queue.resume()
    for state in ("ready", "scheduled", "claimed", "dead"):
        await queue.peek(10, state=state)
        assert all([item.state == state async for item in queue.scan(state)])
    await queue.push_many(range(1200))
    assert len([item async for item in queue.scan()]) == 1200
    assert [item async for item in queue.find(key="nobody")] == []
    await queue.dead_letters()
    await queue.statistics()
    await queue.size()
    await cluster.consumers()
    await cluster.statistics()
    assert {"items", "looking"} <= set(await cluster.queues())
    await queue.clear()
    assert not any(await queue.size())
    await queue.delete()
    assert "looking" not in await cluster.statistics()


async def working(cluster: Cluster) -> None:
    """A worker, and a recurring push."""
    queue, seen = cluster.queue("worked"), list[object]()
    recurring = cluster.every(1, queue, "tick", name="tick")
    async with zkrq.Worker(concurrency=4).add(queue, seen.append):
        await queue.push("worked at")
        await until(lambda: {"tick", "worked at"} <= set(map(str, seen)))
    recurring.cancel()


def threads(servers: local.Servers, namespace: str) -> None:
    """The synchronous face."""
    with zkrq.sync.connect(urls(servers), servers.zookeeper_hosts, namespace=namespace) as cluster:
        queue = cluster.queue("threads")
        queue.push("by a thread")
        claim = queue.pop_one(timeout=HANG)
        assert claim is not None
        with claim:
            assert queue.size().claimed == 1


async def command_line(servers: local.Servers, namespace: str, prepared_zkrq: list[str]) -> None:
    environment = {
        "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in urls(servers).items()),
        "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
        "ZKRQ_NAMESPACE": namespace,
    }
    for words in (["found"], ["push", "shell", '"x"'], ["pop", "shell"], ["consumers"]):
        with anyio.fail_after(HANG):
            await anyio.run_process([*prepared_zkrq, *words], env=environment)


async def death_and_return(servers: local.Servers, cluster: Cluster, told: list[zkrq.Event]) -> None:
    """A server dies under load, comes back empty, and is caught up; a consumer dies, and is fenced."""
    queue = cluster.queue("repaired")
    await queue.push_many(range(100))
    async with consumer_process(servers, cluster.namespace, "repaired", urls(servers)) as consumer:
        await consumer.ask("claim 10")
        consumer.signal(signal.SIGKILL)
    await settled(lambda: sizes_are(queue, ready=100, claimed=0))
    for number, server in enumerate(servers.redis, 1):
        if number == 1:  # it comes back with its data, which has to be wiped
            server.pause()
        else:
            await server.restart(wipe=True)
        await queue.push(f"without {server.name}")
        server.resume()
        await until(lambda: any(isinstance(event, zkrq.ServerCaughtUp) for event in told))
        told.clear()
        await settled(lambda: sizes_are(queue, ready=100 + number, claimed=0))  # noqa: B023
    assert len(cluster.view.members) == 3


async def sizes_are(queue: zkrq.Queue[Any], *, ready: int, claimed: int) -> bool:
    return (await queue.size()) == (ready, 0, claimed, 0)
