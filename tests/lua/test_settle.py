"""``settle``: the outcome of a claim, decided by the holder of its token."""

from __future__ import annotations

import pytest

from tests.lua.entries import Applied, Decided, Put, Settlement, packed_item
from tests.lua.one_server import OneServer, put_and_claim
from zkrq.protocol.records import State, Version, unpack

VERBS = {"ack": State.GONE, "nack": State.QUEUED, "release": State.QUEUED, "bury": State.DEAD, "extend": State.CLAIMED}

every_verb = pytest.mark.parametrize("verb", VERBS)


def held(server: OneServer, id: str = "a", owner: str = "ann") -> Decided:
    """A new item in the hands of an owner."""
    return put_and_claim(server, Put(id, b"payload", priority=2), owner=owner).only


# -- each verb -----------------------------------------------------------------------------------------------------


@every_verb
def test_verb_decides_the_next_version(server: OneServer, verb: str) -> None:
    """Decide, then apply: the reply carries the record, which is the one that is held here."""
    claim = held(server)
    settled = server.settle(claim.settle(verb, 1_000))
    assert settled.outcomes == [1]
    record = settled.decided["a"].record
    assert (record.version, record.state, record.token) == (Version(1, 3), VERBS[verb], "ann/1")
    contents = server.contents()
    assert contents.packed["a"] == settled.decided["a"].packed
    assert contents.faults == []


def test_acked_item_is_gone(server: OneServer) -> None:
    """Acked means gone; rule 8: it leaves a tombstone."""
    server.settle(held(server).settle("ack"))
    contents = server.contents()
    assert contents.payloads == {}
    assert len(contents.tombstones) == 1
    assert server.count() == (0, 0, 0, 0)
    assert server.claim().ids == []


def test_nacked_item_comes_again_after_the_delay(server: OneServer) -> None:
    """Claims: nack counts a failure; the delay is by this server's clock."""
    claim = held(server)
    before = server.now_us()
    decided = server.settle(claim.settle("nack", 60_000)).decided["a"]
    assert (decided.record.failures, decided.record.attempts, decided.left_ms) == (1, 1, 60_000)
    contents = server.contents()
    assert contents.homes("a") == {"scheduled"}
    assert contents.moment_us("a") >= before + 60_000_000


def test_item_nacked_without_delay_is_ready_behind_those_that_wait(server: OneServer) -> None:
    claim = held(server)
    server.put(Put("b", priority=2))
    server.settle(claim.settle("nack", 0))
    assert server.claim("bob").ids == ["b", "a"]


def test_released_item_stands_where_it_stood(server: OneServer) -> None:
    """Handed back: neither a failure nor a later place."""
    claim = held(server)
    server.put(Put("b", priority=2))
    record = server.settle(claim.settle("release")).decided["a"].record
    assert (record.attempts, record.failures) == (0, 0)
    assert server.claim("bob").ids == ["a", "b"]


def test_an_item_that_is_put_off_counts_nothing_and_waits(server: OneServer) -> None:
    claim = held(server)
    settled = server.settle(claim.settle("snooze", 60_000, "unused"))
    record = settled.decided["a"].record
    assert (record.state, record.attempts, record.failures) == (State.QUEUED, 0, 0)
    assert server.claim("bob").ids == []
    assert server.contents().faults == []
    assert server.settle(claim.settle("snooze", 60_000)).outcomes == [1], "repeated, it is known as done"
    assert server.settle(claim.settle("ack")).outcomes == [0]


def test_what_has_failed_before_keeps_its_failures_when_it_is_put_off(server: OneServer) -> None:
    claim = held(server)
    server.settle(claim.settle("nack", 0, "why"))
    record = server.settle(server.claim("bob").only.settle("snooze", 1)).decided["a"].record
    assert (record.attempts, record.failures) == (1, 1)


HOUR_US = 3_600_000_000


