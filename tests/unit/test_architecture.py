"""ARCHITECTURE.md names modules and bounds that exist."""

from __future__ import annotations

import re
from pathlib import Path

import zkrq
from tests.every import every
from zkrq.protocol.records import MOVES, State

PACKAGE = Path(zkrq.__file__).parent
TEXT = (PACKAGE.parent / "ARCHITECTURE.md").read_text()
FILES: dict[str, list[Path]] = {}
for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")]:
    FILES.setdefault(path.name, []).append(path)


def section(beginning: str, end: str) -> str:
    return TEXT[TEXT.index(beginning) : TEXT.index(end)]


def test_every_file_that_is_named_exists() -> None:
    named = {name for name in re.findall(r"`([\w/]+\.(?:py|lua))`", TEXT) if not (PACKAGE.parent / name).exists()}
    assert {name.rpartition("/")[2] for name in named} <= FILES.keys()


def test_the_walks_name_each_module_once() -> None:
    named = re.findall(r"`(\w+\.py)`", section("### One item", "## Who may evict"))
    assert len(named) > 30
    assert len(set(named)) == len(named), sorted(named)


def bounds() -> list[tuple[str, str]]:
    """Each bound of the table, with the files that stand after it."""
    found: list[tuple[str, str]] = []
    for row in re.findall(
        r"^\| [^|]+ \| (`.*) \|$", section("## What is bounded", "In Redis tombstones"), re.MULTILINE
    ):
        for names, files in re.findall(r"((?:`[A-Z_]+`(?:, )?)+) \(((?:`\w+\.\w+`(?:, )?)+)\)", row):
            found += [(name, files) for name in re.findall(r"[A-Z_]+", names)]
    return found


@every(("name", "files"), bounds())
def test_a_bound_stands_where_the_table_says(name: str, files: str) -> None:
    for file in re.findall(r"`(.*?)`", files):
        texts = [path.read_text() for path in FILES[file]]
        assert any(re.search(rf"^(?:local )?(?:\w+, )*{name}\b[^=\n]*=", text, re.MULTILINE) for text in texts)


def test_the_table_of_bounds_is_read() -> None:
    assert len(bounds()) > 40


INDEX = {
    State.QUEUED: "`ready` or `scheduled`",
    State.CLAIMED: "`claimed`",
    State.DEAD: "`dead`",
    State.GONE: "`tombstones`",
}
"""The states of an item; only the queue's own record is ever paused, and its row and moves are left out."""


def life_of_an_item() -> str:
    """Print ``MOVES`` as a table: a row for each state, a column for the verbs that move all items alike."""
    columns: dict[tuple[State | None, ...], list[str]] = {}
    for verb in dict.fromkeys(verb for state in INDEX for verb in MOVES[state] if MOVES[state][verb] in INDEX):
        columns.setdefault(tuple(MOVES[state].get(verb) for state in INDEX), []).append(verb)
    rows = [["state", "index", *map(", ".join, columns.values())], ["---"] * (2 + len(columns))]
    for at, (state, index) in enumerate(INDEX.items()):
        rows.append([state.name.lower(), index, *(to.name.lower() if (to := moves[at]) else "" for moves in columns)])
    return "\n".join(re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(row)} |") for row in rows)


def test_the_life_of_an_item_is_the_table_of_the_records() -> None:
    assert life_of_an_item() in TEXT
