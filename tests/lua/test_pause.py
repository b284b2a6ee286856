"""``pause``: nothing is handed out while the queue's own record says so; everything else continues."""

from __future__ import annotations

import time

import pytest

from tests.lua.connection import Refused
from tests.lua.contents import PAUSE
from tests.lua.entries import LEASE_MS, WINDOW_MS, Applied, Put, packed_item
from tests.lua.one_server import OneServer, put_and_claim
from zkrq.protocol.records import State, Version

LONG_MS = 60_000


# -- paused --------------------------------------------------------------------------------------------------------


def test_paused_queue_hands_out_nothing(server: OneServer) -> None:
    server.put("a")
    server.pause()
    claimed = server.claim()
    assert (claimed.handed, claimed.decided) == ({}, {})
    assert claimed.next_ms == -1, "it is told when the queue goes on"
    assert server.count() == (1, 0, 0, 0)


def test_resumed_queue_hands_out_again(server: OneServer) -> None:
    server.put("a", "b")
    server.pause()
    server.claim()
    server.resume()
    assert server.claim().ids == ["a", "b"]
    assert server.contents().faults == []


def test_queue_that_was_never_paused_is_resumed(server: OneServer) -> None:
    assert server.resume() == {}
    assert server.contents().records == {}


def test_other_queues_go_on(server: OneServer) -> None:
    server.pause()
    server.queue = "other"
    server.put("a")
    assert server.claim().ids == ["a"]


def test_everything_else_goes_on(server: OneServer) -> None:
    """Pushes, and work on what is claimed."""
    claims = put_and_claim(server, *(Put(id) for id in "abcdef")).decided
    server.pause()
    server.put("new")
    assert server.push(Put("keyed", key="k"))[0] == ["+"]
    verbs = dict(zip("abcde", ("ack", "nack", "release", "bury", "extend"), strict=True))
    settled = server.settle(*(claims[id].settle(verb, LEASE_MS) for id, verb in verbs.items()))
    assert settled.outcomes == [1] * 5
    assert server.redrive("d").keys() == {"d"}
    assert server.cancel("d")[0] == ["Q"]
    assert server.fence("ann").keys() == {"e", "f"}
    assert server.clear(1).keys() == {"b"}
    assert server.claim("bob").ids == []
    contents = server.contents()
    assert contents.paused
    assert contents.faults == []
    server.resume()
    assert set(server.claim("bob").ids) == {"c", "e", "f", "new", "keyed"}


def test_expired_claims_and_due_items_wait_for_the_queue_to_go_on(server: OneServer) -> None:
    put_and_claim(server, "held")
    server.put(Put("due", delay_ms=LONG_MS))
    server.pause()
    server.command("ZADD", server.key("scheduled"), "XX", 1, "due")
    assert server.claim("bob").ids == []
    server.resume()
    assert server.claim("bob").ids == ["due"]
    assert server.contents().faults == []


@pytest.mark.parametrize("epoch", [1, 2])
def test_repeated_request_is_given_its_items_all_the_same(server: OneServer, epoch: int) -> None:
    """Rule 6: they were claimed before; nothing claimed is left lying about."""
    server.put("a", "b")
    claimed = server.claim("ann", 1, seq=7)
    server.pause()
    assert server.claim("ann", 1, seq=7, epoch=epoch).handed == claimed.handed
    assert server.claim("ann", 1, seq=8, epoch=epoch).handed == {}
    assert server.contents().faults == []


def test_fenced_owner_is_refused_also_while_the_queue_is_paused(server: OneServer) -> None:
    server.fence("ann")
    server.pause()
    with pytest.raises(Refused, match="FENCED"):
        server.claim("ann")


# -- decided like an item --------------------------------------------------------------------------------------------


def test_pausing_is_a_decision(server: OneServer) -> None:
    """Decide, then apply."""
    server.epoch = 3
    before = server.now_ms()
    decided = server.pause()[PAUSE].record
    assert (decided.version.epoch, decided.state) == (3, State.PAUSED)
    assert before // 1000 < decided.version.n <= server.now_ms() // 1000 + 1, "above that of a former life of the queue"
    assert before <= decided.pushed_at_ms <= server.now_ms()
    assert (decided.token, decided.key, decided.expires_us) == ("", "", 0)
    contents = server.contents()
    assert contents.records == {PAUSE: decided}
    assert contents.paused
    assert (contents.payloads, contents.tombstones, contents.faults) == ({}, [], [])


