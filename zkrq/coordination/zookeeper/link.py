"""One connection to one ZooKeeper server, from the handshake until it breaks.  The only import of aiozk.

Of aiozk only the wire part is used: how messages are written, read and matched with their answers.  Its session layer
notices a cut only after the whole session timeout, waits forever for a server that accepts and never answers, can
deadlock while it reconnects and takes silence for expiry.  Nearly every method of it would have to be replaced, so
``session.py`` replaces it.

A link that breaks never comes back: its users get ``Interrupted`` and go to the next one.  So everything done on one
link is done in one session.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
from aiozk import exc, protocol
from aiozk.connection import Connection, size_struct
from aiozk.protocol.request import Request
from aiozk.protocol.stat import Stat as _WireStat

from zkrq.base.handshakes import NO_ROOM, hangs_up, is_alert, is_end, read_alert, speaks_plainly, speaks_tls
from zkrq.base.network import NAME_SECONDS, open_connection

if TYPE_CHECKING:
    from zkrq.base.credentials import Login
    from zkrq.coordination.zookeeper.hosts import Address

HEARTBEAT_INTERVAL = 1 / 6  # of the session timeout
HEARTBEAT_TIMEOUT = 1 / 3  # of the session timeout; both together leave half of it for finding another server
MAX_MESSAGE_BYTES = 8 * 1024 * 1024  # ZooKeeper's own limit is 1 MiB; a larger message does not come from ZooKeeper
READ_PERMISSION = 1  # among the bits of a right
MAX_XID = 0x7FFFFFFF
CLOSE_SECONDS = 1.0  # for the operating system to close the socket

_Answer = TypeVar("_Answer")


class Interrupted(Exception):
    """The link broke before the answer arrived: the request may have been executed or not."""


class NoRoom(ConnectionError):
    """The server ends each connection from this address before anything is said."""


class Refused(Exception):
    """ZooKeeper refused the request."""


class NoNode(Refused):
    """The znode, or the parent of a new one, does not exist."""


class NodeExists(Refused):
    """The znode already exists."""


class BadVersion(Refused):
    """Another client has written meanwhile."""


class NotAllowed(Refused):
    """The credentials are refused, or give no right to do this."""


_REFUSALS: tuple[tuple[type[exc.ResponseError], type[Refused]], ...] = (
    (exc.NoNode, NoNode),
    (exc.NodeExists, NodeExists),
    (exc.BadVersion, BadVersion),
    (exc.NoAuth, NotAllowed),
    (exc.AuthFailed, NotAllowed),
    (exc.InvalidACL, NotAllowed),
    (exc.ResponseError, Refused),
)

# Answers about the session, not about the request: the next handshake shows the truth.
_SESSION_TROUBLE = (exc.SessionExpired, exc.SessionMoved, exc.ConnectionLoss)

# A follower answers reads (and pings) on its own, even while the leader has lost it and lets the session expire.  Only
# an answer that came through the leader proves that the session is alive, so the heartbeat is a sync, not a ping.
_BY_WAY_OF_LEADER = (
    protocol.SyncRequest,
    protocol.Create2Request,
    protocol.SetDataRequest,
    protocol.DeleteRequest,
    protocol.TransactionRequest,
)

_NOT_CARRIED_OUT = (exc.RolledBack, exc.RuntimeInconsistency)


# Newer than aiozk, which prints the number of an unknown answer to the standard output.  Defining the class makes it
# known.
_NEWER_ANSWERS = {"RequestTimeout": -122, "SaslRequired": -124, "QuotaExceeded": -125, "Throttled": -127}
for _name, _code in _NEWER_ANSWERS.items():
    type(exc.ResponseError)(_name, (exc.ResponseError,), {"error_code": _code})


_TRUST_IT = "trust its authority (ca_certs of zookeeper_tls), and use a name that the certificate has"
_SHOW_ANOTHER = "show one that it trusts and that has not expired (certfile and keyfile of zookeeper_tls)"
_ENCRYPTED = "it speaks TLS: give zookeeper_tls, or name its other port"
_PLAIN = "it ends the TLS handshake: name its secureClientPort, or leave zookeeper_tls out"


@dataclass(frozen=True, slots=True)
class Greeting:
    """The messages that begin or continue a session: id 0 asks for a new one, or says that the old one is over."""

    session_id: int
    password: bytes
    timeout: float  # seconds


@dataclass(frozen=True, slots=True)
class Stat:
    """A znode's version, the transaction that last wrote it, and the session it ends with (0: none)."""

    version: int
    modified: int
    owner: int


