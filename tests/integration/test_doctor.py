"""`zkrq doctor`: each way in which a set-up is broken, on real servers, is named with the next step."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

import zkrq
from tests.harness import command, configured, new_namespace
from tests.integration.shell import Shell
from tests.levels import LATER, later_release
from tests.proxy import Proxy
from tests.security.rights import rule
from zkrq import local
from zkrq.client.connecting import read_given
from zkrq.client.examining.facts import Facts, ServerFacts
from zkrq.client.examining.reading import read_facts
from zkrq.client.examining.rules import Finding, examine
from zkrq.coordination.coordinator import VIEW
from zkrq.coordination.zookeeper.asking import HostReport
from zkrq.protocol.levels import SPOKEN, ClientInfo, Levels
from zkrq.protocol.levels import encode as encode_client
from zkrq.protocol.view import ServerId, decode, encode
from zkrq.replication.urls import dial
from zkrq.replication.wire import Wire

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def own(anyio_backend: str) -> AsyncGenerator[local.Servers, None]:
    """Servers that a test may spoil; it repairs them."""
    async with local.servers(redis=3, zookeeper=3, redis_config={"appendonly": "yes"}) as servers:
        yield servers


@pytest.fixture
async def namespace(own: local.Servers) -> str:
    name = new_namespace()
    await zkrq.found(own.redis_urls, own.zookeeper_hosts, namespace=name)
    return name


async def facts_of(own: local.Servers, namespace: str, **more: Any) -> Facts:
    given = {"redis": own.redis_urls, "zookeeper": own.zookeeper_hosts, "namespace": namespace, **more}
    return await read_facts(read_given(given))


async def findings(own: local.Servers, namespace: str, **more: Any) -> list[Finding]:
    return examine(await facts_of(own, namespace, **more))


async def only(own: local.Servers, namespace: str, **more: Any) -> Finding:
    """The one finding."""
    (finding,) = await findings(own, namespace, **more)
    return finding


async def test_a_sound_set_up(own: local.Servers, namespace: str) -> None:
    facts = await facts_of(own, namespace)
    assert examine(facts) == []
    assert {host.mode for host in facts.hosts} == {"leader", "follower"}
    assert all(server.appendfsync and server.version for server in facts.servers.values())


async def test_a_server_that_is_down(own: local.Servers, namespace: str) -> None:
    await own.redis[2].kill()
    try:
        finding = await only(own, namespace)
    finally:
        await own.start()
    assert (finding.kind, finding.gravity.value, finding.about) == ("unreachable", "down", ("redis-3",))
    assert f"start it, or open the way to it ({own.redis[2].url})" in finding.text
    assert "`zkrq servers remove redis-3`" in finding.text


async def test_a_wrong_password(own: local.Servers, namespace: str) -> None:
    finding = await only(own, namespace, redis_auth=("nobody", "wrong"))
    assert (finding.kind, finding.gravity.value) == ("denied", "wrong")
    assert finding.about == ("redis-1", "redis-2", "redis-3")
    assert "correct the user or the password of redis_auth" in finding.text
    assert "wrong'" not in finding.text


async def test_a_server_that_evicts_keys(own: local.Servers, namespace: str) -> None:
    async with configured(own.redis[1], "maxmemory-policy", "allkeys-lru"):
        finding = await only(own, namespace)
    assert (finding.kind, finding.about) == ("eviction", ("redis-2",))
    assert "allkeys-lru" in finding.text
    assert "CONFIG SET maxmemory-policy noeviction" in finding.text


async def test_a_server_that_is_full(own: local.Servers, namespace: str) -> None:
    async with configured(own.redis[0], "maxmemory", "1mb"):
        finding = await only(own, namespace)
    assert (finding.kind, finding.gravity.value, finding.about) == ("full", "wrong", ("redis-1",))


async def test_a_replica(own: local.Servers, namespace: str) -> None:
    master, replica = own.redis[0], own.redis[1]
    assert (await command(replica, "REPLICAOF", master.host, str(master.port))).startswith(b"+OK")
    try:
        kinds = {finding.kind: finding.about for finding in await findings(own, namespace)}
    finally:
        await command(replica, "REPLICAOF", "NO", "ONE")
    assert kinds["replica"] == ("redis-2",)


async def test_cluster_mode(own: local.Servers) -> None:
    async with local.servers(redis=1, zookeeper=0, redis_config={"cluster-enabled": "yes"}) as other:
        found = await findings(own, new_namespace(), redis=other.redis_urls)
    assert "cluster" in {finding.kind for finding in found}


@pytest.mark.parametrize("lacking", ["INFO", "FUNCTION", "FCALL"])
async def test_a_server_that_lacks_a_command(own: local.Servers, lacking: str) -> None:
    """As managed services do."""
    async with local.servers(redis=1, zookeeper=0, redis_config={"rename-command": f'{lacking} ""'}) as other:
        found = await findings(own, new_namespace(), redis=other.redis_urls)
    (finding,) = [finding for finding in found if finding.kind == "denied"]
    assert (finding.gravity.value, finding.about) == ("wrong", ("redis-1",))
    assert f"unknown command '{lacking}'): have that server take this command" in finding.text


async def test_rights_that_are_missing(own: local.Servers, namespace: str) -> None:
    """The user of the documentation lacks none; without some they are named, and nothing was changed to find them."""
    for words in rule("doctor-1", "p", namespace), rule("doctor-2", "p", namespace):
        without = () if words[0] == "doctor-1" else ("-zadd", "-lrange", "-function|load", "-sadd", "-publish", "-hset")
        for server in own.redis:
            reply = await command(server, "ACL", "SETUSER", *words, *without)
            assert reply.startswith(b"+OK"), reply
    before = [await command(server, "KEYS", f"{{{namespace}}}*") for server in own.redis]
    assert await findings(own, namespace, redis_auth=("doctor-1", "p")) == []
    finding = await only(own, namespace, redis_auth=("doctor-2", "p"))
    assert finding.about == ("redis-1", "redis-2", "redis-3")
    assert "(lrange, zadd, hset, function|load, sadd, publish)" in finding.text
    assert "+function|load" in finding.text
    for server in own.redis:
        await command(server, "ACL", "SETUSER", *rule("doctor-3", "p", namespace, strict=True))
    finding = await only(own, namespace, redis_auth=("doctor-3", "p"))
    assert finding.gravity.value == "warning", "it may be meant so"
    assert "an administrator loads zkrq's library" in finding.text
    assert "+function|load" not in finding.text
    assert [await command(server, "KEYS", f"{{{namespace}}}*") for server in own.redis] == before


class _Late:
    """A connection to a server whose clock is 400 seconds late."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.prepare, self.connect, self.start, self.close = wire.prepare, wire.connect, wire.start, wire.close

    async def ask(self, *commands: bytes) -> list[object]:
        return [_late(reply) for reply in await self._wire.ask(*commands)]


