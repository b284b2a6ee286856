"""Next steps for operators, on real servers: what `zkrq doctor`, errors and the pages say is done, as it is printed, in
the state in which it is said, and leads out of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.advice.operator import RULES, Operator, texts
from tests.advice.registry import leads_out_of
from tests.harness import command, configured, settled, until
from tests.proxy import Proxy
from tests.security.rights import rule
from tests.snippets import ROOT
from zkrq import local
from zkrq.client.connecting import read_given
from zkrq.client.examining.facts import Facts, ServerFacts
from zkrq.client.examining.rules import examine
from zkrq.coordination.coordinator import VIEW
from zkrq.protocol.view import ServerId

pytestmark = pytest.mark.anyio


# -- after all were lost -----------------------------------------------------------------------------------------------


@leads_out_of(
    RULES, "start {}; or continue without what only {}: {}", "look whether their disks can be had; to start again"
)
@leads_out_of(RULES, "`zkrq servers recover {}{}`")
@leads_out_of("repair/repairer.py", "`zkrq servers recover {}{}`")
@leads_out_of("protocol/recovery.py", "start it, or continue without what only it holds")
@leads_out_of("operations.md", "zkrq servers recover 10.0.0.2:6379 10.0.0.3:6379")
@leads_out_of("operations.md", "`zkrq servers recover NAME...` starts from nothing")
async def test_all_servers_were_restarted(operator: Operator) -> None:
    one, two, three = operator.servers.redis
    await operator.do("zkrq push emails 1")
    await three.kill()
    for server in (one, two):
        await server.restart(wipe=True)
    text = (await operator.doctor())["recovery"]
    assert "start redis-3; or continue without what only it holds" in text
    refused = await operator.run("zkrq push emails 2 --operation-timeout 1")
    assert (refused.code, text.rpartition(": ")[2] in refused.err) == (1, True)
    await operator.follow(text)
    assert "recovery" not in await operator.doctor()
    await operator.do("zkrq push emails 2")
    await three.start()
    for server in (one, two, three):
        await server.restart(wipe=True)
    text = (await operator.doctor())["recovery"]
    assert "look whether their disks can be had; to start again" in text
    await operator.follow(text)
    assert "recovery" not in await operator.doctor()
    await operator.do("zkrq push emails 3")


@leads_out_of(RULES, "restore the latest one; without it `zkrq servers recover --older-zookeeper")
@leads_out_of("protocol/founding.py", "If its data was restored from an older backup")
@leads_out_of(
    "operations.md", "zkrq servers recover --older-zookeeper redis-1 redis-2 redis-3", "Name those that were in sync."
)
async def test_zookeeper_has_an_older_view(operator: Operator) -> None:
    for server in operator.servers.redis:
        await command(server, "HSET", f"{{{operator.namespace}}}:server", "epoch", "5")
    text = (await operator.doctor())["lost"]
    refused = await operator.run("zkrq stats")
    assert (refused.code, "`zkrq servers recover --older-zookeeper NAME...`" in refused.err) == (2, True)
    await operator.follow(text, None, **{"NAME...": " ".join(operator.servers.redis_urls)})
    assert "lost" not in await operator.doctor()
    await operator.do("zkrq push emails 1")


@leads_out_of(RULES, "correct ZKRQ_ZOOKEEPER; if ZooKeeper has lost its data")
@leads_out_of(
    "operations.md",
    "zkrq servers recover --without-zookeeper --min-replicas 2",
    "Found the namespace again from the servers",
)
@leads_out_of("coordination/coordinator.py", "it is founded once, with `zkrq found`")
@leads_out_of("protocol/founding.py", "If ZooKeeper has lost its data: `zkrq servers recover")
async def test_zookeeper_knows_nothing(operator: Operator) -> None:
    """Another chroot is another ZooKeeper: the right one is given, or the namespace is founded again."""
    await operator.do("zkrq push emails 1")
    right, wrong = (
        operator.environment["ZKRQ_ZOOKEEPER"],
        f"{operator.environment['ZKRQ_ZOOKEEPER']}/{operator.namespace}",
    )
    operator.environment["ZKRQ_ZOOKEEPER"] = wrong
    text = (await operator.doctor())["namespace"]
    operator.environment["ZKRQ_ZOOKEEPER"] = right
    assert "namespace" not in await operator.doctor()
    operator.environment["ZKRQ_ZOOKEEPER"] = wrong
    everybody = " ".join(operator.servers.redis_urls)
    refused = await operator.run("zkrq stats")
    assert (refused.code, "it is founded once, with `zkrq found`" in refused.err) == (2, True)
    refused = await operator.run("zkrq found")
    assert (refused.code, "If ZooKeeper has lost its data: `zkrq servers recover --without-z" in refused.err) == (
        2,
        True,
    )
    assert everybody in text
    await operator.follow(refused.err, None, **{"NAME...": everybody})
    assert "namespace" not in await operator.doctor()
    assert await operator.do("zkrq pop emails") == "1\n"


@leads_out_of(RULES, "correct ZKRQ_NAMESPACE, or found it with `zkrq found`")
@leads_out_of("deploying.md", "zkrq found --min-replicas 2")
async def test_a_namespace_that_does_not_exist(operator: Operator) -> None:
    operator.environment["ZKRQ_NAMESPACE"] += "-x"
    text = (await operator.doctor())["namespace"]
    (known,) = re.findall(rf"({operator.namespace})\b(?!-)", text)[:1]
    operator.environment["ZKRQ_NAMESPACE"] = known
    assert "namespace" not in await operator.doctor()
    operator.environment["ZKRQ_NAMESPACE"] += "-x"
    await operator.follow(text)
    assert "namespace" not in await operator.doctor()
    await operator.do("zkrq push emails 1")


# -- what a server is like ---------------------------------------------------------------------------------------------


@leads_out_of(
    RULES,
    "`CONFIG SET maxmemory-policy noeviction`",
    "`CONFIG SET appendonly yes`",
    "`CONFIG SET appendfsync everysec`",
    "let the queues drain (`zkrq stats`), or raise its maxmemory",
    "raise its maxmemory, or drain the queues",
)
@leads_out_of("operations.md", "Raise `maxmemory` (`CONFIG SET`")
@pytest.mark.parametrize(
    ("kind", "wrong", "step"),
    [
        ("eviction", {"maxmemory-policy": "allkeys-lru"}, ""),
        ("disk", {"appendonly": "no"}, ""),
        ("disk", {"appendonly": "yes", "appendfsync": "no"}, "appendfsync is no"),
        ("full", {"maxmemory": "1mb"}, "its memory is full"),
        ("full", {"maxmemory": "nearly"}, "its memory is nearly full"),
    ],
)
async def test_an_option_of_redis(operator: Operator, kind: str, wrong: dict[str, str], step: str) -> None:
    """The command is that of the text; a value that it leaves open is more than enough."""
    server = operator.servers.redis[0]
    before = {option: (await command(server, "CONFIG", "GET", option)).decode().split("\r\n")[4] for option in wrong}
    for option, value in wrong.items():
        if value == "nearly":
            info = (await command(server, "INFO", "memory")).decode()
            used = re.search(r"used_memory:(\d+)", info)
            value = str(int(int(used[1]) * 1.05)) if used else ""
        assert (await command(server, "CONFIG", "SET", option, value)).startswith(b"+OK")
    try:
        said = {text for text in await texts(operator) if "redis-1" in text and kind_of(text) == kind}
        (text,) = said
        assert step in text
        if "`CONFIG SET" in text:
            (line,) = re.findall(r"`(CONFIG SET [^`]*)`", text)
            value = ["0"] if line.endswith("maxmemory") else []
            assert (await command(server, *line.split(), *value)).startswith(b"+OK")
        else:
            await command(server, "CONFIG", "SET", "maxmemory", "0")
        assert not [text for text in await texts(operator) if "redis-1" in text and kind_of(text) == kind]
    finally:
        for option, value in before.items():
            await command(server, "CONFIG", "SET", option, value)


@leads_out_of(RULES, "raise its maxclients (`CONFIG SET maxclients`", "end some, then {}")
async def test_a_server_with_little_room_for_clients(operator: Operator) -> None:
    """A full one lets nobody in who could raise the limit, so that clients are ended first."""
    server = operator.servers.redis[0]
    async with configured(server, "maxclients", "60"), AsyncExitStack() as others:
        for _ in range(55):
            _, writer = await asyncio.open_connection(server.host, server.port)
            others.callback(writer.close)
        said = await operator.doctor()
        assert said["clients"].endswith("raise its maxclients (`CONFIG SET maxclients`, and in redis.conf)")
        await command(server, "CONFIG", "SET", "maxclients", "10")
        said = await operator.doctor()
        assert "end some, then raise its maxclients" in said["denied"]
        assert not await lets_in(server)
        await others.aclose()
        await settled(lambda: lets_in(server))
        await operator.follow(said["denied"].replace("maxclients`", "maxclients 10000`"), server)
        assert not (await operator.doctor()).keys() & {"denied", "clients"}


async def lets_in(server: local.LocalRedis) -> bool:
    async with redis_of(server) as client:
        try:
            return bool(await client.ping())
        except RedisConnectionError:
            return False


def kind_of(text: str) -> str:
    """The kind of a finding, by its words."""
    words = {"maxmemory-policy is": "eviction", "append": "disk", "memory is": "full"}
    return next((kind for word, kind in words.items() if word in text), "")


@leads_out_of(RULES, "`redis-cli REPLICAOF NO ONE` on it; no Sentinel")
@leads_out_of("protocol/server_info.py", "must be 'master'")
async def test_a_replica(operator: Operator) -> None:
    master, replica, _ = operator.servers.redis
    await command(replica, "REPLICAOF", master.host, str(master.port))
    await operator.follow((await operator.doctor())["replica"], replica)
    assert "replica" not in await operator.doctor()


@leads_out_of(RULES, "it is a replica: `redis-cli REPLICAOF NO ONE` on it")
async def test_a_replica_of_a_master_that_is_down(operator: Operator) -> None:
    replica = operator.servers.redis[1]
    async with configured(replica, "replica-serve-stale-data", "no"):
        await command(replica, "REPLICAOF", "127.0.0.1", "1")
        await operator.follow((await operator.doctor())["unreachable"], replica)
        assert "unreachable" not in await operator.doctor()


@leads_out_of(RULES, "another program's script keeps it busy")
async def test_a_script_that_does_not_end(operator: Operator) -> None:
    server = operator.servers.redis[2]
    async with configured(server, "lua-time-limit", "10"), asyncio.TaskGroup() as group:
        group.create_task(command(server, "EVAL", "while true do end", "0"))
        while not (await command(server, "PING")).startswith(b"-BUSY"):
            pass
        text = (await operator.doctor())["unreachable"]
        line = text.partition("`redis-cli ")[2].partition("`")[0]
        assert (await command(server, *line.split())).startswith(b"+OK")
    assert "unreachable" not in await operator.doctor()


@leads_out_of(RULES, "`ACL SETUSER` it with {}")
@leads_out_of(
    "protocol/replies.py", "the right (ACL) to the keys", "give this client's user the rights +fcall +function|load"
)
@leads_out_of("protocol/replies.py", "correct the user or the password", "give this client a user and a password")
async def test_rights_that_are_missing(operator: Operator) -> None:
    words = rule("shop", "p", operator.namespace)
    for server in operator.servers.redis:
        await command(server, "ACL", "SETUSER", *words, "-fcall", "-zadd", "-function|load")
        await command(server, "ACL", "SETUSER", "default", "resetpass", ">secret")  # the others need a password now
    try:
        refused = await operator.run("zkrq stats")
        assert (refused.code, "give this client a user and a password, by redis_auth" in refused.err) == (2, True)
        operator.environment["ZKRQ_REDIS_AUTH"] = "shop:wrong"
        refused = await operator.run("zkrq stats")
        assert (refused.code, "correct the user or the password of redis_auth" in refused.err) == (2, True), refused
        operator.environment["ZKRQ_REDIS_AUTH"] = "shop:p"
        refused = await operator.run("zkrq push emails 1")
        assert (refused.code, "the rights +fcall +function|load" in refused.err) == (2, True), refused
        text = (await operator.doctor())["rights"]
        (rights,) = re.findall(r"`ACL SETUSER` it with (.*), and", text)
        for server in operator.servers.redis:
            async with redis_of(server, "secret") as admin:
                await admin.execute_command("ACL", "SETUSER", "shop", *rights.split())
        assert "rights" not in await operator.doctor()
        await operator.do("zkrq push emails 1")
        for server in operator.servers.redis:
            async with redis_of(server, "secret") as admin:
                await admin.execute_command("ACL", "SETUSER", "shop", "resetkeys", "~nothing")
        refused = await operator.run("zkrq push emails 1")
        assert (refused.code, "give this client's user the right (ACL) to the keys" in refused.err) == (2, True), (
            refused
        )
        for server in operator.servers.redis:
            async with redis_of(server, "secret") as admin:
                await admin.execute_command("ACL", "SETUSER", *words)
        await operator.do("zkrq push emails 1")
    finally:
        for server in operator.servers.redis:
            async with redis_of(server, "secret") as admin:
                await admin.execute_command("ACL", "SETUSER", "default", "nopass")


@leads_out_of(
    "coordination/zookeeper/coordinator.py",
    "give this client zookeeper_auth",
    "correct zookeeper_auth",
    "found the namespace again with it",
)
async def test_znodes_that_others_may_change(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    """Also for commands that only look."""
    operator.environment["ZKRQ_ZOOKEEPER_AUTH"] = "shop:z"
    async with operator.client(zookeeper_auth=("shop", "z")):
        await until(lambda: "found the namespace again with it (`zkrq found`" in caplog.text)
    await operator.follow("`zkrq found`")
    for auth, step in (("", "give this client zookeeper_auth"), ("shop:wrong", "correct zookeeper_auth")):
        operator.environment["ZKRQ_ZOOKEEPER_AUTH"] = auth
        for line in ("zkrq stats", "zkrq push emails 1"):
            refused = await operator.run(line)
            assert (refused.code, step in refused.err) == (2, True), refused
    operator.environment["ZKRQ_ZOOKEEPER_AUTH"] = "shop:z"
    for line in ("zkrq stats", "zkrq push emails 1"):
        await operator.do(line)
    assert await operator.doctor() == {}


@asynccontextmanager
async def redis_of(server: local.LocalRedis, password: str | None = None) -> AsyncGenerator[Any]:
    async with cast("Any", Redis(host=server.host, port=server.port, password=password)) as client:
        yield client


@leads_out_of(RULES, "correct the URLs of ZKRQ_REDIS", "correct ZKRQ_REDIS, or ZKRQ_NAMESPACE")
@leads_out_of(RULES, "unset ZKRQ_MIN_REPLICAS: it is fixed")
@leads_out_of("protocol/founding.py", "give every client the same servers under the same names, or another namespace")
async def test_what_this_client_is_given(operator: Operator, spare: local.LocalRedis) -> None:
    one, two, three = operator.servers.redis
    right = operator.environment["ZKRQ_REDIS"]
    async with Proxy(one.host, one.port) as proxy:
        operator.name_servers({one.name: one.url, two.name: f"redis://127.0.0.1:{proxy.port}", three.name: three.url})
        assert "correct the URLs of ZKRQ_REDIS" in (await operator.doctor())["twins"]
    operator.name_servers({"other": spare.url})
    assert "correct ZKRQ_REDIS" in (await operator.doctor())["agreement"]
    refused = await operator.run("zkrq stats")
    assert (refused.code, "give every client the same servers under the same names" in refused.err) == (2, True)
    operator.environment["ZKRQ_REDIS"] = right
    operator.environment["ZKRQ_MIN_REPLICAS"] = "3"
    assert "unset ZKRQ_MIN_REPLICAS" in (await operator.doctor())["agreement"]
    del operator.environment["ZKRQ_MIN_REPLICAS"]
    assert not (await operator.doctor()).keys() & {"twins", "agreement"}
    await operator.do("zkrq stats")


@leads_out_of(RULES, "ask for {} s (ZKRQ_SESSION_TIMEOUT)")
@leads_out_of("coordination/zookeeper/session.py", "Ask for %g s, or set %sSessionTimeout")
async def test_a_session_timeout_that_zookeeper_does_not_give(operator: Operator) -> None:
    operator.environment["ZKRQ_SESSION_TIMEOUT"] = "100"
    (seconds,) = re.findall(r"ask for (\S+) s \(ZKRQ_SESSION_TIMEOUT\)", (await operator.doctor())["timeout"])
    operator.environment["ZKRQ_SESSION_TIMEOUT"] = seconds
    assert "timeout" not in await operator.doctor()


@leads_out_of(RULES, "raise command_timeout ({} s), or bring it nearer", "bring it nearer")
def test_a_server_that_is_far_away() -> None:
    """A short ``command_timeout`` is raised, then the server is brought nearer."""

    def say(round_trip: float, timeout: float) -> list[str]:
        given = read_given({"redis": ["redis://a"], "zookeeper": "z", "command_timeout": timeout})
        server = ServerFacts(ServerId("a"), "redis://a", None, {"redis_version": "7.0.0"}, round_trip=round_trip)
        return [each.step for each in examine(Facts(given.settings, (), {server.id: server}, ()))]

    assert say(0.1, 0.3) == ["raise command_timeout (0.3 s), or bring it nearer"]
    assert say(0.01, 0.3) == []
    assert say(0.1, 2.0) == ["bring it nearer"]
    assert say(0.01, 2.0) == []


@leads_out_of("client/examining/reading.py", "restore ZooKeeper's data; without it")
@pytest.mark.parametrize("restored", [True, False])
async def test_a_view_that_cannot_be_read(operator: Operator, restored: bool) -> None:
    """The data is restored, or, without a backup, the namespace is founded again as docs/operations.md says."""
    await operator.do("zkrq push emails 1")
    given = {"redis": operator.servers.redis_urls, "zookeeper": operator.servers.zookeeper_hosts}
    async with read_given({**given, "namespace": operator.namespace}).coordinator() as coordinator:
        found = await coordinator.read(VIEW)
        assert found.data
        damaged = await coordinator.swap(VIEW, found.data.replace(b'"epoch"', b'"spoilt"'), found.version)
        assert damaged
        assert "restore ZooKeeper's data; without it, see docs/operations.md" in (await operator.doctor())["view"]
        if restored:
            assert await coordinator.swap(VIEW, found.data, damaged.version)
        else:
            page = (ROOT / "docs" / "operations.md").read_text()
            (line,) = re.findall(r"^ +(zkrq servers recover --without-zookeeper .*)$", page, re.MULTILINE)
            await operator.do(line)
    assert "view" not in await operator.doctor()
    assert await operator.do("zkrq pop emails") == "1\n"


@leads_out_of("client/examining/reading.py", "if no shard but main was ever added, delete the znode")
@leads_out_of("client/timetable_form.py", "does not hold schedules ({}): delete it")
@pytest.mark.parametrize("name", ["shards", "schedules"])
async def test_a_znode_that_cannot_be_read_is_deleted(operator: Operator, name: str) -> None:
    given = {"redis": operator.servers.redis_urls, "zookeeper": operator.servers.zookeeper_hosts}
    line = {"shards": "zkrq push emails 1", "schedules": "zkrq schedules list"}[name]
    async with read_given({**given, "namespace": operator.namespace}).coordinator() as coordinator:
        assert await coordinator.swap(name, b"garbage", (await coordinator.read(name)).version)
        refused = await operator.run(line)
        assert refused.code == 2
        said = (await operator.doctor()).get("view", refused.err)
        assert re.search(rf"(delete the znode `{name}`|the znode `{name}` .*: delete it)", said)
        link = await coordinator._session.link()  # pyright: ignore[reportPrivateUsage]
        await link.delete(f"/{operator.namespace}/{name}")
    await operator.do(line)
    assert "view" not in await operator.doctor()


@leads_out_of("operations.md", "If it never will, stop it")
async def test_a_needed_server_that_lets_nobody_in(operator: Operator, spare: local.LocalRedis) -> None:
    one, closed, dead = operator.servers.redis
    async with operator.client() as cluster:
        await cluster.queue("emails").push(1)
        await dead.kill()
        await cluster.queue("emails").push(2)
    await command(closed, "CONFIG", "SET", "requirepass", "secret")
    operator.name_servers({one.name: one.url})
    refused = await operator.run("zkrq push emails 3 --id three --operation-timeout 1")
    assert (refused.code, "redis-2 does not let this client in" in refused.err) == (1, True)
    await closed.kill()
    await operator.follow("`zkrq servers add URL`", URL=spare.url)
    await operator.do("zkrq push emails 3 --id three")
    assert await operator.do("zkrq pop emails --count 3") == "1\n2\n3\n"
