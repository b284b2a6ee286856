"""The page: what the namespace does, for people; ``queue_pages`` has what can be done about it.

Each page is a template with a part that lives: the server renders it again at every look, and a stream of server-sent
events brings it to the browser, where htmx merges it into the page, so that focus and clicks survive.  An action is an
ordinary form, which works without scripts too.  What changes much is asked first, by the server, with a page on which
the form is sent again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import APIRouter, Request, Response

from zkrq.base.errors import ZkrqError
from zkrq.serve.audit import AuditPage
from zkrq.serve.consumer_page import ConsumerPage, listed
from zkrq.serve.contents import CONTENTS_SECONDS
from zkrq.serve.curves import ROW_POINTS, draw, latest_rate, thin
from zkrq.serve.failure_page import FailurePage
from zkrq.serve.flow_page import FlowPage
from zkrq.serve.job_page import JobPage
from zkrq.serve.listing import Choice, Row, arrange, read_choice
from zkrq.serve.queue_pages import QueuePages
from zkrq.serve.schedule_page import SchedulePage
from zkrq.serve.search_page import SearchPage
from zkrq.serve.server_page import ServerPage
from zkrq.serve.sessions import Sessions
from zkrq.serve.showing import Showing

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster
    from zkrq.client.items import Item
    from zkrq.serve.audit import Audit
    from zkrq.serve.holding import Holding
    from zkrq.serve.jobs import Jobs
    from zkrq.serve.queues import Queues
    from zkrq.serve.security import Policy
    from zkrq.serve.server_page import Changes
    from zkrq.serve.watching import Look, Watching

CONSUMERS_SHOWN = 100
"""Consumers on the first page."""

ASKED_AT_ONCE = 20
"""Queues that are asked at the same time for an item."""


class Owned(NamedTuple):
    """What the server enters, and leaves when no request is served any more."""

    holding: Holding
    watching: Watching
    audit: Audit
    jobs: Jobs
    changes: Changes


class Page:
    """Answer browsers."""

    def __init__(self, cluster: Cluster, queues: Queues, owned: Owned, policy: Policy) -> None:
        watching = owned.watching
        self._queues = queues
        self._watching = watching
        self._showing = Showing(cluster, watching, policy)
        self._queue_pages = QueuePages(cluster, queues, watching, self._showing)
        self._consumers = ConsumerPage(cluster, watching, self._showing, self._queue_pages.claimed)
        self._search = SearchPage(watching, self._showing, self._queue_pages.searches, self._queue_pages.existing)
        self._jobs = JobPage(queues, owned.jobs, watching, self._showing)
        self._schedules = SchedulePage(cluster, self._showing)
        self._failures = FailurePage(queues, watching, self._showing, self._queue_pages.searches)
        self._flows = FlowPage(cluster, queues, self._showing)
        self._audit = AuditPage(owned.audit, self._showing)
        self._servers = ServerPage(cluster, watching, owned.changes, owned.audit, self._showing)
        self._sessions = Sessions(self._showing, policy)

    def router(self) -> APIRouter:
        """Return the pages, with their paths."""
        router = APIRouter(include_in_schema=False)
        router.add_route("/", self.overview)
        router.add_route("/live", self.live_overview)
        router.add_route("/find", self.find)
        self._search.add_to(router)
        self._jobs.add_to(router)
        self._queue_pages.add_to(router)
        self._consumers.add_to(router)
        self._schedules.add_to(router)
        self._failures.add_to(router)
        self._flows.add_to(router)
        self._audit.add_to(router)
        self._servers.add_to(router)
        self._sessions.add_to(router)
        return router

    async def overview(self, request: Request) -> Response:
        """Show the whole namespace."""
        choice = read_choice(request.query_params)
        look = await self._watching.look()
        stream = f"/live{choice.query}"
        values = self._seen(look, choice)
        return self._showing.live("Queues", "/", "live_overview.html", stream, **values)

    async def live_overview(self, request: Request) -> Response:
        """Keep the first page up to date."""
        choice = read_choice(request.query_params)

        async def render(look: Look) -> str:
            return self._showing.render("live_overview.html", **self._seen(look, choice))

        return self._showing.stream(render)

    def _seen(self, look: Look, choice: Choice) -> dict[str, Any]:
        """Return what the first page shows."""
        history = self._watching.history
        points = {name: history.points(name) for name in look.queues}
        rates = {name: latest_rate(some) for name, some in points.items()}
        rows = [
            Row(
                name,
                figures,
                rate and rate.pushed,
                rate and rate.removed,
                untaken=history.untaken(name),
                trend=history.backlog(name),
            )
            for name, figures in look.queues.items()
            for rate in [rates[name]]
        ]
        table = arrange(rows, choice)
        drawn: list[Row] = []
        for row in table.rows:
            some = thin(points[row.name], ROW_POINTS)
            drawn.append(row._replace(curve=draw([one.at for one in some], [one.depth for one in some])))
        return {
            **self._showing.common(look),
            **listed(look, CONSUMERS_SHOWN),
            "table": table._replace(rows=drawn),
            "choice": choice,
        }

    async def find(self, request: Request) -> Response:
        """Find an item by its id, whatever queue it is in."""
        text = request.query_params.get("text", "").strip()
        look = await self._watching.look()
        names = sorted(look.queues, key=lambda name: -sum(look.queues[name].sizes))
        found: list[tuple[str, Item[bytes]]] = []
        try:
            async with asyncio.timeout(CONTENTS_SECONDS):
                for start in range(0, len(names) if text else 0, ASKED_AT_ONCE):
                    some = names[start : start + ASKED_AT_ONCE]
                    items = await asyncio.gather(*(self._queue_pages.get(name, text) for name in some))
                    found += [(name, item) for name, item in zip(some, items, strict=True) if item]
            trouble = ""
        except (ZkrqError, TimeoutError) as error:
            trouble = str(error) or "The servers did not answer in time: not every queue was asked."
        return self._showing.reply("find_all.html", text=text, found=found, asked=len(names), trouble=trouble)
