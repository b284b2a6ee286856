"""Define the commands for the limits of a queue."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace

from zkrq.base.limits import Groups, Limits
from zkrq.cli.command import QUEUE, Command, Flag, Line, Lines, look_at, open_cluster

_RATE = re.compile(r"(\d+)/(\d*(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def read_rate(text: str) -> tuple[int, float]:
    """Read a rate such as ``50/1s``, ``50/s`` or ``1000/15m``."""
    if not (match := _RATE.fullmatch(text)):
        raise ArgumentTypeError(f"{text!r} is no rate: give a number and a time, such as 50/1s, 100/m or 5000/1h")
    return int(match[1]), float(match[2] or 1) * _SECONDS[match[3]]


async def _show(args: Namespace) -> Lines:
    async with look_at(args) as cluster:
        statistics = await cluster.queue(args.queue).statistics()
    now = statistics.limited or f"{statistics.sizes.claimed:,} claimed"
    yield _line(args.queue, statistics.limits, statistics.group_limits, now)


async def _set(args: Namespace) -> Lines:
    limits = Limits(args.concurrency, args.rate)
    groups = Groups(args.group_concurrency, args.ordered, args.group_rate)
    has_limits, has_groups = bool(limits.settings), bool(groups.settings)
    takes_away = args.none or args.group_none
    if not (has_limits or has_groups or takes_away) or args.none * has_limits or args.group_none * has_groups:
        args.parser.error(
            "give --concurrency, --rate or both, or --none to take the limits away; for each group "
            "--group-concurrency, --group-rate, --ordered, or --group-none"
        )
    async with open_cluster(args) as cluster:
        queue = cluster.queue(args.queue)
        if has_limits or args.none:
            await queue.set_limits(limits)
            yield _line(args.queue, limits)
        if has_groups or args.group_none:
            await queue.set_groups(groups)
            yield _line(args.queue, None, groups)


def _line(queue: str, limits: Limits | None, groups: Groups | None = None, now: str = "") -> Line:
    """Say what limits there are, of the queue and of each group, as far as they are given, and how it is now."""
    value: dict[str, object] = {"queue": queue}
    if limits is not None:
        value |= {"concurrency": limits.concurrency, **_rate_of(limits)}
    if groups is not None:
        value["groups"] = {"concurrency": groups.concurrency, "ordered": groups.ordered, **_rate_of(groups)}
    is_said = groups is not None and (limits is None or groups.settings)
    return Line("; ".join(filter(None, (str(limits or ""), str(groups) if is_said else "", now))), value)


def _rate_of(limits: Limits | Groups) -> dict[str, object]:
    count, seconds = limits.rate or (None, None)
    return {"rate": count, "seconds": seconds}


_CONCURRENCY = Flag("concurrency", "items claimed at once, over all workers", int, None, "N")
_RATE_FLAG = Flag(
    "rate", "claims begun in a time, over all workers, such as 50/1s or 1000/h", read_rate, None, "N/TIME"
)
_NONE = Flag("none", "no limits from now on", bool)
_OF_GROUPS = (
    Flag("group-concurrency", "items of each group claimed at once, over all workers", int, None, "N"),
    Flag(
        "group-rate", "claims of each group begun in a time, over all workers, such as 50/1s", read_rate, None, "N/TIME"
    ),
    Flag("ordered", "each group keeps the order of its pushes, for producers that declare it too", bool),
    Flag("group-none", "no limits and no order of groups from now on", bool),
)

COMMANDS = (
    Command("limits show", "show the limits of a queue", _show, arguments=QUEUE),
    Command(
        "limits set",
        "give a queue, or each group of it, these limits and no others; what is not named stays",
        _set,
        (_CONCURRENCY, _RATE_FLAG, _NONE, *_OF_GROUPS),
        QUEUE,
    ),
)
