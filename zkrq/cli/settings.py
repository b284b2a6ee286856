"""Define the commands for the settings of a queue: its limits, order, history, size, dead letters and results."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from zkrq.base.checks import read_duration
from zkrq.base.errors import ZkrqError
from zkrq.cli.command import Command, Line, Lines, look_at, note_missing, note_new, open_cluster
from zkrq.cli.flags import Flag, Takes, attribute, flag_of, reader
from zkrq.client.changing import change_settings, named_in
from zkrq.client.inner import client_of
from zkrq.client.texts import show_backlog
from zkrq.operations.operation import Arguments
from zkrq.operations.queues import BACKLOG
from zkrq.operations.settings import CHANGE_SETTINGS, SETTINGS, STORED

if TYPE_CHECKING:
    from zkrq.base.limits import QueueSettings
    from zkrq.client.cluster import Cluster
    from zkrq.client.queue import Queue
    from zkrq.operations.operation import Section
    from zkrq.serve.audit import Line as Change

LOOKED_AT = 500
"""Items of a task among which one is looked for that limits of a group of that name do not hold for."""

NONE = "none"
"""The value of a flag that takes a setting away."""

_RATE = re.compile(r"(\d+)/(.*[a-z])")
_UNIT = re.compile(r"ms|[smhd]")


def read_rate(text: str) -> tuple[int, float] | str:
    """Read a rate such as ``50/1s``, ``50/s`` or ``1000/15m``, or ``none``."""
    if text == NONE:
        return text
    with suppress(ValueError):
        if match := _RATE.fullmatch(text):
            return int(match[1]), read_duration(f"1{match[2]}" if _UNIT.fullmatch(match[2]) else match[2])
    raise ArgumentTypeError(f"{text!r} is no rate: give a number and a time, such as 50/1s, 100/m or 5000/1h, or none")


_SECTIONS: Mapping[str, Section] = {
    "": CHANGE_SETTINGS,
    **{each.name: each.kind.of for each in CHANGE_SETTINGS.parameters if isinstance(each.kind, Arguments)},
}

FIELDS = {
    "concurrency": ("limits", "concurrency"),
    "rate": ("limits", "rate"),
    "group-concurrency": ("groups", "concurrency"),
    "group-rate": ("groups", "rate"),
    "group": ("groups", "named"),
    "like-others": ("groups", "named"),
    "ordered": ("groups", "ordered"),
    "unordered": ("groups", "ordered"),
    "max-size": ("", "max_size"),
    "history": ("", "history"),
    "dead-letters": ("dead_letters", "max_count"),
    "dead-letters-age": ("dead_letters", "max_age"),
    "keep-expired": ("dead_letters", "expired"),
    "drop-expired": ("dead_letters", "expired"),
    "results-ttl": ("", "results_ttl"),
}
"""The section and the field that each flag changes; without a section: of the queue itself."""

_BY_HAND = (
    Flag("rate", "claims begun in a time, over all workers, such as 50/1s or 1000/h", read_rate, None, "N/TIME|none"),
    Flag("group-rate", "claims of each group begun in a time, such as 50/1s", read_rate, None, "N/TIME|none"),
    Flag("group", "the one group that --group-concurrency and --group-rate are for", str, None, "NAME"),
    Flag("like-others", "with --group: no limits of its own from now on", bool),
    Flag("ordered", "each group keeps the order of its pushes, one item claimed at a time", bool),
    Flag("unordered", "no order of groups from now on", bool),
    Flag("keep-expired", "items that outlive their ttl become dead letters", bool),
    Flag("drop-expired", "items that outlive their ttl are dropped", bool),
)
"""A rate is two parameters, and what is yes or no has two flags."""

_OF_A_GROUP = {"group-concurrency", "group-rate"}
"""Flags for one group, if that is named."""

_EITHER = {"ordered": "unordered", "keep-expired": "drop-expired"}
"""Flags without a value that set a field, and those that clear it."""


def _flag(name: str, within: str, field: str) -> Flag:
    """Return the flag of a setting that a value changes, and ``none`` takes away."""
    setting = _SECTIONS[within].by_name[field]
    flag = flag_of(replace(setting, default=None, absent=""))
    without = f"; {NONE}: {setting.null}" if setting.null != NONE else ""
    metavar = f"{flag.metavar}|{NONE}"
    return flag._replace(name=name, help=f"{flag.help}{without}", type=reader(setting.kind, NONE), metavar=metavar)


async def _show(args: Namespace) -> Lines:
    async with look_at(args) as cluster:
        await note_missing(cluster, args.queue)
        queue = cluster.queue(args.queue)
        statistics, backlog = await queue.statistics(), await queue.backlog()
        consumers = await client_of(cluster).upgrading.consumers()
        pause = await _find_pause(cluster, args.queue) if statistics.paused else None
    line = _line(args.queue, statistics.settings, statistics.limited or f"{statistics.sizes.claimed:,} claimed")
    quiet = sorted(each.description for each in consumers.values() if each.is_quiet)
    trend, oldest = show_backlog(backlog), statistics.oldest_ready
    more = [
        f"{statistics.pause}: `zkrq resume {args.queue}`" if statistics.paused else "",
        f"last paused over HTTP by {pause.who}, at {pause.at:%Y-%m-%d %H:%M:%S} UTC" if pause else "",
        ", ".join(f"{number:,} {state}" for state, number in statistics.sizes._asdict().items()),
        f"the backlog {trend}" if trend else "",
        "" if oldest is None else f"the oldest ready item waits for {oldest:,.1f} s",
        f"quiet consumers of the namespace: {', '.join(quiet)}" if quiet else "",
    ]
    now = {
        **statistics.sizes._asdict(),
        "paused": statistics.paused,
        "paused_until": statistics.paused_until and statistics.paused_until.isoformat(),
        "paused_over_http": pause and {"by": pause.who, "at": pause.at.isoformat()},
        "oldest_ready": oldest,
        "backlog": BACKLOG.tell(backlog),
        "quiet": quiet,
    }
    yield Line("\n  ".join((line.text, *filter(None, more))), {**line.value, "now": now})


async def _find_pause(cluster: Cluster, queue: str) -> Change | None:
    """Return the last change of a pause by `zkrq serve`, which records it, if that was a pause; None: it is not known.

    The queue may have been resumed and paused since, by a program or a command, of which there is no record.
    """
    from zkrq.serve.audit import REGISTER, decode  # here, because `zkrq --help` loads no face

    with suppress(ZkrqError):
        lines = decode((await client_of(cluster).coordinator.read(REGISTER)).data)
        last = next((line for line in reversed(lines) if line.on == queue and line.what in ("pause", "resume")), None)
        return last if last and last.what == "pause" else None
    return None


async def _set(args: Namespace) -> Lines:
    given = {flag: getattr(args, attribute(flag)) for flag in FIELDS}
    flags = [flag for flag, value in given.items() if value is not None and value is not False]
    if not flags or any(one in flags and other in flags for one, other in _EITHER.items()):
        args.parser.error(
            "give --concurrency, --rate, --group-concurrency, --group-rate, --max-size, --history, --dead-letters, "
            "--dead-letters-age, --results-ttl (each with a value or none), --ordered or --unordered, "
            "--keep-expired or --drop-expired"
        )
    changes: dict[str, Any] = {}
    own = _own_limits(args, flags, changes)
    for flag in flags:
        within, field = FIELDS[flag]
        part, value = changes.setdefault(within, {}) if within else changes, given[flag]
        if flag in _OF_A_GROUP and own is not None:
            part = own
        if isinstance(value, tuple):
            value, part["seconds"] = cast("tuple[int, float]", value)
        kind = _SECTIONS[within].by_name[field].kind
        part[field] = None if value == NONE else flag in _EITHER if value is True else kind.check(f"--{flag}", value)
    async with open_cluster(args) as cluster:
        queue = cluster.queue(args.queue)
        await note_new(cluster, args.queue)
        settings = await change_settings(queue, named_in(changes))
        if own:
            await _note_outside(queue, args.group)
    yield _line(args.queue, settings)


async def _note_outside(queue: Queue[Any], group: str) -> None:
    """Say on stderr if the limits of a group, meant for a task, do not hold for items of that task.

    An item is in a group from its push on; a group that is named as a task is usually one of ``Groups(by_task=True)``.
    Only some calls look, so items far behind in a long queue are not found.
    """
    with suppress(ZkrqError):  # it is set, and a name of a group need not be one of a task
        page = await queue.find_page(task=group, limit=LOOKED_AT)
        if item := next((each for each in page.items if each.group != group), None):
            outside = f"that were pushed outside of group {group!r}, as {item.id}"
            sys.stderr.write(f"items of task {group!r} {outside}, are not limited by it\n")


def _own_limits(args: Namespace, flags: list[str], changes: dict[str, Any]) -> dict[str, Any] | None:
    """Return what is to change of the limits of the group that a flag names, which is a part of ``changes``.

    None: flags for groups are about each of them.  Takes the flags that say that out of the list.
    """
    said, is_like_others = args.group, args.like_others
    flags[:] = [flag for flag in flags if FIELDS[flag] != ("groups", "named")]
    if (said is None and is_like_others) or (said is not None and is_like_others is bool(_OF_A_GROUP & {*flags})):
        args.parser.error("give --group with --group-concurrency, --group-rate or --like-others")
    if said is None:
        return None
    own: dict[str, Any] = {}
    changes["groups"] = {"named": {said: None if is_like_others else own}}
    return own


def _line(queue: str, settings: QueueSettings, now: str = "") -> Line:
    """Say what the settings of a queue are, and how it is now."""
    without = "" if settings.limits.settings else str(settings.limits)
    said = "; ".join(filter(None, (without, str(settings), now)))
    return Line(said, {"queue": queue, **STORED.tell(settings)})


_FLAGS = {flag.name: flag for flag in _BY_HAND}

COMMANDS = (
    Command(
        "queues show",
        "show the settings of a queue (limits, order, size, history, ...), and how it is now: its backlog, a pause",
        _show,
        takes=Takes(SETTINGS),
    ),
    Command(
        "queues set",
        "change the settings of a queue that are named, leave the others",
        _set,
        tuple(_FLAGS.get(name) or _flag(name, *place) for name, place in FIELDS.items()),
        takes=Takes(
            CHANGE_SETTINGS, without=dict.fromkeys(CHANGE_SETTINGS.by_name, "flags change the parts of a setting")
        ),
    ),
)
