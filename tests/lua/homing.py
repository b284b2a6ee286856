"""Bring items of one server home to another one, which adopts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.lua.entries import Decided, read_decided
from tests.lua.one_server import OneServer
from zkrq.protocol import calls


def items_of(there: OneServer) -> list[calls.Adopted]:
    """What is queued there, as home is asked to adopt it."""
    found = there.ask(calls.Movable(there.queue, 200))
    copies = {copied.id: copied for copied in found.copies.items}
    items = [calls.Adopted.of(copies[bundle], position) for bundle, position in found.places]
    return [item for item in items if item]


def adopt(
    home: OneServer, items: Sequence[calls.Adopted], *, ago_ms: int = 0
) -> tuple[list[str], Mapping[str, Decided]]:
    reply = home.ask(calls.Adopt(home.queue, home.now_ms() - ago_ms, items))
    assert home.contents().faults == []
    return [outcome.decode() for outcome in reply.outcomes], read_decided(reply.records.flat)


def admit(home: OneServer, *ids: str, has_come: bool = True) -> Mapping[str, Decided]:
    decided = read_decided(home.ask(calls.Admit(home.queue, [(id, int(has_come)) for id in ids])).flat)
    assert home.contents().faults == []
    return decided
