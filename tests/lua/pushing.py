"""Pushes that the primary decides, of items with a key, and how such an item ends."""

from __future__ import annotations

from collections.abc import Callable

from tests.lua.entries import Decided, Put
from tests.lua.one_server import OneServer

LONG_MS = 60_000


def push_one(server: OneServer, put: Put, **options: int) -> str:
    """What became of it."""
    (outcome,), _ = server.push(put, **options)
    return outcome


def keyed(id: str, key: str = "k", **fields: int) -> Put:
    return Put(id, id.encode(), key=key)._replace(**fields)


def push_and_claim(server: OneServer, *puts: Put) -> Decided:
    """Pushed, claimed; returns the claim of the first."""
    outcomes, _ = server.push(*puts)
    assert outcomes == ["+"] * len(puts)
    return server.claim(count=len(puts)).decided[puts[0].id]


def ack(server: OneServer, claim: Decided) -> None:
    server.settle(claim.settle("ack"))


def bury(server: OneServer, claim: Decided) -> None:
    server.settle(claim.settle("bury", 0, "why"))


def nack(server: OneServer, claim: Decided) -> None:
    server.settle(claim.settle("nack", LONG_MS))


def release(server: OneServer, claim: Decided) -> None:
    server.settle(claim.settle("release", 1))


def extend(server: OneServer, claim: Decided) -> None:
    server.settle(claim.settle("extend", LONG_MS))


def cancel(server: OneServer, claim: Decided) -> None:
    server.cancel(claim.id)


def fence(server: OneServer, _: Decided) -> None:
    server.fence("ann")


def clear(server: OneServer, _: Decided) -> None:
    server.fence("ann")
    server.clear(10)


def expire(server: OneServer, claim: Decided) -> None:
    server.fence("ann")
    server.outlive(claim.id)
    server.claim("bob", 0)


def expire_to_a_dead_letter(server: OneServer, claim: Decided) -> None:
    server.fence("ann")
    server.outlive(claim.id)
    server.claim("bob", 0, expired="D")


def exhaust(server: OneServer, _: Decided) -> None:
    server.fence("ann")
    assert server.claim("bob", max_attempts=1).ids == []


def redrive(server: OneServer, claim: Decided) -> None:
    bury(server, claim)
    server.redrive(claim.id)


End = Callable[[OneServer, Decided], None]