@dataclass(frozen=True, slots=True)
class Node:
    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Right:
    """What one identity may do with a znode."""

    scheme: str
    id: str
    permissions: int

    @property
    def opens(self) -> bool:
        """Whether it lets anybody change the znode, its children or its rights."""
        return self.scheme == "world" and bool(self.permissions & ~READ_PERMISSION)


class _Login(protocol.AuthRequest):
    """Keep the password out of aiozk's log, which has every request."""

    def __str__(self) -> str:
        return "AuthRequest(...)"


@dataclass(frozen=True, slots=True)
class _Sent(Generic[_Answer]):
    """A request in flight: the loop time at which it was sent, and the future of its transaction and answer."""

    request: Request[_Answer]
    at: float
    answer: asyncio.Future[tuple[int, _Answer]]


class _Connection(Connection):
    """Fix aiozk's connection: one TCP connection instead of two (the first one asks for ``srvr``, which may be
    forbidden, and waits without bound), and reading half a message neither spins nor blocks the loop."""

    async def open(
        self, request: protocol.ConnectRequest, context: ssl.SSLContext | None, name_seconds: float
    ) -> protocol.ConnectResponse:
        """Connect and exchange the first messages, which have a format of their own."""
        self.reader, writer = await open_connection(self.host, self.port, context, name_seconds=name_seconds)
        self.writer = writer
        payload = request.serialize()
        writer.write(size_struct.pack(len(payload)) + payload)
        _, _, response = await self.read_response(initial_connect=True)
        return response

    async def receive(self) -> None:
        """Read one message and pass it to its waiter."""
        xid, zxid, response = await self.read_response()
        if xid == protocol.WATCH_XID:
            self.watch_handler(response)
            return
        special = xid in protocol.SPECIAL_XIDS
        answer = self.pending_specials[xid].pop() if special else self.pending.pop(xid)
        if isinstance(response, Exception):
            _fail(answer, response)
        elif not answer.done():
            answer.set_result((zxid, response))

    async def _read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_MESSAGE_BYTES:
            raise ConnectionError(f"a message of {size} bytes: this is not ZooKeeper")
        return await self.reader.readexactly(size)


