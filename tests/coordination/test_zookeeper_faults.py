"""The ZooKeeper coordinator when the network, the servers or aiozk fail.

"Hazard n" is the line n of the short list of aiozk 0.32's faults: each docstring describes the effect.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import pytest

import zkrq.base.tasks
from tests.coordination.conftest import HANG, SESSION_TIMEOUT, Recorder, ZooKeeperWorld
from tests.coordination.overcoming import BACK_WITHIN, HEADER, LONG, frames, within, works
from tests.proxy import Connection
from zkrq import local
from zkrq.base.errors import Unavailable
from zkrq.coordination.coordinator import VIEW, SessionState, Versioned
from zkrq.coordination.zookeeper import ZooKeeperCoordinator
from zkrq.coordination.zookeeper import coordinator as coordinator_module
from zkrq.coordination.zookeeper.session import ZooKeeperSession

pytestmark = pytest.mark.anyio
WATCH_XID = -1


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
