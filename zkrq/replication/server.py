"""Manage one Redis server: its one connection, the identity of the process, and whether to ask it at all.

A connection is made when it is needed, by the first caller; the others wait for it, each until its own deadline.  It is
used only for the run of the process that was found when it was made, which every call compares with the life that it is
meant for.  After a time-out the server is *shunned* for a moment, or until it has answered: callers are answered
immediately, because waiting for a server that hangs would cost each of them its whole time.  Were it shunned for longer
than that, a client could evict a server that has just answered it, for a time-out from before.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Any, cast

from zkrq.base import clock
from zkrq.base.alarm import Alarm
from zkrq.protocol.clocks import Reading
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.server_info import ServerInfo, questions, read_server_info
from zkrq.replication.link import Link, ServerError, failure, refusal
from zkrq.replication.patience import patience
from zkrq.replication.stream import ErrorReply, Receiver
from zkrq.replication.urls import dial, redact
from zkrq.replication.wire import Dial, Wire, pack

if TYPE_CHECKING:
    from zkrq.protocol.view import Life, ServerId

PING_SECONDS = 10.0
"""Seconds without a message after which a subscription asks whether the server still knows its connection."""

SHUN_SECONDS = 0.5
"""Seconds after a time-out for which calls are answered without asking the server."""

_log = logging.getLogger("zkrq.server")


class Server:
    """A server by its id.  Connects when a call needs it, and again after the connection is lost."""

    def __init__(
        self,
        id: ServerId,
        url: str,
        *,
        namespace: str,
        command_timeout: float,
        dial: Dial = dial,
        only_looks: bool = False,
    ) -> None:
        self.id = id
        self.url = redact(url)
        self.only_looks = only_looks
        """Whether its client changes nothing: it calls functions that write nothing, where there are some."""
        options: dict[str, Any] = {"namespace": namespace, "command_timeout": command_timeout, "only_looks": only_looks}
        self._twin = partial(Server, id, url, dial=dial, **options)
        self._dial = dial(url, command_timeout)
        self.namespace = namespace
        self.timeout = command_timeout
        """Seconds until a server that does not answer counts as dead."""
        self._link: Link | None = None
        self._connecting = asyncio.Lock()
        self._attempts = 0
        """Connections that were begun."""
        self._is_preparing = False
        """Whether the one that is being made still waits for this client's own host."""
        self._hindrance: OSError | None = None
        """Why the last one could not even be tried, None if it was."""
        self._name_trouble = ""
        """Why it is reached at an address that may be an old one, empty if it is not."""
        self._shun_until = -math.inf
        self._shun_reason = ""
        self._dropped = ""
        self.first_reading: Reading | None = None
        """First reading of the clock of the process that was connected to last."""
        self._log = logging.LoggerAdapter(_log, {"cluster": namespace, "server": id})

    def __repr__(self) -> str:
        state = "connected" if self._link and not self._link.lost else "not connected"
        return f"<Server {self.id} {self.url} {state}>"

    @property
    def identity(self) -> ServerInfo | None:
        """Identity that the server reported when it was last connected, or None while there is no connection."""
        return self._link.identity if self._link and not self._link.lost else None

    async def identify(self, *, anew: bool = False) -> ServerInfo:
        """Return the server's identity, connecting if necessary; ``anew``: ask again.  Raises ``ServerError``."""
        try:
            async with self.patience():
                known = self.identity is not None
                link = await self.connected()
                if anew and known:
                    link.identity = await self._ask_identity(link.ask)
        except TimeoutError:
            raise ServerError(Status.TIMEOUT, f"no answer within {self.timeout:g} s") from None
        return link.identity

    def link_to(self, life: Life, now: float) -> Link | None:
        """Return the connection if it leads to this life of the server and the server is not shunned."""
        link = self._link
        # Called for every call, so it decides with what is known already: no await, no question to the server.
        if not link or link.lost or link.identity.run_id != life.run_id or now < self._shun_until:
            return None
        return link

    @property
    def shunned(self) -> Answer | None:
        """Return the answer to a call while the server is shunned, None if it may be asked."""
        if asyncio.get_running_loop().time() >= self._shun_until:
            return None
        return Answer(Status.UNREACHABLE, (), self._shun_reason)

    def shun(self, link: Link | None) -> Answer:
        """Shun the server after a time-out, and abandon the connection on which it happened; return the answer."""
        # Calls that wait behind the one that timed out would each wait for the whole time-out.  They fail now, and
        # one of them finds out after ``SHUN_SECONDS`` whether the server answers again.
        self._shun_until = asyncio.get_running_loop().time() + SHUN_SECONDS
        self._shun_reason = f"no answer within {self.timeout:g} s"
        if self._name_trouble and not link:
            self._shun_reason += f" ({self._name_trouble})"
        if link:
            link.give_up(ServerError(Status.TIMEOUT, self._shun_reason))
        return Answer(Status.TIMEOUT, (), self._shun_reason)

    async def listen(
        self, channel: str, heard: Callable[[bytes], None], listening: asyncio.Event, tried: asyncio.Event
    ) -> None:
        """Pass on what is published on ``channel``, over a connection of its own, until that ends.

        ``listening`` is set while the subscription is active, ``tried`` as soon as that is known.  Raises
        ``ServerError``, with ``Status.SILENT`` if the server no longer answers on an active subscription.
        """
        wire = self._dial()
        try:
            await wire.prepare()
            async with patience(self.timeout):
                await wire.connect()
                (reply,) = await wire.ask(pack(("SUBSCRIBE", channel)))
            # A user without the right to the channel is refused here.  The caller polls instead; nothing is lost but
            # speed.
            if isinstance(reply, ErrorReply):
                raise refusal(reply.text)
            listening.set()
            tried.set()
            subscription = _Subscription(heard)
            raise failure(await subscription.end(wire.start(subscription), self.timeout))
        except OSError as error:
            raise failure(error) from error
        finally:
            listening.clear()
            wire.close()

    async def connected(self) -> Link:
        """Return the connection; make one if there is none.  Raises ``ServerError``."""
        if self._link and not self._link.lost:
            return self._link
        # Callers that need the connection at the same time share one attempt: a server that comes back would
        # otherwise get a connection from each call that waits.
        attempts = self._attempts
        async with self._connecting:
            if self._link and not self._link.lost:
                return self._link
            if self._dropped:
                raise ServerError(Status.GONE, self._dropped)
            # One that began after this call is as good as its own: a call does not wait for the resolver again and
            # again.
            if self._hindrance and self._attempts > attempts:
                raise failure(self._hindrance)
            wire = self._dial()
            try:
                await self._prepare(wire)
                await wire.connect()
                identity = await self._ask_identity(wire.ask)
                if self._dropped:  # meanwhile
                    raise ServerError(Status.GONE, self._dropped)
            except OSError as error:
                wire.close()
                raise failure(error, "" if self._hindrance else self._name_trouble) from error
            except BaseException:
                wire.close()
                raise
            self._link = link = Link(wire, self.timeout)
            link.identity = identity
            # Otherwise a server that was restarted would be evicted again for the time-out of its former life.
            self._shun_until = -math.inf  # the time-out is old news: it has answered since
            self._log.debug("connected to %s", self.url)
            return link

    def patience(self) -> AbstractAsyncContextManager[None]:
        """Limit a block to the time in which this server has to answer.  What this client needs of its own host to
        connect, a name or credentials, does not count."""
        return patience(self.timeout, held=lambda: self._is_preparing)

    async def _prepare(self, wire: Wire) -> None:
        """Get what a connection needs of this client's own host.  Raises ``OSError``."""
        self._attempts += 1
        self._is_preparing, self._hindrance = True, None
        try:
            trouble = await wire.prepare()
        except OSError as error:
            self._hindrance = error
            raise
        finally:
            self._is_preparing = False
        if trouble and not self._name_trouble:
            self._log.warning("%s; it is reached at its last known address, if it is still there", trouble)
        self._name_trouble = trouble

    async def _ask_identity(self, ask: Callable[..., Awaitable[list[object]]]) -> ServerInfo:
        asked_us, asked_at = clock.now_us(), asyncio.get_running_loop().time()
        replies = await ask(*map(pack, questions(self.namespace)))
        for reply in replies:
            if isinstance(reply, ErrorReply):
                raise refusal(reply.text)
        if not _is_identity(replies):
            raise ServerError(Status.BROKEN, f"it gave unknown replies about itself: {replies!r:.200}")
        try:
            identity = read_server_info(replies, asked_us, clock.now_us())
        except ValueError as error:
            raise ServerError(Status.UNFIT, str(error)) from error
        if identity.outdated:
            raise ServerError(Status.DENIED, identity.outdated)
        # The first reading of a process' clock, not the latest: a step of the clock is noticed by comparing with a
        # reading from before it, and every later reading might already include the step.
        if self.first_reading is None or self.first_reading.run_id != identity.run_id:
            self.first_reading = Reading(identity.run_id, identity.clock_us, asked_at)
        return identity

    async def libraries(self) -> list[str]:
        """Return the names of zkrq's libraries of functions.  Raises ``ServerError``, for a missing right as well."""
        (replies,) = await self._ask(("FUNCTION", "LIST", "LIBRARYNAME", "zkrq_*"))
        return sorted(_libraries_in(replies))

    async def remove_libraries(self, used: Collection[str]) -> list[str]:
        """Remove zkrq's libraries of functions but those that are used; return the names of the removed ones.

        Raises ``ServerError``, for a missing right as well.
        """
        unused = [name for name in await self.libraries() if name not in used]
        if unused:
            await self._ask(*(("FUNCTION", "DELETE", name) for name in unused))
        return unused

    async def _ask(self, *commands: tuple[str, ...]) -> list[object]:
        try:
            async with self.patience():
                link = await self.connected()
                return await link.ask(*map(pack, commands))
        except TimeoutError:
            raise ServerError(Status.TIMEOUT, f"no answer within {self.timeout:g} s") from None

    def twin(self) -> Server:
        """Return the same server without a connection; ``drop`` it after use."""
        return self._twin()

    def disconnect(self, reason: str, status: Status = Status.TIMEOUT) -> None:
        """Close the connection; the next call makes another one.  Calls in flight end with this status; after the usual
        one they are not repeated."""
        if self._link:
            self._link.give_up(ServerError(status, reason))

    def drop(self, reason: str = "no longer a server of this namespace") -> None:
        """Close the connection permanently."""
        self._dropped = reason
        self.disconnect(reason, Status.UNREACHABLE)

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - A server that was dropped has no connection: one that is no longer of the namespace must execute nothing.
        - A connection is to the process of which the clock is known, by which a claim expects the server's clock.
        """
        link = self._link
        if link is None:
            return
        link.check_invariants()
        if not link.lost:
            assert not self._dropped, f"server {self.id} was dropped and is connected: {self._dropped}"
            known = self.first_reading.run_id if self.first_reading else None
            assert known == link.identity.run_id, f"server {self.id}: the clock of another process is known"


class _Subscription(Receiver):
    """Passes on the messages of a channel until the connection ends."""

    def __init__(self, heard: Callable[[bytes], None]) -> None:
        self._heard = heard
        self._error: OSError | None = None
        self._ended = Alarm()
        self._news = asyncio.Event()
        """Set by all that arrives."""

    async def end(self, write: Callable[[bytes], None], timeout: float) -> OSError:
        """Return what has ended the connection.  Raises ``ServerError`` if it went silent.

        A NAT or a load balancer forgets a connection on which nothing passes, and tells neither end.  So a subscription
        that has heard nothing for ``PING_SECONDS`` asks, and a server that does not answer within ``timeout`` seconds
        is subscribed to anew.  Nothing else is concluded about that server: its calls have a connection of their own.
        """
        try:
            while not self._error:
                self._news.clear()
                await self._ended.until(asyncio.get_running_loop().time() + PING_SECONDS)
                if not self._news.is_set():
                    write(pack(("PING",)))
                    async with patience(timeout):
                        await self._news.wait()
        except TimeoutError:
            raise ServerError(Status.SILENT, f"no answer within {timeout:g} s on an idle subscription") from None
        finally:
            self._ended.stop()
        return self._error

    def heard(self, reply: object) -> None:
        self._news.set()
        match reply:
            case [b"message", bytes(), bytes() as text]:
                self._heard(text)
            case _:
                pass  # the answer to a PING

    def ended(self, error: OSError) -> None:
        self._error = error
        self._news.set()
        self._ended.ring()


def _libraries_in(reply: object) -> Iterator[str]:
    """Yield the names of zkrq's libraries in a reply to ``FUNCTION LIST``: names and values by turns, for each."""
    for library in cast("list[list[object]]", reply if isinstance(reply, list) else []):
        for name, value in zip(library[::2], library[1::2], strict=False):
            if name == b"library_name" and isinstance(value, bytes) and _LIBRARY.fullmatch(value):
                yield value.decode()


_LIBRARY = re.compile(rb"zkrq_[0-9a-f]+")


def _is_identity(replies: list[object]) -> bool:
    """Tell whether replies to ``questions`` are of the types that Redis gives."""
    info, known, count, time = replies
    return isinstance(info, bytes) and _are(known, 4, bytes | None) and isinstance(count, int) and _are(time, 2, bytes)


def _are(values: object, count: int, kind: type | UnionType) -> bool:
    return isinstance(values, list) and len(values) == count and all(isinstance(each, kind) for each in values)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
