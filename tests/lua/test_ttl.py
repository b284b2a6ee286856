"""Items with a time to live: not delivered after it has ended, on any server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lua.entries import WINDOW_MS, Applied, Claimed, Copy, Decided, Put, packed_item
from tests.lua.one_server import OneServer, wait_ms
from zkrq.protocol import calls
from zkrq.protocol.records import State, Version, pack, unpack

SHORT_MS = 40
"""A time to live that a test lets pass."""

LONG_MS = 60_000

Push = Callable[[OneServer, Put], object]


def put(server: OneServer, item: Put) -> object:
    return server.put(item)


def push(server: OneServer, item: Put) -> object:
    return server.push(item)


every_push = pytest.mark.parametrize("add", [put, push])
kept_or_dropped = pytest.mark.parametrize(("expired", "state"), [("X", State.GONE), ("D", State.DEAD)])


def mortal(id: str = "a", ttl_ms: float = LONG_MS, delay_ms: int = 0, key: str = "") -> Put:
    return Put(id, id.encode(), delay_ms, key=key, ttl_ms=ttl_ms)


def outlive(server: OneServer, *ids: str) -> None:
    """Have the time of these items be over, a moment ago by the server's clock."""
    server.outlive(*ids)


def claim_of(server: OneServer, id: str = "a") -> Decided:
    return server.claim().decided[id]


# -- when it begins ------------------------------------------------------------------------------------------------


@every_push
def test_time_begins_with_the_push(server: OneServer, add: Push) -> None:
    before = server.now_us()
    add(server, mortal())
    after = server.now_us()
    contents = server.contents()
    assert contents.bundles["a"].ttl_us == LONG_MS * 1000
    assert before + LONG_MS * 1000 <= contents.expiring["a"] <= after + LONG_MS * 1000
    assert contents.faults == []


@every_push
def test_delay_and_time_to_live_both_count_from_the_push(server: OneServer, add: Push) -> None:
    """Durations travel: the record's moments count from its arrival."""
    before = server.now_us()
    add(server, mortal(delay_ms=30_000))
    after = server.now_us()
    contents = server.contents()
    assert contents.homes("a") == {"scheduled"}
    assert before + 30_000_000 <= contents.moment_us("a") <= after + 30_000_000
    assert before + 60_000_000 <= contents.expiring["a"] <= after + 60_000_000
    assert contents.faults == []


@every_push
def test_item_without_a_time_to_live_is_not_looked_after(server: OneServer, add: Push) -> None:
    add(server, Put("a"))
    assert server.contents().expiring == {}
    assert "expiring" not in server.key_names()


@every_push
def test_push_again_does_not_begin_anew(server: OneServer, add: Push) -> None:
    """Three answers: the same id may be pushed again."""
    add(server, mortal())
    before = server.contents()
    add(server, mortal(ttl_ms=2 * LONG_MS))
    assert server.contents() == before


@pytest.mark.parametrize("call", [calls.PushPlain, calls.PushDecided], ids=["put", "push"])
def test_time_that_is_left_may_be_less_than_the_whole(
    server: OneServer, call: Callable[..., calls.Call[object]]
) -> None:
    late = mortal().call
    late = late._replace(record=pack(unpack(late.record)._replace(expires_us=5_000_000)))
    before = server.now_us()
    server.ask(call(queue="q", items=[late]))
    assert before + 5_000_000 <= server.contents().expiring["a"] <= server.now_us() + 5_000_000


def test_fraction_of_a_millisecond_and_ten_years(server: OneServer) -> None:
    ten_years_ms = 10 * 366 * 86_400_000
    before = server.now_us()
    server.put(mortal("a", 10_000.5), mortal("b", ten_years_ms))
    expiring = server.contents().expiring
    assert expiring["a"] - before >= 10_000_500
    assert ten_years_ms * 1000 <= expiring["b"] - before < (ten_years_ms + LONG_MS) * 1000
    assert server.claim().ids == ["a", "b"]


