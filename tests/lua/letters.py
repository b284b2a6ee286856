"""Dead letters, made in order."""

from __future__ import annotations

from tests.lua.entries import Put
from tests.lua.one_server import OneServer


def bury(server: OneServer, *puts: Put | str) -> None:
    """New items that die in this order."""
    for put in puts:
        server.push(Put(put) if isinstance(put, str) else put)
        server.settle(server.claim().only.settle("bury", 0, "why"))


def letters(count: int) -> list[str]:
    return [f"d{n:03}" for n in range(count)]
