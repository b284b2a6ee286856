"""One Redis server: its connection (link.py), the check of its identity, a deadline on every call.

A connection on which one call has timed out is given up with all that is under way on it, so that a late answer can
never be taken for another one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import cast

from zkrq import clock
from zkrq.errors import Closed
from zkrq.protocol.clocks import Reading
from zkrq.protocol.keys import key, script_keys
from zkrq.protocol.replies import Answer, Status, read_error, read_reply
from zkrq.protocol.scripts import SCRIPTS
from zkrq.protocol.view import Life, ServerId
from zkrq.replication.link import Begun, Identity, Link, Round, ServerError, deadline
from zkrq.replication.wire import Dial, ErrorReply, NoConnection, Packed, Word, dial, join, pack, pack_words, redact
from zkrq.tasks import Tasks

SHUN_SECONDS = 0.5
"""After a time-out the server is not asked again for so long: whoever asks is told at once."""

LATE_SECONDS = 0.1
"""A time-out that is noticed so much later than it was due says that the event loop was blocked: it is tried again."""

BUSY_PAUSE = 0.05
"""Seconds before a server is asked again that is busy with somebody's long script."""

OPENINGS_KEPT = 10_000
"""Openings of script calls that are kept, half a KiB each and more with long names; others are packed anew."""

_log = logging.getLogger("zkrq.server")


