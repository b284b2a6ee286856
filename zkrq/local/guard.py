"""The guard of private servers: ends them and removes their directory once their parent is gone.

``zkrq.local`` runs this file as a process of its own, so it imports the standard library only.  The guard leads the
process group that the servers are put into (between fork and exec, so not one is missed), and reads from a pipe whose
other end its parent holds.  The kernel closes that end whatever becomes of the parent: an orderly end, an exception,
a second Ctrl-C, kill -9.  Then the guard kills the group, paused members too, and removes the directory.  No pid is
written down anywhere, so no pid that was given to somebody else since can be hit: the guard's own pid is the group's
number, and the guard is alive.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

# The file in the directory that says so.
ON_DUTY = "guarded"
# Seconds.  The pipe alone is not enough: a fork of the parent keeps it open.
PARENT_CHECK = 1.0
# Seconds within which the killed servers must have stopped writing into the directory.
REMOVAL_TIMEOUT = 10.0


def main(directory: Path) -> None:
    """Wait for the end of the parent, then sweep."""
    # A hang-up is sent to the whole group when the parent dies while a member is paused.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()
    (directory / ON_DUTY).touch()
    while os.getppid() == parent and not select.select([sys.stdin], [], [], PARENT_CHECK)[0]:
        pass
    sweep(directory)


def sweep(directory: Path) -> None:
    """Kill this process's group and remove the directory; a child outside the group does it, so that it survives."""
    group = os.getpgrp()
    child = os.fork()
    if child:
        os.waitpid(child, 0)  # never returns, if all is well: the child kills this process too
        return
    os.setpgid(0, 0)
    os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + REMOVAL_TIMEOUT
    while directory.exists() and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.005)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
