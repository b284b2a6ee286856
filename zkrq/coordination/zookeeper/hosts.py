"""Parse the host string of the servers, in the format of ZooKeeper's own clients.

    zk1:2181, zk2, [2001:db8::1]:2181, ::1/apps/shop

Servers are separated by commas, with optional blanks.  The default port is 2181.  A path after the last server is the
chroot.  No I/O here: names are resolved when a connection is made.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from zkrq.base.errors import ConfigError

DEFAULT_PORT = 2181
MAX_PORT = 65535

_BRACKETED = re.compile(r"\[(?P<host>[^\[\]]+)\](?::(?P<port>\d+))?")
_NAMED = re.compile(r"(?P<host>[\w.-]+)(?::(?P<port>\d+))?")
_FORBIDDEN_IN_PATHS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of one server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Ensemble:
    """All servers, and the path below which zkrq stores everything: empty, or ``/`` and a path."""

    servers: tuple[Address, ...]
    chroot: str

    def __str__(self) -> str:
        return ",".join(map(str, self.servers)) + self.chroot


def parse(hosts: str) -> Ensemble:
    """Read a host string.  Raises ``ConfigError`` that names the wrong part."""
    servers, slash, chroot = hosts.partition("/")
    if "," in chroot:
        raise ConfigError(f"{hosts!r} names a chroot before its last server: write it once, after the last one")
    return Ensemble(
        servers=tuple(_parse_server(server.strip()) for server in servers.split(",")),
        chroot=path(chroot.strip()) if slash and chroot.strip() else "",
    )


def path(name: str) -> str:
    """Return the znode path for ``name``, checked by ZooKeeper's rules.  Raises ``ConfigError``."""
    parts = name.strip("/").split("/")
    if any(part in ("", ".", "..") or _FORBIDDEN_IN_PATHS.search(part) for part in parts):
        raise ConfigError(f"{name!r} cannot be a znode's path")
    return "/" + "/".join(parts)


def _parse_server(server: str) -> Address:
    if _is_ipv6(server):
        return Address(server, DEFAULT_PORT)
    match = _BRACKETED.fullmatch(server)
    if match is not None and not _is_ipv6(match["host"]):
        match = None
    match = match or _NAMED.fullmatch(server)
    if match is None:
        raise ConfigError(f"{server!r} is not a ZooKeeper server: host, host:port or [ipv6]:port is expected")
    port = int(match["port"] or DEFAULT_PORT)
    if not 0 < port <= MAX_PORT:
        raise ConfigError(f"{server!r} is not a ZooKeeper server: a port is between 1 and {MAX_PORT}")
    return Address(match["host"], port)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
