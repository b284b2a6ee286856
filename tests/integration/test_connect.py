"""Opening a cluster: bad arguments and servers that cannot be used get a clear error, before anything is written."""

from __future__ import annotations

import asyncio
import inspect
import re
import socket
from collections.abc import Callable, Generator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest

import zkrq
from tests.harness import command, in_process, new_namespace, over_zookeeper, until
from zkrq import local
from zkrq.base import clock
from zkrq.base.ids import MARK
from zkrq.coordination.memory import Hub
from zkrq.coordination.zookeeper import ZooKeeperCoordinator
from zkrq.replication.stream import Receiver
from zkrq.replication.urls import dial
from zkrq.replication.wire import Wire

pytestmark = pytest.mark.anyio

REDIS = ["redis://127.0.0.1:1", "redis://127.0.0.1:2"]
ZOOKEEPER = "127.0.0.1:3"


@pytest.mark.parametrize(
    ("redis", "zookeeper", "options", "says"),
    [
        ([], ZOOKEEPER, {}, "at least one server"),
        ("redis://127.0.0.1", ZOOKEEPER, {}, "list of URLs"),
        (["http://127.0.0.1"], ZOOKEEPER, {}, "not a Redis URL"),
        (["redis://127.0.0.1:port"], ZOOKEEPER, {}, "not a Redis URL"),
        (["redis://a", "redis://a:6379"], ZOOKEEPER, {}, "one server twice"),
        ({"": "redis://a"}, ZOOKEEPER, {}, "name"),
        (REDIS, "", {}, "is not a ZooKeeper server"),
        (REDIS, "host:port", {}, "is not a ZooKeeper server"),
        (REDIS, ZOOKEEPER, {"namespace": ""}, "namespace"),
        (REDIS, ZOOKEEPER, {"namespace": "a/b"}, "namespace"),
        (REDIS, ZOOKEEPER, {"namespace": "{x}"}, "namespace"),
        (REDIS, ZOOKEEPER, {"min_replicas": 0}, "min_replicas"),
        (REDIS, ZOOKEEPER, {"min_replicas": 3}, "min_replicas"),
        (REDIS, ZOOKEEPER, {"session_timeout": 0}, "session_timeout"),
        (REDIS, ZOOKEEPER, {"command_timeout": -1}, "command_timeout"),
        (REDIS, ZOOKEEPER, {"command_timeout": float("nan")}, "command_timeout"),
        (REDIS, ZOOKEEPER, {"operation_timeout": 3600}, "operation_timeout"),
    ],
)
def test_bad_arguments_are_refused_at_once(redis: Any, zookeeper: str, options: Mapping[str, Any], says: str) -> None:
    with pytest.raises(zkrq.ConfigError, match=says):
        zkrq.connect(redis, zookeeper, **options)


def test_passwords_are_not_told() -> None:
    with pytest.raises(zkrq.ConfigError) as caught:
        zkrq.connect(["http://user:secret@host"], ZOOKEEPER)
    assert "secret" not in str(caught.value)
    cluster = zkrq.connect(["redis://user:secret@host"], ZOOKEEPER)
    assert "secret" not in repr(cluster) + repr(list(vars(cluster).values()))


