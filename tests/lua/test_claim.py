"""``claim``: hands ready items to one owner, and repeats its answer to a repeated request."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.connection import Refused
from tests.lua.entries import LEASE_MS, WINDOW_MS, Applied, Put, packed_item
from tests.lua.one_server import OneServer, put_and_claim, wait_ms
from zkrq.protocol.records import State, Version


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