def set_back(server: OneServer) -> None:
    """The clock is set back by an hour, as the item's record tells."""
    server.change("a", lambda bundle: bundle._replace(
        due_us=bundle.due_us + HOUR_US,
        clock_us=bundle.clock_us + HOUR_US,
        expires_us=bundle.expires_us and bundle.expires_us + HOUR_US,
        own={position: own._replace(moment_us=own.moment_us + HOUR_US) for position, own in bundle.own.items()},
    ))  # fmt: skip


@pytest.mark.parametrize("moment", ["shared", "own"])
@pytest.mark.parametrize("end", ["release", "fence"])
def test_claim_made_before_the_clock_was_set_back_ends_with_a_ready_item(
    server: OneServer, moment: str, end: str
) -> None:
    """It was due when it was claimed; the item may not wait until the clock has caught up."""
    claim = held(server)
    if moment == "own":
        server.settle(claim.settle("nack", 0))
        claim = server.claim("ann").only
    set_back(server)
    if end == "release":
        server.settle(claim.settle("release"))
    else:
        server.fence("ann")
    assert server.contents().homes("a") == {"ready"}
    again = server.claim("bob").only
    assert again.record.failures == claim.record.failures
    assert server.contents().faults == []


def test_what_is_decided_after_the_clock_was_set_back_keeps_the_time_that_is_left(server: OneServer) -> None:
    server.push(Put("a", ttl_ms=60_000))
    set_back(server)
    left_us = unpack(server.claim("ann").only.packed).expires_us - server.now_us()
    assert 0 < left_us <= 60_000_000


def test_a_copy_made_after_the_clock_was_set_back_is_not_due_later(server: OneServer) -> None:
    """Another server may be brought back from this one, and lead."""
    server.push(Put("a"))
    set_back(server)
    assert server.read("a")["a"].left_ms <= 0


def test_release_takes_the_delivery_back(server: OneServer) -> None:
    claim = held(server)
    assert server.settle(claim.settle("release")).decided["a"].record.attempts == 0
    assert server.claim("bob").only.record.attempts == 1


def test_buried_item_keeps_payload_and_reason(server: OneServer) -> None:
    settled = server.settle(held(server).settle("bury", 0, "no such address: ünïcode"))
    record = settled.decided["a"].record
    assert (settled.decided["a"].note, record.priority, record.attempts) == ("no such address: ünïcode", 2, 1)
    assert server.contents().notes == {"a": "no such address: ünïcode"}
    assert server.contents().payloads == {"a": b"payload"}
    assert server.count() == (0, 0, 0, 1)
    assert server.claim().ids == []


def test_reason_is_cut(server: OneServer) -> None:
    """Bounded in memory."""
    assert server.settle(held(server).settle("bury", 0, "x" * 5_000)).decided["a"].note == "x" * 1_000


def test_reason_cut_within_a_character_is_still_readable(server: OneServer) -> None:
    server.settle(held(server).settle("bury", 0, "€" * 400))
    assert server.contents().notes["a"].startswith("€" * 333)


def test_bury_keeps_the_key(server: OneServer) -> None:
    """The tail of a record is carried along; the note beside it is new."""
    packed = packed_item(Version(1, 2), State.CLAIMED, token="ann/1", key="welcome:ann")
    server.apply(Applied("a", packed, 60_000, b"p"), payloads=True)
    decided = server.settle(Settlement("a", 1, 2, "ann/1", "bury", 0, "new")).decided["a"]
    assert (decided.record.key, decided.note) == ("welcome:ann", "new")


def test_extended_claim_holds_for_longer(server: OneServer) -> None:
    """Claims: the deadline moves to ms from now, and the lease that a new primary grants is as long."""
    claim = held(server)
    before = server.now_us()
    decided = server.settle(claim.settle("extend", 120_000)).decided["a"]
    assert (decided.left_ms, decided.bundle.rows[0].lease_ms) == (120_000, 120_000)
    assert server.contents().claimed["a"] >= before + 120_000_000


