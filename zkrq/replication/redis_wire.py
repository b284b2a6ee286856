"""Connect to one Redis server over the network.

The only module that imports redis.  redis-py connects, speaks TLS and logs in; then a ``Stream`` takes over its
transport, and nothing else of it is used.  Its retries are off, because only the operation knows what may be repeated.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from zkrq.base.errors import ConfigError, Unavailable
from zkrq.base.handshakes import read_alert, speaks_plainly, speaks_tls
from zkrq.base.network import NAME_SECONDS, Address, NotReached, connect, put_in_words, resolve
from zkrq.protocol.replies import Answer, Status, read_error
from zkrq.replication.patience import patience
from zkrq.replication.stream import Receiver, Stream
from zkrq.replication.wire import NoConnection, Wire

if TYPE_CHECKING:
    from redis._parsers import _AsyncHiredisParser as DefaultParser  # pyright: ignore[reportPrivateUsage]

    from zkrq.base.credentials import Source
    from zkrq.base.tls import TLS
else:
    from redis.asyncio.connection import DefaultParser  # the same, by a name that is public


class _OverNetwork(Connection):
    """redis-py's connection, to addresses that were resolved before."""

    addresses: Sequence[Address] = ()

    async def _connect(self) -> None:
        context = _context(self) if isinstance(self, SSLConnection) else None
        self._reader, self._writer = await connect(self.host, self.addresses, context)


class _Encrypted(_OverNetwork, SSLConnection):
    """The same over TLS."""


_OURS: Mapping[type[AbstractConnection], type[AbstractConnection]] = {
    Connection: _OverNetwork,
    SSLConnection: _Encrypted,
}


class Parser(DefaultParser):
    """redis-py's parser, but an error keeps the whole text of the server's reply.

    redis-py removes the first word of the replies that it knows, and takes some for a broken connection.
    """

    @classmethod
    def parse_error(cls, response: str) -> Any:
        error = super().parse_error(response)  # pyright: ignore[reportUnknownMemberType]
        error.reply = response  # pyright: ignore[reportAttributeAccessIssue]
        return error


NAME_SHARE = 1 / 2
"""Share of the time for connecting that resolving the name may take beside it, until the last known addresses are used.
"""

HANDSHAKE_SHARE = 3 / 4
"""Share of the time for connecting that a TLS handshake may take; the rest is for finding out why it took longer."""


class RedisWire:
    """A ``Wire`` that redis-py connects."""

    def __init__(
        self,
        make: Callable[..., AbstractConnection],
        path: str | None = None,
        auth: Source | None = None,
        tls: TLS | None = None,
        handshake: float | None = None,
        name: float = NAME_SECONDS,
    ) -> None:
        """``make``: makes a connection, with the options that are given in place of its own.

        ``path``: the server's socket in the file system, None if it is reached over the network.  ``auth`` and ``tls``:
        read for each connection.  ``handshake``: seconds that an encrypted connection may take to be made, None if its
        user limits that.  ``name``: seconds that resolving the server's name may take.
        """
        self._make = make
        self._name = name
        self._path = path
        self._auth = auth
        self._tls = tls
        self._handshake = handshake
        self._connection = make()
        self._stream: Stream | None = None

    async def prepare(self) -> str:
        if self._auth is not None:
            self._connection = self._make(**await _login(self._auth))
        connection = self._connection
        if not isinstance(connection, _OverNetwork):
            return ""
        try:
            found = await resolve(connection.host, int(connection.port), patience(self._name))
        except (OSError, ValueError) as error:
            raise NoConnection(_why(error, None)) from error
        connection.addresses = found.addresses
        return found.trouble

    async def connect(self) -> None:
        if self._tls is not None and isinstance(self._connection, SSLConnection):
            self._connection.ssl_context.context = _read(
                self._tls
            )  # redis-py's own trusts the system's authorities, too
        try:
            await self._connect()
            self._stream = _take_over(self._connection)
        except BaseException as error:
            await self._connection.disconnect(nowait=True)  # redis-py does that itself for some errors only
            if isinstance(error, RedisError):
                raise NoConnection(await self._explain(error)) from error
            raise

    async def _connect(self) -> None:
        try:
            async with nullcontext() if self._handshake is None else patience(self._handshake):
                await self._connection.connect()
        except TimeoutError as error:
            raise RedisTimeoutError("no TLS handshake in time") from error

    async def ask(self, *commands: bytes) -> list[object]:
        try:
            return await self._connected.ask(*commands)
        except OSError as error:
            raise NoConnection(await self._explain(error)) from error

    def start(self, receiver: Receiver) -> Callable[[bytes], None]:
        return self._connected.start(receiver)

    def close(self) -> None:
        if self._stream:
            self._stream.close()

    @property
    def _connected(self) -> Stream:
        assert self._stream, "not connected"
        return self._stream

    async def _explain(self, error: RedisError | OSError) -> Answer:
        """Explain why there is no connection, or why it ended before the first replies, and whose fault that is."""
        answer = _why(error, self._path)
        if answer.status is not Status.UNREACHABLE or not isinstance(self._connection, Connection):
            return answer
        host, port = self._connection.host, int(self._connection.port)
        denied = None
        if isinstance(self._connection, SSLConnection):
            if await speaks_plainly(host, port, b"PING\r\n"):
                denied = f"{host}:{port} speaks no TLS"
            elif alert := await read_alert(host, port, _context(self._connection)):
                denied = f"{host}:{port} refuses this client's certificate, or misses one: {alert}"
        elif _was_ended(error) and await speaks_tls(host, port):
            denied = f"{host}:{port} speaks TLS"
        return Answer(Status.DENIED, (), denied) if denied else answer


