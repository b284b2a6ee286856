"""Read the handler that a user gives to a worker: with the item, or item and claim; with the items of a batch, or the
items and the batch; on the event loop or in a thread."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, cast

from zkrq.base import forks
from zkrq.base.checks import Duration, check_duration, check_kind, check_task
from zkrq.base.errors import ConfigError
from zkrq.base.meant import names_fields
from zkrq.base.retry import Retry
from zkrq.consuming.batch import Batch
from zkrq.consuming.claims import Claim

T = TypeVar("T")

Handler: TypeAlias = Callable[[T], object] | Callable[[T, Claim[T]], object]
"""A function that works on an item.  It gets the item, or the item and its claim if it has two parameters without a
default.  An ``async def`` runs on the event loop, any other function in a thread; an awaitable that it returns is
awaited on the event loop."""

BatchHandler: TypeAlias = Callable[[list[T]], object] | Callable[[list[T], Batch[T]], object]
"""A function that works on the items of a batch.  It gets the items, or the items and the batch if it has two
parameters without a default.  Otherwise as ``Handler``."""

NO_TASK = ""
"""Stands in a mapping of handlers for items that were pushed without a task."""


@names_fields("zkrq.Task")
@dataclass(frozen=True, slots=True)
class Task(Generic[T]):
    """A handler in a mapping of handlers, with options of its own.

    ``time_limit``: seconds that it may take for one item, None: as ``Worker.add`` says for all of them.  ``retry``:
    what follows a failure of one of its items in this worker, None: the policy of the queue.  Raises ``ConfigError``
    for bad values.
    """

    handler: Handler[T]
    time_limit: Duration | None = None
    retry: Retry | None = None

    def __post_init__(self) -> None:
        check_kind("retry", self.retry, Retry)
        if self.time_limit is not None:
            object.__setattr__(self, "time_limit", check_duration("time_limit", self.time_limit, positive=True))


Handlers: TypeAlias = Mapping[str, Handler[T] | Task[T]]
"""Handlers of one queue by the names of tasks; ``""`` stands for items that were pushed without one."""

Read: TypeAlias = Callable[[Callable[..., object]], tuple[Callable[[Any], object], bool]]
"""Returns what calls a handler with a claim, and whether to use a thread.  Raises ``ConfigError``."""

OF_ARQ = "ctx"
"""Name of the first parameter that arq and SAQ give to each handler: here it would be the item."""


def by_task(handler: object) -> Mapping[str, Task[Any]] | None:
    """Return the handlers that were given to ``Worker.add`` as a mapping; None: it is one handler.

    Raises ``ConfigError`` for an empty mapping, and for names that no task may have.
    """
    if not isinstance(handler, Mapping):
        return None
    if not handler:
        raise ConfigError("the mapping of handlers is empty: give a handler for each task")
    tasks: dict[str, Task[Any]] = {}
    for name, given in cast("Handlers[Any]", handler).items():
        if name != NO_TASK:
            check_task("the name of a task", name)
        tasks[name] = cast("Task[Any]", given) if isinstance(given, Task) else Task(given)
    return tasks


def read_handler(handler: Callable[..., object]) -> tuple[Callable[[Claim[Any]], object], bool]:
    """Return a function that calls it with a claim, and whether to use a thread.  Raises ``ConfigError``."""
    in_thread = runs_in_thread(handler)
    if takes_claim(handler):
        return _in_this_process(lambda claim: handler(claim.item, claim), in_thread), in_thread
    return _in_this_process(lambda claim: handler(claim.item), in_thread), in_thread


def read_batch_handler(handler: Callable[..., object]) -> tuple[Callable[[Batch[Any]], object], bool]:
    """Return a function that calls it with a batch, and whether to use a thread.  Raises ``ConfigError``."""
    in_thread = runs_in_thread(handler)
    if takes_claim(handler, "the items, or the items and their batch"):
        return _in_this_process(lambda batch: handler(batch.items, batch), in_thread), in_thread
    return _in_this_process(lambda batch: handler(batch.items), in_thread), in_thread


def _in_this_process(call: Callable[[T], Any], in_thread: bool) -> Callable[[T], object]:
    """Have the handler end in the process that called it alone.

    A child that it forks has a copy of the worker, too: where it comes back, by a return or ``sys.exit()``, it would
    settle the item over the connections of its parent, or wait in a copy of its thread for good.  So it is ended there.
    """

    def of_thread(work: T) -> object:
        begun = forks.depth
        try:
            return call(work)
        finally:
            if forks.depth != begun:
                forks.end_child(sys.exception())

    async def of_loop(work: T) -> object:
        begun = forks.depth
        try:
            return await call(work)
        finally:
            if forks.depth != begun:
                forks.end_child(sys.exception())

    return of_thread if in_thread else of_loop


def runs_in_thread(handler: Callable[..., object]) -> bool:
    """Tell whether a handler runs in a thread.  Raises ``ConfigError``."""
    if not callable(handler):
        raise ConfigError(f"the handler must be a function, not {type(handler).__name__}")
    functions = (handler, getattr(handler, "__call__", None))  # noqa: B004
    if any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in functions):
        raise ConfigError("the handler is a generator: calling it would do nothing")
    return not any(map(inspect.iscoroutinefunction, functions))


def name_of(handler: Callable[..., object]) -> str:
    """Return the name by which logs call a handler."""
    name = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    return str(name).replace("<locals>.", "")


def takes_claim(handler: Callable[..., object], wanted: str = "the item, or the item and its claim") -> bool:
    """Tell whether a handler takes a claim beside the item, or ``wanted``.  Raises ``ConfigError``."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # written in C
        return False
    if next(iter(signature.parameters), "") == OF_ARQ:
        raise ConfigError(
            f"{name_of(handler)}{signature}: a handler gets {wanted}, and no {OF_ARQ} as in arq and SAQ: remove that "
            "parameter, or rename it if it is the item"
        )
    for arguments in ((None,), (None, None)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2
    raise ConfigError(f"the handler must take {wanted}, not {signature}")
