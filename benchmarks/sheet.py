"""Store figures: by topic, row and column, one value per repetition."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

Plot = Literal["bars", "dots", "lines", "curves", ""]


@dataclass(frozen=True, slots=True)
class Topic:
    """One table of the report, and perhaps one picture.

    ``unit``: of every figure, empty if the columns have their own; ``rows``: the title of the first column; ``about``:
    how it was measured.
    """

    name: str
    title: str
    about: str
    unit: str
    rows: str
    plot: Plot = ""
    log: bool = False
    """Whether an axis is logarithmic: that of the figures for dots, that of the rows for lines."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of several repetitions of one measurement."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    def __str__(self) -> str:
        if len(self.values) == 1:
            return figure(self.values[0])
        return f"{figure(self.median)} ({figure(min(self.values))} to {figure(max(self.values))})"


def figure(value: float) -> str:
    """Format a value with about three digits; a count as it is."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


@dataclass(slots=True)
class Sheet:
    """All figures of a run, with remarks: what could not be measured, and why."""

    topics: dict[str, Topic] = field(default_factory=dict[str, Topic])
    figures: dict[str, dict[str, dict[str, list[float]]]] = field(
        default_factory=dict[str, dict[str, dict[str, list[float]]]]
    )
    notes: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    remarks: list[str] = field(default_factory=list[str])

    def add(self, topic: Topic, row: str, **values: float) -> None:
        """Store one repetition; the argument names are the columns, with ``_`` for a space."""
        self.topics[topic.name] = topic
        columns = self.figures.setdefault(topic.name, {}).setdefault(row, {})
        for column, value in values.items():
            columns.setdefault(column.replace("_", " "), []).append(value)

    def note(self, topic: Topic, row: str, text: str) -> None:
        """Add a note to a row, for example the settings of a peer."""
        self.topics[topic.name] = topic
        self.notes.setdefault(topic.name, {})[row] = text

    def remark(self, text: str) -> None:
        """Remark in one line what could not be measured, once."""
        if text in self.remarks:
            return
        print(f"bench: {text}", flush=True)
        self.remarks.append(text)

    def rows(self, topic: Topic) -> Mapping[str, Mapping[str, Spread]]:
        """Return the figures of a topic."""
        return {
            row: {column: Spread(tuple(values)) for column, values in columns.items()}
            for row, columns in self.figures.get(topic.name, {}).items()
        }

    def values(self, topic: Topic, row: str, column: str) -> Sequence[float]:
        """Return the repetitions of one measurement; empty if there are none."""
        return self.figures.get(topic.name, {}).get(row, {}).get(column, ())

    def save(self, file: Path, machine: Mapping[str, str]) -> None:
        """Write everything as JSON."""
        topics = {
            name: {
                "title": topic.title,
                "about": topic.about,
                "unit": topic.unit,
                "figures": self.figures.get(name, {}),
                "notes": self.notes.get(name, {}),
            }
            for name, topic in self.topics.items()
        }
        file.write_text(json.dumps({"machine": machine, "topics": topics, "remarks": self.remarks}, indent=1) + "\n")
