"""``fence``, ``claims``, ``owners``, ``retire``: the items of a dead consumer are ready again, and it is refused."""

from __future__ import annotations

import re
from typing import cast

import pytest

from tests.lua.connection import Refused
from tests.lua.entries import Applied, Put, packed_item
from tests.lua.one_server import OneServer, put_and_claim
from zkrq.protocol import calls
from zkrq.protocol.records import State, Version


def test_claims_of_the_owner_are_requeued(server: OneServer) -> None:
    """Claims: fencing makes an owner's claims ready at once; the delivery counted, the failure did not."""
    claim = put_and_claim(server, Put("a", b"A", priority=3)).only
    requeued = server.fence("ann")["a"]
    record = requeued.record
    assert record == claim.record._replace(
        version=Version(1, 3), state=State.QUEUED, token="", due_us=record.due_us, deadline_us=0
    )
    contents = server.contents()
    assert contents.packed["a"] == requeued.packed
    assert contents.homes("a") == {"ready"}
    assert contents.faults == []


def test_claims_of_others_are_untouched(server: OneServer) -> None:
    """Also of one whose name begins alike."""
    put_and_claim(server, "a", owner="ann")
    others = put_and_claim(server, "b", owner="ann/1"), put_and_claim(server, "c", owner="anna")
    assert set(server.fence("ann")) == {"a"}
    for other in others:
        assert server.settle(other.only.settle("ack")).outcomes == [1]


def test_requeued_item_stands_where_it_stood(server: OneServer) -> None:
    """Order: by due time, best effort."""
    put_and_claim(server, "a", "b")
    server.put("c")
    server.fence("ann")
    assert server.claim("bob").ids == ["a", "b", "c"]


def test_fencing_takes_many_pages(server: OneServer) -> None:
    """Claims: a page a call, so that no call blocks the server for long; none is left out."""
    ids = server.put_numbered(3_000)
    for _ in range(6):
        server.claim("ann", count=250)
        server.claim("bob", count=250)
    assert server.ask(calls.Fence(server.queue, "ann")).cursor != calls.START
    server.fence("ann")
    contents = server.contents()
    assert len(contents.ids(State.QUEUED)) == len(contents.ids(State.CLAIMED)) == 1_500
    assert {record.token.split("/")[0] for record in contents.records.values()} == {"", "bob"}
    assert contents.faults == []
    assert server.claim("eve", count=250).ids == sorted(contents.ids(State.QUEUED))[:250]
    assert len(ids) == len(contents.records)


def test_fencing_again_finds_nothing_more(server: OneServer) -> None:
    """Rule 5: whoever repeats it does no harm."""
    put_and_claim(server, "a")
    assert len(server.fence("ann")) == 1
    before = server.contents()
    assert server.fence("ann") == {}
    assert server.contents() == before


def test_unknown_owner_may_be_fenced(server: OneServer) -> None:
    """On every server: also where its first claim is still on the way."""
    assert server.fence("ann") == {}
    assert server.command("ZSCORE", server.key("fenced_owners"), "ann") is not None


def test_fenced_owner_stays_named_until_it_is_retired(server: OneServer) -> None:
    """Claims: a fence that was left in the middle is found again by the owner's name."""
    put_and_claim(server, "a", owner="ann")
    put_and_claim(server, "b", owner="bob")
    server.fence("ann")
    assert server.owners() == {"ann", "bob"}
    server.retire("ann")
    assert server.owners() == {"bob"}
    server.retire("ann")
    assert server.owners() == {"bob"}


def test_retired_owner_is_still_refused(server: OneServer) -> None:
    """Rule 6: a claim request of it may still be on its way."""
    server.claim("ann", seq=1)
    server.fence("ann")
    server.retire("ann")
    with pytest.raises(Refused, match="FENCED"):
        server.claim("ann", seq=2)


def test_claims_of_an_owner_are_named(server: OneServer) -> None:
    """Repair: a follower may hold claims of the dead that the primary knows nothing of."""
    ids = set(server.put_numbered(1_500))
    mine: set[str] = set()
    for _ in range(3):
        mine |= set(server.claim("ann", count=300).ids)
        server.claim("bob", count=200)
    assert server.claims_of("ann") == mine
    assert server.claims_of("bob") == ids - mine
    assert server.claims_of("eve") == set()


def test_settled_claims_are_not_named(server: OneServer) -> None:
    claims = put_and_claim(server, "a", "b", "c")
    server.settle(claims.decided["a"].settle("ack"), claims.decided["b"].settle("nack", 60_000))
    assert server.claims_of("ann") == {"c"}


def test_fenced_owner_is_remembered_for_ten_minutes(server: OneServer) -> None:
    """Bounded in memory."""
    fenced = server.key("fenced_owners")
    minutes_ago = server.now_ms() - 601_000, server.now_ms() - 500_000
    server.command("ZADD", fenced, minutes_ago[0], "old", minutes_ago[1], "recent")
    server.fence("ann")
    assert server.command("ZRANGE", fenced, 0, -1) == [b"recent", b"ann"]


# -- without a look at what others hold ----------------------------------------------------------------------------


def scans(server: OneServer) -> int:
    """How often scripts have gone through a whole key, or read one record, so far."""
    told = cast("bytes", server.command("INFO", "commandstats"))
    return sum(int(calls) for calls in re.findall(rb"cmdstat_(?:zscan|hscan|sscan|hget):calls=(\d+)", told))


def crowd(server: OneServer) -> None:
    """Many owners that hold much."""
    server.put_numbered(3_000)
    for n in range(10):
        server.claim(f"owner{n}", 300)


def test_repeated_request_looks_at_its_own_claims_alone(server: OneServer) -> None:
    """After a follower's death every consumer repeats its last request; what others hold makes none of them dearer."""
    crowd(server)
    server.put("a", "b")
    claimed = server.claim("ann", seq=1)
    before = scans(server)
    assert server.claim("ann", seq=1).handed == claimed.handed
    assert scans(server) - before <= 2 * len(claimed.handed) + 2


def test_fencing_looks_at_the_owners_claims_alone(server: OneServer) -> None:
    crowd(server)
    put_and_claim(server, "a", "b", owner="ann")
    before = scans(server)
    assert set(server.fence("ann")) == {"a", "b"}
    assert server.claims_of("ann") == set()
    assert scans(server) == before


def test_entry_of_a_claim_that_has_ended_is_struck(server: OneServer) -> None:
    """Every prefix of a script's writes is safe: who reads an index looks at the record."""
    claims = put_and_claim(server, "a", "acked", "nacked", owner="ann").decided
    server.settle(claims["acked"].settle("ack"), claims["nacked"].settle("nack"))
    token = claims["a"].record.token
    stale = [f"{token}\0{id}" for id in ("acked", "nacked", "never")] + ["ann/0\0a"]
    server.command("ZADD", server.key("holdings"), *(part for entry in stale for part in (0, entry)))
    assert server.claims_of("ann") == {"a"}
    assert set(server.fence("ann")) == {"a"}
    assert server.contents().faults == []


def test_holdings_follow_a_claim_that_changes_hands(server: OneServer) -> None:
    """On a follower, which may miss what lay between."""
    for n, owner in ((2, "ann"), (5, "bob")):
        record = packed_item(Version(1, n), State.CLAIMED, token=f"{owner}/1")
        server.apply(Applied("a", record, 60_000, b"A"), payloads=True)
    assert (server.claims_of("ann"), server.claims_of("bob")) == (set(), {"a"})
    assert server.contents().faults == []
