"""Resolve names of hosts in threads of this package's own, and connect to what they stand for.

A name that cannot be resolved says nothing about its server: the resolver is this client's own, and so is its trouble.
But the name of a server that died may be gone with it, as Kubernetes removes the name of a pod.  Were the client to
wait for the name, nobody would find out that the server is dead.  So where the resolver fails, or does not answer in
time, the client connects to the addresses that the name stood for last, and the server is judged by what happens
there.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, NamedTuple

from zkrq.base.forks import call_in_forks
from zkrq.base.threads import ThreadCall, Threads

NAME_THREADS = 8
"""Names that are resolved at the same time; a resolver that hangs occupies one thread for each name."""

NAMES_KEPT = 1_000
"""Names whose last addresses are kept."""

NAME_SECONDS = 1.0
"""Seconds that a name may take to be resolved before its last addresses are used, unless the caller says otherwise."""

KEEPALIVE_IDLE = 30
"""Seconds without traffic after which the operating system asks whether the other host still knows a connection."""

KEEPALIVE_INTERVAL = 5
"""Seconds between two of these questions."""

KEEPALIVE_TRIES = 3
"""Questions without an answer after which the connection has ended."""

_KEEPALIVE = (
    ("TCP_KEEPIDLE", KEEPALIVE_IDLE),
    ("TCP_KEEPALIVE", KEEPALIVE_IDLE),  # macOS
    ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL),
    ("TCP_KEEPCNT", KEEPALIVE_TRIES),
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Unresolved(socket.gaierror):
    """A name could not be resolved, and no address of it is known; the text says why."""


class NotReached(ConnectionError):
    """Nothing could be connected to; the text says in words what the operating system says by a number."""

    def __init__(self, text: str, number: int | None = None) -> None:
        super().__init__(text)
        self.errno = number


_WORDS = {
    errno.ECONNREFUSED: "nothing listens at {place}",
    errno.ENOENT: "nothing listens at {place}",  # the socket of a file that is not there
    errno.EHOSTUNREACH: "no route leads to {place}",
    errno.ENETUNREACH: "no route leads to the network of {place}",
    errno.ETIMEDOUT: "{place} does not answer",
    errno.EHOSTDOWN: "the host of {place} is down",
}
"""What errors of connecting say for people."""


def put_in_words(error: BaseException, place: str) -> NotReached | None:
    """Return the error of a connection to a place in words; None: it is another one, or one of this host."""
    number = error.errno if isinstance(error, OSError) else None
    words = _WORDS.get(number or 0)
    return NotReached(words.format(place=place), number) if words else None


class Address(NamedTuple):
    """Where a socket of this family connects to."""

    family: int
    place: tuple[Any, ...]


class Resolved(NamedTuple):
    """``trouble``: why these are only the last addresses that are known, empty if they are those of now."""

    addresses: Sequence[Address]
    trouble: str = ""


class _Name:
    """``last``: what it stood for when it was resolved last, empty if it never was.  ``asking``: its last lookup."""

    def __init__(self) -> None:
        self.last: Sequence[Address] = ()
        self.asking: ThreadCall[Sequence[Address]] | None = None

    def ask(self, host: str, port: int) -> Sequence[Address]:
        """Ask the resolver, in a thread; what it says too late for this call serves the next one."""
        self.last = found = _addresses(host, port)
        return found


class _Names:
    """The names that this process has resolved, on all its event loops."""

    def __init__(self) -> None:
        self._threads = Threads("zkrq names", most=NAME_THREADS)
        self._known = dict[tuple[str, int], _Name]()
        call_in_forks(self._forget_lookups)

    def _forget_lookups(self) -> None:
        for name in self._known.values():
            name.asking = None  # by a thread of the parent

    async def look_up(self, host: str, port: int) -> Sequence[Address]:
        """Return the addresses of a name, for however long that takes.  Raises ``OSError``, ``UnicodeError``."""
        name = self._known.setdefault((host, port), _Name())
        if len(self._known) > NAMES_KEPT:
            del self._known[next(iter(self._known))]
        # One lookup of a name at a time, so that a resolver that hangs does not get one thread after the other.
        if name.asking is None or name.asking.has_ended:
            name.asking = self._threads.start(partial(name.ask, host, port))
        return await name.asking.result()

    def last(self, host: str, port: int) -> Sequence[Address]:
        """Return what a name stood for when it was resolved last, empty if it never was."""
        return name.last if (name := self._known.get((host, port))) else ()


_names = _Names()


def _addresses(host: str, port: int, flags: int = 0) -> Sequence[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [Address(family, place) for family, _, _, _, place in found]


async def resolve(host: str, port: int, limit: AbstractAsyncContextManager[object]) -> Resolved:
    """Return the addresses of a host; the last ones that are known if the resolver fails or exceeds the limit.

    ``limit``: raises ``TimeoutError`` when the time is over.  Raises ``Unresolved`` if no address is known,
    ``UnicodeError`` for what cannot be a name.
    """
    try:
        return Resolved(_addresses(host, port, socket.AI_NUMERICHOST))  # nobody is asked
    except socket.gaierror:
        pass
    try:
        async with limit:
            return Resolved(await _names.look_up(host, port))
    except TimeoutError:
        trouble = "the resolver does not answer in time"
    except OSError as error:
        trouble = str(error)
    trouble = f"its name could not be resolved: {trouble}"
    if known := _names.last(host, port):
        return Resolved(known, trouble)
    raise Unresolved(trouble)


async def connect(host: str, addresses: Sequence[Address], context: ssl.SSLContext | None = None) -> Streams:
    """Connect to the first of a host's addresses that accepts, with TCP's keep-alive.

    ``context``: for TLS, whose certificate is checked for the host's name.  Raises ``OSError``.
    """
    errors: list[OSError] = []
    for address in addresses:
        try:
            connected = await _connect(host, address)
        except OSError as error:
            errors.append(error)
        else:
            name = host if context else None
            return await asyncio.open_connection(sock=connected, ssl=context, server_hostname=name)
    if len({str(error) for error in errors}) == 1:
        raise errors[0]
    raise OSError(f"no address accepts: {', '.join(map(str, errors))}")


async def _connect(host: str, address: Address) -> socket.socket:
    made = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if (option := getattr(socket, name, None)) is not None:
                made.setsockopt(socket.IPPROTO_TCP, option, value)
        await asyncio.get_running_loop().sock_connect(made, address.place)
    except BaseException as error:
        made.close()
        ip, port, *_ = address.place
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if worded := put_in_words(error, place if ip == host else f"{place} ({ip})"):
            raise worded from error
        raise
    return made


async def open_connection(
    host: str, port: int, context: ssl.SSLContext | None = None, *, name_seconds: float = NAME_SECONDS
) -> Streams:
    """Resolve a host's name and connect; as ``asyncio.open_connection``, without the loop's default executor.

    ``name_seconds``: what resolving the name may take.  Raises ``OSError``, ``UnicodeError``.
    """
    found = await resolve(host, port, asyncio.timeout(name_seconds))
    try:
        return await connect(host, found.addresses, context)
    except OSError as error:
        if found.trouble and not isinstance(error, ssl.SSLError):
            raise type(error)(f"{error} ({found.trouble})") from error
        raise
