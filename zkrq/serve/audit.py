"""Record who has changed what through a server: a line in its log, and the last ones of all servers of a namespace.

The lines are a register of the coordinator, so they survive every process.  They are written behind the change, by best
effort: what a process has noted in its last second goes with it when it is killed, and what it could not write for
longer than ``PENDING_MAX`` lines.  The log has every line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast
from urllib.parse import parse_qs, urlsplit

from zkrq.base import clock
from zkrq.base.errors import ZkrqError
from zkrq.base.tasks import Rounds, Tasks
from zkrq.client.inner import client_of
from zkrq.client.registers import rewrite
from zkrq.operations.table import OPERATIONS
from zkrq.protocol import znodes
from zkrq.serve.lines import FewLines
from zkrq.serve.rights import CALLER

if TYPE_CHECKING:
    from fastapi import APIRouter, Request, Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from zkrq.client.cluster import Cluster
    from zkrq.coordination.coordinator import Coordinator
    from zkrq.serve.showing import Showing

REGISTER = "audit"
"""Name of the register that has the lines."""

AUDIT_MAX = 1_000
"""Lines that are kept."""

AUDIT_BYTES = 400_000
"""Bytes of all lines together: one znode holds them."""

TEXT_MAX = 200
"""Characters of each text of a line."""

PENDING_MAX = 200
"""Lines that a process keeps while they cannot be written."""

TRIES = 5
"""Attempts of one write while others write, too."""

WRITE_SECONDS = 1.0
"""Seconds between two writes."""

RETRY_SECONDS = 15.0
"""Seconds until lines that could not be written are tried again."""

CLOSE_SECONDS = 2.0
"""Seconds in which a server that stops writes its last lines."""

SILENT = ("push", "push_many", "cancel", "begin_flow", "push_member", "push_follower", "seal_flow")
"""Operations that are the work of programs, with those of claims: they are not recorded."""

RECORDED = frozenset(
    each.name
    for each in OPERATIONS.values()
    if each.method != "GET" and each.subject != "claim" and each.name not in SILENT
)
"""Operations of the HTTP API that are recorded."""

_log = logging.getLogger("zkrq.serve.audit")

_trouble = logging.getLogger("zkrq.serve.audit.trouble")
_trouble.addFilter(FewLines())

SAID: ContextVar[list[str] | None] = ContextVar("zkrq_said", default=None)
"""What a request has said of its change."""


def say(text: str) -> None:
    """Have the record say of the request that is answered what it has changed."""
    if (said := SAID.get()) is not None:
        said.append(text)


def name_chosen(owners: Sequence[str], host: str | None) -> str:
    """Name the consumers that were made quiet, or claim again, for the record."""
    return f"all of {host}" if host else ", ".join(owners)


class Line(NamedTuple):
    """A change: when, in milliseconds since 1970; by whom; what; on what; with which result.  ``id``: of this line."""

    at_ms: int
    who: str
    what: str
    on: str
    result: str
    id: str

    @property
    def at(self) -> datetime:
        """When it was made, by the clock of the server that has made it."""
        return clock.at_ms(self.at_ms)


def encode(lines: Sequence[Line]) -> bytes:
    """Write lines, the oldest first, without those that are too many; unique to this attempt."""
    written = [json.dumps(line) for line in lines[-AUDIT_MAX:]]
    size = sum(map(len, written))
    dropped = 0
    while size > AUDIT_BYTES:
        size -= len(written[dropped])
        dropped += 1
    return f'{{"nonce": "{secrets.token_hex(8)}", "lines": [{", ".join(written[dropped:])}]}}'.encode()


def decode(data: bytes | None) -> list[Line]:
    """Read what ``encode`` has written; what cannot be read is left out."""
    try:
        told: object = znodes.read_object(data or b"{}").get("lines", [])
    except ValueError:
        return []
    found: list[Line] = []
    for each in cast("list[Any]", told)[-AUDIT_MAX:] if isinstance(told, list) else ():
        with suppress(TypeError, ValueError):
            at_ms, *texts = each
            found.append(Line(znodes.count(at_ms), *(znodes.text(text)[:TEXT_MAX] for text in texts)))
    return found


def merge(known: Iterable[Line], new: Sequence[Line]) -> list[Line]:
    """Add lines, unless they were written before: the reply to that was lost."""
    ids = {line.id for line in new}
    return [*(line for line in known if line.id not in ids), *new]


def make_line(who: str, what: str, on: str, result: str) -> Line:
    """Make a line of what happens now; its texts are on one line each, and cut."""
    who, what, on, result = (" ".join(text.split())[:TEXT_MAX] for text in (who, what, on, result))
    return Line(clock.now_ms(), who, what, on, result, secrets.token_hex(4))


async def write_lines(coordinator: Coordinator, new: Sequence[Line]) -> bool:
    """Add lines to the record; return whether they were, which others who write may have kept from being.

    Raises ``Unavailable``.
    """
    written = await rewrite(coordinator, REGISTER, lambda found: encode(merge(decode(found.data), new)), TRIES)
    return written is not None


class Audit:
    """Note changes, and tell the last ones: ``async with`` owns what writes them."""

    def __init__(self, cluster: Cluster) -> None:
        self._coordinator = client_of(cluster).coordinator
        self._namespace = cluster.namespace
        self._pending: list[Line] = []
        self._tasks = Tasks("zkrq serve: audit")
        self._rounds = Rounds(self._round, seconds=RETRY_SECONDS, delay=lambda: WRITE_SECONDS)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.supervise(self._rounds.run, "write")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._tasks.__aexit__(kind, error, traceback)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._round()

    def note(self, what: str, on: str, result: str) -> None:
        """Record a change of the present caller."""
        line = make_line(CALLER.get().title, what, on, result)
        _log.info("%s: %s of %s: %s", line.who, line.what, line.on, line.result, extra={"cluster": self._namespace})
        self._pending = [*self._pending, line][-PENDING_MAX:]
        self._rounds.call()

    async def lines(self) -> list[Line]:
        """Return the last changes, the newest first.  Raises ``Unavailable``."""
        found = await self._coordinator.read(REGISTER)
        return merge(decode(found.data), self._pending)[::-1][:AUDIT_MAX]

    async def _round(self) -> None:
        try:
            await self._write()
        except ZkrqError as error:
            _trouble.warning("changes are in the log alone at present: %s", error, extra={"cluster": self._namespace})

    async def _write(self) -> None:
        if (new := self._pending) and await write_lines(self._coordinator, new):
            self._pending = [line for line in self._pending if line not in new]


class Recorded:
    """An ASGI middleware that notes what requests have changed."""

    def __init__(self, app: ASGIApp, audit: Audit) -> None:
        self._app = app
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; note it if it has changed anything."""
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return await self._app(scope, receive, send)
        said: list[str] = []
        token = SAID.set(said)
        reply: list[Message] = []

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                reply.append(message)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            SAID.reset(token)
            if reply and (result := _result(scope, reply[0], said)):
                self._audit.note(*_subject(scope), result)


