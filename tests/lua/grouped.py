"""Items of groups, also of ordered ones, and the repair of the groups' lines."""

from __future__ import annotations

from tests.lua.entries import Decided, Put
from tests.lua.one_server import OneServer
from zkrq.protocol import calls


def put_group(server: OneServer, group: str, *ids: str) -> None:
    server.put(*(Put(id, id.encode(), group=group) for id in ids))


def repaired(server: OneServer) -> int:
    count, cursor = 0, calls.START
    while True:
        page = server.ask(calls.RepairLines(server.queue, cursor))
        count, cursor = count + page.repaired, page.cursor
        if cursor == calls.START:
            return count


def ordered(id: str, group: str = "a", key: str = "", ttl_ms: float | None = None) -> Put:
    return Put(id, id.encode(), group=group, ordered=True, key=key, ttl_ms=ttl_ms)


def push(server: OneServer, *ids: str, group: str = "a") -> dict[str, Decided]:
    outcomes, decided = server.push(*(ordered(id, group) for id in ids))
    assert outcomes == ["+"] * len(ids)
    return decided
