"""An asyncio event loop with virtual time: the same seed gives the same run, callback for callback.

Only waiting takes time: when no callback is ready, the clock jumps to the next timer.  Callbacks run in the
order in which they became ready, as asyncio promises.  There are no sockets; messages from outside of a process are
scheduled with ``arrive_at``.

Every callback belongs to the ``Process`` whose name is in its context (contexts are inherited by tasks, timers and
their callbacks), so a process can be stopped, continued and killed between any two of its steps.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(Exception):
    """The run can go no further, or went on for longer than it may."""


class State(enum.Enum):
    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


class Process:
    """What is stopped, continued and killed as one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State.RUNNING
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self.clock = 0.0
        """Seconds by which its clock is ahead."""
        self.resumed_at = -1.0
        """When it last went on after a stop."""
        self.watched = False
        """Whether ``admits`` has to be asked; false for a process that simply runs."""
        self.turn = 0.0
        """Seconds that each turn of its event loop takes."""
        self._admitted = 0
        self._turns = False
        self._countdown = 0
        self._action: Callable[[], object] | None = None
        self._backlog: list[Step] = []
        self._left: list[asyncio.Task[Any]] = []

    def __repr__(self) -> str:
        return f"<Process {self.name} {self.state.value}>"

    def after_steps(self, steps: int, action: Callable[[], object]) -> None:
        """Call ``action`` between two steps of this process, so many of its steps from now."""
        self._countdown, self._action, self.watched = steps, action, True

    def pause(self) -> None:
        """Stop: none of its callbacks run, the clock runs on."""
        if self.state is State.RUNNING:
            self.state, self.watched = State.PAUSED, True

    def resume(self, loop: Loop) -> None:
        """Go on, as a real event loop does after a stop: first what was ready, then what has come in, then timers."""
        if self.state is State.PAUSED:
            self.watched = self._turns or self._action is not None
            self.state, self.resumed_at = State.RUNNING, loop.now
            backlog, self._backlog = self._backlog, []
            backlog.sort(key=lambda step: step.rank)
            self._admitted = len(backlog)
            loop.put_back(backlog)

    def drag(self, loop: Loop, turn: float) -> None:
        """Let each turn of this process's event loop take this many seconds from now on; 0: none."""
        self.turn = turn
        if turn and not self._turns and self.state is State.RUNNING:
            self.watched, self._turns = True, True
            loop.call_later(turn, self._next_turn, loop, context=WORLD)

    def _next_turn(self, loop: Loop) -> None:
        """Run what has become ready during the last turn, and what has come in."""
        if self.state is not State.RUNNING:
            self._turns = False  # ``resume`` puts back what has waited
            return
        backlog = [step for step in self._backlog if not step._cancelled]
        self._backlog = []
        backlog.sort(key=lambda step: step.rank)
        self._admitted = len(backlog)
        loop.put_back(backlog)
        self._turns = self.turn > 0
        if self._turns:
            loop.call_later(self.turn, self._next_turn, loop, context=WORLD)

    def kill(self) -> None:
        """Never run again.  What it was about to do is kept, so that nothing of it is finalised in the run."""
        self.state, self.watched = State.DEAD, True
        self._left = [task for task in asyncio.all_tasks() if isinstance(task, Task) and task.process is self]

    def call_off(self) -> None:
        """Forget what ``after_steps`` has asked for."""
        self._action = None

    def admits(self, step: Step) -> bool:
        """Whether this step runs now; otherwise it is kept."""
        if self.state is State.RUNNING and self._action is not None:
            self._countdown -= 1
            if self._countdown <= 0:
                action, self._action = self._action, None
                self.watched = self._turns
                action()
        if self.state is State.RUNNING:
            if not self._turns:
                return True
            if self._admitted:
                self._admitted -= 1
                return True
        self._backlog.append(step)
        return False


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)

WORLD = contextvars.Context()
"""The context of what belongs to no process: servers, the network, the ensemble."""


