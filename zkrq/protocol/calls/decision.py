"""Define decisions: calls by which a queue's primary decides for all servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar, cast

from zkrq.protocol.calls.call import Call
from zkrq.protocol.calls.rows import Put, Records

R = TypeVar("R")


class Decision(Call[R]):
    """A call by which a queue's primary decides.  The other servers of the view are then given the decided records."""

    __slots__ = ()

    always_told: ClassVar[bool] = True
    """Whether the other servers are called even if nothing was decided: they know whether this is still the primary."""

    @property
    def fenced(self) -> str:
        """Owner that every server refuses from then on, or empty."""
        return ""

    @property
    def puts(self) -> Sequence[Put]:
        """New items that the call decides about."""
        return ()

    def under(self, *, trim: bool, again: bool) -> Self:
        """Return the call as it is sent under one view.

        ``trim``: it may drop old tombstones.  ``again``: another primary may have decided the same before.
        """
        return self

    def decided(self, reply: R, epoch: int) -> Records:
        """Return the records of everything decided under this epoch: those of the reply, if it has all."""
        records: Any = getattr(reply, "records", reply)
        return records


class Trimming(Decision[R]):
    """A decision that drops old tombstones as well."""

    __slots__ = ()

    trim: bool

    def under(self, *, trim: bool, again: bool) -> Self:
        return cast("Self", replace(cast("Any", self), trim=trim)) if trim != self.trim else self