def _late(reply: object) -> object:
    match reply:
        case [bytes() as seconds, bytes() as us] if seconds.isdigit() and us.isdigit():  # to TIME
            return [b"%d" % (int(seconds) - 400), us]
        case _:
            return reply


async def test_damaged_entries_that_are_set_aside(own: local.Servers, namespace: str) -> None:
    """One line for all servers, and all queues; what is no text, or no hash, is passed over."""
    for server in own.redis:
        await command(server, "SADD", f"{{{namespace}}}:queues", "jobs", "mails", "well", "odd", "\x01")
        await command(server, "HSET", f"{{{namespace}}}:q:jobs:aside", "one", "x", "two", "x")
        await command(server, "HSET", f"{{{namespace}}}:q:mails:aside", "one", "x")
    finding = await only(own, namespace)
    assert (finding.kind, finding.about) == ("damaged", tuple(own.redis_urls))
    assert "set aside, in queue jobs (2), mails (1); `zkrq damaged list`" in finding.text
    await command(own.redis[0], "SET", f"{{{namespace}}}:q:odd:aside", "x")
    assert await only(own, namespace) == finding


async def test_a_clock_that_is_wrong(own: local.Servers, namespace: str) -> None:
    wrong = own.redis[1].url

    def dial_late(url: str, timeout: float) -> Callable[[], Wire]:
        make = dial(url, timeout)
        return lambda: _Late(make()) if url == wrong else make()

    given = read_given({"redis": own.redis_urls, "zookeeper": own.zookeeper_hosts, "namespace": namespace})
    (finding,) = examine(await read_facts(given._replace(dial=dial_late)))  # pyright: ignore
    assert (finding.kind, finding.gravity.value) == ("clock", "wrong")
    assert "it is redis-2 that differs from the others" in finding.text


