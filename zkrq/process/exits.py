"""Name the exit codes of the command line and of workers."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """How a process ended.  Ended by signal ``n``, its code is ``SIGNAL + n``, as shells count."""

    DONE = 0
    """Done; a worker has drained, or its queues are empty (burst)."""
    TROUBLE = 1
    """An error that may pass, such as a server that does not answer."""
    USAGE = 2
    """An error to correct."""
    CUT_OFF = 3
    """A worker has stopped handlers that did not finish within the grace; their items were handed back."""
    UNREAD = 4
    """``zkrq pop`` handed items back that it could not read."""
    SIGNAL = 128
