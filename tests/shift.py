"""Set the clock of one real Redis server, and of no other program on this machine.

    shift = Shift(folder)                # compiles shift.c
    clock = shift.clock_of(server)       # from the server's next start on
    await server.restart()
    clock.set(+3600)                     # seconds ahead, now; 0: right
    clock.give_back()                    # from the next start on, the server runs as before

The server's libc is asked for the time through a library that is loaded before it (``shift.c``), which adds what stands
in a file.  libfaketime does not start with Redis, because of its memory allocator.
"""

from __future__ import annotations

import shlex
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from zkrq import local
from zkrq.local import private

SOURCE = Path(__file__).with_name("shift.c")
SECONDS = struct.Struct("=q")
COMPILER = "cc"

WHY_NOT = (
    "clocks of single processes are set with LD_PRELOAD, on Linux"
    if sys.platform != "linux"
    else ""
    if shutil.which(COMPILER)
    else "not installed: cc, which compiles what sets a server's clock"
)
"""Why no clock can be set on this machine; empty if it can."""


class Shift:
    """The compiled library, in a folder that outlives every server that runs with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = folder / "shift.so"
        subprocess.run(
            [COMPILER, "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", self._library, SOURCE], check=True
        )

    def clock_of(self, server: local.LocalRedis) -> ServerClock:
        """Have the server started with a clock that can be set, from its next start on."""
        return ServerClock(server, self._folder, self._library)


class ServerClock:
    """The clock of one server."""

    def __init__(self, server: local.LocalRedis, folder: Path, library: Path) -> None:
        self._server = server
        self._executable = private._redis_executable()  # pyright: ignore[reportPrivateUsage]
        self._file = folder / f"{server.name}-{server.port}.shift"
        self._file.write_bytes(SECONDS.pack(0))
        wrapper = self._file.with_suffix(".sh")
        loaded = f"LD_PRELOAD={shlex.quote(str(library))} SHIFT_FILE={shlex.quote(str(self._file))}"
        wrapper.write_text(f'#!/bin/sh\n{loaded} exec {shlex.quote(self._executable)} "$@"\n')
        wrapper.chmod(0o755)
        server._executable = str(wrapper)  # pyright: ignore[reportPrivateUsage]

    def set(self, seconds: int) -> None:
        """Have the clock differ from this machine's by these seconds, positive: ahead."""
        with self._file.open("r+b", buffering=0) as file:  # in place: the server has mapped it
            file.write(SECONDS.pack(seconds))

    def give_back(self) -> None:
        """Set the clock right, and have the server started as before from its next start on."""
        self.set(0)
        self._server._executable = self._executable  # pyright: ignore[reportPrivateUsage]
