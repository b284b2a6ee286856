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

    def __init__(self) -> None:
        self.recovery = ""
        self.outside: Final = dict[ServerId, str]()

    def sentences(self) -> tuple[str, ...]:
        """Say of each server outside the view why it could not be brought back."""
        return tuple(f"{id} is not brought back: {reason}" for id, reason in sorted(self.outside.items()))

    def add_to(self, text: str, failure: BaseException | None) -> str:
        """Return the text of an error about a failure, with the cause if it is known."""
        if self.recovery:
            return f"{text}; {self.recovery}"
        if isinstance(failure, TooFewMembers) and self.outside:
            return "; ".join((text, *self.sentences()))
        return text


UNKNOWN = Causes()
"""Nothing is known.  For the protocol without repair, as in its model; never changed."""
