"""Define the life of a lease as a table: what each event makes of a claim that this process was granted.

A *lease* is a claim as this process holds it.  It is granted ahead of a consumer, delivered to one, and settled once.
It ends early when it is lost: a server refuses it, its deadline passes, its owner is fenced, its item is cancelled.

1. A claim is settled or lost, never both.  A consumer that was told that it holds no longer is never told that its work
   counts, nor the other way round.
2. One settlement is in flight at a time.  A second one would be refused, and the item be called lost although the first
   has removed it.
3. While a settlement is in flight its answer decides: another loss is not noted, because the servers may have carried
   out the settlement before.
4. A claim is extended until it has ended, or its consumer has left it.  What nobody works on is not kept from others
   for longer than one lease.

A row has a cell for each state in which its event may happen.  A missing cell is a mistake of this package: it raises
``KeyError``.  ``lease.Lease.state`` is only assigned from a row.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeAlias


class LeaseState(enum.StrEnum):
    """Name the states of a lease."""

    GRANTED = "granted"  # claimed ahead: no consumer has it
    DELIVERED = "delivered"  # a consumer has it
    LEFT = "left"  # it holds until its deadline, and is extended no more
    SETTLING = "settling"  # a settlement is in flight
    SETTLING_LEFT = "settling, left"  # the same, and it is extended no more
    SETTLED = "settled"
    LOST = "lost"
    STRUCK = "struck"  # lost, and the handler inside ``async with claim`` was cancelled for it


Row: TypeAlias = Mapping[LeaseState, LeaseState]
"""What one event makes of each state in which it may happen."""

_G, _D, _L, _S, _SL, _END, _LOST, _STRUCK = LeaseState
# Events that may come late: by then they change nothing.
_LATE = {_S: _S, _SL: _SL, _END: _END, _LOST: _LOST, _STRUCK: _STRUCK}

DELIVER: Row = {_G: _D, _D: _D, _L: _L, **_LATE}  # a consumer gets it, or begins with it
TAKE_BACK: Row = {_G: _G, _D: _G, _L: _L, **_LATE}  # its consumer has not begun with it
LEAVE: Row = {_G: _L, _D: _L, _L: _L, **_LATE, _S: _SL}  # its consumer works on it no more
SETTLE: Row = {_G: _S, _D: _S, _L: _SL}  # a settlement is sent
HAND_BACK: Row = {_G: _END, _D: _END, _L: _END}  # a release is sent, and nobody waits for the answer
ANSWER: Row = {_S: _END, _SL: _END}  # the settlement was carried out
REFUSE: Row = {_S: _LOST, _SL: _LOST}  # the servers refuse the settlement
FAIL: Row = {_S: _L, _SL: _L}  # its outcome is not known, and the consumer has done with the item
FAIL_FOLLOWED: Row = {_S: _D, _SL: _L}  # the same, and the consumer still follows the claim
LOSE: Row = {_G: _LOST, _D: _LOST, _L: _LOST, **_LATE}  # it holds no more
STRIKE: Row = {_LOST: _STRUCK}  # the loss cancels its handler

LIFE: Mapping[str, Row] = {
    "deliver": DELIVER,
    "take back": TAKE_BACK,
    "leave": LEAVE,
    "settle": SETTLE,
    "hand back": HAND_BACK,
    "answer": ANSWER,
    "refuse": REFUSE,
    "fail": FAIL,
    "fail, followed": FAIL_FOLLOWED,
    "lose": LOSE,
    "strike": STRIKE,
}
"""The whole table, by the names of the events."""

HOLDING = frozenset({_G, _D, _L})
"""States in which a claim holds until its deadline: the one definition, beside ``Lease.holds_at``, which adds the
deadline."""

EXTENDED = frozenset({_G, _D, _S})
"""States in which a claim is extended.  Whatever leaves them stops the timer of an extension."""

NAMING_A_VERB = frozenset({_S, _SL, _END})
"""States in which a verb says how the claim is, or was, settled."""

LOSSES = frozenset({_LOST, _STRUCK})
"""States of a claim that is lost.  Entering them is told to those who follow it, and stops its handler."""
