"""Draw the figures: bars or dots for comparisons, lines for growth, curves for latencies.  Needs matplotlib.

The length of a bar shows a ratio only if its axis begins at zero, so figures that spread over decades are dots.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.sheet import Sheet, Spread, Topic

WIDTH, HEIGHT = 8.0, 3.6
"""Inches."""

PACE, PUSH, TO_HANDLER, P50, P99 = "items/s", "push", "to handler", " p50", " p99"
"""Columns of curves: the pace, and two times, each for half of the items and for 99 of 100."""

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44")


def draw(sheet: Sheet, foot: str, folder: Path) -> dict[str, Path]:
    """Draw every topic that has a picture; return the files by the topics' names.  Draws nothing without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        sheet.remark("pictures: not drawn, matplotlib is not installed")
        return {}
    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "zkrq", "font.size": 9})
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Path] = {}
    for topic in sheet.topics.values():
        rows = sheet.rows(topic)
        if topic.plot and len(rows) > 1:
            files[topic.name] = folder / f"{topic.name}.svg"
            _draw(topic, rows, foot, files[topic.name])
    return files


def _draw(topic: Topic, rows: Mapping[str, Mapping[str, Spread]], foot: str, file: Path) -> None:
    from matplotlib import pyplot

    picture: Any
    axes: Any
    if topic.plot == "curves":
        picture, both = pyplot.subplots(1, 2, figsize=(WIDTH, HEIGHT), sharex=True, sharey=True)  # pyright: ignore[reportUnknownMemberType]
        for axes, what in zip(both, (PUSH, TO_HANDLER), strict=True):
            _curves(axes, what, rows)
    else:
        height = HEIGHT if topic.plot == "lines" else max(HEIGHT, 0.35 * len(rows) + 1.6)
        picture, axes = pyplot.subplots(figsize=(WIDTH, height))  # pyright: ignore[reportUnknownMemberType]
        {"bars": _bars, "dots": _dots, "lines": _lines}[topic.plot](axes, topic, rows)
        axes.set_title(topic.title, loc="left")
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    picture.text(0.01, 0.005, foot, fontsize=6, color="grey")
    picture.tight_layout(rect=(0, 0.03, 1, 1))
    picture.savefig(file, metadata={"Date": None})
    pyplot.close(picture)


def _curves(axes: Any, what: str, rows: Mapping[str, Mapping[str, Spread]]) -> None:
    """Draw a line for each system, over its items per second: solid for half of the items, dotted for 99 of 100.

    The name of a row is that of its system, then a comma and a space, then the load.
    """
    systems = list(dict.fromkeys(name.rpartition(", ")[0] for name in rows))
    for system, colour in zip(systems, COLOURS, strict=False):
        mine = [row for name, row in rows.items() if name.rpartition(", ")[0] == system]
        mine.sort(key=lambda row: row[PACE].median)
        at = [row[PACE].median for row in mine]
        for percent, style, label in ((P50, "o-", system), (P99, "o:", None)):
            axes.plot(at, [row[what + percent].median for row in mine], style, label=label, color=colour, markersize=3)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(what, loc="left")
    axes.set_xlabel(PACE)
    axes.set_ylabel("ms; dotted: 99 of 100 items")
    axes.grid(visible=True, color="#dddddd", linewidth=0.5)
    axes.legend(frameon=False, fontsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _bars(axes: Any, topic: Topic, rows: Mapping[str, Mapping[str, Spread]]) -> None:
    """Draw horizontal bars, the first row on top, with a whisker from the lowest to the highest value."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    thick = 0.8 / len(columns)
    for n, column in enumerate(columns):
        spreads = [row[column] for row in rows.values() if column in row]
        places = [place + n * thick for place, row in enumerate(rows.values()) if column in row]
        lows = [spread.median - min(spread.values) for spread in spreads]
        highs = [max(spread.values) - spread.median for spread in spreads]
        axes.barh(
            places,
            [spread.median for spread in spreads],
            thick,
            xerr=(lows, highs),
            label=column,
            color=COLOURS[n % len(COLOURS)],
            error_kw={"elinewidth": 0.8, "ecolor": "#444444"},
        )
    axes.set_yticks([place + 0.4 - thick / 2 for place in range(len(rows))], list(rows))
    axes.invert_yaxis()
    axes.set_xlabel(topic.unit)


def _dots(axes: Any, topic: Topic, rows: Mapping[str, Mapping[str, Spread]]) -> None:
    """A line for each row, the greatest of the last column on top, with a dot and a whisker for each column."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    ranked = sorted(rows.items(), key=lambda row: row[1][columns[-1]].median if columns[-1] in row[1] else 0)
    for n, column in enumerate(columns):
        points = [(place, row[column]) for place, (_, row) in enumerate(ranked) if column in row]
        axes.errorbar(
            [spread.median for _, spread in points],
            [place for place, _ in points],
            xerr=(
                [spread.median - min(spread.values) for _, spread in points],
                [max(spread.values) - spread.median for _, spread in points],
            ),
            fmt="o",
            label=column,
            color=COLOURS[n % len(COLOURS)],
            elinewidth=0.8,
        )
    axes.set_yticks(range(len(ranked)), [name for name, _ in ranked])
    axes.grid(visible=True, color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    if topic.log:
        axes.set_xscale("log")
    axes.set_xlabel(topic.unit)


def _lines(axes: Any, topic: Topic, rows: Mapping[str, Mapping[str, Spread]]) -> None:
    """Draw lines that start below zero, with the area from the lowest to the highest value; rows are numbers."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    for n, column in enumerate(columns):
        points = [(float(name.replace(",", "")), row[column]) for name, row in rows.items() if column in row]
        at, spreads = [max(x, 1.0) for x, _ in points], [spread for _, spread in points]
        axes.plot(at, [spread.median for spread in spreads], marker="o", label=column, color=COLOURS[n])
        lows, highs = [min(spread.values) for spread in spreads], [max(spread.values) for spread in spreads]
        axes.fill_between(at, lows, highs, alpha=0.2, color=COLOURS[n], linewidth=0)
    axes.set_ylim(bottom=0)
    if topic.log:
        axes.set_xscale("log")
    axes.set_xlabel(topic.rows)
    axes.set_ylabel(topic.unit)