def _take_over(connection: AbstractConnection) -> Stream:
    """Take the transport from redis-py's connection, which is not connected any more.  Raises ``ConfigError``."""
    reader, writer = getattr(connection, "_reader", None), getattr(connection, "_writer", None)
    if not isinstance(reader, asyncio.StreamReader) or not isinstance(writer, asyncio.StreamWriter):
        raise ConfigError("this release of redis-py keeps its connection in an unknown way: install redis>=5.0,<9")
    connection._reader = connection._writer = None  # pyright: ignore[reportPrivateUsage]
    return Stream(reader, writer)


def _read(tls: TLS) -> ssl.SSLContext:
    try:
        return tls.context()
    except OSError as error:
        reason = f"the files of redis_tls cannot be used: {error}"
        raise NoConnection(Answer(Status.DENIED, (), reason)) from error


def _context(connection: SSLConnection) -> ssl.SSLContext:
    return cast("ssl.SSLContext", connection.ssl_context.get())  # pyright: ignore[reportUnknownMemberType]


def _was_ended(error: RedisError | OSError) -> bool:
    """Tell whether the server ended a connection that existed."""
    driver = [cause for cause in _causes(error) if isinstance(cause, OSError)]
    ended = ConnectionResetError, BrokenPipeError
    return isinstance(error, (RedisConnectionError, *ended)) and all(isinstance(cause, ended) for cause in driver)


async def _login(auth: Source) -> dict[str, str]:
    """Return the credentials that hold now, as options of a connection."""
    try:
        (user, password), *_ = await auth.logins()
    except ConfigError as error:
        raise NoConnection(Answer(Status.DENIED, (), str(error))) from error
    except Unavailable as error:
        raise NoConnection(Answer(Status.HINDERED, (), str(error))) from error
    return {"username": user, "password": password} if user else {"password": password}


def _why(error: RedisError | OSError | ValueError, path: str | None) -> Answer:
    """Explain why there is no connection, and whose fault it is."""
    if text := getattr(error, "reply", None):  # as the server wrote it
        return read_error(text)
    worded = (each if isinstance(each, NotReached) else path and put_in_words(each, path) for each in _causes(error))
    reason = next((str(each) for each in worded if each), str(error))  # redis-py would say Error 111
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError) and str(cause) not in reason:
            reason += f" {cause}"  # redis-py before 6 leaves it out
    statuses = (_status_of(cause, path) for cause in _causes(error))
    return Answer(next((status for status in statuses if status), Status.UNREACHABLE), (), reason)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error:
        yield error
        error = error.__cause__ or error.__context__


_OWN_HOST = {
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.EADDRNOTAVAIL,
    errno.EACCES,
    errno.EPERM,
    errno.ENETDOWN,
}
"""Errors that an operating system reports about itself, not about the other host."""


def _status_of(cause: BaseException, path: str | None) -> Status | None:
    """Return the status that one of the causes implies, None if it says nothing about this client."""
    match cause:
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError() | ssl.SSLSyscallError():
            return None  # the server, or the network, ended it in the middle of the handshake
        case ssl.SSLError() | UnicodeError():
            return Status.DENIED
        case FileNotFoundError() | IsADirectoryError() | NotADirectoryError():
            return None if path else Status.DENIED  # the socket of a dead server, or a certificate's file
        case PermissionError() if path:
            return Status.DENIED
        case socket.gaierror():
            return Status.HINDERED
        case OSError() if cause.errno in _OWN_HOST:
            return Status.HINDERED
        case _:
            return None


def read_url(url: str) -> dict[str, Any]:
    """Return the options of a connection, as redis-py reads them from a URL.  Raises ``ValueError``, ``TypeError``."""
    options = dict[str, Any](parse_url(url))
    if isinstance(checks := options.get("ssl_check_hostname"), str):  # redis-py before 5.1 leaves it a text
        options["ssl_check_hostname"] = checks.lower() not in ("0", "f", "false", "n", "no", "")
    return options


# Send nothing that is not needed: the refusal of a server without room would be lost with the connection.
_NO_DRIVER_INFO: Mapping[str, None] = (
    {"driver_info": None}
    if "driver_info" in inspect.signature(AbstractConnection).parameters
    else {"lib_name": None, "lib_version": None}  # redis-py before 7.2
)


def wires(
    options: Mapping[str, Any], timeout: float, auth: Source | None = None, tls: TLS | None = None
) -> Callable[[], Wire]:
    """Return a maker of wires with these options; ``timeout`` is the time in seconds that connecting may take.

    ``auth``: user and password, for options that have none; ``tls``: for an encrypted connection whose options say
    nothing about it.  Raises ``ValueError`` for options that a connection does not take.
    """
    options = dict(options)
    kind = options.pop("connection_class", Connection)
    secured = kind is SSLConnection
    kind = cast("Callable[..., AbstractConnection]", _OURS.get(kind, kind))
    if any(name.startswith("ssl_") for name in options):
        tls = None
    if secured and options.get("ssl_cert_reqs") != "none":
        options.setdefault("ssl_check_hostname", True)  # redis-py before 6 does not check it by itself
    own = {
        "protocol": 2,
        "socket_timeout": None,
        "socket_connect_timeout": None,  # redis-py's own would count the turns of a slow event loop
        "retry": Retry(NoBackoff(), 0),
        "parser_class": Parser,
        **_NO_DRIVER_INFO,
    }
    if "username" in options or "password" in options:
        auth = None

    def make(**more: Any) -> AbstractConnection:
        return kind(**{**options, **own, **more})

    try:
        make()
    except (TypeError, ValueError, RedisError) as error:
        raise ValueError(str(error)) from error
    handshake = timeout * HANDSHAKE_SHARE if secured else None
    return lambda: RedisWire(make, options.get("path"), auth, tls, handshake, timeout * NAME_SHARE)