async def test_one_server_under_two_names(own: local.Servers, namespace: str) -> None:
    async with Proxy(own.redis[0].host, own.redis[0].port) as proxy:
        urls = {**own.redis_urls, "redis-2": f"redis://127.0.0.1:{proxy.port}"}
        found = await findings(own, namespace, redis=urls)
    kinds = {finding.kind: finding for finding in found}
    assert kinds["twins"].about == ("redis-1", "redis-2")


async def test_names_that_are_exchanged(own: local.Servers, namespace: str) -> None:
    urls = own.redis_urls
    found = await findings(own, namespace, redis={**urls, "redis-1": urls["redis-2"], "redis-2": urls["redis-1"]})
    assert [(finding.kind, finding.about) for finding in found] == [("name", ("redis-1",)), ("name", ("redis-2",))]
    assert "the server that all others call redis-2" in found[0].text


async def test_servers_that_were_given_and_do_not_belong(own: local.Servers, namespace: str) -> None:
    """One was removed, another one was renamed: no problem, and nobody is to start the one that is gone."""
    one, *rest = own.redis_urls.items()
    given = {"gone": "redis://127.0.0.1:1", "former": one[1], **dict(rest)}
    facts = await facts_of(own, namespace, redis=given)
    assert facts.strangers == {"gone", "former"}
    assert [(finding.kind, finding.gravity.value, finding.about) for finding in examine(facts)] == [
        ("stranger", "warning", ("gone",)),
        ("stranger", "warning", ("former",)),
    ]
    gone, former = (finding.text for finding in examine(facts))
    assert gone.endswith("; take it out of ZKRQ_REDIS")
    assert f"it is called redis-1 in namespace {namespace}; name it so in ZKRQ_REDIS" in former


async def test_a_namespace_that_is_misspelt(own: local.Servers, namespace: str) -> None:
    finding = await only(own, f"{namespace}-x")
    assert (finding.kind, finding.gravity.value, finding.about) == ("namespace", "wrong", ())
    assert f"there are: {namespace}" in finding.text
    assert "zkrq found" in finding.text


async def test_another_zookeeper_than_that_of_the_servers(own: local.Servers, namespace: str) -> None:
    async with local.servers(redis=0, zookeeper=1) as other:
        found = await findings(own, namespace, zookeeper=other.zookeeper_hosts)
    kinds = {finding.kind: finding for finding in found}
    assert kinds["namespace"].about == ("redis-1", "redis-2", "redis-3")
    assert "`zkrq servers recover --without-zookeeper redis-1 redis-2 redis-3`" in kinds["namespace"].text
    assert kinds["standalone"].gravity.value == "warning"


async def test_zookeeper_servers_that_know_nothing_of_each_other(own: local.Servers, namespace: str) -> None:
    async with local.servers(redis=0, zookeeper=1) as other:
        found = await findings(own, namespace, zookeeper=f"{own.zookeeper_hosts},{other.zookeeper_hosts}")
    kinds = {finding.kind: finding for finding in found}
    assert kinds["standalone"].about == (other.zookeeper_hosts,)
    assert kinds["standalone"].gravity.value == "wrong"


