"""Read the flags that say which servers and which namespace a command works on, and connect to them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from zkrq.cli.command import Flag, attribute
from zkrq.cluster import Cluster
from zkrq.connecting import connect
from zkrq.errors import ConfigError
from zkrq.settings import DEFAULTS


def read_servers(text: str) -> Mapping[str, str] | list[str]:
    """Read ``url,url`` or ``name=url,name=url``."""
    urls = [url.strip() for url in text.split(",") if url.strip()]
    named = {name: url for name, found, url in (url.partition("=") for url in urls) if found and ":" not in name}
    return named if len(named) == len(urls) else urls


def read_login(text: str) -> tuple[str, str]:
    """Read ``user:password``."""
    user, _, password = text.partition(":")
    return user, password


CONNECTION = (
    Flag("redis", "the Redis servers: url,url,url or name=url,name=url,name=url", read_servers, metavar="URLS"),
    Flag("zookeeper", "the ZooKeeper servers: host:port,host:port,host:port", metavar="HOSTS"),
    Flag(
        "zookeeper-auth",
        "for ZooKeeper's digest scheme; safer in the environment variable than here",
        read_login,
        None,
        "USER:PASSWORD",
    ),
    Flag("namespace", "the namespace's name", default=DEFAULTS.namespace),
    Flag("description", "describes this process in `zkrq consumers`; default: host:pid"),
    Flag(
        "session-timeout",
        "until ZooKeeper ends the session of a silent process",
        float,
        DEFAULTS.session_timeout,
        "SECONDS",
    ),
    Flag("command-timeout", "until a silent Redis server counts as dead", float, DEFAULTS.command_timeout, "SECONDS"),
    Flag("operation-timeout", "during which a push or an ack is retried", float, DEFAULTS.operation_timeout, "SECONDS"),
)


def open_cluster(args: Namespace, **founding: Any) -> Cluster:
    """Make the cluster that the flags name, to be opened with ``async with``.

    ``founding``: further arguments for ``connect``, from the command that founds a namespace.
    """
    for needed in ("redis", "zookeeper"):
        if not getattr(args, needed):
            raise ConfigError(f"no --{needed} given, and ZKRQ_{needed.upper()} is not set")
    given = {name: getattr(args, name) for name in (attribute(flag.name) for flag in CONNECTION)}
    return connect(**given, **founding)
