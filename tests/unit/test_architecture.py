"""ARCHITECTURE.md and the pages of the design name modules, rooms and bounds that exist."""

from __future__ import annotations

import re
from pathlib import Path

import zkrq
from tests import tables
from tests.calls_page import SUBJECTS
from zkrq.operations.table import OPERATIONS
from zkrq.protocol.records import MOVES, State

PACKAGE = Path(zkrq.__file__).parent
PAGES = [PACKAGE.parent / "ARCHITECTURE.md", *(PACKAGE.parent / "docs" / "design").glob("*.md")]
TEXT = "\n".join(page.read_text() for page in PAGES)
FILES = {path.name for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")]}
ROOMS = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}


def test_every_file_that_is_named_exists() -> None:
    named = {name for name in re.findall(r"`([\w/]+\.(?:py|lua))`", TEXT) if not (PACKAGE.parent / name).exists()}
    assert {name.rpartition("/")[2] for name in named} <= FILES


def test_the_architecture_is_read_in_ten_minutes_and_names_every_room() -> None:
    text = PAGES[0].read_text()
    assert len(text.encode()) <= 6 * 1024
    assert text.count("sequenceDiagram") == 3
    assert set(re.findall(r"`(\w+)/`", text)) == {*ROOMS, "zkrq"}


def test_the_bounds_are_those_of_the_code() -> None:
    assert tables.PAGE.read_text() == tables.page(), "python -m tests.tables writes it anew"
    assert len(tables.bounds()) > 200


def test_the_page_of_all_calls_is_that_of_the_table() -> None:
    assert tables.CALLS.read_text() == tables.calls_page(), "python -m tests.tables writes it anew"
    assert {each.subject for each in OPERATIONS.values()} <= {*SUBJECTS}, "a subject without a title"


def test_no_failure_stands_twice_in_the_contract() -> None:
    """Two rows of one failure are two answers, of which one is old; a row without one goes on with the row above."""
    for table in (PACKAGE.parent / "docs" / "what-happens-when.md").read_text().split("\n\n"):
        failures = [row.partition(" | ")[0] for row in table.splitlines() if row.startswith("| ")]
        told = [failure for failure in failures if failure != "|" and not failure.startswith("| the same")]
        assert len(set(told)) == len(told), sorted(told)


INDEX = {
    State.QUEUED: "`ready` or `scheduled`",
    State.CLAIMED: "`claimed`",
    State.DEAD: "`dead`",
    State.GONE: "`tombstones`",
}
"""The states of an item; only the queue's own record is ever paused, and its row and moves are left out."""


def life_of_an_item() -> str:
    """Print ``MOVES`` as a table: a column for each state, a row for the verbs that move all items alike."""
    moved: dict[tuple[State | None, ...], list[str]] = {}
    for verb in dict.fromkeys(verb for state in INDEX for verb in MOVES[state] if MOVES[state][verb] in INDEX):
        moved.setdefault(tuple(MOVES[state].get(verb) for state in INDEX), []).append(verb)
    rows = [["verb", *(state.name.lower() for state in INDEX)], ["---"] * (1 + len(INDEX)), ["index", *INDEX.values()]]
    rows += [[", ".join(verbs), *(to.name.lower() if to else "" for to in moves)] for moves, verbs in moved.items()]
    return "\n".join(re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(row)} |") for row in rows)


def test_the_life_of_an_item_is_the_table_of_the_records() -> None:
    assert life_of_an_item() in TEXT
