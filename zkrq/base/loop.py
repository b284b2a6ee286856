"""Bind a cluster to its own event loop, and so to the process, in which it was opened.

Its connections, futures and tasks belong to that loop.  A call from another one would wait for ever, and a call from a
forked process would also write into the connections of its parent.  So every public call compares the running loop
with the cluster's.  A forked process has no running loop and starts new ones, so comparing loops covers both cases.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from zkrq.base.errors import WrongLoop

running_loop = asyncio._get_running_loop  # pyright: ignore[reportPrivateUsage]
"""Return the running event loop, or None.  Implemented in C, so a call per item costs almost nothing."""


class OwnLoop:
    """Remember the event loop of a cluster."""

    __slots__ = ("_process", "loop")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def settle(self) -> None:
        """Bind the cluster to the running loop."""
        self.loop = asyncio.get_running_loop()
        self._process = os.getpid()

    def check(self) -> None:
        """Raise ``WrongLoop`` on another event loop or in another process, before anything has happened."""
        if running_loop() is not self.loop:
            raise self.elsewhere()

    def elsewhere(self) -> WrongLoop:
        """Return the error for a call from another event loop or process."""
        if self._process != os.getpid():
            where, each = f"process {self._process}, and this is another one, made by a fork", "process"
        else:
            where, each = "another event loop", "event loop"
        return WrongLoop(f"the cluster was opened in {where}: open one of its own, with connect(), in each {each}")

    def run(self, act: Callable[[], object]) -> None:
        """Call ``act`` on the cluster's loop: now, or soon if another thread asks; not at all after a fork."""
        if running_loop() is self.loop:
            act()
        elif self.loop and self._process == os.getpid():
            self.loop.call_soon_threadsafe(act)
