"""Blocks of Python in README and docs, and what it takes to run one inside a test."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


class Block(NamedTuple):
    """One fenced block of Python, by the page and the line where it begins."""

    page: str
    line: int
    runnable: bool
    """Whether it is a whole program."""
    code: str
    output: str
    """What it prints, if it is runnable: the block of text that follows it."""

    @property
    def opening(self) -> str:
        """Its first line, which names it among the blocks of its page."""
        return self.code.partition("\n")[0]


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(
            r"^```python( runnable)?\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", text, re.MULTILINE | re.DOTALL
        ):
            line = text.count("\n", 0, match.start()) + 1
            yield Block(page.name, line, bool(match[1]), match[2], match[3] or "sending to ann@example.org\n")


def snippet(page: str, opening: str) -> str:
    """The one block of a page whose first line begins so."""
    (found,) = (each.code for each in blocks() if each.page == page and each.opening.startswith(opening))
    return found


async def execute(code: str, **names: Any) -> dict[str, Any]:
    """Run a piece of a program, in which these names are known; ``await`` needs no function around it."""
    sys.modules["snippet"] = module = ModuleType("snippet")  # where frameworks look for the functions of their tasks
    known = module.__dict__
    known.update(names)
    running = eval(compile(code, "snippet", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), known)
    if inspect.isawaitable(running):
        await running
    return known


def pointed(code: str, redis: Sequence[str], zookeeper: str, namespace: str) -> str:
    """The same code with servers that exist: the nth URL of Redis is that of ``10.0.0.n`` in the pages."""
    code = re.sub(r'"rediss?://[^"]*10\.0\.0\.(\d)[^"]*"', lambda found: repr(redis[int(found[1]) - 1]), code)
    return re.sub(r'"zk1[^"]*"', repr(zookeeper), code).replace('namespace="shop"', f"namespace={namespace!r}")