@every_push
def test_priority_is_what_was_asked_for(server: OneServer, add: Push) -> None:
    """The byte of the priority says also what the item has besides."""
    for priority in (0, 9, 5):
        add(server, mortal(f"p{priority}")._replace(priority=priority))
    server.put(Put("p7", priority=7))
    claimed = server.claim()
    assert claimed.ids == ["p9", "p7", "p5", "p0"]
    assert {id: each.record.priority for id, each in claimed.decided.items()} == {"p9": 9, "p7": 7, "p5": 5, "p0": 0}
    assert server.contents().faults == []


# -- when it is over -----------------------------------------------------------------------------------------------


@every_push
@kept_or_dropped
def test_item_that_outlives_its_time_is_not_delivered(server: OneServer, add: Push, expired: str, state: State) -> None:
    """By this server's clock; whoever claims next decides what becomes of it, and tells everybody."""
    add(server, mortal(ttl_ms=SHORT_MS))
    wait_ms(SHORT_MS)
    claimed = server.claim(expired=expired)
    assert claimed.handed == {}
    record = claimed.decided["a"].record
    assert (record.state, record.attempts) == (state, 0)
    contents = server.contents()
    assert contents.records == {"a": record}
    assert contents.expiring == {}
    assert contents.faults == []
    if state is State.DEAD:
        assert claimed.decided["a"].note == contents.notes["a"] == "expired"
        assert (contents.payloads, contents.homes("a")) == ({"a": b"a"}, {"dead"})


@kept_or_dropped
def test_scheduled_item_that_outlives_its_time_is_dealt_with(server: OneServer, expired: str, state: State) -> None:
    """Nacked for later than it lives."""
    server.put(mortal())
    server.settle(claim_of(server).settle("nack", LONG_MS))
    outlive(server, "a")
    claimed = server.claim(expired=expired)
    assert (claimed.ids, claimed.decided["a"].record.state) == ([], state)
    assert server.contents().faults == []


@pytest.mark.parametrize("copied", [False, True])
def test_item_that_is_due_after_its_end_is_scheduled_until_then(server: OneServer, copied: bool) -> None:
    """So what is scheduled for later has not expired, and is counted once; and a consumer is told when to drop it."""
    server.put(mortal(ttl_ms=5_000))
    server.settle(claim_of(server).settle("nack", LONG_MS))
    if copied:  # by another server's clock
        copy_back(server, clock=False)
    contents = server.contents()
    assert contents.homes("a") == {"scheduled"}
    assert contents.moment_us("a") == pytest.approx(contents.expiring["a"], abs=1)
    assert (server.count(), server.expired) == ((0, 1, 0, 0), 0)
    assert 0 < server.claim().next_ms <= 5_000
    outlive(server, "a")
    assert (server.count(), server.expired) == ((0, 0, 0, 0), 1)
    assert server.statistics().waited_ms == -1


def test_longest_wait_is_not_that_of_an_expired_item(server: OneServer) -> None:
    server.put(*(mortal(f"i{n:02}") for n in range(20)), mortal("later", delay_ms=20))
    wait_ms(30)
    before = server.now_ms()
    server.put(Put("a"))
    outlive(server, *(f"i{n:02}" for n in range(20)), "later")
    statistics = server.statistics()
    assert (statistics.ready, statistics.expired) == (1, 21)
    assert statistics.waited_ms <= server.now_ms() - before


def test_expired_item_is_dealt_with_while_the_queue_is_paused_and_by_a_claim_of_none(server: OneServer) -> None:
    server.put(mortal("a"), mortal("b"))
    outlive(server, "a")
    assert set(server.claim(count=0).decided) == {"a"}
    server.pause()
    outlive(server, "b")
    assert set(server.claim().decided) == {"b"}
    assert server.count() == (0, 0, 0, 0)


