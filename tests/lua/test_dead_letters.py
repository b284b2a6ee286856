"""``redrive``, ``cancel``, and the part of ``claim``: how dead letters are kept, queued again, and removed."""

from __future__ import annotations

import time

import pytest

from tests.lua.entries import Applied, Put, packed_item
from tests.lua.letters import bury, letters
from tests.lua.one_server import DEPLOYMENT, OneServer, entry_of, held, put_and_claim, wait_ms
from zkrq.protocol.records import Own, State, Version

LONG_MS = 60_000


def died_ago(server: OneServer, id: str, seconds: float) -> None:
    moment = server.now_us() - int(seconds * 1e6)
    assert server.command("ZADD", server.key("dead"), "XX", "CH", moment, entry_of(id)) == 1


# -- how many ------------------------------------------------------------------------------------------------------


def test_oldest_are_dropped_beyond_the_limit(server: OneServer) -> None:
    """Bounded in memory: whoever claims looks after it."""
    ids = letters(5)
    bury(server, *ids)
    claimed = server.claim(dead_max=3)
    assert claimed.dropped_letters == 2
    assert {id: each.record.state for id, each in claimed.decided.items()} == dict.fromkeys(ids[:2], State.GONE)
    contents = server.contents()
    assert contents.ids(State.DEAD) == set(ids[2:])
    assert contents.ids(State.GONE) == set(ids[:2])
    assert contents.faults == []
    assert server.claim(dead_max=3).dropped_letters == 0


def test_a_clock_that_was_set_back_drops_no_new_letter(server: OneServer) -> None:
    """The older ones seem to have died later."""
    bury(server, "a", "b", "c")
    for id in "abc":
        server.command("ZINCRBY", server.key("dead"), 10_000_000, entry_of(id))
    bury(server, "d")
    assert server.claim(count=0, dead_max=3).dropped_letters == 1
    assert server.contents().ids(State.DEAD) == {"b", "c", "d"}
    bury(server, "e")
    assert server.claim(count=0, dead_max=1).dropped_letters == 3
    assert server.contents().ids(State.DEAD) == {"e"}


@pytest.mark.parametrize("dead_max", [0, 5, 6])
def test_as_many_as_the_limit_are_kept(server: OneServer, dead_max: int) -> None:
    """0: without limit."""
    bury(server, *letters(5))
    assert server.claim(dead_max=dead_max).dropped_letters == 0
    assert server.count() == (0, 0, 0, 5)


def test_many_are_dropped_in_several_calls(server: OneServer) -> None:
    """Bounded work in each."""
    server.limits["LETTERS_MAX"] = 4
    bury(server, *letters(11))
    calls = [server.claim(count=0, dead_max=1) for _ in range(4)]
    assert [(call.dropped_letters, call.next_ms) for call in calls] == [(4, 0), (4, 0), (2, -1), (0, -1)]
    assert server.contents().ids(State.DEAD) == {"d010"}


def test_items_are_handed_out_meanwhile(server: OneServer) -> None:
    bury(server, *letters(3))
    server.put("a")
    claimed = server.claim(dead_max=1)
    assert (claimed.ids, claimed.dropped_letters) == (["a"], 2)
    assert len(claimed.decided) == 3


def test_letters_are_dropped_while_the_queue_is_paused(server: OneServer) -> None:
    bury(server, *letters(3))
    server.pause()
    assert server.claim(dead_max=1).dropped_letters == 2


def test_repeated_request_drops_nothing(server: OneServer) -> None:
    """Rule 6: it only gives the same items again."""
    bury(server, *letters(3))
    server.claim(seq=50)
    assert server.claim(seq=50, dead_max=1).dropped_letters == 0
    assert server.count()[3] == 3


def test_letters_that_a_claim_makes_are_counted_in_the_same_call(server: OneServer) -> None:
    """Items that have expired are dead letters as well: no call leaves more of them than the queue keeps."""
    server.put(*(Put(f"e{n}", ttl_ms=LONG_MS) for n in range(3)))
    server.outlive(*(f"e{n}" for n in range(3)))
    claimed = server.claim(expired="D", dead_max=1)
    assert (claimed.dropped_letters, claimed.ids) == (2, [])
    assert server.count() == (0, 0, 0, 1)
    assert server.contents().faults == []


