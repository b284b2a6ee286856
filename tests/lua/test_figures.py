"""``figure``, ``figures`` and ``drop_figures``: what handlers did, by the minute and by the hour, on one server."""

from __future__ import annotations

import time
from typing import Literal, cast

import pytest

from tests.every import every
from tests.lua.one_server import OneServer
from zkrq.protocol import calls
from zkrq.protocol.figures import HOURS_KEPT, MINUTES_KEPT, Place, decode


def now() -> int:
    return int(time.time()) // 60


def add(server: OneServer, minute: int, **tasks: str) -> None:
    server.ask(calls.Figure(server.queue, minute, list(tasks.items())))


def told(server: OneServer, kind: Literal["m", "h"], first: int, last: int) -> dict[tuple[int, str], dict[int, int]]:
    """What is kept, without what is left of other rounds."""
    read = decode(server.ask(calls.ToldFigures(server.queue, kind, first, last)))
    return {
        place: {key: number for key, number in enumerate(counts) if number}
        for place, counts in read.items()
        if first <= place.at <= last
    }


def test_reports_are_added_up_by_minute_and_by_hour(server: OneServer) -> None:
    minute = now()
    hour = minute // 60
    add(server, minute, mail="0:2 1:1 12:5", sms="3:4")
    add(server, minute, mail="0:3 51:7")
    add(server, minute + 1, mail="1:1")
    assert told(server, "m", minute, minute + 1) == {
        (minute, "mail"): {0: 5, 1: 1, 12: 5, 51: 7},
        (minute, "sms"): {3: 4},
        (minute + 1, "mail"): {1: 1},
    }
    by_hour = told(server, "h", hour, hour + 1)
    assert sum(counts.get(1, 0) for counts in by_hour.values()) == 2
    assert sum(counts.get(0, 0) for counts in by_hour.values()) == 5
    assert server.command("TTL", server.key("figures")) in range(35 * 86_400 - 60, 35 * 86_400 + 1)


@every("wrong", [0, 10**15, -5, "soon", "nan", ""])
def test_a_wrong_minute_is_replaced(server: OneServer, wrong: int | str) -> None:
    before = now()
    try:
        add(server, wrong, mail="1:1")  # pyright: ignore[reportArgumentType]
    finally:
        assert sum(len(told(server, "m", minute, minute)) for minute in (before, before + 1)) == 1


def test_fields_are_used_in_turn(server: OneServer) -> None:
    """What is left of the round before is dropped when its field is written, and is not told before."""
    minute = now()
    old = minute - 157 * 10
    field = f"m{minute // 10 % 157}"
    server.command("HSET", server.key("figures"), field, f"{old}\tmail\t1:5\n")
    assert told(server, "m", minute, minute) == {}
    add(server, minute, mail="1:1")
    assert told(server, "m", minute, minute) == {(minute, "mail"): {1: 1}}
    assert f"{old}" not in str(server.command("HGET", server.key("figures"), field))
    assert MINUTES_KEPT <= 157 * 10 - 10, "a minute that is told is of this round"
    assert HOURS_KEPT <= 85 * 10 - 10


def test_names_of_tasks_are_bounded(server: OneServer) -> None:
    minute = now()
    for n in range(30):
        add(server, minute, **{f"task {n}": "1:1"})
    found = told(server, "m", minute, minute)
    assert len(found) == 11
    assert found[minute, "*"] == {1: 20}
    assert sum(counts[1] for counts in found.values()) == 30
    server.ask(calls.Figure(server.queue, minute, [("two\tparts\n", "1:1")]))
    assert told(server, "m", minute, minute)[minute, "*"] == {1: 21}


def test_a_field_is_bounded_whatever_is_reported(server: OneServer) -> None:
    start = now() // 10 * 10
    every_count = " ".join(f"{key}:{10**14}" for key in range(100))
    for minute in range(start - 4, start + 5):
        for n in range(30):
            add(server, minute, **{f"{n}{'x' * 90}": every_count})
    fields = server.command("HKEYS", server.key("figures"))
    assert isinstance(fields, list)
    for field in cast("list[bytes]", fields):
        length = server.command("HSTRLEN", server.key("figures"), field)
        assert isinstance(length, int)
        assert length < 8192 + 12 * 2_500


@every(
    "damaged",
    [
        "",
        "\n",
        "x",
        "{at}\tmail",
        "{at}\tmail\t1:\n",
        "{at}\tmail\t:1 x:y\n",
        "\t\t\n",
        "{at}\tmail\t1:" + 40 * "9" + "\n",
    ],
)
def test_a_damaged_entry_spoils_itself_alone(server: OneServer, damaged: str) -> None:
    minute = now()
    field = f"m{minute // 10 % 157}"
    server.command("HSET", server.key("figures"), field, damaged.format(at=minute))
    told(server, "m", minute, minute)
    add(server, minute, mail="2:3", sms="1:1")
    found = told(server, "m", minute, minute)
    assert found[minute, "mail"][2] == 3
    assert found[minute, "sms"] == {1: 1}


def test_a_key_of_another_kind_fails_alone(server: OneServer) -> None:
    server.command("SET", server.key("figures"), "x")
    with pytest.raises(Exception, match="WRONGTYPE"):
        add(server, now(), mail="1:1")


def test_a_page_is_bounded(server: OneServer) -> None:
    minute = now()
    add(server, minute, mail="1:1")
    assert told(server, "m", minute - 399, minute) == {(minute, "mail"): {1: 1}}
    server.ask(calls.Figure(server.queue, minute, [(f"{n}", "1:1") for n in range(9)]))
    assert len(server.ask(calls.ToldFigures(server.queue, "m", minute - 700, minute))) == 0, (
        "only the first ones are read"
    )
    assert told(server, "m", minute + 1, minute) == {}


def test_they_go_when_the_queue_is_deleted_or_forgotten(server: OneServer) -> None:
    add(server, now(), mail="1:1")
    server.ask(calls.DropFigures(server.queue))
    assert server.command("EXISTS", server.key("figures")) == 0
    add(server, now(), mail="1:1")
    assert server.ask(calls.Forget(server.queue))
    assert server.command("EXISTS", server.key("figures")) == 0


def test_damaged_lines_are_left_out_when_they_are_read() -> None:
    assert decode("12\tmail\t1:2 1:9 x 3:1\n13\tmail\nx\t\t\n\t\t1:1\n") == {
        Place(12, "mail"): [0, 9, 0, 1] + [0] * 96,
    }
