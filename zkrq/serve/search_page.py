"""The page of a search: a form of all conditions, and the items that meet them, page by page until the last one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from zkrq.base.errors import ZkrqError
from zkrq.client.bulk import DEEDS
from zkrq.client.copies import each_exported, exported
from zkrq.serve.actions import read_number
from zkrq.serve.contents import CONTENTS_SECONDS, NO_QUEUE
from zkrq.serve.problems import page_status
from zkrq.serve.searching import FIELDS, Found, Search, find, read_search, texts_in

if TYPE_CHECKING:
    from fastapi import APIRouter, Request, Response

    from zkrq.client.queue import Queue
    from zkrq.serve.contents import Searches
    from zkrq.serve.showing import Showing
    from zkrq.serve.watching import Look, Watching

    Existing = Callable[[Request, Look], Awaitable[Queue[bytes] | None]]

BUTTONS: Mapping[str, str] = {
    "redrive": "Redrive all dead letters of these",
    "discard": "Discard all dead letters of these",
    "advance": "Run all that wait of these now",
    "cancel": "Cancel all of these",
}
"""The texts of the buttons for all that is found, by what they do."""


class SearchPage:
    """Answer browsers that look for items of one queue."""

    def __init__(self, watching: Watching, showing: Showing, searches: Searches, existing: Existing) -> None:
        """``existing``: see ``QueuePages.existing``."""
        self._watching = watching
        self._showing = showing
        self._searches = searches
        self._existing = existing

    def add_to(self, router: APIRouter) -> None:
        """Add the page and its export, with their paths."""
        router.add_route("/queues/{queue}/find", self.find)
        router.add_route("/queues/{queue}/export", self.export)

    async def find(self, request: Request) -> Response:
        """Show a page of the items that meet the conditions of the address."""
        query = request.query_params
        if (queue := await self._existing(request, await self._watching.look())) is None:
            return self._showing.message(404, "Not found", NO_QUEUE)
        search, found, trouble, status = Search(texts_in(query), {}), Found(()), "", 200
        try:
            search = read_search(query)
            found = await self._find(queue, search, query.get("after", ""))
        except (ZkrqError, TimeoutError) as error:
            trouble = str(error) or "The servers did not answer in time."
            status = page_status(error)
        before = read_number(query.get("before", "")) or 0
        values: dict[str, Any] = {
            "queue": queue.name,
            "fields": FIELDS,
            "search": search,
            "found": found,
            "before": before,
            "trouble": trouble,
            "deeds": _deeds(search),
        }
        return self._showing.reply("find.html", status, **values)

    async def export(self, request: Request) -> Response:
        """Send all items that meet the conditions of the address as lines of JSON, as ``zkrq export`` writes them."""
        if (queue := await self._existing(request, await self._watching.look())) is None:
            return self._showing.message(404, "Not found", NO_QUEUE)
        try:
            search = read_search(request.query_params)
            self._searches.check_room()
        except ZkrqError as error:
            return self._showing.message(page_status(error), "Not exported", str(error), f"/queues/{queue.name}/find")
        headers = {"Content-Disposition": f'attachment; filename="{queue.name}.jsonl"'}
        return StreamingResponse(self._lines(queue, search), media_type="application/jsonl", headers=headers)

    async def _lines(self, queue: Queue[bytes], search: Search) -> AsyncGenerator[str]:
        """Write the lines of an export; an error of the servers ends it without its end, which the browser says."""
        with self._searches.one_more():
            async with aclosing(each_exported(queue, search.where)) as items:
                async for item in items:
                    yield f"{json.dumps(exported(item))}\n"

    async def _find(self, queue: Queue[bytes], search: Search, after: str) -> Found:
        """Read a page of a search.  Raises ``Busy``, ``ConfigError``, ``Unavailable``, ``TimeoutError``."""
        with self._searches.one_more():
            async with asyncio.timeout(CONTENTS_SECONDS):
                return await find(queue, search, after)


def _deeds(search: Search) -> Mapping[str, str]:
    """Return the buttons that a search has, because items that it finds may be in the state that they need."""
    state = search.texts.get("state")
    shown = {deed: text for deed, text in BUTTONS.items() if state is None or DEEDS[deed].state in (None, state)}
    if not search.texts.keys() - {"state"}:
        del shown["cancel"]  # of all items: a queue is cleared, or deleted
    return shown
