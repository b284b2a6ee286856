"""The page: what the namespace does, and what can be done about it, for people.

Each page is a template with a part that lives: the server renders it again at every look, and a stream of server-sent
events brings it to the browser, where htmx merges it into the page, so that focus and clicks survive.  An action is an
ordinary form, which works without scripts too.  What changes much is asked first: by a script, or else by the
server, with a page on which the form is sent again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, RedirectResponse, StreamingResponse

from zkrq.base.checks import check_name
from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.client.inspection import Sizes, Statistics, shards_left_out
from zkrq.serve.curves import Curve, Rate, draw, rates
from zkrq.serve.problems import UNAUTHORIZED, kind_of
from zkrq.serve.security import COOKIE, SESSION_SECONDS, Policy, is_token, make_session
from zkrq.serve.watching import Look, Watching, takes_pushes

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster
    from zkrq.client.health import Health
    from zkrq.client.queue import Queue
    from zkrq.serve.queues import Queues

HERE = Path(__file__).parent

QUEUES_SHOWN = 60
"""Queues on the first page: those with the most items."""

CONSUMERS_SHOWN = 100

ITEMS_SHOWN = 50
"""Dead letters, and claimed items, on the page of a queue."""

PAYLOAD_SHOWN = 1_000
"""Characters of a dead letter's payload."""

CONTENTS_SECONDS = 5.0
"""Seconds that the page of a queue waits for its dead letters and claimed items; then it shows what is known."""

PLACES = {"member": "in sync", "learner": "being caught up", "eligible": "out, has all items", "out": "out"}
"""What the page calls the places of servers."""

IDLE = 0.05
"""Items per second; a queue through which fewer pass is idle."""

NO_FIGURES = Statistics(Sizes(0, 0, 0, 0), False, None, 0, 0, 0, 0)
"""What is shown of a queue while nothing is known of it."""


class Shown(NamedTuple):
    """A queue as the page shows it."""

    name: str
    figures: Statistics
    depth: Curve | None
    flow: Curve | None
    rate: str


