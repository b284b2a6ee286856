"""``push``: the primary's decisions about new items and known ones, and about queues with a limit."""

from __future__ import annotations

import pytest

from tests.lua.connection import ScriptFailed
from tests.lua.entries import WINDOW_MS, Applied, Put, packed_item
from tests.lua.one_server import OneServer, put_and_claim
from tests.lua.pushing import LONG_MS, End, ack, bury, cancel, extend, fence, keyed, nack, push_and_claim, push_one
from zkrq.protocol.records import State, Version

# -- one item ------------------------------------------------------------------------------------------------------


def test_pushed_item_is_decided_under_the_present_epoch(server: OneServer) -> None:
    """Decide, then apply: (current epoch, n + 1), one more than what a plain push writes everywhere at once."""
    server.epoch = 4
    outcomes, decided = server.push(Put("a", b"A", priority=3, key="k"))
    assert outcomes == ["+"]
    record = decided["a"].record
    assert (record.version, record.state, record.priority, record.key) == (Version(4, 2), State.QUEUED, 3, "k")
    assert decided["a"].left_ms == 0
    contents = server.contents()
    assert contents.records == {"a": record}
    assert contents.payloads == {"a": b"A"}
    assert contents.homes("a") == {"ready"}
    assert contents.keys == {"k": {"a"}}
    assert contents.faults == []
    assert server.queues() == {"q"}


def test_push_without_a_key_is_decided_alike(server: OneServer) -> None:
    assert push_one(server, Put("a")) == "+"
    contents = server.contents()
    assert (contents.homes("a"), contents.keys, contents.faults) == ({"ready"}, {}, [])


def test_delayed_push_is_scheduled(server: OneServer) -> None:
    _, decided = server.push(keyed("a", delay_ms=LONG_MS))
    assert decided["a"].left_ms == LONG_MS
    assert server.contents().homes("a") == {"scheduled"}


def test_batch_keeps_its_order_and_priorities(server: OneServer) -> None:
    ids = [f"i{n}" for n in range(20)]
    server.push(*(keyed(id, id) for id in reversed(ids)), keyed("first", "first", priority=1))
    claimed = server.claim(count=30).ids
    assert claimed[0] == "first"
    assert set(claimed) == {"first", *ids}


def test_pushed_item_wakes_a_waiter(server: OneServer) -> None:
    with server.listen("ann") as ann:
        server.claim(waiter="ann")
        server.push(keyed("a"))
        assert ann.heard() == server.key("ready")


def test_refused_push_wakes_nobody(server: OneServer) -> None:
    push_and_claim(server, keyed("a"))
    with server.listen("ann") as ann:
        server.claim(waiter="ann")
        server.push(keyed("b"))
        assert ann.told_nothing()


# -- again ---------------------------------------------------------------------------------------------------------


def test_same_id_again_is_there(server: OneServer) -> None:
    """Three answers: the same id may be pushed again; it does not stand in its own way."""
    _, first = server.push(keyed("a"))
    before = server.contents()
    outcomes, again = server.push(Put("a", b"other", priority=9, key="k"))
    assert outcomes == ["K"]
    assert again["a"].packed == first["a"].packed
    assert server.contents() == before


def test_same_id_twice_in_one_call_is_there_once(server: OneServer) -> None:
    outcomes, decided = server.push(Put("a", b"first", key="k"), Put("a", b"second", key="k"))
    assert (outcomes, set(decided)) == (["+", "K"], {"a"})
    contents = server.contents()
    assert contents.payloads == {"a": b"first"}
    assert contents.faults == []


@pytest.mark.parametrize("end", [ack, bury, nack, extend, cancel, fence])
def test_known_item_stays_as_it_is(server: OneServer, end: End) -> None:
    """Rules 1 and 8: what was decided about an item is not undone by its push; what it is now goes to all servers."""
    end(server, push_and_claim(server, keyed("a")))
    before = server.contents()
    outcomes, decided = server.push(keyed("a"))
    assert outcomes == ["D" if end in (ack, cancel) else "K"]
    assert decided["a"].packed == before.packed["a"]
    assert server.contents() == before