def test_others_are_delivered_in_its_place(server: OneServer) -> None:
    server.put(mortal("a"), Put("b"), mortal("c"))
    outlive(server, "a")
    claimed = server.claim(count=1)
    assert claimed.ids == ["b"]
    assert claimed.decided["a"].record.state is State.GONE
    assert server.claim().ids == ["c"]


def test_very_many_expired_items_are_never_delivered(server: OneServer) -> None:
    """More of them than one call deals with: those that it meets in the ready ones are dealt with there."""
    ids = [f"i{n:03}" for n in range(350)]
    server.put(*(mortal(id) for id in ids), Put("last"))
    outlive(server, *ids)
    gone: set[str] = set()
    while gone != set(ids):
        claimed = server.claim(count=30)
        assert set(claimed.handed) <= {"last"}
        assert claimed.next_ms == 0 or gone | set(claimed.decided) >= set(ids), "asked again at once"
        gone |= claimed.decided.keys() - claimed.handed.keys()
    contents = server.contents()
    assert contents.ids(State.GONE) == set(ids)
    assert contents.faults == []


@kept_or_dropped
def test_repeated_request_decides_nothing_anew(server: OneServer, expired: str, state: State) -> None:
    """Rule 6: it gives the same items, here none."""
    server.put(mortal())
    outlive(server, "a")
    server.claim(seq=50, expired=expired)
    before = server.contents()
    again = server.claim(seq=50, expired=expired)
    assert (again.handed, again.decided) == ({}, {})
    assert server.contents() == before
    assert before.ids(state) == {"a"}


def test_item_delivered_too_often_is_a_dead_letter_whatever_its_time(server: OneServer) -> None:
    server.put(mortal())
    server.settle(claim_of(server).settle("nack"))
    assert server.claim(max_attempts=1, expired="X").decided["a"].record.state is State.DEAD


# -- while it is claimed -------------------------------------------------------------------------------------------


def held_beyond_its_time(server: OneServer, *, seen: bool) -> Decided:
    """A claim on an item whose time is over; ``seen``: another consumer has come by since."""
    server.put(mortal())
    claim = claim_of(server)
    outlive(server, "a")
    if seen:
        assert server.claim("bob").decided == {}
        assert server.contents().expiring["a"] < 0
    return claim


every_sight = pytest.mark.parametrize("seen", [True, False])


@every_sight
def test_claimed_item_stays_with_its_holder(server: OneServer, seen: bool) -> None:
    """What is being worked on is not taken away."""
    claim = held_beyond_its_time(server, seen=seen)
    assert server.settle(claim.settle("extend", LONG_MS)).outcomes == [1]
    assert server.claim("bob").ids == []
    assert server.settle(claim.settle("ack")).outcomes == [1]
    contents = server.contents()
    assert (contents.ids(State.GONE), contents.expiring, contents.faults) == ({"a"}, {}, [])


@every_sight
@pytest.mark.parametrize("verb", ["nack", "release", "fence"])
@kept_or_dropped
def test_item_that_comes_back_too_late_is_not_delivered(
    server: OneServer, seen: bool, verb: str, expired: str, state: State
) -> None:
    claim = held_beyond_its_time(server, seen=seen)
    if verb == "fence":
        server.fence("ann")
    else:
        server.settle(claim.settle(verb))
    claimed = server.claim("bob", expired=expired)
    assert claimed.ids == []
    assert claimed.decided["a"].record.state is state
    counted = verb != "release"  # which takes its delivery back
    assert claimed.decided["a"].record.attempts == counted
    contents = server.contents()
    assert (contents.expiring, contents.faults) == ({}, [])


def test_claim_that_ran_out_is_not_delivered_again_too_late(server: OneServer) -> None:
    server.put(mortal())
    server.claim(lease_ms=SHORT_MS)
    outlive(server, "a")
    assert server.claim("bob").ids == []
    wait_ms(SHORT_MS)
    assert server.claim("bob").ids == []
    contents = server.contents()
    assert (contents.ids(State.GONE), contents.faults) == ({"a"}, [])


