"""Show on a terminal how far long work is: a bar if rich is installed (extra ``cli``), lines otherwise."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.util import find_spec

from zkrq.base.errors import ZkrqError

LOOK_SECONDS = 0.5
"""Seconds between two looks at what is left."""

LINE_SECONDS = 2.0
"""Seconds between two lines where there is no bar; the first comes after as many, so short work shows none."""

Show = Callable[[int], None]
"""Shows the number of items done."""


@contextmanager
def progress(label: str, total: int | None = None, *, hidden: bool = False) -> Generator[Show, None, None]:
    """Show progress on stderr if that is a terminal.  ``total``: number of items, None: unknown."""
    if hidden or not sys.stderr.isatty():
        yield lambda done: None
    elif find_spec("rich"):
        with _bar(label, total) as show:
            yield show
    else:
        yield _lines(label, total)


@asynccontextmanager
async def follow(label: str, count_left: Callable[[], Awaitable[int]]) -> AsyncGenerator[None, None]:
    """Show the progress of work that reduces a number, which is asked for now and then, while the body runs."""
    if not sys.stderr.isatty():
        yield
        return

    async def look() -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(ZkrqError):
                show(max(0, total - await count_left()))

    total = await count_left()
    with progress(label, total) as show:
        looking = asyncio.create_task(look())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait([looking])


def _lines(label: str, total: int | None) -> Show:
    shown_at = time.monotonic()

    def show(done: int) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= LINE_SECONDS:
            shown_at = time.monotonic()
            sys.stderr.write(f"{label} {done:,}" + ("\n" if total is None else f" of {total:,}\n"))

    return show


@contextmanager
def _bar(label: str, total: int | None) -> Generator[Show, None, None]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)
