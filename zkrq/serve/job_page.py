"""The page of jobs, and the forms that begin and stop them: one deed with all items that a search finds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse

from zkrq.base import clock
from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.client.bulk import DEEDS, Bulk
from zkrq.client.texts import show_count
from zkrq.serve.actions import read_fields, read_number
from zkrq.serve.audit import say
from zkrq.serve.problems import page_status
from zkrq.serve.searching import read_search
from zkrq.serve.showing import Question

if TYPE_CHECKING:
    from fastapi import APIRouter, Request, Response

    from zkrq.client.bulk import Counted
    from zkrq.serve.jobs import Jobs
    from zkrq.serve.queues import Queues
    from zkrq.serve.searching import Search
    from zkrq.serve.showing import Showing
    from zkrq.serve.watching import Watching

FIELDS_MAX = 30
"""Fields of a form; one with more is refused."""

COUNT_SECONDS = 2.0
"""Seconds for which items are counted before it is asked whether to change them."""

READ_SECONDS = 10.0
"""Seconds that the servers have for the last page of that count."""

VERBS: Mapping[str, str] = {
    "cancel": "Cancel",
    "redrive": "Redrive",
    "discard": "Discard",
    "advance": "Run now",
}
"""What the buttons say, by the deeds that jobs do."""

REMOVING = frozenset(("cancel", "discard"))
"""Deeds after which the items are gone."""


class JobPage:
    """Answer browsers about jobs."""

    def __init__(self, queues: Queues, jobs: Jobs, watching: Watching, showing: Showing) -> None:
        self._queues = queues
        self._jobs = jobs
        self._watching = watching
        self._showing = showing

    def add_to(self, router: APIRouter) -> None:
        """Add the page and its actions, with their paths."""
        self._showing.add_live(
            router, "Jobs", "/jobs", "live_jobs.html", lambda look: {"jobs": self._jobs.all, "verbs": VERBS}
        )
        router.add_route("/jobs/{number:int}/stop", self.stop, ["POST"])
        router.add_route("/queues/{queue}/found/{verb}", self.begin, ["POST"])

    async def begin(self, request: Request) -> Response:
        """Begin a job, after a question that says how many items there are."""
        name, deed = request.path_params["queue"], request.path_params["verb"]
        if deed not in DEEDS or (fields := read_fields(await request.body(), FIELDS_MAX)) is None:
            return self._showing.message(400, "Not begun", "There is no such action, or the form has too many fields.")
        first, back = {field: values[0] for field, values in fields.items()}, "/"
        try:
            search, queue = read_search(first), self._queues[name]
            back = f"/queues/{queue.name}/find?{search.query()}"
            bulk = Bulk(queue, deed, search.where, begun=_begun(first.get("begun", "")))  # pyright: ignore[reportArgumentType]
            if first.get("confirmed") != "yes":
                async with asyncio.timeout(COUNT_SECONDS + READ_SECONDS):
                    counted = await bulk.count(COUNT_SECONDS)
                return self._ask(queue.name, deed, search, bulk, counted, back)
            job = self._jobs.start(queue.name, deed, search, bulk, read_number(first.get("counted", "")))
            say(f"{job} begins")
        except (ZkrqError, TimeoutError) as error:
            return self._showing.message(
                page_status(error), "Not begun", str(error) or "The servers do not answer.", back
            )
        self._watching.soon()
        return RedirectResponse("/jobs", 303)

    def _ask(self, queue: str, deed: str, search: Search, bulk: Bulk, counted: Counted, back: str) -> Response:
        """Ask whether to change the items that were counted, and those that are still to be found."""
        if not counted.items and counted.whole:
            return self._showing.message(400, "Nothing to do", f"No item of {queue} is meant: {search.words}.", back)
        noun = "dead letter" if DEEDS[deed].state == "dead" else "item"
        verb, fields = VERBS[deed], {**search.texts, "begun": bulk.begun.isoformat()}
        if counted.whole:
            fields["counted"] = str(counted.items)
        to, is_danger = f"/queues/{queue}/found/{deed}", deed in REMOVING
        items = show_count(counted.items, noun)
        told = [_question(verb, items, search.words, counted, is_final=is_danger)]
        answers = {"yes": f"{verb} {items}" if counted.whole else f"{verb} all"}
        asked = Question(queue, told, to, answers, back, fields.items(), is_danger, here="/jobs")
        return self._showing.ask(asked)

    async def stop(self, request: Request) -> Response:
        """Stop a job."""
        if job := self._jobs.stop(request.path_params["number"]):
            say(f"{job} is stopped")
        self._watching.soon()
        return RedirectResponse("/jobs", 303)


def _question(verb: str, items: str, words: str, counted: Counted, *, is_final: bool) -> str:
    """Return what is asked before a job begins."""
    whole = items if counted.whole else f"all items, at least {items} (there are more than could be counted now)"
    claimed = f"{counted.claimed:,} of them claimed: the processes that work on these are told to stop"
    told = f", {claimed}" if counted.claimed else ""
    final = " This cannot be undone." if is_final else ""
    return f"{verb} {whole} with {words or 'any property'}{told}?{final} What comes from now on is left alone."


def _begun(text: str) -> datetime | None:
    """Read when the items were counted: what has come since is left alone.  Raises ``ConfigError``."""
    if not text:
        return None
    try:
        begun = datetime.fromisoformat(text)
        return min(begun, clock.now())
    except (ValueError, TypeError) as error:
        raise ConfigError("the form does not say when it was made: open it again") from error