@every_sight
def test_item_scheduled_beyond_its_time_is_not_delivered(server: OneServer, seen: bool) -> None:
    """Nacked with a delay by a holder that had it too long: when it is due it is over."""
    claim = held_beyond_its_time(server, seen=seen)
    server.settle(claim.settle("nack", SHORT_MS))
    wait_ms(SHORT_MS)
    assert server.claim("bob").ids == []
    assert server.record("a").state is State.GONE
    assert server.contents().faults == []


@every_sight
@pytest.mark.parametrize("end", ["ack", "bury", "cancel"])
def test_end_of_an_item_ends_its_time(server: OneServer, seen: bool, end: str) -> None:
    claim = held_beyond_its_time(server, seen=seen)
    if end == "cancel":
        server.cancel("a")
    else:
        server.settle(claim.settle(end))
    contents = server.contents()
    assert (contents.expiring, contents.faults) == ({}, [])


def test_cleared_item_ends_its_time(server: OneServer) -> None:
    server.put(mortal("a"), mortal("b", delay_ms=30_000))
    server.clear(10)
    contents = server.contents()
    assert (contents.expiring, contents.faults) == ({}, [])


# -- dead letters --------------------------------------------------------------------------------------------------


def test_dead_letter_does_not_expire(server: OneServer) -> None:
    """Also where an index still names it: who reads one looks at the record."""
    server.put(mortal())
    server.settle(claim_of(server).settle("bury", 0, "why"))
    assert server.contents().expiring == {}
    server.command("ZADD", server.key("expiring"), 1, "a", 2, "never")
    assert server.claim().decided == {}
    contents = server.contents()
    assert (contents.notes, contents.expiring, contents.faults) == ({"a": "why"}, {}, [])


@pytest.mark.parametrize("verb", ["bury", "nack"])
def test_reason_leaves_key_and_time_to_live_alone(server: OneServer, verb: str) -> None:
    """They are in the record, the reason stands beside it."""
    server.push(mortal(key="k"))
    for text in ("a first, longer reason", "short", ""):
        bundle = server.settle(claim_of(server).settle(verb, 0, text)).decided["a"].bundle
        assert (bundle.key, bundle.ttl_us) == ("k", LONG_MS * 1000)
        assert server.contents().notes == {"a": text or "short"}
        server.redrive("a")


def test_redriven_item_begins_a_new_life(server: OneServer) -> None:
    """As if it had never been tried: its time to live is as long as at first."""
    server.put(mortal())
    outlive(server, "a")
    server.claim(expired="D")
    before = server.now_us()
    server.redrive("a")
    contents = server.contents()
    assert before + LONG_MS * 1000 <= contents.expiring["a"] <= server.now_us() + LONG_MS * 1000
    assert contents.faults == []
    assert server.claim().ids == ["a"]


# -- on other servers ----------------------------------------------------------------------------------------------


def one_of_each(server: OneServer) -> None:
    """Items with times to live, called by their states."""
    server.put(mortal("dead"))
    server.settle(claim_of(server, "dead").settle("bury"))
    server.put(mortal("gone"))
    server.settle(claim_of(server, "gone").settle("ack"))
    server.put(mortal("claimed", 50_000))
    claim_of(server, "claimed")
    server.put(mortal("ready", 40_000), mortal("scheduled", 30_000, delay_ms=20_000), Put("immortal"))


MORTAL = {"claimed": 50_000, "ready": 40_000, "scheduled": 30_000}


def readings(server: OneServer) -> dict[str, dict[str, Copy]]:
    """Everything, as each script that reads tells it."""
    ids = server.contents().records
    peeked = [server.peek(state).found for state in ("ready", "scheduled", "claimed", "dead")]
    return {
        "page": server.page()[1].found,
        "read": server.read_some(*ids).found,
        "peek": {id: copy for found in peeked for id, copy in found.items()},
    }


