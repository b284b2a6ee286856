"""Report runs: a table in Markdown, sentences about violations, and a picture of the throughput."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.chaos.checker import ACK
from tests.chaos.record import Entry, Kind
from tests.chaos.run import Run

BIN = 0.25
"""Seconds that one point of the picture stands for."""

HEADROOM = 1.4
"""How much higher the picture is than its curves: the faults' names stand there."""

SHOWN = 5
"""Items that are named of each kind of violation."""

COLUMNS = (
    "faults",
    "min_replicas",
    "runs",
    "faults fired",
    "pushed",
    "acked",
    "lost",
    "unexpected",
    "revived",
    "duplicated",
    "recovered",
    "two holders",
    "stranded",
    "misruled",
    "duplicate keys",
    "cancelled",
    "longest stall: push, delivery",
)


class CannotDraw(Exception):
    """The library that draws is not installed."""


def table(runs: Sequence[Run]) -> str:
    """One line for each kind of fault and each ``min_replicas``."""
    lines = [_line(COLUMNS), _line(["---", *("---:" for _ in COLUMNS[1:])])]
    for (fault, min_replicas), some in groupby(runs, key=lambda run: (run.fault, run.min_replicas)):
        group = list(some)
        outcomes = [run.outcome for run in group]
        stalls = (max(outcome.push_stall for outcome in outcomes), max(outcome.delivery_stall for outcome in outcomes))
        cells = [
            fault,
            min_replicas,
            len(group),
            sum(run.fired for run in group),
            *(f"{sum(outcome.pushed for outcome in outcomes):,}", f"{sum(outcome.acked for outcome in outcomes):,}"),
            sum(len(outcome.lost) for outcome in outcomes),
            sum(len(outcome.unexpected) for outcome in outcomes),
            sum(len(outcome.revived) for outcome in outcomes),
            sum(outcome.duplicated for outcome in outcomes),
            sum(outcome.recovered for outcome in outcomes),
            sum(len(outcome.two_holders) for outcome in outcomes),
            sum(len(outcome.stranded) for outcome in outcomes),
            sum(len(outcome.misruled) for outcome in outcomes),
            sum(outcome.refused for outcome in outcomes),
            sum(outcome.cancelled for outcome in outcomes),
            f"{stalls[0]:.2f} s, {stalls[1]:.2f} s",
        ]
        lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def complaints(run: Run) -> list[str]:
    """What went wrong in a run, as sentences; nothing if nothing did."""
    outcome = run.outcome
    wrong = {
        "lost": outcome.lost,
        "unexpected": outcome.unexpected,
        "revived": outcome.revived,
        "two holders": outcome.two_holders,
        "stranded": outcome.stranded,
        "misruled": outcome.misruled,
    }
    lines = list(run.troubles)
    for what, items in wrong.items():
        lines += [f"{what}: {item}" for item in items[:SHOWN]]
        if len(items) > SHOWN:
            lines.append(f"{what}: {len(items) - SHOWN} more")
    return [f"{run.fault}, min_replicas={run.min_replicas}, seed {run.seed}: {line}" for line in lines]


def draw(runs: Sequence[Run], file: Path) -> None:
    """Throughput over time, one panel for each run, with the faults marked.  Raises ``CannotDraw``."""
    try:
        backend: Any = import_module("matplotlib.backends.backend_agg")
        figures: Any = import_module("matplotlib.figure")
    except ImportError as error:
        raise CannotDraw("no picture: matplotlib is not installed (pip install matplotlib)") from error
    figure: Any = figures.Figure(figsize=(12, 2.2 * len(runs)), layout="constrained")
    backend.FigureCanvasAgg(figure)
    for panel, run in zip(figure.subplots(len(runs), squeeze=False)[:, 0], runs, strict=True):
        _draw_run(panel, run)
    figure.savefig(file, dpi=80)


def _draw_run(panel: Any, run: Run) -> None:
    panel.set_title(f"{run.fault}, min_replicas={run.min_replicas}", loc="left", fontsize=9)
    panel.set_ylabel("per second", fontsize=8)
    if not run.entries:
        return
    begin = min(entry.at for entry in run.entries)
    for kind, detail, label, colour in ((Kind.PUSHED, None, "pushed", "C0"), (Kind.SETTLED, ACK, "acked", "C2")):
        moments = [entry.at - begin for entry in run.entries if entry.kind is kind and detail in (None, entry.detail)]
        rates = _rates(moments)
        panel.plot([BIN * (at + 0.5) for at in range(len(rates))], rates, label=label, color=colour, linewidth=1)
    across = panel.get_xaxis_transform()
    for number, (what, since, until) in enumerate(_spans(run.entries)):
        panel.axvspan(since - begin, until - begin, color="C3", alpha=0.15, linewidth=0)
        # By turns at three heights, so that neighbours do not cover each other.
        shown = what.removeprefix(f"{run.fault} ")
        panel.text(since - begin, 0.97 - 0.1 * (number % 3), shown, fontsize=6, color="C3", transform=across, va="top")
    panel.set_ylim(bottom=0, top=panel.get_ylim()[1] * HEADROOM)
    panel.set_xlim(left=0)
    panel.legend(loc="lower right", fontsize=7)


def _rates(moments: Sequence[float]) -> list[float]:
    """How many a second, for each ``BIN`` from zero to the last moment."""
    counts = [0] * (int(max(moments, default=0) / BIN) + 1)
    for at in moments:
        counts[int(at / BIN)] += 1
    return [count / BIN for count in counts]


def _spans(entries: Sequence[Entry]) -> Iterator[tuple[str, float, float]]:
    """Each fault that began: what it was, from when to when."""
    ends = [entry for entry in entries if entry.kind is Kind.FAULT_ENDED]
    last = max(entry.at for entry in entries)
    for entry in entries:
        if entry.kind is Kind.FAULT_BEGUN:
            later = (end.at for end in ends if end.detail == entry.detail and end.at >= entry.at)
            yield entry.detail, entry.at, min(later, default=last)
