"""Refuse bad input with a clear error, before anything is written."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeAlias

from zkrq.base.errors import ConfigError
from zkrq.protocol.levels import AtLevel, missing

Duration: TypeAlias = float | timedelta
"""Seconds, or a ``timedelta``."""

MAX_NAME = 128
"""Characters in the name of a queue or a namespace."""

MAX_ID = 128
"""Bytes in an item's id."""

MAX_HEADERS = 4096
"""Bytes of an item's headers in UTF-8, names included."""

MAX_GROUP = 200
"""Bytes of a group's name in UTF-8."""

MAX_TASK = 100
"""Characters in the name of a task."""

TASK_HEADER = "zkrq-task"
"""Name of the header in which an item's task is stored; no header of a user may have it."""

MAX_GROUPS = 100
"""Groups that one call returns."""

MAX_CURSOR = 60_000
"""Characters of the text that says where a search goes on."""

Headers: TypeAlias = Mapping[str, str]
"""Short texts beside an item, by name."""


MAX_DURATION = 10 * 366 * 86400.0
"""Seconds, about ten years: the most that the order of the ready items can represent."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-]*")


def check_name(what: str, name: str, *, most: int = MAX_NAME) -> str:
    """Return the name of a queue, a namespace or the like: 1 to ``most`` letters, digits and ``_ . : -``."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{what} must be a str, not {type(name).__name__}")
    if len(name) > most or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what} is {name[:MAX_NAME]!r}: must be 1 to {most} letters (A-Z, a-z), digits, '_', '.', ':' or '-', "
            "beginning with a letter, a digit or '_'"
        )
    return name


