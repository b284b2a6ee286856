"""Define the flags that say which servers and which namespace a command works on, and connect to them."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from zkrq.base.settings import DEFAULTS
from zkrq.cli.command import Flag, attribute
from zkrq.client.connecting import connect
from zkrq.client.environment import VARIABLES

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster


def setting(name: str, help: str, metavar: str | None = None) -> Flag:
    """Return the flag of a setting of ``connect()``, read as its environment variable is."""
    return Flag(name, help, VARIABLES[attribute(name)].read, None, metavar, setting=True)


# No flag takes a password, because every user of the machine sees a command's arguments; ZKRQ_REDIS_AUTH and
# ZKRQ_ZOOKEEPER_AUTH do, or better files that ZKRQ_REDIS_AUTH_FILE and ZKRQ_ZOOKEEPER_AUTH_FILE name.
CONNECTION = (
    setting("redis", "the Redis servers: url,url,url or name=url,name=url,name=url", "URLS"),
    setting("zookeeper", "the ZooKeeper servers: host:port,host:port,host:port", "HOSTS"),
    setting("redis-tls", "certificates for rediss://: 1 or ca_certs=FILE,certfile=FILE,keyfile=FILE", "FILES"),
    setting("zookeeper-tls", "certificates for TLS to ZooKeeper, in the same form", "FILES"),
    setting("namespace", f"the namespace's name; default: {DEFAULTS.namespace}"),
    setting("description", "describes this process in `zkrq consumers`; default: host:pid"),
    setting(
        "session-timeout",
        f"until ZooKeeper ends the session of a silent process; default: {DEFAULTS.session_timeout:g}",
        "SECONDS",
    ),
    setting(
        "command-timeout",
        f"until a silent Redis server counts as dead; default: {DEFAULTS.command_timeout:g}",
        "SECONDS",
    ),
    setting(
        "operation-timeout",
        f"during which a push or an ack is retried; default: {DEFAULTS.operation_timeout:g}",
        "SECONDS",
    ),
)


def open_cluster(args: Namespace, *, found: bool | None = False, **more: Any) -> Cluster:
    """Make the cluster that the flags and the environment name, to be opened with ``async with``.

    ``found``: whether to found the namespace, None: as the environment says.  ``more``: further arguments for
    ``connect``.
    """
    return connect(**settings_of(args), found=found, **more)


def settings_of(args: Namespace) -> dict[str, Any]:
    """Return the settings that the flags name, as arguments of ``connect``; None for those that are not given."""
    return {name: getattr(args, name) for name in (attribute(flag.name) for flag in CONNECTION)}