async def test_bad_items_are_refused_before_anything_is_written(servers: local.Servers) -> None:
    async with in_process(servers, new_namespace()) as cluster:
        for name in ("", "a b", "a/b", "{a}", "x" * 129, "nul\0", "ü"):
            with pytest.raises(zkrq.ConfigError, match="name"):
                cluster.queue(name)
        queue = cluster.queue("jobs", max_payload_bytes=100)
        pushes: list[tuple[object, dict[str, Any], type[Exception]]] = [
            (object(), {}, zkrq.CodecError),
            (float("nan"), {}, zkrq.CodecError),
            ("\ud800", {}, zkrq.CodecError),
            ("x" * 100, {}, zkrq.PayloadTooLarge),
            (1, {"delay": -1}, zkrq.ConfigError),
            (1, {"delay": float("inf")}, zkrq.ConfigError),
            (1, {"delay": "1"}, zkrq.ConfigError),
            (1, {"delay": 1, "at": datetime.now().astimezone()}, zkrq.ConfigError),
            (1, {"at": datetime.now()}, zkrq.ConfigError),  # noqa: DTZ005
            (1, {"at": datetime.now().astimezone() + timedelta(days=36500)}, zkrq.ConfigError),
            (1, {"priority": 10}, zkrq.ConfigError),
            (1, {"priority": "high"}, zkrq.ConfigError),
            (1, {"id": ""}, zkrq.ConfigError),
            (1, {"id": "nul\0"}, zkrq.ConfigError),
            (1, {"id": "x" * 129}, zkrq.ConfigError),
            (1, {"id": 7}, zkrq.ConfigError),
            (1, {"id": f"{MARK}{0x10000000000:011x}-00000000-0"}, zkrq.ConfigError),  # made in 2004
        ]
        for item, options, kind in pushes:
            with pytest.raises(kind):
                await queue.push(item, **options)
        with pytest.raises(zkrq.PayloadTooLarge):
            await queue.push_many([1, 2, "x" * 100])
        with pytest.raises(zkrq.CodecError):
            await cluster.queue("raw", codec=zkrq.RAW).push("text")  # pyright: ignore[reportArgumentType]
        assert await queue.size() == (0, 0, 0, 0)
        for bad in ({"timeout": -1}, {"timeout": float("nan")}):
            with pytest.raises(zkrq.ConfigError):
                await queue.pop_one(**bad)
        for n in (0, 1001, True):
            with pytest.raises(zkrq.ConfigError):
                await queue.pop_many(n)
        with pytest.raises(zkrq.ConfigError):
            queue.pop(prefetch=-1)
        with pytest.raises(zkrq.ConfigError):
            cluster.queue("jobs", max_payload_bytes=200)
        with pytest.raises(zkrq.ConfigError):
            cluster.queue("other", claim_timeout=0)


async def test_one_server_listed_under_two_names(servers: local.Servers) -> None:
    url = servers.redis[0].url
    two = {"a": url, "b": f"{url}/1"}
    with pytest.raises(zkrq.ConfigError, match="same Redis server"):
        async with zkrq.connect(two, servers.zookeeper_hosts, found=True, namespace=new_namespace()):
            pass


async def test_a_cluster_that_is_not_open_says_what_to_do(servers: local.Servers) -> None:
    cluster = over_zookeeper(servers, new_namespace())
    calls: dict[str, Callable[[], object]] = {
        "queue": lambda: cluster.queue("jobs"),
        "view": lambda: cluster.view,
        "health": cluster.health,
        "queues": cluster.queues,
        "statistics": cluster.statistics,
        "consumers": cluster.consumers,
        "remove_server": lambda: cluster.remove_server("redis-1"),
    }

    async def call(name: str) -> None:
        result = calls[name]()
        if inspect.isawaitable(result):
            await result

    for name in calls:
        with pytest.raises(zkrq.Closed, match=r"the cluster is not open: enter it first, as in `async with"):
            await call(name)
    async with cluster:
        queue = cluster.queue("jobs")
        with pytest.raises(zkrq.Closed, match=r"opened once: make another one with connect\(\)"):
            await cluster.__aenter__()
        for name in ("view", "health", "queues"):
            await call(name)
    calls |= {"push": lambda: queue.push(1), "pop_one": queue.pop_one, "size": queue.size}
    for name in calls.keys() - {"view", "health"}:  # what was known last
        with pytest.raises(zkrq.Closed, match=r"is closed: to continue, open another one with connect\(\)"):
            await call(name)
    with pytest.raises(zkrq.Closed, match="opened once"):
        await cluster.__aenter__()


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (600, "session_timeout is 600 s, but ZooKeeper gives 60 s: it allows none that is longer.*maxSessionTimeout"),
        (0.5, r"session_timeout is 0.5 s, but ZooKeeper gives 1 s: it allows none that is shorter.*minSessionTimeout"),
        (3, None),
    ],
)
async def test_a_session_timeout_that_zookeeper_changes(
    servers: local.Servers, caplog: pytest.LogCaptureFixture, wish: float, says: str | None
) -> None:
    async with over_zookeeper(servers, new_namespace(), session_timeout=wish):
        pass
    warnings = [record.getMessage() for record in caplog.records if "session_timeout" in record.getMessage()]
    assert len(warnings) == bool(says)
    assert not says or re.search(says, warnings[0])


async def test_servers_that_exchanged_their_names(servers: local.Servers) -> None:
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace):
        pass
    names, urls = list(servers.redis_urls), list(servers.redis_urls.values())
    exchanged = dict(zip(names, [urls[1], urls[0], urls[2]], strict=True))
    with pytest.raises(zkrq.ConfigError, match="holds the data of"):
        async with zkrq.connect(exchanged, servers.zookeeper_hosts, namespace=namespace):
            pass