class Page:
    """Answer browsers."""

    def __init__(self, cluster: Cluster, queues: Queues, watching: Watching, policy: Policy) -> None:
        self._cluster = cluster
        self._queues = queues
        self._watching = watching
        self._policy = policy
        self._templates = make_templates()

    def router(self) -> APIRouter:
        """Return the pages, with their paths."""
        router = APIRouter(include_in_schema=False)
        router.add_route("/", self.overview)
        router.add_route("/live", self.live_overview)
        router.add_route("/queues/{queue}", self.queue)
        router.add_route("/queues/{queue}/live", self.live_queue)
        router.add_route("/queues/{queue}/{verb}", self.act, ["POST"])
        router.add_route("/login", self.login, ["GET", "POST"])
        router.add_route("/logout", self.logout, ["POST"])
        return router

    # -- pages -----------------------------------------------------------------------------------------------------

    async def overview(self, request: Request) -> Response:
        """Show the whole namespace."""
        look = await self._watching.look()
        return self._reply(
            "live.html", title="Queues", fragment="live_overview.html", stream="/live", queue=None, **self._seen(look)
        )

    async def live_overview(self, request: Request) -> Response:
        """Keep the first page up to date."""

        async def render(look: Look) -> str:
            return self._render("live_overview.html", **self._seen(look))

        return self._stream(render)

    async def queue(self, request: Request) -> Response:
        """Show one queue, with its dead letters and who holds its items."""
        if (queue := self._named(request)) is None:
            return self._message(404, "Not found", "There is no queue of that name.")
        look = await self._watching.look()
        if not await self._exists(queue.name, look):
            return self._message(
                404, "Not found", "There is no queue of that name, or nothing was ever pushed into it."
            )
        values = await self._contents(queue, look)
        stream = f"/queues/{queue.name}/live"
        return self._reply("live.html", title=queue.name, fragment="live_queue.html", stream=stream, **values)

    async def _exists(self, name: str, look: Look) -> bool:
        """Tell whether the servers know a queue, or whether that cannot be asked now."""
        if name in look.queues or look.trouble:
            return True
        try:
            async with asyncio.timeout(CONTENTS_SECONDS):
                return name in await self._cluster.queues()
        except (ZkrqError, TimeoutError):
            return True

    async def live_queue(self, request: Request) -> Response:
        """Keep the page of a queue up to date."""
        if (queue := self._named(request)) is None:
            return self._message(404, "Not found", "There is no queue of that name.")

        async def render(look: Look) -> str:
            return self._render("live_queue.html", **await self._contents(queue, look))

        return self._stream(render)

    # -- actions ---------------------------------------------------------------------------------------------------

    async def act(self, request: Request) -> Response:
        """Do what a button says; tell the outcome in a line, or without scripts by going back to the queue's page."""
        queue, act = self._named(request), ACTIONS.get(request.path_params["verb"])
        if queue is None or act is None:
            return self._message(404, "Not found", "There is no such action.")
        by_script = "hx-request" in request.headers
        form = await _form(request)
        id = form.get("id")
        try:
            if not by_script and form.get("confirmed") != "yes":
                verb, dead = request.path_params["verb"], (await queue.statistics()).sizes.dead
                if asked := question(verb, dead, id):
                    return self._reply("confirm.html", queue=queue.name, verb=verb, item=id, question=asked)
            done = await act(queue, id)
        except ZkrqError as error:
            status = kind_of(error).status
            if not by_script:
                return self._message(status, "It failed", str(error))
            return HTMLResponse(self._render("notice.html", text=str(error), failed=True), status)
        finally:
            self._watching.soon()
        if by_script:
            return HTMLResponse(self._render("notice.html", text=done, failed=False))
        return RedirectResponse(f"/queues/{queue.name}", 303)

    # -- who is there ----------------------------------------------------------------------------------------------

    async def login(self, request: Request) -> Response:
        """Let a browser in for a token."""
        if not self._policy.tokens:
            return RedirectResponse("/", 303)
        if request.method != "POST":
            return self._reply("login.html")
        if not is_token(self._policy, (await _form(request)).get("token", "")):
            return self._reply("login.html", UNAUTHORIZED.status, notice="That is not the token.")
        reply = RedirectResponse("/", 303)
        reply.set_cookie(
            COOKIE,
            make_session(self._policy, time.time()),
            max_age=SESSION_SECONDS,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return reply

    async def logout(self, request: Request) -> Response:
        """Have the browser forget its session."""
        reply = RedirectResponse("/login", 303)
        reply.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return reply

    # -- what templates need ---------------------------------------------------------------------------------------

    def _seen(self, look: Look) -> dict[str, Any]:
        """Return what the first page shows."""
        names = sorted(look.queues, key=lambda name: (-sum(look.queues[name].sizes), name))
        consumers = sorted(look.consumers.items(), key=lambda each: (each[1].description, each[0]))
        return {
            **self._common(look),
            "shown": [self._shown(name, look.queues[name]) for name in sorted(names[:QUEUES_SHOWN])],
            "more": max(0, len(names) - QUEUES_SHOWN),
            "consumers": consumers[:CONSUMERS_SHOWN],
            "more_consumers": max(0, len(consumers) - CONSUMERS_SHOWN),
            "places": PLACES,
        }

    async def _contents(self, queue: Queue[bytes], look: Look) -> dict[str, Any]:
        """Return what the page of a queue shows."""
        values: dict[str, Any] = {**self._common(look), "letters": (), "claimed": ()}
        try:
            async with asyncio.timeout(CONTENTS_SECONDS):
                values["queue"] = self._shown(queue.name, await queue.statistics())
                values["letters"] = await queue.dead_letters(ITEMS_SHOWN)
                values["claimed"] = await queue.peek(ITEMS_SHOWN, "claimed")
        except (ZkrqError, TimeoutError) as error:
            values.setdefault("queue", self._shown(queue.name, look.queues.get(queue.name, NO_FIGURES)))
            values["look"] = replace(look, trouble=look.trouble or str(error) or "The servers do not answer.")
        return values

    def _common(self, look: Look) -> dict[str, Any]:
        view, shards = self._cluster.view, self._cluster.shards
        return {
            "look": look,
            "shards": shards if len(shards) > 1 else {},
            "left_out": shards_left_out(look.queues.values(), shards),
            "writable": takes_pushes(self._cluster),
            "members": len(view.members),
            "needed": view.min_replicas,
            "read_only": self._policy.read_only,
        }

    def _shown(self, name: str, figures: Statistics) -> Shown:
        points = self._watching.history.points(name)
        passed = rates(points)
        depth = draw([point.at for point in points], [point.depth for point in points])
        moments, *lines = zip(*passed, strict=True) if passed else ((), (), ())
        return Shown(name, figures, depth, draw(moments, *lines), show_rate(passed))

    def _named(self, request: Request) -> Queue[bytes] | None:
        """Return the queue that the path names, None if nothing can have that name."""
        try:
            return self._queues[check_name("the queue's name", request.path_params["queue"])]
        except ConfigError:
            return None

    # -- replies ---------------------------------------------------------------------------------------------------

    def _render(self, template: str, **values: object) -> str:
        return self._templates.get_template(template).render(
            namespace=self._cluster.namespace, session=bool(self._policy.tokens), **{"notice": "", **values}
        )

    def _reply(self, template: str, status: int = 200, **values: object) -> Response:
        return HTMLResponse(self._render(template, **values), status)

    def _message(self, status: int, title: str, message: str) -> Response:
        return self._reply("message.html", status, title=title, message=message)

    def _stream(self, render: Callable[[Look], Awaitable[str]]) -> Response:
        """Send what is rendered at each look.  Raises ``Busy``."""
        self._watching.check_room()

        async def events() -> AsyncGenerator[str]:
            async with aclosing(self._watching.looks()) as looks:
                async for look in looks:
                    lines = (await render(look)).splitlines()
                    yield "".join(f"data: {line}\n" for line in lines) + "\n"

        return StreamingResponse(events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


# -- actions ---------------------------------------------------------------------------------------------------------


async def _pause(queue: Queue[bytes], id: str | None) -> str:
    await queue.pause()
    return f"{queue.name} is paused: nothing more is claimed, and pushes continue."


async def _resume(queue: Queue[bytes], id: str | None) -> str:
    await queue.resume()
    return f"{queue.name} is resumed."


async def _redrive(queue: Queue[bytes], id: str | None) -> str:
    return f"{_letters(await queue.redrive(None if id is None else [id]))} of {queue.name} queued again."


async def _discard(queue: Queue[bytes], id: str | None) -> str:
    return f"{_letters(await queue.discard(None if id is None else [id]))} of {queue.name} removed."


def _letters(count: int) -> str:
    return "1 dead letter" if count == 1 else f"{count:,} dead letters"


ACTIONS: Mapping[str, Callable[[Queue[bytes], str | None], Awaitable[str]]] = {
    "pause": _pause,
    "resume": _resume,
    "redrive": _redrive,
    "discard": _discard,
}
"""What the buttons do, by the last word of their path; ``id``: of one dead letter, None: of all."""


def question(verb: str, dead: int, id: str | None = None) -> str | None:
    """Return what is asked before an action; None: nothing is.  ``dead``: dead letters, ``id``: of one, None: all."""
    match verb, id:
        case "redrive", None:
            return f"Queue {_all_letters(dead)} again?"
        case "discard", None:
            return f"Remove {_all_letters(dead)}? This cannot be undone."
        case "discard", _:
            return "Remove this dead letter? This cannot be undone."
        case _:
            return None


def _all_letters(dead: int) -> str:
    return "the one dead letter" if dead == 1 else f"all {dead:,} dead letters"


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form, the first of each name."""
    fields = parse_qs((await request.body()).decode(errors="replace"), keep_blank_values=True)
    return {name: values[0] for name, values in fields.items()}


# -- templates -------------------------------------------------------------------------------------------------------


def make_templates() -> Environment:
    """Return the templates: they escape whatever they are given, and know no value that is missing."""
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    cast("dict[str, Any]", templates.globals)["question"] = question
    templates.filters |= {
        "number": show_number,
        "duration": show_duration,
        "payload": show_payload,
        "alarm": show_alarm,
    }
    return templates


# -- figures as text -------------------------------------------------------------------------------------------------


def show_alarm(health: Health) -> str:
    """Say in a few words what a window's title warns of; empty if nothing is wrong."""
    if health.ok and not health.warnings:
        return ""
    in_sync = sum(server.place == "member" for server in health.servers.values())
    if in_sync < len(health.servers):
        return f"{in_sync} of {len(health.servers)} in sync"
    return "not ready"


def show_number(value: float) -> str:
    """Write a number for people: without decimals, unless it is small."""
    return f"{value:,.1f}" if value != int(value) and abs(value) < 100 else f"{value:,.0f}"


def show_duration(seconds: float) -> str:
    """Write seconds for people, in the largest unit of which there are at least two."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def show_rate(passed: Sequence[Rate]) -> str:
    """Say how many items pass through a queue now."""
    if not passed or max(passed[-1].pushed, passed[-1].removed) < IDLE:
        return "idle"
    return f"{show_number(passed[-1].pushed)} pushed and {show_number(passed[-1].removed)} removed a second"


def show_payload(payload: bytes) -> str:
    """Write the beginning of a payload as text."""
    text = payload[: 4 * PAYLOAD_SHOWN].decode(errors="replace")
    return text if len(text) <= PAYLOAD_SHOWN and len(payload) <= 4 * PAYLOAD_SHOWN else f"{text[:PAYLOAD_SHOWN]}…"