class Server:
    """A server by its id.  Connects when it is needed, again when it was lost."""

    def __init__(
        self,
        id: ServerId,
        url: str,
        *,
        namespace: str,
        command_timeout: float,
        tasks: Tasks,
        dial: Dial = dial,
    ) -> None:
        self.id = id
        self.url = redact(url)
        self._dial = dial(url, command_timeout)
        self._namespace = namespace
        self._timeout = command_timeout
        self._tasks = tasks
        self._link: Link | None = None
        self._connecting = asyncio.Lock()
        self._shun_until = -math.inf
        self._shun_reason = ""
        self._dropped = False
        self.first_reading: Reading | None = None
        """Of the clock of the process that was last connected to: the first one."""
        self._log = logging.LoggerAdapter(_log, {"cluster": namespace, "server": id})

    def __repr__(self) -> str:
        state = "connected" if self._link and not self._link.lost else "not connected"
        return f"<Server {self.id} {self.url} {state}>"

    @property
    def identity(self) -> Identity | None:
        """What the server said when it was last connected to, or None while there is no connection."""
        return self._link.identity if self._link and not self._link.lost else None

    async def identify(self, *, anew: bool = False) -> Identity:
        """Connect if need be, and tell who is there; ``anew``: ask again.  Raises ``ServerError``."""
        try:
            async with deadline(asyncio.get_running_loop().time() + self._timeout):
                known = self.identity is not None
                link = await self._connected()
                if anew and known:
                    link.identity = await self._ask_identity(link)
        except TimeoutError:
            raise ServerError(Status.TIMEOUT, f"no answer within {self._timeout:g} s") from None
        return link.identity

    async def call(
        self,
        script: str,
        queue: str,
        epoch: int,
        life: Life,
        arguments: Sequence[Word] | Packed = (),
        *,
        once: bool = False,
        begun: Begun | None = None,
    ) -> Answer:
        """Run one script in this life of the server.  Never raises for what the server does: the answer tells.

        ``arguments`` are what follows epoch and generation; packed, where several servers get the same.  ``begun`` is
        this call's first try, where ``begin`` has made it.

        Every script may be repeated, so a connection that broke is made again, once; ``once``: not even that.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._shun_until and not begun:
            return Answer(Status.UNREACHABLE, (), self._shun_reason)
        repeated = False
        for last in (True,) if once else (False, True):
            due = begun.due if begun and not begun.has_reply else loop.time() + self._timeout
            link: Link | None = None
            try:
                async with deadline(due):
                    link = begun.link if begun else await self._connected()
                    if link.identity.run_id != life.run_id:
                        return Answer(Status.GONE, (), "the server was restarted", repeated)
                    first, begun = begun, None
                    answer = await self._run(link, script, queue, (epoch, life.generation), arguments, first)
                    return answer._replace(repeated=True) if repeated else answer
            except ServerError as error:
                if last or error.answer.status is not Status.UNREACHABLE or loop.time() < self._shun_until:
                    return error.answer._replace(repeated=repeated)
                repeated = link is not None
            except TimeoutError:
                repeated = link is not None
                if not last and loop.time() > due + LATE_SECONDS:
                    continue  # this process was late, not the server, whose answer may be waiting to be read
                self._shun(f"no answer within {self._timeout:g} s", link)
                return Answer(Status.TIMEOUT, (), self._shun_reason)
        raise AssertionError("unreachable")

    def begin(self, script: str, queue: str, epoch: int, life: Life, arguments: Packed, round: Round) -> Begun | None:
        """Send a call now, without a task and a time-out of its own, where nothing stands in the way; else None.

        Whoever begins a round waits for all of it at once, and leaves what does not come as usual to ``call``.
        """
        link = self._link
        now = asyncio.get_running_loop().time()
        if not link or link.lost or link.identity.run_id != life.run_id or now < self._shun_until:
            return None
        call = join(_opening(self._namespace, queue, script, link.takes_flags, epoch, life.generation), arguments)
        return link.begin(call, now + self._timeout, round)

    async def _run(
        self,
        link: Link,
        script: str,
        queue: str,
        gate: tuple[int, str],
        arguments: Sequence[Word] | Packed,
        first: Begun | None,
    ) -> Answer:
        rest = arguments if isinstance(arguments, Packed) else pack_words(arguments)
        call = join(_opening(self._namespace, queue, script, link.takes_flags, *gate), rest)
        reply = await (first.reply() if first else link.send(call))
        while isinstance(reply, ErrorReply) and reply.text.startswith("BUSY "):
            await asyncio.sleep(BUSY_PAUSE)
            reply = await link.send(call)
        if isinstance(reply, ErrorReply) and reply.text.startswith("NOSCRIPT"):
            text, keys = SCRIPTS[script].text(flags=link.takes_flags), script_keys(self._namespace, queue, script)
            reply = await link.send(join(pack_words(("EVAL", text, len(keys), *keys, *gate)), rest))
        return read_error(reply.text) if isinstance(reply, ErrorReply) else read_reply(reply, script)

    async def listen(
        self, channel: str, heard: Callable[[bytes], None], listening: asyncio.Event, tried: asyncio.Event
    ) -> None:
        """Pass on what is published on ``channel`` for as long as the connection holds; ``listening`` is set while it
        does, ``tried`` as soon as that is known.  Raises ``ServerError``."""
        wire = self._dial()
        try:
            async with asyncio.timeout(self._timeout):
                await wire.connect()
                await wire.send([pack(("SUBSCRIBE", channel))])
                reply = await wire.receive()
            if isinstance(reply, ErrorReply):
                raise ServerError(read_error(reply.text).status, reply.text)
            listening.set()
            tried.set()
            while True:
                kind, _, text = cast("tuple[bytes, bytes, bytes]", await wire.receive())
                if kind == b"message":
                    heard(text)
        except (OSError, TimeoutError) as error:
            raise _failure(error) from error
        finally:
            listening.clear()
            await wire.close()

    async def _connected(self) -> Link:
        if self._link and not self._link.lost:
            return self._link
        async with self._connecting:
            if self._link and not self._link.lost:
                return self._link
            if self._dropped:
                raise ServerError(Status.GONE, "no longer a server of this namespace")
            link = Link(self._dial())
            try:
                await link.wire.connect()
            except OSError as error:
                await link.wire.close()
                raise _failure(error) from error
            except asyncio.CancelledError:
                await link.wire.close()
                raise
            try:
                reader = self._tasks.start(link.read(), f"read from {self.id}")
                self._tasks.start(link.write(), f"write to {self.id}")
            except Closed:
                await link.wire.close()
                raise
            try:
                link.identity = await self._ask_identity(link)
            except BaseException:
                reader.cancel()
                raise
            self._link = link
            self._log.debug("connected to %s", self.url)
            return link

    async def _ask_identity(self, link: Link) -> Identity:
        server, queues = key(self._namespace, "", "server"), key(self._namespace, "", "queues")
        asked_us, asked_at = clock.now_us(), asyncio.get_running_loop().time()
        info, known, count, time = await asyncio.gather(
            link.call("INFO"),
            link.call("HMGET", server, "generation", "epoch", "name", "deployment"),
            link.call("SCARD", queues),
            link.call("TIME"),
        )
        answered_us = clock.now_us()
        for reply in (info, known, count, time):
            if isinstance(reply, ErrorReply):
                raise ServerError(read_error(reply.text).status, reply.text)
        fields = _read_info(cast(bytes, info))
        if not {"run_id", "redis_version", "role"} <= fields.keys():
            raise ServerError(Status.UNFIT, "INFO names no run_id, version and role: is this a proxy?")
        seconds, microseconds = cast(list[bytes], time)
        clock_us = int(seconds) * 1_000_000 + int(microseconds)
        generation, epoch, name, deployment = ((word or b"").decode() for word in cast(list[bytes | None], known))
        identity = Identity(
            run_id=fields["run_id"],
            version=tuple(int(part) for part in fields["redis_version"].split(".") if part.isdecimal()),
            role=fields["role"],
            maxmemory_policy=fields.get("maxmemory_policy", "unknown"),
            cluster=fields.get("cluster_enabled") == "1",
            generation=generation,
            epoch=int(epoch or 0),
            name=name,
            deployment=deployment,
            queues=cast(int, count),
            clock_us=clock_us,
            ahead=(clock_us - min(max(clock_us, asked_us), answered_us)) / 1_000_000,
            maxmemory=int(fields.get("maxmemory", 0)),
            used_memory=int(fields.get("used_memory", 0)),
        )
        if identity.unfit:
            raise ServerError(Status.UNFIT, identity.unfit)
        if self.first_reading is None or self.first_reading.run_id != identity.run_id:
            self.first_reading = Reading(identity.run_id, clock_us, asked_at)
        return identity

    def drop(self) -> None:
        """Give the connection up for good: the server belongs to the namespace no more."""
        self._dropped = True
        if self._link:
            self._link.give_up(ServerError(Status.UNREACHABLE, "no longer a server of this namespace"))
            self._tasks.start(self._link.wire.close(), f"disconnect from {self.id}")

    def _shun(self, reason: str, link: Link | None) -> None:
        self._shun_until = asyncio.get_running_loop().time() + SHUN_SECONDS
        self._shun_reason = reason
        if link:
            link.give_up(ServerError(Status.TIMEOUT, reason))
            self._tasks.start(link.wire.close(), f"disconnect from {self.id}")


def _failure(error: OSError) -> ServerError:
    """Why there is no connection."""
    if isinstance(error, NoConnection):
        return ServerError(error.answer.status, error.answer.reason)
    return ServerError(Status.UNREACHABLE, str(error))


@lru_cache(OPENINGS_KEPT)
def _opening(namespace: str, queue: str, script: str, flags: bool, epoch: int, generation: str) -> Packed:
    """How the call of a script begins."""
    _, sha = SCRIPTS[script].given(flags)
    keys = script_keys(namespace, queue, script)
    return pack_words(("EVALSHA", sha, len(keys), *keys, epoch, generation))


def _read_info(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines() if ":" in line)
    return {name: value for name, _, value in lines}