async def test_the_view_names_the_servers(servers: local.Servers) -> None:
    """A client's own list is where it looks first; it may be older, or newer, than the last change."""
    namespace = new_namespace()
    names = list(servers.redis_urls)
    async with over_zookeeper(servers, namespace):
        for given in ({names[0]: servers.redis_urls[names[0]]}, {**servers.redis_urls, "new": "redis://127.0.0.1:1"}):
            async with zkrq.connect(given, servers.zookeeper_hosts, namespace=namespace) as cluster:
                assert sorted(cluster.health().servers) == names
                assert (await cluster.queue("jobs").push("everywhere")).replicas == 3


async def test_none_of_the_servers_of_the_namespace(servers: local.Servers) -> None:
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace) as first:
        renamed = {f"other-{name}": url for name, url in servers.redis_urls.items()}
        with pytest.raises(zkrq.ConfigError, match="consists of the servers"):
            async with zkrq.connect(renamed, servers.zookeeper_hosts, namespace=namespace):
                pass
        with pytest.raises(zkrq.ConfigError, match="min_replicas"):
            async with over_zookeeper(servers, namespace, min_replicas=3):
                pass
        await first.queue("jobs").push("unharmed")


async def test_another_zookeeper_for_servers_that_hold_items(servers: local.Servers) -> None:
    """Founding anew would lose what is there."""
    namespace = new_namespace()
    async with in_process(servers, namespace) as cluster:
        await cluster.queue("jobs").push("precious")
    with pytest.raises(zkrq.ConfigError, match="holds items"):
        async with over_zookeeper(servers, namespace):
            pass


async def test_a_server_that_evicts_keys(servers: local.Servers) -> None:
    async with local.servers(redis=1, zookeeper=0, redis_config={"maxmemory-policy": "allkeys-lru"}) as own:
        with pytest.raises(zkrq.ConfigError, match="noeviction"):
            async with zkrq.connect(own.redis_urls, servers.zookeeper_hosts, found=True, namespace=new_namespace()):
                pass


@pytest.mark.parametrize("lacking", ["INFO", "FUNCTION", "FCALL"])
async def test_a_server_that_lacks_a_command(servers: local.Servers, lacking: str) -> None:
    """As managed services do; what is wrong does not pass, so nobody is told to retry."""
    renamed = {"rename-command": f'{lacking} ""'}
    async with local.servers(redis=1, zookeeper=0, redis_config=renamed) as own:
        with pytest.raises(zkrq.ConfigError, match=rf"unknown command '{lacking}'\): have that server take"):
            async with zkrq.connect(own.redis_urls, servers.zookeeper_hosts, found=True, namespace=new_namespace()):
                pass


async def test_a_replica(servers: local.Servers) -> None:
    async with local.servers(
        redis=1, zookeeper=0, redis_config={"replicaof": f"127.0.0.1 {servers.redis[0].port}"}
    ) as own:
        with pytest.raises(zkrq.ConfigError, match="role"):
            async with zkrq.connect(own.redis_urls, servers.zookeeper_hosts, found=True, namespace=new_namespace()):
                pass


async def test_a_password_that_is_missing(servers: local.Servers) -> None:
    async with local.servers(redis=1, zookeeper=0) as own:
        reader, writer = await asyncio.open_connection(own.redis[0].host, own.redis[0].port)
        writer.write(b"CONFIG SET requirepass secret\r\n")
        await reader.readline()
        writer.close()
        await writer.wait_closed()
        with pytest.raises(zkrq.ZkrqError, match=r"(?i)auth"):
            async with zkrq.connect(own.redis_urls, servers.zookeeper_hosts, found=True, namespace=new_namespace()):
                pass
        namespace = new_namespace()
        with_password = own.redis[0].url.replace("redis://", "redis://:secret@")
        async with zkrq.connect([with_password], servers.zookeeper_hosts, found=True, namespace=namespace) as cluster:
            assert (await cluster.queue("jobs").push(1)).replicas == 1


