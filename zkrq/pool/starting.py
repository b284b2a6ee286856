"""Start the starter of a pool, and speak with it: the parent's end."""

from __future__ import annotations

import asyncio
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from zkrq.base.threads import Threads
from zkrq.pool.frames import UP_MAX, Frames, Kind, Told, decode_up, encode_down, frame
from zkrq.pool.setup import READ_BYTES, Setup
from zkrq.pool.writing import Writer

CLOSE_SECONDS = 1.0
"""Seconds that a starter has to end."""

_waiting = Threads("zkrq waits for a process", most=4)


class Starting:
    """A starter that runs."""

    def __init__(self, setup: Setup, hear: Callable[[int, Told], object], ended: Callable[[], object]) -> None:
        """``hear``: called with what it says.  ``ended``: called when it is gone.  Raises ``OSError``."""
        self._loop = asyncio.get_running_loop()
        self._hear = hear
        self._ended = ended
        self._frames = Frames(UP_MAX)
        self._control, theirs = socket.socketpair()
        try:
            with theirs:
                # Its first words wait in the connection: it reads them once it has begun.
                line, end = _command(theirs.fileno()), theirs.fileno()
                self._process = subprocess.Popen(line, stdin=subprocess.DEVNULL, pass_fds=[end])  # noqa: S603
        except BaseException:
            self._control.close()
            raise
        self._control.setblocking(False)
        self._writer = Writer(self._control)
        self._is_open = True
        self._loop.add_reader(self._control, self._read)
        self._writer.send(frame(Kind.BEGIN, marshal.dumps(tuple(setup))))

    @property
    def process(self) -> int:
        """Number of its process."""
        return self._process.pid

    def fork(self, child: int, end: socket.socket) -> None:
        """Have it fork a child with this end of a connection."""
        data = encode_down(Kind.ITEM, child)
        if self._writer.is_behind:  # descriptors travel with bytes, which must not overtake others
            self._loop.call_later(0.01, self._fork_later, child, end.dup())
            return
        try:
            sent = socket.send_fds(self._control, [data], [end.fileno()])
        except BlockingIOError:
            self._loop.call_later(0.01, self._fork_later, child, end.dup())
            return
        except OSError:  # it has ended; its reader tells
            return
        if sent < len(data):
            self._writer.send(data[sent:])

    def _fork_later(self, child: int, end: socket.socket) -> None:
        with end:
            if self._is_open:
                self.fork(child, end)

    def signal(self, child: int, number: signal.Signals) -> None:
        """Have it send a signal to a child, if that still is."""
        if self._is_open:
            self._writer.send(encode_down(Kind.SIGNAL, child, int(number)))

    async def aclose(self) -> None:
        """End it, and the children that are left; it kills them.  Not if it still imports: then it has none."""
        if not self._is_open:
            return
        self._shut()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await _waiting.run(self._process.wait)
        finally:
            self._process.kill()
            self._process.wait()

    def _shut(self) -> None:
        self._is_open = False
        self._loop.remove_reader(self._control)
        self._writer.detach()
        self._control.close()

    def _read(self) -> None:
        try:
            data = self._control.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._shut()
            self._process.kill()
            self._process.wait()  # its connection is closed when it has as good as ended
            self._ended()
            return
        for kind, body in self._frames.feed(data):
            self._hear(kind, decode_up(body))


def main_of_program() -> tuple[str, bool]:
    """Return the name or the file of the main module, and whether it is a file; empty: children cannot import it."""
    module = sys.modules["__main__"]
    spec = getattr(module, "__spec__", None)
    name = getattr(spec, "name", None)
    if isinstance(name, str):
        return ("", False) if name == "__main__" or name.endswith(".__main__") else (name, False)
    file = getattr(module, "__file__", None)
    return (file, True) if isinstance(file, str) else ("", False)


def _command(descriptor: int) -> Sequence[str]:
    """Return the command of a starter for this process."""
    flags: Any = vars(subprocess).get("_args_from_interpreter_flags", list)
    text = (
        f"import sys; sys.path[:] = {sys.path!r}; from zkrq.pool.starter import main; main({descriptor}, {os.getpid()})"
    )
    return [sys.executable, *flags(), "-c", text]
