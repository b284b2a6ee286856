"""Read ``steps.txt``, which says of every next step that no test of this folder carries out what becomes of it."""

from __future__ import annotations

from pathlib import Path

Row = tuple[str, str]
"""The file that names a step, and a part of its text."""

STEPS = Path(__file__).parent / "steps.txt"


def _read() -> list[dict[Row, str]]:
    parts: list[dict[Row, str]] = []
    for line in STEPS.read_text().splitlines():
        if line.startswith("["):
            parts.append({})
        elif line and not line.startswith("#"):
            step, arrow, what = line.rpartition(" -> ")
            file, colon, text = step.partition(": ")
            assert arrow
            assert colon
            assert (file, text) not in parts[-1], line
            parts[-1][file, text] = what
    return parts


ELSEWHERE, NOT_HERE, NO_STEP = _read()
"""Steps that tests of other folders carry out; those that are not carried out; and texts that are none."""
