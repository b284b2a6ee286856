"""Define the command that shows what handlers did in the last hours and days."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from zkrq.cli.command import Command, Line, Lines, look_at, note_missing
from zkrq.cli.flags import Takes
from zkrq.client.figures import total
from zkrq.client.texts import show_backlog
from zkrq.operations.figures import FIGURES_OF_WORK, WORK_FIGURES

if TYPE_CHECKING:
    from zkrq.client.figures import Figures, Spread

_HEADS = ("begun", "done", "failed", "dead", "waited p50", "p95", "took p50", "p95")
_WIDTHS = (9, 9, 9, 9, 12, 9, 12, 9)


async def _figures(args: Namespace) -> Lines:
    async with look_at(args) as cluster:
        await note_missing(cluster, args.queue)
        queue = cluster.queue(args.queue)
        found, trend = await queue.figures(**args.given), show_backlog(await queue.backlog())
    head = "".join(f"{name:>{width}}" for name, width in zip(_HEADS, _WIDTHS, strict=True))
    yield Line(f"{'from (UTC)':24}{head}", {"queue": args.queue, "seconds": found[-1].seconds})
    if not args.json:  # people want to know which task is slow, and no rows without anything
        whole = total(found)
        yield Line(_row("in all", whole), {})
        for line in _of_tasks(whole):
            yield line
        found = [each for each in found if each.begun or each.done or each.failed or each.dead]
    for each in found:
        yield Line(_row(f"{each.at:%Y-%m-%d %H:%M}", each), WORK_FIGURES.tell(each))
        for line in () if args.json else _of_tasks(each):  # the value of the time has them
            yield line
    if trend and not args.json:
        yield Line(f"the backlog {trend}", {})


def _of_tasks(figures: Figures) -> list[Line]:
    return [Line(_row(f"  {task or 'without a task'}", of), {}) for task, of in figures.tasks.items()]


def _row(name: str, of: Figures) -> str:
    cells = [f"{number:,}" if number else "-" for number in (of.begun, of.done, of.failed, of.dead)]
    cells += [cell for spread in (of.waits, of.durations) for cell in _quantiles(spread)]
    return f"{name:24}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))


def _quantiles(spread: Spread) -> tuple[str, str]:
    return _seconds(spread.p50), _seconds(spread.p95)


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 100 else f"{seconds:,.0f} s"


COMMANDS = (
    Command(
        "figures",
        "show what handlers did in the last hours and days",
        _figures,
        takes=Takes(FIGURES_OF_WORK),
    ),
)