class Soon(asyncio.Handle):
    """A callback that is ready, and whose it is."""

    __slots__ = ("process",)

    rank = 0
    """Place among what has waited for a stopped process."""

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: Loop, context: contextvars.Context | None
    ) -> None:
        context = contextvars.copy_context() if context is None else context
        super().__init__(callback, args, loop, context)
        self.process = context.get(PROCESS)


class Timer(asyncio.TimerHandle):
    """A callback that is due at a moment, and whose it is."""

    __slots__ = ("process",)

    rank = 2

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: Loop,
        context: contextvars.Context | None,
    ) -> None:
        context = contextvars.copy_context() if context is None else context
        super().__init__(when, callback, args, loop, context)
        self.process = context.get(PROCESS)


class Arrival(Timer):
    """Something that comes to a process from outside, as bytes come to a socket."""

    __slots__ = ()
    rank = 1


Step = Soon | Timer


class Task(asyncio.Task[T]):
    """A task whose hash does not depend on where it lies in memory, so that sets of tasks keep their order."""

    numbers = itertools.count()

    def __init__(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        context: contextvars.Context | None,
        **options: Any,
    ) -> None:
        self._number = next(Task.numbers)
        context = contextvars.copy_context() if context is None else context
        self.process = context.get(PROCESS)
        super().__init__(coro, context=context, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class Loop(asyncio.AbstractEventLoop):
    """See the module.  ``steps`` counts callbacks; more than ``max_steps``, or a time beyond ``max_time``, is Stuck."""

    def __init__(self, *, max_time: float, max_steps: int) -> None:
        self.now = 0.0
        self.steps = 0
        self.skipped = 0.0
        """Seconds by which all clocks have gone on together while nobody ran: days pass so."""
        self.complaints: list[str] = []
        """What asyncio's exception handler was told of."""
        self.at_rest: Callable[[], object] = lambda: None
        """Called when nothing is ready, before the clock goes on; it must change nothing."""
        self._max_time = max_time
        self._max_steps = max_steps
        self._ready: deque[Step] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._running = False
        Task.numbers = itertools.count()

    # -- what asyncio calls ------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        step = Soon(callback, args, self, context)
        self._ready.append(step)
        return step

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = Timer(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def arrive_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context
    ) -> asyncio.TimerHandle:
        """Have something come to a process from outside."""
        arrival = Arrival(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), arrival))
        return arrival

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        return Task(coro, loop=self, name=None if name is None else str(name), context=context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._running:
            self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is dropped when it is due."""

    # -- running -----------------------------------------------------------------------------------------------------

    def put_back(self, steps: list[Step]) -> None:
        """Steps that had to wait run next."""
        self._ready.extend(steps)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until ``main`` ends.  Raises ``Stuck``."""
        task = self.create_task(main, name="main", context=WORLD.copy())
        self._running = True
        events._set_running_loop(self)
        try:
            self._run_until(task)
        finally:
            events._set_running_loop(None)
            self._running = False
        return task.result()

    def _run_until(self, task: asyncio.Task[Any]) -> None:
        ready, timers = self._ready, self._timers
        while not task.done():
            while timers and (not ready or timers[0][0] <= self.now):
                when, _, timer = heapq.heappop(timers)
                if timer._cancelled:
                    continue
                if when > self.now:
                    self.at_rest()
                    self.now = when
                ready.append(timer)
            if not ready:
                raise Stuck(f"nothing is left to do at {self.now:.3f} s")
            for _ in range(len(ready)):
                step = ready.popleft()
                if step._cancelled:
                    continue
                process = step.process
                if process is not None and process.watched and not process.admits(step):
                    continue
                self.steps += 1
                step._run()
            if self.now > self._max_time:
                raise Stuck(f"the run goes on after {self._max_time:g} s")
            if self.steps > self._max_steps:
                raise Stuck(f"the run goes on after {self._max_steps} steps, at {self.now:.3f} s")
