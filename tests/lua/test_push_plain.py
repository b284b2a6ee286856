"""``put``: a push of a new id, applied on all servers in parallel with version (0, 1)."""

from __future__ import annotations

import pytest

from tests.lua.entries import BUNDLE, WINDOW_MS, Applied, Put, packed_item
from tests.lua.one_server import OneServer, put_and_claim
from zkrq.protocol.records import FIRST, State, Version


def test_new_item_is_ready_in_its_first_version(server: OneServer) -> None:
    """Decide, then apply: a plain push needs no decision, its version is (0, 1)."""
    assert server.put(Put("a", b"hello", priority=3)) == []
    contents = server.contents()
    record = contents.records["a"]
    assert (record.version, record.state, record.priority) == (FIRST, State.QUEUED, 3)
    assert contents.payloads == {"a": b"hello"}
    assert contents.homes("a") == {"ready"}
    assert server.queues() == {"q"}


def test_put_repeated_changes_nothing(server: OneServer) -> None:
    """Three answers: the same id may be pushed again."""
    server.put(Put("a", b"first"))
    before = server.contents()
    assert server.put(Put("a", b"second", priority=9)) == []
    assert server.contents() == before


def test_same_id_twice_in_one_batch_is_there_once(server: OneServer) -> None:
    """Three answers: the same id may be pushed again; also while the first push waits in the same batch."""
    assert server.put(Put("a", b"first"), Put("b"), Put("a", b"second")) == []
    contents = server.contents()
    assert contents.payloads["a"] == b"first"
    assert list(contents.ready) == ["a", "b"]
    assert contents.faults == []


@pytest.mark.parametrize("verb", ["ack", "nack", "bury", "extend"])
def test_put_repeated_leaves_a_settled_item_as_it_is(server: OneServer, verb: str) -> None:
    """Rule 1: a put is version (0, 1); every decision is greater."""
    claim = put_and_claim(server, "a").only
    server.settle(claim.settle(verb, 60_000))
    before = server.contents()
    assert server.put(Put("a", b"again")) == []
    assert server.contents() == before


def test_known_items_that_are_alone_are_told(server: OneServer) -> None:
    """Nothing is said of a bundle, of which no caller gave the id, nor of one that is gone in this place."""
    bundle = Put(BUNDLE, [b"x", b"y"])
    assert server.put_known("a", "b", bundle) == []
    assert server.put_known("c", "b", bundle, "a", "c") == [2, 4, 5]
    server.settle(*(each.settle("ack") for id, each in server.claim().decided.items() if id == "a"))
    assert server.put_known("a", "b", "c") == [2, 3]


def test_tombstone_wins_over_a_late_put(server: OneServer) -> None:
    """Rule 8: what was removed does not come back."""
    server.settle(put_and_claim(server, "a").only.settle("ack"))
    assert server.put_told("b", "a") == ([], {(2, 0): 3}), "the reply tells of its tombstone"
    server.clear(1)
    contents = server.contents()
    assert contents.ids(State.GONE) == {"a", "b"}
    assert contents.faults == []
    assert server.claim().ids == []


@pytest.mark.parametrize("age_ms", [0, 3 * WINDOW_MS])
def test_put_never_overwrites_a_tombstone(server: OneServer, age_ms: int) -> None:
    """Whether it still counts is decided by one server, under a version that wins everywhere."""
    server.settle(put_and_claim(server, "a").only.settle("ack"))
    server.age("a", age_ms)
    before = server.contents()
    assert server.put_told("a") == ([], {(1, 0): 3})
    assert server.contents() == before


def test_tombstone_of_an_unknown_id_wins_over_its_put(server: OneServer) -> None:
    """Rule 8: a removal leaves a tombstone also for an id that the server does not know."""
    server.apply(Applied("a", packed_item(Version(1, 3), State.GONE, token="ann/1")))
    assert server.put("a") == []
    assert server.contents().ids(State.GONE) == {"a"}
    assert server.count() == (0, 0, 0, 0)


def test_put_older_than_the_window_is_refused_with_nothing_written(server: OneServer) -> None:
    """Late puts: older than put_window by this server's clock: refused."""
    keys = server.key_names()
    old = server.now_ms() - WINDOW_MS - 1_000
    assert server.put(Put("a", pushed_at_ms=old)) == [1]
    assert server.key_names() == keys