@pytest.mark.parametrize("end", [ack, bury, nack, extend, cancel])
def test_known_item_is_stamped_with_a_newer_epoch(server: OneServer, end: End) -> None:
    """Rule 5: after a change of the view it is decided again, so that it wins everywhere; where it stands it stays."""
    end(server, push_and_claim(server, keyed("a")))
    before = server.contents()
    outcomes, decided = server.push(keyed("a"), epoch=3)
    assert outcomes == ["D" if end in (ack, cancel) else "K"]
    record, old = decided["a"].record, before.records["a"]
    assert record.version == Version(3, old.version.n + 1)
    if old.state is State.QUEUED:
        record, old = record._replace(due_us=0), old._replace(due_us=0)
    assert record._replace(version=old.version) == old, "a tombstone keeps the moment of its burial, too"
    after = server.contents()
    assert (after.records["a"], after.homes("a")) == (decided["a"].record, before.homes("a"))
    assert after.faults == []
    if old.state is State.QUEUED:
        assert LONG_MS / 2 < decided["a"].left_ms <= LONG_MS


def test_plain_push_that_is_here_counts_as_pushed(server: OneServer) -> None:
    """A queue may be given a limit while it is in use."""
    server.put("a")
    outcomes, decided = server.push(Put("a"), max_size=1)
    assert outcomes == ["K"]
    assert decided["a"].record.version == Version(1, 2)
    assert push_one(server, Put("b"), max_size=1) == "F"


def test_payload_of_a_known_item_is_completed(server: OneServer) -> None:
    """Rule 4: its claim came before its push, as in ``put``."""
    claimed = packed_item(Version(1, 2), State.CLAIMED, attempts=1, lease_ms=LONG_MS, token="ann/1", key="k")
    server.apply(Applied("a", claimed, LONG_MS))
    assert push_one(server, Put("a", b"late", key="k")) == "K"
    contents = server.contents()
    assert (contents.payloads, contents.packed) == ({"a": b"late"}, {"a": claimed})
    assert contents.faults == []


def test_item_that_waited_for_its_payload_is_ready(server: OneServer) -> None:
    """A primary that knows an item only by a decision keeps it back until the push comes."""
    queued = packed_item(Version(1, 3), State.QUEUED, pushed_at_ms=server.now_ms(), key="k")
    server.apply(Applied("a", queued, 0))
    assert server.claim().ids == []
    assert server.contents().homes("a") == {"scheduled"}
    with server.listen("ann") as ann:
        server.claim(waiter="ann")
        assert push_one(server, Put("a", b"late", key="k")) == "K"
        assert ann.heard() == server.key("ready")
    assert server.claim().handed == {"a": b"late"}


# -- another primary ---------------------------------------------------------------------------------------------------


def test_refused_push_leaves_nothing(server: OneServer) -> None:
    server.push(keyed("a"), max_size=1)
    before = server.contents()
    outcomes, decided = server.push(keyed("b"), Put("c"), max_size=1)
    assert (outcomes, set(decided)) == (["=a", "F"], {"a"})
    assert server.contents() == before


def old_push(server: OneServer, outcome: str) -> Put:
    """A push that the server must refuse so."""
    server.push(keyed("first"))
    return {
        "=first": keyed("a"),
        "F": Put("a", b"a"),
        "L": Put("a", b"a", key="new", pushed_at_ms=server.now_ms() - 2 * WINDOW_MS),
    }[outcome]


every_refusal = pytest.mark.parametrize("outcome", ["=first", "F", "L"])


@every_refusal
def test_what_is_refused_now_is_removed_where_another_primary_took_it(server: OneServer, outcome: str) -> None:
    """Rules 1 and 8: another primary may have decided that the item is there, and died; its copies must not stay."""
    put = old_push(server, outcome)
    outcomes, decided = server.push(put, max_size=1, again=1, epoch=2)
    assert outcomes == [outcome]
    record = decided["a"].record
    assert (record.state, record.version) == (State.GONE, Version(2, 2))
    contents = server.contents()
    assert contents.ids(State.GONE) == {"a"}
    assert contents.keys == {"k": {"first"}}
    assert contents.faults == []
    server.reset()
    earlier = packed_item(Version(1, 2), State.QUEUED, pushed_at_ms=server.now_ms(), key=put.key)
    server.apply(Applied("a", earlier, 0, b"a"), payloads=True)
    assert server.apply(decided["a"].apply(b"a"), payloads=True, epoch=2) == ([], [])
    contents = server.contents()
    assert (contents.ids(State.GONE), contents.payloads, contents.keys) == ({"a"}, {}, {})
    assert contents.faults == []


