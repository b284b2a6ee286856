"""One call of a script for several queues does what a call for each does, and an error in one is that queue's alone."""

from __future__ import annotations

from typing import Any, cast

import hiredis

from tests.lua.entries import LEASE_MS, Put
from tests.lua.one_server import GENERATION, OneServer
from zkrq.protocol import calls
from zkrq.protocol.records import VERSION_BYTES
from zkrq.protocol.replies import Status, read_reply

ITEMS = {"few": 1, "none": 0, "some": 3, "many": 7}
"""How many items each queue has: what one part leaves behind would show in the next one."""


def together(server: OneServer, *parts: calls.Call[Any]) -> list[Any]:
    """The value of each part's reply."""
    replies = cast("list[object]", server.answers(*parts))
    answers = [read_reply(reply, parts[0].script) for reply in replies]
    assert [answer.status for answer in answers] == [Status.OK] * len(parts)
    return [part.read(answer.body) for part, answer in zip(parts, answers, strict=True)]


def puts(queue: str, count: int) -> calls.PushPlain:
    return calls.PushPlain(queue, [Put(f"{queue}-{n}").call for n in range(count)])


def claim(queue: str, seq: int = 1) -> calls.Claim:
    return calls.Claim(queue, "ann", seq, 5, LEASE_MS, "", 0, "X", 0, 0)


def counted(server: OneServer) -> dict[str, tuple[int, int]]:
    """Queued and claimed items by queue, of which indexes and counters tell the same."""
    found: dict[str, tuple[int, int]] = {}
    for server.queue in ITEMS:
        assert server.contents().faults == []
        queued, _, claimed, _ = server.count()
        found[server.queue] = queued, claimed
    return found


def test_items_of_several_queues_live_and_die_together(server: OneServer) -> None:
    together(server, *(puts(queue, count) for queue, count in ITEMS.items() if count))
    assert counted(server) == {queue: (count, 0) for queue, count in ITEMS.items()}

    claimed = together(server, *map(claim, ITEMS))
    handed = {queue: reply.handed[::4] for queue, reply in zip(ITEMS, claimed, strict=True)}
    assert {queue: len(ids) for queue, ids in handed.items()} == {"few": 1, "none": 0, "some": 3, "many": 5}
    assert all(id.startswith(f"{queue}-".encode()) for queue, ids in handed.items() for id in ids)
    assert counted(server) == {"few": (0, 1), "none": (0, 0), "some": (0, 3), "many": (2, 5)}

    again = together(server, *map(claim, ITEMS))
    assert {queue: sorted(reply.handed[::4]) for queue, reply in zip(ITEMS, again, strict=True)} == {
        queue: sorted(ids) for queue, ids in handed.items()
    }

    settling = {
        queue: calls.Settle(queue, 0, 0, [
            (id.decode(), b"\0\0", record[VERSION_BYTES], "ann/1", "ack")
            for id, record in zip(reply.records.flat[::4], reply.records.flat[1::4], strict=True)
        ])
        for queue, reply in zip(ITEMS, claimed, strict=True)
        if reply.handed
    }  # fmt: skip
    settled = together(server, *settling.values())
    assert [set(reply.lost) for reply in settled] == [{b""}] * len(settling)
    assert counted(server) == {"few": (0, 0), "none": (0, 0), "some": (0, 0), "many": (2, 0)}


def test_an_error_in_one_queue_is_that_queues_alone(server: OneServer) -> None:
    together(server, *(puts(queue, 1) for queue in ("few", "some", "many")))
    server.queue = "some"
    server.command("DEL", server.key("ready"))
    server.command("SET", server.key("ready"), "no index")
    few, some, many = cast("list[object]", server.answers(*map(claim, ("few", "some", "many"))))
    assert isinstance(some, hiredis.HiredisError)
    assert str(some).startswith("WRONGTYPE")
    for queue, reply in (("few", few), ("many", many)):
        assert [id.decode() for id in claim(queue).read(read_reply(reply, "claim").body).handed[::4]] == [f"{queue}-0"]


def test_all_are_refused_in_another_life(server: OneServer) -> None:
    server.command("HSET", f"{server.key('x').partition(':')[0]}:server", "generation", "another")
    assert server.answers(puts("few", 1), puts("some", 1)) == [b"NOTINSYNC", b"another"]
    assert GENERATION != "another"
