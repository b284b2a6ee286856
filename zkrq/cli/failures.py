"""Define the command that counts what failed, over all queues, as the page of failures does."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from zkrq.cli.command import Command, Line, Lines, count, look_at, write_missing
from zkrq.cli.flags import Flag
from zkrq.operations.kinds import Choice

if TYPE_CHECKING:
    from datetime import datetime


STATES = Choice(("dead", "waiting"))
"""What became of items that failed, as ``serve.failing`` has it."""


async def _failures(args: Namespace) -> Lines:
    # Both are without a web framework; imported here, because `zkrq --help` loads no face.
    from zkrq.serve.failing import KINDS, read_failed
    from zkrq.serve.letters import check_by, columns, group
    from zkrq.serve.queues import Queues

    check_by(args.by)
    state = args.state and STATES.check("--state", args.state)
    async with look_at(args) as cluster:
        sizes = {name: each.sizes for name, each in (await cluster.statistics()).items()}
        if args.queue is not None:
            write_missing(args.queue, sizes)
            sizes = {name: some for name, some in sizes.items() if name == args.queue}
        reading = await read_failed(Queues(cluster), sizes, KINDS.get(state or ""), args.error or "")
    groups = group(reading.failed, args.by)
    for each in groups:
        reasons = "" if args.by == "reason" else "".join(f"; {n:,} x {reason or '-'}" for reason, n in each.reasons)
        text = f"{len(each.failed):>7,}  {_moment(each.first)} to {_moment(each.last)}  {each.value or 'none'}{reasons}"
        value = {
            args.by: each.value,
            "items": len(each.failed),
            "first": each.first and each.first.isoformat(),
            "last": each.last and each.last.isoformat(),
            "reasons": dict(each.reasons),
        }
        yield Line(text, value)
    for part in filter(None, (*reading.parts, reading.trouble)):
        sys.stderr.write(f"not everything was read: {part}\n")
    if groups and not any(each.value for each in groups):
        sys.stderr.write(f"none of these has the {args.by}; they have: {', '.join(columns(reading.failed))}\n")
    if not reading.failed:
        yield Line(f"{count(0, 'item')} failed", {"items": 0})


def _moment(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}" if at else "at an unknown time"


COMMANDS = (
    Command(
        "failures",
        "count dead letters, and items that wait for a retry, by their reason or by something else",
        _failures,
        (
            Flag("by", "reason, queue, task, key, group, `header NAME` or `field NAME`", str, "reason", "TEXT"),
            Flag("queue", "only of this queue", metavar="NAME", absent="all"),
            Flag("state", "dead, or waiting for a retry", metavar="WORD", absent="both"),
            Flag("error", "only with this text in the reason", metavar="TEXT"),
        ),
    ),
)
