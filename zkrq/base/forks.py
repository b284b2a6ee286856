"""Undo in forked children what belongs to their parent alone, such as its signal handlers and its listening sockets.

A child has a copy of everything, and its handlers of signals with it: they would act on a copy of the parent's event
loop that runs no more, and wake the parent's, while the child goes on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

depth: int = 0
"""Forks between the process that imported this and this one: code that finds it changed runs in a child."""

_undoings: dict[object, Callable[[], object]] = {}
"""What to call in a child, by keys of no meaning."""


def call_in_forks(act: Callable[[], object]) -> None:
    """Call ``act`` in each child that is forked from now on, for good; never on Windows, which has no fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=act)


@contextmanager
def undone_in_forks(undo: Callable[[], object]) -> Generator[None]:
    """Call ``undo`` in each child that is forked before this is left, by any thread.

    A signal that ends processes reaches such a child afterwards, also one that was sent before.
    """
    key = object()
    _undoings[key] = undo
    try:
        yield
    finally:
        _undoings.pop(key, None)  # a child has none


class _Blocked(threading.local):
    """What the thread that forks has blocked before, None: nothing is to be undone in the child."""

    mask: set[int | signal.Signals] | None = None


_blocked = _Blocked()


def end_child(error: BaseException | None) -> None:
    """End a forked child that has come back to what only its parent may do, by ``error`` or without one.

    The exit code is that of ``SystemExit``, 1 for another error, 0 without one.
    """
    code: object = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code or 0
    elif error is not None:
        traceback.print_exception(error)
    if not isinstance(code, int):
        code = _say(str(code))
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


def _say(text: str) -> int:
    with suppress(Exception):
        sys.stderr.write(f"{text}\n")
    return 1


def _before() -> None:
    """Hold signals back, because one that reaches the child before its handlers are undone would be lost."""
    if _undoings:
        held_back = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
        _blocked.mask = signal.pthread_sigmask(signal.SIG_BLOCK, held_back)


def _after() -> None:
    if _blocked.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _blocked.mask)
        _blocked.mask = None


def _after_in_child() -> None:
    global depth
    depth += 1
    undoings = list(_undoings.values())
    _undoings.clear()
    for undo in undoings:
        undo()
    _after()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