@every_refusal
def test_push_that_was_refused_is_refused_again_in_the_next_round(server: OneServer, outcome: str) -> None:
    """Its own tombstone must not pass for an item that was pushed and is done: nobody would have it."""
    put = old_push(server, outcome)
    _, decided = server.push(put, max_size=1, again=1, epoch=2)
    for epoch in (2, 3):
        outcomes, repeated = server.push(put, max_size=1, again=1, epoch=epoch)
        assert outcomes == [outcome]
        assert repeated["a"].record.version > decided["a"].record.version
    assert server.contents().faults == []


@pytest.mark.parametrize("outcome", ["=first", "F"])
@pytest.mark.parametrize("again", [0, 1])
def test_push_that_was_refused_may_be_repeated_later(server: OneServer, outcome: str, again: int) -> None:
    """``QueueFull``: retry later; with the same id it is there then."""
    put = old_push(server, outcome)
    _, refused = server.push(put, max_size=1, again=1)
    ack(server, server.claim().only)
    outcomes, decided = server.push(put, max_size=1, again=again)
    assert outcomes == ["+"]
    assert decided["a"].record.state is State.QUEUED
    contents = server.contents()
    assert (contents.homes("a"), contents.payloads) == ({"ready"}, {"a": b"a"})
    assert contents.faults == []
    assert decided["a"].record.version > refused["a"].record.version
    server.reset()
    server.apply(refused["a"].apply())
    server.apply(decided["a"].apply(b"a"), payloads=True)
    assert server.claim().handed == {"a": b"a"}
    assert server.contents().faults == [], "a follower has it from its tombstone back into every index"


# -- an id that was used before ------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [ack, cancel])
@pytest.mark.parametrize(("age_ms", "outcome"), [(2 * WINDOW_MS - 60_000, "D"), (2 * WINDOW_MS + 60_000, "+")])
def test_tombstone_is_remembered_for_twice_the_put_window(
    server: OneServer, end: End, age_ms: int, outcome: str
) -> None:
    """However long it lies there."""
    end(server, push_and_claim(server, keyed("a")))
    server.age("a", age_ms)
    buried = server.record("a")
    outcomes, decided = server.push(keyed("a")._replace(payload=b"again"))
    assert outcomes == [outcome]
    record = decided["a"].record
    assert record.state is (State.QUEUED if outcome == "+" else State.GONE)
    assert record.version == buried.version or outcome == "+"
    assert server.contents().faults == []
    if outcome == "+":
        assert record.version > buried.version
        assert record.attempts == 0
        assert server.claim().handed == {"a": b"again"}


def test_new_life_is_above_every_tombstone_that_was_named(server: OneServer) -> None:
    """Rule 1: where a server knows more of the former life than this one, its tombstone must not win."""
    _, decided = server.push(Put("a", above_n=7))
    assert decided["a"].record.version == Version(1, 8)
    ack(server, server.claim().only)
    server.age("a", 3 * WINDOW_MS)
    _, decided = server.push(Put("a", above_n=5))
    assert decided["a"].record.version == Version(1, 11)


@pytest.mark.parametrize("claimed", [False, True])
def test_item_that_is_there_is_raised_above_the_tombstones_of_others(server: OneServer, claimed: bool) -> None:
    """This server had dropped its own, so that it took the put; where one is left the item would be lost."""
    server.put("a")
    claim = server.claim().only if claimed else None
    _, decided = server.push(Put("a", above_n=7))
    record = decided["a"].record
    assert (record.version, record.state) == (Version(1, 8), State.CLAIMED if claimed else State.QUEUED)
    assert server.push(Put("a", above_n=7))[1]["a"].record == record, "once is enough"
    if claim:
        assert server.settle(claim.settle("ack")).outcomes == [1]
    assert server.contents().faults == []


def test_expired_tombstone_of_a_late_push_is_not_brought_back(server: OneServer) -> None:
    ack(server, push_and_claim(server, keyed("a")))
    server.age("a", 3 * WINDOW_MS)
    late = server.now_ms() - WINDOW_MS - 60_000
    assert server.push(keyed("a", pushed_at_ms=late))[0] == ["L"]
    assert server.record("a").state is State.GONE


