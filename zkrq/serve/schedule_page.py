"""The page of the schedules that a namespace stores, and what its buttons do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.responses import RedirectResponse

from zkrq.base.checks import check_id, check_name
from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.serve.actions import read_fields
from zkrq.serve.audit import say
from zkrq.serve.problems import kind_of
from zkrq.serve.showing import Question

if TYPE_CHECKING:
    from fastapi import APIRouter, Request, Response

    from zkrq.client.cluster import Cluster
    from zkrq.client.scheduling import StoredSchedules
    from zkrq.serve.showing import Showing

NAME_SHOWN = 128
"""Characters of a schedule's name in a notice."""

FIELDS_MAX = 10
"""Fields of a form; one with more is refused."""


async def _remove(schedules: StoredSchedules, queue: str, name: str) -> None:
    await schedules.remove(queue, name)


async def _pause(schedules: StoredSchedules, queue: str, name: str) -> None:
    await schedules.pause(queue, name)


async def _resume(schedules: StoredSchedules, queue: str, name: str) -> None:
    await schedules.resume(queue, name)


async def _run_now(schedules: StoredSchedules, queue: str, name: str) -> None:
    await schedules.run_now(queue, name)


ACTIONS: Mapping[str, Callable[[StoredSchedules, str, str], Awaitable[None]]] = {
    "pause": _pause,
    "resume": _resume,
    "run-now": _run_now,
    "remove": _remove,
}
"""What the buttons of the page do, by the last word of their path."""

NOTICES: Mapping[str, str] = {
    "pause": "{} is paused: nothing is pushed until it is resumed.",
    "resume": "{} is resumed: it pushes again at its next moment.",
    "run-now": "The item of {} is pushed; its moments stay as they are.",
    "remove": "{} is removed. What it has pushed stays.",
}
"""What the page says after each."""


class SchedulePage:
    """Answer browsers about schedules."""

    def __init__(self, cluster: Cluster, showing: Showing) -> None:
        self._schedules = cluster.schedules()
        self._showing = showing

    def add_to(self, router: APIRouter) -> None:
        """Add the page and its actions, with their paths."""
        router.add_route("/schedules", self.page)
        router.add_route("/schedules/{verb}", self.act, ["POST"])

    async def page(self, request: Request) -> Response:
        """Show the schedules of all queues."""
        query = request.query_params
        done = NOTICES.get(query.get("done", ""), "").format(query.get("name", "")[:NAME_SHOWN])
        try:
            entries = await self._schedules.list()
            trouble = ""
        except ZkrqError as error:
            entries, trouble = (), str(error)
        return self._showing.reply("schedules.html", entries=entries, trouble=trouble, notice=done)

    async def act(self, request: Request) -> Response:
        """Do what a button says; ask before a schedule is removed."""
        verb = request.path_params["verb"]
        if verb not in ACTIONS:
            return self._showing.message(404, "Not found", "There is no such action.")
        if (fields := read_fields(await request.body(), FIELDS_MAX)) is None:
            return self._showing.message(400, "Too many fields", "The form has too many fields.", "/schedules")
        queue, name = (fields.get(each, [""])[0] for each in ("queue", "name"))
        try:
            check_name("the queue's name", queue)
            check_id("a schedule's name", name)
        except ConfigError as error:
            return self._showing.message(400, "Not done", str(error), "/schedules")
        try:
            if verb == "remove" and fields.get("confirmed") != ["yes"]:
                entry = await self._schedules.get(queue, name)
                is_declared = entry is not None and entry.declared
                return self._showing.ask(_ask(queue, name, is_declared=is_declared))
            await ACTIONS[verb](self._schedules, queue, name)
        except ZkrqError as error:
            return self._showing.message(kind_of(error).status, "Not done", str(error), "/schedules")
        say(NOTICES[verb].format(f"{name} of {queue}"))
        return RedirectResponse(f"/schedules?{urlencode({'done': verb, 'name': name})}", 303)


def _ask(queue: str, name: str, *, is_declared: bool) -> Question:
    asked = [f"Remove this schedule of {queue}? What it has pushed stays."]
    if is_declared:
        text = "Code declares it, so it comes back when a process of that code starts: pause it instead to stop it."
        asked.append(text)
    fields, here = [("queue", queue), ("name", name)], "/schedules"
    return Question(name, asked, "/schedules/remove", {"yes": "Remove"}, here, fields, is_danger=True, here=here)
