"""``delete``: a record says that the queue was deleted, and when; ids that are pushed later are other items."""

from __future__ import annotations

import time

import pytest

from tests.lua.contents import DELETED
from tests.lua.entries import WINDOW_MS, Applied, Put, packed_item
from tests.lua.one_server import OneServer, put_and_claim
from tests.lua.pushing import push_one
from zkrq.protocol.records import State, Version


def now_ms() -> int:
    return int(time.time() * 1000)


def deleted(server: OneServer) -> int:
    """An item was there, pushed a moment ago, and the queue is deleted now; when it was, by the server's clock."""
    server.settle(put_and_claim(server, Put("a", pushed_at_ms=now_ms() - 50)).only.settle("ack"))
    return int(server.delete()[DELETED].record.pushed_at_ms)


def test_deletion_is_a_tombstone_with_its_moment(server: OneServer) -> None:
    before_us = server.now_us()
    server.epoch = 4
    server.put("a")
    server.cancel("a")
    decided = server.delete()
    assert decided.keys() == {DELETED}
    record = decided[DELETED].record
    assert (record.version.epoch, record.state) == (4, State.GONE)
    assert before_us // 1000 <= record.pushed_at_ms <= server.now_us() / 1000
    contents = server.contents()
    assert contents.records[DELETED] == record
    assert contents.faults == []
    assert server.heads()[1].keys() == {"a", DELETED}, "compared and copied like any record"


def test_what_is_unknown_needs_no_deletion(server: OneServer) -> None:
    assert server.delete() == {}
    assert server.key_names() == {"server"}


def test_deleted_again_it_is_later(server: OneServer) -> None:
    server.put("a")
    server.cancel("a")
    first = server.delete()[DELETED].record
    time.sleep(0.01)
    again = server.delete()[DELETED].record
    assert again.version > first.version
    assert again.pushed_at_ms > first.pushed_at_ms
    assert server.contents().faults == []
    time.sleep(0.05)
    server.trim(put_window_ms=10)
    assert DELETED not in server.contents().records


@pytest.mark.parametrize("behind_ms", [0, 60_000])
def test_what_its_client_pushes_next_is_later(server: OneServer, behind_ms: int) -> None:
    """Also within the same millisecond, and if the clock of the client is behind that of the server."""
    moment_ms = now_ms() - behind_ms
    server.settle(put_and_claim(server, Put("a", pushed_at_ms=moment_ms - 5)).only.settle("ack"))
    server.delete(moment_ms)
    assert push_one(server, Put("a", pushed_at_ms=moment_ms)) == "+"


def test_an_item_that_comes_makes_the_queue_again(server: OneServer) -> None:
    deleted(server)
    assert server.statistics().deleted
    server.put("b")
    assert not server.statistics().deleted
    server.cancel("b")
    assert not server.statistics().deleted, "it has been used since"
    server.delete(now_ms() + 1)  # after the first time
    assert server.statistics().deleted


def test_paused_queue_is_not_deleted(server: OneServer) -> None:
    deleted(server)
    server.pause()
    assert not server.statistics().deleted


def test_late_push_of_a_deleted_item_is_done(server: OneServer) -> None:
    """A repeated push names the moment of the first."""
    when = deleted(server)
    assert server.put_told(Put("a", pushed_at_ms=when - 50))[1].keys() == {(1, 0)}
    for pushed_at_ms in (when - 50, when - 1):
        assert push_one(server, Put("a", pushed_at_ms=pushed_at_ms)) == "D"
    assert server.claim().ids == []


def test_id_that_is_pushed_after_a_deletion_is_another_item(server: OneServer) -> None:
    """Above every version of the former one, so that fencing tokens grow."""
    when = deleted(server)
    former = server.record("a").version
    assert push_one(server, Put("a", b"another", pushed_at_ms=when + 1)) == "+"
    claim = server.claim()
    assert claim.ids == ["a"]
    assert claim.decided["a"].record.version > former
    assert server.contents().payloads["a"] == b"another"
    assert server.contents().faults == []


def test_what_is_pushed_and_gone_after_a_deletion_is_done(server: OneServer) -> None:
    when = deleted(server)
    push_one(server, Put("a", pushed_at_ms=when + 1))
    server.settle(server.claim().only.settle("ack"))
    assert push_one(server, Put("a", pushed_at_ms=when + 2)) == "D"


def test_what_was_on_its_way_at_a_deletion_and_is_gone_is_done(server: OneServer) -> None:
    """Its first push came after the deletion, and was acked.  Its user did not learn of it, and pushes the id again."""
    when = deleted(server)
    server.settle(put_and_claim(server, Put("late", pushed_at_ms=when - 50)).only.settle("ack"))
    assert push_one(server, Put("late", pushed_at_ms=when + 1)) == "D"


def test_item_of_a_clock_that_is_ahead_stays_removed(server: OneServer) -> None:
    """Its repeated push would look as if it were one of after the deletion."""
    pushed_at_ms = now_ms() + WINDOW_MS // 2
    server.settle(put_and_claim(server, Put("a", pushed_at_ms=pushed_at_ms)).only.settle("ack"))
    server.delete()
    assert push_one(server, Put("a", pushed_at_ms=pushed_at_ms)) == "D"


def test_another_item_of_the_id_has_a_payload_of_its_own_on_a_follower(server: OneServer) -> None:
    """Which has the payload of the former one still: it is dropped later."""
    when = deleted(server)
    assert server.contents().left_payloads == {"a": b"payload"}
    pushed = packed_item(Version(2, 8), State.QUEUED, pushed_at_ms=when + 1)
    assert server.apply(Applied("a", pushed, payload=b"another"), payloads=True) == ([], [])
    contents = server.contents()
    assert (contents.payloads, contents.left_payloads, contents.faults) == ({"a": b"another"}, {}, [])


def test_unfinished_push_of_before_is_not_carried_on(server: OneServer) -> None:
    """Only a follower knows it, and the scrub would have it decided."""
    when = deleted(server)
    before, after = [packed_item(Version(0, 1), State.QUEUED, pushed_at_ms=ms) for ms in (when, when + 1)]
    decided = server.forward(Applied("before", before, payload=b"x"), Applied("after", after, payload=b"x"))
    assert decided.keys() == {"after"}
