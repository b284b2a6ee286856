"""Read the JSON of a znode, which anything that reaches ZooKeeper may have written.

What passes can be used without a second look: compared, counted with, written again, and sent to a server.
"""

from __future__ import annotations

import json
from typing import Any, cast

DEPTH_MAX = 20
"""Levels of nesting that are read: what is nested deeper might not be written again."""

NUMBER_MAX = 2**63
"""Bound of the numbers that are read."""


def read_object(data: bytes | str) -> dict[str, Any]:
    """Read an object of JSON that can be written again.  Raises ``ValueError`` for anything else."""
    try:
        content: object = json.loads(data)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {DEPTH_MAX} deep") from error
    match content:
        case dict():
            _check_depth(cast("object", content), DEPTH_MAX)
            return cast("dict[str, Any]", content)
        case _:
            raise ValueError("it is no object")


def _check_depth(value: object, left: int) -> None:
    if isinstance(value, list | dict):
        if not left:
            raise ValueError(f"it is nested more than {DEPTH_MAX} deep")
        parts = cast("dict[str, object]", value).values() if isinstance(value, dict) else cast("list[object]", value)
        for part in parts:
            _check_depth(part, left - 1)


def text(value: object) -> str:
    """Return a value that is a text that can be encoded.  Raises ``ValueError`` for any other."""
    match value:
        case str():
            value.encode()
            return value
        case _:
            raise ValueError(f"{value!r:.80} is no text")


def count(value: object, least: int = 0) -> int:
    """Return a value that is a whole number.  Raises ``ValueError`` for any other, and for one below ``least``."""
    if type(value) is not int or not least <= value < NUMBER_MAX:
        raise ValueError(f"{value!r:.80} is no whole number from {least}")
    return value
