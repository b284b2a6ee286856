"""The pages of the servers and of the level: what there is, and for administrators what can be changed.

A server that is added is caught up in the background, and its progress is in the table.  Each change is asked first,
with what it will do in figures.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlencode, urlsplit

from starlette.responses import RedirectResponse

from zkrq.base import clock
from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.base.events import ServerCaughtUp
from zkrq.base.tasks import Tasks
from zkrq.client.addresses import name_at, written
from zkrq.client.inner import check_answers, client_of
from zkrq.client.texts import show_bytes, show_count, show_duration, show_moment
from zkrq.protocol.levels import SPOKEN
from zkrq.protocol.shards import FIRST
from zkrq.replication.urls import address, check_url
from zkrq.serve.actions import read_fields, read_number
from zkrq.serve.audit import say
from zkrq.serve.problems import Busy, page_status
from zkrq.serve.showing import Question

if TYPE_CHECKING:
    from fastapi import APIRouter, Request, Response

    from zkrq.base.events import Event
    from zkrq.client.cluster import Cluster
    from zkrq.protocol.levels import ClientInfo
    from zkrq.protocol.view import View
    from zkrq.serve.audit import Audit
    from zkrq.serve.showing import Showing
    from zkrq.serve.watching import Look, Watching

FIELDS_MAX = 10
"""Fields of a form; one with more is refused."""

CHANGES_MAX = 3
"""Servers that are added at one time."""

ENDED_SHOWN = 5
"""Changes that were made, or failed in the background, and are told on the page."""

FIRST_SECONDS = 3.0
"""Seconds that a page waits for a change; then it goes on in the background, and the page tells how far it is."""

LEVEL_SECONDS = 5.0
"""Seconds that a page waits for the list of clients."""


class Wanted(NamedTuple):
    """What a form wants.

    ``verb``: add, remove or replace.  ``name``: of the server that is removed or replaced, or of the one that is added,
    empty: chosen from its URL.  ``url``: of the server that is added.
    """

    verb: str
    name: str
    url: str = ""
    shard: str = FIRST

    @property
    def fields(self) -> Mapping[str, str]:
        """The form, to be sent again."""
        return {"name": self.name, "url": self.url, "shard": self.shard}


def read(verb: str, body: bytes) -> tuple[Wanted, bool]:
    """Read a form, and whether its question was answered.  Raises ``ConfigError``."""
    if (fields := read_fields(body, FIELDS_MAX)) is None:
        raise ConfigError("the form has too many fields")
    first = {name: values[0].strip() for name, values in fields.items()}
    url = first.get("url", "")
    if ":" in url and "://" not in url:  # host and port, as servers are shown
        url = f"redis://{url}"
    wanted = Wanted(verb, first.get("name", ""), url, first.get("shard") or FIRST)
    if verb != "add" and not wanted.name:
        raise ConfigError("the form names no server")
    if verb != "remove":
        check_url(wanted.url)
        if "@" in urlsplit(wanted.url).netloc:
            raise ConfigError("leave user and password out of the URL: clients use those of their first server")
    return wanted, first.get("confirmed") == "yes"


def question(wanted: Wanted, view: View, look: Look) -> list[str]:
    """Say what a change does, in figures.  ``view``: of the shard that it concerns."""
    told: list[str] = []
    items, queues = sum(sum(each.sizes) for each in look.queues.values()), len(look.queues)
    left, kept = len(view.servers), len(view.members)
    if wanted.verb != "remove":
        sizes = [each.used_memory for name, each in look.reports.items() if name in view.members]
        about = f", some {show_bytes(max(sizes))} of memory" if sizes else ""
        told.append(
            f"{show_count(items, 'item')} of {show_count(queues, 'queue')} are copied to {address(wanted.url)}{about}. "
            "All that it holds of this namespace is wiped first."
        )
        left, kept = left + 1, kept + 1
    if wanted.verb != "add":
        is_member = wanted.name in view.members
        told.append(
            f"{wanted.name} is {'in sync' if is_member else 'out of sync'}. It is removed"
            f"{' once the new one is in sync' if wanted.verb == 'replace' else ''}, and its data stays on it."
        )
        left, kept = left - 1, kept - is_member
    more = kept - view.min_replicas
    spare = f"{more} of them may fail before pushes stop" if more > 0 else "if one of them fails, pushes stop"
    told.append(f"Then {kept} of {left} servers are in sync; a push needs {view.min_replicas}: {spare}.")
    return told


def done(wanted: Wanted, name: str, seconds: float, items: int | None) -> str:
    """Say what was done.  ``name``: of the server that was added; ``items``: copied to it, None: not known here."""
    count = "" if items is None else show_count(items, "item")
    copied = f", {count} copied, with those of which only the end is remembered" if count else ""
    took = f"in {show_duration(seconds)}{copied}"
    match wanted.verb:
        case "add":
            return f"{name} was added {took}"
        case "remove":
            return f"{wanted.name} was removed"
        case _:
            return f"{wanted.name} was replaced by {name} {took}"


def left(wanted: Wanted, name: str) -> str:
    """Say what is left to do.  ``name``: of the server that was added."""
    how = written(wanted.url, name) if wanted.url else ""
    match wanted.verb:
        case "add":
            variable = f"Write {how} into ZKRQ_REDIS of all programs"
        case "remove":
            variable = f"Take {wanted.name} out of ZKRQ_REDIS of all programs"
        case _:
            variable = f"Write {how} in the place of {wanted.name} into ZKRQ_REDIS of all programs"
    own = wanted.shard == FIRST
    stop = "" if wanted.verb == "add" else f"The Redis of {wanted.name} may be stopped."
    told = f"{variable}; those that run have found the change by themselves." if own else ""
    return " ".join(filter(None, (told, stop)))


class Ended(NamedTuple):
    """A change that has ended: when, what was done or why it failed, and what is left to do, empty: it failed."""

    at: datetime
    text: str
    left: str = ""


class Changes:
    """Change servers in the background: ``async with`` owns what is under way."""

    def __init__(self, cluster: Cluster, note: Callable[[str, str, str], None]) -> None:
        """``note``: records what was done, on which server, with which result; see ``Audit.note``."""
        self._note = note
        self.ended: deque[Ended] = deque(maxlen=ENDED_SHOWN)
        """The last changes."""
        self.running: dict[object, str] = {}
        """What is under way, in a sentence."""
        self._cluster = cluster
        self._copied: dict[str, int] = {}
        self._tasks = Tasks("zkrq serve: servers")

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        client_of(self._cluster).events.listeners.append(self._hear)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        client_of(self._cluster).events.listeners.remove(self._hear)
        await self._tasks.__aexit__(kind, error, traceback)

    def _hear(self, event: Event) -> None:
        """Note how many items this process has copied to a server that is being added."""
        if isinstance(event, ServerCaughtUp) and self.running:
            self._copied[event.server] = event.items

    async def make(self, wanted: Wanted) -> str | None:
        """Make a change; return what was done, None: it goes on in the background.

        Raises what it raises within ``FIRST_SECONDS``, and ``Busy``.
        """
        if len(self.running) >= CHANGES_MAX:
            raise Busy(f"{CHANGES_MAX} servers are being added already")
        key, seen = object(), asyncio.Event()
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.running[key] = _sentence(wanted)

        async def run() -> None:
            try:
                text = await self._act(wanted)
            except ZkrqError as error:
                if not seen.is_set():
                    ended.set_exception(error)
                    return
                text = f"{_sentence(wanted)}: {error}"
                self.ended.append(Ended(clock.now(), text))
            else:
                if not seen.is_set():
                    ended.set_result(text)
                    return
            finally:
                del self.running[key]
                if not self.running:
                    self._copied.clear()
            self._note(wanted.verb, "servers", text)

        self._tasks.start(run(), "change the servers")
        finished, _ = await asyncio.wait([ended], timeout=FIRST_SECONDS)
        seen.set()
        return await ended if finished else None

    async def _act(self, wanted: Wanted) -> str:
        """Make a change, and return what was done.  One that is replaced is removed once another one has what it had;
        interrupted before, both are there."""
        began, name = asyncio.get_running_loop().time(), ""
        if wanted.verb != "remove":
            new = wanted.name if wanted.verb == "add" else ""
            name = await self._cluster.add_server(wanted.url, name=new or None, shard=wanted.shard)
        if wanted.verb != "add":
            await self._cluster.remove_server(wanted.name)
        text = done(wanted, name, asyncio.get_running_loop().time() - began, self._copied.pop(name, None))
        self.ended.append(Ended(clock.now(), text, left(wanted, name)))
        return text


def _sentence(wanted: Wanted) -> str:
    match wanted.verb:
        case "add":
            return f"{wanted.name or address(wanted.url)} is being added"
        case "remove":
            return f"{wanted.name} is being removed"
        case _:
            return f"{wanted.name} is being replaced by {address(wanted.url)}"


_COPIED = re.compile(r" was (added|replaced by .*) in ")
"""What ``done`` says of a server to which items were copied."""

VERBS = ("add", "remove", "replace")
"""What can be done with servers, by the last word of the path."""


class ServerPage:
    """Answer browsers about servers and levels."""

    def __init__(self, cluster: Cluster, watching: Watching, changes: Changes, audit: Audit, showing: Showing) -> None:
        self._cluster = cluster
        self._audit = audit
        self._watching = watching
        self._changes = changes
        self._showing = showing

    def add_to(self, router: APIRouter) -> None:
        """Add the pages and their actions, with their paths."""
        self._showing.add_live(router, "Servers", "/servers", "live_servers.html", self._shown)
        router.add_route("/servers/{verb}", self.act, ["POST"])
        router.add_route("/upgrade", self.level)
        router.add_route("/upgrade", self.upgrade, ["POST"])

    def _shown(self, look: Look) -> dict[str, Any]:
        """Return what the page of the servers shows beside the look."""
        changes = self._changes
        return {
            "level_now": self._cluster.level,
            "running": list(changes.running.values()),
            "ended": [*reversed(changes.ended)],
        }

    async def act(self, request: Request) -> Response:
        """Add, remove or replace a server, after a question."""
        if (verb := request.path_params["verb"]) not in VERBS:
            return self._showing.message(404, "Not found", "There is no such action.", "/servers")
        try:
            wanted, is_confirmed = read(verb, await request.body())
            wanted, view = self._place_of(wanted)
            if verb != "remove" and (known := name_at(wanted.url, view.servers)):
                raise ConfigError(f"{address(wanted.url)} is in the namespace already, as {known}")
            if not is_confirmed:
                told = question(wanted, view, await self._watching.look())
                if verb != "remove":
                    await check_answers(self._cluster, wanted.shard, wanted.url)
                    told += await self._last()
                subject, is_danger = f"{verb.capitalize()} {wanted.name or 'a server'}", verb != "add"
                answers, fields = {"yes": subject}, wanted.fields.items()
                to, back = f"/servers/{verb}", "/servers"
                return self._showing.ask(Question(subject, told, to, answers, back, fields, is_danger, here=back))
            said = await self._changes.make(wanted)
        except ZkrqError as error:
            status = page_status(error)
            return self._showing.message(status, "Not done", str(error), "/servers")
        finally:
            self._watching.forget_consumers()  # and what servers report of themselves
        say(said or f"{_sentence(wanted)}, in the background")
        return RedirectResponse("/servers", 303)

    async def _last(self) -> list[str]:
        """Say how long the last server took that was added, if the record of changes has one."""
        with suppress(ZkrqError):
            known = (line for line in await self._audit.lines() if line.on == "servers" and _COPIED.search(line.result))
            return [f"The last time, {show_moment(line.at)}: {line.result}." for line in known][:1]
        return []

    def _place_of(self, wanted: Wanted) -> tuple[Wanted, View]:
        """Return a change with the shard that it concerns, and the view of that.  Raises ``ConfigError``."""
        for shard, found in self._cluster.shards.items():
            if found.view and (shard == wanted.shard if wanted.verb == "add" else wanted.name in found.view.servers):
                return wanted._replace(shard=shard), found.view
        raise ConfigError(f"there is no server {wanted.name[:100]!r}, or no such shard")

    # -- the level -----------------------------------------------------------------------------------------------------

    async def level(self, request: Request) -> Response:
        """Say whether an upgrade is safe, and who keeps it from being."""
        clients: list[ClientInfo] = []
        release = trouble = ""
        before = read_number(request.query_params.get("from", ""))
        try:
            async with asyncio.timeout(LEVEL_SECONDS):
                _, release, late = await client_of(self._cluster).upgrading.find_late(None)
                clients = sorted(late.values(), key=lambda each: (each.host, each.description))
        except (ZkrqError, TimeoutError) as error:
            trouble = str(error) or "ZooKeeper did not answer in time."
        return self._showing.reply(
            "level.html",
            level_now=self._cluster.level,
            latest=SPOKEN.highest,
            release=release,
            late=clients,
            trouble=trouble,
            notice="" if before is None else f"Upgraded from level {before} to {self._cluster.level}.",
        )

    async def upgrade(self, request: Request) -> Response:
        """Raise the level, after a question."""
        before, here = self._cluster.level, "/servers"
        if (read_fields(await request.body(), FIELDS_MAX) or {}).get("confirmed") != ["yes"]:
            told = [f"Upgrade from level {before} to {SPOKEN.highest}? There is no way back to the release before."]
            return self._showing.ask(Question("Upgrade", told, "/upgrade", {"yes": "Upgrade"}, "/upgrade", here=here))
        try:
            level = await self._cluster.upgrade()
        except ZkrqError as error:
            status = page_status(error)
            return self._showing.message(status, "Not upgraded", str(error), "/upgrade")
        say(f"from level {before} to {level}")
        return RedirectResponse(f"/upgrade?{urlencode({'from': before})}", 303)