async def test_servers_that_do_not_answer(servers: local.Servers) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = f"redis://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(zkrq.Unavailable, match="no Redis server can be reached"):
            async with zkrq.connect([dead], servers.zookeeper_hosts, found=True, namespace=new_namespace()):
                pass
        with pytest.raises(zkrq.Unavailable, match="every server must answer"):
            async with zkrq.connect(
                {**servers.redis_urls, "dead": dead}, servers.zookeeper_hosts, found=True, namespace=new_namespace()
            ):
                pass
        address = dead.removeprefix("redis://")
        with pytest.raises(zkrq.Unavailable):
            async with zkrq.connect(servers.redis_urls, address, namespace=new_namespace(), session_timeout=2):
                pass


async def test_a_cluster_opens_with_a_server_down_once_it_was_founded(servers: local.Servers) -> None:
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace) as cluster:
        await cluster.queue("jobs").push("x")
    await servers.redis[0].kill()
    async with over_zookeeper(servers, namespace) as cluster:
        queue = cluster.queue("jobs")
        claim = await queue.pop_one(timeout=30)
        assert claim is not None
        await claim.ack()
        await queue.push("y")
        assert len(cluster.view.members) == 2


async def test_a_misspelt_namespace_is_not_founded_by_who_only_uses_it(servers: local.Servers) -> None:
    """The error names those that exist, and nothing is left behind in ZooKeeper or Redis."""
    namespace = new_namespace()
    view = await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace, min_replicas=2)
    assert sorted(view.members) == ["redis-1", "redis-2", "redis-3"]
    misspelt = f"{namespace}x"
    says = rf"namespace '{misspelt}' does not exist .*there are: .*{namespace}.*zkrq found"
    for _ in range(2):
        with pytest.raises(zkrq.ConfigError, match=says):
            async with zkrq.connect(servers.redis_urls, servers.zookeeper_hosts, namespace=misspelt):
                pass
    async with ZooKeeperCoordinator(servers.zookeeper_hosts, namespace=namespace) as coordinator:
        link = await coordinator._session.link()  # pyright: ignore[reportPrivateUsage]
        assert await link.stat(f"/{misspelt}") is None
    for server in servers.redis:
        assert await command(server, "EXISTS", f"{{{misspelt}}}:server") == b":0\r\n+OK\r\n"
    async with zkrq.connect(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace) as cluster:
        assert cluster.view == view


async def test_a_namespace_in_a_chroot_that_does_not_exist(servers: local.Servers) -> None:
    with pytest.raises(zkrq.ConfigError, match="there are none"):
        async with zkrq.connect(servers.redis_urls, f"{servers.zookeeper_hosts}/{new_namespace()}"):
            pass


async def test_founding_again_changes_nothing(servers: local.Servers) -> None:
    namespace = new_namespace()
    found = partial(zkrq.found, servers.redis_urls, servers.zookeeper_hosts, namespace=namespace)
    view = await found(min_replicas=3)
    async with over_zookeeper(servers, namespace) as cluster:
        await cluster.queue("jobs").push("x")
        assert await found() == view
        assert await found(min_replicas=3) == view
        with pytest.raises(zkrq.ConfigError, match="founded with min_replicas=3"):
            await found(min_replicas=2)
        assert cluster.view == view


async def test_a_reader_founds_nothing_in_process_either(servers: local.Servers) -> None:
    with pytest.raises(zkrq.ConfigError, match="does not exist"):
        async with in_process(servers, new_namespace(), found=False):
            pass


@pytest.fixture
def move_clock() -> Generator[Callable[[float], None]]:
    """Moves this process's clock on the wall by a number of seconds."""
    yield lambda seconds: clock.go_by(lambda: clock.machine_us() + round(seconds * 1_000_000))
    clock.go_by(clock.machine_us)


async def test_a_clients_clock_that_is_wrong(
    servers: local.Servers, move_clock: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    """It is named when the client connects, and keeps this client alone from pushing, not from looking."""
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace):
        pass
    assert "clock" not in caplog.text
    move_clock(-400)
    with pytest.raises(zkrq.ConfigError, match=r"redis-1 is 400\.\d s ahead .* this client that differs .*300 s"):
        async with over_zookeeper(servers, new_namespace()):
            pass
    async with over_zookeeper(servers, namespace) as cluster:
        with pytest.raises(zkrq.ConfigError, match=r"nothing was written.*the clock here differs"):
            await cluster.queue("jobs").push("x")
        await until(lambda: bool(cluster.health().trouble))
        assert cluster.health().trouble[0].startswith("this client's clock is 400.")
        assert await cluster.queue("jobs").size() == (0, 0, 0, 0)
    caplog.clear()
    move_clock(20)
    async with over_zookeeper(servers, namespace) as cluster:
        await cluster.queue("jobs").push("x")
    assert "redis-1 is 20.0 s behind this client's: it is this client that differs from the others" in caplog.text


