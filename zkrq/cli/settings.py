"""Define the commands for the settings of a queue: its limits, order, history, size, dead letters and results."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any

from zkrq.cli.command import QUEUE, Command, Line, Lines, look_at, open_cluster
from zkrq.cli.flags import Flag, attribute
from zkrq.client.changing import change_settings, describe
from zkrq.operations.settings import STORED

if TYPE_CHECKING:
    from zkrq.base.limits import QueueSettings

NONE = "none"
"""The value of a flag that takes a setting away."""

_RATE = re.compile(r"(\d+)/(\d*(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def read_rate(text: str) -> tuple[int, float] | str:
    """Read a rate such as ``50/1s``, ``50/s`` or ``1000/15m``, or ``none``."""
    if text == NONE:
        return text
    if not (match := _RATE.fullmatch(text)):
        raise ArgumentTypeError(
            f"{text!r} is no rate: give a number and a time, such as 50/1s, 100/m or 5000/1h, or none"
        )
    return int(match[1]), float(match[2] or 1) * _SECONDS[match[3]]


def read_count(text: str) -> int | str:
    """Read a number, or ``none``."""
    try:
        return text if text == NONE else int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no number: give one, or none") from None


def read_seconds(text: str) -> float | str:
    """Read a number of seconds, or ``none``."""
    try:
        return text if text == NONE else float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no number of seconds: give one, or none") from None


_FIELDS = {
    "concurrency": ("limits", "concurrency"),
    "rate": ("limits", "rate"),
    "group-concurrency": ("groups", "concurrency"),
    "group-rate": ("groups", "rate"),
    "ordered": ("groups", "ordered"),
    "unordered": ("groups", "ordered"),
    "max-size": ("size", "max"),
    "history": ("history", "count"),
    "dead-letters": ("letters", "max_count"),
    "dead-letters-age": ("letters", "max_age"),
    "keep-expired": ("letters", "expired"),
    "drop-expired": ("letters", "expired"),
    "results-ttl": ("results", "seconds"),
}
"""The section and the field that each flag changes."""

_EITHER = {"ordered": "unordered", "keep-expired": "drop-expired"}
"""Flags without a value that set a field, and those that clear it."""


async def _show(args: Namespace) -> Lines:
    async with look_at(args) as cluster:
        statistics = await cluster.queue(args.queue).statistics()
    yield _line(args.queue, statistics.settings, statistics.limited or f"{statistics.sizes.claimed:,} claimed")


async def _set(args: Namespace) -> Lines:
    given = {flag: getattr(args, attribute(flag)) for flag in _FIELDS}
    flags = [flag for flag, value in given.items() if value is not None and value is not False]
    if not flags or any(one in flags and other in flags for one, other in _EITHER.items()):
        args.parser.error(
            "give --concurrency, --rate, --group-concurrency, --group-rate, --max-size, --history, --dead-letters, "
            "--dead-letters-age, --results-ttl (each with a value or none), --ordered or --unordered, "
            "--keep-expired or --drop-expired"
        )
    named: dict[str, dict[str, Any]] = {}
    for flag in flags:
        section, field = _FIELDS[flag]
        without = 0 if flag == "history" else None
        value = flag in _EITHER if given[flag] is True else given[flag]
        named.setdefault(section, {})[field] = without if value == NONE else value
    async with open_cluster(args) as cluster:
        queue = cluster.queue(args.queue)
        settings = await change_settings(queue, named)
    yield _line(args.queue, settings)


def _line(queue: str, settings: QueueSettings, now: str = "") -> Line:
    """Say what the settings of a queue are, and how it is now."""
    without = "" if settings.limits.settings else str(settings.limits)
    said = "; ".join(filter(None, (without, describe(settings), now)))
    return Line(said, {"queue": queue, **STORED.tell(settings)})


_FLAGS = (
    Flag("concurrency", "items claimed at once, over all workers", read_count, None, "N|none"),
    Flag("rate", "claims begun in a time, over all workers, such as 50/1s or 1000/h", read_rate, None, "N/TIME|none"),
    Flag("group-concurrency", "items of each group claimed at once, over all workers", read_count, None, "N|none"),
    Flag("group-rate", "claims of each group begun in a time, such as 50/1s", read_rate, None, "N/TIME|none"),
    Flag("ordered", "each group keeps the order of its pushes, one item claimed at a time", bool),
    Flag("unordered", "no order of groups from now on", bool),
    Flag("max-size", "items that it may have, queued, scheduled and claimed together", read_count, None, "N|none"),
    Flag("history", "items that have ended last to keep, up to 10,000", read_count, None, "N|none"),
    Flag("dead-letters", "dead letters to keep; none: all", read_count, None, "N|none"),
    Flag("dead-letters-age", "for which dead letters are kept; none: for ever", read_seconds, None, "SECONDS|none"),
    Flag("keep-expired", "items that outlive their ttl become dead letters", bool),
    Flag("drop-expired", "items that outlive their ttl are dropped", bool),
    Flag("results-ttl", "for which results are kept; none: as each program says", read_seconds, None, "SECONDS|none"),
)

COMMANDS = (
    Command("queues show", "show the settings of a queue: limits, order, size, history, ...", _show, arguments=QUEUE),
    Command(
        "queues set",
        "change the settings of a queue that are named, leave the others",
        _set,
        _FLAGS,
        QUEUE,
    ),
)
