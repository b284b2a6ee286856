"""``figure``, ``figures`` and ``drop_figures``: what handlers did, by the minute and by the hour, on one server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal, cast

import pytest

from tests.every import every
from tests.lua.entries import figures_field
from tests.lua.one_server import OneServer
from zkrq.protocol import calls
from zkrq.protocol.figures import (
    COUNTS,
    DURATIONS,
    HOURS_KEPT,
    LONGEST,
    MINUTES_KEPT,
    OTHERS,
    PER_FIELD,
    READY,
    WAITS,
    add_up,
    decode,
    encode,
    last_ready,
)

NONE_READY = (OTHERS, [0] * COUNTS)
"""What a server adds to a report while its queue is empty."""


def now() -> int:
    return int(time.time()) // 60


def add(server: OneServer, minute: int, **tasks: Mapping[int, int]) -> None:
    items = [(task, encode([counts.get(key, 0) for key in range(COUNTS)])) for task, counts in tasks.items()]
    server.ask(calls.Figure(server.queue, minute, items))


def told(server: OneServer, kind: Literal["m", "h"], first: int, last: int) -> dict[tuple[int, str], dict[int, int]]:
    """What handlers did as it is kept, without what is left of other rounds."""
    read = decode(server.ask(calls.ToldFigures(server.queue, kind, first, last)))
    found = {
        place: {key: number for key, number in enumerate(counts) if number and (place.task, key) != (OTHERS, READY)}
        for place, counts in read.items()
        if first <= place.at <= last
    }
    return {place: counts for place, counts in found.items() if counts or place.task != OTHERS}


def test_reports_are_added_up_by_minute_and_by_hour(server: OneServer) -> None:
    minute = now()
    hour = minute // 60
    add(server, minute, mail={0: 2, 1: 1, 12: 5}, sms={3: 4})
    add(server, minute, mail={0: 3, 51: 7})
    add(server, minute + 1, mail={1: 1})
    assert told(server, "m", minute, minute + 1) == {
        (minute, "mail"): {0: 5, 1: 1, 12: 5, 51: 7},
        (minute, "sms"): {3: 4},
        (minute + 1, "mail"): {1: 1},
    }
    by_hour = told(server, "h", hour, hour + 1)
    assert sum(counts.get(1, 0) for counts in by_hour.values()) == 2
    assert sum(counts.get(0, 0) for counts in by_hour.values()) == 5
    assert server.command("TTL", server.key("figures")) in range(35 * 86_400 - 60, 35 * 86_400 + 1)


def test_the_ready_items_are_noted_and_the_last_report_counts(server: OneServer) -> None:
    minute = now()

    def noted(kind: Literal["m", "h"], at: int) -> int | None:
        return last_ready(decode(server.ask(calls.ToldFigures(server.queue, kind, at, at))), at, at)

    assert noted("m", minute) is None
    server.put("a", "b", "c")
    add(server, minute, mail={1: 1}, sms={4: 7})
    assert noted("m", minute) == 3
    server.claim("ann", 2)
    add(server, minute, mail={1: 1})
    assert noted("m", minute) == noted("h", minute // 60) == 1
    server.claim("bob", 2)
    add(server, minute + 1, mail={1: 1})
    assert (noted("m", minute), noted("m", minute + 1)) == (1, 0)
    assert told(server, "m", minute, minute)[minute, "mail"] == {1: 2}


def test_of_the_longest_times_the_greatest_is_kept(server: OneServer) -> None:
    minute = now()
    for wait, duration in ((7, 300), (5, 20_000), (6, 2)):
        add(server, minute, mail={WAITS + LONGEST: wait, DURATIONS + LONGEST: duration})
    hour = minute // 60
    of_minute, of_hour = told(server, "m", minute, minute), told(server, "h", hour, hour)
    for counts in (of_minute[minute, "mail"], of_hour[hour, "mail"]):
        assert (counts[WAITS + LONGEST], counts[DURATIONS + LONGEST]) == (7, 20_000)


@every("wrong", [0, 10**15, -5, "soon", "nan", ""])
def test_a_wrong_minute_is_replaced(server: OneServer, wrong: int | str) -> None:
    before = now()
    try:
        add(server, wrong, mail={1: 1})  # pyright: ignore[reportArgumentType]
    finally:
        assert sum(len(told(server, "m", minute, minute)) for minute in (before, before + 1)) == 1


def test_fields_are_used_in_turn(server: OneServer) -> None:
    """What is left of the round before is dropped when its field is written, and is not told before."""
    minute = now()
    old = minute - 157 * 10
    field = f"m{minute // 10 % 157}"
    server.command("HSET", server.key("figures"), field, figures_field(old, [0, 5]))
    assert told(server, "m", minute, minute) == {}
    add(server, minute, mail={1: 1})
    assert told(server, "m", minute, minute) == {(minute, "mail"): {1: 1}}
    assert server.command("HGET", server.key("figures"), field) == figures_field(minute, [0, 1], NONE_READY)
    assert MINUTES_KEPT <= 157 * 10 - 10, "a minute that is told is of this round"
    assert HOURS_KEPT <= 85 * 10 - 10


def test_names_of_tasks_are_bounded(server: OneServer) -> None:
    minute = now()
    for n in range(30):
        add(server, minute, **{f"task {n}": {1: 1}})
    found = told(server, "m", minute, minute)
    assert len(found) == 11
    assert found[minute, "*"] == {1: 20}
    assert sum(counts[1] for counts in found.values()) == 30
    server.ask(calls.Figure(server.queue, minute, [("two\tparts\n", encode([0, 1]))]))
    assert told(server, "m", minute, minute)[minute, "*"] == {1: 21}


def test_a_field_is_bounded_whatever_is_reported(server: OneServer) -> None:
    start = now() // 10 * 10
    every_count = dict.fromkeys(range(COUNTS), 10**14)
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
        b"",
        b"\n",
        b"x",
        b"{ten}",
        b"{ten}\tmail",
        b"{ten}\n\0\0\0",
        b"{ten}\tmail\n{unit}",
        b"{ten}\tmail\n{unit}\0",
        b"{ten}\tmail\n{unit}\0\5\0\1",
        b"{ten}\tmail\n{unit}\1\2\0\1",
        b"{ten}\tmail\n{unit}\0\2\0\x7f",
        b"{ten}\tmail\n{unit}\0\x0b\0\1" + 9 * b"\xff",
        b"{ten}\tmail\n" + 900 * b"\xff",
        b"{ten}\t\t\n\0\0\0",
        9 * b"{ten}" + b"\tmail\n",
    ],
)
def test_a_damaged_entry_spoils_itself_alone(server: OneServer, damaged: bytes) -> None:
    minute = now()
    packed = damaged.replace(b"{ten}", b"%d" % (minute // PER_FIELD)).replace(b"{unit}", bytes([minute % PER_FIELD]))
    server.command("HSET", server.key("figures"), f"m{minute // 10 % 157}", packed)
    told(server, "m", minute, minute)
    add(server, minute, mail={2: 3}, sms={1: 1})
    found = told(server, "m", minute, minute)
    assert found[minute, "mail"][2] == 3
    assert found[minute, "sms"] == {1: 1}


@every(
    "counts",
    [[10**15 - 1, *(n * 37 for n in range(COUNTS - 1))], [0] * (COUNTS - 1) + [128], [127, 0, 128, 16_383, 16_384]],
)
def test_the_same_is_kept_as_a_client_writes_it(server: OneServer, counts: list[int]) -> None:
    minute = now()
    server.ask(calls.DropFigures(server.queue))
    server.ask(calls.Figure(server.queue, minute, [("mail", encode(counts))]))
    assert server.command("HGET", server.key("figures"), f"m{minute // 10 % 157}") == figures_field(
        minute, counts, NONE_READY
    )
    server.ask(calls.Figure(server.queue, minute, [("mail", encode(counts))]))
    whole = [*counts, *[0] * (COUNTS - len(counts))]
    twice = {key: min(10**15 - 1, number) for key, number in enumerate(add_up([whole, whole])) if number}
    assert told(server, "m", minute, minute) == {(minute, "mail"): twice}


@every("reported", [b"\0", b"\0\x7f\1", b"\0\5" * 50, 9 * b"\xff", b"\1" * 101])
def test_what_a_report_has_beyond_its_counts_is_left_out(server: OneServer, reported: bytes) -> None:
    minute = now()
    server.ask(calls.DropFigures(server.queue))
    server.ask(calls.Figure(server.queue, minute, [("mail", reported), ("sms", encode([0, 1]))]))
    assert told(server, "m", minute, minute)[minute, "sms"] == {1: 1}


def test_a_key_of_another_kind_fails_alone(server: OneServer) -> None:
    server.command("SET", server.key("figures"), "x")
    with pytest.raises(Exception, match="WRONGTYPE"):
        add(server, now(), mail={1: 1})


def test_a_page_is_bounded(server: OneServer) -> None:
    minute = now()
    add(server, minute, mail={1: 1})
    assert told(server, "m", minute - 399, minute) == {(minute, "mail"): {1: 1}}
    server.ask(calls.Figure(server.queue, minute, [(f"{n}", encode([0, 1])) for n in range(9)]))
    assert decode(server.ask(calls.ToldFigures(server.queue, "m", minute - 700, minute))) == {}, (
        "the first ones are read"
    )
    assert told(server, "m", minute + 1, minute) == {}


def test_they_go_when_the_queue_is_deleted_or_forgotten(server: OneServer) -> None:
    add(server, now(), mail={1: 1})
    server.ask(calls.DropFigures(server.queue))
    assert server.command("EXISTS", server.key("figures")) == 0
    add(server, now(), mail={1: 1})
    assert server.ask(calls.Forget(server.queue))
    assert server.command("EXISTS", server.key("figures")) == 0