@every_refusal
def test_same_id_twice_in_one_call_is_refused_twice(server: OneServer, outcome: str) -> None:
    put = old_push(server, outcome)
    outcomes, decided = server.push(put, put, max_size=1, again=1)
    assert outcomes == [outcome, outcome]
    assert set(decided) - {"first"} == {"a"}


def test_nothing_is_removed_that_is_taken(server: OneServer) -> None:
    outcomes, decided = server.push(keyed("a"), again=1)
    assert outcomes == ["+"]
    assert decided["a"].record.state is State.QUEUED


def test_repeated_push_is_decided_again_under_a_newer_epoch(server: OneServer) -> None:
    """Rule 5: a push is decided again at the new primary; a follower of the first one may be that."""
    _, first = server.push(keyed("a", delay_ms=LONG_MS))
    server.reset()
    server.apply(first["a"].apply(b"a"), payloads=True)
    outcomes, decided = server.push(keyed("a", delay_ms=LONG_MS), again=1, epoch=2)
    assert outcomes == ["K"]
    assert decided["a"].record.version == Version(2, 3)
    assert LONG_MS / 2 < decided["a"].left_ms <= LONG_MS
    assert server.contents().faults == []


# -- limits --------------------------------------------------------------------------------------------------------


def test_queue_takes_no_more_than_its_limit(server: OneServer) -> None:
    outcomes, decided = server.push(*(Put(f"i{n}") for n in range(5)), max_size=3)
    assert outcomes == ["+", "+", "+", "F", "F"]
    assert set(decided) == {"i0", "i1", "i2"}
    assert server.count() == (3, 0, 0, 0)
    assert push_one(server, Put("late"), max_size=3) == "F"
    assert push_one(server, Put("late"), max_size=4) == "+"


def test_ready_scheduled_and_claimed_items_count(server: OneServer) -> None:
    put_and_claim(server, "claimed")
    server.put(Put("scheduled", delay_ms=LONG_MS), "ready")
    assert push_one(server, Put("a"), max_size=3) == "F"
    assert push_one(server, Put("a"), max_size=4) == "+"


def test_neither_dead_letters_nor_tombstones_nor_a_pause_count(server: OneServer) -> None:
    bury(server, put_and_claim(server, "dead").only)
    ack(server, put_and_claim(server, "gone").only)
    server.pause()
    assert push_one(server, Put("a"), max_size=1) == "+"
    assert push_one(server, Put("b"), max_size=1) == "F"


def test_no_limit(server: OneServer) -> None:
    outcomes, _ = server.push(*(Put(f"i{n}") for n in range(500)), max_size=0)
    assert outcomes == ["+"] * 500


@pytest.mark.parametrize("end", [ack, bury, cancel])
def test_there_is_room_again(server: OneServer, end: End) -> None:
    end(server, push_and_claim(server, keyed("a")))
    assert push_one(server, keyed("b"), max_size=1) == "+"


def test_key_that_is_taken_is_said_also_where_the_queue_is_full(server: OneServer) -> None:
    """The item is there already: retrying would not help."""
    server.push(keyed("a"))
    assert push_one(server, keyed("b"), max_size=1) == "=a"


def test_known_item_is_there_also_where_the_queue_is_full(server: OneServer) -> None:
    server.push(Put("a"))
    assert push_one(server, Put("a"), max_size=1) == "K"


# -- late ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off_ms", [-WINDOW_MS - 1_000, WINDOW_MS + 60_000])
def test_push_beyond_the_window_is_refused_with_nothing_written(server: OneServer, off_ms: int) -> None:
    """Late puts: as in ``put``."""
    keys = server.key_names()
    assert push_one(server, keyed("a", pushed_at_ms=server.now_ms() + off_ms)) == "L"
    assert server.key_names() == keys


@pytest.mark.parametrize("off_ms", [-WINDOW_MS + 60_000, WINDOW_MS - 60_000])
def test_push_within_the_window_is_taken(server: OneServer, off_ms: int) -> None:
    assert push_one(server, keyed("a", pushed_at_ms=server.now_ms() + off_ms)) == "+"


def test_push_from_before_the_floor_is_refused(server: OneServer) -> None:
    """Tombstones: of a push older than the youngest tombstone that was dropped nobody knows any more."""
    floor_ms = server.now_ms() - 5_000
    server.command("HSET", server.key("lead"), "floor_ms", floor_ms)
    outcomes, _ = server.push(keyed("a", pushed_at_ms=floor_ms - 1), keyed("b", pushed_at_ms=floor_ms + 1))
    assert outcomes == ["L", "+"]


