"""Forget a queue of which nothing is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zkrq.protocol.calls.call import Body, Call


@dataclass(frozen=True, slots=True)
class Forget(Call[bool]):
    """Forget a queue on a server that has, and remembers, nothing of it; read whether it did."""

    script: ClassVar[str] = "forget"
    queue: str

    def read(self, body: Body) -> bool:
        return bool(body[0])
