"""The pages of the servers and of the level: what there is, and for administrators what can be changed.

A server that is added is caught up in the background, and its progress is in the table.  Each change is asked first,
with what it will do in figures.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit

from starlette.responses import RedirectResponse

from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.base.tasks import Tasks
from zkrq.client.inner import client_of
from zkrq.protocol.levels import SPOKEN
from zkrq.protocol.shards import FIRST
from zkrq.replication.urls import address, check_url
from zkrq.serve.actions import read_fields
from zkrq.serve.audit import say
from zkrq.serve.problems import Busy, page_status
from zkrq.serve.showing import Question
from zkrq.serve.texts import show_bytes, show_count

if TYPE_CHECKING:
    from fastapi import APIRouter, Request, Response

    from zkrq.client.cluster import Cluster
    from zkrq.protocol.levels import ClientInfo
    from zkrq.protocol.view import View
    from zkrq.serve.showing import Showing
    from zkrq.serve.watching import Look, Watching

FIELDS_MAX = 10
"""Fields of a form; one with more is refused."""

CHANGES_MAX = 3
"""Servers that are added at one time."""

FAILED_SHOWN = 5
"""Changes that failed in the background, and are told on the page."""

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
    wanted = Wanted(verb, first.get("name", ""), first.get("url", ""), first.get("shard") or FIRST)
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


class Changes:
    """Change servers in the background: ``async with`` owns what is under way."""

    def __init__(self, cluster: Cluster, note: Callable[[str, str, str], None]) -> None:
        """``note``: records what was done, on which server, with which result; see ``Audit.note``."""
        self._note = note
        self.failed: deque[str] = deque(maxlen=FAILED_SHOWN)
        """What failed after its page was answered."""
        self.running: dict[object, str] = {}
        """What is under way, in a sentence."""
        self._cluster = cluster
        self._tasks = Tasks("zkrq serve: servers")

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._tasks.__aexit__(kind, error, traceback)

    async def make(self, wanted: Wanted) -> bool:
        """Make a change; tell whether it has ended.  Raises what it raises within ``FIRST_SECONDS``, and ``Busy``."""
        if len(self.running) >= CHANGES_MAX:
            raise Busy(f"{CHANGES_MAX} servers are being added already")
        key, seen = object(), asyncio.Event()
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.running[key] = _sentence(wanted)

        async def run() -> None:
            try:
                await self._act(wanted)
            except ZkrqError as error:
                if seen.is_set():
                    self.failed.append(f"{_sentence(wanted)}: {error}")
                    self._note(wanted.verb, "servers", self.failed[-1])
                else:
                    ended.set_exception(error)
            else:
                if seen.is_set():
                    self._note(wanted.verb, "servers", f"{_sentence(wanted)}: done")
                else:
                    ended.set_result(None)
            finally:
                del self.running[key]

        self._tasks.start(run(), "change the servers")
        done, _ = await asyncio.wait([ended], timeout=FIRST_SECONDS)
        seen.set()
        if done:
            await ended
        return bool(done)

    def _act(self, wanted: Wanted) -> Coroutine[Any, Any, None]:
        match wanted.verb:
            case "add":
                return self._add(wanted, wanted.name)
            case "remove":
                return self._cluster.remove_server(wanted.name)
            case _:
                return self._replace(wanted)

    async def _add(self, wanted: Wanted, name: str = "") -> None:
        await self._cluster.add_server(wanted.url, name=name or None, shard=wanted.shard)

    async def _replace(self, wanted: Wanted) -> None:
        """Remove a server once another one has what it had; interrupted before, both are there."""
        await self._add(wanted)
        await self._cluster.remove_server(wanted.name)


def _sentence(wanted: Wanted) -> str:
    match wanted.verb:
        case "add":
            return f"{wanted.name or address(wanted.url)} is being added"
        case "remove":
            return f"{wanted.name} is being removed"
        case _:
            return f"{wanted.name} is being replaced by {address(wanted.url)}"


VERBS = ("add", "remove", "replace")
"""What can be done with servers, by the last word of the path."""


class ServerPage:
    """Answer browsers about servers and levels."""

    def __init__(self, cluster: Cluster, watching: Watching, changes: Changes, showing: Showing) -> None:
        self._cluster = cluster
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
            "failed": list(changes.failed),
        }

    async def act(self, request: Request) -> Response:
        """Add, remove or replace a server, after a question."""
        if (verb := request.path_params["verb"]) not in VERBS:
            return self._showing.message(404, "Not found", "There is no such action.", "/servers")
        try:
            wanted, is_confirmed = read(verb, await request.body())
            view = self._view_of(wanted)
            if not is_confirmed:
                told = question(wanted, view, await self._watching.look())
                subject, is_danger = f"{verb.capitalize()} {wanted.name or 'a server'}", verb != "add"
                answers, fields = {"yes": verb.capitalize()}, wanted.fields.items()
                to, back = f"/servers/{verb}", "/servers"
                return self._showing.ask(Question(subject, told, to, answers, back, fields, is_danger, here=back))
            is_done = await self._changes.make(wanted)
        except ZkrqError as error:
            status = page_status(error)
            return self._showing.message(status, "Not done", str(error), "/servers")
        finally:
            self._watching.soon()
        say(_sentence(wanted) + (": done" if is_done else ", in the background"))
        return RedirectResponse("/servers", 303)

    def _view_of(self, wanted: Wanted) -> View:
        """Return the view of the shard that a change concerns.  Raises ``ConfigError``."""
        shards = self._cluster.shards
        if wanted.verb == "add":
            found = shards.get(wanted.shard)
        else:
            found = next((each for each in shards.values() if each.view and wanted.name in each.view.servers), None)
        if found is None or found.view is None:
            raise ConfigError(f"there is no server {wanted.name[:100]!r}, or no such shard")
        return found.view

    # -- the level -----------------------------------------------------------------------------------------------------

    async def level(self, request: Request) -> Response:
        """Say whether an upgrade is safe, and who keeps it from being."""
        clients: list[ClientInfo] = []
        release = trouble = ""
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
        )

    async def upgrade(self, request: Request) -> Response:
        """Raise the level; the page with the button has asked."""
        before = self._cluster.level
        try:
            level = await self._cluster.upgrade()
        except ZkrqError as error:
            status = page_status(error)
            return self._showing.message(status, "Not upgraded", str(error), "/upgrade")
        say(f"from level {before} to {level}")
        return RedirectResponse("/upgrade", 303)