def test_letters_that_were_delivered_too_often_are_counted_in_the_same_call(server: OneServer) -> None:
    server.put_numbered(200)
    server.claim("ann", 200)
    server.fence("ann")
    claimed = server.claim("bob", 200, max_attempts=1, dead_max=100)
    assert (claimed.dropped_letters, claimed.ids) == (100, [])
    assert server.count() == (0, 0, 0, 100)
    assert server.contents().faults == []


def test_who_buries_drops_what_is_too_many(server: OneServer) -> None:
    """Also where nobody claims any more: 500 letters of a full batch, of which ten are kept, the last ones to die."""
    ids = server.put_numbered(500)
    claims = [server.claim(count=250) for _ in range(2)]
    settled = server.settle(*(each for some in claims for each in some.settle("bury", 0, "why")), dead_max=10)
    assert settled.outcomes == [1] * 500
    assert settled.dropped_letters == 490
    assert {id for id, each in settled.decided.items() if each.record.state is State.DEAD} == set(ids[490:])
    assert server.count() == (0, 0, 0, 10)
    assert server.contents().faults == []


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_who_does_not_bury_leaves_the_letters(server: OneServer, verb: str) -> None:
    bury(server, *letters(3))
    claim = put_and_claim(server, "a").only
    settled = server.settle(claim.settle(verb, LONG_MS), dead_max=1)
    assert (settled.outcomes, settled.dropped_letters) == ([1], 0)
    assert server.count()[3] == 3


def test_dropped_letter_does_not_come_back(server: OneServer) -> None:
    """Rule 8."""
    bury(server, "a", "b")
    server.claim(dead_max=1)
    server.put("a")
    assert server.push(Put("a"))[0] == ["D"]
    assert server.claim().ids == []
    assert server.record("a").state is State.GONE


def test_index_is_mended(server: OneServer) -> None:
    """Every prefix of a script's writes is safe: who reads an index looks at the record."""
    bury(server, "a")
    server.put("queued")
    server.command("ZADD", server.key("dead"), 1, "never", 2, "queued")
    claimed = server.claim(dead_max=1, count=0)
    assert (claimed.dropped_letters, claimed.decided) == (0, {})
    contents = server.contents()
    assert contents.faults == []
    assert contents.ids(State.DEAD) == {"a"}


# -- how old -------------------------------------------------------------------------------------------------------


def test_old_ones_are_dropped(server: OneServer) -> None:
    bury(server, "old", "young")
    died_ago(server, "old", 61)
    died_ago(server, "young", 59)
    claimed = server.claim(dead_age_ms=LONG_MS)
    assert (claimed.dropped_letters, set(claimed.decided)) == (1, {"old"})
    assert server.contents().ids(State.DEAD) == {"young"}
    assert server.claim(dead_age_ms=0).dropped_letters == 0


def test_age_counts_from_the_death(server: OneServer) -> None:
    """Not from the push."""
    bury(server, Put("a", pushed_at_ms=server.now_ms() - 2 * LONG_MS))
    assert server.claim(dead_age_ms=LONG_MS).dropped_letters == 0
    assert server.claim(dead_age_ms=1).dropped_letters in (0, 1)
    time.sleep(0.003)
    server.claim(dead_age_ms=1)
    assert server.count() == (0, 0, 0, 0)


def test_copied_letter_is_as_old_as_it_was(server: OneServer) -> None:
    """Durations travel: what is left of a dead letter is how long ago it died."""
    bury(server, "old")
    server.change("old", lambda bundle: bundle._replace(own={0: Own(bundle.own[0].moment_us - 61e6)}))
    (copy,) = server.page()[1].found.values()
    server.reset()
    server.apply(copy.applied, payloads=True)
    assert server.claim(dead_age_ms=LONG_MS).dropped_letters == 1


def test_both_limits_hold(server: OneServer) -> None:
    """In one call or the next."""
    ids = letters(4)
    bury(server, *ids)
    for id in ids[:3]:
        died_ago(server, id, 61)
    dropped = [server.claim(dead_max=3, dead_age_ms=LONG_MS).dropped_letters for _ in range(3)]
    assert sum(dropped) == 3
    assert dropped[-1] == 0
    assert server.contents().ids(State.DEAD) == {"d003"}


# -- redrive -------------------------------------------------------------------------------------------------------


def test_named_letters_are_queued_again(server: OneServer) -> None:
    """As if they had never been tried, ready at once; the key is theirs again."""
    bury(server, Put("a", b"A", priority=3, key="k"), "b")
    decided = server.redrive("a")
    record = decided["a"].record
    assert (record.state, record.attempts, record.failures, record.priority) == (State.QUEUED, 0, 0, 3)
    contents = server.contents()
    assert (contents.homes("a"), contents.keys) == ({"ready"}, {"k": {"a"}})
    assert contents.ids(State.DEAD) == {"b"}
    assert contents.faults == []
    assert server.claim().handed == {"a": b"A"}


