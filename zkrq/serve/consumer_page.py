"""The pages of the consumers: all of them; what one works on, and the buttons that make it quiet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from starlette.responses import RedirectResponse

from zkrq.base.errors import ZkrqError
from zkrq.client.texts import show_count
from zkrq.serve.actions import read_fields, read_number
from zkrq.serve.audit import name_chosen, say
from zkrq.serve.contents import CONTENTS_SECONDS, ITEMS_MOST
from zkrq.serve.problems import page_status
from zkrq.serve.showing import Question

if TYPE_CHECKING:
    from fastapi import APIRouter, Request, Response

    from zkrq.client.cluster import Cluster
    from zkrq.client.consumers import Consumer
    from zkrq.client.items import Item
    from zkrq.serve.showing import Showing
    from zkrq.serve.watching import Look, Watching

CONSUMERS_MOST = 1_000
"""Consumers that the page of all lists."""

FIELDS_MAX = 10
"""Fields of a form; one with more is refused."""

Claimed = Callable[[str, int], Awaitable[Sequence["Item[bytes]"]]]
"""Returns some of the claimed items of a queue."""

NOTICES: Mapping[str, str] = {
    "quiet": "{} will claim nothing more, and finish what was begun.",
    "unquiet": "{} will claim again.",
    "silent": "{} did not answer in time, and will follow.",
    "unable": "{} of a release that cannot be made quiet: stop the process instead.",
}
"""What the page says after an action, and of those that have not done it."""


def tell(query: Mapping[str, str]) -> str:
    """Say what consumers said after an action, from the query of an address; nothing if it cannot be understood."""
    if (verb := query.get("verb", "")) not in ("quiet", "unquiet"):
        return ""
    fields = {verb: "done", "silent": "silent", "unable": "unable"}
    counts = {part: read_number(query.get(field, "")) for part, field in fields.items()}
    return " ".join(NOTICES[part].format(show_count(count, "consumer")) for part, count in counts.items() if count)


def question(owner: str, consumers: Mapping[str, Consumer]) -> str:
    """Return what is asked before a consumer is made quiet."""
    consumer = consumers[owner]
    held = show_count(sum(consumer.claims.values()), "item")
    same = sum(1 for each in consumers.values() if each.host and each.host == consumer.host)
    also = f" Its machine, {consumer.host}, has {show_count(same, 'consumer')}." if same else ""
    ends = "It claims again when you say so, or when it is started again."
    named = f"process {consumer.pid}, session {owner}" if consumer.pid else f"session {owner}"
    return f"Have this consumer ({named}) claim nothing more? It finishes {held}. {ends}{also}"


def listed(look: Look, most: int) -> dict[str, Any]:
    """Return what a list of at most ``most`` consumers shows."""
    consumers = sorted(look.consumers.items(), key=lambda each: (each[1].description, each[0]))
    return {"consumers": consumers[:most], "more_consumers": max(0, len(consumers) - most)}


class ConsumerPage:
    """Answer browsers about consumers."""

    def __init__(self, cluster: Cluster, watching: Watching, showing: Showing, claimed: Claimed) -> None:
        self._cluster = cluster
        self._watching = watching
        self._showing = showing
        self._claimed = claimed

    def add_to(self, router: APIRouter) -> None:
        """Add the pages and their actions, with their paths."""
        shown = partial(listed, most=CONSUMERS_MOST)
        self._showing.add_live(router, "Consumers", "/consumers", "live_consumers.html", shown)
        router.add_route("/consumers/{owner}", self.page)
        router.add_route("/consumers/{owner}/live", self.live)
        router.add_route("/consumers/{owner}/{verb}", self.act, ["POST"])

    async def page(self, request: Request) -> Response:
        """Show one process that consumes, and the items that it has."""
        self._watching.forget_consumers()  # its claims were counted some seconds ago
        look = await self._watching.look()
        owner = request.path_params["owner"]
        if (consumer := look.consumers.get(owner)) is None:
            return self._showing.message(404, "Not found", "No such process consumes now.")
        values = {**await self._about(owner, look), "notice": tell(request.query_params)}
        stream = f"/consumers/{quote(owner, safe='')}/live"
        return self._showing.live(consumer.description, "/consumers", "live_consumer.html", stream, up="", **values)

    async def live(self, request: Request) -> Response:
        """Keep the page of a consumer up to date."""
        owner = request.path_params["owner"]

        async def render(look: Look) -> str:
            return self._showing.render("live_consumer.html", **await self._about(owner, look))

        return self._showing.stream(render)

    async def _about(self, owner: str, look: Look) -> dict[str, Any]:
        """Return what the page of a consumer shows, of one that has gone nothing."""
        consumer, trouble = look.consumers.get(owner), ""
        items: dict[str, Sequence[Item[bytes]]] = {}
        try:
            async with asyncio.timeout(CONTENTS_SECONDS):
                for queue in sorted(consumer.claims if consumer else ()):
                    claimed = await self._claimed(queue, ITEMS_MOST)
                    if own := [item for item in claimed if item.owner == owner]:
                        items[queue] = own
        except (ZkrqError, TimeoutError) as error:
            trouble = str(error) or "The servers did not answer in time."
        found = {"owner": owner, "consumer": consumer, "items": items, "trouble": trouble}
        return {**self._showing.common(look), **found}

    async def act(self, request: Request) -> Response:
        """Make one consumer, or all of its machine, quiet after a question; or let them claim again."""
        owner, verb = request.path_params["owner"], request.path_params["verb"]
        back = f"/consumers/{quote(owner, safe='')}"
        if verb not in ("quiet", "unquiet"):
            return self._showing.message(404, "Not found", "There is no such action.")
        if (fields := read_fields(await request.body(), FIELDS_MAX)) is None:
            return self._showing.message(400, "Too many fields", "The form has too many fields.", back)
        consumers = (await self._watching.look()).consumers
        if (consumer := consumers.get(owner)) is None:
            return self._showing.message(404, "Not found", "No such process consumes now.")
        if verb == "quiet" and "confirmed" not in fields:
            asked, answers = [question(owner, consumers)], {"owner": "Quiet"}
            if consumer.host:
                answers["host"] = f"Quiet all of {consumer.host}"
            return self._showing.ask(
                Question(consumer.description, asked, f"{back}/quiet", answers, back, here="/consumers")
            )
        act = self._cluster.quiet if verb == "quiet" else self._cluster.unquiet
        owners, host = ((), consumer.host) if fields.get("confirmed") == ["host"] else ((owner,), None)
        try:
            quieted = await act(*owners, host=host)
        except ZkrqError as error:
            return self._showing.message(page_status(error), "Not done", str(error), back)
        say(name_chosen(owners, host))
        self._watching.forget_consumers()
        counts = {name: len(owners) for name, owners in quieted._asdict().items()}
        return RedirectResponse(f"{back}?{urlencode({'verb': verb, **counts})}", 303)
