"""Show the live table; the only module that imports rich."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TextIO

from rich import box
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from zkrq.cli.demo.display import Display, Snapshot, stamped


class _Live:
    """Scroll events above a table of the present state."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._began = time.monotonic()

    def say(self, text: str, *, deed: bool = False) -> None:
        self._live.console.print(Text(stamped(self._began, text, deed), style="bold red" if deed else ""))

    def show(self, snapshot: Snapshot) -> None:
        whole = Table.grid(expand=True)
        whole.add_row(_figures(snapshot))
        whole.add_row(_cast(snapshot))
        title = f"zkrq demo, {time.monotonic() - self._began:.0f} s"
        self._live.update(Panel(whole, title=title, title_align="left"), refresh=True)


@contextmanager
def live(stream: TextIO) -> Generator[Display, None, None]:
    """Show a live table on a terminal; the lines above it stay when it ends."""
    with Live(console=Console(file=stream, highlight=False), auto_refresh=False, transient=True) as shown:
        yield _Live(shown)


def _figures(snapshot: Snapshot) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for name in snapshot.figures:
        table.add_column(name, justify="right")
    table.add_row(*(Text(figure, style="bold") for figure in snapshot.figures.values()))
    return table


def _cast(snapshot: Snapshot) -> Table:
    table = Table.grid(padding=(0, 2))
    for kind, members in snapshot.cast.items():
        states = (Text(f"{name} {state or 'killed'}", style="" if state else "red") for name, state in members.items())
        table.add_row(Text(kind, style="dim"), *states)
    return table