async def test_zookeeper_without_a_quorum(own: local.Servers, namespace: str) -> None:
    one, two, three = own.zookeeper
    await asyncio.gather(one.kill(), two.kill())
    try:
        while await three.mode():
            await asyncio.sleep(0.05)
        found = await findings(own, namespace, session_timeout=1.5)
    finally:
        await own.start()
    down = [finding for finding in found if finding.kind == "zookeeper"]
    assert {name for finding in down for name in finding.about} == {one.address, two.address, three.address}
    assert "it is in no quorum" in " ".join(finding.text for finding in down)
    assert "0 of 3 answer, 2 are needed" in down[0].text


async def test_a_session_timeout_that_zookeeper_does_not_give(own: local.Servers, namespace: str) -> None:
    finding = await only(own, namespace, session_timeout=100.0)
    assert (finding.kind, finding.gravity.value) == ("timeout", "warning")
    assert "ZooKeeper gives 60 s" in finding.text
    assert "maxSessionTimeout" in finding.text


async def test_what_the_disks_do_not_keep(own: local.Servers, namespace: str) -> None:
    async with configured(own.redis[0], "appendonly", "no"), configured(own.redis[1], "appendfsync", "no"):
        found = await findings(own, namespace)
    assert [(finding.kind, finding.about, finding.gravity.value) for finding in found] == [
        ("disk", ("redis-1",), "warning"),
        ("disk", ("redis-2",), "warning"),
    ]


async def test_min_replicas_that_differs(own: local.Servers, namespace: str) -> None:
    finding = await only(own, namespace, min_replicas=3)
    assert (finding.kind, finding.gravity.value) == ("agreement", "wrong")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            b'"level":%d' % SPOKEN.highest,
            b'"level":9',
            "it is at level 9, that of another release, and this zkrq .*; install here",
        ),
        (b'"epoch"', b'"spoilt"', "holds no view of zkrq.*; restore ZooKeeper's data"),
    ],
)
async def test_a_view_that_this_release_cannot_read(
    own: local.Servers, namespace: str, old: bytes, new: bytes, told: str
) -> None:
    given = read_given({"redis": own.redis_urls, "zookeeper": own.zookeeper_hosts, "namespace": namespace})
    async with given.coordinator() as coordinator:
        found = await coordinator.read(VIEW)
        data = (found.data or b"").replace(old, new)
        assert data != found.data
        assert await coordinator.swap(VIEW, data, found.version)
    finding = await only(own, namespace)
    assert (finding.gravity.value, finding.kind) == ("wrong", "view")
    assert re.search(told, finding.text)


@pytest.fixture
def later() -> Iterator[None]:
    """Run the release after this one."""
    with later_release():
        yield


async def test_an_upgrade_that_was_not_ended_and_a_client_that_is_too_old(
    own: local.Servers, namespace: str, later: None
) -> None:
    given = read_given({"redis": own.redis_urls, "zookeeper": own.zookeeper_hosts, "namespace": namespace})
    async with given.coordinator() as coordinator:

        async def make_active(level: int) -> None:
            found = await coordinator.read(VIEW)
            view = replace(decode(found.data or b""), level=level, raised_by="")
            assert await coordinator.swap(VIEW, encode(view), found.version)

        finding = await only(own, namespace)
        assert (finding.kind, finding.gravity.value) == ("release", "warning")
        assert finding.text.endswith(f"needs level {LATER} is refused; `zkrq upgrade --check`, then `zkrq upgrade`")
        await coordinator.introduce(encode_client(ClientInfo("mailer", "host-a", "0.1.9", Levels(1, LATER - 1), "")))
        await coordinator.enrol("mailer")
        finding = await only(own, namespace)
        assert (finding.kind, finding.gravity.value) == ("release", "warning")
        assert "these do not speak it: mailer (0.1.9); replace them, then `zkrq upgrade --check`" in finding.text
        await make_active(LATER)
        finding = await only(own, namespace)
        assert (finding.kind, finding.gravity.value) == ("release", "wrong")
        assert f"level {LATER} is active, which these do not speak, so they are refused: mailer (0.1.9)" in finding.text


