"""``statistics`` and ``holders``: the figures of a queue, and the claims of each owner."""

from __future__ import annotations

import time

import pytest

from tests.lua.entries import Put
from tests.lua.one_server import OneServer, put_and_claim
from zkrq.protocol.calls import StatisticsReply

LONG_MS = 60_000


# -- statistics ----------------------------------------------------------------------------------------------------


def test_nothing_is_known_of_an_empty_queue(server: OneServer) -> None:
    assert server.statistics() == StatisticsReply(0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, b"", 0, 0, 0, 0, 0)


def test_everything_is_counted(server: OneServer) -> None:
    server.settle(put_and_claim(server, "gone").only.settle("ack"))
    server.settle(put_and_claim(server, "dead").only.settle("bury"))
    put_and_claim(server, "c1", "c2")
    server.put("r1", "r2", Put("r3", ttl_ms=LONG_MS), Put("scheduled", delay_ms=LONG_MS))
    server.push(Put("k1", key="k1"), Put("k2", key="k2", ttl_ms=LONG_MS, delay_ms=1_000))
    glance = server.statistics()
    assert glance[:6] == (4, 2, 2, 1, 0, 0)
    assert (glance.keyed, glance.expiring, glance.tombstones, glance.removed) == (2, 2, 1, 1)
    assert glance[:4] == server.count()


def test_due_items_count_as_ready_before_anybody_claims(server: OneServer) -> None:
    server.put(Put("a", delay_ms=20), Put("b", delay_ms=LONG_MS))
    time.sleep(0.025)
    assert server.statistics()[:4] == server.count() == (1, 1, 0, 0)


def ms_since(moment: float) -> float:
    """However long this process stood still meanwhile: what was pushed before has waited for longer."""
    return 1000 * (time.monotonic() - moment)


@pytest.mark.parametrize("priority", range(10))
def test_longest_wait_is_that_of_the_ready_item_that_is_due_longest(server: OneServer, priority: int) -> None:
    """Of any priority: one that always comes last is what one wants to know of."""
    server.put(Put("a", priority=priority))
    time.sleep(0.03)
    others_at = time.monotonic()
    server.put(*(Put(f"other{n}", priority=n) for n in range(10)))
    assert 30 <= server.statistics().waited_ms < 20_000
    server.cancel("a")
    assert 0 <= server.statistics().waited_ms < 30 + ms_since(others_at)


def test_wait_of_an_item_that_comes_back_counts_from_when_it_is_due(server: OneServer) -> None:
    claim = put_and_claim(server, "a").only
    time.sleep(0.2)
    back_at = time.monotonic()
    server.settle(claim.settle("nack", 0))
    assert 0 <= server.statistics().waited_ms < 200 + ms_since(back_at)


@pytest.mark.parametrize("claimed", [True, False])
def test_nothing_waits_where_nothing_is_ready(server: OneServer, claimed: bool) -> None:
    server.put(Put("later", delay_ms=LONG_MS))
    if claimed:
        put_and_claim(server, "a")
    assert server.statistics().waited_ms == -1


def test_statistics_change_nothing(server: OneServer) -> None:
    server.put(Put("a", ttl_ms=LONG_MS), Put("due", delay_ms=1))
    time.sleep(0.003)
    before = server.contents()
    server.statistics()
    server.holders()
    assert server.contents() == before


# -- holders -------------------------------------------------------------------------------------------------------


def test_nobody_holds_anything(server: OneServer) -> None:
    server.put("a")
    server.claim(count=0)
    assert server.holders() == {}


def test_claims_are_counted_by_their_owners(server: OneServer) -> None:
    server.put_numbered(10)
    server.claim("ann", 3)
    server.claim("bob/1", 2)
    server.claim("ann", 4)
    assert server.holders() == {"ann": 7, "bob/1": 2}
    server.fence("ann")
    assert server.holders() == {"bob/1": 2}


def test_claims_are_counted_page_by_page(server: OneServer) -> None:
    """More than Redis returns at once."""
    server.put_numbered(1_500)
    for owner in ("ann", "ann", "ann", "bob", "bob"):
        server.claim(owner, 300 if owner == "ann" else 250)
    assert server.holders() == {"ann": 900, "bob": 500}


def test_index_that_names_what_is_no_claim_counts_nothing(server: OneServer) -> None:
    """Every prefix of a script's writes is safe: who reads an index looks at the record."""
    claims = put_and_claim(server, "a", "nacked", "acked", "buried").decided
    verbs = {"nacked": "nack", "acked": "ack", "buried": "bury"}
    server.settle(*(claims[id].settle(verb) for id, verb in verbs.items()))
    server.command("ZADD", server.key("claimed"), *(part for id in (*verbs, "never") for part in (1, id)))
    assert server.holders() == {"ann": 1}