def _result(scope: Scope, reply: Message, said: Sequence[str]) -> str:
    """Return what a request has changed, empty if it has changed nothing, or that is not recorded."""
    status: int = reply["status"]
    is_unknown = status in (500, 504)
    if scope["path"].startswith("/v1/"):
        if getattr(scope.get("route"), "name", "") not in RECORDED:
            return ""
        return "; ".join(said) or ("done" if status < 300 else "it may have happened" if is_unknown else "")
    location = next((value.decode("latin-1") for name, value in reply["headers"] if name == b"location"), "")
    is_done = status == 303 and "done" in parse_qs(urlsplit(location).query)
    return "; ".join(said) or ("done" if is_done else "it may have happened" if is_unknown else "")


def _subject(scope: Scope) -> tuple[str, str]:
    """Return what a request does, and on what."""
    named: dict[str, Any] = dict(scope.get("path_params", {}))
    verb = named.pop("verb", "")
    what = getattr(scope.get("route"), "name", "") if scope["path"].startswith("/v1/") else ""
    on = "/".join(str(value) for value in named.values())
    return str(verb or what or scope["path"].rpartition("/")[2]), on or scope["path"].removeprefix("/v1").split("/")[1]


class AuditPage:
    """Answer browsers about changes."""

    def __init__(self, audit: Audit, showing: Showing) -> None:
        self._audit = audit
        self._showing = showing

    def add_to(self, router: APIRouter) -> None:
        """Add the page."""
        router.add_route("/audit", self.page)

    async def page(self, request: Request) -> Response:
        """Show the last changes."""
        lines, trouble = list[Line](), ""
        try:
            lines = await self._audit.lines()
        except ZkrqError as error:
            trouble = str(error)
        return self._showing.reply("audit.html", lines=lines, trouble=trouble)
