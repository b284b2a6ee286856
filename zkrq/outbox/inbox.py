"""Recognise in a database what was handled before, and what an older holder of a claim still writes.

An item may be delivered twice: its handler had committed and died before its ack, or its claim was lost while it ran.
Both are decided in the transaction of the handler's effects, so that the mark and the effects are committed together.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Protocol

from zkrq.base import clock
from zkrq.base.checks import Duration, check_name, in_seconds

if TYPE_CHECKING:
    from zkrq.outbox.rows import Execute

_READ = "SELECT token FROM zkrq_inbox WHERE name = :name AND entry = :entry"
_INSERT = "INSERT INTO zkrq_inbox (name, entry, token, seen_us) VALUES (:name, :entry, :token, :now_us)"
_RAISE = (
    "UPDATE zkrq_inbox SET token = :token, seen_us = :now_us WHERE name = :name AND entry = :entry AND token <= :token"
)
_FORGET = "DELETE FROM zkrq_inbox WHERE name = :name AND seen_us < :before_us"


class Claimed(Protocol):
    """What identifies a claim: a ``Claim``, also one of ``zkrq.sync``."""

    @property
    def queue(self) -> str: ...

    @property
    def id(self) -> str: ...

    @property
    def token(self) -> tuple[int, int]: ...


class InboxBase:
    """Marks of one consumer, whose ``name`` tells it from others in the same table."""

    def __init__(self, name: str, execute: Execute) -> None:
        """``execute``: inside of the handler's transaction."""
        self.name = check_name("the inbox's name", name)
        self._execute = execute

    def fence(self, claim: Claimed, key: str = "") -> bool:
        """Return whether no later claim of this item has been here, and remember this one's fencing token.

        If it is False, another consumer has taken the item over: change nothing.  ``key``: tells several effects of one
        item apart, each of which is fenced by itself.  Tokens of different items cannot be compared.
        """
        values = {**self._entry("token", claim, key), "token": _sortable(claim.token), "now_us": clock.now_us()}
        # The row is locked by the update until the transaction ends: an older holder waits, and then sees the token.
        self._execute(_RAISE, values)
        rows = self._execute(_READ, {name: values[name] for name in ("name", "entry")})
        if not rows:
            self._execute(_INSERT, values)  # of two at the same time one fails, and is delivered again
            return True
        return rows[0][0] == values["token"]

    def first(self, claim: Claimed, key: str = "") -> bool:
        """Return whether this item is handled for the first time, and remember it.

        If it is False, its effects are there already: ack.  ``key``: as for ``fence``.
        """
        entry = self._entry("id", claim, key)
        if self._execute(_READ, entry):
            return False
        self._execute(_INSERT, {**entry, "token": "", "now_us": clock.now_us()})
        return True

    def _entry(self, kind: str, claim: Claimed, key: str) -> dict[str, object]:
        # A digest, because queue, id and key together may be longer than what databases index.
        parts = json.dumps([kind, claim.queue, claim.id, key]).encode()
        return {"name": self.name, "entry": hashlib.sha256(parts).hexdigest()}

    def forget(self, older_than: Duration) -> None:
        """Remove marks that are older; items come back within days at most, unless dead letters are redriven later."""
        before = clock.now_us() - round(in_seconds(older_than) * 1e6)
        self._execute(_FORGET, {"name": self.name, "before_us": before})


def _sortable(token: tuple[int, int]) -> str:
    """Return a fencing token as a text that every database orders as the token is ordered."""
    epoch, number = token
    return f"{epoch:020d}{number:020d}"
