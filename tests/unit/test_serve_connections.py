"""Which connection has a place, how slowly a client may read, and how many lines strangers write."""

from __future__ import annotations

import logging

import pytest

from tests.unit.by_wire import Transport, let_in, make_connection
from zkrq.serve.connections import READ_LEAST, STRANGERS_SHARE, Connection, Places
from zkrq.serve.lines import LINES_MAX, LINES_SECONDS, FewLines

pytestmark = pytest.mark.anyio


def connect(places: Places) -> tuple[Connection, Transport]:
    connection, transport = make_connection(let_in, places)
    connection.connection_made(transport)
    return connection, transport


async def test_strangers_and_clients_have_places_of_their_own() -> None:
    """However many strangers come, a client keeps its place."""
    places = Places(2 * STRANGERS_SHARE)
    client, kept = connect(places)
    assert client.let_in(known=True)
    strangers = [connect(places)[1] for _ in range(10)]
    assert not kept.is_closed
    assert [stranger.is_closed for stranger in strangers] == [True] * 8 + [False] * 2


async def test_of_strangers_one_that_waits_goes_first_else_the_one_that_came_first() -> None:
    places = Places(3 * STRANGERS_SHARE)
    (answered, first), (_, second), (other, third) = (connect(places) for _ in range(3))
    places.answer(answered)
    connect(places)
    assert (first.is_closed, second.is_closed, third.is_closed) == (False, True, False)
    answered.pause_writing()  # now it waits for its client to read; `other` has waited for longer
    further, _ = connect(places)
    assert (first.is_closed, third.is_closed) == (False, True)
    assert other.transport.is_closing()
    places.answer(further)


async def test_a_clients_place_is_taken_only_while_it_waits() -> None:
    places = Places(STRANGERS_SHARE)
    clients = list[tuple[Connection, Transport]]()
    for _ in range(STRANGERS_SHARE - 1):
        clients.append(connect(places))
        assert clients[-1][0].let_in(known=True)
        places.answer(clients[-1][0])
    further, transport = connect(places)
    places.answer(further)
    assert not further.let_in(known=True), "all of them are being answered"
    assert not transport.is_closed
    places.wait(clients[1][0])
    assert further.let_in(known=True)
    assert [gone.is_closed for _, gone in clients] == [False, True, False]
    assert further.let_in(known=False)
    assert clients[0][0].let_in(known=True)


async def test_a_client_may_read_slowly_but_not_stop() -> None:
    connection, transport = connect(Places(10))
    transport.unsent = 10 * READ_LEAST
    connection.pause_writing()
    for _ in range(5):
        transport.unsent -= READ_LEAST
        connection._check_reading()  # pyright: ignore[reportPrivateUsage]
        assert not transport.is_closed
    transport.unsent -= READ_LEAST - 1
    connection._check_reading()  # pyright: ignore[reportPrivateUsage]
    assert transport.is_closed


def test_lines_that_were_left_out_are_counted() -> None:
    few = FewLines()

    def is_written(at: float, text: str = "wrong: %s") -> str:
        record = logging.makeLogRecord({"msg": text, "args": ("x",), "created": at})
        return record.getMessage() if few.filter(record) else ""

    assert [is_written(100.0) for _ in range(LINES_MAX + 7)] == ["wrong: x"] * LINES_MAX + [""] * 7
    assert is_written(100.0, "else: %s") == "else: x"
    assert is_written(100.0 + LINES_SECONDS) == "wrong: x (7 more lines like this one were left out)"
    assert is_written(100.0 + LINES_SECONDS) == "wrong: x"
    assert is_written(5.0) == "wrong: x"  # the clock was set back
