"""Guard private servers: end them and remove their directory once their parent process is gone.

``zkrq.local`` runs this file as a process of its own, so it imports the standard library only.  The guard leads the
process group that the servers are put into (between fork and exec, so none is missed), and reads from a pipe whose
other end its parent holds.  The kernel closes that end however the parent ends: normally, by an exception, a second
Ctrl-C, kill -9.  Then the guard kills the group, including paused members, and removes the directory.  No pid is stored
anywhere, so a pid that was reused meanwhile cannot be hit: the guard's own pid is the group's number, and the guard is
alive.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

# The file in the directory that shows that the guard is running.
ON_DUTY = "guarded"
# Seconds between checks of the parent.  The pipe alone is not enough, because a fork of the parent keeps it open.
PARENT_CHECK = 1.0
# Seconds within which the killed servers must have stopped writing into the directory.
REMOVAL_TIMEOUT = 10.0


def main(directory: Path) -> None:
    """Wait for the end of the parent, then clean up."""
    # The whole group gets a hang-up when the parent dies while a member is paused.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()
    (directory / ON_DUTY).touch()
    while os.getppid() == parent and not select.select([sys.stdin], [], [], PARENT_CHECK)[0]:
        pass
    sweep(directory)


def sweep(directory: Path) -> None:
    """Kill this process's group and remove the directory; a child outside the group does it, because it must
    survive."""
    group = os.getpgrp()
    child = os.fork()
    if child:
        os.waitpid(child, 0)  # does not normally return: the child kills this process too
        return
    os.setpgid(0, 0)
    os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + REMOVAL_TIMEOUT
    while directory.exists() and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.005)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