def test_late_push_in_a_batch_is_refused_alone_and_takes_no_key(server: OneServer) -> None:
    outcomes, _ = server.push(keyed("old", pushed_at_ms=0), keyed("a"))
    assert outcomes == ["L", "+"]
    assert set(server.contents().records) == {"a"}


def test_late_push_of_a_known_item_is_not_refused(server: OneServer) -> None:
    server.push(keyed("a"))
    assert push_one(server, keyed("a", pushed_at_ms=0)) == "K"


# -- on other servers --------------------------------------------------------------------------------------------------


def test_decided_push_is_the_followers_item(server: OneServer) -> None:
    """Decide, then apply: the payload goes with it; the key is taken there as well."""
    _, decided = server.push(keyed("a"))
    server.reset()
    assert server.apply(decided["a"].apply(b"a"), payloads=True) == ([], [])
    contents = server.contents()
    assert contents.records == {"a": decided["a"].record}
    assert (contents.payloads, contents.keys, contents.faults) == ({"a": b"a"}, {"k": {"a"}}, [])
    assert push_one(server, keyed("b"), epoch=2) == "=a"


@pytest.mark.parametrize("end", [ack, bury, cancel])
def test_key_is_free_on_a_follower_too(server: OneServer, end: End) -> None:
    """Whichever way the decisions come."""
    _, pushed = server.push(keyed("a"))
    end(server, server.claim().only)
    (ended,) = server.affirm("a").values()
    _, second = server.push(keyed("b"))
    steps = [pushed["a"].apply(b"a"), ended.apply(b"a"), second["b"].apply(b"b")]
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0), (2, 0, 1), (0, 2, 1), (1, 2, 0)):
        server.reset()
        for at in order:
            server.apply(steps[at], payloads=True)
        contents = server.contents()
        assert contents.keys == {"k": {"b"}}, order
        assert contents.faults == []


def test_removal_of_a_keyed_item_that_is_unknown_here(server: OneServer) -> None:
    """Rule 8: a tombstone tells no key; there is none to be freed."""
    server.push(keyed("b"))
    server.apply(Applied("a", packed_item(Version(1, 3), State.GONE, token="ann/1")))
    contents = server.contents()
    assert (contents.keys, contents.faults) == ({"k": {"b"}}, [])


def test_push_carried_on_gives_way_to_another_item_of_its_key(server: OneServer) -> None:
    """The scrub: an unfinished push whose key was given to somebody else meanwhile was never done: it is removed."""
    server.push(keyed("b"))
    pushed_at_ms = server.now_ms() - 3 * WINDOW_MS
    old = {key: packed_item(Version(0, 2), State.QUEUED, pushed_at_ms=pushed_at_ms, key=key) for key in ("k", "k2")}
    decided = server.forward(Applied("a", old["k"], 0, b"a"), Applied("c", old["k2"], 0, b"c"))
    assert {id: each.record.state for id, each in decided.items()} == {"a": State.GONE, "c": State.QUEUED}
    contents = server.contents()
    assert contents.keys == {"k": {"b"}, "k2": {"c"}}
    assert contents.faults == []


def test_two_pushes_of_one_key_are_not_both_carried_on(server: OneServer) -> None:
    old = packed_item(Version(1, 2), State.QUEUED, pushed_at_ms=server.now_ms() - 3 * WINDOW_MS, key="k")
    decided = server.forward(Applied("a", old, 0, b"a"), Applied("b", old, 0, b"b"))
    assert {id: each.record.state for id, each in decided.items()} == {"a": State.QUEUED, "b": State.GONE}
    assert server.contents().faults == []


# -- memory --------------------------------------------------------------------------------------------------------


def test_push_is_refused_when_memory_is_full(server: OneServer) -> None:
    """Memory pressure: it only adds."""
    server.push(keyed("a"))
    server.command("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(ScriptFailed, match=r"^OOM"):
            server.push(keyed("b"))
        ack(server, server.claim().only)
    finally:
        server.command("CONFIG", "SET", "maxmemory", 0)
    assert server.contents().faults == []
    assert push_one(server, keyed("b")) == "+"