def test_paused_again_is_the_same(server: OneServer) -> None:
    """Three answers: after an unknown outcome it is asked again."""
    first = server.pause()
    before = server.contents()
    assert server.pause()[PAUSE].packed == first[PAUSE].packed
    assert server.contents() == before


def test_resumed_again_is_the_same(server: OneServer) -> None:
    server.pause()
    first = server.resume()
    before = server.contents()
    assert server.resume()[PAUSE].packed == first[PAUSE].packed
    assert server.contents() == before


@pytest.mark.parametrize("state", [State.PAUSED, State.GONE])
def test_repeated_under_a_newer_epoch_it_is_decided_again(server: OneServer, state: State) -> None:
    """Rule 5: stamped with the new epoch, so that it wins everywhere."""
    server.pause()
    first = server.pause(state)[PAUSE].record
    again = server.pause(state, epoch=4)[PAUSE].record
    assert (again.version, again.state) == (Version(4, first.version.n + 1), state)
    assert server.contents().faults == []


def test_versions_only_grow(server: OneServer) -> None:
    """However often, and however long ago it was last resumed: this record is not dropped with the tombstones."""
    version = Version(0, 0)
    for _ in range(3):
        for decided in (server.pause(), server.resume()):
            assert decided[PAUSE].record.version > version
            version = decided[PAUSE].record.version
        server.settle(put_and_claim(server, "a").only.settle("ack"), put_window_ms=0)
        time.sleep(0.002)  # it is pushed after what was dropped
        server.settle(put_and_claim(server, "b").only.settle("ack"), put_window_ms=0)
        time.sleep(0.002)
    assert server.contents().faults == []


def test_paused_queue_without_items_has_a_name(server: OneServer) -> None:
    """Catch-up copies, and wipes, the queues that are named."""
    server.pause()
    assert server.queues() == {"q"}
    server.wipe()
    assert server.key_names() == {"server"}


def test_pausing_is_not_refused_when_memory_is_full(server: OneServer) -> None:
    """Memory pressure: who wants to stop the consumers must be able to, and to let the queue drain."""
    server.put("a")
    server.command("CONFIG", "SET", "maxmemory", 1)
    try:
        server.pause()
        assert server.claim().ids == []
        server.resume()
        assert server.claim().ids == ["a"]
    finally:
        server.command("CONFIG", "SET", "maxmemory", 0)


# -- waking up -----------------------------------------------------------------------------------------------------


def test_resuming_wakes_all_who_wait(server: OneServer) -> None:
    server.put("a")
    server.pause()
    with server.listen("ann") as ann, server.listen("bob") as bob:
        server.claim("ann", waiter="ann")
        server.claim("bob", waiter="bob")
        server.resume()
        assert ann.heard() == bob.heard() == server.key("ready")


@pytest.mark.parametrize("settings", ["", "concurrency=9"])
def test_resuming_wakes_one_that_learns_when_something_is_due(server: OneServer, settings: str) -> None:
    server.declare(settings)
    server.put(Put("later", delay_ms=60_000))
    server.pause()
    with server.listen("bobs") as bobs:
        assert server.claim("bob", 1, waiter="bobs").next_ms == -1
        server.resume()
        bobs.heard()
    assert 0 < server.claim("bob", 1).next_ms <= 60_000


def test_resuming_again_wakes_who_waits_by_then(server: OneServer) -> None:
    """The answer to the first was lost, and with it, perhaps, the connection on which they were told."""
    server.pause()
    server.resume()
    with server.listen("ann") as ann:
        server.claim("ann", waiter="ann")
        server.resume()
        assert ann.heard() == server.key("ready")


def test_pausing_wakes_nobody(server: OneServer) -> None:
    with server.listen("ann") as ann:
        server.claim("ann", waiter="ann")
        server.pause()
        server.pause()
        assert ann.told_nothing()


