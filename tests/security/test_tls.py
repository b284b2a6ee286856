"""TLS to Redis and to ZooKeeper, with an authority and client certificates of one's own; and every way to get it wrong.

Each mistake is told as an error that says what to do next, and evicts no server.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import zkrq
from tests.harness import HANG, SESSION_TIMEOUT, command, new_namespace, until
from tests.load import Load
from tests.security.conftest import Secured
from tests.snippets import execute, pointed, snippet
from zkrq import local
from zkrq.base.tls import TLS, read_tls
from zkrq.client.cluster import Cluster

pytestmark = pytest.mark.anyio


def tls(secured: Secured, ca: str = "ca", client: str | None = "client", **more: Any) -> TLS:
    files = secured.files
    pair = {} if client is None else {"certfile": files(client), "keyfile": files.key(client)}
    return TLS(ca_certs=files(ca), **pair, **more)


def connect(secured: Secured, namespace: str, **options: Any) -> Cluster:
    given: dict[str, Any] = {
        "redis": secured.redis,
        "zookeeper": secured.zookeeper,
        "redis_tls": tls(secured),
        "zookeeper_tls": tls(secured),
        "namespace": namespace,
        "found": True,
        "session_timeout": 2 * SESSION_TIMEOUT,
        "command_timeout": 5,  # handshakes are work, and the machine may be busy
        **options,
    }
    return zkrq.connect(**given)


async def refused(cluster: Cluster) -> str:
    """The text of the error with which a cluster does not open."""
    with pytest.raises(zkrq.ConfigError) as failed:
        async with asyncio.timeout(HANG), cluster:
            pass
    return str(failed.value)


async def test_items_flow_encrypted(secured: Secured) -> None:
    """A server is killed meanwhile, and comes back."""
    namespace, told = new_namespace(), list[zkrq.Event]()
    async with connect(secured, namespace, on_event=told.append) as cluster:
        load = Load(cluster)
        async with load.running(producers=2, consumers=2):
            await secured.servers.redis[0].restart(wipe=True)
            await until(lambda: any(isinstance(event, zkrq.ServerCaughtUp) for event in told))
            await until(load.progress(200))
        assert all(url.startswith("rediss://") for url in cluster.view.servers.values())
        assert cluster.health().ok


async def test_the_snippet_of_the_docs(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = new_namespace()
    monkeypatch.setenv("ZKRQ_NAMESPACE", namespace)
    async with connect(secured, namespace):
        pass
    code = pointed(snippet("security.md", "files = zkrq.TLS("), list(secured.redis.values()), secured.zookeeper, "")
    for named, file in {
        "/etc/shop/ca.pem": secured.files("ca"),
        "/etc/shop/client.pem": secured.files("client"),
        "/etc/shop/client.key": secured.files.key("client"),
    }.items():
        code = code.replace(named, str(file))
    async with (await execute(code, zkrq=zkrq))["cluster"] as cluster:
        assert (await cluster.queue("jobs").push("x")).replicas == 3


async def test_options_of_the_urls_do_for_redis(secured: Secured) -> None:
    options = f"ssl_ca_certs={secured.files('ca')}&ssl_certfile={secured.files('client')}"
    options += f"&ssl_keyfile={secured.files.key('client')}"
    urls = {name: f"{url}?{options}" for name, url in secured.redis.items()}
    async with connect(secured, new_namespace(), redis=urls, redis_tls=None) as cluster:
        assert (await cluster.queue("jobs").push("x")).replicas == 3


async def test_an_added_server_is_reached_by_all(secured: Secured) -> None:
    """The view has its URL without certificates; every client uses its own."""
    namespace, (first, *others) = new_namespace(), secured.redis.items()
    async with (
        connect(secured, namespace, redis=dict(others)) as one,
        connect(secured, namespace, redis=dict(others)) as two,
    ):
        await one.add_server(first[1], name=first[0])
        await until(lambda: first[0] in two.view.members)
        assert (await two.queue("jobs").push("x")).replicas == 3


async def test_a_server_without_tls_is_not_added(secured: Secured) -> None:
    """Every client that was told to use TLS would not connect to it, and write nothing more."""
    namespace, (first, *others) = new_namespace(), secured.redis.items()
    plain = secured.servers.redis_urls[first[0]]
    async with connect(secured, namespace, redis=dict(others)) as cluster:
        with pytest.raises(zkrq.ConfigError, match=r"server redis-1 would be used without TLS.*write rediss://"):
            await cluster.add_server(plain, name=first[0])
        with pytest.raises(zkrq.ConfigError, match=r"server redis-1 would be used without TLS.*write rediss://"):
            await cluster.add_shard("more", {first[0]: plain})
        assert cluster.view.servers.keys() == dict(others).keys()
        assert list(cluster.shards) == ["main"]
        await cluster.add_server(first[1], name=first[0])
        assert cluster.view.members.keys() == {first[0], *dict(others)}


# -- mistakes with Redis -----------------------------------------------------------------------------------------------

CLIENTS = {"none": None, "expired": "expired", "of a stranger": "stranger"}


@pytest.mark.parametrize("client", CLIENTS)
async def test_redis_refuses_a_certificate(secured: Secured, client: str) -> None:
    text = await refused(connect(secured, new_namespace(), redis_tls=tls(secured, client=CLIENTS[client])))
    assert "server redis-1 does not let this client in" in text
    assert "show one that the server trusts and that has not expired (certfile and keyfile of redis_tls)" in text


async def test_the_authority_of_redis_is_not_trusted(secured: Secured) -> None:
    for wrong in (tls(secured, ca="other"), TLS(certfile=secured.files("client"), keyfile=secured.files.key("client"))):
        text = await refused(connect(secured, new_namespace(), redis_tls=wrong))
        assert "certificate verify failed" in text
        assert "trust its authority (ca_certs of redis_tls), and use a name that the certificate has" in text


async def test_own_authorities_take_the_place_of_the_systems(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", secured.files("ca"))  # as if the system trusted it
    own = tls(secured, ca="other")
    assert "trust its authority (ca_certs of redis_tls)" in await refused(
        connect(secured, new_namespace(), redis_tls=own)
    )
    text = await refused(connect(secured, new_namespace(), zookeeper_tls=own))
    assert "trust its authority (ca_certs of zookeeper_tls)" in text


async def test_the_certificate_of_redis_is_of_another_host(secured: Secured) -> None:
    urls = {name: url.replace("127.0.0.1", "localhost") for name, url in secured.redis.items()}
    text = await refused(connect(secured, new_namespace(), redis=urls))
    assert "Hostname mismatch" in text
    assert "use a name that the certificate has" in text
    async with connect(secured, new_namespace(), redis=urls, redis_tls=tls(secured, check_hostname=False)) as cluster:
        await cluster.queue("jobs").push("x")


async def test_tls_to_a_plain_port_of_redis(secured: Secured) -> None:
    plain = {name: url.replace("redis:", "rediss:") for name, url in secured.servers.redis_urls.items()}
    text = await refused(connect(secured, new_namespace(), redis=plain))
    assert "speaks no TLS): write redis:// instead of rediss://" in text


async def test_no_tls_to_a_tls_port_of_redis(secured: Secured) -> None:
    for credentials in ("", "app:secret@"):
        urls = {name: url.replace("rediss://", f"redis://{credentials}") for name, url in secured.redis.items()}
        text = await refused(connect(secured, new_namespace(), redis=urls, redis_tls=None))
        assert "speaks TLS): write rediss:// instead of redis://" in text
        assert "secret" not in text


async def test_one_of_three_is_written_wrongly(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    """Beside a healthy client: the mistaken one is told, and no server is evicted."""
    namespace = new_namespace()
    wrong = {**secured.redis, "redis-3": secured.servers.redis[2].url.replace("redis:", "rediss:")}
    async with connect(secured, namespace) as healthy:
        with pytest.raises(zkrq.ConfigError, match=r"redis-3 does not let this client in .*write redis://"):
            async with connect(secured, namespace, redis=wrong, found=False) as mistaken:
                await mistaken.queue("jobs").push("nothing is written")
        assert healthy.view.epoch == 1
        assert (await healthy.queue("jobs").push("x")).replicas == 3
        assert (await healthy.queue("jobs").size()).ready == 1
    warned = [record for record in caplog.records if "redis-3" in record.getMessage()]
    assert len([record for record in warned if record.levelno >= logging.WARNING]) <= 1


async def test_a_clients_certificate_expires_while_it_works(secured: Secured, tmp_path: Path) -> None:
    """The files are read again for each connection: it is told what to correct, and takes part again when it has."""
    files, namespace, told = secured.files, new_namespace(), list[zkrq.Event]()
    for end in ("pem", "key"):
        shutil.copy(files.folder / f"client.{end}", tmp_path / f"own.{end}")
    own = TLS(ca_certs=files("ca"), certfile=str(tmp_path / "own.pem"), keyfile=str(tmp_path / "own.key"))
    async with (
        connect(secured, namespace, on_event=told.append) as healthy,
        connect(secured, namespace, redis_tls=own) as cluster,
    ):
        queue = cluster.queue("jobs")
        await queue.push("before")
        for end in ("pem", "key"):
            shutil.copy(files.folder / f"expired.{end}", tmp_path / f"own.{end}")
        for server in secured.servers.redis:
            await command(server, "CLIENT", "KILL", "TYPE", "normal")
        for _ in range(3):
            with pytest.raises((zkrq.ConfigError, zkrq.OutcomeUnknown), match="show one that the server trusts"):
                await queue.push("may have happened")
        assert not cluster.health().ok
        assert (await healthy.queue("jobs").push("healthy")).replicas == 3
        for end in ("pem", "key"):
            shutil.copy(files.folder / f"client.{end}", tmp_path / f"own.{end}")
        await until(lambda: cluster.health().ok)
        await queue.push("after")
        assert healthy.view.epoch == 1
    assert not [event for event in told if isinstance(event, zkrq.ServerEvicted)]


async def test_a_server_whose_certificate_no_client_trusts_leaves_and_comes_back(secured: Secured) -> None:
    """Each client is kept out, and none of them refutes it: the server would halt all pushes."""
    files, namespace, told = secured.files, new_namespace(), list[zkrq.Event]()
    server = secured.servers.redis[2]

    async def show(name: str) -> None:
        pair = "tls-cert-file", files(name), "tls-key-file", files.key(name)
        assert (await command(server, "CONFIG", "SET", *map(str, pair))).startswith(b"+OK")

    connected = connect(secured, namespace, on_event=told.append), connect(secured, namespace, on_event=told.append)
    async with connected[0] as one, connected[1] as two:
        load = Load(one)
        async with load.running(producers=2, consumers=2):
            await two.queue("jobs").push("before")
            await show("expired")
            try:
                await command(server, "CLIENT", "KILL", "TYPE", "normal")
                await until(lambda: server.name not in two.view.members)
                await until(load.progress(200))
                assert (await two.queue("jobs").push("without it")).replicas == 2
            finally:
                await show("server")
            await until(lambda: server.name in two.view.members)
        assert not load.uncertain, "no call failed"
    assert [event.server for event in told if isinstance(event, zkrq.ServerEvicted)] == [server.name]


# -- mistakes with ZooKeeper -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
async def test_zookeeper_refuses_a_certificate(secured: Secured, client: str) -> None:
    text = await refused(connect(secured, new_namespace(), zookeeper_tls=tls(secured, client=CLIENTS[client])))
    assert "show one that it trusts and that has not expired (certfile and keyfile of zookeeper_tls)" in text


async def test_the_authority_of_zookeeper_is_not_trusted(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    text = await refused(connect(secured, new_namespace(), zookeeper_tls=tls(secured, ca="other")))
    assert "trust its authority (ca_certs of zookeeper_tls), and use a name that the certificate has" in text
    told = [record for record in caplog.records if "does not let this client in" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"]


async def test_the_certificate_of_zookeeper_is_of_another_host(secured: Secured) -> None:
    elsewhere = secured.zookeeper.replace("127.0.0.1", "localhost")
    text = await refused(connect(secured, new_namespace(), zookeeper=elsewhere))
    assert "Hostname mismatch" in text
    lenient = tls(secured, check_hostname=False)
    async with connect(secured, new_namespace(), zookeeper=elsewhere, zookeeper_tls=lenient):
        pass


async def test_tls_to_a_plain_port_of_zookeeper(secured: Secured) -> None:
    text = await refused(connect(secured, new_namespace(), zookeeper=secured.servers.zookeeper_hosts))
    assert "name its secureClientPort, or leave zookeeper_tls out" in text


async def test_no_tls_to_a_tls_port_of_zookeeper(secured: Secured) -> None:
    text = await refused(connect(secured, new_namespace(), zookeeper_tls=None))
    assert "it speaks TLS: give zookeeper_tls, or name its other port" in text


async def test_one_server_that_is_named_wrongly_is_warned_of(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    """The others do; the warning is logged once for all connections."""
    hosts = f"{secured.servers.zookeeper_hosts},{secured.zookeeper}"
    for _ in range(4):  # in an order by chance
        async with connect(secured, new_namespace(), zookeeper=hosts) as cluster:
            await cluster.queue("jobs").push("x")
    told = [record for record in caplog.records if "name its secureClientPort" in record.getMessage()]
    assert len(told) <= 4


async def test_a_server_that_is_down_is_no_mistake(secured: Secured) -> None:
    """It may come back, so a supervisor should start the process again: not a ``ConfigError``."""
    await secured.servers.zookeeper[0].kill()
    with pytest.raises(zkrq.Unavailable):
        async with connect(secured, new_namespace()):
            pass


# -- settings ----------------------------------------------------------------------------------------------------------


def test_files_that_do_not_exist_are_named(tmp_path: Path) -> None:
    for name in ("ca_certs", "certfile"):
        missing: dict[str, Any] = {name: str(tmp_path / "x.pem")}
        with pytest.raises(zkrq.ConfigError, match=rf"there is no file '.*x\.pem', which {name} names"):
            TLS(**missing)
    (tmp_path / "key").touch()
    with pytest.raises(zkrq.ConfigError, match="keyfile is given without a certfile"):
        TLS(keyfile=str(tmp_path / "key"))


async def test_files_that_are_garbage_are_named(secured: Secured, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("garbage")
    text = await refused(connect(secured, new_namespace(), zookeeper_tls=TLS(ca_certs=str(garbage))))
    assert "the files of zookeeper_tls cannot be used" in text
    text = await refused(connect(secured, new_namespace(), redis_tls=TLS(ca_certs=str(garbage))))
    assert "the files of redis_tls cannot be used" in text
    assert "correct them" in text


async def test_what_an_error_says_lets_the_client_in(secured: Secured, tmp_path: Path) -> None:
    """One setting is wrong, and corrected as the error says."""
    namespace, garbage = new_namespace(), tmp_path / "garbage.pem"
    garbage.write_text("garbage")
    plain = {name: url.replace("rediss:", "redis:") for name, url in secured.redis.items()}
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("trust its authority (ca_certs of redis_tls)", {"redis_tls": tls(secured, ca="other")}),
        ("trust its authority (ca_certs of zookeeper_tls)", {"zookeeper_tls": tls(secured, ca="other")}),
        ("certfile and keyfile of redis_tls", {"redis_tls": tls(secured, client="stranger")}),
        ("certfile and keyfile of zookeeper_tls", {"zookeeper_tls": tls(secured, client="stranger")}),
        ("correct them", {"redis_tls": TLS(ca_certs=str(garbage))}),
        ("of zookeeper_tls cannot be used", {"zookeeper_tls": TLS(ca_certs=str(garbage))}),
        ("it speaks TLS: give zookeeper_tls", {"zookeeper_tls": None}),
        ("name its secureClientPort", {"zookeeper": secured.servers.zookeeper_hosts}),
        ("write rediss:// instead of redis://", {"redis": plain, "redis_tls": None}),
    ]
    async with connect(secured, namespace):
        pass
    for step, options in wrong:
        assert step in await refused(connect(secured, namespace, **options))
    async with connect(secured, namespace) as cluster:
        await cluster.queue("jobs").push("x")


def test_tls_for_urls_without_it_is_an_error() -> None:
    with pytest.raises(zkrq.ConfigError, match="the URL of server b is not encrypted: write rediss://"):
        zkrq.connect({"a": "rediss://one", "b": "redis://two"}, "zk", redis_tls=TLS())


def test_tls_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "a.pem").touch()
    assert read_tls("1") == TLS()
    path = str(tmp_path / "a.pem")
    assert read_tls(f" ca_certs={path}, certfile={path},check_hostname=0") == TLS(path, path, check_hostname=False)
    for wrong in ("0", "", "ca=x", "ca_certs=", "ca_certs", "check_hostname=maybe", f"ca_certs={path},ca_certs={path}"):
        with pytest.raises(ValueError):
            read_tls(wrong)


def test_servers_for_tests_speak_tls(secured_servers: Secured) -> None:
    """Otherwise the tests above would not see it: the plain port and the encrypted one differ."""
    assert isinstance(secured_servers.servers, local.Servers)
    assert not set(secured_servers.servers.redis_urls.values()) & set(secured_servers.redis.values())