def test_readings_tell_what_is_left(server: OneServer) -> None:
    """Also of what does not expire as it is: a claimed item, a dead letter, a tombstone."""
    one_of_each(server)
    for name, found in readings(server).items():
        left = {id: copy.expires_ms for id, copy in found.items() if copy.expires_ms is not None}
        assert set(left) - {"dead", "gone"} == set(MORTAL), name
        assert all(ms - 10_000 < left[id] <= ms for id, ms in MORTAL.items()), name
        assert all(left[id] - found[id].left_ms > 8_000 for id in ("ready", "scheduled")), "both are told"


def test_readings_count_from_the_time_that_is_named(server: OneServer) -> None:
    one_of_each(server)
    expiring = server.contents().expiring
    clock = server.metadata().clock - 1_000_000
    _, page = server.page(clock=clock)
    assert set(expiring) == set(MORTAL)
    for id in MORTAL:
        assert page.found[id].expires_ms == pytest.approx((abs(expiring[id]) - clock) / 1000, abs=0.0011)


@pytest.mark.parametrize("negative", [False, True])
def test_readings_of_what_is_over_tell_since_when(server: OneServer, negative: bool) -> None:
    server.put(mortal())
    claim_of(server)
    outlive(server, "a")
    if negative:
        server.claim("bob")
    (copy,) = server.page()[1].found.values()
    assert copy.expires_ms is not None
    assert -10_000 < copy.expires_ms < 0


def copy_back(server: OneServer, *, clock: bool) -> None:
    """Everything there is, read, and applied again after the server was emptied."""
    moment = server.metadata().clock if clock else 0
    _, page = server.page(clock=moment)
    server.reset()
    server.apply(*(copy.applied for copy in page.found.values()), payloads=True, clock=moment)


@pytest.mark.parametrize("clock", [True, False])
def test_copy_keeps_what_is_left(server: OneServer, clock: bool) -> None:
    """Catch-up and recovery: an item grows no older, and no younger, by being copied."""
    one_of_each(server)
    before, began_us = server.contents(), server.now_us()
    copy_back(server, clock=clock)
    took_us = server.now_us() - began_us
    after = server.contents()
    assert after.records == before.records
    assert after.expiring.keys() == set(MORTAL)
    for id in MORTAL:
        later = abs(after.expiring[id]) - abs(before.expiring[id])
        assert (-2 <= later <= 2) if clock else (0 <= later <= took_us)
    assert after.faults == []


@pytest.mark.parametrize("state", ["claimed", "ready"])
def test_copy_of_what_is_over_is_over(server: OneServer, state: str) -> None:
    server.put(mortal())
    if state == "claimed":
        claim_of(server)
        outlive(server, "a")
        server.claim("bob")
    else:
        outlive(server, "a")
    copy_back(server, clock=False)
    server.fence("ann")
    claimed = server.claim("eve")
    assert claimed.ids == []
    assert claimed.decided["a"].record.state is State.GONE
    assert server.contents().faults == []


def queued(n: int = 2, ttl_ms: float | None = LONG_MS, state: State = State.QUEUED, epoch: int = 1) -> bytes:
    token = "ann/1" if state is not State.QUEUED else ""
    return packed_item(Version(epoch, n), state, pushed_at_ms=1e12, token=token, lease_ms=LONG_MS, ttl_ms=ttl_ms or 0)


def test_decision_of_an_item_that_is_known_changes_nothing_about_its_time(server: OneServer) -> None:
    """What a primary decides carries it along."""
    server.put(mortal())
    before, began_us = server.contents().expiring, server.now_us()
    claim = claim_of(server)
    released = server.settle(claim.settle("release")).decided["a"]
    assert server.contents().expiring == before
    server.reset()
    server.put(mortal(ttl_ms=2 * LONG_MS))
    server.apply(claim.apply(), released.apply())
    contents = server.contents()
    assert 0 <= contents.expiring["a"] - before["a"] <= server.now_us() - began_us
    assert contents.faults == []


