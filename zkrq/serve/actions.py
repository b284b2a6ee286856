"""Do what the buttons of the page say, after a question where something is removed or many items are changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, urlencode

from zkrq.base.errors import ConfigError
from zkrq.client.administration import Cancellation
from zkrq.client.texts import show_count

if TYPE_CHECKING:
    from zkrq.client.queue import Queue

FIELDS_MAX = 2_000
"""Fields of a form; a form with more is refused."""


PAUSES: Mapping[int, str] = {
    0: "until resumed",
    900: "for 15 min",
    3600: "for 1 h",
    4 * 3600: "for 4 h",
    86400: "for 1 day",
    7 * 86400: "for 7 days",
}
"""How long a pause lasts that is begun on the page, in seconds, and what that is called."""


IDS_TOLD = 3
"""Items of an action that the record names."""


class Form(NamedTuple):
    """What a form was sent with.

    ``ids``: of the items that were chosen, None: all dead letters.  ``by``, ``group``: the dead letters that have this
    in common, instead; see ``letters``.  ``confirmed``: whether the question was answered.
    ``error``, ``after``: which dead letters were read to find the group; see ``failing``.  ``seconds``: of ``PAUSES``,
    how long a pause lasts, 0: until the queue is resumed; ``until``: the moment at which it ends, instead, as a field
    of a form has it, in UTC, empty: none.
    """

    ids: tuple[str, ...] | None = None
    by: str = ""
    group: str | None = None
    confirmed: bool = False
    error: str = ""
    after: str = ""
    seconds: int = 0
    until: str = ""

    @property
    def fields(self) -> Sequence[tuple[str, str]]:
        """The form, to be sent again with the answer to a question."""
        group = [] if self.group is None else [("group", self.group)]
        texts = [(name, text) for name, text in (("by", self.by), ("error", self.error)) if text]
        return [*(("id", id) for id in self.ids or ()), *group, *texts]


class Outcome(NamedTuple):
    """What an action has done.  ``code``: of ``OUTCOMES``; ``changed``: items; ``asked``: items that were chosen."""

    code: str
    changed: int = 1
    asked: int = 1

    @property
    def query(self) -> str:
        """The outcome as a part of the query of an address."""
        return urlencode({"done": self.code, "count": self.changed, "asked": self.asked})


OUTCOMES: Mapping[str, str] = {
    "pause": "{queue} is paused: nothing more is claimed, and pushes continue.",
    "pause-for": "{queue} is paused, and goes on by itself; pushes continue.",
    "resume": "{queue} is resumed.",
    "settings": "The settings of {queue} are changed, for all programs.",
    "redrive": "{letters} of {queue} redriven.",
    "discard": "{letters} of {queue} discarded.",
    "advance": "{items} of {queue} ready now.",
    "cancel": "The item is cancelled.",
    "signalled": "The item is cancelled, and the process that works on it is told to stop.",
    "cancelled": "{items} of {queue} cancelled; processes that worked on any are told to stop.",
    "retry": "{items} ready now.",
    "remove": "{items} removed.",
    "edited": "The item is redriven, with its new content.",
    "unedited": "The item is not redriven: it is no dead letter, or another item has its key.",
    "missing": "No item has that id: it was never pushed, or it is done.",
}
"""What the page says after an action, by a code that an address may have."""


_NO_LETTERS = "no dead letters any more, or their key belongs to another item"
LEFT: Mapping[str, str] = {
    "redrive": _NO_LETTERS,
    "discard": _NO_LETTERS,
    "retry": "no longer waiting, or their key belongs to another item",
    "remove": "gone already",
}
"""What those are that an action has not changed."""


def read_fields(body: bytes, most: int) -> Mapping[str, Sequence[str]] | None:
    """Return the values of a form's fields by name, None if it has more than ``most`` fields."""
    try:
        return parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=most)
    except ValueError:
        return None


def read_form(body: bytes) -> Form | None:
    """Read a form, None if it has too many fields.  One without any of its fields means all dead letters."""
    if (fields := read_fields(body, FIELDS_MAX)) is None:
        return None
    first = {name: values[0] for name, values in fields.items()}
    ids = tuple(dict.fromkeys(fields["id"])) if "id" in fields else None
    if ids is None and "chosen" in first:
        ids = ()  # of the form with boxes to tick, none of which was
    confirmed = first.get("confirmed") == "yes"
    seconds = next((each for each in PAUSES if str(each) == first.get("seconds")), 0)
    names = (first.get("by", ""), first.get("group"), confirmed, first.get("error", ""), first.get("after", ""))
    return Form(ids, *names, seconds, first.get("until", ""))


def scope_of(form: Form) -> str:
    """Say for the record what an action was for, in brackets: the first items, or how long a pause lasts."""
    told = [*(form.ids or ())[:IDS_TOLD], *(["and further ones"] if len(form.ids or ()) > IDS_TOLD else ())]
    if form.until:
        told.append(f"until {form.until} UTC")
    elif form.seconds:
        told.append(PAUSES[form.seconds])
    return f" ({', '.join(told)})" if told else ""


