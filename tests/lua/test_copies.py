"""The scripts of catch-up and recovery: one server's items are copied to another, whatever their history."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.lua.connection import ScriptFailed
from tests.lua.contents import Contents
from tests.lua.copying import SOURCE, STATES, all_heads, carried_out, copy, one_of_each, place, status
from tests.lua.entries import BUNDLE
from tests.lua.one_server import OneServer, put_and_claim
from tests.lua.player import Pair, Step, histories
from zkrq.protocol import calls
from zkrq.protocol.copying import queues_at
from zkrq.protocol.records import Bundle, State


def buried(contents: Contents) -> set[bytes]:
    """Version and id of every tombstone, without when it was removed."""
    return {entry[16:24] + entry[28:] for entry in contents.tombstones}


def stands_for(entry: bytes, bundles: Mapping[str, Bundle]) -> bool:
    """Whether a tombstone is that of the record that is there, and not of an earlier one of the id."""
    bundle = bundles[entry[8:].decode()]
    return not bundle.is_alive and bundle.version == (
        int.from_bytes(entry[:4], "little"),
        int.from_bytes(entry[4:8], "little"),
    )


def merged(one: Contents, two: Contents) -> dict[str, bytes]:
    """Per bundle the greatest version."""
    records = dict(one.packed)
    for id, packed in two.packed.items():
        if id not in records or two.bundles[id].version > one.bundles[id].version:
            records[id] = packed
    return records


@given(histories)
def test_copy_is_what_the_source_is(pair: Pair, history: list[Step]) -> None:
    """Catch-up (4): records with payloads and tombstones, indexes by state with the time that is left, the owners."""
    player, _ = pair.reset()
    player.play(history)
    pair.agree_on_the_view()
    began_us = pair.one.now_us()
    progress = [
        max(1, sum(state in "QRCDP" for state in bundle.states)) for bundle in pair.one.contents().bundles.values()
    ]
    assert copy(pair.one, pair.two) == sum(progress), "a tombstone counts as one"
    took_us = pair.two.now_us() - began_us
    source, target = pair.one.contents(), pair.two.contents()
    assert (target.packed, target.payloads, target.notes) == (source.packed, source.payloads, source.notes)
    assert sorted(target.faults) == sorted(source.faults)
    assert buried(target) == {entry for entry in buried(source) if stands_for(entry, source.bundles)}
    assert (target.keys, target.expiring.keys()) == (source.keys, source.expiring.keys())
    later = [moment_us(target, id) - moment_us(source, id) for id in source.living()]
    later += [abs(target.expiring[id]) - abs(at) for id, at in source.expiring.items()]
    assert all(0 <= us <= took_us for us in later), later
    assert max(later, default=0) - min(later, default=0) <= 2, "all count from the same time"
    assert_metadata_alike(pair.one, pair.two, took_us)


def moment_us(contents: Contents, id: str) -> float:
    """Of a claim, what the record says: a server that leads since then may give it longer."""
    record = contents.records[id]
    if record.state is not State.CLAIMED:
        return contents.moment_us(id)
    return record.deadline_us + contents.shifts[calls.bundle_and_position(id)[0]]


def assert_metadata_alike(one: OneServer, two: OneServer, apart_us: float) -> None:
    ours, theirs = one.metadata(), two.metadata()
    assert theirs.floor_ms == ours.floor_ms
    assert theirs.items <= ours.items, "a tombstone may have several entries where it was decided"
    assert {id: seq for id, (seq, _) in theirs.owners.items()} == {id: seq for id, (seq, _) in ours.owners.items()}
    for owner, (_, ago_ms) in ours.owners.items():
        there_ms = theirs.owners[owner][1]
        assert (there_ms < 0) == (ago_ms < 0)
        assert abs(there_ms - ago_ms) <= apart_us / 1000 + 100


@given(histories, histories)
@example(  # some items of a bundle were pushed again here, and all of them are there, by a greater version
    [Step("put", ("a",)), Step("push", (BUNDLE,), many=1)],
    [Step("put", (BUNDLE,)), Step("claim", owner="ann", ms=1, many=1)],
)
def test_copies_both_ways_give_the_greatest_versions(pair: Pair, history: list[Step], another: list[Step]) -> None:
    """Recovery: per item the greatest version wins, and a payload is had wherever anybody has it."""
    for player, steps in zip(pair.reset(), (history, another), strict=True):
        # One push, which both servers have: what is put twice under one id has the same delay.
        player.play([step._replace(ms=0) if step.name == "put" else step for step in steps])
    pair.agree_on_the_view()
    before = [server.contents() for server in pair]
    records = merged(*before)
    payloads = {**before[0].payloads, **before[1].payloads}
    known = [server.metadata() for server in pair]
    copy(pair.one, pair.two)
    copy(pair.two, pair.one)
    # A removed item's payload counts as well, once the copy from the other server has shown that the item lives: the
    # second copy carries what its source had left.
    left = [{**before[1].left_payloads, **before[0].left_payloads}, before[1].left_payloads]
    for server, own_left in zip(pair, left, strict=True):
        contents = server.contents()
        assert contents.packed == records
        living = contents.living()
        had = {**own_left, **payloads}
        assert contents.payloads == {id: payload for id, payload in had.items() if id in living}
        assert {fault for fault in contents.faults if "payload: None" not in fault} == set()
        metadata = server.metadata()
        assert metadata.floor_ms == max(each.floor_ms for each in known)
        assert {owner: seq for owner, (seq, _) in metadata.owners.items()} == {
            owner: max(each.owners.get(owner, (0, 0))[0] for each in known) for each in known for owner in each.owners
        }


@given(histories, st.integers(1, 3))
def test_copied_again_nothing_changes(pair: Pair, history: list[Step], times: int) -> None:
    """Rule 1: copying may be repeated, interrupted, and done twice at the same time."""
    player, _ = pair.reset()
    player.play(history)
    pair.agree_on_the_view()
    copy(pair.one, pair.two)
    before = pair.two.contents()
    for _ in range(times):
        copy(pair.one, pair.two)
    assert pair.two.contents() == before


def test_each_item_stands_in_the_copy_where_it_stood(server: OneServer, other: OneServer) -> None:
    one_of_each(server)
    assert copy(server, other) == len(STATES)
    contents = other.contents()
    assert {id: contents.homes(id) for id in STATES} == {"gone": set[str](), **{id: {id} for id in STATES[1:]}}
    assert contents.payloads == {"dead": b"D", "claimed": b"C", "ready": b"R", "scheduled": b"S"}
    assert contents.faults == []
    assert other.queues() == {"q"}


def test_copy_keeps_the_order(server: OneServer, other: OneServer) -> None:
    """Order: pages come in no order, and a batch of pushes lies microseconds apart."""
    ids = server.put_numbered(1_500)
    copy(server, other)
    assert [id for _ in range(6) for id in other.claim(count=250).ids] == ids


def test_copied_claim_is_its_holders(server: OneServer, other: OneServer) -> None:
    claim = put_and_claim(server, "a").only
    copy(server, other)
    assert other.claim("bob").ids == []
    assert other.settle(claim.settle("ack")).outcomes == [1]


def test_copied_removal_keeps_a_late_push_out(server: OneServer, other: OneServer) -> None:
    """Rule 8: catch-up copies tombstones."""
    server.settle(put_and_claim(server, "a").only.settle("ack"))
    copy(server, other)
    other.put("a")
    assert other.claim().ids == []


def test_copied_request_of_a_consumer_is_known(server: OneServer, other: OneServer) -> None:
    """Rule 6: repeated, it is given the same items; an earlier one is refused."""
    server.put("a", "b")
    claimed = server.claim("ann", 1, seq=7)
    copy(server, other)
    assert other.claim("ann", 1, seq=7).ids == claimed.ids
    assert status(lambda: other.claim("ann", 1, seq=6))[0] == "OUTDATED"
    assert other.claim("ann", 1, seq=8).ids == ["b"]


def test_waiting_consumers_hear_of_what_is_copied(server: OneServer, other: OneServer) -> None:
    server.put("a")
    with other.listen("here") as listener:
        other.claim(waiter="here")
        copy(server, other)
        assert listener.heard() == other.key("ready")


def test_queue_without_items_is_copied(server: OneServer, other: OneServer) -> None:
    """An empty queue has owners, and a name, too."""
    server.install(5, {"ann": (3, -1)})
    assert copy(server, other) == 0
    assert (other.queues(), other.owners()) == ({"q"}, {"ann"})


def test_names_of_queues_are_sorted(server: OneServer) -> None:
    for name in ("q2", "größe", "q10"):
        server.queue = name
        server.put("a")
    assert carried_out(queues_at(place(SOURCE)), source=server) == ["größe", "q10", "q2"]


def test_full_server_is_compared_copied_and_wiped(server: OneServer) -> None:
    """Memory pressure: nobody is evicted for it, and a full server may be one that is to be wiped."""
    one_of_each(server)
    server.command("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(ScriptFailed, match=r"^OOM"):
            server.put("a")
        assert set(server.page()[1].found) == set(server.read_some(*STATES).found) == set(STATES)
        assert server.compare(all_heads(server)) == ([], [])
        assert set(server.affirm("ready")) == {"ready"}
        server.install(1, {"bob": (1, 0)})
        server.reserve("one")
        server.enrol("g2", "g1", holding=1)
        server.wipe(generation="g2")
        assert server.key_names() == {"server"}
    finally:
        server.command("CONFIG", "SET", "maxmemory", 0)
