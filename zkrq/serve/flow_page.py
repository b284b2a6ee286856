"""The pages of flows: which there are, how far each is, who is missing, and what its buttons do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from starlette.responses import RedirectResponse

from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.client.cursors import BadCursor
from zkrq.client.texts import show_count
from zkrq.consuming.flow import Flow
from zkrq.operations.flows import LISTED, failed_inner, held_up
from zkrq.serve.actions import read_fields
from zkrq.serve.contents import get_item
from zkrq.serve.flows import flow_in, page_of
from zkrq.serve.problems import kind_of
from zkrq.serve.showing import Question

if TYPE_CHECKING:
    from fastapi import APIRouter, Request, Response

    from zkrq.base.flows import FlowStatus
    from zkrq.client.cluster import Cluster
    from zkrq.client.items import Item
    from zkrq.serve.queues import Queues
    from zkrq.serve.showing import Showing

SHOWN = 50
"""Flows of a page."""

ITEMS_SHOWN = 20
"""Members of a flow that are looked up, to show why they failed."""

SECONDS = 5.0
"""Seconds that a page waits for flows; then it shows those that it knows."""

FIELDS_MAX = 10
"""Fields of a form; one with more is refused."""


ACTIONS: Mapping[str, Callable[[Flow], Awaitable[object]]] = {
    "redrive": Flow.redrive,
    "cancel": Flow.cancel,
    "finish": Flow.finish,
}
"""What the buttons do, by the last word of their path."""

NOTICES: Mapping[str, str] = {
    "redrive": "The dead letters of {} are redriven.",
    "cancel": "{} is cancelled.",
    "finish": "{} has ended as done.",
}
"""What the page says after each."""


class Part(NamedTuple):
    """A part of the bar of a flow, from ``left`` on, in hundredths of the bar."""

    name: str
    members: int
    left: float
    width: float


class Shown(NamedTuple):
    """A flow as a page shows it; ``why``: what holds it up, None: nothing.  ``may_redrive``: whether there may be dead
    letters, in it or in its inner flows, that can be queued again."""

    status: FlowStatus
    parts: tuple[Part, ...]
    why: str | None
    may_redrive: bool


def show(status: FlowStatus) -> Shown:
    """Draw the bar of a flow: what is done, left, dead and missed."""
    counts = {"done": status.done, "left": status.left, "dead": status.dead, "missed": status.missed}
    whole, at = sum(counts.values()) or 1, 0.0
    parts: list[Part] = []
    for name, count in counts.items():
        if count:
            parts.append(Part(name, count, at, 100 * count / whole))
            at += parts[-1].width
    has_inner = any(id in status.nested for id in status.ids.get("left", ()))
    return Shown(status, tuple(parts), held_up(status), has_inner or status.dead > failed_inner(status))


def question(verb: str, status: FlowStatus) -> str | None:
    """Return what is asked before an action; None: nothing is."""
    undone = show_count(status.left + status.dead + status.missed, "member")
    match verb:
        case "cancel":
            left = show_count(status.left, "queued or claimed member")
            return f"Cancel this flow? It has {left}; what is held for its end is removed, too."
        case "finish":
            return f"End this flow as done, without {undone}? What follows is handed out."
        case _:
            return None


class FlowPage:
    """Answer browsers about flows."""

    def __init__(self, cluster: Cluster, queues: Queues, showing: Showing) -> None:
        self._cluster = cluster
        self._queues = queues
        self._showing = showing

    def add_to(self, router: APIRouter) -> None:
        """Add the pages and their actions, with their paths."""
        router.add_route("/flows", self.page)
        router.add_route("/flows/{queue}/{flow}", self.one)
        router.add_route("/flows/{queue}/{flow}/{verb}", self.act, ["POST"])

    async def page(self, request: Request) -> Response:
        """Show a page of the flows, of one state or of all."""
        query = request.query_params
        state = query.get("state") if query.get("state") in LISTED else None
        found, following, trouble = list[Shown](), None, ""
        try:
            async with asyncio.timeout(SECONDS):
                page, following = await page_of(self._cluster, state, SHOWN, query.get("after") or None)
            found = sorted(map(show, page), key=lambda each: each.why is None)
        except BadCursor as error:
            return self._showing.message(400, "Not found", str(error), "/flows")
        except (ZkrqError, TimeoutError) as error:
            trouble = str(error) or "The servers did not answer in time: there may be flows."
        further = following and urlencode({"state": state, "after": following} if state else {"after": following})
        return self._showing.reply(
            "flows.html", found=found, trouble=trouble, states=LISTED, state=state, further=further
        )

    async def one(self, request: Request) -> Response:
        """Show one flow, and why its members failed."""
        done = NOTICES.get(request.query_params.get("done", ""), "")
        dead: dict[str, Item[bytes] | None] = {}
        try:
            flow = self._named(request)
            async with asyncio.timeout(SECONDS):
                status = await flow.status()
                ids = status.ids.get("dead", ())[:ITEMS_SHOWN]
                items = await asyncio.gather(*(get_item(self._queues[status.queues[id]], id) for id in ids))
                dead = dict(zip(ids, items, strict=True))
        except ConfigError as error:
            return self._showing.message(404, "Not found", str(error), "/flows")
        except (ZkrqError, TimeoutError) as error:
            return self._showing.message(503, "Not found out", str(error) or "The servers do not answer.", "/flows")
        notice = done.format(status.name)
        return self._showing.reply("flow.html", shown=show(status), dead=dead, notice=notice)

    async def act(self, request: Request) -> Response:
        """Do what a button says; ask before a flow is ended."""
        verb, back = request.path_params["verb"], "/flows"
        if verb not in ACTIONS:
            return self._showing.message(404, "Not found", "There is no such action.")
        if (fields := read_fields(await request.body(), FIELDS_MAX)) is None:
            return self._showing.message(400, "Too many fields", "The form has too many fields.", back)
        try:
            flow = self._named(request)
            back = f"/flows/{flow.queue}/{flow.name}"
            asked = None if fields.get("confirmed") == ["yes"] else question(verb, await flow.status())
            if asked:
                answers = {"yes": f"{verb.capitalize()} the flow"}
                to, here = f"{back}/{verb}", "/flows"
                return self._showing.ask(Question(flow.name, [asked], to, answers, back, is_danger=True, here=here))
            await ACTIONS[verb](flow)
        except ZkrqError as error:
            status = 404 if isinstance(error, ConfigError) else kind_of(error).status
            return self._showing.message(status, "Not done", str(error), back)
        return RedirectResponse(f"{back}?{urlencode({'done': verb})}", 303)

    def _named(self, request: Request) -> Flow:
        """Return the flow that the path names.  Raises ``ConfigError`` for what can be no name."""
        queue = request.path_params["queue"]
        return flow_in(self._cluster, self._queues[queue].name, request.path_params["flow"])
