"""``apply``: decided records are installed if they are newer, in any order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lua.entries import Applied, Put, packed_item
from tests.lua.one_server import OneServer, put_and_claim
from zkrq.protocol.records import State, Version


def queued(epoch: int, n: int) -> bytes:
    return packed_item(Version(epoch, n), State.QUEUED, pushed_at_ms=1e12)


def claimed(epoch: int, n: int, token: str = "ann/1") -> bytes:
    return packed_item(Version(epoch, n), State.CLAIMED, attempts=1, lease_ms=60_000, token=token)


def gone(epoch: int, n: int, token: str = "ann/1") -> bytes:
    return packed_item(Version(epoch, n), State.GONE, token=token)


def dead(epoch: int, n: int) -> bytes:
    return packed_item(Version(epoch, n), State.DEAD)


Make = Callable[[int, int], bytes]

HOMES: dict[Make, str] = {queued: "ready", claimed: "claimed", dead: "dead"}


@pytest.mark.parametrize("make", HOMES, ids=["queued", "claimed", "dead"])
def test_record_of_an_unknown_item_is_installed(server: OneServer, make: Make) -> None:
    """Rule 1: nothing held, so whatever comes is newer."""
    packed = make(1, 2)
    assert server.apply(Applied("a", packed, 0, b"p"), payloads=True) == ([], [])
    contents = server.contents()
    assert contents.packed["a"] == packed
    assert contents.homes("a") == {HOMES[make]}
    assert contents.faults == []
    assert server.queues() == {"q"}


@pytest.mark.parametrize("newer", [queued, claimed, dead, gone])
@pytest.mark.parametrize("older", [queued, claimed, dead])
def test_newer_record_moves_the_item(server: OneServer, older: Make, newer: Make) -> None:
    """Rule 1: the greater version wins, whatever the states are."""
    server.apply(Applied("a", older(1, 2), 1000, b"p"), payloads=True)
    assert server.apply(Applied("a", newer(1, 3), 0)) == ([], [])
    contents = server.contents()
    assert contents.packed["a"] == newer(1, 3)
    assert contents.faults == []


@pytest.mark.parametrize("held", [queued, claimed, dead, gone])
@pytest.mark.parametrize("older", [queued, claimed, dead, gone])
@pytest.mark.parametrize("payloads", [True, False])  # most decisions come without
def test_older_record_is_superseded(server: OneServer, held: Make, older: Make, *, payloads: bool) -> None:
    """Rule 1: superseded where a greater one is held that says otherwise; nothing changes."""
    server.apply(Applied("a", held(1, 3), 1000, b"p"), payloads=True)
    before = server.contents()
    superseded = [1] if held is not older else []
    assert server.apply(Applied("a", older(1, 2), 0, b"other"), payloads=payloads) == (superseded, [])
    assert server.contents() == before


@pytest.mark.parametrize(("greater", "smaller"), [((2, 1), (1, 99)), ((10, 1), (9, 1)), ((1, 10), (1, 9))])
def test_versions_are_compared_by_epoch_then_by_number(
    server: OneServer, greater: tuple[int, int], smaller: tuple[int, int]
) -> None:
    """Words: version ``(epoch, n)``, compared in that order."""
    server.apply(Applied("a", queued(*smaller)))
    assert server.apply(Applied("a", queued(*greater)))[0] == []
    assert server.apply(Applied("a", claimed(*smaller)))[0] == [1]
    assert server.record("a").version == greater


@pytest.mark.parametrize("make", [queued, claimed, dead, gone])
def test_same_record_again_is_done(server: OneServer, make: Make) -> None:
    """Rule 1: idempotent."""
    again = Applied("a", make(1, 2), 5000, b"p")
    server.apply(again, payloads=True)
    before = server.contents()
    assert server.apply(again, payloads=True) == ([], [])
    assert server.contents() == before


def test_same_version_by_another_claim_is_superseded(server: OneServer) -> None:
    """Rule 2: two decisions of one version: the claim that is not here must not be handed out."""
    server.apply(Applied("a", claimed(1, 2, "ann/1")))
    assert server.apply(Applied("a", claimed(1, 2, "bob/1")))[0] == [1]
    assert server.record("a").token == "ann/1"


def test_superseded_and_bare_are_named_by_position(server: OneServer) -> None:
    """Rule 1: the reply says which; the others of the batch are installed."""
    server.put("known", "newer")
    server.apply(Applied("newer", queued(1, 9)))
    batch = [Applied("unknown", queued(1, 2)), Applied("newer", claimed(1, 2)), Applied("known", queued(1, 2))]
    assert server.apply(*batch, Applied("removed", gone(1, 2))) == ([2], [1])
    records = server.contents().records
    assert {id: record.version.n for id, record in records.items()} == {
        "unknown": 2,
        "newer": 9,
        "known": 2,
        "removed": 2,
    }


def test_bare_until_the_payload_comes(server: OneServer) -> None:
    """Rule 2: a follower that lacks the payload says so; the repeated call brings it."""
    assert server.apply(Applied("a", queued(1, 2))) == ([], [1])
    assert server.apply(Applied("a", queued(1, 2), 0, b"p"), payloads=True) == ([], [])
    contents = server.contents()
    assert contents.payloads == {"a": b"p"}
    assert contents.faults == []


def test_repeated_apply_names_the_bare_again(server: OneServer) -> None:
    """Rule 2: a call is repeated when its answer was lost; the repetition must not hide the missing payload."""
    server.apply(Applied("a", claimed(1, 2)))
    assert server.apply(Applied("a", claimed(1, 2))) == ([], [1])


def test_later_decision_names_the_bare_again(server: OneServer) -> None:
    """Rule 2: who applied first may have died before it brought the payload."""
    server.apply(Applied("a", claimed(1, 2)))
    assert server.apply(Applied("a", queued(1, 3))) == ([], [1])


def test_payload_that_is_there_stays(server: OneServer) -> None:
    """Catch-up: a copy brings payloads only where there is none."""
    server.put(Put("a", b"first"))
    server.apply(Applied("a", queued(1, 2), 0, b"second"), payloads=True)
    assert server.contents().payloads == {"a": b"first"}


def test_superseded_copy_still_brings_a_missing_payload(server: OneServer) -> None:
    """Catch-up: a page that was read earlier than the record that is here by now carries the payload all the same."""
    server.apply(Applied("a", queued(1, 3)))
    assert server.apply(Applied("a", claimed(1, 2), 0, b"p"), payloads=True)[0] == [1]
    assert server.contents().payloads == {"a": b"p"}


@pytest.mark.parametrize("make", [queued, claimed, gone])
def test_reason_goes_with_a_failure_that_another_primary_does_not_know(server: OneServer, make: Make) -> None:
    failed = packed_item(Version(1, 5), State.QUEUED, failures=1)
    server.apply(Applied("a", failed, 0, b"p", notes=b"\1\3\0bad"), payloads=True)
    assert server.contents().notes == {"a": "bad"}
    server.apply(Applied("a", make(2, 5)))
    assert server.contents().notes == {}


def test_removal_leaves_a_tombstone_and_no_payload(server: OneServer) -> None:
    """Rule 8."""
    server.put("a")
    server.apply(Applied("a", gone(1, 3)))
    contents = server.contents()
    assert contents.ids(State.GONE) == {"a"}
    assert contents.payloads == {}
    assert contents.faults == []


def test_times_left_count_from_this_clock(server: OneServer) -> None:
    """Claims: durations travel, never timestamps."""
    before = server.now_us()
    server.apply(
        Applied("claimed", claimed(1, 2), 30_000),
        Applied("later", queued(1, 2), 60_000),
        Applied("now", queued(1, 2), -5_000),
    )
    after = server.now_us()
    contents = server.contents()
    assert before + 29_999_000 <= contents.claimed["claimed"] <= after + 30_000_000
    assert before + 59_999_000 <= contents.moment_us("later") <= after + 60_000_000
    assert contents.homes("now") == {"ready"}


def test_order_of_a_batch_is_kept(server: OneServer) -> None:
    """Order: items that became due microseconds apart stand on the follower as they did on the primary."""
    ids = [f"x{n}" for n in (5, 3, 9, 1, 7)]
    due = {id: packed_item(Version(1, 2), State.QUEUED, due_us=at) for at, id in enumerate(ids)}
    server.apply(*(Applied(id, due[id], -10, b"p") for id in sorted(ids)), payloads=True)
    assert server.claim().ids == ids


def test_claims_of_a_follower_name_their_owner(server: OneServer) -> None:
    """Claims: to find orphans the owners are read in Redis, also from one that was a follower until now."""
    server.apply(Applied("a", claimed(1, 2, "ann/17")))
    assert server.owners() == {"ann"}
    assert server.command("HGET", server.key("owners"), "ann") == b"17"


def test_applied_fence_refuses_the_owner(server: OneServer) -> None:
    """Rule 6: a fenced token is refused on every server, with and without claims to requeue."""
    put_and_claim(server, "a")
    assert server.apply(fenced="ann") == ([], [])
    assert server.command("ZSCORE", server.key("fenced_owners"), "ann") is not None


def test_ready_item_wakes_a_waiter(server: OneServer) -> None:
    """Catch-up and decisions make items ready on a follower that may be somebody's primary by now."""
    with server.listen("ann") as ann:
        server.claim(waiter="ann")
        server.apply(Applied("a", queued(1, 2), 0, b"p"), payloads=True)
        assert ann.heard() == server.key("ready")


