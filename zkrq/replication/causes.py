"""Remember why servers are not in sync, as far as this client knows, so that errors can name the cause and the next
step.

The repair of this client writes it, and who evicts a server; the errors of operations and ``health()`` show it.
"""

from __future__ import annotations

from typing import Final

from zkrq.protocol.steps import TooFewMembers
from zkrq.protocol.view import ServerId


class Causes:
    """``recovery``: why the data of restarted servers cannot be merged, and what an operator may do; empty if no
    recovery is needed.  ``outside``: why servers outside the view could not be brought back."""

    def __init__(self, *, shard: str = "") -> None:
        """``shard``: name of the shard as commands give it, empty: of the first one."""
        self._shard = shard
        self.recovery = ""
        self.outside: Final = dict[ServerId, str]()

    def sentences(self) -> tuple[str, ...]:
        """Say of each server outside the view why it could not be brought back."""
        return tuple(f"{id} is not brought back: {reason}" for id, reason in sorted(self.outside.items()))

    def next_step(self, failure: TooFewMembers) -> str:
        """Say what to do where too few servers are in sync."""
        missing, outside = failure.needed - failure.members, failure.outside
        if len(failure.joining) >= missing:
            return f"{' and '.join(failure.joining)} will be in sync soon; retry"
        add = f"`zkrq servers add URL --shard {self._shard}`" if self._shard else "`zkrq servers add URL`"
        if not outside:
            return f"{add}, then retry"
        if missing == 1:
            which = " or ".join(outside)
        else:
            which = " and ".join(outside) if missing >= len(outside) else f"{missing} of these: {', '.join(outside)}"
        return f"bring back {which}; or {add}; then retry"

    def add_to(self, text: str, failure: BaseException | None) -> str:
        """Return the text of an error about a failure, with the cause if it is known."""
        if self.recovery:
            return f"{text}; {self.recovery}"
        if isinstance(failure, TooFewMembers) and self.outside:
            return "; ".join((text, *self.sentences()))
        return text


UNKNOWN = Causes()
"""Nothing is known.  For the protocol without repair, as in its model; never changed."""