class ZooKeeperLink:
    """One connection.  ``contact``: loop time at which the last request was sent that was answered through the leader;
    ``zxid``: newest transaction seen.

    on_event: called with the path of a znode whose watch fired.
    """

    def __init__(self, address: Address, on_event: Callable[[str], None]) -> None:
        self.address = address
        self.contact = float("-inf")
        self.zxid = 0
        self.broken: str | None = None  # why, once it is
        self._xid = 0
        self.logins: Sequence[Login] = ()  # identities of this connection
        self._acl = [protocol.UNRESTRICTED_ACCESS]
        self._connection = _Connection(address.host, address.port, self._on_watch, read_timeout=None)
        self._on_event = on_event

    # -- open, serve, close ---------------------------------------------------------------------------------------

    async def open(
        self,
        wish: Greeting,
        zxid: int,
        logins: Sequence[Login] = (),
        context: ssl.SSLContext | None = None,
        *,
        name_seconds: float = NAME_SECONDS,
    ) -> Greeting:
        """Connect, and begin or continue a session; the caller bounds the time.

        zxid: newest transaction seen; a server that knows less refuses, so that time never runs backwards.
        logins: this session's identities; all have every right to the znodes that it makes.
        context: encrypts the connection; None: it is plain.
        name_seconds: what resolving the server's name may take before its last known addresses are used.
        Raises ``NotAllowed`` for credentials or certificates that are refused, on either side, or if only one side
        speaks TLS; ``NoRoom``; otherwise any error of the connection.
        """
        sent = _now()
        request = protocol.ConnectRequest(
            protocol_version=0,
            last_seen_zxid=zxid,
            timeout=round(wish.timeout * 1000),
            session_id=wish.session_id,
            password=wish.password,
            read_only=False,
        )
        try:
            answer = await self._connection.open(request, context, name_seconds)
        except OSError as error:
            if refusal := await self._refusal(error, context):
                raise NotAllowed(refusal) from error
            if is_end(error) and await hangs_up(self.address.host, self.address.port):
                raise NoRoom(NO_ROOM) from error
            raise
        self.zxid = zxid
        if answer.session_id:
            self.contact = sent
            self.logins = logins
            for login in logins:
                await self._authenticate(*login)
        return Greeting(answer.session_id, answer.password, answer.timeout / 1000)

    async def _refusal(self, error: OSError, context: ssl.SSLContext | None) -> str | None:
        """Return why TLS keeps this client out, and what to do about it; None if the cause is another one."""
        host, port = self.address.host, self.address.port
        if context is None:
            return _ENCRYPTED if is_end(error) and await speaks_tls(host, port) else None
        if is_end(error):
            error = await read_alert(host, port, context) or error
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted ({error.verify_message}): {_TRUST_IT}"
        if isinstance(error, ssl.SSLError) and is_alert(error):
            return f"it refuses this client's certificate, or misses one ({error.reason}): {_SHOW_ANOTHER}"
        # A server that does not allow this command says so.
        return _PLAIN if is_end(error) and await speaks_plainly(host, port, b"srvr") else None

    async def serve(self, timeout: float) -> None:
        """Receive answers and keep the session alive until the link breaks.

        timeout: the session's, in seconds.  A cut is noticed immediately, silence after half of it.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_alive, timeout)
            try:
                while True:
                    await self._connection.receive()
            except Exception as error:  # the end of the stream, a reset, garbage: handled alike
                self.kill(f"the connection was lost ({str(error) or type(error).__name__})")
            tasks.cancel_scope.cancel()

    def kill(self, reason: str) -> None:
        """Break the link; a second call does nothing."""
        if self.broken is not None:
            return
        self.broken = reason
        for answer in self._connection.drain_all_pending():
            _fail(answer, Interrupted(reason))
        if self._connection.writer is not None:
            self._connection.writer.transport.abort()

    async def close(self) -> None:
        """Break the link and wait, bounded and shielded, until the socket is gone."""
        self.kill("closed")
        if self._connection.writer is None:
            return
        with anyio.move_on_after(CLOSE_SECONDS, shield=True), suppress(OSError):
            await self._connection.writer.wait_closed()

    # -- requests -------------------------------------------------------------------------------------------------

    async def sync(self) -> None:
        """Make the server catch up with the leader, so that the next read is no older than this call."""
        await self._ask(protocol.SyncRequest(path="/"))

    async def stat(self, path: str, *, watch: bool = False) -> Stat | None:
        """Return the stat of a znode, None if it does not exist; a watch then waits for it to appear."""
        try:
            return _stat((await self._ask(protocol.ExistsRequest(path=path, watch=watch))).stat)
        except NoNode:
            return None

    async def read(self, path: str) -> Node | None:
        """Return a znode, None if it does not exist."""
        return (await self.read_all([path]))[0]

    async def read_all(self, paths: Sequence[str], *, unreadable: Node | None = None) -> list[Node | None]:
        """Read several znodes in the time of one; the caller bounds their number.

        ``unreadable``: stands for a znode of another identity; without it, ``NotAllowed`` is raised.
        """
        sent = [self._send(protocol.GetDataRequest(path=path, watch=False)) for path in paths]
        return [await self._node(one, unreadable) for one in sent]

    async def rights(self, path: str) -> list[Right]:
        """Return who may do what with a znode."""
        response = await self._ask(protocol.GetACLRequest(path=path))
        return [Right(acl.id.scheme, acl.id.id, acl.perms) for acl in response.acl]

    async def protect(self, path: str) -> None:
        """Give a znode to the identities of this connection alone."""
        await self._ask(protocol.SetACLRequest(path=path, acl=self._acl, version=-1))

    async def children(self, path: str, *, watch: bool = False) -> frozenset[str]:
        response = await self._ask(protocol.GetChildren2Request(path=path, watch=watch))
        return frozenset(response.children)

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> Stat:
        return _stat((await self._ask(self._creation(path, data, ephemeral=ephemeral))).stat)

    async def write(self, path: str, data: bytes, version: int) -> Stat:
        return _stat((await self._ask(protocol.SetDataRequest(path=path, data=data, version=version))).stat)

    async def write_given(self, path: str, data: bytes, version: int, given: tuple[str, int]) -> None:
        """Write to a znode of this version (-1: create it), only if the znode of another path has a version, too."""
        request = protocol.SetDataRequest(path=path, data=data, version=version)
        transaction = protocol.TransactionRequest()
        transaction.add(protocol.CheckVersionRequest(path=given[0], version=given[1]))
        transaction.add(self._creation(path, data) if version == -1 else request)
        for answer in (await self._ask(transaction)).responses:
            # The answers to the other parts say only that they were not carried out.
            if isinstance(answer, exc.ResponseError) and not isinstance(answer, _NOT_CARRIED_OUT):
                raise _refused(answer, request)

    def _creation(self, path: str, data: bytes, *, ephemeral: bool = False) -> protocol.Create2Request:
        request = protocol.Create2Request(path=path, data=data, acl=self._acl)
        request.set_flags(ephemeral=ephemeral)
        return request

    async def delete(self, path: str) -> None:
        await self._ask(protocol.DeleteRequest(path=path, version=-1))

    async def end_session(self) -> None:
        """Ask ZooKeeper to end the session now, with its ephemeral znodes."""
        await self._ask(protocol.CloseRequest())

    # ---------------------------------------------------------------------------------------------------------------

    async def _ask(self, request: Request[_Answer]) -> _Answer:
        return await self._answer(self._send(request))

    async def _node(self, sent: _Sent[protocol.GetDataResponse], unreadable: Node | None) -> Node | None:
        try:
            response = await self._answer(sent)
        except NoNode:
            return None
        except NotAllowed:
            if unreadable is None:
                raise
            return unreadable
        return Node(response.data or b"", _stat(response.stat))

    def _send(self, request: Request[_Answer]) -> _Sent[_Answer]:
        """Write a request.  Raises ``Interrupted`` on a broken link."""
        if self.broken is not None:
            raise Interrupted(self.broken)
        self._xid = self._xid % MAX_XID + 1
        return _Sent(request, _now(), self._connection.send(request, self._xid))

    async def _answer(self, sent: _Sent[_Answer]) -> _Answer:
        """Wait for the answer.  Raises ``Interrupted`` or ``Refused``."""
        try:
            zxid, response = await sent.answer
        except _SESSION_TROUBLE as error:
            self.kill(f"the server says {error}")
            raise Interrupted(str(error)) from error
        except exc.ResponseError as error:
            raise _refused(error, sent.request) from error
        except exc.ZKError as error:
            self.kill(f"writing failed ({error})")
            raise Interrupted(str(error)) from error
        self.zxid = max(self.zxid, zxid)
        if isinstance(sent.request, _BY_WAY_OF_LEADER):
            self.contact = max(self.contact, sent.at)
        return response

    async def _authenticate(self, user: str, password: str) -> None:
        """Authenticate before anything else; znodes that are created later are for this identity only."""
        answer = self._connection.send(_Login(type=0, scheme="digest", auth=f"{user}:{password}".encode()))
        try:
            await self._connection.receive()
            await answer
        except exc.AuthFailed as error:
            raise NotAllowed("the credentials are refused") from error
        finally:
            answer.cancel()
        self._acl = [protocol.AUTHED_UNRESTRICTED]

    async def _keep_alive(self, timeout: float) -> None:
        while True:
            await asyncio.sleep(timeout * HEARTBEAT_INTERVAL)
            try:
                async with asyncio.timeout(timeout * HEARTBEAT_TIMEOUT):
                    await self.sync()
            except TimeoutError:
                return self.kill(f"a heartbeat was not answered for {timeout * HEARTBEAT_TIMEOUT:.1f} s")
            except (Interrupted, Refused) as error:
                return self.kill(str(error))

    def _on_watch(self, event: protocol.WatchEvent) -> None:
        if event.path:
            self._on_event(event.path)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _stat(stat: _WireStat) -> Stat:
    return Stat(version=stat.version, modified=stat.last_modified_zxid, owner=stat.ephemeral_owner)


def _fail(answer: asyncio.Future[tuple[int, _Answer]], error: Exception) -> None:
    """Fail the waiter for the answer; asyncio does not complain if there is none."""
    if not answer.done():
        answer.set_exception(error)
        answer.exception()


def _refused(error: exc.ResponseError, request: Request[_Answer]) -> Refused:
    kind = next(refusal for answer, refusal in _REFUSALS if isinstance(error, answer))
    return kind(f"{error} ({getattr(request, 'path', None) or type(request).__name__})")