def test_same_id_twice_in_one_batch_ends_with_the_newest(server: OneServer) -> None:
    """Rule 1: in any order, also within one call."""
    for id, packed in (("up", [queued(1, 2), claimed(1, 3)]), ("down", [claimed(1, 3), queued(1, 2)])):
        server.apply(*(Applied(id, each, 60_000, b"p") for each in packed), payloads=True)
    contents = server.contents()
    assert {id: record.version.n for id, record in contents.records.items()} == {"up": 3, "down": 3}
    assert contents.faults == []


def test_item_that_comes_back_within_one_batch_has_its_index(server: OneServer) -> None:
    """Rule 1: claimed and queued again, both in one call: a queued item without an index would never be found."""
    server.put("a")
    server.apply(Applied("a", claimed(1, 2), 60_000), Applied("a", queued(1, 3), -5))
    contents = server.contents()
    assert contents.homes("a") == {"ready"}
    assert contents.faults == []


def test_decision_of_the_primary_is_the_followers_record(server: OneServer) -> None:
    """Decide, then apply: what one decided is byte by byte what all hold."""
    claim = put_and_claim(server, Put("a", priority=7)).only
    nacked = server.settle(claim.settle("nack", 0)).decided["a"]
    server.reset()
    server.put(Put("a", priority=7))
    server.apply(nacked.apply())
    assert server.contents().packed["a"] == nacked.packed
    assert server.claim(epoch=2).only.record == nacked.record._replace(
        version=Version(2, 4),
        state=State.CLAIMED,
        attempts=2,
        token="ann/2",
        due_us=server.record("a").due_us,
        deadline_us=server.record("a").deadline_us,
    )


def test_copy_of_what_read_returned_is_complete(server: OneServer) -> None:
    """Catch-up: records with payloads and tombstones travel through the same ``apply`` (rule 8)."""
    acked = put_and_claim(server, "gone").only
    server.settle(acked.settle("ack"))
    put_and_claim(server, "held")
    server.settle(put_and_claim(server, "dead").only.settle("bury", 0, "why"))
    server.put(Put("ready", b"r"), Put("later", b"l", delay_ms=60_000))
    before = server.contents()
    copies = [copy.applied for copy in server.read(*before.records).values()]
    server.reset()
    server.apply(*copies, payloads=True)
    after = server.contents()
    assert after.packed == before.packed
    assert (after.payloads, after.notes) == (before.payloads, before.notes)
    assert {id: after.homes(id) for id in after.records} == {id: before.homes(id) for id in before.records}
    assert after.faults == []
