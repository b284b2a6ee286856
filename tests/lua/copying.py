"""Copy one server's queue to another, as catch-up and recovery do it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar, cast

import pytest

from tests.lua.connection import Refused
from tests.lua.entries import Decided, Put, joined
from tests.lua.one_server import GENERATION, OneServer, put_and_claim
from zkrq.protocol.copying import QueueCopy
from zkrq.protocol.replies import Answer
from zkrq.protocol.steps import Ask, Operation, Place
from zkrq.protocol.view import Life, ServerId

KIB = 1024
BYTES_MAX = 1024 * KIB
"""Payloads in one reply."""

TABLE = len(joined(b""))
"""Bytes beside a payload that is alone."""

PUSHED_AT_MS = int(time.time() * 1000)

T = TypeVar("T")


SOURCE, TARGET = ServerId("source"), ServerId("target")


def carried_out(operation: Operation[T], **servers: OneServer) -> T:
    """What an operation returns that only asks these servers."""
    answers: dict[ServerId, Answer] | None = None
    try:
        while True:
            step = operation.send(answers)
            assert isinstance(step, Ask)
            answers = {id: servers[id].answer(step.call, servers[id].epoch) for id in step.lives}
    except StopIteration as stop:
        return cast("T", stop.value)


def place(id: ServerId) -> Place:
    return Place(id, Life("", GENERATION), 1)


def copy(source: OneServer, target: OneServer) -> int:
    """As catch-up and recovery do it; returns how many items came."""
    counts: list[int] = []

    def copied(count: int) -> Operation[None]:
        counts.append(count)
        yield from ()

    operation = QueueCopy(source.queue).go_on(place(SOURCE), place(TARGET), copied)
    carried_out(operation, source=source, target=target)
    return sum(counts)


def another(server: OneServer) -> OneServer:
    """Another server, empty, and enrolled."""
    other = OneServer(server.host, server.port, database=1)
    other.command("FLUSHDB")
    other.enrol()
    return other


def one_of_each(server: OneServer) -> dict[str, Decided]:
    """Items called by their state; returns the claim."""
    server.settle(put_and_claim(server, "gone").only.settle("ack"))
    server.settle(put_and_claim(server, Put("dead", b"D", priority=2)).only.settle("bury", 0, "why"))
    claimed = put_and_claim(server, Put("claimed", b"C", priority=9))
    server.put(Put("ready", b"R", priority=3), Put("scheduled", b"S", delay_ms=60_000))
    return claimed.decided


STATES = ("gone", "dead", "claimed", "ready", "scheduled")


def status(call: Callable[[], object]) -> tuple[str, tuple[object, ...]]:
    with pytest.raises(Refused) as refused:
        call()
    return refused.value.status, refused.value.body


# -- heads and compare ---------------------------------------------------------------------------------------------

HEAD = 9


def all_heads(server: OneServer, count: int = 500) -> dict[str, bytes]:
    heads: dict[str, bytes] = {}
    cursor = b"0"
    while True:
        cursor, page = server.heads(cursor, count)
        heads |= page
        if cursor == b"0":
            return heads


# -- wipe ----------------------------------------------------------------------------------------------------------


def fill_every_key(server: OneServer) -> None:
    one_of_each(server)
    server.fence("zoe")
    server.push(Put("keyed", b"K", key="k", ttl_ms=60_000))
    server.put(Put("first", group="g"), Put("second", group="g"))
    server.command("ZADD", server.key("waiting"), server.now_ms(), "eve")
    server.command("HSET", server.key("reports"), "entry", "a report")
    server.command("ZADD", server.key("recent"), server.now_us(), "entry")
    server.command("HSET", server.key("aside"), "bundle", "what is left of it")
