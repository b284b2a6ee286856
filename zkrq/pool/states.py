"""Say in which states a child is, as its parent sees it, and what leads from one to the next.

::

    STARTING --ready--> IDLE --give--> WORKING --rest--> IDLE     the usual life
    STARTING, IDLE, WORKING --stop--> STOPPING                    it is replaced, or the pool ends
    any --die--> DEAD

Only an idle child is given items, or a working one with slots left.  A child that stops finishes what it has, unless it
is killed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeAlias


class ChildState(enum.Enum):
    """Where a child is in its life."""

    STARTING = "starting"
    """It imports what its handlers need."""
    IDLE = "idle"
    WORKING = "working"
    STOPPING = "stopping"
    """It is given nothing more."""
    DEAD = "dead"


Row: TypeAlias = Mapping[ChildState, ChildState]

_S = ChildState

READY: Row = {_S.STARTING: _S.IDLE, _S.STOPPING: _S.STOPPING}
"""It waits for its first item."""

GIVE: Row = {_S.IDLE: _S.WORKING, _S.WORKING: _S.WORKING}
"""It was given an item."""

REST: Row = {_S.WORKING: _S.IDLE, _S.STOPPING: _S.STOPPING}
"""The last of its items has ended."""

STOP: Row = {
    _S.STARTING: _S.STOPPING,
    _S.IDLE: _S.STOPPING,
    _S.WORKING: _S.STOPPING,
    _S.STOPPING: _S.STOPPING,
    _S.DEAD: _S.DEAD,
}
"""It is not to be given anything more."""

DIE: Row = dict.fromkeys(_S, _S.DEAD)
"""It has ended, however."""

GIVEN = frozenset({_S.IDLE, _S.WORKING})
"""States in which it may be given an item."""

COUNTED = frozenset({_S.STARTING, _S.IDLE, _S.WORKING})
"""States in which it is one of the children that the worker needs."""