def check_id(what: str, id: str) -> str:
    """Return the id of an item or a server: printable text without spaces at its ends, at most 128 bytes in UTF-8."""
    if not isinstance(id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{what} must be a str, not {type(id).__name__}")
    if not id or not id.isprintable() or id != id.strip():
        raise ConfigError(f"{what} is {id[:MAX_ID]!r}: must be printable text, not empty, without spaces at its ends")
    size = len(id.encode(errors="replace"))
    if size > MAX_ID:
        raise ConfigError(f"{what} has {size} bytes, at most {MAX_ID} are allowed")
    return id


def check_feature(feature: AtLevel, level: int) -> None:
    """Raise ``ConfigError`` if this level, the active one, lacks a feature; nothing was written."""
    if why := missing(feature, level):
        raise ConfigError(f"{feature.value[0]}: {why}")


def check_group(what: str, group: str) -> str:
    """Return the name of a group: any text of 1 to 200 bytes in UTF-8 without a zero byte.  Raises ``ConfigError``."""
    if not isinstance(group, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{what} must be a str, not {type(group).__name__}")
    try:
        size = len(group.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} cannot be encoded as UTF-8: {error}") from error
    if not group or "\0" in group:
        raise ConfigError(f"{what} is {group!r:.100}: must not be empty, nor have a zero byte")
    if size > MAX_GROUP:
        raise ConfigError(f"{what} has {size} bytes, at most {MAX_GROUP} are allowed")
    return group


def check_task(what: str, task: str) -> str:
    """Return the name of a task: 1 to 100 letters, digits and ``_ . : -``.  Raises ``ConfigError``."""
    return check_name(what, task, most=MAX_TASK)


def task_of(headers: Headers) -> str | None:
    """Return the task among stored headers; None: there is none, or another program wrote what names no task."""
    return as_task(headers.get(TASK_HEADER))


def as_task(name: object) -> str | None:
    """Return a name, of a framework for instance, if a task may have it; None: it may not."""
    return name if isinstance(name, str) and len(name) <= MAX_TASK and _NAME.fullmatch(name) else None


def without_task(headers: Headers) -> Headers:
    """Return stored headers without that of the task, as they were pushed."""
    return {name: text for name, text in headers.items() if name != TASK_HEADER}


def check_headers(headers: Headers) -> Headers:
    """Return headers: texts by name, of at most 4096 bytes together, none under the name that is kept for tasks."""
    if not isinstance(headers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"headers must be a mapping of str to str, not {type(headers).__name__}")
    size = 0
    for part in (*headers, *headers.values()):
        if not isinstance(part, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"headers must be of str to str, not {type(part).__name__}: {part!r:.100}")
        try:
            size += 2 + len(part.encode())
        except UnicodeEncodeError as error:
            raise ConfigError(f"headers cannot be encoded as UTF-8: {error}") from error
    if size > MAX_HEADERS:
        raise ConfigError(f"headers have {size} bytes, at most {MAX_HEADERS} are allowed")
    if TASK_HEADER in headers:
        raise ConfigError(f"the header {TASK_HEADER!r} is kept for the item's task: give task='welcome' in its place")
    return dict(headers)


def in_seconds(value: Duration) -> float:
    """Convert a ``timedelta`` to seconds; seconds stay as they are, unchecked."""
    return value.total_seconds() if isinstance(value, timedelta) else value


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")

_DURATION = re.compile(rf"(?:{_WITH_UNIT.pattern})+")


def read_duration(text: str) -> float:
    """Read seconds, such as ``90`` or ``0.5``, or numbers with units: ``12h``, ``30m``, ``2d``, ``1h30m``, ``500ms``.

    The result may be any number, since callers have bounds of their own.  Raises ``ValueError``, which says what the
    word must be.
    """
    if _DURATION.fullmatch(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _WITH_UNIT.findall(text))
    try:
        return float(text)
    except ValueError as error:
        raise ValueError("must be seconds, such as 3600 or 1h30m") from error


def number_of_seconds(what: str, value: Duration) -> float:
    """Return a number of seconds of any size, which may be a ``timedelta``."""
    value = in_seconds(value)
    if isinstance(value, bool) or not isinstance(value, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{what} must be seconds or a timedelta, not {type(value).__name__}")
    return value


def check_duration(what: str, value: Duration, *, positive: bool = False) -> float:
    """Return seconds that are not negative (``positive``: nor 0) and at most ten years."""
    value = number_of_seconds(what, value)
    if not 0 <= value <= MAX_DURATION or (positive and value == 0):  # NaN fails the first comparison
        least = "more than 0" if positive else "at least 0"
        raise ConfigError(f"{what} is {value} s: must be {least} and at most {MAX_DURATION:.0f} s")
    return float(value)


MIN_LEASE = 0.05
"""Seconds; a shorter claim would expire before it is handed out."""

MAX_LEASE = 30 * 86400.0
"""Seconds; extend a claim to hold it for longer."""


def check_lease(what: str, value: Duration) -> float:
    """Return the seconds of a claim: 0.05 s to 30 days."""
    seconds = check_duration(what, value)
    if not MIN_LEASE <= seconds <= MAX_LEASE:
        raise ConfigError(f"{what} is {seconds} s: must be at least {MIN_LEASE} and at most {MAX_LEASE:.0f} s")
    return seconds


def check_moment(what: str, value: datetime) -> datetime:
    """Return a moment that has a time zone; one without (a *naive* datetime) is ambiguous."""
    if not isinstance(value, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{what} must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise ConfigError(f"{what} is {value}: give it a time zone, e.g. {value.isoformat()}+00:00 for UTC")
    return value


def check_rate(what: str, value: float) -> float:
    """Return a rate per second that is greater than 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{what} must be a number per second, not {type(value).__name__}")
    if not 0 < value < math.inf:  # nor NaN
        raise ConfigError(f"{what} is {value}: must be more than 0 per second")
    return value


def check_rate_in(
    what: str, value: tuple[int, Duration], *, most: int, within: tuple[float, float]
) -> tuple[int, float]:
    """Return a number in a time, of 1 to ``most`` in seconds ``within`` two bounds, in whole milliseconds."""
    if not isinstance(value, tuple | list) or len(value) != 2:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{what} is {value!r}: must be a number and seconds, e.g. (50, 1.0)")
    count = check_count(f"the number in {what}", value[0], least=1, most=most)
    seconds, (shortest, longest) = check_duration(f"the time of {what}", value[1]), within
    if not shortest <= seconds <= longest:
        raise ConfigError(
            f"the time of {what} is {seconds:g} s: must be at least {shortest:g} and at most {longest:g} s"
        )
    return count, round(seconds, 3)


def check_text(what: str, value: str) -> str:
    """Return a text."""
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{what} must be a str, not {type(value).__name__}")
    return value


def check_items(items: Iterable[object]) -> None:
    """Check that a call that takes many items was not given one: a mapping or a text is an iterable, too."""
    kind: type[object] = type(items)
    if issubclass(kind, Mapping | str | bytes | bytearray | memoryview):
        raise ConfigError(
            f"push_many takes an iterable of items, not a {kind.__name__}, to be pushed piece by piece: "
            "give push_many([item]), or push(item)"
        )


def check_login(what: str, login: tuple[str, str], *, nameless: bool = False) -> tuple[str, str]:
    """Return a user and a password; ``nameless``: the user may be empty.  An error text does not quote them."""
    pair = isinstance(login, tuple | list) and len(login) == 2  # pyright: ignore[reportUnnecessaryIsInstance]
    if not pair or not all(isinstance(part, str) for part in login):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{what} must be a user and a password, as a tuple of two str")
    user, password = login
    if (not user and not nameless) or ":" in user:
        raise ConfigError(f"the user of {what} must not be empty nor contain a colon")
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in user + password):
        raise ConfigError(f"{what} cannot be encoded as UTF-8")
    return user, password


def check_kind(what: str, value: object, kind: type) -> None:
    """Check that the value is of this class, or None."""
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{what} must be a {kind.__name__}, not {type(value).__name__}")


def check_posix(what: str) -> None:
    """Check that this is not Windows, where processes have no groups and few signals."""
    if not hasattr(os, "killpg"):
        raise ConfigError(f"{what} need a POSIX system: Linux, macOS or WSL")


def check_count(what: str, value: int, *, least: int = 0, most: int | None = None) -> int:
    """Return an integer within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{what} must be an int, not {type(value).__name__}")
    if value < least or (most is not None and value > most):
        raise ConfigError(
            f"{what} is {value}: must be at least {least}" + ("" if most is None else f", at most {most}")
        )
    return value