class _Shifted:
    """A connection to a server whose clock is far ahead."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.prepare, self.connect, self.close = wire.prepare, wire.connect, wire.close

    async def ask(self, *commands: bytes) -> list[object]:
        return [_shifted(reply) for reply in await self._wire.ask(*commands)]

    def start(self, receiver: Receiver) -> Callable[[bytes], None]:
        return self._wire.start(_ShiftedReceiver(receiver))


class _ShiftedReceiver(Receiver):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.ended = receiver.ended

    def heard(self, reply: object) -> None:
        self._receiver.heard(_shifted(reply))


def _shifted(reply: object) -> object:
    match reply:
        case [bytes() as seconds, bytes() as us] if seconds.isdigit() and us.isdigit():  # to TIME
            return [b"%d" % (int(seconds) + 400), us]
        case _:
            return reply


async def test_a_servers_clock_that_is_wrong(servers: local.Servers, caplog: pytest.LogCaptureFixture) -> None:
    """A client that connects says which, evicts it and works on; one that is outside the view stays there."""
    namespace, hub = new_namespace(), Hub()
    wrong = servers.redis[1].url

    def dial_shifted(url: str, timeout: float) -> Callable[[], Wire]:
        make = dial(url, timeout)
        return lambda: _Shifted(make()) if url == wrong else make()

    async with in_process(servers, namespace, hub):
        pass
    async with in_process(servers, namespace, hub, dial=dial_shifted) as cluster:
        assert re.search(r"redis-2 is 400\.\d s ahead .* it is redis-2 that differs", caplog.text)
        await until(lambda: "redis-2" not in cluster.view.members)
        await cluster.queue("jobs").push("x")
        await until(lambda: bool(cluster.health().servers["redis-2"].reason))
        assert re.match(r"its clock is 400\.\d s ahead", cluster.health().servers["redis-2"].reason or "")
    async with local.servers(redis=1, zookeeper=0) as own:
        wrong = own.redis[0].url
        async with in_process(servers, namespace, hub, dial=dial_shifted) as cluster:
            with pytest.raises(zkrq.ConfigError, match=r"new: its clock is 400\.\d s ahead .*nothing was changed"):
                await cluster.add_server(wrong, name="new")


async def test_many_clients_found_a_namespace_at_the_same_time(servers: local.Servers) -> None:
    namespace = new_namespace()
    clients = [over_zookeeper(servers, namespace) for _ in range(6)]
    try:
        await asyncio.gather(*(client.__aenter__() for client in clients))
        assert len({client.view.by for client in clients}) == 1
        await asyncio.gather(*(client.queue("jobs").push(1) for client in clients))
        assert (await clients[0].queue("jobs").size()).ready == 6
    finally:
        await asyncio.gather(*(client.aclose() for client in clients))


async def test_two_clusters_share_servers_and_see_nothing_of_each_other(servers: local.Servers) -> None:
    async with in_process(servers, new_namespace(), Hub()) as one, in_process(servers, new_namespace(), Hub()) as two:
        await one.queue("jobs").push("mine")
        assert await two.queue("jobs").pop_one(timeout=0) is None


async def test_embedded_needs_no_zookeeper() -> None:
    if "redis" not in local.available():
        pytest.skip("not installed: redis")
    async with zkrq.embedded(servers=2) as cluster:
        queue = cluster.queue("jobs")
        assert (await queue.push("x")).replicas == 2
        claim = await queue.pop_one(timeout=30)
        assert claim is not None
        async with claim:
            assert claim.item == "x"


async def test_the_view_may_be_asked_for_as_soon_as_an_event_tells_of_it(servers: local.Servers) -> None:
    """Events come before the cluster is open."""
    seen: list[int] = []

    def heard(event: zkrq.Event) -> None:
        if isinstance(event, zkrq.ViewChanged):
            seen.append(cluster.view.epoch)

    cluster = zkrq.connect(
        servers.redis_urls, servers.zookeeper_hosts, namespace=new_namespace(), found=True, on_event=heard
    )
    async with cluster:
        assert seen == [1]