def test_letters_that_died_first_go_first(server: OneServer) -> None:
    ids = letters(6)
    bury(server, *ids)
    assert list(server.redrive(count=2)) == ids[:2]
    assert list(server.redrive(count=10)) == ids[2:]
    assert server.redrive(count=10) == {}
    assert server.claim().ids == ids


def test_letters_are_passed_over(server: OneServer) -> None:
    """``skip``: what stayed a dead letter before must not be met again and again."""
    ids = letters(6)
    bury(server, *ids)
    assert list(server.redrive(skip=1, count=2)) == ids[1:3]
    assert list(server.redrive(skip=3, count=5)) == ids[5:]
    assert server.redrive(skip=9, count=5) == {}
    assert server.contents().ids(State.DEAD) == {"d000", "d003", "d004"}


@pytest.mark.parametrize("named", [True, False])
def test_letter_whose_key_is_in_use_stays(server: OneServer, named: bool) -> None:
    bury(server, Put("a", key="k"), Put("b", key="free"))
    server.push(Put("new", key="k"))
    decided = server.redrive("a", "b") if named else server.redrive(count=10)
    assert set(decided) == {"b"}
    contents = server.contents()
    assert contents.ids(State.DEAD) == {"a"}
    assert contents.keys == {"k": {"new"}, "free": {"b"}}
    assert contents.faults == []
    server.cancel("new")
    assert set(server.redrive("a")) == {"a"}


def test_of_two_letters_with_one_key_one_is_queued(server: OneServer) -> None:
    bury(server, Put("a", key="k"), Put("b", key="k"))
    assert set(server.redrive(count=10)) == {"a"}
    contents = server.contents()
    assert (contents.ids(State.DEAD), contents.keys, contents.faults) == ({"b"}, {"k": {"a"}}, [])


def test_only_letters_are_queued_again(server: OneServer) -> None:
    put_and_claim(server, "claimed")
    server.put("ready")
    server.settle(put_and_claim(server, Put("gone", priority=9)).decided["gone"].settle("ack"))
    before = server.contents()
    assert server.redrive("claimed", "ready", "gone", "never") == {}
    assert server.contents() == before


def test_letter_named_twice_is_queued_once(server: OneServer) -> None:
    bury(server, "a")
    assert server.redrive("a", "a")["a"].record.version.n == 5
    assert server.contents().faults == []


def test_redriven_letters_wake_who_waits(server: OneServer) -> None:
    bury(server, "a", "b")
    with server.listen("ann") as ann, server.listen("bob") as bob:
        server.claim("ann", waiter="ann")
        server.claim("bob", waiter="bob")
        server.redrive(count=10)
        assert ann.heard() == bob.heard() == server.key("ready")


def test_redriven_letter_is_ready_on_a_follower(server: OneServer) -> None:
    packed = packed_item(Version(1, 3), State.DEAD, token="ann/1", key="k", ttl_ms=LONG_MS)
    server.apply(Applied("a", packed, 0, b"A"), payloads=True)
    assert server.contents().keys == {}
    decided = server.redrive("a")["a"]
    server.reset()
    server.apply(Applied("a", packed, 0, b"A"), payloads=True)
    server.apply(decided.apply())
    contents = server.contents()
    assert (contents.homes("a"), contents.keys, set(contents.expiring)) == ({"ready"}, {"k": {"a"}}, {"a"})
    assert contents.faults == []


# -- cancel --------------------------------------------------------------------------------------------------------


def one_of_each(server: OneServer) -> None:
    bury(server, "dead")
    server.settle(put_and_claim(server, "gone").only.settle("ack"))
    put_and_claim(server, "claimed")
    server.put("ready", Put("scheduled", delay_ms=LONG_MS))


STATES = {"dead": "D", "gone": "X", "claimed": "C", "ready": "Q", "scheduled": "Q", "never": ""}


def test_cancelled_items_are_gone_whatever_they_were(server: OneServer) -> None:
    one_of_each(server)
    states, decided = server.cancel(*STATES)
    assert states == list(STATES.values())
    assert set(decided) == STATES.keys() - {"never"}
    contents = server.contents()
    assert contents.ids(State.GONE) == contents.records.keys() == STATES.keys() - {"never"}
    assert contents.faults == []
    states, again = server.cancel("ready")
    assert (states, again["ready"].packed) == (["X"], decided["ready"].packed)


