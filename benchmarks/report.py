"""Format the figures as Markdown, and copy them into the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks import bars
from benchmarks.sheet import Sheet, Topic

BEGIN, END = "<!-- figures: made by `make bench` -->", "<!-- end of figures -->"


def markdown(sheet: Sheet, machine: Mapping[str, str], pictures: Mapping[str, str]) -> str:
    """Return the whole report; ``pictures`` are paths by the name of their topic."""
    parts = [_machine(machine), "## Must show\n\n" + bars.table(bars.bars(sheet))]
    for topic in sheet.topics.values():
        unit = f"In {topic.unit}: median" if topic.unit else "Median"
        about = f"{topic.about}\n\n{unit} (lowest to highest)."
        part = f"## {topic.title}\n\n{about}\n\n{grid(sheet, topic)}\n\n{_foot(machine)}"
        if topic.name in pictures:
            part += f"\n\n![{topic.title}]({pictures[topic.name]})"
        parts.append(part)
    if sheet.remarks:
        parts.append("## Not measured\n\n" + "\n".join(f"* {remark}" for remark in sheet.remarks))
    return "\n\n".join(parts) + "\n"


def publish(page: Path, text: str) -> None:
    """Put the report between the markers of a page."""
    head, _, rest = page.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n{text}{END}{tail}")


def _machine(machine: Mapping[str, str]) -> str:
    return "| | |\n| --- | --- |\n" + "\n".join(f"| {name} | {text} |" for name, text in machine.items())


def _foot(machine: Mapping[str, str]) -> str:
    """Return the command and the machine, as shown under every table."""
    parts = (machine[part] for part in ("command", "cores", "python", "redis"))
    return f"<sub>{' · '.join(parts)} · load before {machine['load before']}</sub>"


def grid(sheet: Sheet, topic: Topic) -> str:
    """Return the figures of a topic as a table."""
    rows = sheet.rows(topic)
    notes = sheet.notes.get(topic.name, {})
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    heads = [topic.rows, *columns, *(["settings"] if notes else [])]
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * len(columns)}{' --- |' if notes else ''}"]
    for name, row in rows.items():
        cells = [name, *(str(row[column]) if column in row else "" for column in columns)]
        lines.append(f"| {' | '.join([*cells, *([notes.get(name, '')] if notes else [])])} |")
    return "\n".join(lines)
