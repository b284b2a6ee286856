"""Define the commands for the limits of a queue."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace

from zkrq.base.limits import Limits
from zkrq.cli.command import QUEUE, Command, Flag, Line, Lines, open_cluster

_RATE = re.compile(r"(\d+)/(\d*(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def read_rate(text: str) -> tuple[int, float]:
    """Read a rate such as ``50/1s``, ``50/s`` or ``1000/15m``."""
    if not (match := _RATE.fullmatch(text)):
        raise ArgumentTypeError(f"{text!r} is no rate: give a number and a time, such as 50/1s, 100/m or 5000/1h")
    return int(match[1]), float(match[2] or 1) * _SECONDS[match[3]]


async def _show(args: Namespace) -> Lines:
    async with open_cluster(args) as cluster:
        statistics = await cluster.queue(args.queue).statistics()
    yield _line(args.queue, statistics.limits, statistics.limited or f"{statistics.sizes.claimed:,} claimed")


async def _set(args: Namespace) -> Lines:
    limits = Limits(args.concurrency, args.rate)
    if args.none == bool(limits.settings):
        args.parser.error("give --concurrency, --rate or both; or --none to take the limits away")
    async with open_cluster(args) as cluster:
        await cluster.queue(args.queue).set_limits(limits)
    yield _line(args.queue, limits)


def _line(queue: str, limits: Limits, now: str = "") -> Line:
    count, seconds = limits.rate or (None, None)
    value = {"queue": queue, "concurrency": limits.concurrency, "rate": count, "seconds": seconds}
    return Line(f"{limits}; {now}" if now else str(limits), value)


_CONCURRENCY = Flag("concurrency", "items claimed at once, over all workers", int, None, "N")
_RATE_FLAG = Flag(
    "rate", "claims begun in a time, over all workers, such as 50/1s or 1000/h", read_rate, None, "N/TIME"
)
_NONE = Flag("none", "no limits from now on", bool)

COMMANDS = (
    Command("limits show", "show the limits of a queue", _show, arguments=QUEUE),
    Command("limits set", "give a queue these limits, and no others", _set, (_CONCURRENCY, _RATE_FLAG, _NONE), QUEUE),
)