async def test_servers_of_another_namespace(own: local.Servers, namespace: str) -> None:
    async with local.servers(redis=1, zookeeper=0, redis_config={"appendonly": "yes"}) as other:
        found = await findings(own, namespace, redis={"other": other.redis[0].url})
    kinds = {finding.kind: finding for finding in found}
    assert "which has redis-1, redis-2, redis-3" in kinds["agreement"].text
    assert kinds["stranger"].about == ("other",)
    assert len((await facts_of(own, namespace, redis={"other": own.redis[0].url})).servers) == 4


@asynccontextmanager
async def founded(*, namespace: str = "shop", running: bool = False) -> AsyncGenerator[local.Servers, None]:
    """Servers with a namespace that a test may restart and empty; ``running``: there is a client of it."""
    config = {"appendonly": "yes", "appendfsync": "always"}
    async with local.servers(redis=3, zookeeper=1, redis_config=config) as servers, AsyncExitStack() as stack:
        await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace)
        if running:
            client = zkrq.connect(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace)
            await stack.enter_async_context(client)
        yield servers


async def told(servers: local.Servers, kind: str) -> list[Finding]:
    return [finding for finding in await findings(servers, "shop") if finding.kind == kind]


async def test_all_servers_came_back_empty() -> None:
    async with founded() as servers:
        for server in servers.redis:
            await server.restart(wipe=True)
        (finding,) = await told(servers, "recovery")
        assert finding.gravity.value == "wrong"
        assert "none of redis-1, redis-2, redis-3 has brought its data back" in finding.text
        assert finding.text.endswith("`zkrq servers recover redis-1 redis-2 redis-3`")


async def test_all_servers_were_restarted() -> None:
    """The advice is that of the error of a client that connects: without the one that is away, then with it."""
    async with founded() as servers:
        for server in servers.redis:
            await server.kill()
        await asyncio.gather(servers.redis[0].start(), servers.redis[1].start())
        (finding,) = await told(servers, "recovery")
        assert (finding.gravity.value, finding.about) == ("down", ())
        assert finding.text.endswith("without what only it holds: `zkrq servers recover redis-1 redis-2`")
        (away,) = await told(servers, "unreachable")
        assert away.about == ("redis-3",)
        assert "servers add" not in away.text
        with pytest.raises(zkrq.Unavailable, match="`zkrq servers recover redis-1 redis-2`"):
            await zkrq.connect(servers.redis_urls, servers.zookeeper_hosts, namespace="shop").open()

        await servers.redis[2].restart(wipe=True)
        (finding,) = await told(servers, "recovery")
        assert finding.gravity.value == "down"
        assert "redis-1, redis-2 have brought the data back; the next client that connects merges it" in finding.text
        async with zkrq.connect(servers.redis_urls, servers.zookeeper_hosts, namespace="shop"):
            assert not await told(servers, "recovery")


async def test_one_server_came_back_empty_while_no_client_runs() -> None:
    async with founded() as servers:
        await servers.redis[1].restart(wipe=True)
        (finding,) = await told(servers, "restarted")
        assert (finding.about, finding.gravity.value) == (("redis-2",), "warning")
        assert not await told(servers, "recovery")


async def test_a_view_that_is_older_than_what_the_servers_have_seen(own: local.Servers, namespace: str) -> None:
    for server in own.redis[:2]:
        await command(server, "HSET", f"{{{namespace}}}:server", "epoch", "5")
    finding = await only(own, namespace)
    assert (finding.kind, finding.gravity.value, finding.about) == ("lost", "wrong", ("redis-1", "redis-2"))
    assert "`zkrq servers recover --older-zookeeper NAME...`" in finding.text


async def test_a_name_that_no_dns_knows(own: local.Servers, namespace: str) -> None:
    urls = {**own.redis_urls, "redis-2": "redis://redis-2.invalid:6379"}
    found = await findings(own, namespace, redis=urls, zookeeper=f"{own.zookeeper_hosts},zoo.invalid:2181")
    about = {finding.kind: finding for finding in found if finding.gravity.value == "down"}
    assert about["unreachable"].about == ("redis-2",)
    assert about["zookeeper"].about == ("zoo.invalid:2181",)
    for finding in about.values():
        assert re.search("correct its name|the DNS servers of this host", finding.text)
        assert "start it" not in finding.text


