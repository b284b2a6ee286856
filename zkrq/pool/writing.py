"""Write to a connection without waiting: what it does not take now follows as soon as it does."""

from __future__ import annotations

import asyncio
import socket


class Writer:
    """The writing half of a connection, on the event loop that runs."""

    __slots__ = ("_end", "_loop", "_unsent")

    def __init__(self, end: socket.socket) -> None:
        """``end``: does not block, and stays open until ``detach`` is called."""
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()

    @property
    def is_behind(self) -> bool:
        """Whether something has not been sent yet."""
        return bool(self._unsent)

    def send(self, data: bytes) -> bool:
        """Send this behind what was sent before; False: the other end is closed."""
        if not self._unsent:
            try:
                sent = self._end.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return False
            if sent == len(data):
                return True
            data = data[sent:]
            self._loop.add_writer(self._end, self._write)
        self._unsent += data
        return True

    def _write(self) -> None:
        try:
            del self._unsent[: self._end.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()
        if not self._unsent:
            self._loop.remove_writer(self._end)

    def detach(self) -> None:
        """Send no more."""
        self._loop.remove_writer(self._end)