def test_put_newer_than_the_clock_by_more_than_the_window_is_refused(server: OneServer) -> None:
    """Late puts: a clock that is that wrong would keep a put alive beyond its tombstone."""
    keys = server.key_names()
    ahead = server.now_ms() + WINDOW_MS + 60_000
    assert server.put(Put("a", pushed_at_ms=ahead)) == [1]
    assert server.key_names() == keys


@pytest.mark.parametrize("off_ms", [-WINDOW_MS + 60_000, WINDOW_MS - 60_000])
def test_put_within_the_window_is_taken(server: OneServer, off_ms: int) -> None:
    """Late puts: the window reaches to both sides."""
    assert server.put(Put("a", pushed_at_ms=server.now_ms() + off_ms)) == []
    assert server.contents().homes("a") == {"ready"}


def test_late_put_in_a_batch_is_refused_alone(server: OneServer) -> None:
    """Late puts: the reply names the positions."""
    old = Put("old", pushed_at_ms=0)
    assert server.put("a", old, "b", old._replace(id="older")) == [2, 4]
    assert set(server.contents().records) == {"a", "b"}


def test_late_put_of_a_known_item_is_not_refused(server: OneServer) -> None:
    """Three answers: a repetition of a push that was done is done."""
    server.put("a")
    assert server.put(Put("a", pushed_at_ms=0)) == []


def test_put_from_before_the_floor_is_refused(server: OneServer) -> None:
    """Tombstones: of a put older than the youngest tombstone that was dropped nobody knows any more."""
    floor_ms = server.now_ms() - 5_000
    server.command("HSET", server.key("lead"), "floor_ms", floor_ms)
    assert server.put(Put("a", pushed_at_ms=floor_ms - 1), Put("b", pushed_at_ms=floor_ms + 1)) == [1]
    assert set(server.contents().records) == {"b"}


def test_batch_keeps_its_order(server: OneServer) -> None:
    """Order: by due time, so in the order of the push."""
    ids = server.put_numbered(500)
    assert [id for _ in range(2) for id in server.claim(count=250).ids] == ids


def test_batches_keep_their_order(server: OneServer) -> None:
    """Order: the first batch comes before the second."""
    server.put("b", "a")
    server.put("d", "c")
    assert server.claim().ids == ["b", "a", "d", "c"]


def test_higher_priority_comes_first(server: OneServer) -> None:
    """Order: by priority, then due time."""
    server.put(Put("low", priority=0), Put("high", priority=9), Put("middle", priority=5), Put("high-2", priority=9))
    assert server.claim().ids == ["high", "high-2", "middle", "low"]


def test_delayed_item_is_scheduled(server: OneServer) -> None:
    """Claims: durations travel; the due time is by this server's clock."""
    before = server.now_us()
    server.put(Put("a", delay_ms=60_000))
    contents = server.contents()
    assert contents.homes("a") == {"scheduled"}
    assert before <= contents.moment_us("a") - 60_000_000 <= server.now_us()
    claimed = server.claim()
    assert claimed.ids == []
    assert 0 < claimed.next_ms <= 60_000


def test_delay_of_ten_years_keeps_the_priority(server: OneServer) -> None:
    """Order: the ready items' score holds priority and due time for all that ``check_duration`` allows."""
    ten_years_ms = 10 * 366 * 86_400_000
    server.put(Put("low", priority=0), Put("high", priority=9), Put("later", delay_ms=ten_years_ms, priority=9))
    contents = server.contents()
    assert contents.homes("later") == {"scheduled"}
    assert server.claim().ids == ["high", "low"]


def test_payload_of_a_put_after_its_own_claim_is_kept(server: OneServer) -> None:
    """Rule 4: the push is complete once this server has the item, so it must have the payload too."""
    claimed = packed_item(Version(1, 2), State.CLAIMED, attempts=1, lease_ms=60_000, token="ann/1")
    server.apply(Applied("a", claimed, 60_000))
    assert server.put(Put("a", b"late")) == []
    contents = server.contents()
    assert contents.payloads == {"a": b"late"}
    assert contents.packed["a"] == claimed
    assert contents.faults == []


def test_payload_once_there_stays(server: OneServer) -> None:
    """Three answers: the first push wins, also where the item is claimed."""
    put_and_claim(server, Put("a", b"first"))
    server.put(Put("a", b"second"))
    assert server.contents().payloads == {"a": b"first"}
