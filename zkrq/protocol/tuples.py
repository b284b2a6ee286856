"""Make named tuples without a call of Python: those that are made for every call, on every server.

The constructor of a named tuple is written in Python, and costs as much as all else that such a call does with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

T = TypeVar("T", bound=tuple[Any, ...])


def from_values(kind: type[T]) -> Callable[[tuple[object, ...]], T]:
    """Return what makes a named tuple of its values, given as one tuple: all fields, in their order, unchecked."""
    return cast("Callable[[tuple[object, ...]], T]", partial(cast("Any", tuple).__new__, kind))
