"""The last failures of an item: a list that the primary decides, and that each server has the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest

from tests.lua.copying import copy
from tests.lua.entries import BUNDLE, Applied, Claimed, Decided, Put
from tests.lua.homing import admit, adopt, items_of
from tests.lua.one_server import OneServer, put_and_claim, wait_ms
from zkrq.protocol import calls
from zkrq.protocol.failures import EARLIER_MAX, KEPT, WHERE_MAX, FailureNote, place_of, read_failures, sent

LONG_MS = 60_000


def kept(server: OneServer, id: str = "a", position: int = 0) -> Sequence[FailureNote]:
    """What a server knows of the failures of an item."""
    return read_failures(calls.read_notes(server.read(id)[id].notes).get(position, b""))


def reasons(server: OneServer, id: str = "a", position: int = 0) -> list[str]:
    return [each.reason for each in kept(server, id, position)]


def claim(server: OneServer) -> Decided:
    (claimed,) = server.claim().decided.values()
    return claimed


def fail(server: OneServer, claimed: Decided, reason: str, *, verb: str = "nack", where: bytes = b"host:1") -> Decided:
    settled = server.settle(claimed.settle(verb, 0, sent(where, reason)))
    assert settled.outcomes == [1]
    return settled.decided[claimed.id]


def fail_often(server: OneServer, times: int) -> None:
    for number in range(times):
        fail(server, claim(server), f"failure {number}")


def test_last_failures_are_kept_with_when_where_and_how_long(server: OneServer) -> None:
    server.put(Put("a"))
    before_us = server.now_us()
    for number in range(KEPT + 2):
        claimed = claim(server)
        wait_ms(5)
        fail(server, claimed, f"failure {number}\0in calls", where=place_of(f"host:{number}"))
    found = kept(server)
    assert [each.where for each in found] == ["host:6", "host:5", "host:4", "host:3", "host:2"]
    assert [each.reason for each in found][:2] == ["failure 6\0in calls", "failure 5\0in calls"]
    for each in found:
        assert each.at_us is not None
        assert before_us < each.at_us <= server.now_us()
        assert each.took_ms is not None
        assert each.took_ms >= 5
    assert [each.at_us for each in found] == sorted([each.at_us or 0 for each in found], reverse=True)


def test_an_extended_claim_counts_from_its_beginning(server: OneServer) -> None:
    server.put(Put("a"))
    claimed = claim(server)
    wait_ms(20)
    server.settle(claimed.settle("extend", LONG_MS))
    fail(server, claimed, "why")
    assert (kept(server)[0].took_ms or 0) >= 20


def test_only_the_last_reason_is_kept_whole(server: OneServer) -> None:
    server.put(Put("a"))
    for letter in "üxy":
        fail(server, claim(server), letter * 990, where=b"h" * WHERE_MAX)
    last, before, first = kept(server)
    assert last.reason == "y" * 990
    assert before.reason == "x" * EARLIER_MAX
    assert first.reason == "ü" * (EARLIER_MAX // 2), "cut between two characters"
    assert last.where == "h" * WHERE_MAX


def expire(server: OneServer) -> None:
    server.settle(claim(server).settle("extend", 1))
    wait_ms(2)
    server.settle(claim(server).settle("release"))


def fence(server: OneServer) -> None:
    server.claim("bob")
    server.fence("bob")


def bury_and_redrive(server: OneServer) -> None:
    fail(server, claim(server), "last words", verb="bury")
    assert reasons(server)[0] == "last words"
    server.redrive("a")


PASSES: Mapping[str, Callable[[OneServer], object]] = {
    "release": lambda server: server.settle(claim(server).settle("release")),
    "snooze": lambda server: server.settle(claim(server).settle("snooze", 0)),
    "expiry": expire,
    "death of the holder": fence,
    "death and redrive": bury_and_redrive,
    "pass": lambda server: fail(server, claim(server), "let go on", verb="pass"),
    "affirm": lambda server: server.affirm("a"),
}


@pytest.mark.parametrize("what", PASSES)
def test_failures_stay_until_the_item_is_gone(server: OneServer, what: str) -> None:
    server.put(Put("a"))
    fail_often(server, 2)
    PASSES[what](server)
    assert reasons(server)[-2:] == ["failure 1", "failure 0"]
    claimed = claim(server)
    assert reasons(server)[-2:] == ["failure 1", "failure 0"]
    assert server.settle(claimed.settle("ack")).outcomes == [1]
    assert server.contents().notes == {}


def test_each_server_has_the_same(server: OneServer, follower: OneServer) -> None:
    server.put(Put("a"))
    follower.put(Put("a"))
    for number in range(3):
        decided = fail(server, claim(server), f"failure {number}")
        follower.apply(decided.apply(b"payload"), payloads=True)
    assert kept(follower) == kept(server)
    follower.command("FLUSHDB")
    follower.enrol()
    copy(server, follower)
    assert kept(follower) == kept(server)


def test_repeated_nack_is_one_failure(server: OneServer) -> None:
    server.put(Put("a"))
    fail_often(server, 1)
    claimed = claim(server)
    decided = fail(server, claimed, "once")
    again = fail(server, claimed, "once")
    assert again.notes == decided.notes
    assert reasons(server) == ["once", "failure 0"]


def test_a_list_that_a_later_record_overtook_is_taken(server: OneServer, follower: OneServer) -> None:
    """A decision about another item of the bundle reaches a server before the failure does."""
    two = Put(BUNDLE, [b"0", b"1"])
    server.put(two)
    follower.put(two)
    (claimed,) = server.claim(count=2).decided.values()
    follower.apply(claimed.apply())
    late: list[Applied] = []
    for number in range(2):
        failed = server.settle(claimed.settle("nack", 0, sent(b"h", f"failure {number}"), (0,))).decided[BUNDLE]
        late.append(failed.apply())
        (other,) = server.claim().decided.values()
        if number == 0:
            follower.apply(failed.apply())
            follower.apply(other.apply())
        claimed = other
    moved = server.settle(claimed.settle("extend", LONG_MS, positions=(0,))).decided[BUNDLE]
    follower.apply(moved.apply())
    assert reasons(follower, BUNDLE) == ["failure 0"]
    follower.apply(late[1])
    assert reasons(follower, BUNDLE) == reasons(server, BUNDLE) == ["failure 1", "failure 0"]
    follower.apply(late[0])
    assert reasons(follower, BUNDLE) == ["failure 1", "failure 0"], "an earlier list comes late"


def test_what_former_releases_kept_is_one_failure(server: OneServer) -> None:
    server.put(Put("a"))
    server.settle(claim(server).settle("nack", 0, "of before"))
    assert kept(server) == [FailureNote(None, "", None, "of before")]
    fail(server, claim(server), "of now")
    assert [(each.reason, each.where) for each in kept(server)] == [("of now", "host:1"), ("of before", "")]


def test_a_plain_reason_begins_no_list_and_goes_on_one(server: OneServer) -> None:
    """Reasons without a consumer: the primary buries what was delivered too often."""
    server.put(Put("a"))
    server.settle(claim(server).settle("nack", 0, "plain"))
    server.settle(claim(server).settle("nack", 0, "plain again"))
    assert reasons(server) == ["plain again"]
    assert server.contents().notes == {"a": "plain again"}
    fail(server, claim(server), "of now")
    assert server.claim(max_attempts=1).ids == []
    given_up, *others = kept(server)
    assert given_up.reason.startswith("delivered 3 times")
    assert (given_up.where, given_up.took_ms) == ("", None)
    assert [each.reason for each in others] == ["of now", "plain again"]


def test_failures_of_items_of_one_bundle_are_apart(server: OneServer) -> None:
    claimed: Claimed = put_and_claim(server, Put(BUNDLE, [b"0", b"1", b"2"]))
    of = claimed.decided[BUNDLE]
    server.settle(of.settle("nack", LONG_MS, sent(b"h", "both"), (0, 2)), of.settle("ack", positions=(1,)))
    assert [reasons(server, BUNDLE, position) for position in range(3)] == [["both"], [], ["both"]]


def test_failures_come_home_with_their_item(server: OneServer, follower: OneServer) -> None:
    server.put(Put("a"))
    for _ in range(3):
        server.epoch += 1
        fail_often(server, 1)
    adopt(follower, items_of(server))
    assert kept(follower) == kept(server)
    admit(follower, "a")
    fail(follower, claim(follower), "at home")
    assert reasons(follower) == ["at home", *["failure 0"] * 3]


HOSTILE = {
    "nothing behind the mark": b"\xff",
    "a part of the head": b"\xff\1\0\0",
    "a part of an entry": b"\xff" + bytes(8) + bytes(10),
    "an entry that is longer than the text": b"\xff" + bytes(8) + bytes(12) + b"\xff\xff\xffabc",
    "no number": b"\xff" + bytes(8) + b"\xff" * 8 + bytes(4) + b"\1\1\0ab",
    "many entries": b"\xff" + bytes(8) + bytes(15) * 4_000,
    "a long text": b"x" * 60_000,
    "no text": bytes(range(128, 255)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_stored_is_read_safely(server: OneServer, what: str) -> None:
    server.put(Put("a"))
    fail_often(server, 1)
    (key,) = (name for name in cast("list[bytes]", server.command("KEYS", "*")) if name.endswith(b"notes"))
    (field,) = cast("list[bytes]", server.command("HKEYS", key))
    server.command("HSET", key, field, HOSTILE[what])
    assert len(kept(server)) <= KEPT
    fail(server, claim(server), "of now")
    found = kept(server)
    assert found[0].reason == "of now"
    assert len(found) <= KEPT


SENT = (b"\xff", b"\xff\xff", b"\xff\x05ab", b"\xff\0" + b"x" * 60_000, b"\xff" * 300)


@pytest.mark.parametrize("text", SENT, ids=range(len(SENT)))
def test_what_is_sent_is_read_safely(server: OneServer, text: bytes) -> None:
    server.put(Put("a"))
    assert server.settle(claim(server).settle("nack", 0, text)).outcomes == [1]
    (found,) = kept(server)
    assert len(found.reason.encode(errors="replace")) <= 3_000
