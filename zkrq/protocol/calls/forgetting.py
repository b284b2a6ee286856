"""Forget a queue of which nothing is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zkrq.protocol.calls.call import Body, Call


@dataclass(frozen=True, slots=True)
class Forget(Call[bool]):
    """Forget a queue on a server that has no item of it; read whether it did.

    ``early``: although its removals would still be remembered.
    """

    script: ClassVar[str] = "forget"
    queue: str
    early: bool

    def read(self, body: Body) -> bool:
        return bool(body[0])
