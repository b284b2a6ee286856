"""Make copies of items: of a dead letter for another queue, or from lines of JSON that were written before.

A copy has an id from which it is known when it is made again, so neither a move nor an import makes doubles.  An item
that is exported keeps its id if its producer chose it.  An id that zkrq made carries the time of the push, and servers
refuse it as late afterwards, so the id of the copy is made of it.  What handlers have saved of an item goes with it.
"""

from __future__ import annotations

import itertools
import json
import re
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from zkrq.base import clock
from zkrq.base.codecs import JSON
from zkrq.base.errors import CodecError, ConfigError
from zkrq.base.ids import MARK, id_of_copy
from zkrq.base.saved import SAVED_BYTES, decode
from zkrq.client.changing import from_value
from zkrq.operations.items import ITEM
from zkrq.operations.settings import STORED

if TYPE_CHECKING:
    from zkrq.base.limits import QueueSettings
    from zkrq.client.items import Item
    from zkrq.client.queue import Queue

_PUSHED = (
    "id",
    "item",
    "base64",
    "state",
    "key",
    "group",
    "headers",
    "priority",
    "due_at",
    "expires_at",
    "saved",
    "task",
)
_TOLD = ("pushed_at", "order", "attempts", "failures", "reason", "died_at", "last_failures")
"""What a line says of an item that its copy does not keep."""


def id_of_moved(queue: str, letter: Item[Any]) -> str:
    """Return the id of a letter's copy; another one if the letter's id is used again."""
    return id_of_copy("moved", queue, letter.id, f"{round(letter.pushed_at.timestamp() * 1000):x}")


def exported(item: Item[bytes]) -> dict[str, Any]:
    """Return the line of an item."""
    now = clock.now()
    due_at = now + timedelta(seconds=item.seconds_left or 0) if item.state == "scheduled" else None
    expires_at = None if item.expires_in is None else now + timedelta(seconds=item.expires_in)
    told = {
        **ITEM.tell(item),
        **_content(item.payload),
        "due_at": due_at and due_at.isoformat(),
        "expires_at": expires_at and expires_at.isoformat(),
    }
    if not any(failure.at for failure in item.last_failures):
        del told["last_failures"]  # the reason says it all, and the line is one that former releases import
    del told["saved"]  # as the servers keep it; without any, the line is one that former releases import
    if item.saved_bytes is not None:
        told["saved"] = b64encode(item.saved_bytes).decode()
    if item.task is None:
        del told["task"]  # nor is a line without one unknown to them
    return {name: told[name] for name in (*_PUSHED, *_TOLD) if name in told}


async def each_exported(queue: Queue[bytes], where: Mapping[str, Any]) -> AsyncGenerator[Item[bytes]]:
    """Iterate over the items that an export has: those that meet the conditions, or all of one state, or all.

    A flow is not exported, and so is what stands for it.  Raises as ``Queue.find`` does.
    """
    items = queue.find(**where) if where.keys() - {"state"} else queue.scan(where.get("state"))
    async with aclosing(items):
        async for item in items:
            if item.nested is None:
                yield item


def _content(payload: bytes) -> dict[str, Any]:
    """Return a payload as a value of JSON only if that becomes the same bytes again."""
    try:
        value = JSON.decode(payload)
        if JSON.encode(value) == payload:
            return {"item": value}
    except (ValueError, RecursionError, CodecError):
        pass
    return {"base64": b64encode(payload).decode()}


LEAST_TTL = 0.001
"""Seconds that an item lives whose time to live ends while it is pushed."""


class Copy(NamedTuple):
    """An item to push.  ``due_at`` None: immediately, ``expires_at`` None: never; ``options``: the others of a push.

    ``order``: by which items of a group follow one another: in milliseconds since 1970 their place, where they kept an
    order, else the moment of their push; then the numbers in their id, if zkrq made it.  ``saved``: all that was saved
    of the item, None: nothing.
    """

    payload: bytes
    id: str | None
    state: str
    due_at: datetime | None
    expires_at: datetime | None
    options: dict[str, Any]
    order: tuple[float, ...] = ()
    saved: bytes | None = None

    @property
    def is_over(self) -> bool:
        """Whether its time to live ends before it could be delivered."""
        return self.expires_at is not None and self.expires_at <= max(clock.now(), self.due_at or clock.now())

    @property
    def ttl(self) -> float | None:
        """Seconds from now until it expires."""
        return None if self.expires_at is None else max(LEAST_TTL, (self.expires_at - clock.now()).total_seconds())