def test_claim_may_be_extended_to_end_earlier(server: OneServer) -> None:
    claim = held(server)
    server.settle(claim.settle("extend", 1_000))
    assert server.contents().claimed["a"] <= server.now_us() + 1_000_000


# -- who may -------------------------------------------------------------------------------------------------------


def lost(server: OneServer, call: Settlement, epoch: int = 1) -> Decided | None:
    """A call that must be lost and change nothing; the record that the reply carries."""
    before = server.contents()
    settled = server.settle(call, epoch=epoch)
    assert settled.outcomes == [0]
    assert server.contents() == before
    return settled.decided.get(call.id)


@every_verb
@pytest.mark.parametrize("token", ["bob/1", "ann/2", "ann/0", ""])
def test_wrong_token_is_refused(server: OneServer, verb: str, token: str) -> None:
    """Rule 6: settling checks the version and the token; a lost answer tells what the item is now."""
    claim = held(server)
    told = lost(server, claim.settle(verb, 1_000)._replace(token=token))
    assert told is not None
    assert told.packed == claim.packed


@every_verb
def test_newer_version_named_than_held_is_refused(server: OneServer, verb: str) -> None:
    """Rule 6: this server has not seen what the caller has: it must not decide from the past."""
    claim = held(server)
    told = lost(server, claim.settle(verb, 1_000)._replace(n=claim.record.version.n + 1))
    assert told is not None
    assert told.packed == claim.packed


@every_verb
def test_older_version_named_is_enough(server: OneServer, verb: str) -> None:
    """Rule 6: an extension in between made a newer version of the same claim."""
    claim = held(server)
    server.settle(claim.settle("extend", 90_000))
    assert server.settle(claim.settle(verb, 1_000)).outcomes == [1]


@every_verb
def test_unknown_item_is_lost(server: OneServer, verb: str) -> None:
    """Its tombstone may have been dropped: there is nothing to tell."""
    assert lost(server, Settlement("never", 1, 2, "ann/1", verb, 1_000)) is None


@every_verb
def test_claim_that_went_to_somebody_else_is_lost(server: OneServer, verb: str) -> None:
    """One live holder: the ack of a process that was paused beyond its lease is refused."""
    claim = held(server)
    server.fence("ann")
    other = server.claim("bob").only
    told = lost(server, claim.settle(verb, 1_000))
    assert told is not None
    assert told.packed == other.packed


@every_verb
def test_requeued_claim_is_lost(server: OneServer, verb: str) -> None:
    """Rule 6: fencing takes the token away, so nobody settles what is ready."""
    claim = held(server)
    requeued = server.fence("ann")["a"]
    told = lost(server, claim.settle(verb, 1_000))
    assert told is not None
    assert told.packed == requeued.packed


# -- once more -----------------------------------------------------------------------------------------------------


@every_verb
def test_repeated_verb_is_answered_as_done(server: OneServer, verb: str) -> None:
    """Rule 5: idempotent by token; nothing counts twice."""
    claim = held(server)
    server.settle(claim.settle(verb, 1_000))
    once = server.record("a")
    again = server.settle(claim.settle(verb, 1_000))
    assert again.outcomes == [1]
    twice = server.record("a")
    assert (twice.state, twice.failures, twice.attempts) == (once.state, once.failures, once.attempts)
    assert server.contents().packed["a"] == again.decided["a"].packed
    assert server.contents().faults == []


@pytest.mark.parametrize(
    ("first", "verb"),
    [(first, verb) for first in VERBS if first != "extend" for verb in VERBS if VERBS[first] is not VERBS[verb]],
)
def test_another_verb_after_the_first_is_lost(server: OneServer, first: str, verb: str) -> None:
    """A claim is settled once; a verb that leads to the same state is the same as done."""
    claim = held(server)
    settled = server.settle(claim.settle(first, 1_000)).decided["a"]
    told = lost(server, claim.settle(verb, 1_000))
    assert told is not None
    assert told.packed == settled.packed


