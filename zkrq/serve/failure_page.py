"""The page of failures: what failed in all queues, in groups; and what can be done about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from starlette.responses import RedirectResponse

from zkrq.base.checks import check_id, check_name
from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.client.administration import Cancellation
from zkrq.client.texts import show_count
from zkrq.serve.actions import Outcome, read_fields, read_outcome, tell
from zkrq.serve.audit import say
from zkrq.serve.contents import read_count
from zkrq.serve.failing import KINDS, READ_MAX, Kind, Reading, read_failed
from zkrq.serve.letters import BY_REASON, in_group, sorted_failed
from zkrq.serve.problems import kind_of
from zkrq.serve.showing import Question

if TYPE_CHECKING:
    from fastapi import APIRouter, Request, Response

    from zkrq.client.queue import Queue
    from zkrq.serve.contents import Searches
    from zkrq.serve.queues import Queues
    from zkrq.serve.showing import Showing
    from zkrq.serve.watching import Watching

PATH = "/failures"

FIELDS_MAX = READ_MAX + 20
"""Fields of a form: all items that are read, and the few others; one with more is refused."""

TEXT_MAX = 200
"""Characters of a text that is looked for in reasons."""


class Wish(NamedTuple):
    """What somebody wants to see of failures.

    ``by``: the property by which they are grouped; ``group``: the group that is shown, None: all.  ``queue``: of this
    queue only, empty: of all; ``kind``: None: both; ``error``: a text in their reasons, empty: any.  ``most``: items
    that are shown.
    """

    by: str = BY_REASON
    group: str | None = None
    queue: str = ""
    kind: Kind | None = None
    error: str = ""
    most: int = 50

    @property
    def carried(self) -> Mapping[str, str]:
        """What a form says beside the group: which items were read."""
        known = (("queue", self.queue), ("kind", self.kind), ("error", self.error))
        return {name: value for name, value in known if value}

    def query(self, **changes: object) -> str:
        """The query of an address that shows this, with changes."""
        new = self._replace(**changes)  # pyright: ignore[reportArgumentType]
        fields: dict[str, object] = dict(new.carried)
        usual = {"by": BY_REASON, "group": None, "most": Wish().most}
        fields |= {name: value for name, unset in usual.items() if (value := getattr(new, name)) != unset}
        if "most" in fields:
            fields["count"] = fields.pop("most")
        return urlencode(fields)


def read_wish(query: Mapping[str, str]) -> Wish:
    """Read a wish from the query of an address, or a form; what cannot be understood is as usual."""
    return Wish(
        query.get("by") or BY_REASON,
        query.get("group"),
        query.get("queue", ""),
        KINDS.get(query.get("kind", "")),
        query.get("error", "").strip()[:TEXT_MAX],
        read_count(query.get("count", "")),
    )


class Chosen(NamedTuple):
    """An item that a form names, and its state when the form was made."""

    state: str
    queue: str
    id: str

    @property
    def text(self) -> str:
        """As a field of the form has it: no state and no queue has a space in its name."""
        return " ".join(self)

    @classmethod
    def read(cls, text: str) -> Chosen | None:
        """Read a field, None if it names no item."""
        state, _, rest = text.partition(" ")
        queue, _, id = rest.partition(" ")
        try:
            return cls(state, check_name("the queue's name", queue), check_id("id", id))
        except ConfigError:
            return None


async def _retry(queue: Queue[bytes], dead: Sequence[str], waiting: Sequence[str]) -> int:
    redriven = await queue.redrive(dead) if dead else 0
    return redriven + (await queue.advance(waiting) if waiting else 0)


async def _remove(queue: Queue[bytes], dead: Sequence[str], waiting: Sequence[str]) -> int:
    discarded = await queue.discard(dead) if dead else 0
    outcomes = await queue.cancel_many(waiting) if waiting else []
    return discarded + len(outcomes) - outcomes.count(Cancellation.NOT_FOUND)


ACTIONS: Mapping[str, Callable[[Queue[bytes], Sequence[str], Sequence[str]], Awaitable[int]]] = {
    "retry": _retry,
    "remove": _remove,
}
"""What the buttons do with dead letters and with items that wait, by the last word of their path."""

QUESTIONS: Mapping[str, str] = {
    "retry": "Have {items} be ready now: {dead}, and {waiting} for a retry?",
    "remove": "Remove {items}: {dead}, and {waiting} for a retry? This cannot be undone.",
}

BUTTONS = (("retry", "Retry now", ""), ("remove", "Remove", "danger"))
"""Of the groups and of chosen items: the word of the path, the text, the class."""


class FailurePage:
    """Answer browsers about failures."""

    def __init__(self, queues: Queues, watching: Watching, showing: Showing, searches: Searches) -> None:
        self._queues = queues
        self._watching = watching
        self._showing = showing
        self._searches = searches

    def add_to(self, router: APIRouter) -> None:
        """Add the page and its actions, with their paths."""
        router.add_route(PATH, self.page)
        router.add_route(f"{PATH}/{{verb}}", self.act, ["POST"])

    async def page(self, request: Request) -> Response:
        """Show what failed."""
        wish, look = read_wish(request.query_params), await self._watching.look()
        try:
            reading = await self._read(wish)
        except ZkrqError as error:  # too many read at the same time
            reading = Reading((), (), str(error))
        values: dict[str, Any] = {
            "wish": wish,
            "reading": reading,
            "names": sorted({*look.queues, *([wish.queue] if wish.queue else [])}),
            **sorted_failed(reading.failed, wish.by, wish.group, wish.most),
            "buttons": BUTTONS,
            "notice": tell("", outcome) if (outcome := read_outcome(request.query_params)) else "",
        }
        return self._showing.reply("failures.html", **values)

    async def act(self, request: Request) -> Response:
        """Do what a button says, after a question that says how many items it concerns."""
        verb = request.path_params["verb"]
        if verb not in ACTIONS:
            return self._showing.message(404, "Not found", "There is no such action.")
        if (fields := read_fields(await request.body(), FIELDS_MAX)) is None:
            return self._showing.message(400, "Too many fields", "The form has too many fields.", PATH)
        wish = read_wish({name: values[0] for name, values in fields.items()})
        back = f"{PATH}?{wish.query(group=None)}"
        try:
            chosen = list(filter(None, map(Chosen.read, dict.fromkeys(fields.get("id", ())))))
            if "id" not in fields and "chosen" not in fields and wish.group is not None:
                failed = in_group((await self._read(wish)).failed, wish.by, wish.group)
                chosen = [Chosen(each.item.state, each.queue, each.item.id) for each in failed]
            if not chosen:
                text = "No item was chosen, or none of the group is left."
                return self._showing.message(400, "Nothing to do", text, back)
            if fields.get("confirmed") != ["yes"]:
                return self._showing.ask(_ask(verb, wish, chosen, back))
            changed = await self._change(verb, chosen)
        except ZkrqError as error:
            return self._showing.message(kind_of(error).status, "It failed", str(error), back)
        finally:
            self._watching.soon()
        outcome = Outcome(verb, changed, len(chosen))
        say(tell("", outcome))
        joint = "" if back.endswith("?") else "&"
        return RedirectResponse(f"{back}{joint}{outcome.query}", 303)

    async def _read(self, wish: Wish) -> Reading:
        """Read what a wish is about.  Raises ``Busy``."""
        look = await self._watching.look()
        sizes = {name: each.sizes for name, each in look.queues.items() if wish.queue in ("", name)}
        with self._searches.one_more():
            reading = await read_failed(self._queues, sizes, wish.kind, wish.error)
        return reading._replace(trouble=reading.trouble or look.trouble)

    async def _change(self, verb: str, chosen: Sequence[Chosen]) -> int:
        """Do it in one queue after the other; return how many items were changed.

        Raises ``Unavailable``, ``OutcomeUnknown``: some may be changed; the rest stay as they are.
        """
        changed = 0
        for name in dict.fromkeys(each.queue for each in chosen):
            own = [each for each in chosen if each.queue == name]
            dead = [each.id for each in own if each.state == "dead"]
            changed += await ACTIONS[verb](self._queues[name], dead, [each.id for each in own if each.state != "dead"])
        return changed


def _ask(verb: str, wish: Wish, chosen: Sequence[Chosen], back: str) -> Question:
    dead = sum(each.state == "dead" for each in chosen)
    waiting = len(chosen) - dead
    asked = QUESTIONS[verb].format(
        items=show_count(len(chosen), "item"),
        dead=show_count(dead, "dead letter"),
        waiting=f"{waiting:,} that {'waits' if waiting == 1 else 'wait'}",
    )
    text, is_danger = next((text, bool(kind)) for name, text, kind in BUTTONS if name == verb)
    answers = {"yes": f"{text}: {show_count(len(chosen), 'item')}"}
    fields = [*(("id", each.text) for each in chosen), ("by", wish.by), *wish.carried.items()]
    named = [f"{each.id} of {each.queue}" for each in chosen]
    return Question("Failures", [asked], f"{PATH}/{verb}", answers, back, fields, is_danger, named, PATH)
