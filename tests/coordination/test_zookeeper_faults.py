"""The ZooKeeper coordinator when the network, the servers or aiozk fail.

"Hazard n" is the line n of the short list of aiozk 0.32's faults: each docstring describes the effect.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack

import pytest

import zkrq.base.tasks
from tests.coordination.conftest import HANG, SESSION_TIMEOUT, Recorder, ZooKeeperWorld
from tests.harness import settled
from tests.proxy import Connection, Proxy
from zkrq import local
from zkrq.base.errors import ConfigError, PayloadTooLarge, Unavailable
from zkrq.coordination.coordinator import VIEW, SessionState, Versioned
from zkrq.coordination.zookeeper import ZooKeeperCoordinator
from zkrq.coordination.zookeeper import coordinator as coordinator_module
from zkrq.coordination.zookeeper.asking import ask_hosts
from zkrq.coordination.zookeeper.session import ZooKeeperSession

pytestmark = pytest.mark.anyio

LONG = 20.0  # seconds: a session timeout that aiozk would need to notice, and we must not
BACK_WITHIN = 25.0  # seconds on a busy machine; the pauses of aiozk itself grow to a minute
HEADER = struct.Struct("!iiqi")  # length, xid, zxid, error
WATCH_XID = -1
AUTH_XID = -4
AUTH_FAILED = -115


def frames(data: bytes) -> Iterator[bytes]:
    """The messages in a chunk; ZooKeeper's are small enough never to be split here."""
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        yield data[:end]
        data = data[end:]


