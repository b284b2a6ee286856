"""Tasks that run up to their first wait where they are made: ``asyncio.eager_task_factory``, also for Python 3.11.

The double steps pure Python tasks, as Python 3.12 does.  Tasks of anyio's groups are left out of it: anyio keeps them
from the real factory as well.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
from collections.abc import Coroutine, Generator
from types import FrameType
from typing import Any, cast


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop whose tasks are eager."""
    loop = asyncio.new_event_loop()
    loop.set_task_factory(eager_task_factory)
    return loop


if sys.version_info >= (3, 12):
    eager_task_factory = asyncio.eager_task_factory
else:
    _PyTask: Any = asyncio.tasks._PyTask  # pyright: ignore
    _enter: Any = asyncio.tasks._enter_task  # pyright: ignore
    _leave: Any = asyncio.tasks._leave_task  # pyright: ignore

    class EagerTask(_PyTask):
        """A task whose first step is made by its constructor."""

        def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: Any, context: contextvars.Context | None) -> None:
            context = context or contextvars.copy_context()
            task = cast("Any", super())
            task.__init__(coro, loop=loop, context=context)
            loop._ready.pop().cancel()  # the first step, which has just been scheduled
            if maker := asyncio.current_task(loop):
                _leave(loop, maker)
            try:
                context.run(task._Task__step)
            finally:
                if maker:
                    _enter(loop, maker)

    def eager_task_factory(
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        *,
        context: contextvars.Context | None = None,
    ) -> asyncio.Future[Any]:
        if not loop.is_running() or _makes_anyio(inspect.currentframe()):
            return asyncio.Task(coro, loop=loop, context=context)
        make: Any = EagerTask
        return make(coro, loop=loop, context=context)

    def _makes_anyio(frame: FrameType | None) -> bool:
        """Tell whether the first caller outside of asyncio is anyio."""
        while frame and frame.f_globals["__name__"].startswith(("asyncio.", __name__)):
            frame = frame.f_back
        return bool(frame and str(frame.f_globals["__name__"]).startswith("anyio."))
