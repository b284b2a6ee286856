"""``claim`` and the clock: leases end, and what is due becomes ready."""

from __future__ import annotations

import pytest

from tests.lua.entries import WINDOW_MS, Applied, Put, packed_item
from tests.lua.one_server import OneServer, put_and_claim, wait_ms
from zkrq.protocol import calls
from zkrq.protocol.records import State, Version

SHORT_MS = 40
"""A lease or a delay that a test lets pass."""

SLACK_MS = 400
"""Between two moments whose order matters, even if a busy machine is late."""


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
