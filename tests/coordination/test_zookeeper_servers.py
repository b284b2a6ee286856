"""The ZooKeeper coordinator and servers of many kinds: strangers, rights, addresses, limits."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import AsyncExitStack

import pytest

from tests.coordination.conftest import HANG, SESSION_TIMEOUT, Recorder, ZooKeeperWorld
from tests.coordination.overcoming import HEADER, frames, is_in, works
from tests.harness import settled
from tests.proxy import Connection, Proxy
from zkrq import local
from zkrq.base.errors import ConfigError, PayloadTooLarge, Unavailable
from zkrq.coordination.coordinator import VIEW, SessionState, Versioned
from zkrq.coordination.zookeeper import ZooKeeperCoordinator
from zkrq.coordination.zookeeper.asking import ask_hosts

pytestmark = pytest.mark.anyio

AUTH_XID = -4
AUTH_FAILED = -115


# -- half messages and strangers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "silent"])
async def test_half_a_message_blocks_nothing(zookeeper: ZooKeeperWorld, cut: bool) -> None:
    """Hazard 12: on Python 3.12+ aiozk blocks the event loop for 3 s over the missing half."""
    loop = asyncio.get_running_loop()
    one = await zookeeper.coordinator()
    lag = 0.0

    async def measure() -> None:
        nonlocal lag
        while True:
            before = loop.time()
            await asyncio.sleep(0.01)
            lag = max(lag, loop.time() - before)

    async with one:
        halved: list[Connection] = []

        def halve(connection: Connection, data: bytes) -> bytes:
            if halved:
                return b"" if connection in halved else data
            halved.append(connection)
            if cut:
                loop.call_later(0.05, connection.cut)
            return data[:14]

        measuring = asyncio.create_task(measure())
        for proxy in zookeeper.proxies[one]:
            proxy.on_reply = halve
        async with asyncio.timeout(HANG):
            await works(one)
        assert halved
        measuring.cancel()
        assert lag < 2.5


async def test_not_a_zookeeper_server() -> None:
    """Somebody else's answer is neither believed nor waited for to the end."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Unavailable, match="not ZooKeeper"):
        await ZooKeeperCoordinator(f"127.0.0.1:{port}", session_timeout=1.0).__aenter__()
    server.close()


async def test_too_large_is_refused_before_the_server_hangs_up(zookeeper: ZooKeeperWorld) -> None:
    async with zookeeper.direct() as one:
        with pytest.raises(PayloadTooLarge):
            await one.swap(VIEW, b"x" * 1_100_000, -1)


# -- who may do what --------------------------------------------------------------------------------------------------


async def test_znodes_belong_to_the_identity_that_made_them(zookeeper: ZooKeeperWorld) -> None:
    """Hazard 13: credentials go with every connection; the others can neither read nor write."""
    one = await zookeeper.coordinator(auth=("shop", "secret"))
    recorder = Recorder(one)
    async with one:
        owner = await one.enrol("one")
        await works(one)
        zookeeper.cut(one)
        await recorder.until_state(SessionState.CONNECTED, 2)
        await works(one)
        async with zookeeper.direct(auth=("shop", "secret")) as friend:
            assert await friend.consumers() == {owner: "one"}
            await works(friend)
        for auth in (("shop", "wrong"), ("stranger", "secret"), None):
            async with asyncio.timeout(HANG):
                with pytest.raises(ConfigError, match="credentials"):
                    await zookeeper.direct(auth=auth).__aenter__()
        assert (await one.read(VIEW)).version == 2
        async with ZooKeeperCoordinator(zookeeper.servers.zookeeper_hosts, namespace="elsewhere") as stranger:
            link = await stranger._session.link()  # pyright: ignore[reportPrivateUsage]
            for path in ("", "/view", "/consumers", f"/consumers/{owner}", "/election", "/election/leader"):
                with pytest.raises(Exception, match="NoAuth"):
                    await link.read(f"/{zookeeper.namespace}{path}")


async def test_refused_credentials(zookeeper: ZooKeeperWorld) -> None:
    """Hazard 13: aiozk reports them as a time-out of the connection; a hook of one's own would try for ever."""

    def refuse(connection: Connection, data: bytes) -> bytes:
        def answer(frame: bytes) -> bytes:
            length, xid, zxid, error = HEADER.unpack_from(frame)
            return HEADER.pack(length, xid, zxid, AUTH_FAILED if xid == AUTH_XID else error) + frame[HEADER.size :]

        return b"".join(map(answer, frames(data)))

    one = await zookeeper.coordinator(auth=("shop", "secret"))
    for proxy in zookeeper.proxies[one]:
        proxy.on_reply = refuse
    async with asyncio.timeout(HANG):
        with pytest.raises(ConfigError, match="credentials are refused"):
            await one.__aenter__()


# -- where the servers are --------------------------------------------------------------------------------------------


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 on this machine")
async def test_ipv6_blanks_and_chroot(zookeeper: ZooKeeperWorld) -> None:
    server = zookeeper.servers.zookeeper[0]
    async with Proxy(server.host, server.port, bind="::1") as proxy:
        one = ZooKeeperCoordinator(f" {proxy.address} , {proxy.address}/apps/{zookeeper.namespace}", namespace="shop")
        async with one:
            await works(one)
            link = await one._session.link()  # pyright: ignore[reportPrivateUsage]
            assert await link.read(f"/apps/{zookeeper.namespace}/shop/view") is not None


async def test_one_dead_host_among_others(zookeeper: ZooKeeperWorld, caplog: pytest.LogCaptureFixture) -> None:
    """A server that is down is passed by, without noise."""
    with caplog.at_level(logging.WARNING):
        hosts = f"127.0.0.1:1,{zookeeper.servers.zookeeper_hosts}"
        async with ZooKeeperCoordinator(hosts, namespace=zookeeper.namespace, session_timeout=SESSION_TIMEOUT) as one:
            assert await one.read(VIEW) == Versioned(None, -1)
    assert not caplog.records


async def test_a_server_without_room_for_this_address_is_told_from_a_silent_one() -> None:
    """``maxClientCnxns``: a connection ends before anything is said on it."""
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(local.servers(redis=0, zookeeper=1))
        (server,) = own.zookeeper
        server.config["maxClientCnxns"] = "1"
        await server.restart()
        async with AsyncExitStack() as others:
            await settled(lambda: is_in(others, own.zookeeper_hosts))
            with pytest.raises(Unavailable, match=r"no room for this client: .*; end clients of this .*maxClientCnxns"):
                async with ZooKeeperCoordinator(own.zookeeper_hosts, session_timeout=SESSION_TIMEOUT):
                    pass
            (report,) = await ask_hosts(own.zookeeper_hosts, None, HANG)
            assert report.is_crowded
            assert "too many" in report.reason
        await settled(lambda: is_in(stack, own.zookeeper_hosts))  # a client of this machine has ended
