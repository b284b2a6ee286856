"""The pages of one queue: its items by state, its dead letters in groups, one item; and what can be done with them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from starlette.responses import HTMLResponse, RedirectResponse

from zkrq.base.checks import check_name
from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.base.saved import EDIT_BYTES
from zkrq.client.changing import differing, write_settings
from zkrq.serve import settings_form
from zkrq.serve.actions import (
    ACTIONS,
    Form,
    Outcome,
    answer,
    question,
    read_fields,
    read_form,
    read_outcome,
    scope_of,
    tell,
)
from zkrq.serve.audit import say
from zkrq.serve.contents import (
    CONTENTS_SECONDS,
    NO_QUEUE,
    Searches,
    SharedReads,
    Tab,
    first_state,
    get_item,
    get_result,
    read_count,
    read_state,
)
from zkrq.serve.failing import ITEMS_MOST, Letters, read_letters
from zkrq.serve.figures import PERIODS, USUAL, Reading, show_work
from zkrq.serve.letters import BY_REASON, in_group, sorted_failed
from zkrq.serve.payloads import compact, place_of, write
from zkrq.serve.problems import kind_of, page_status
from zkrq.serve.rights import CALLER
from zkrq.serve.showing import Question
from zkrq.serve.shown import NO_FIGURES, Shown, show_queue

if TYPE_CHECKING:
    from fastapi import APIRouter, Request, Response

    from zkrq.client.backlog import Backlog
    from zkrq.client.cluster import Cluster
    from zkrq.client.inspection import Statistics
    from zkrq.client.items import Item
    from zkrq.client.queue import Queue
    from zkrq.serve.queues import Queues
    from zkrq.serve.showing import Showing
    from zkrq.serve.watching import Look, Watching

ERROR_MAX = 200
"""Characters of a text that is looked for in reasons."""

EDIT_FIELDS_MAX = 10
"""Fields of the form of an edited item; one with more changes nothing."""


class Wish(NamedTuple):
    """What somebody wants to see of a queue: a tab, and at most how many items; of dead letters, which ones.

    ``by``: the property by which dead letters are grouped; ``group``: the group that is shown, None: all.  ``error``,
    ``after``: which dead letters are read; see ``failing``.  ``period``, ``task``: of which time and which task
    figures are shown, None: of all tasks.
    """

    state: Tab = "ready"
    most: int = 50
    by: str = BY_REASON
    group: str | None = None
    error: str = ""
    after: str = ""
    period: str = USUAL
    task: str | None = None

    @property
    def is_live(self) -> bool:
        """Whether what it shows is read again at every look: not a search, which reads many letters, and no form, which
        is being filled in."""
        return self.state != "settings" and not (self.state == "dead" and (self.error or self.after))

    @property
    def carried(self) -> Mapping[str, str]:
        """What a form of the dead letters says beside the group: which ones were read."""
        return {name: value for name, value in (("error", self.error), ("after", self.after)) if value}

    def query(self, **changes: object) -> str:
        """The query of an address that shows this, with changes."""
        new = self._replace(**changes)  # pyright: ignore[reportArgumentType]
        fields: dict[str, object] = {"tab": new.state}
        if new.most != Wish().most:
            fields["count"] = new.most
        if new.state == "dead":
            usual = {"by": BY_REASON, "group": None, "error": "", "after": ""}
            fields |= {name: value for name, unset in usual.items() if (value := getattr(new, name)) != unset}
        if new.state == "figures":
            fields["period"] = new.period
            fields |= {} if new.task is None else {"task": new.task}
        return urlencode(fields)


def read_wish(query: Mapping[str, str]) -> Wish:
    """Read a wish from the query of an address; what cannot be understood is as usual."""
    by = query.get("by") or BY_REASON
    state, most = read_state(query.get("tab", "")), read_count(query.get("count", ""))
    error, after = query.get("error", "").strip()[:ERROR_MAX], query.get("after", "")
    period = query.get("period", USUAL)
    wish = Wish(state, most, by, query.get("group"), error, after)
    return wish._replace(period=period if period in PERIODS else USUAL, task=query.get("task"))


class QueuePages:
    """Answer browsers about one queue."""

    def __init__(self, cluster: Cluster, queues: Queues, watching: Watching, showing: Showing) -> None:
        self.searches = Searches()
        self._cluster = cluster
        self._queues = queues
        self._watching = watching
        self._showing = showing
        self._figures = Reading()
        self._shared = SharedReads()

    def add_to(self, router: APIRouter) -> None:
        """Add the pages, with their paths."""
        router.add_route("/queues/{queue}", self.queue)
        router.add_route("/queues/{queue}/live", self.live_queue)
        router.add_route("/queues/{queue}/item", self.item)
        router.add_route("/queues/{queue}/item/live", self.live_item)
        router.add_route("/queues/{queue}/settings", self.change_settings, ["POST"])
        router.add_route("/queues/{queue}/edit", self.editing)
        router.add_route("/queues/{queue}/edit", self.edit, ["POST"])
        router.add_route("/queues/{queue}/{verb}", self.act, ["POST"])

    # -- a queue -----------------------------------------------------------------------------------------------------

    async def queue(self, request: Request) -> Response:
        """Show one queue, with the items of one state."""
        look = await self._watching.look()
        if (queue := await self.existing(request, look)) is None:
            return self._showing.message(404, "Not found", NO_QUEUE)
        wish = read_wish(request.query_params)
        if "tab" not in request.query_params and (figures := look.queues.get(queue.name)):
            wish = wish._replace(state=first_state(figures.sizes))
        values = await self._contents(queue, look, wish)
        stream = f"live?{wish.query()}" if wish.is_live else ""
        return self._live(request, queue, "live_queue.html", stream, values)

    async def live_queue(self, request: Request) -> Response:
        """Keep the page of a queue up to date."""
        if (queue := self.named(request)) is None:
            return self._showing.message(404, "Not found", NO_QUEUE)
        wish = read_wish(request.query_params)

        async def render(look: Look) -> str:
            return self._showing.render("live_queue.html", **await self._contents(queue, look, wish))

        return self._showing.stream(render)

    async def _contents(self, queue: Queue[bytes], look: Look, wish: Wish) -> dict[str, Any]:
        """Return what the page of a queue shows."""
        values: dict[str, Any] = {
            **self._showing.common(look),
            "wish": wish,
            "items": (),
            "ended": (),
            "largest": None,
            "work": None,
            "periods": PERIODS,
        }
        try:
            async with asyncio.timeout(CONTENTS_SECONDS):
                figures, found = await self._shared.read((queue.name, wish), partial(self._read, queue, wish))
            values |= {"queue": self._shown(queue.name, look, figures, found["trend"]), **found}
        except (ZkrqError, TimeoutError) as error:
            values["queue"] = self._shown(queue.name, look, look.queues.get(queue.name, NO_FIGURES))
            values["look"] = look.without(error)
        return {**_sorted_letters(Letters((), None), wish), **values} if wish.state == "dead" else values

    async def _read(self, queue: Queue[bytes], wish: Wish) -> tuple[Statistics, dict[str, Any]]:
        """Read a queue, and what is shown of it.  Raises ``Busy``, ``ConfigError``, ``Unavailable``."""
        figures, found = await queue.statistics(), dict[str, Any]()
        if wish.state == "settings":
            found = await settings_form.shown(queue, figures.settings)
        elif wish.state == "dead":
            found = _sorted_letters(await self._letters(queue, wish.error, wish.after), wish)
        elif wish.state == "done":
            found["ended"] = await queue.history(wish.most)
        elif wish.state == "groups":
            found["largest"], found["items"] = await asyncio.gather(
                queue.groups(), self.claimed(queue.name, ITEMS_MOST)
            )
        elif wish.state == "figures":
            period = PERIODS[wish.period]
            found["work"] = show_work(await self._figures.read(queue, period), period, wish.task)
        elif wish.state == "claimed":
            found["items"] = await self.claimed(queue.name, wish.most)
        else:
            found["items"] = await queue.peek(wish.most, wish.state)
        return figures, {**found, "trend": await self._trend(queue, figures)}

    async def _trend(self, queue: Queue[bytes], figures: Statistics) -> Backlog | None:
        """Tell whether a queue grows: from this server's looks, or while these are too few from stored figures."""
        trend = self._watching.history.backlog(queue.name)
        if trend is None and figures.sizes.ready:
            with suppress(ZkrqError):
                return await queue.backlog()
        return trend

    async def _letters(self, queue: Queue[bytes], error: str, after: str) -> Letters:
        """Read dead letters; see ``read_letters``.  Raises ``Busy``, ``Unavailable``."""
        if not error and not after:
            return await read_letters(queue)
        with self.searches.one_more():
            return await read_letters(queue, error, after)

    def _shown(self, name: str, look: Look, figures: Any, trend: Backlog | None = None) -> Shown:
        history = self._watching.history
        return show_queue(name, figures, history.points(name), look.as_of, history.untaken(name), trend)

    async def claimed(self, name: str, count: int) -> Sequence[Item[bytes]]:
        """Return claimed items of a queue.  Raises ``Unavailable``."""
        items = await self._queues[name].peek(count, "claimed")
        self._watching.note_owners(items)
        return items

    # -- an item -----------------------------------------------------------------------------------------------------

    async def get(self, name: str, id: str) -> Item[bytes] | None:
        """Return an item, None if there is none.  Raises ``Unavailable``."""
        return await get_item(self._queues[name], id)

    async def item(self, request: Request) -> Response:
        """Show one item."""
        look = await self._watching.look()
        id, form = request.query_params.get("id", ""), request.query_params.get("as", "")
        if (queue := await self.existing(request, look)) is None:
            return self._showing.message(404, "Not found", NO_QUEUE)
        values = await self._about(queue, look, id, form)
        if values["item"] is None and values["result"] is None and not values["look"].trouble:
            text = "No item has that id: it was never pushed, or it ended too long ago."
            return self._showing.message(404, "Not found", text, f"/queues/{queue.name}")
        stream = f"item/live?{urlencode({'id': id, 'as': form})}"
        return self._live(request, queue, "live_item.html", stream, values)

    async def live_item(self, request: Request) -> Response:
        """Keep the page of an item up to date."""
        id, form = request.query_params.get("id", ""), request.query_params.get("as", "")
        if (queue := self.named(request)) is None:
            return self._showing.message(404, "Not found", NO_QUEUE)

        async def render(look: Look) -> str:
            return self._showing.render("live_item.html", **await self._about(queue, look, id, form))

        return self._showing.stream(render)

    async def _about(self, queue: Queue[bytes], look: Look, id: str, form: str) -> dict[str, Any]:
        """Return what the page of an item shows."""
        values = {
            **self._showing.common(look),
            "name": queue.name,
            "id": id,
            "form": form,
            "item": None,
            "result": None,
        }
        try:
            async with asyncio.timeout(CONTENTS_SECONDS):
                item = values["item"] = await get_item(queue, id)
                if item is None:
                    values["result"] = await get_result(queue, id)
        except (ZkrqError, TimeoutError) as error:
            values["look"] = look.without(error)
            return values
        self._watching.note_owners([item] if item else ())
        return values

    # -- actions -----------------------------------------------------------------------------------------------------

    async def act(self, request: Request) -> Response:
        """Do what a button says; tell the outcome in a line, or without scripts on the page that is shown next."""
        queue, verb = self.named(request), request.path_params["verb"]
        if queue is None or verb not in ACTIONS:
            return self._showing.message(404, "Not found", "There is no such action.")
        if (form := read_form(await request.body())) is None:
            return self._showing.message(400, "Too many fields", "The form has too many fields.")
        by_script = "hx-request" in request.headers
        try:
            form = await self._with_ids(queue, form)
            if form.ids == () or (form.ids is None and verb in ("cancel", "advance")):
                text = "No item was chosen, or none of the group is left."
                return self._showing.message(400, "Nothing to do", text, _address(queue.name, verb, form))
            if not form.confirmed and (asked := await _ask(queue, verb, form)):
                back = _address(queue.name, verb, form)
                to, answers = f"/queues/{queue.name}/{verb}", {"yes": answer(verb, form.ids)}
                is_danger = verb != "redrive"
                return self._showing.ask(
                    Question(queue.name, [asked], to, answers, back, form.fields, is_danger, form.ids or ())
                )
            outcome = await ACTIONS[verb](queue, form)
        except ZkrqError as error:
            status = page_status(error)
            if not by_script:
                return self._showing.message(status, "It failed", str(error), _address(queue.name, verb, form))
            return HTMLResponse(self._showing.render("notice.html", text=str(error), failed=True), status)
        finally:
            self._watching.soon()
        say(tell(queue.name, outcome) + scope_of(form))
        if by_script:
            return HTMLResponse(self._showing.render("notice.html", text=tell(queue.name, outcome), failed=False))
        return RedirectResponse(_next_page(queue.name, verb, form, outcome), 303)

    async def change_settings(self, request: Request) -> Response:
        """Change the settings of a queue after a question, unless others have changed the same ones meanwhile."""
        if (queue := self.named(request)) is None:
            return self._showing.message(404, "Not found", NO_QUEUE)
        back = f"/queues/{queue.name}?tab=settings"
        try:
            change = settings_form.read(await request.body())
            if (asked := settings_form.question(queue.name, change)) is None:
                return RedirectResponse(back, 303)
            if not change.is_confirmed:
                to, fields = f"/queues/{queue.name}/settings", change.fields.items()
                return self._showing.ask(Question(queue.name, [asked], to, {"yes": "Change"}, back, fields))
            await write_settings(queue, change.wanted, differing(change.wanted, change.read), change.read)
        except ZkrqError as error:
            return self._showing.message(page_status(error), "Not changed", str(error), back)
        self._watching.soon()
        say(f"from {str(change.read) or 'the defaults'} to {str(change.wanted) or 'the defaults'}")
        return RedirectResponse(f"{back}&{Outcome('settings').query}", 303)

    async def editing(self, request: Request) -> Response:
        """Show the content of a dead letter as a form."""
        look, id = await self._watching.look(), request.query_params.get("id", "")
        if (queue := await self.existing(request, look)) is None:
            return self._showing.message(404, "Not found", NO_QUEUE)
        try:
            item = await get_item(queue, id)
        except ZkrqError as error:
            return self._showing.message(kind_of(error).status, "Not found out", str(error), f"/queues/{queue.name}")
        if item is None or item.state != "dead" or item.nested:
            return self._showing.message(404, "Not found", "No dead letter has that id.", f"/queues/{queue.name}")
        written = write(item.payload)
        if written.form != "json" or written.cut or len(item.payload) > EDIT_BYTES:
            text = f"Only JSON of at most {EDIT_BYTES:,} bytes can be edited here."
            return self._showing.message(400, "Not to be edited", text, _item_address(queue.name, id))
        return self._edit_form(queue.name, id, written.text)

    def _edit_form(
        self, queue: str, id: str, text: str, trouble: str = "", place: str = "", status: int = 200
    ) -> Response:
        """Return the form of an edited item.  ``trouble``: why what it was sent with, ``text``, was not taken;
        ``place``: where in it."""
        values = {"queue": queue, "id": id, "written": text, "trouble": trouble, "place": place}
        return self._showing.reply("edit.html", status, **values)

    async def edit(self, request: Request) -> Response:
        """Give a dead letter another content, and queue it again."""
        if (queue := self.named(request)) is None:
            return self._showing.message(404, "Not found", NO_QUEUE)
        fields = read_fields(await request.body(), EDIT_FIELDS_MAX) or {}
        id, text = (fields.get(name, [""])[0] for name in ("id", "item"))
        try:
            is_done = await queue.edit(id, compact(text).encode(), by=f"{CALLER.get().title}, on the page")
        except ZkrqError as error:
            return self._edit_form(queue.name, id, text, str(error), place_of(error), page_status(error))
        if not is_done:
            return self._edit_form(queue.name, id, text, tell(queue.name, Outcome("unedited")), status=409)
        self._watching.soon()
        outcome = Outcome("edited")
        say(f"{tell(queue.name, outcome)} ({id})")
        return RedirectResponse(f"{_item_address(queue.name, id)}&{outcome.query}", 303)

    async def _with_ids(self, queue: Queue[bytes], form: Form) -> Form:
        """Find the items of a form that names a group.  Raises ``Busy``, ``Unavailable``."""
        if form.ids is not None or form.group is None:
            return form
        letters = await self._letters(queue, form.error, form.after)
        chosen = in_group(letters.failed, form.by or BY_REASON, form.group)
        return form._replace(ids=tuple(each.item.id for each in chosen))

    # -- common ------------------------------------------------------------------------------------------------------

    def named(self, request: Request) -> Queue[bytes] | None:
        """Return the queue that the path names, None if nothing can have that name."""
        try:
            return self._queues[check_name("the queue's name", request.path_params["queue"])]
        except ConfigError:
            return None

    async def existing(self, request: Request, look: Look) -> Queue[bytes] | None:
        """Return the queue that the path names, None if the servers say that there is none."""
        queue = self.named(request)
        if queue is None or queue.name in look.queues or look.trouble:
            return queue
        try:
            async with asyncio.timeout(CONTENTS_SECONDS):
                return queue if queue.name in await self._cluster.queues() else None
        except (ZkrqError, TimeoutError):
            return queue

    def _live(self, request: Request, queue: Queue[bytes], fragment: str, stream: str, values: Any) -> Response:
        outcome = read_outcome(request.query_params)
        notice = tell(queue.name, outcome) if outcome else ""
        stream, up = f"/queues/{queue.name}/{stream}" if stream else "", queue.name if "name" in values else ""
        return self._showing.live(queue.name, "/", fragment, stream, up=up, notice=notice, **values)


