"""Make a cluster: connect to servers, found a namespace on them, or start private servers for one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from zkrq import local
from zkrq.base.checks import Duration, check_count, check_kind, in_seconds
from zkrq.base.credentials import Credentials, Source
from zkrq.base.errors import ConfigError
from zkrq.base.meant import names_options
from zkrq.base.settings import DEFAULTS, Settings
from zkrq.base.tls import TLS
from zkrq.client.addresses import RedisServers, RedisShards, ZooKeeperServers, join_hosts, name_shards
from zkrq.client.cluster import Cluster
from zkrq.client.environment import complete, variable_of
from zkrq.client.inner import client_of
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.coordination.zookeeper import ZooKeeperCoordinator
from zkrq.protocol.shards import FIRST, ShardName
from zkrq.replication.urls import Dialler

if TYPE_CHECKING:
    from zkrq.base.events import Event
    from zkrq.protocol.view import View


@names_options("zkrq.connect()")
def connect(
    redis: RedisServers | RedisShards | None = None,
    zookeeper: ZooKeeperServers | None = None,
    *,
    redis_auth: Credentials | None = None,
    redis_tls: TLS | None = None,
    zookeeper_auth: Credentials | None = None,
    zookeeper_tls: TLS | None = None,
    namespace: str | None = None,
    found: bool | None = None,
    min_replicas: int | None = None,
    description: str | None = None,
    session_timeout: Duration | None = None,
    command_timeout: Duration | None = None,
    operation_timeout: Duration | None = None,
    auto_upgrade: bool | None = None,
    on_event: Callable[[Event], object] | None = DEFAULTS.on_event,
) -> Cluster:
    """Make a cluster, to be opened with ``async with``.  Nothing is connected before that.

    An argument that is None is read from its environment variable (``ZKRQ_REDIS``, ``ZKRQ_SESSION_TIMEOUT`` ...); if
    that is not set either, the default applies.

    redis: URLs of the servers, or name -> URL; every client must use the same names (without names: host and port).
    Of several shards: name -> servers; the first one is called ``main``.  Shards that are not named are found through
    ZooKeeper, and used with the credentials of the first server named here.
    redis_auth: a user and a password (``("", password)`` for Redis' default user), or a callable that returns them,
    such as ``LoginFile``; it is called for each connection.  For URLs that have none.
    redis_tls: files of certificates, for ``rediss://``; None: as the URLs say.
    zookeeper: ``host:port,host:port``, or a list of these.
    zookeeper_auth: a user and a password for ZooKeeper's digest scheme, or a callable that returns them.  All znodes
    are then for that identity only; a list of several, while a password is changed: for each of these.
    zookeeper_tls: encrypts connections to ZooKeeper; None: they are plain.
    namespace: name of the namespace; a folder in ZooKeeper, a prefix in Redis.  Default: ``zkrq``.
    found: whether to found the namespace if it does not exist; otherwise, and by default, that is an error (see
    ``found``).  A shard named here that could not be founded then is added later, by each client that is given it.
    min_replicas: a push returns when every in-sync server has it, and fails if fewer servers than this are in sync.
    Fixed when the namespace is founded.  Default: as it was founded; to found it: 2, or 1 if there is one server.
    description: describes this process in ``consumers()``; default: host and process id.
    session_timeout: seconds until ZooKeeper ends the session of a silent process and its claims are given back.
    Default: 10.
    command_timeout: seconds until a silent Redis server counts as dead; default: 2.
    operation_timeout: seconds for which a push or an ack is retried before it raises; default: 15.
    auto_upgrade: whether to make the latest level active when no client of an older release was seen for a day, as
    ``Cluster.upgrade`` does.  Default: False.
    on_event: called with every ``zkrq.Event``, on the event loop; must not block.

    Raises ``ConfigError`` for bad arguments, and for bad variables by their names.
    """
    return _make(
        {
            "redis": redis,
            "redis_auth": redis_auth,
            "redis_tls": redis_tls,
            "zookeeper": zookeeper,
            "zookeeper_auth": zookeeper_auth,
            "zookeeper_tls": zookeeper_tls,
            "namespace": namespace,
            "found": found,
            "min_replicas": min_replicas,
            "description": description,
            "session_timeout": session_timeout,
            "command_timeout": command_timeout,
            "operation_timeout": operation_timeout,
            "auto_upgrade": auto_upgrade,
        },
        on_event,
    )


class Given(NamedTuple):
    """What the arguments of ``connect`` and the environment say, checked; nothing is connected.

    ``servers``: those of the first shard, and of the others in ``shards``.
    """

    servers: Mapping[str, str]
    shards: Mapping[ShardName, Mapping[str, str]]
    dial: Dialler
    hosts: str
    auth: Credentials | None
    tls: TLS | None
    settings: Settings

    def coordinator(self, *, protect: bool = False) -> ZooKeeperCoordinator:
        """Return the session with ZooKeeper, not entered.  ``protect``: see ``ZooKeeperCoordinator``."""
        coordinator = ZooKeeperCoordinator(
            self.hosts,
            namespace=self.settings.namespace,
            session_timeout=self.settings.session_timeout,
            auth=self.auth,
            tls=self.tls,
            found=self.settings.found,
            protect=protect,
        )
        coordinator.only_looks = self.settings.only_looks
        return coordinator


def read_given(
    arguments: Mapping[str, Any], on_event: Callable[[Event], object] | None = None, *, only_looks: bool = False
) -> Given:
    """Read the arguments of ``connect`` and the environment.  Raises ``ConfigError``."""
    given = complete(arguments)
    for needed in ("redis", "zookeeper"):
        if needed not in given:
            raise ConfigError(f"{needed} is not given, and {variable_of(needed)} is not set: name the servers")
    shards, hosts = name_shards(given.pop("redis")), join_hosts(given.pop("zookeeper"))
    servers = shards.pop(FIRST)
    auth, tls = given.pop("zookeeper_auth", None), given.pop("zookeeper_tls", None)
    every = {name: url for urls in (servers, *shards.values()) for name, url in urls.items()}
    dial = _dialler(every, given.pop("redis_auth", None), given.pop("redis_tls", None))
    values = cast("Any", {name: in_seconds(value) for name, value in given.items()})
    settings = Settings(**values, on_event=on_event, only_looks=only_looks)
    return Given(servers, shards, dial, hosts, auth, tls, settings)


def looker(**arguments: Any) -> Cluster:
    """Make a cluster that only looks: it never changes the view, whatever it meets; arguments are those of
    ``connect``."""
    return _make(arguments, only_looks=True)


def _make(
    arguments: Mapping[str, Any],
    on_event: Callable[[Event], object] | None = None,
    *,
    protect: bool = False,
    only_looks: bool = False,
) -> Cluster:
    """Make a cluster of the arguments of ``connect`` and of the environment.

    ``protect``: when it is opened, give the namespace's znodes to ``zookeeper_auth`` alone.  ``only_looks``: see
    ``Settings``.  Raises ``ConfigError``.
    """
    given = read_given(arguments, on_event, only_looks=only_looks)
    coordinator = given.coordinator(protect=protect)
    return Cluster(given.servers, coordinator, given.settings, dial=given.dial, shards=given.shards)


def _dialler(servers: Mapping[str, str], auth: Credentials | None, tls: TLS | None) -> Dialler:
    """Return what connects to Redis servers.  Raises ``ConfigError``."""
    check_kind("redis_tls", tls, TLS)
    plain = [name for name, url in servers.items() if url.startswith("redis://")]
    if tls and plain:
        raise ConfigError(f"redis_tls is given, but the URL of server {plain[0]} is not encrypted: write rediss://")
    return Dialler(None if auth is None else Source("redis_auth", auth, nameless=True), tls)


async def found(
    redis: RedisServers | RedisShards | None = None,
    zookeeper: ZooKeeperServers | None = None,
    *,
    redis_auth: Credentials | None = None,
    redis_tls: TLS | None = None,
    zookeeper_auth: Credentials | None = None,
    zookeeper_tls: TLS | None = None,
    namespace: str | None = None,
    min_replicas: int | None = None,
    session_timeout: Duration | None = None,
    command_timeout: Duration | None = None,
) -> View:
    """Found a namespace with these servers, all of which must answer; return its view, that of the first shard.

    Call it once, when a namespace is set up.  Repeating it changes nothing, except that ``zookeeper_auth`` becomes the
    only identity with rights to the znodes.  Arguments, and their environment variables, as for ``connect``; add more
    servers later with ``add_server``.  Raises ``ConfigError`` if the namespace exists with other servers or another
    ``min_replicas``, or if a server already holds items of that name; ``Unavailable`` if not all of them answer.
    """
    async with founder(
        redis=redis,
        redis_auth=redis_auth,
        redis_tls=redis_tls,
        zookeeper=zookeeper,
        zookeeper_auth=zookeeper_auth,
        zookeeper_tls=zookeeper_tls,
        namespace=namespace,
        min_replicas=min_replicas,
        session_timeout=session_timeout,
        command_timeout=command_timeout,
    ) as cluster:
        await client_of(cluster).resharding.add_begun()  # which opening it leaves to the background
        return cluster.view


def founder(**arguments: Any) -> Cluster:
    """Make a cluster that does what ``found`` does when it is opened; arguments are those of ``connect``."""
    return _make({**arguments, "found": True}, protect=True)


@asynccontextmanager
async def embedded(
    servers: int = 3,
    *,
    min_replicas: int | None = DEFAULTS.min_replicas,
    on_event: Callable[[Event], object] | None = DEFAULTS.on_event,
) -> AsyncGenerator[Cluster]:
    """Start private servers on loopback and open a cluster on them, with the coordinator in this process.

    For development and for small programs without ZooKeeper: all data is gone when the context is left, or when the
    process dies.  Needs ``redis-server`` or the extra ``embedded``.
    """
    check_count("servers", servers, least=1)
    settings = Settings(found=True, min_replicas=min_replicas, on_event=on_event)
    settings.check_servers(servers)
    async with (
        local.servers(redis=servers, zookeeper=0) as private,
        Cluster(private.redis_urls, MemoryCoordinator(Hub()), settings) as cluster,
    ):
        yield cluster
