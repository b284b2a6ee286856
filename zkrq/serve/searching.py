"""Say what a search of the page asks for: its conditions as fields of a form, in an address, and in words.

The fields are made from the table of operations, so that a condition which `find` learns is on the page, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from zkrq.base.checks import check_id
from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.operations.items import CONDITIONS, FIND
from zkrq.operations.kinds import Choice, Moment

if TYPE_CHECKING:
    from zkrq.client.items import Item, ItemState
    from zkrq.client.queue import Queue
    from zkrq.operations.operation import Parameter

FOUND_SHOWN = 50
"""Items on a page of a search."""

SEARCH_SECONDS = 2.0
"""Seconds for which a page of a search is read if it is not full before; then its reader goes on."""

PARAMETERS: Sequence[Parameter] = (FIND.by_name["state"], *CONDITIONS)
"""What a search may ask for."""


class Field(NamedTuple):
    """A field of the form.  ``type``: of the input; ``words``: to choose from, instead of a text."""

    name: str
    label: str
    type: str
    words: Sequence[str] = ()
    example: str = ""


def _field(parameter: Parameter) -> Field:
    label = parameter.name.replace("_", " ").capitalize()
    match parameter.kind:
        case Choice(words=words):
            return Field(parameter.name, label, "", words)
        case Moment():
            return Field(parameter.name, f"{label} (UTC)", "datetime-local")
        case _:
            return Field(parameter.name, label, "search", example=parameter.example)


FIELDS: Sequence[Field] = [_field(each) for each in PARAMETERS]
"""The form, in its order."""


class Search(NamedTuple):
    """What is searched for.

    ``texts``: the fields of the form that are filled in; ``where``: the same as arguments of ``Queue.find_page``.
    """

    texts: Mapping[str, str]
    where: Mapping[str, Any]

    def query(self, **more: str) -> str:
        """Return the query of an address that asks for this."""
        return urlencode({**self.texts, **more})

    @property
    def words(self) -> str:
        """The conditions as people read them, empty: none."""
        return ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in self.texts.items())


def read_search(fields: Mapping[str, str]) -> Search:
    """Read a search from the query of an address, or from a form.  Raises ``ConfigError``."""
    texts = texts_in(fields)
    return Search(texts, {each.name: _value(each, texts[each.name]) for each in PARAMETERS if each.name in texts})


def texts_in(fields: Mapping[str, str]) -> Mapping[str, str]:
    """Return those fields of the form that are filled in."""
    return {each.name: text for each in PARAMETERS if (text := fields.get(each.name, "").strip())}


def _value(parameter: Parameter, text: str) -> Any:
    """Return the value of a field; a moment without a zone is one of UTC."""
    try:
        value = parameter.kind.parse(text)
    except ValueError as error:
        raise ConfigError(f"{parameter.name}: {text[:100]!r} {error}") from error
    if isinstance(parameter.kind, Moment) and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return parameter.kind.check(parameter.name, value)


class Found(NamedTuple):
    """Items of a page of a search.

    ``exact``: items with the text that is searched for as their id or key.  ``next``: where the search goes on, None:
    it is complete.  ``restarted``: items of the pages before may come again.
    """

    items: Sequence[Item[bytes]]
    next: str | None = None
    restarted: bool = False
    exact: Sequence[Item[bytes]] = ()


async def find(queue: Queue[bytes], search: Search, after: str = "") -> Found:
    """Read a page of a search: ``FOUND_SHOWN`` items, or those that are found within ``SEARCH_SECONDS``.

    ``after``: ``next`` of the page before, empty: the first page.  A text alone is looked up as an id and a key, too.
    Raises ``ConfigError``, ``Unavailable``.
    """
    found: dict[str, Item[bytes]] = {}
    restarted = False
    exact = () if after or {*search.texts} != {"text"} else await _exact(queue, search.texts["text"])
    end, cursor = asyncio.get_running_loop().time() + SEARCH_SECONDS, after or None
    while True:
        try:
            page = await queue.find_page(**search.where, limit=FOUND_SHOWN - len(found), after=cursor)
        except ZkrqError:
            if not found:
                raise
            break  # its reader goes on from here
        found |= {item.id: item for item in page.items}
        cursor, restarted = page.next, restarted or page.restarted
        if cursor is None or len(found) == FOUND_SHOWN or asyncio.get_running_loop().time() >= end:
            break
    return Found([*found.values()], cursor, restarted, exact)


async def _exact(queue: Queue[bytes], text: str) -> Sequence[Item[bytes]]:
    """Return the item with this id, and those with this key, but for dead letters.  Raises ``Unavailable``."""
    try:
        check_id("id", text)
    except ConfigError:  # nothing can have that id, or that key
        return ()
    states: Sequence[ItemState] = ("ready", "scheduled", "claimed")
    item = await queue.get(text)
    keyed = [each for state in states async for each in queue.find(key=text, state=state)]
    return [*{each.id: each for each in ([item] if item else []) + keyed}.values()]
