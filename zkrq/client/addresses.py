"""Check the addresses of servers that a user gives: URLs of Redis servers by name, and ZooKeeper's hosts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import parse_qsl, urlsplit

from zkrq.base.checks import check_id
from zkrq.base.errors import ConfigError
from zkrq.coordination.zookeeper import hosts
from zkrq.protocol.shards import FIRST, SHARD_NAME, ShardName
from zkrq.replication.urls import address, check_url, redact

if TYPE_CHECKING:
    from zkrq.protocol.view import ServerId

RedisServers: TypeAlias = Sequence[str] | Mapping[str, str]
"""URLs, or name -> URL.  Without names, servers are called by host and port."""

RedisShards: TypeAlias = Mapping[str, RedisServers]
"""The servers of each shard, by its name; one is called ``main``."""

ZooKeeperServers: TypeAlias = str | Sequence[str]
"""``host:port,host:port/chroot``, or a list of ``host:port``, of which the last one may have the chroot."""

_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
"""Options of a URL that name a file."""

_LOOPBACK = ("127.0.0.1:", "[::1]:", "::1:")
"""Beginnings of addresses that are another way to write ``localhost:``."""


def name_shards(redis: RedisServers | RedisShards) -> dict[ShardName, dict[str, str]]:
    """Return the URLs by name, of each shard; servers that are not divided into shards are the first one's.

    Raises ``ConfigError``.
    """
    if not isinstance(redis, Mapping) or all(isinstance(value, str) for value in redis.values()):
        return {FIRST: name_servers(cast("RedisServers", redis))}
    shards = {check_shard(name): name_servers(cast("RedisServers", servers)) for name, servers in redis.items()}
    if FIRST not in shards:
        raise ConfigError(f"one shard must be called {FIRST!r}: the one that the namespace was founded with")
    every = [name for servers in shards.values() for name in servers]
    if twins := {name for name in every if every.count(name) > 1}:
        raise ConfigError(f"server {min(twins)} belongs to two shards: a shard needs servers and names of its own")
    return shards


def check_shard(name: str) -> ShardName:
    """Return the name of a shard: 1 to 32 of a-z, 0-9, _ and -.  Raises ``ConfigError``."""
    if not isinstance(name, str) or not SHARD_NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"a shard is called {name!r}: must be 1 to 32 of a-z, 0-9, '_' and '-'")
    return ShardName(name)


def name_servers(redis: RedisServers) -> dict[str, str]:
    """Return the URLs by name.  Raises ``ConfigError``."""
    if isinstance(redis, str):
        raise ConfigError("redis must be a list of URLs or a mapping of names to URLs, not one str")
    if not isinstance(redis, Mapping | Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"redis must be a list of URLs or a mapping of names to URLs, not {type(redis).__name__}")
    named = dict(redis) if isinstance(redis, Mapping) else {address(url): url for url in redis}
    if not named:
        raise ConfigError("redis is empty: at least one server is needed")
    if len(named) != len(redis):
        raise ConfigError("redis names one server twice: N copies need N servers")
    for name, url in named.items():
        check_id("a server's name", name)
        check_url(url)
        _check_files(name, url)
    _check_distinct(named)
    return named


def name_at(url: str, servers: Mapping[ServerId, str]) -> ServerId | None:
    """Return the name of the server that listens where a URL leads, None if none of these does."""
    place = address(url)
    return next((id for id, other in servers.items() if address(other) == place), None)


def written(url: str, name: str) -> str:
    """Return how a server is written in ``ZKRQ_REDIS``; a password is not shown."""
    return redact(url) if name == address(url) else f"{name}={redact(url)}"


def choose_name(url: str, servers: Mapping[ServerId, str], taken: Collection[str]) -> str:
    """Return the name of a server that is added without one: the one that it has already; host and port where the
    others are called so; otherwise the next name, such as ``redis-4`` after ``redis-3``.

    ``servers``: those that it joins, with their URLs.  ``taken``: further names that others have, or had.
    """
    if known := name_at(url, servers):
        return known
    named = [id for id, other in servers.items() if id != address(other)]
    if not named:
        return address(url)
    numbered = next(filter(None, map(_NUMBERED.fullmatch, named)), None)
    prefix, digits = (numbered[1], len(numbered[2])) if numbered else ("redis-", 1)
    others = [match for id in {*servers, *taken} if (match := _NUMBERED.fullmatch(id)) and match[1] == prefix]
    last = max((int(match[2]) for match in others), default=len(servers))
    return f"{prefix}{last + 1:0{digits}}"


_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})", re.DOTALL)
"""A name that ends with a number."""


def _check_files(name: str, url: str) -> None:
    """Raise ``ConfigError`` if a certificate's file does not exist: the operating system's error would not name it."""
    for option, path in parse_qsl(urlsplit(url).query):
        if option in _FILES and not Path(path).is_file():
            raise ConfigError(f"server {name}: there is no file {path!r}, which {option} in its URL names")


def _check_distinct(named: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` if two names stand for one server, perhaps as ``localhost`` and as its address."""
    seen: dict[str, str] = {}
    for url in named.values():
        place = written = address(url)
        for beginning in _LOOPBACK:
            if place.startswith(beginning):
                place = f"localhost:{place.removeprefix(beginning)}"
        if twin := seen.get(place):
            raise ConfigError(
                f"redis names one server twice, as {twin} and as {written}: they are the same Redis server, and N "
                "copies need N servers; name each one once, and in the same way in every client"
            )
        seen[place] = written


def join_hosts(zookeeper: ZooKeeperServers) -> str:
    """Return ZooKeeper's servers as one host string, checked.  Raises ``ConfigError``."""
    if not isinstance(zookeeper, str):
        if not isinstance(zookeeper, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"zookeeper must be a str or a list of str, not {type(zookeeper).__name__}")
        servers = list(zookeeper)
        if not servers:
            raise ConfigError("zookeeper is empty: at least one server is needed")
        for server in servers:
            if not isinstance(server, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"zookeeper must be a str or a list of str; it has a {type(server).__name__}")
        zookeeper = ",".join(servers)
    hosts.parse(zookeeper)
    return zookeeper