def tell(queue: str, outcome: Outcome) -> str:
    """Say what was done."""
    counts = {noun: show_count(outcome.changed, name) for noun, name in (("letters", "dead letter"), ("items", "item"))}
    text = OUTCOMES[outcome.code].format(queue=queue, **counts)
    left = outcome.asked - outcome.changed
    if outcome.code not in LEFT or left <= 0:
        return text
    return f"{text} {left:,} of those chosen were {LEFT[outcome.code]}."


NUMBER_DIGITS = 11
"""Digits of a number that an address or a form may have."""


def read_number(text: str) -> int | None:
    """Read a number of an address or a form, None if it is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS else None


def read_outcome(query: Mapping[str, str]) -> Outcome | None:
    """Read an outcome from the query of an address, None if there is none that can be understood."""
    count, asked = read_number(query.get("count", "1")), read_number(query.get("asked", "1"))
    code = query.get("done", "")
    return None if code not in OUTCOMES or count is None or asked is None else Outcome(code, count, asked)


def question(verb: str, count: int, ids: Sequence[str] | None, group: str | None = None) -> str | None:
    """Return what is asked before an action; None: nothing is.

    ``ids``: of the items that are changed, None: all dead letters, of which there are ``count``.  ``group``: what these
    have in common, None if they were chosen one by one.
    """
    letters = _name_letters(count, ids, group)
    match verb:
        case "cancel":
            items = f"these {count:,} items" if count > 1 else "this item"
            return f"Cancel {items}? This cannot be undone."
        case "discard":
            return f"Discard {letters}? This cannot be undone."
        case "redrive" if ids is None or group is not None or len(ids) > 1:
            return f"Redrive {letters}?"
        case _:
            return None


def answer(verb: str, ids: Sequence[str] | None) -> str:
    """Return the text of the button that answers such a question: not the word alone, because "Cancel" alone is what
    other programs call the way back."""
    noun = "item" if verb == "cancel" else "dead letter"
    named = f"all {noun}s" if ids is None else show_count(len(ids), noun) if len(ids) > 1 else f"the {noun}"
    return f"{verb.capitalize()} {named}"


def _name_letters(count: int, ids: Sequence[str] | None, group: str | None) -> str:
    if ids is None:
        return "the one dead letter" if count == 1 else f"all {count:,} dead letters"
    if group is not None:
        return f"{show_count(len(ids), 'dead letter')} of “{group or 'none'}”"
    return "this dead letter" if len(ids) == 1 else f"the {len(ids):,} dead letters that you chose"


async def _pause(queue: Queue[bytes], form: Form) -> Outcome:
    if form.until and form.seconds:
        raise ConfigError("a pause lasts for a time, or until a moment, not both; nothing was changed")
    if form.until:
        try:
            until = datetime.fromisoformat(form.until).replace(tzinfo=UTC)
        except ValueError as error:
            raise ConfigError("the end of a pause must be a day and a time, such as 2040-01-31T07:00") from error
        await queue.pause(until=until)
    else:
        await queue.pause(seconds=form.seconds or None)
    return Outcome("pause-for" if form.until or form.seconds else "pause")


async def _resume(queue: Queue[bytes], form: Form) -> Outcome:
    await queue.resume()
    return Outcome("resume")


async def _redrive(queue: Queue[bytes], form: Form) -> Outcome:
    done = await queue.redrive(form.ids)
    return Outcome("redrive", done, done if form.ids is None else len(form.ids))


async def _discard(queue: Queue[bytes], form: Form) -> Outcome:
    done = await queue.discard(form.ids)
    return Outcome("discard", done, done if form.ids is None else len(form.ids))


async def _advance(queue: Queue[bytes], form: Form) -> Outcome:
    ids = form.ids or ()
    return Outcome("advance", await queue.advance(ids), len(ids))


async def _cancel(queue: Queue[bytes], form: Form) -> Outcome:
    ids = form.ids or ()
    if len(ids) > 1:
        outcomes = await queue.cancel_many(ids)
        return Outcome("cancelled", len(ids) - outcomes.count(Cancellation.NOT_FOUND), len(ids))
    found = Cancellation.NOT_FOUND
    for id in ids:
        found = await queue.cancel(id)
    codes = {Cancellation.REMOVED: "cancel", Cancellation.SIGNALLED: "signalled", Cancellation.NOT_FOUND: "missing"}
    return Outcome(codes[found])


ACTIONS: Mapping[str, Callable[[Queue[bytes], Form], Awaitable[Outcome]]] = {
    "pause": _pause,
    "resume": _resume,
    "redrive": _redrive,
    "discard": _discard,
    "advance": _advance,
    "cancel": _cancel,
}
"""What the buttons do, by the last word of their path."""