def _sorted_letters(read: Letters, wish: Wish) -> dict[str, Any]:
    """Return what the page shows of dead letters: groups, and those of one of them, or all."""
    found = sorted_failed(read.failed, wish.by, wish.group, wish.most)
    return {**found, "grouped": len(read.failed), "next": read.next}


async def _ask(queue: Queue[bytes], verb: str, form: Form) -> str | None:
    """Return the question before an action, None if there is none.  Raises ``Unavailable``."""
    count = (await queue.statistics()).sizes.dead if form.ids is None else len(form.ids)
    return question(verb, count, form.ids, form.group)


def _item_address(queue: str, id: str) -> str:
    return f"/queues/{queue}/item?{urlencode({'id': id})}"


def _address(queue: str, verb: str, form: Form) -> str:
    """Return the address of the page from which a form was sent."""
    if verb in ("pause", "resume"):
        return f"/queues/{queue}"
    if verb == "cancel" and form.ids and len(form.ids) > 1:
        return f"/queues/{queue}"
    if form.ids and len(form.ids) == 1 and form.group is None and not form.by:
        return _item_address(queue, form.ids[0])
    return f"/queues/{queue}?{Wish('dead', by=form.by or BY_REASON, error=form.error).query()}"


def _next_page(queue: str, verb: str, form: Form, outcome: Outcome) -> str:
    """Return the address of the page that shows what an action has changed."""
    back = _address(queue, verb, form)
    if verb == "cancel":
        back = f"/queues/{queue}"
    elif verb == "discard" and "/item?" in back:  # there is no such item any more
        back = f"/queues/{queue}?{Wish('dead').query()}"
    return f"{back}{'&' if '?' in back else '?'}{outcome.query}"