async def within(seconds: float, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def works(coordinator: ZooKeeperCoordinator) -> None:
    view = await coordinator.read(VIEW)
    assert await coordinator.swap(VIEW, b"%d works" % view.version, view.version)


# -- connections that break -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
async def test_cut_is_noticed_at_once(zookeeper: ZooKeeperWorld, reset: bool) -> None:
    """Hazard 1, 6: aiozk notices an idle connection's end after the session timeout, and may then pause 28 s."""
    one = await zookeeper.coordinator(session_timeout=LONG)
    recorder = Recorder(one)
    async with one:
        owner = await one.enrol("one")
        for _ in range(3):
            seen = len(recorder.sessions)
            zookeeper.cut(one, reset=reset)
            await recorder.until(lambda seen=seen: len(recorder.sessions) >= seen + 2, LONG / 3)
            assert recorder.states[seen:] == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert one.session.id == owner
        assert owner in await one.consumers()


async def test_calls_go_on_through_cuts(zookeeper: ZooKeeperWorld) -> None:
    """Hazard 1, 8: calls in flight on a connection that breaks are repeated, not failed nor left hanging."""
    one = await zookeeper.coordinator(session_timeout=LONG)
    async with one:
        owner = await one.enrol("one")

        async def ask() -> None:
            for _ in range(100):
                assert await one.consumers() == {owner: "one"}

        async with asyncio.timeout(HANG):
            asking = [asyncio.create_task(ask()) for _ in range(5)]
            for reset in (True, False, True):
                await asyncio.sleep(0.05)
                zookeeper.cut(one, reset=reset)
            await asyncio.gather(*asking)


async def test_hung_servers_are_passed_by(zookeeper: ZooKeeperWorld) -> None:
    """Hazard 2: aiozk waits for ever for a server that accepts the connection and never answers."""
    one = await zookeeper.coordinator(session_timeout=6.0)
    async with one:
        owner = one.session.id
        for proxy in zookeeper.proxies[one][:2]:
            proxy.stall()
            proxy.cut()
        await works(one)
        assert one.session.id == owner


async def test_frozen_server_is_left(zookeeper: ZooKeeperWorld) -> None:
    """Hazard 1, 2: the real thing: SIGSTOP to the server that we are connected to."""
    one = await zookeeper.coordinator(session_timeout=6.0)
    recorder = Recorder(one)
    async with one:
        owner = await one.enrol("one")
        proxy = zookeeper.proxy_in_use(one)
        server = zookeeper.servers.zookeeper[zookeeper.proxies[one].index(proxy)]
        server.pause()
        await recorder.until_state(SessionState.SUSPENDED)
        await recorder.until_state(SessionState.CONNECTED, 2)
        await works(one)
        server.resume()
        assert owner in await one.consumers()
        assert SessionState.LOST not in recorder.states


async def test_a_leader_without_followers_proves_nothing(zookeeper: ZooKeeperWorld) -> None:
    """Its followers may have elected another one already.  It still answers a sync, until it notices."""
    leader = await zookeeper.servers.zookeeper_leader()
    followers = [server for server in zookeeper.servers.zookeeper if server is not leader]
    hosts = f"{leader.host}:{leader.port}"
    async with ZooKeeperCoordinator(hosts, namespace=zookeeper.namespace, session_timeout=SESSION_TIMEOUT) as one:
        owner = await one.enrol("one")
        assert await one.alive(proved=True) == {owner}
        for server in followers:
            server.pause()
        try:
            assert await one.consumers() == {owner: "one"}
            with pytest.raises(Unavailable):
                await one.alive(proved=True)
        finally:
            for server in followers:
                server.resume()
        async with asyncio.timeout(HANG):
            await works(one)


async def test_leader_killed(zookeeper: ZooKeeperWorld) -> None:
    """The sessions outlive an election, which takes ZooKeeper several rounds where it has to wait for a core."""
    one, two = zookeeper.direct(session_timeout=LONG), zookeeper.direct(session_timeout=LONG)
    recorder = Recorder(two)
    async with one, two:
        owner = await one.enrol("one")
        leader = await zookeeper.servers.zookeeper_leader()
        await leader.kill()
        async with asyncio.timeout(HANG):
            await works(one)
            assert owner in await two.consumers()
        await recorder.until(lambda: recorder.views > 0)
        assert one.session.id == owner


async def test_reconnecting_may_break_too(zookeeper: ZooKeeperWorld) -> None:
    """Hazard 3: a connection that breaks while watches are set again deadlocks or kills aiozk's repair loop."""
    one, two = await zookeeper.coordinator(session_timeout=LONG), zookeeper.direct()
    recorder = Recorder(one)
    async with one, two:
        breaks = 5

        def break_first_replies(connection: Connection, data: bytes) -> bytes:
            """Let the handshake pass, break the connection at the first reply after it."""
            nonlocal breaks
            if breaks and connection in greeted:
                breaks -= 1
                connection.cut(reset=True)
                return b""
            greeted.add(connection)
            return data

        greeted: set[Connection] = set()
        for proxy in zookeeper.proxies[one]:
            proxy.on_reply = break_first_replies
        zookeeper.cut(one)
        await within(HANG, lambda: breaks == 0)
        await recorder.until(lambda: one.session.state is SessionState.CONNECTED)
        for version in range(-1, 2):
            seen = recorder.views
            assert await two.swap(VIEW, b"%d" % version, version)
            await recorder.until(lambda seen=seen: recorder.views > seen)


async def test_session_loop_is_started_again(zookeeper: ZooKeeperWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hazard 3: when aiozk's repair loop dies, the client is dead for ever."""
    monkeypatch.setattr(zkrq.base.tasks, "RESTART_PAUSE", 0.1)
    one = await zookeeper.coordinator()
    recorder = Recorder(one)
    async with one:
        owner = one.session.id
        mistakes = iter([ZeroDivisionError("a mistake of ours")])
        order = ZooKeeperSession._order  # pyright: ignore[reportPrivateUsage]

        def stumble(session: ZooKeeperSession) -> object:
            for mistake in mistakes:
                raise mistake
            return order(session)

        monkeypatch.setattr(ZooKeeperSession, "_order", stumble)
        zookeeper.cut(one)
        await recorder.until_state(SessionState.CONNECTED, 2)
        await works(one)
        assert one.session.id == owner


# -- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["refused", "unanswered"])
async def test_failed_handshakes_are_no_verdict(zookeeper: ZooKeeperWorld, fault: str) -> None:
    """Hazard 4: to aiozk a handshake cut short means LOST; one that is not answered changes the session in silence."""
    one = await zookeeper.coordinator(session_timeout=6.0)
    recorder = Recorder(one)
    async with one:
        owner = await one.enrol("one")
        failed = 0

        def fail(connection: Connection, data: bytes) -> bytes:
            nonlocal failed
            failed += 1
            if fault == "refused":
                connection.cut()
            return b""

        for proxy in zookeeper.proxies[one]:
            proxy.on_reply = fail
        zookeeper.cut(one)
        await within(HANG, lambda: failed >= 2)
        for proxy in zookeeper.proxies[one]:
            proxy.on_reply = lambda connection, data: data
        await recorder.until(lambda: one.session.state is SessionState.CONNECTED)
        assert SessionState.LOST not in recorder.states
        assert one.session.id == owner
        assert owner in await one.consumers()


async def test_deadline_passes_in_a_black_hole(zookeeper: ZooKeeperWorld) -> None:
    """Hazard 5: aiozk says CONNECTED for the whole session timeout after the last sign of life."""
    loop = asyncio.get_running_loop()
    one = await zookeeper.coordinator()
    recorder = Recorder(one)
    async with one:
        for proxy in zookeeper.proxies[one]:
            proxy.stall()
        deadline = one.valid_until
        await recorder.until_state(SessionState.SUSPENDED)
        await asyncio.sleep(max(0.0, deadline - loop.time()))
        assert one.valid_until <= loop.time()


async def test_outages(zookeeper: ZooKeeperWorld) -> None:
    """All servers unreachable for 15 s: a long session goes on, a short one is lost and replaced; meanwhile another
    client is stopped past its session.

    Hazard 4, 5, 6: LOST once ZooKeeper says so and not before; the deadline passes by itself; back soon afterwards.
    """
    short, long = await zookeeper.coordinator(), await zookeeper.coordinator(session_timeout=40.0)
    recorders = {short: Recorder(short), long: Recorder(long)}
    async with short, long, zookeeper.direct() as witness:
        ids = {each: await each.enrol(name) for each, name in ((short, "short"), (long, "long"))}
        for each in ids:
            await zookeeper.suspend(each)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stopped_past_its_session(zookeeper))
            await asyncio.sleep(15)
        assert short.session.state is long.session.state is SessionState.SUSPENDED
        assert short.valid_until < asyncio.get_running_loop().time() < long.valid_until
        for each in ids:
            await zookeeper.resume(each)
        for each, recorder in recorders.items():
            await recorder.until(lambda each=each: each.session.state is SessionState.CONNECTED, BACK_WITHIN)
        assert SessionState.LOST in recorders[short].states
        assert short.session.id != ids[short]
        assert SessionState.LOST not in recorders[long].states
        assert long.session.id == ids[long]
        assert set(await witness.consumers()) == {ids[long]}


async def stopped_past_its_session(zookeeper: ZooKeeperWorld) -> None:
    """SIGSTOP to a client: resumed, it knows at once that its session may be over, and soon that it is."""
    command = [sys.executable, "-m", "tests.coordination.stopped_client"]
    arguments = [zookeeper.servers.zookeeper_hosts, zookeeper.namespace, "2.0"]
    process = await asyncio.create_subprocess_exec(*command, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(HANG):
            seen: list[dict[str, str | bool]] = []

            async def until(event: str, **what: object) -> None:
                assert process.stdout is not None
                while True:
                    line = await process.stdout.readline()
                    assert line, f"the client ended after {seen}"
                    seen.append(json.loads(line))
                    if seen[-1]["event"] == event and what.items() <= seen[-1].items():
                        return

            await until("enrolled")
            old = seen[-1]["owner"]
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(8)  # the session, a clock jump that is noticed, and some
            process.send_signal(signal.SIGCONT)
            await until("resumed")
            # On a busy machine it may have lost the session, and have a new one, before it says that it was stopped.
            if not any(one.get("state") == "lost" for one in seen):
                assert seen[-1]["valid"] is False
                await until("session", state="lost")
            assert next(one for one in seen if one.get("state") == "lost")["id"] == old
            if not any(one.get("state") == "connected" and one["id"] != old for one in seen):
                await until("session", state="connected")
                assert seen[-1]["id"] != old
    finally:
        process.kill()
        await process.wait()


async def test_all_servers_killed_and_started_again(zookeeper: ZooKeeperWorld) -> None:
    """Hazard 6: aiozk's pauses grow to a minute."""
    one = zookeeper.direct(session_timeout=LONG)
    recorder = Recorder(one)
    async with one:
        owner = await one.enrol("one")
        for server in zookeeper.servers.zookeeper:
            await server.kill()
        await recorder.until_state(SessionState.SUSPENDED)
        await asyncio.sleep(3)
        await zookeeper.servers.start()
        await recorder.until_state(SessionState.CONNECTED, 2)
        await works(one)
        assert one.session.id == owner
        assert owner in await one.consumers()


async def test_ensemble_that_lost_its_data() -> None:
    """Servers that know less than we have seen refuse us; after a while their verdict counts, and all begins anew."""
    async with local.servers(redis=0, zookeeper=1) as servers:
        one = ZooKeeperCoordinator(servers.zookeeper_hosts, session_timeout=1.0)
        recorder = Recorder(one)
        async with one:
            old = await one.enrol("one")
            await works(one)
            await recorder.until(lambda: recorder.views > 0)
            seen = recorder.views
            await servers.zookeeper[0].restart(wipe=True)
            await recorder.until_state(SessionState.LOST)
            await recorder.until_state(SessionState.CONNECTED, 2)
            await recorder.until(lambda: recorder.views > seen)
            assert await one.read(VIEW) == Versioned(None, -1)
            assert await one.consumers() == {}
            assert await one.enrol("one") != old
            await works(one)


# -- what piles up ----------------------------------------------------------------------------------------------------


async def test_nothing_piles_up(zookeeper: ZooKeeperWorld) -> None:
    """Hazard 8, 9: aiozk keeps an entry for each path, each retry and each cancelled call."""
    one, two = await zookeeper.coordinator(session_timeout=LONG), zookeeper.direct()
    async with one, two:
        for number in range(50):
            owner = await two.enrol("two", number + 1)
            assert set(await one.consumers()) == {owner}
            call = asyncio.create_task(one.read(VIEW))
            await asyncio.sleep(0)
            call.cancel()
        await one.read(VIEW)
        link = one._session._link  # pyright: ignore[reportPrivateUsage]
        assert link is not None
        connection = link._connection  # pyright: ignore[reportPrivateUsage]
        assert len(connection.pending) <= 1  # a heartbeat
        assert len(one._descriptions) == 1  # pyright: ignore[reportPrivateUsage]


async def test_start_against_black_holes_is_bounded(zookeeper: ZooKeeperWorld) -> None:
    """Hazard 10: aiozk's start() waits for ever."""
    one = await zookeeper.coordinator()
    for proxy in zookeeper.proxies[one]:
        proxy.stall()
    async with asyncio.timeout(HANG):
        with pytest.raises(Unavailable):
            await one.__aenter__()


async def test_close_in_a_black_hole_is_bounded(zookeeper: ZooKeeperWorld) -> None:
    """Hazard 10: aiozk's close() waits for the session timeout, raises, and leaves tasks and the socket."""
    before = asyncio.all_tasks()
    one = await zookeeper.coordinator(session_timeout=60.0)
    async with asyncio.timeout(HANG):
        async with one:
            for proxy in zookeeper.proxies[one]:
                proxy.stall()
    assert not [task for task in asyncio.all_tasks() - before if "proxy" not in repr(task)]


# -- watches ----------------------------------------------------------------------------------------------------------


async def test_lost_notice_is_made_up_for(zookeeper: ZooKeeperWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hazard 11: a watch that is missed, or not set again, is missed for ever."""
    monkeypatch.setattr(coordinator_module, "RESYNC_INTERVAL", 0.5)
    one, two = await zookeeper.coordinator(), zookeeper.direct()
    recorder = Recorder(one)
    async with one, two:
        swallowed = 0

        def without_watch_events(connection: Connection, data: bytes) -> bytes:
            nonlocal swallowed
            kept = [frame for frame in frames(data) if HEADER.unpack_from(frame)[1] != WATCH_XID]
            swallowed += len(data) - sum(map(len, kept))
            return b"".join(kept)

        for proxy in zookeeper.proxies[one]:
            proxy.on_reply = without_watch_events
        assert await two.swap(VIEW, b"a", -1)
        await two.enrol("two")
        await recorder.until(lambda: recorder.views > 0 and recorder.consumers > 0)
        await within(HANG, lambda: swallowed > 0)


async def test_znodes_removed_by_hand_come_back(zookeeper: ZooKeeperWorld) -> None:
    """Hazard 11: aiozk's watcher ends when its znode is gone."""
    one, two = zookeeper.direct(), zookeeper.direct()
    recorder = Recorder(one)
    async with one, two:
        link = await two._session.link()  # pyright: ignore[reportPrivateUsage]
        await link.delete(f"/{zookeeper.namespace}/consumers")
        owner = await two.enrol("two")
        await recorder.until(lambda: recorder.consumers > 0)
        assert await one.consumers() == {owner: "two"}


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


async def is_in(stack: AsyncExitStack, hosts: str) -> bool:
    """Try to take the only place, which an earlier look at the server may still hold."""
    try:
        await stack.enter_async_context(ZooKeeperCoordinator(hosts, session_timeout=SESSION_TIMEOUT))
    except Unavailable:
        return False
    return True
