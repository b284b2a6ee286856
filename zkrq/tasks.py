"""Background tasks that belong to somebody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Self, TypeVar

import anyio

from zkrq.errors import Closed

STOP_TIMEOUT = 5.0
"""Seconds that cancelled tasks are given to end."""

T = TypeVar("T")

RESTART_PAUSE = 1.0
"""Seconds before a background loop that failed is begun again."""

_log = logging.getLogger("zkrq")


class Tasks:
    """A task group for background work: ``async with`` owns it, a failing task is logged and takes nobody with it.

    The group lives in a task of its own, so that it may be entered and left in different tasks of the user.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._group: asyncio.TaskGroup | None = None
        self._runner: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        opened = asyncio.get_running_loop().create_future()
        self._runner = asyncio.create_task(self._run(opened), name=f"{self._name}: tasks")
        try:
            await opened
        except BaseException:  # cancelled before it began
            self._runner.cancel()
            raise
        return self

    async def _run(self, opened: asyncio.Future[None]) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            if not opened.done():
                opened.set_result(None)
            await asyncio.get_running_loop().create_future()  # until cancelled

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        runner, self._group = self._runner, None
        if runner is None:
            return
        runner.cancel()
        with anyio.CancelScope(shield=True), anyio.move_on_after(STOP_TIMEOUT):
            await asyncio.wait([runner])
        if not runner.done():
            _log.error("%s: tasks did not end within %s s", self._name, STOP_TIMEOUT)

    def start(self, work: Coroutine[object, object, T], name: str) -> asyncio.Task[T | None]:
        """Run ``work`` until it ends or the group is left.  Raises ``Closed``."""
        if self._group is None:
            work.close()
            raise Closed(f"{self._name} is closed")
        return self._group.create_task(self._guard(work, name), name=f"{self._name}: {name}")

    def keep(self, work: Callable[[], Coroutine[object, object, None]], name: str) -> asyncio.Task[None]:
        """Run ``work`` until the group is left; when a mistake of ours ends it, it is logged and begun again."""

        async def again_and_again() -> None:
            while True:
                await self._guard(work(), name)
                await asyncio.sleep(RESTART_PAUSE)

        return self.start(again_and_again(), name)

    async def _guard(self, work: Coroutine[object, object, T], name: str) -> T | None:
        try:
            return await work
        except Exception:
            _log.exception("%s: %s failed", self._name, name)
            return None