def test_cancel_that_is_repeated_says_the_same_again(server: OneServer) -> None:
    """The reply may be lost; the removal has to reach the other servers in any case."""
    one_of_each(server)
    first = server.cancel(*STATES, call="aaaaaaaa")
    states, decided = server.cancel(*STATES, call="aaaaaaaa")
    assert states == first[0]
    assert {id: each.packed for id, each in decided.items()} == {id: each.packed for id, each in first[1].items()}
    states, decided = server.cancel(*STATES, call="aaaaaaaa", epoch=4)
    assert (states, decided.keys()) == (first[0], first[1].keys())
    assert {record.record.version.epoch for record in decided.values()} == {4}
    states, decided = server.cancel(*STATES, call="bbbbbbbb", epoch=4)
    assert (set(states), decided.keys()) == ({"X", ""}, first[1].keys())
    assert server.contents().faults == []


def test_tombstone_past_its_age_is_unknown_to_a_cancel(server: OneServer) -> None:
    server.put("a")
    server.cancel("a")
    assert server.cancel("a", put_window_ms=0) == ([""], {})


def test_redrive_that_is_repeated_tells_the_same_again(server: OneServer) -> None:
    bury(server, "a")
    first = server.redrive("a", call="aaaaaaaa")
    assert server.redrive("a", call="aaaaaaaa").keys() == first.keys() == {"a"}
    (again,) = server.redrive("a", call="aaaaaaaa", epoch=4).values()
    assert (again.record.version.epoch, again.record.state) == (4, State.QUEUED)
    assert server.redrive("a", call="bbbbbbbb", epoch=4) == {}
    assert server.contents().faults == []


def test_only_those_in_the_wanted_state_are_removed(server: OneServer) -> None:
    """Discarding letters: what is no dead letter by then is passed over."""
    one_of_each(server)
    states, decided = server.cancel(*STATES, wanted="D")
    assert states == list(STATES.values())
    assert set(decided) == {"dead", "gone"}
    assert server.count() == (1, 1, 1, 0)
    assert server.contents().faults == []


def test_as_many_letters_as_wanted_are_removed_the_oldest_first(server: OneServer) -> None:
    ids = letters(5)
    bury(server, *ids)
    server.put("ready")
    states, decided = server.cancel(wanted="D", count=2)
    assert (states, list(decided)) == (["D", "D"], ids[:2])
    assert list(server.cancel(wanted="D", count=10)[1]) == ids[2:]
    assert server.cancel(wanted="D", count=10) == ([], {})
    contents = server.contents()
    assert contents.homes("ready") == {"ready"}
    assert contents.faults == []


def test_ids_that_are_named_are_all_that_is_removed(server: OneServer) -> None:
    """``count`` is for where none is."""
    bury(server, *letters(3))
    assert set(server.cancel("d001", wanted="D", count=3)[1]) == {"d001"}


def test_nothing_named_and_a_count_of_none(server: OneServer) -> None:
    bury(server, "a")
    assert server.cancel(count=0) == ([], {})
    assert server.count()[3] == 1


def test_item_named_twice_is_removed_once(server: OneServer) -> None:
    server.put("a")
    states, decided = server.cancel("a", "a")
    assert states[0] == "Q"
    assert set(decided) == {"a"}
    assert server.contents().faults == []


def test_removing_letters_mends_the_index(server: OneServer) -> None:
    server.put("queued")
    server.command("ZADD", server.key("dead"), 1, "never", 2, "queued")
    assert server.cancel(wanted="D", count=10)[1] == {}
    contents = server.contents()
    assert contents.faults == []
    assert contents.homes("queued") == {"ready"}


def test_holder_of_a_cancelled_item_has_lost_it(server: OneServer) -> None:
    claim = put_and_claim(server, "a").only
    server.cancel("a")
    assert server.settle(claim.settle("extend", LONG_MS)).outcomes == [0]
    assert server.settle(claim.settle("ack")).outcomes == [0]
    assert server.record("a").state is State.GONE


def test_removal_is_a_decision_under_the_present_epoch(server: OneServer) -> None:
    server.put("a")
    record = server.cancel("a", epoch=4)[1]["a"].record
    assert (record.version, record.state) == (Version(4, 2), State.GONE)


def channel(owner: str) -> str:
    """Where the client listens that has this owner id (wakeups.py)."""
    return f"{{t}}:wake:{DEPLOYMENT}:{owner}"


@pytest.mark.parametrize("owner", ["ann", "shop-1/2", "a%b", "größe"])
def test_holder_is_told(server: OneServer, owner: str) -> None:
    """On its client's channel: queue, claim request, item."""
    server.put("a", "i d")
    claims = server.claim(owner, seq=17)
    with server.listen(channel(owner)) as holder, server.listen(channel("bob")) as other:
        server.cancel(*claims.ids)
        assert [holder.heard(), holder.heard()] == [f"{server.key('claimed')} {owner}/17 {id}" for id in ("a", "i d")]
        assert other.told_nothing()


def test_holder_is_told_in_its_deployment_alone(server: OneServer) -> None:
    put_and_claim(server, "a")
    with server.listen(channel("ann")) as ann, server.listen("{t}:wake:another:ann") as elsewhere:
        server.cancel("a")
        assert ann.heard() == f"{server.key('claimed')} ann/1 a"
        assert elsewhere.told_nothing()


def test_nobody_is_told_of_what_nobody_holds(server: OneServer) -> None:
    one_of_each(server)
    with server.listen(channel("ann")) as ann:
        server.cancel("ready", "scheduled", "dead", "gone", "never")
        server.cancel("claimed", wanted="D")
        server.cancel(wanted="D", count=10)
        assert ann.told_nothing()
        server.cancel("claimed")
        assert ann.heard().endswith(" claimed")
        server.cancel("claimed")
        assert ann.told_nothing()


def test_present_holder_is_told_and_no_earlier_one(server: OneServer) -> None:
    put_and_claim(server, "a")
    server.fence("ann")
    server.claim("bob", seq=3)
    with server.listen(channel("ann")) as ann, server.listen(channel("bob")) as bob:
        server.cancel("a")
        assert bob.heard() == f"{server.key('claimed')} bob/3 a"
        assert ann.told_nothing()


# -- as the settings of the queue say ------------------------------------------------------------------------------


def test_the_settings_come_before_what_a_client_says(server: OneServer) -> None:
    """Of those that claim and of those that bury."""
    bury(server, *letters(5))
    server.declare("count=3", "letters")
    assert server.claim(count=0, dead_max=100).dropped_letters == 2
    claim = held(server, "last")
    assert server.settle(claim.settle("bury", 0, "why"), dead_max=1).dropped_letters == 1
    assert server.count()[3] == 3
    server.declare("count=0", "letters")
    assert server.claim(count=0, dead_max=1).dropped_letters == 0, "0: any number"
    server.declare("", "letters")
    assert server.claim(count=0, dead_max=1).dropped_letters == 2, "as the client says"


def test_the_settings_say_how_long_letters_are_kept(server: OneServer) -> None:
    bury(server, "old", "new")
    died_ago(server, "old", 2 * LONG_MS / 1000)
    server.declare(f"count=9,age={LONG_MS}", "letters")
    assert server.claim(count=0).dropped_letters == 1
    assert server.contents().ids(State.DEAD) == {"new"}


@pytest.mark.parametrize(("settings", "told", "state"), [("count=5", "D", "X"), ("count=5,expired=1", "X", "D")])
def test_the_settings_say_what_becomes_of_expired_items(
    server: OneServer, settings: str, told: str, state: str
) -> None:
    """Those that are found before their turn, and those that are met in line."""
    server.declare(settings, "letters")
    server.put(*(Put(id, ttl_ms=1) for id in ("a", "b")))
    wait_ms(2)
    decided = server.claim(expired=told).decided
    assert {id: each.record.state.value for id, each in decided.items()} == {"a": state, "b": state}


def test_a_turn_follows_the_settings_too(server: OneServer) -> None:
    server.declare("count=1", "letters")
    first, second = held(server, "a"), held(server, "b")
    turned = server.turn(first.settle("bury", 0, "why"), second.settle("bury", 0, "why"), dead_max=9)
    assert turned.claimed.dropped_letters == 1


def test_settings_that_are_damaged_are_as_many_letters_as_there_are(server: OneServer) -> None:
    bury(server, *letters(3))
    server.declare("something=new", "letters")
    assert server.claim(count=0, dead_max=1).dropped_letters == 0
    server.declare(f"count={10**300},age={10**300}", "letters")
    assert server.claim(count=0, dead_max=1).dropped_letters == 0
