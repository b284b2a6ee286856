"""Make a cluster: connect to servers, found a namespace on them, or start private servers for one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from zkrq import local
from zkrq.checks import Duration, check_count, check_id, in_seconds
from zkrq.cluster import Cluster
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.coordination.zookeeper import ZooKeeperCoordinator
from zkrq.errors import ConfigError
from zkrq.events import Event
from zkrq.protocol.view import View
from zkrq.replication.urls import address, check_url
from zkrq.settings import DEFAULTS, Settings


def connect(
    redis: Sequence[str] | Mapping[str, str],
    zookeeper: str,
    *,
    zookeeper_auth: tuple[str, str] | None = None,
    namespace: str = DEFAULTS.namespace,
    found: bool = DEFAULTS.found,
    min_replicas: int | None = DEFAULTS.min_replicas,
    description: str | None = DEFAULTS.description,
    session_timeout: Duration = DEFAULTS.session_timeout,
    command_timeout: Duration = DEFAULTS.command_timeout,
    operation_timeout: Duration = DEFAULTS.operation_timeout,
    on_event: Callable[[Event], object] | None = DEFAULTS.on_event,
) -> Cluster:
    """Make a cluster, to be opened with ``async with``.  Nothing is connected before that.

    redis: URLs of the servers, or name -> URL; every client must use the same names (without names: host and port).
    zookeeper: ``host:port,host:port``; ``zookeeper_auth`` is a user and a password for ZooKeeper's digest scheme.
    namespace: name of the namespace; a folder in ZooKeeper, a prefix in Redis.
    found: whether to found the namespace if it does not exist; otherwise that is an error (see ``found``).
    min_replicas: a push returns when every in-sync server has it, and fails if fewer servers than this are in sync.
    Fixed when the namespace is founded.  None: as it was founded; to found it: 2, or 1 if there is one server.
    description: describes this process in ``consumers()``; None: host and process id.
    session_timeout: seconds until ZooKeeper ends the session of a silent process and its claims are given back.
    command_timeout: seconds until a silent Redis server counts as dead.
    operation_timeout: seconds for which a push or an ack is retried before it raises.
    on_event: called with every ``zkrq.events.Event``, on the event loop; must not block.

    Raises ``ConfigError`` for bad arguments.
    """
    servers = _name_servers(redis)
    settings = Settings(
        namespace=namespace,
        found=found,
        min_replicas=min_replicas,
        description=description,
        session_timeout=in_seconds(session_timeout),
        command_timeout=in_seconds(command_timeout),
        operation_timeout=in_seconds(operation_timeout),
        on_event=on_event,
    )
    coordinator = ZooKeeperCoordinator(
        zookeeper,
        namespace=namespace,
        session_timeout=settings.session_timeout,
        auth=zookeeper_auth,
        found=found,
    )
    return Cluster(servers, coordinator, settings)


async def found(
    redis: Sequence[str] | Mapping[str, str],
    zookeeper: str,
    *,
    zookeeper_auth: tuple[str, str] | None = None,
    namespace: str = DEFAULTS.namespace,
    min_replicas: int | None = DEFAULTS.min_replicas,
    session_timeout: Duration = DEFAULTS.session_timeout,
    command_timeout: Duration = DEFAULTS.command_timeout,
) -> View:
    """Found a namespace with these servers, all of which must answer; return its view.

    Call it once, when a namespace is set up; repeating it changes nothing.  Arguments as for ``connect``; add more
    servers later with ``add_server``. Raises ``ConfigError`` if the namespace exists with other servers or another
    ``min_replicas``, or if a server already holds items of that name; ``Unavailable`` if not all of them answer.
    """
    async with connect(
        redis,
        zookeeper,
        zookeeper_auth=zookeeper_auth,
        namespace=namespace,
        found=True,
        min_replicas=min_replicas,
        session_timeout=session_timeout,
        command_timeout=command_timeout,
    ) as cluster:
        return cluster.view


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


def _name_servers(redis: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Return the URLs by name.  Raises ``ConfigError``."""
    if isinstance(redis, str):
        raise ConfigError("redis must be a list of URLs or a mapping of names to URLs, not one str")
    named = dict(redis) if isinstance(redis, Mapping) else {address(url): url for url in redis}
    if not named:
        raise ConfigError("redis is empty: at least one server is needed")
    if len(named) != len(redis):
        raise ConfigError("redis names one server twice: N copies need N servers")
    for name, url in named.items():
        check_id("a server's name", name)
        check_url(url)
    return named