@every_verb
def test_verb_is_decided_again_under_a_newer_epoch(server: OneServer, verb: str) -> None:
    """Rule 5: after a change of the view the decision is stamped with the new epoch, so that it wins everywhere."""
    claim = held(server)
    first = server.settle(claim.settle(verb, 60_000)).decided["a"]
    again = server.settle(claim.settle(verb, 60_000), epoch=2)
    assert again.outcomes == [1]
    record = again.decided["a"].record
    assert record.version == Version(2, first.record.version.n + 1)
    undated = {"due_us": 0, "deadline_us": 0}
    assert record._replace(version=first.record.version, **undated) == first.record._replace(**undated)
    assert abs(again.decided["a"].left_ms - first.left_ms) < 30_000
    assert server.contents().faults == []


@pytest.mark.parametrize("verb", ["ack", "nack"])
def test_lost_call_under_a_newer_epoch_stamps_what_the_item_is_now(server: OneServer, verb: str) -> None:
    """Rule 5: the record that the reply carries goes to every server, so it must be one of this epoch."""
    claim = held(server)
    server.fence("ann")
    other = server.claim("bob").only
    settled = server.settle(claim.settle(verb), epoch=3)
    assert settled.outcomes == [0]
    record = settled.decided["a"].record
    assert record == other.record._replace(version=Version(3, other.record.version.n + 1))
    assert settled.decided["a"].left_ms > 30_000
    assert server.settle(other.settle("ack"), epoch=3).outcomes == [1]


def test_settling_wins_over_the_expiry_that_another_primary_decided_before(server: OneServer) -> None:
    """Rule 5: stamped with the newer epoch, the ack is greater than any requeue of the older one."""
    claim = held(server)
    requeued = server.fence("ann")["a"]
    server.reset()
    server.put("a")
    server.apply(claim.apply())
    acked = server.settle(claim.settle("ack"), epoch=2).decided["a"]
    assert acked.record.version > requeued.record.version
    assert server.apply(requeued.apply(), epoch=2)[0] == [1]
    assert server.contents().ids(State.GONE) == {"a"}


# -- batches -------------------------------------------------------------------------------------------------------


def test_outcomes_are_by_position(server: OneServer) -> None:
    claims = put_and_claim(server, "a", "b", "c").decided
    calls = [claims["a"].settle("ack"), claims["b"].settle("ack")._replace(token="x/1"), claims["c"].settle("nack", 5)]
    settled = server.settle(*calls, Settlement("never", 1, 2, "ann/1", "ack"))
    assert settled.outcomes == [1, 0, 1, 0]
    assert set(settled.decided) == {"a", "b", "c"}
    assert server.contents().faults == []


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "bury"])
def test_extension_in_the_same_batch_does_not_lose_the_claim(server: OneServer, verb: str) -> None:
    """A claim is extended by itself while its handler settles it: group commit may put both into one call."""
    claim = held(server)
    settled = server.settle(claim.settle("extend", 60_000), claim.settle(verb, 1_000))
    assert settled.outcomes == [1, 1]
    assert server.record("a").state is VERBS[verb]
    assert server.contents().packed["a"] == settled.decided["a"].packed
    assert server.contents().faults == []


def test_extension_behind_the_ack_in_the_same_batch_is_lost(server: OneServer) -> None:
    """Acked means gone: an extension does not bring it back."""
    claim = held(server)
    settled = server.settle(claim.settle("ack"), claim.settle("extend", 1_000))
    assert settled.outcomes == [1, 0]
    assert settled.decided["a"].record.state is State.GONE
    assert server.contents().faults == []


@every_verb
def test_verb_twice_in_one_batch_is_done_once(server: OneServer, verb: str) -> None:
    """Rule 5: who repeats a call whose outcome is unknown may find both in one batch; done is done."""
    claim = held(server)
    settled = server.settle(claim.settle(verb, 1_000), claim.settle(verb, 1_000))
    assert settled.outcomes == [1, 1]
    assert server.record("a").failures == (verb in ("nack", "bury"))
    assert server.contents().faults == []