def test_who_was_woken_for_nothing_waits_on(server: OneServer) -> None:
    """A push into a paused queue uses up a waiter: it asks, gets nothing, and is there again when it is resumed."""
    server.pause()
    with server.listen("ann") as ann:
        server.claim("ann", waiter="ann")
        server.put("a")
        assert ann.heard() == server.key("ready")
        server.claim("ann", waiter="ann")
        server.resume()
        assert ann.heard() == server.key("ready")


# -- on other servers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 0)])
def test_applied_in_any_order_the_last_counts(server: OneServer, order: tuple[int, ...]) -> None:
    """Rule 1."""
    decided = [server.pause()[PAUSE], server.resume()[PAUSE]]
    server.reset()
    server.put("a")
    for at in order:
        server.apply(decided[at].apply())
    assert server.claim().ids == ["a"]
    assert server.contents().faults == []


def test_applied_pause_holds(server: OneServer) -> None:
    """A follower becomes primary; nobody lacks a payload for it."""
    decided = server.pause()[PAUSE]
    server.reset()
    server.put("a")
    for payloads in (False, True):
        assert server.apply(decided.apply(), payloads=payloads) == ([], [])
    assert server.claim(epoch=2).ids == []
    contents = server.contents()
    assert contents.records[PAUSE] == decided.record
    assert contents.faults == []


@pytest.mark.parametrize("state", [State.PAUSED, State.GONE])
def test_copy_knows_it(server: OneServer, state: State) -> None:
    """Catch-up and recovery: through ``page`` and ``apply``, as an item is."""
    server.put("a")
    server.pause()
    server.pause(state)
    _, page = server.page()
    assert page.found[PAUSE].payload is None
    server.reset()
    server.apply(*(copy.applied for copy in page.found.values() if copy.payload is not None), payloads=True)
    server.apply(*(copy.applied for copy in page.found.values() if copy.payload is None))
    contents = server.contents()
    assert contents.records == {id: copy.record for id, copy in page.found.items()}
    assert contents.faults == []
    assert server.claim().ids == ([] if state is State.PAUSED else ["a"])


def test_scrub_sees_it(server: OneServer) -> None:
    """A server that lacks it, or knows it otherwise, is told."""
    server.pause()
    _, heads = server.heads()
    assert heads.keys() == {PAUSE}
    assert server.compare(heads) == ([], []), "it lacks no payload"
    server.resume()
    assert server.compare(heads) == ([], [1])
    server.reset()
    assert server.compare(heads) == ([1], [])


@pytest.mark.parametrize("state", [State.PAUSED, State.GONE])
def test_affirmed_it_wins_everywhere(server: OneServer, state: State) -> None:
    """The scrub: decided again under the present epoch."""
    server.pause()
    held = server.pause(state)[PAUSE].record
    affirmed = server.affirm(PAUSE, epoch=5)[PAUSE].record
    assert affirmed == held._replace(version=Version(5, held.version.n + 1))
    assert server.contents().faults == []


def test_pause_of_which_only_a_follower_knows_can_be_carried_on(server: OneServer) -> None:
    old = packed_item(Version(1, 1), State.PAUSED, pushed_at_ms=server.now_ms() - 3 * WINDOW_MS)
    server.put("a")
    decided = server.forward(Applied(PAUSE, old))
    assert decided[PAUSE].record.version == Version(1, 2)
    assert server.claim().ids == []
    assert server.contents().faults == []


# -- seeing --------------------------------------------------------------------------------------------------------


def test_it_is_no_item(server: OneServer) -> None:
    """Neither counted nor shown, cleared, cancelled, redriven, nor given away."""
    server.put("a")
    server.pause()
    assert server.count() == (1, 0, 0, 0)
    for state in ("ready", "scheduled", "claimed", "dead"):
        assert PAUSE not in server.peek(state).found
    assert set(server.clear(10)) == {"a"}
    assert server.cancel(PAUSE)[1] == {}
    assert server.redrive(PAUSE) == {}
    assert server.contents().paused
    server.resume()
    assert server.claim().ids == []
    assert server.contents().faults == []


def test_statistics_tell(server: OneServer) -> None:
    assert server.statistics().paused == 0
    server.pause()
    assert server.statistics().paused == 1
    server.resume()
    assert server.statistics().paused == 0