async def test_a_server_that_another_programs_script_keeps_busy(own: local.Servers, namespace: str) -> None:
    server = own.redis[2]
    async with configured(server, "lua-time-limit", "10"):
        script = asyncio.create_task(command(server, "EVAL", "while true do end", "0"))
        while not (await command(server, "PING")).startswith(b"-BUSY"):
            pass
        finding = await only(own, namespace)
        await command(server, "SCRIPT", "KILL")
        await script
    assert (finding.kind, finding.about) == ("unreachable", ("redis-3",))
    assert "BUSY" in finding.text
    assert "`redis-cli SCRIPT KILL`" in finding.text
    assert "start it" not in finding.text


async def test_a_namespace_with_less_redundancy_than_it_should_have(own: local.Servers) -> None:
    async with local.servers(redis=2, zookeeper=0, redis_config={"appendonly": "yes"}) as other:
        name = new_namespace()
        await zkrq.found(other.redis_urls, own.zookeeper_hosts, namespace=name)
        finding = await only(own, name, redis=other.redis_urls)
    assert (finding.kind, finding.gravity.value) == ("redundancy", "warning")
    assert "one failure stops pushes" in finding.text


# -- as a shell sees it ------------------------------------------------------------------------------------------------


@pytest.fixture
def shell(own: local.Servers, namespace: str, prepared_zkrq: list[str]) -> Shell:
    shell = Shell(own, prepared_zkrq)
    shell.environment["ZKRQ_NAMESPACE"] = namespace
    return shell


async def test_the_command(shell: Shell, own: local.Servers) -> None:
    code, out, err = await shell.run("doctor")
    assert (code, err) == (0, "")
    summary, verdict = out.splitlines()
    assert "3 of 3 Redis servers answered" in summary
    assert verdict == "nothing is wrong"
    examined, sound = await shell.value("doctor")
    assert (examined["kind"], sound["kind"]) == ("examined", "sound")
    assert examined["servers"]["redis-1"]["appendonly"] is True

    await own.redis[0].kill()
    try:
        code, out, err = await shell.run("doctor")
        assert (code, err) == (1, "zkrq doctor: 1 problem found\n")
        assert out.splitlines()[1].startswith("down: redis-1: cannot be reached")
        async with configured(own.redis[1], "maxmemory-policy", "allkeys-lru"):
            code, out, err = await shell.run("doctor")
        assert (code, err) == (2, "zkrq doctor: 2 problems found\n")
        assert out.splitlines()[1].startswith("wrong: redis-2: maxmemory-policy")
    finally:
        await own.start()


# -- what no server here can be made to be -----------------------------------------------------------------------------


OLD: Mapping[str, str] = {"run_id": "1", "role": "master", "maxmemory_policy": "noeviction", "redis_version": "6.2.1"}
FULL: Mapping[str, str] = {**OLD, "run_id": "2", "redis_version": "7.2.4", "aof_last_write_status": "err"}


def test_an_old_server_a_slow_one_and_one_whose_disk_is_full() -> None:
    given = read_given({"redis": ["redis://a", "redis://b"], "zookeeper": "z"})
    servers = {
        ServerId("a"): ServerFacts(ServerId("a"), "redis://a", None, OLD, round_trip=0.2),
        ServerId("b"): ServerFacts(ServerId("b"), "redis://b", None, FULL),
    }
    found = examine(Facts(given.settings, (), servers, ()))
    assert [(finding.kind, finding.about) for finding in found] == [
        ("version", ("a",)),
        ("disk", ("b",)),
        ("latency", ("a",)),
    ]


def test_zookeeper_that_has_no_room_is_not_to_be_started() -> None:
    given = read_given({"redis": ["redis://a"], "zookeeper": "z"})
    (found,) = examine(Facts(given.settings, (), {}, (HostReport("z:2181", reason="full", is_crowded=True),)))
    assert "start it" not in found.text
    assert "raise maxClientCnxns in zoo.cfg" in found.text
