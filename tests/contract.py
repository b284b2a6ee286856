"""Read the rows of docs/what-happens-when.md, and `contract.txt`, which names the tests that show each."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.snippets import ROOT

PAGE = ROOT / "docs" / "what-happens-when.md"
TABLE = ROOT / "tests" / "contract.txt"


def cells() -> Iterator[tuple[str, list[str]]]:
    """Yield every row of the page as its cells, with the heading above it."""
    heading = ""
    lines = PAGE.read_text().splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("| ") and not line.startswith("| ---") and not after.startswith("| ---"):
            yield heading, [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def rows() -> list[tuple[str, str]]:
    """Return heading and first cell of each row; one without a first cell goes on with the row above it."""
    return [(heading, row[0]) for heading, row in cells() if row[0]]


def shown() -> dict[tuple[str, str], list[str]]:
    """Return the tests that show each row, as `contract.txt` has them."""
    heading = ""
    found: dict[tuple[str, str], list[str]] = {}
    tests: list[str] = []
    for line in TABLE.read_text().splitlines():
        if line.startswith("["):
            heading = line[1:-1]
        elif line.startswith(" "):
            tests.append(line.strip())
        elif line and not line.startswith("#"):
            assert (heading, line) not in found, line
            found[heading, line] = tests = []
    return found
