"""List what is public: the names that users import, with the parameters of their functions and methods.

    python -m tests.surface              write the list anew, docs/design/surface.txt
    python -m tests.surface --released   and note it as that of the release that is being made

A change of this list is a change for users, so it needs a line in CHANGELOG.md: ``unexplained`` names those without.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "design"
NOW = FOLDER / "surface.txt"
RELEASED = FOLDER / "surface-released.txt"
"""The list when the last release was made."""

MODULES = (
    "zkrq",
    "zkrq.kombu",
    "zkrq.local",
    "zkrq.logs",
    "zkrq.opentelemetry",
    "zkrq.outbox",
    "zkrq.outbox.django",
    "zkrq.outbox.sqlalchemy",
    "zkrq.prometheus",
    "zkrq.sync",
    "zkrq.taskiq",
    "zkrq.testing",
    "zkrq.testing.plugin",
    "zkrq.typed",
)
"""Every module that users import."""


NO_PARAMETERS = {"self", "unknown"}
"""Parameters that users do not give: ``unknown`` has what they misspelt."""


def surface() -> str:
    """Return the list: one line for each name."""
    lines: list[str] = []
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            continue
        for each in sorted(getattr(module, "__all__", ())):
            lines += _lines(f"{name}.{each}", getattr(module, each))
    return "\n".join(lines) + "\n"


def _lines(name: str, thing: object) -> Iterator[str]:
    if inspect.ismodule(thing):
        return
    if isinstance(thing, type):
        yield from _class(name, cast("type[Any]", thing))
    elif inspect.isroutine(thing):
        yield f"{name}{_signature(thing)}"
    else:
        yield name


def _class(name: str, thing: type[Any]) -> Iterator[str]:
    if issubclass(thing, enum.Enum):
        yield name
        yield from (f"{name}.{member}" for member in thing.__members__)
        return
    made = _made_by_fields(thing) or "__init__" in vars(thing)
    yield f"{name}{_signature(thing) if made else ''}"
    for attribute in sorted(dir(thing)):
        if attribute.startswith("_"):
            continue
        owner = next(base for base in thing.__mro__ if attribute in vars(base))
        if not owner.__module__.startswith("zkrq"):
            continue
        value = inspect.getattr_static(thing, attribute)
        value = getattr(value, "__func__", value)  # of a classmethod
        yield f"{name}.{attribute}{_signature(value) if inspect.isroutine(value) else ''}"


def _made_by_fields(thing: type[Any]) -> bool:
    return dataclasses.is_dataclass(thing) or hasattr(thing, "_fields")


def _signature(thing: object) -> str:
    """Return the parameters with their defaults, without types, which pyright looks at."""
    try:
        signature = inspect.signature(thing)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return "(...)"
    empty = inspect.Parameter.empty
    parameters = [
        each.replace(annotation=empty) for each in signature.parameters.values() if each.name not in NO_PARAMETERS
    ]
    text = str(signature.replace(parameters=parameters, return_annotation=empty))
    return re.sub(r"<(?:function|class|object|<)?.*? at 0x\w+>+|<class '([\w.]+)'>", lambda m: m[1] or "...", text)


def changed(before: str, now: str) -> set[str]:
    """Return the last part of every name that was added, removed or changed."""
    difference = set(before.splitlines()) ^ set(now.splitlines())
    return {line.partition("(")[0].rpartition(".")[2] for line in difference}


def unexplained(before: str, now: str, notes: str) -> set[str]:
    """Return the changed names that the notes of the release do not mention as a word of code."""
    said = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", notes))))
    return changed(before, now) - said


def notes() -> str:
    """Return the newest section of CHANGELOG.md."""
    return (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]


def main() -> None:
    NOW.write_text(surface())
    if "--released" in sys.argv:
        RELEASED.write_text(NOW.read_text())


if __name__ == "__main__":
    main()