def test_decision_that_comes_before_the_push_begins_its_time(server: OneServer) -> None:
    """Rule 4: the push may come later, or never: the item must not stay for ever."""
    before = server.now_us()
    server.apply(Applied("a", queued(2)))
    expiring = server.contents().expiring
    assert before + LONG_MS * 1000 <= expiring["a"] <= server.now_us() + LONG_MS * 1000
    server.put(mortal())
    contents = server.contents()
    assert contents.expiring == expiring
    assert contents.faults == []


def test_newer_copy_says_when_it_is_over(server: OneServer) -> None:
    server.put(mortal())
    before = server.now_us()
    server.apply(Applied("a", queued(2, 500.25)))
    expires_us = server.contents().expiring["a"]
    assert before + 500_250 - 1_000 <= expires_us <= server.now_us() + 500_250


def test_older_copy_says_nothing(server: OneServer) -> None:
    """Rule 1.  Meanwhile the item may have died, and been given a new life."""
    server.apply(Applied("a", queued(4, 60_000), 0, b"p"), payloads=True)
    before = server.contents()
    assert server.apply(Applied("a", queued(2, 1), 0, b"p"), payloads=True)[0] == []
    assert server.contents() == before


@pytest.mark.parametrize("state", [State.DEAD, State.GONE])
def test_applied_end_ends_its_time(server: OneServer, state: State) -> None:
    server.put(mortal())
    server.apply(Applied("a", queued(2, state=state)))
    contents = server.contents()
    assert (contents.expiring, contents.faults) == ({}, [])


def test_item_whose_removal_was_never_completed_has_a_time_again(server: OneServer) -> None:
    """A removal that reached only some servers before the primary died: the next one's decisions are greater."""
    server.put(mortal())
    server.apply(Applied("a", packed_item(Version(1, 3), State.GONE)))
    server.apply(Applied("a", queued(3, 30_000, epoch=2), 0, b"a"), payloads=True, epoch=2)
    contents = server.contents()
    assert contents.expiring.keys() == {"a"}
    assert contents.faults == []


def test_item_carried_on_keeps_what_is_left(server: OneServer) -> None:
    """The scrub: an unfinished push goes on where it stood."""
    pushed_at_ms = server.now_ms() - 3 * WINDOW_MS
    records = [
        packed_item(Version(0, 1), State.QUEUED, pushed_at_ms=pushed_at_ms, ttl_ms=ttl_ms) for ttl_ms in (5_000, -5_000)
    ]
    before = server.now_us()
    server.forward(Applied("a", records[0], 0, b"a"), Applied("b", records[1], 0, b"b"))
    expiring = server.contents().expiring
    assert before + 5_000_000 <= expiring["a"] <= server.now_us() + 5_000_000
    assert server.contents().faults == []
    claimed = server.claim()
    assert claimed.ids == ["a"]
    assert claimed.decided["b"].record.state is State.GONE


def test_affirmed_item_keeps_its_time(server: OneServer) -> None:
    one_of_each(server)
    before = server.contents()
    server.affirm(*before.records, epoch=3)
    after = server.contents()
    assert after.expiring == before.expiring
    assert after.faults == []


# -- many at a time ------------------------------------------------------------------------------------------------


def expired_in(claimed: Claimed) -> set[str]:
    return {id for id, each in claimed.decided.items() if each.record.state is State.GONE}


def test_whatever_a_claim_decides_goes_to_the_followers(server: OneServer) -> None:
    """Decide, then apply: what is dropped here is dropped there."""
    items = [mortal(f"i{n}") for n in range(5)]
    server.put(*items)
    outlive(server, "i1", "i3")
    claimed = server.claim()
    assert expired_in(claimed) == {"i1", "i3"}
    primary = server.contents()
    server.reset()
    server.put(*items)
    server.apply(*(each.apply() for each in claimed.decided.values()))
    follower = server.contents()
    assert follower.records.keys() == primary.records.keys()
    assert set(follower.expiring) == set(primary.expiring) == {"i0", "i2", "i4"}
    assert follower.faults == []
