"""Say what a starter and its children need to know of the program, and import its main module in them."""

from __future__ import annotations

import pickle
import runpy
import signal
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from zkrq.base.errors import ConfigError, message_of

if TYPE_CHECKING:
    from zkrq.base.codecs import Codec
    from zkrq.base.limits import Results

READ_BYTES = 1 << 16
"""Bytes that are read at a time."""

MAIN = "__mp_main__"
"""Name under which the program's main module is imported again, that of ``multiprocessing``: what stands under
``if __name__ == "__main__"`` is not run."""

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")

IGNORED = tuple(signal.Signals[name] for name in _NAMES if hasattr(signal, name))
"""Signals that may be sent to all processes of a program to stop it: the parent drains, and ends these in time."""


class PooledHandler(NamedTuple):
    """A handler, with what a child needs to call it.

    ``queue``: its name.  ``results``: how to encode what the handler returns, None: the queue keeps no results.
    ``saved``: what encodes saved states.  ``per_step``: whether a save begins the attempts anew.
    """

    call: Callable[..., object]
    takes_claim: bool
    is_async: bool
    queue: str
    codec: Codec[Any]
    results: Results[Any] | None
    saved: Codec[Any]
    per_step: bool
    claim_timeout: float


class Setup(NamedTuple):
    """What a starter and its children need to know.

    ``path``, ``arguments``: of the parent's interpreter.  ``main``: name or file of its main module, empty: nothing of
    it is needed.  ``preload``: modules.  ``handlers``: pickled.  ``loop``: module that makes event loops.  ``levels``:
    of loggers, by name.  ``measures``: whether children say how much memory they use.
    """

    path: list[str]
    arguments: list[str]
    main: str
    main_is_file: bool
    preload: list[str]
    handlers: bytes
    loop: str
    levels: dict[str, int]
    measures: bool


def load_main(setup: Setup) -> None:
    """Import the program's main module under its second name, unless it is there."""
    if not setup.main or MAIN in sys.modules:
        return
    if setup.main_is_file:
        names = runpy.run_path(setup.main, run_name=MAIN)
    else:
        names = runpy.run_module(setup.main, run_name=MAIN, alter_sys=True)
    module = types.ModuleType(MAIN)
    module.__dict__.update(names)
    sys.modules["__main__"] = sys.modules[MAIN] = module


def check_found(handler: PooledHandler, name: str) -> None:
    """Raise ``ConfigError`` unless a child finds a handler, and the codecs, by their names."""
    try:
        pickle.dumps(handler.call)
    except Exception as error:
        raise ConfigError(
            f"{name} cannot be sent to a process, which finds it by its module and name: define it at the top level of "
            f"a module, and make connections inside of it ({message_of(error)})"
        ) from error
    try:
        pickle.dumps(handler)
    except Exception as error:
        raise ConfigError(
            f"the codecs of queue {handler.queue!r} cannot be sent to a process: {message_of(error)}"
        ) from error


def modules_of(handlers: Sequence[PooledHandler]) -> Iterator[str]:
    """Iterate over the modules in which handlers are defined."""
    seen = set[str]()
    for handler in handlers:
        call: Any = handler.call
        while isinstance(call, partial):
            call = cast("Any", call).func
        name = getattr(call, "__module__", None) or type(call).__module__
        if isinstance(name, str) and name not in seen:
            seen.add(name)
            yield name
