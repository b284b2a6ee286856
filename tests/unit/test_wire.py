"""The wire: which side is the cause of a missing connection."""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from zkrq.protocol.replies import Status
from zkrq.replication.redis_wire import Parser, RedisWire
from zkrq.replication.urls import dial
from zkrq.replication.wire import NoConnection


class Connection:
    """Fails to connect as redis-py's does: with an error of its own that was raised on behalf of another."""

    def __init__(self, failure: BaseException) -> None:
        self._failure = failure

    async def connect(self) -> None:
        try:
            raise self._failure
        except RedisError:
            raise
        except OSError as error:
            raise RedisConnectionError(f"Error connecting: {error}") from error

    async def disconnect(self, *, nowait: bool) -> None: ...


CAUSES: list[tuple[BaseException, Status]] = [
    (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), Status.UNREACHABLE),
    (ConnectionResetError(errno.ECONNRESET, "reset"), Status.UNREACHABLE),
    (OSError(errno.EHOSTUNREACH, "no route to host"), Status.UNREACHABLE),
    (TimeoutError(), Status.UNREACHABLE),
    (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), Status.UNREACHABLE),
    (ssl.SSLCertVerificationError(1, "certificate verify failed"), Status.DENIED),
    (ssl.SSLError(1, "tlsv1 alert unknown ca"), Status.DENIED),
    (FileNotFoundError(errno.ENOENT, "ca.pem"), Status.DENIED),
    (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), Status.HINDERED),
    (OSError(errno.EMFILE, "Too many open files"), Status.HINDERED),
    (OSError(errno.ENFILE, "Too many open files in system"), Status.HINDERED),
    (OSError(errno.EADDRNOTAVAIL, "no port is left"), Status.HINDERED),
    (Parser.parse_error("ERR max number of clients reached"), Status.CROWDED),
    (Parser.parse_error("WRONGPASS invalid username-password pair"), Status.DENIED),
    (Parser.parse_error("NOAUTH Authentication required."), Status.DENIED),
    (Parser.parse_error("NOPERM this user has no permissions"), Status.DENIED),
    (Parser.parse_error("DENIED Redis is running in protected mode"), Status.DENIED),
    (Parser.parse_error("ERR DB index is out of range"), Status.DENIED),
    (Parser.parse_error("LOADING Redis is loading"), Status.UNREACHABLE),
    (RedisError("what nobody has seen yet"), Status.UNREACHABLE),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("cause", "status"), CAUSES, ids=lambda given: getattr(given, "name", repr(given)))
async def test_cause_of_a_failed_connection(cause: BaseException, status: Status) -> None:
    connection: Any = Connection(cause)
    with pytest.raises(NoConnection) as failed:
        await RedisWire(lambda: connection).connect()
    assert failed.value.answer.status is status
    assert failed.value.answer.reason


@pytest.mark.anyio
async def test_a_socket_that_is_not_there_is_a_server_that_is_down() -> None:
    connection: Any = Connection(FileNotFoundError(errno.ENOENT, "No such file"))
    with pytest.raises(NoConnection) as failed:
        await RedisWire(lambda: connection, "/run/redis.sock").connect()
    assert failed.value.answer.status is Status.UNREACHABLE
    assert failed.value.answer.reason == "nothing listens at /run/redis.sock"


@pytest.mark.anyio
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_where_nothing_listens_is_said_in_words(host: str) -> None:
    """Not as an error number of the operating system, as redis-py does."""
    with pytest.raises(NoConnection) as failed:
        wire = dial(f"redis://{host}:1", 5.0)()
        await wire.prepare()
        await wire.connect()
    assert failed.value.answer.reason == f"nothing listens at {host}:1"
    assert failed.value.answer.status is Status.UNREACHABLE