def exported_settings(queue: str, settings: QueueSettings) -> dict[str, Any]:
    """Return the line of a queue's settings."""
    return {"queue": queue, "settings": STORED.tell(settings)}


def imported_settings(text: bytes) -> QueueSettings | None:
    """Read a line of settings; return None for any other line.  Raises ``ConfigError``."""
    if b'"settings"' not in text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    fields = cast("dict[str, Any]", value if isinstance(value, dict) else {})
    if fields.keys() != {"queue", "settings"}:
        return None
    try:
        return from_value(fields["settings"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"the settings of queue {fields['queue']!r} are not of this release: {error!r}") from error


def imported(text: bytes, where: str) -> Copy:
    """Read a line.  ``where``: how an error calls it.  Raises ``ConfigError``."""
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise TypeError("a JSON object is expected")
        fields = cast("dict[str, Any]", value)
        if unknown := fields.keys() - {*_PUSHED, *_TOLD}:
            raise ValueError(f"unknown field {min(unknown)!r}")
        if ("item" in fields) == ("base64" in fields):
            raise ValueError("exactly one of item and base64 is expected")
        payload = b64decode(fields["base64"], validate=True) if "base64" in fields else JSON.encode(fields["item"])
        due_at, expires_at = (_moment(fields.get(name)) for name in ("due_at", "expires_at"))
        id = fields.get("id")
        options: dict[str, Any] = {
            "key": fields.get("key"),
            "group": fields.get("group"),
            "priority": fields.get("priority", 0),
            "headers": fields.get("headers") or {},
            "task": fields.get("task"),
        }
        order = fields.get("order")
        if order is None and (pushed_at := _moment(fields.get("pushed_at"))):
            order = pushed_at.timestamp() * 1000
        state = str(fields.get("state", "ready"))
        numbers = (int(part, 16) for part in re.findall("[0-9a-f]+", _number_part(id)))
        place = float(order or 0), *numbers
        saved = _saved(fields.get("saved"))
        return Copy(payload, _id_of_import(id), state, due_at, expires_at, options, place, saved)
    except (ValueError, TypeError, RecursionError, CodecError) as error:
        raise ConfigError(f"{where} is not a line of `zkrq export`: {error}") from error


def in_sequence(copies: Iterable[Copy], at_once: int) -> Iterator[list[Copy]]:
    """Yield copies that may be pushed together, at most so many: of each group one at a time, in the order that its
    items had.  Those without a group are a group here."""
    groups = dict[str | None, deque[Copy]]()
    for copy in sorted(copies, key=lambda copy: copy.order):
        groups.setdefault(copy.options["group"], deque()).append(copy)
    while groups:
        some = list(itertools.islice(groups, at_once))
        yield [groups[name].popleft() for name in some]
        for name in some:
            if left := groups.pop(name):
                groups[name] = left


def _number_part(id: Any) -> str:
    """Return what an id that zkrq made has behind its mark, empty for others."""
    return id[len(MARK) :] if isinstance(id, str) and id.startswith(MARK) else ""


def _id_of_import(id: Any) -> str | None:
    if isinstance(id, str) and id.startswith(MARK):
        return id_of_copy("imported", id)
    return id


def _saved(text: Any) -> bytes | None:
    """Read what was saved.  Raises ``ValueError``, ``TypeError``, ``CodecError``."""
    if text is None:
        return None
    found = b64decode(text, validate=True)
    if len(found) > SAVED_BYTES:
        raise ValueError(f"{len(found)} bytes were saved of the item, at most {SAVED_BYTES} are kept")
    decode(found)
    return found


def _moment(text: Any) -> datetime | None:
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment
