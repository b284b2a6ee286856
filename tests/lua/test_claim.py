"""``claim``: hands ready items to one owner, after expired claims and due items have become ready."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.connection import Refused
from tests.lua.entries import LEASE_MS, WINDOW_MS, Applied, Claimed, Put, packed_item
from tests.lua.one_server import OneServer, put_and_claim, wait_ms
from zkrq.protocol import calls
from zkrq.protocol.records import State, Version

SHORT_MS = 40
"""A lease or a delay that a test lets pass."""

SLACK_MS = 400
"""Between two moments whose order matters, even if a busy machine is late."""


def refused_claim(server: OneServer, owner: str, seq: int) -> str:
    with pytest.raises(Refused) as refused:
        server.claim(owner, seq=seq)
    return refused.value.status


# -- handing out ---------------------------------------------------------------------------------------------------


def test_items_are_handed_out_with_payload_and_record(server: OneServer) -> None:
    """Claims: one round trip for K items; the claim is a decision: (current epoch, n + 1)."""
    server.put(Put("a", b"A", priority=4), Put("b", b"B"))
    claimed = server.claim("ann", seq=7, lease_ms=5_000)
    assert claimed.handed == {"a": b"A", "b": b"B"}
    record = claimed.decided["a"].record
    assert (record.version, record.state, record.token) == (Version(1, 2), State.CLAIMED, "ann/7")
    assert (record.priority, record.attempts, record.failures) == (4, 1, 0)
    assert [row.lease_ms for row in claimed.decided["a"].bundle.rows] == [5_000]
    assert claimed.decided["a"].left_ms == 5_000
    contents = server.contents()
    assert contents.packed["a"] == claimed.decided["a"].packed
    assert contents.faults == []
    assert server.owners() == {"ann"}


def test_first_in_first_out(server: OneServer) -> None:
    """Order: by priority, then due time."""
    ids = server.put_numbered(30)
    assert server.claim(count=10).ids == ids[:10]
    assert server.claim("bob", count=30).ids == ids[10:]


def test_items_that_are_alone_are_handed_out_in_parts(server: OneServer) -> None:
    """Each costs as much as a bundle, and one call must not hold a server for long."""
    ids = server.put_numbered(500)
    first = server.claim(count=500)
    assert (first.ids, first.next_ms) == (ids[:300], 0)
    assert server.claim("bob", count=500).ids == ids[300:]
    bundles = [f"zkrq-0-{number}-0" for number in range(10)]
    server.put(*(Put(id, [b"x"] * 50) for id in bundles))
    assert len(server.claim(count=500).ids) == 500


def test_no_more_than_count(server: OneServer) -> None:
    server.put_numbered(5)
    claimed = server.claim(count=3)
    assert len(claimed.handed) == len(claimed.decided) == 3
    assert server.count() == (2, 0, 3, 0)


def test_nothing_for_a_count_of_none(server: OneServer) -> None:
    server.put("a")
    assert server.claim(count=0).ids == []
    assert server.count() == (1, 0, 0, 0)


def test_held_item_is_not_handed_out_again(server: OneServer) -> None:
    """One live holder."""
    put_and_claim(server, "a")
    assert server.claim("bob").ids == []
    assert server.claim("ann").ids == []


def apply_bare(server: OneServer, state: State, pushed_at_ms: float, token: str = "") -> None:
    """An item whose decision came here before its own push: there is no payload."""
    record = packed_item(Version(1, 2), state, pushed_at_ms=pushed_at_ms, lease_ms=LEASE_MS, token=token)
    assert server.apply(Applied("bare", record)) == ([], [1])


def test_item_whose_push_never_came_is_dropped_as_gone(server: OneServer) -> None:
    """Rule 4: had its push returned, the payload would be here; after the put window it cannot come any more."""
    apply_bare(server, State.QUEUED, server.now_ms() - 2 * WINDOW_MS - 1_000)
    server.put("whole")
    claimed = server.claim()
    assert claimed.ids == ["whole"]
    assert claimed.decided["bare"].record.state is State.GONE
    contents = server.contents()
    assert contents.ids(State.GONE) == {"bare"}
    assert contents.faults == []


def test_item_whose_push_may_still_come_waits_for_it(server: OneServer) -> None:
    """Rule 4: a push that is on its way may return yet, so its item is kept; nobody is given half of it."""
    apply_bare(server, State.QUEUED, server.now_ms() - WINDOW_MS)
    claimed = server.claim()
    assert claimed.handed == claimed.decided == {}
    assert claimed.next_ms > 0
    assert server.contents().homes("bare") == {"scheduled"}


def test_push_that_comes_at_last_makes_its_item_ready(server: OneServer) -> None:
    """Rule 4: now the push is complete, and its item is delivered."""
    apply_bare(server, State.QUEUED, server.now_ms())
    with server.listen("ann") as ann:
        server.claim(waiter="ann")
        assert server.put(Put("bare", b"p")) == []
        assert ann.heard() == server.key("ready")
    assert server.contents().faults == []
    assert server.claim().handed == {"bare": b"p"}


@pytest.mark.parametrize("age_ms", [0, 2 * WINDOW_MS + 1_000])
def test_repeated_request_hands_out_nothing_without_payload(server: OneServer, age_ms: int) -> None:
    """Rule 2: whatever becomes of the claim, its item stands where its state says."""
    apply_bare(server, State.CLAIMED, server.now_ms() - age_ms, "ann/1")
    assert server.claim("ann", seq=1).handed == {}
    contents = server.contents()
    demanded = {State.CLAIMED: {"claimed"}, State.QUEUED: {"scheduled"}, State.GONE: set[str]()}
    assert contents.homes("bare") == demanded[contents.records["bare"].state]


@pytest.mark.parametrize("state", [State.CLAIMED, State.DEAD, State.GONE])
def test_index_that_names_an_item_that_has_left_is_mended(server: OneServer, state: State) -> None:
    """Every prefix of a script's writes is safe: who reads an index looks at the record."""
    server.apply(Applied("left", packed_item(Version(1, 2), state, token="bob/1"), 60_000, b"p"), payloads=True)
    server.command("ZADD", server.key("ready"), 0, "left", 1, "unknown")
    server.command("ZADD", server.key("scheduled"), 0, "left")
    server.put("a")
    handed = server.claim().ids + server.claim().ids
    assert handed == ["a"]
    assert server.contents().faults == []


# -- the token -----------------------------------------------------------------------------------------------------


def test_repeated_request_is_given_the_same_items(server: OneServer) -> None:
    """Rule 6: a claim request repeated with the same token returns the same items, and changes nothing."""
    server.put_numbered(5)
    first = server.claim(seq=1, count=3)
    before = server.contents()
    again = server.claim(seq=1, count=3)
    assert again.handed == first.handed
    assert {id: each.packed for id, each in again.decided.items()} == {
        id: each.packed for id, each in first.decided.items()
    }
    assert server.contents() == before


def test_repeated_request_takes_nothing_new(server: OneServer) -> None:
    """Rule 6: what became ready meanwhile is for the next request."""
    assert server.claim(seq=1).ids == []
    server.put("a")
    assert server.claim(seq=1).ids == []
    assert server.claim(seq=2).ids == ["a"]


def test_repeated_request_under_a_newer_epoch_is_decided_again(server: OneServer) -> None:
    """Rule 5: a claim is decided again under the same token, stamped with the new epoch, and counts once."""
    server.put_numbered(3)
    first = server.claim(seq=1)
    again = server.claim(seq=1, epoch=2)
    assert set(again.handed) == set(first.handed)
    for id in first.handed:
        old, new = first.decided[id].record, again.decided[id].record
        assert new.deadline_us >= old.deadline_us
        assert new == old._replace(version=Version(2, old.version.n + 1), deadline_us=new.deadline_us)
    assert server.contents().faults == []


def test_repeated_request_at_another_server_is_given_what_was_applied_there(server: OneServer) -> None:
    """Rule 5: a follower that leads by now knows the request by the claims that it was sent."""
    server.put("a", "b")
    decided = server.claim(seq=5, count=1).decided
    server.reset()
    server.put("a", "b")
    server.apply(*(each.apply() for each in decided.values()))
    assert server.claim(seq=5, epoch=2).ids == ["a"]


def test_repeated_request_leaves_out_what_was_settled(server: OneServer) -> None:
    """Acked means gone."""
    server.put("a", "b")
    first = server.claim(seq=1)
    server.settle(first.decided["a"].settle("ack"))
    assert server.claim(seq=1).ids == ["b"]


def test_repeated_request_finds_all_of_many(server: OneServer) -> None:
    """Rule 6: also where they are spread over many pages of an index."""
    ids = server.put_numbered(1_000)
    server.claim("bob", count=300)
    server.claim("ann", count=300, seq=1)
    assert set(server.claim("ann", count=300, seq=1).handed) == set(ids[300:600])


def test_older_request_is_refused(server: OneServer) -> None:
    """Rule 6: a request that comes late would claim for nobody."""
    server.put("a")
    server.claim(seq=5, count=0)
    assert refused_claim(server, "ann", 4) == "OUTDATED"
    assert server.claim(seq=6).ids == ["a"]


def test_numbers_are_by_owner(server: OneServer) -> None:
    server.put("a")
    server.claim("ann", seq=5, count=0)
    assert server.claim("bob", seq=1).ids == ["a"]


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_fenced_owner_is_refused(server: OneServer, seq: int) -> None:
    """Rule 6: a fenced token is refused, outdated, repeated or new."""
    server.put("a")
    server.claim("ann", seq=2)
    server.fence("ann")
    assert refused_claim(server, "ann", seq) == "FENCED"
    assert server.contents().homes("a") == {"ready"}
    assert server.claim("bob").ids == ["a"]


# -- the clock -----------------------------------------------------------------------------------------------------


def test_claim_ends_with_its_lease(server: OneServer) -> None:
    """Claims: the deadline is not optional; the delivery counted, the failure did not."""
    put_and_claim(server, "a", lease_ms=SHORT_MS)
    waiting = server.claim("bob")
    assert waiting.ids == []
    assert 0 <= waiting.next_ms <= SHORT_MS
    wait_ms(waiting.next_ms)
    record = server.claim("bob").only.record
    assert (record.version, record.attempts, record.failures) == (Version(1, 3), 2, 0), "expired and claimed in one"


def test_expired_claim_goes_back_to_its_place(server: OneServer) -> None:
    """Order: by due time, best effort."""
    put_and_claim(server, "a", lease_ms=SHORT_MS)
    server.put("b")
    wait_ms(SHORT_MS)
    assert server.claim("bob").ids == ["a", "b"]


def test_expired_claim_is_settled_as_long_as_nobody_else_holds_it(server: OneServer) -> None:
    """One live holder: the deadline only makes the item ready when somebody asks."""
    claim = put_and_claim(server, "a", lease_ms=1).only
    wait_ms(1)
    assert server.settle(claim.settle("ack")).outcomes == [1]


def test_claim_lives_one_full_lease_after_a_change_of_epoch(server: OneServer) -> None:
    """Claims: after a change of primary every claim gets at least one full lease."""
    put_and_claim(server, "a", lease_ms=SHORT_MS)
    wait_ms(SHORT_MS)
    changed_us = server.now_us()
    waiting = server.claim("bob", epoch=2)
    assert waiting.ids == []
    assert server.contents().claimed["a"] >= changed_us + SHORT_MS * 1000
    wait_ms(waiting.next_ms)
    assert server.claim("bob", epoch=2).ids == ["a"]
    assert server.now_us() >= changed_us + SHORT_MS * 1000


@pytest.mark.parametrize("jump_ms", [-20_000, 20_000], ids=["stopped", "set back"])
def test_claim_lives_one_full_lease_after_a_jump_of_the_clock(server: OneServer, jump_ms: int) -> None:
    """Claims: so also when a primary finds that its clock has jumped (it was stopped)."""
    put_and_claim(server, "a", lease_ms=SHORT_MS)
    wait_ms(SHORT_MS)
    lead = server.key("lead")
    server.command("HSET", lead, "seen_ms", server.now_ms() + jump_ms)
    waiting = server.claim("bob")
    assert waiting.ids == []
    wait_ms(waiting.next_ms)
    assert server.claim("bob").ids == ["a"]


@pytest.mark.parametrize(("ahead_s", "handed"), [(10, []), (2, []), (0.1, ["a"]), (-10, ["a"]), (None, ["a"])])
def test_claim_lives_one_full_lease_after_a_step_of_the_clock(
    server: OneServer, ahead_s: float | None, handed: list[str]
) -> None:
    """A step of less than a silence: the client knows what the clock should say.  Without that it counts as right."""
    put_and_claim(server, "a", lease_ms=SHORT_MS)
    wait_ms(SHORT_MS)
    expected_us = 0 if ahead_s is None else server.now_us() - int(ahead_s * 1e6)
    claimed = server.claim("bob", clock=expected_us)
    assert claimed.ids == handed
    if not handed:
        wait_ms(claimed.next_ms)
        assert server.claim("bob", clock=server.now_us()).ids == ["a"]


def test_a_newcomer_waits_as_long_as_a_step_of_the_clock_can_be(server: OneServer) -> None:
    """The clock may have been set forward just before the newcomer read it first: it cannot tell, and the others have
    not looked yet.  A longer step shows as a silence of the queue."""
    put_and_claim(server, "a", "b", lease_ms=SHORT_MS)
    wait_ms(SHORT_MS)
    newcomer = server.claim("bob", known_ms=SHORT_MS // 2)
    assert newcomer.ids == []
    assert 14_000 <= newcomer.next_ms <= 15_000
    server.change("a", lambda bundle: bundle._replace(rows=[bundle.rows[0]._replace(deadline_us=0)]))
    assert server.claim("bob", known_ms=0).ids == ["a"]
    assert server.claim("cleo", known_ms=15_000).ids == ["b"]


def test_a_newcomer_waits_for_no_claim_that_is_newer_than_itself(server: OneServer) -> None:
    """It has known the clock since before the claim was made, and would have noticed a step."""
    put_and_claim(server, "old", lease_ms=SHORT_MS)
    wait_ms(SLACK_MS)
    connected_ms = server.now_ms()
    wait_ms(SLACK_MS)
    server.put("new")
    assert server.claim("ann", lease_ms=SHORT_MS, known_ms=0).ids == ["new"]
    wait_ms(SHORT_MS)
    newcomer = server.claim("bob", known_ms=server.now_ms() - connected_ms)
    assert newcomer.ids == ["new"]
    assert SHORT_MS < newcomer.next_ms <= 15_000


def test_whoever_looks_for_owners_finds_a_step_of_the_clock(server: OneServer) -> None:
    """Every client does so every few seconds, also one that claims nothing."""
    put_and_claim(server, "a", lease_ms=SHORT_MS)
    wait_ms(SHORT_MS)
    server.ask(calls.Owners(server.queue, clock=server.now_us() - 2_000_000))
    assert server.claim("bob").ids == []


def test_settling_notes_that_the_server_leads(server: OneServer) -> None:
    """Claims: a queue whose consumers only settle is not silent."""
    claims = put_and_claim(server, "a", "b")
    server.command("DEL", server.key("lead"))
    server.settle(claims.decided["a"].settle("ack"), epoch=1)
    assert server.command("HGET", server.key("lead"), "epoch") == b"1"


def test_due_item_becomes_ready(server: OneServer) -> None:
    """Claims: the script promotes due items."""
    server.put(Put("a", delay_ms=300))  # longer than the claim after it takes, also where a core is waited for
    waiting = server.claim()
    assert waiting.ids == []
    wait_ms(waiting.next_ms)
    assert server.count() == (1, 0, 0, 0)
    assert server.claim().ids == ["a"]
    assert server.contents().faults == []


def test_due_items_come_by_priority_then_due_time(server: OneServer) -> None:
    """Order."""
    delays = {"third": (30, 0), "second": (20, 0), "first": (40, 5)}
    server.put(*(Put(id, delay_ms=delay, priority=priority) for id, (delay, priority) in delays.items()))
    wait_ms(SHORT_MS)
    assert server.claim().ids == ["first", "second", "third"]


def test_most_urgent_of_many_due_items_comes_first(server: OneServer) -> None:
    """Order: by priority also among what becomes due in one moment, however much that is."""
    for start in range(0, 1_500, 500):
        server.put(*(Put(f"d{n}", delay_ms=1, priority=n % 3) for n in range(start, start + 500)))
    server.put(Put("urgent", delay_ms=2, priority=9))
    wait_ms(2)
    assert server.claim(count=1).ids == ["urgent"]
    assert {server.record(id).priority for id in server.claim(count=50).ids} == {2}
    assert server.contents().faults == []


def test_items_of_every_priority_become_due(server: OneServer) -> None:
    server.put(*(Put(f"p{n}", delay_ms=1, priority=n) for n in range(10)), Put("later", delay_ms=50_000, priority=5))
    wait_ms(1)
    assert server.count() == (10, 1, 0, 0)
    assert server.statistics()[:2] == (10, 1)
    assert server.statistics().waited_ms >= 0
    assert server.claim(count=20).ids == [f"p{n}" for n in reversed(range(10))]
    assert server.count() == (0, 1, 10, 0)


def test_next_ms_is_that_of_the_soonest_whatever_its_priority(server: OneServer) -> None:
    server.put(Put("urgent", delay_ms=50_000, priority=9), Put("soon", delay_ms=10_000), Put("last", delay_ms=90_000))
    assert 9_000 < server.claim().next_ms <= 10_000


def test_scheduled_items_are_seen_in_the_order_in_which_they_become_due(server: OneServer) -> None:
    delays = {"b": (20_000, 9), "a": (10_000, 0), "d": (40_000, 5), "c": (30_000, 0)}
    server.put(*(Put(id, delay_ms=delay_ms, priority=priority) for id, (delay_ms, priority) in delays.items()))
    assert list(server.peek("scheduled").found) == ["a", "b", "c", "d"]
    assert list(server.peek("scheduled", 2).found) == ["a", "b"]
    for id, copy in server.peek("scheduled").found.items():
        assert delays[id][0] - 9_000 < copy.left_ms <= delays[id][0]


def test_item_that_waits_for_its_push_keeps_its_priority_and_its_moment(server: OneServer) -> None:
    """A claim of it came here before the push did."""
    packed = packed_item(Version(1, 3), State.QUEUED, 7, pushed_at_ms=server.now_ms())
    server.apply(Applied("bare", packed))
    before_us = server.now_us()
    assert server.claim().ids == []
    contents = server.contents()
    assert contents.homes("bare") == {"scheduled"}
    assert before_us + WINDOW_MS * 1000 <= contents.moment_us("bare") <= server.now_us() + WINDOW_MS * 1000


def test_item_that_a_claim_buries_does_not_count_as_claimed(server: OneServer) -> None:
    """It was delivered as often as it may be: a dead letter, and nothing else."""
    put_and_claim(server, "a", "b")
    server.fence("ann")
    claimed = server.claim("bob", max_attempts=1)
    assert (claimed.ids, {each.record.state for each in claimed.decided.values()}) == ([], {State.DEAD})
    assert server.count() == (0, 0, 0, 2)
    assert server.contents().faults == []
    assert server.push(Put("c"), max_size=1)[0] == ["+"]


def test_many_due_and_expired_are_dealt_with_a_part_at_a_time(server: OneServer) -> None:
    """Claims: requeueing and promoting are bounded; nothing is left behind in the end."""
    ids = server.put_numbered(250)
    server.claim("ann", count=250, lease_ms=1)
    server.put(*(Put(f"due{n}", delay_ms=1) for n in range(250)))
    wait_ms(2)
    first = server.claim("bob", count=500)
    assert (len(first.handed), first.next_ms) == (200, 0)
    rest = [server.claim("bob", count=500) for _ in range(2)]
    handed = [id for claimed in (first, *rest) for id in claimed.ids]
    assert sorted(handed) == sorted([*ids, *(f"due{n}" for n in range(250))])
    assert rest[-1].next_ms > 0


# -- next_ms, and waking -------------------------------------------------------------------------------------------


def next_ms(server: OneServer) -> int:
    return server.claim("bob", count=1).next_ms


def test_next_ms_tells_when_to_ask_again(server: OneServer) -> None:
    """-1: nothing on its way; 0: more is ready; else until the first due time or deadline."""
    assert next_ms(server) == -1
    server.put("a", "b", Put("later", delay_ms=50_000))
    assert next_ms(server) == 0
    assert 5_000 < next_ms(server) <= 50_000
    server.fence("bob")
    assert server.claim("ann", count=2, lease_ms=5_000).next_ms <= 5_000


def wait_for_an_item(server: OneServer, channel: str, count: int = 1) -> Claimed:
    return server.claim(f"owner-{channel}", count, waiter=channel)


def test_put_wakes_a_waiter(server: OneServer) -> None:
    """Claims: a waiter leaves its channel, and is told once."""
    with server.listen("ann") as ann:
        wait_for_an_item(server, "ann")
        server.put("a")
        assert ann.heard() == server.key("ready")
        server.put("b")
        assert ann.told_nothing()


def test_scheduled_put_wakes_too(server: OneServer) -> None:
    """Who waits must learn of a nearer due time."""
    with server.listen("ann") as ann:
        wait_for_an_item(server, "ann")
        server.put(Put("a", delay_ms=50))
        assert ann.heard() == server.key("ready")


@pytest.mark.parametrize(("verb", "ms"), [("nack", 0), ("release", 0), ("release", 1)])
def test_item_that_comes_back_wakes_a_waiter(server: OneServer, verb: str, ms: int) -> None:
    claim = put_and_claim(server, "a").only
    with server.listen("bob") as bob:
        wait_for_an_item(server, "bob")
        server.settle(claim.settle(verb, ms))
        assert bob.heard() == server.key("ready")


def test_fencing_passes_a_wake_up_on(server: OneServer) -> None:
    """A client was woken and died, or closed, before it asked."""
    with server.listen("ann") as ann, server.listen("bob") as bob:
        wait_for_an_item(server, "ann")
        wait_for_an_item(server, "bob")
        server.put("a")
        assert ann.heard() == server.key("ready")
        server.fence("owner-ann")
        assert bob.heard() == server.key("ready")


def test_fencing_does_not_wake_the_one_that_is_fenced(server: OneServer) -> None:
    """Its client closes, say, and still listens."""
    channel = f"{server.key('server').removesuffix('server')}wake:ann"
    put_and_claim(server, "a", owner="ann")
    with server.listen(channel) as ann, server.listen("bob") as bob:
        server.claim("ann", waiter=channel)
        wait_for_an_item(server, "bob")
        server.fence("ann")
        assert bob.heard() == server.key("ready")
        assert ann.told_nothing()


@pytest.mark.parametrize("delay_ms", [0, 60_000])
def test_a_request_for_nothing_passes_a_wake_up_on(server: OneServer, delay_ms: int) -> None:
    """Also for what is not due yet: the next waiter must learn when it is."""
    with server.listen("ann") as ann, server.listen("bob") as bob:
        wait_for_an_item(server, "ann")
        wait_for_an_item(server, "bob")
        server.put(Put("a", delay_ms=delay_ms))
        assert ann.heard() == server.key("ready")
        assert bob.told_nothing()
        server.claim("owner-ann", 0)
        assert bob.heard() == server.key("ready")
        assert ann.told_nothing()


def test_fencing_wakes_a_waiter(server: OneServer) -> None:
    put_and_claim(server, "a", owner="ann")
    with server.listen("bob") as bob:
        wait_for_an_item(server, "bob")
        server.fence("ann")
        assert bob.heard() == server.key("ready")


@pytest.mark.parametrize("verb", ["ack", "bury", "extend"])
def test_nobody_is_woken_for_what_does_not_come_back(server: OneServer, verb: str) -> None:
    claim = put_and_claim(server, "a").only
    with server.listen("bob") as bob:
        wait_for_an_item(server, "bob")
        server.settle(claim.settle(verb, 1000))
        assert bob.told_nothing()


def test_as_many_are_woken_as_there_are_items(server: OneServer) -> None:
    with server.listen("1") as first, server.listen("2") as second, server.listen("3") as third:
        for each in (first, second, third):
            wait_for_an_item(server, each.channel)
        server.put("a", "b")
        assert first.heard() == second.heard() == server.key("ready")
        assert third.told_nothing()


def test_dead_waiter_is_skipped(server: OneServer) -> None:
    """Nobody listens to the channel of a client that has died: then the next one is told."""
    wait_for_an_item(server, "dead")
    with server.listen("alive") as alive:
        wait_for_an_item(server, "alive")
        server.put("a")
        assert alive.heard() == server.key("ready")


def test_who_was_given_all_it_wanted_does_not_wait(server: OneServer) -> None:
    server.put("a")
    wait_for_an_item(server, "ann", count=1)
    assert "waiting" not in server.key_names()


def test_who_was_given_less_waits_for_the_rest(server: OneServer) -> None:
    server.put("a")
    wait_for_an_item(server, "ann", count=2)
    assert "waiting" in server.key_names()


def test_what_is_left_over_wakes_the_next_waiter(server: OneServer) -> None:
    """Somebody who was told may take less than there is."""
    with server.listen("bob") as bob:
        server.put("a", "b")
        server.command("ZADD", server.key("waiting"), server.now_ms(), "bob")
        server.claim("ann", count=1)
        assert bob.heard() == server.key("ready")


def test_waiter_that_has_not_asked_for_a_minute_is_forgotten(server: OneServer) -> None:
    """Bounded in memory."""
    server.command("ZADD", server.key("waiting"), server.now_ms() - 61_000, "old")
    wait_for_an_item(server, "ann")
    assert server.command("ZRANGE", server.key("waiting"), 0, -1) == [b"ann"]


MANY = 1_000
"""Items that are not to be handed out, and several times what one call drops of them."""


@pytest.mark.parametrize("options", [{"expired": "X"}, {"expired": "D"}, {"max_attempts": 1}], ids=str)
def test_a_call_that_finds_nothing_to_hand_out_ends_soon(server: OneServer, options: dict[str, Any]) -> None:
    """A queue whose items had all expired held the server for seconds, and it was evicted."""
    ids = [f"i{n:05}" for n in range(MANY)]
    ttl_ms = None if "max_attempts" in options else 1
    for start in range(0, MANY, 500):
        server.put(*(Put(id, b"x", ttl_ms=ttl_ms) for id in ids[start : start + 500]))
    if not ttl_ms:
        while server.claim("ann", 500).handed:
            pass
        server.fence("ann")
    server.put("last")
    wait_ms(2)
    replies = [server.claim("bob", 10, **options)]
    while not replies[-1].handed:
        assert replies[-1].next_ms == 0, "there is more"
        replies.append(server.claim("bob", 10, **options))
    assert replies[-1].ids == ["last"]
    assert max(len(claimed.decided) for claimed in replies) < MANY / 3
    assert server.contents().faults == []
