"""Connect a supervisor with each of its processes, by a pair of sockets that is made before the process is started.

The process inherits one end, so it needs no directory and no name.  The kernel closes the supervisor's end however and
whenever that dies, also before the process comes to look: whatever it does then, it drains.  (It cannot find that out
by comparing process ids, since the supervisor may have died before the first look.)  The number of the inherited end is
in a variable that the process removes before it does anything else, so nothing that handlers start takes itself for a
process of this supervisor.

The process says on lines of their own that it answers probes, and its states, as to systemd.  A probe travels the other
way: one byte with a connection of its own, on which HTTP is spoken.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Self

from zkrq.base.errors import ConfigError
from zkrq.base.forks import undone_in_forks
from zkrq.process.listening import Answerer, Respond

CONTROL = "ZKRQ_WORKER_CONTROL"
"""Environment variable of a supervised process: the number of the file that is its end."""

ANSWERS = "PROBES=1"
"""What a process says when it answers probes."""

SAID_BYTES = 256
"""Bytes that are read at a time of what a process says: several lines, of which it writes each in one piece."""


class Line:
    """The supervisor's end, for one process after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end: socket.socket | None = None
        self._answers = False

    @contextmanager
    def opened(self) -> Generator[tuple[socket.socket, socket.socket]]:
        """Make a pair for a process that is about to be started; yield this end and the process's."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            with self._lock:
                self._end, self._answers = ours, False
            try:
                yield ours, theirs
            finally:
                with self._lock:
                    self._end = None

    def hear(self, end: socket.socket) -> list[str] | None:
        """Return what the process has said meanwhile, None if it will say no more."""
        try:
            said = end.recv(SAID_BYTES).decode(errors="replace").splitlines()
        except BlockingIOError:
            return []
        except ConnectionResetError:
            return None
        if ANSWERS in said:
            self._answers = True
        return said or None

    def connect(self) -> socket.socket | None:
        """Return a connection to the process, in any thread; None if it does not run, or does not answer probes yet.

        Raises ``OSError`` if it takes no more.
        """
        with self._lock:
            if self._end is None or not self._answers:
                return None
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    socket.send_fds(self._end, [b"c"], [theirs.fileno()])
                except (BrokenPipeError, ConnectionResetError):  # it has just ended
                    ours.close()
                    return None
                except OSError:
                    ours.close()
                    raise
            return ours


class Supervised:
    """The end of a process: get SIGTERM when the supervisor has died, tell it when this one is ready, answer its
    probes."""

    def __init__(self, end: socket.socket, died: Callable[[], object]) -> None:
        """``died``: what to do, in a thread, when the supervisor has died."""
        self._end = end
        self._died = died
        self._answerer: Answerer | None = None

    @classmethod
    def inherited(cls) -> Self | None:
        """Take the end that this process has inherited; None if it is no process of a supervisor.

        Raises ``ConfigError`` if the variable names none.
        """
        number = os.environ.pop(CONTROL, None)
        if number is None:
            return None
        try:
            end = socket.socket(fileno=int(number))
        except (ValueError, OSError) as error:
            raise ConfigError(
                f"{CONTROL} is {number!r}, which is no socket of this process: unset it, `--processes` sets it itself"
            ) from error
        end.set_inheritable(False)
        return cls(end, partial(os.kill, os.getpid(), signal.SIGTERM))

    @contextmanager
    def watching(self) -> Generator[None]:
        """Watch the supervisor: when it has died, no other process would end this one."""
        threading.Thread(target=self._watch, name="zkrq supervisor", daemon=True).start()
        with undone_in_forks(self._end.close):
            yield

    @contextmanager
    def answering(self, respond: Respond) -> Generator[None]:
        """Answer the supervisor's probes, from threads."""
        self._answerer = Answerer(respond)
        self.tell(ANSWERS)
        yield

    def tell(self, state: str) -> None:
        """Tell the supervisor a state, as ``notify`` does the service manager."""
        with suppress(OSError):  # the supervisor has died, which ``_watch`` sees
            self._end.send(f"{state}\n".encode())

    def _watch(self) -> None:
        while True:
            try:
                word, files, *_ = socket.recv_fds(self._end, 1, 1, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
            except OSError:
                break
            if not word:
                break
            for file in files:
                connection = socket.socket(fileno=file)
                connection.set_inheritable(False)
                with suppress(RuntimeError):  # no thread could be started
                    if self._answerer:
                        self._answerer.take(connection)
        self._died()
