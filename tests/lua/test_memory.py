"""Memory and sizes: tombstones are dropped, nothing else remains, a full server drains, large calls work."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable
from importlib import resources
from itertools import count
from typing import cast

import pytest

from tests.lua.connection import ScriptFailed
from tests.lua.entries import LEASE_MS, Applied, Claimed, Put, packed_item
from tests.lua.one_server import OneServer, put_and_claim
from zkrq.protocol import calls
from zkrq.protocol.records import State, Version, fresh

FOLDER = resources.files("zkrq.protocol") / "lua"

WINDOW_MS = 150
"""So small that a test can let it pass."""

HOUR_MS = 3_600_000

THREE = 3 * (140 + 2 * len("b0") + len(packed_item(Version(1, 3), State.GONE, token="ann/1")))
"""Bytes of three tombstones."""

FREEING = ("ack", "nack", "bury", "release", "extend")


def ack(server: OneServer, id: str, window_ms: int = WINDOW_MS, *, trim: int = 1) -> None:
    """Remove a new item."""
    server.settle(put_and_claim(server, id).only.settle("ack"), put_window_ms=window_ms, trim=trim)


def wait_until_old() -> None:
    """Until twice the put window is over, on the server's clock."""
    time.sleep((2 * WINDOW_MS + 3) / 1000)


# -- tombstones ----------------------------------------------------------------------------------------------------


def test_tombstone_is_dropped_after_twice_the_put_window(server: OneServer) -> None:
    """Tombstones live twice as long as the put window."""
    ack(server, "old")
    wait_until_old()
    ack(server, "new")
    contents = server.contents()
    assert set(contents.records) == {"new"}
    assert len(contents.tombstones) == 1


@pytest.mark.parametrize(("windows", "kept"), [(0.9, True), (1.9, True), (2.1, False)])
def test_tombstones_live_twice_as_long_as_the_put_window(server: OneServer, windows: float, kept: bool) -> None:
    """Late puts: a put that is just within the window still meets the tombstone of an item that was fast."""
    window_ms = 60_000
    ack(server, "old", window_ms)
    (entry,) = server.contents().tombstones
    buried_ms = server.now_ms() - windows * window_ms
    server.command("LSET", server.key("tombstones"), 0, struct.pack("<dd", buried_ms, buried_ms) + entry[16:])
    ack(server, "new", window_ms)
    assert set(server.contents().records) == ({"old", "new"} if kept else {"new"})


def test_no_more_tombstones_than_the_limit(server: OneServer) -> None:
    """Bounded in memory: beyond the limit the oldest go early, and puts from before them are refused instead."""
    server.limits |= {"TOMBSTONES_BYTES": THREE, "LEAST_AGE_MS": 0}
    pushed_at_ms = server.now_ms() - 1
    for n in range(10):
        ack(server, f"i{n}", window_ms=60_000)
    contents = server.contents()
    assert set(contents.records) == {"i7", "i8", "i9"}
    assert len(contents.tombstones) == 3
    assert server.put(Put("i0", pushed_at_ms=pushed_at_ms)) == [1]


def bury(server: OneServer, count: int, *, age_ms: int, pushed_ago_ms: int) -> None:
    """Tombstones of some items, as if they had been pushed and removed so long ago."""
    for n in range(count):
        ack(server, f"b{n}", window_ms=HOUR_MS, trim=0)
    now_ms = server.now_ms()
    for at, entry in enumerate(server.contents().tombstones):
        aged = struct.pack("<dd", now_ms - age_ms, now_ms - pushed_ago_ms) + entry[16:]
        server.command("LSET", server.key("tombstones"), at, aged)


def remembered_ms(server: OneServer) -> int:
    return server.ask(calls.Trim(server.queue), put_window_ms=HOUR_MS).remembered_ms


def test_floor_is_what_was_pushed(server: OneServer) -> None:
    """However much is removed, a producer that is less late than the least age is not refused."""
    server.limits["TOMBSTONES_BYTES"] = THREE
    assert remembered_ms(server) == -1
    bury(server, 10, age_ms=90_000, pushed_ago_ms=100_000)
    assert server.trim(put_window_ms=HOUR_MS) == 7
    assert len(server.contents().tombstones) == 3
    now_ms = server.now_ms()
    late = [Put(f"p{ago}", pushed_at_ms=now_ms - ago) for ago in (30_000, 99_000, 110_000)]
    assert server.put(*late, put_window_ms=HOUR_MS) == [3]
    assert 90_000 <= remembered_ms(server) < 100_000


def test_young_tombstones_stay_whatever_they_take(server: OneServer) -> None:
    server.limits["TOMBSTONES_BYTES"] = THREE
    bury(server, 10, age_ms=50_000, pushed_ago_ms=100_000)
    assert server.trim(put_window_ms=HOUR_MS) == 0
    assert len(server.contents().tombstones) == 10
    assert remembered_ms(server) == -1


def test_producer_whose_clock_is_ahead_has_nobody_refused(server: OneServer) -> None:
    """Nor is its item forgotten, of which a push may still come."""
    server.limits["TOMBSTONES_BYTES"] = THREE
    bury(server, 10, age_ms=90_000, pushed_ago_ms=100_000)
    (first, *_) = server.contents().tombstones
    ahead = first[:8] + struct.pack("<d", server.now_ms() + 200_000) + first[16:]
    server.command("LSET", server.key("tombstones"), 0, ahead)
    assert server.trim(put_window_ms=HOUR_MS) == 7
    contents = server.contents()
    assert (len(contents.tombstones), contents.tombstones[-1]) == (3, ahead)
    assert contents.records["b0"].state is State.GONE
    assert server.put(Put("a", pushed_at_ms=server.now_ms() - 70_000), put_window_ms=HOUR_MS) == []
    assert contents.faults == []


def test_idle_queue_is_trimmed_page_by_page(server: OneServer) -> None:
    """Also of the payloads that a dead client has left."""
    server.limits["TRIM_MAX"] = 4
    bury(server, 10, age_ms=3 * HOUR_MS, pushed_ago_ms=3 * HOUR_MS)
    assert len(server.contents().left_payloads) == 10
    assert [server.trim(put_window_ms=HOUR_MS) for _ in range(4)] == [4, 4, 2, 0]
    assert server.key_names() == {"server", "queues", "owners", "lead"}


def test_claims_drop_old_tombstones_too(server: OneServer) -> None:
    """Bounded in memory: also where items only expire."""
    ack(server, "old", trim=0)
    server.put(Put("mortal", ttl_ms=1))
    wait_until_old()
    server.claim(put_window_ms=WINDOW_MS, trim=1)
    assert set(server.contents().records) == {"mortal"}


def test_nothing_is_dropped_while_told_not_to(server: OneServer) -> None:
    """Tombstones: not dropped while a learner exists."""
    ack(server, "old")
    wait_until_old()
    ack(server, "new", trim=0)
    assert set(server.contents().records) == {"old", "new"}


def test_apply_drops_old_tombstones_too(server: OneServer) -> None:
    """Followers get the removals by ``apply``, and drop them by their own clock."""

    def remove(id: str) -> None:
        gone = packed_item(Version(1, 3), State.GONE, token="ann/1")
        server.apply(Applied(id, gone), put_window_ms=WINDOW_MS, trim=1)

    remove("old")
    wait_until_old()
    remove("new")
    assert set(server.contents().records) == {"new"}


def test_dropping_leaves_a_later_life_of_the_id_alone(server: OneServer) -> None:
    """Tombstones: an entry names the version that it stands for."""
    ack(server, "a")
    ack(server, "b")
    alive = packed_item(Version(2, 1), State.DEAD)
    gone_again = packed_item(Version(2, 1), State.GONE, token="bob/1")
    server.apply(Applied("a", alive, 0, b"p"), payloads=True)
    wait_until_old()
    server.apply(Applied("b", gone_again))
    ack(server, "c")
    contents = server.contents()
    assert contents.packed["a"] == alive
    assert contents.packed["b"] == gone_again
    assert contents.faults == []
    wait_until_old()
    ack(server, "d")
    assert set(server.contents().records) == {"a", "d"}


def test_puts_from_before_a_dropped_tombstone_are_refused(server: OneServer) -> None:
    """Tombstones: a put older than the youngest that was dropped could revive its item."""
    pushed_at_ms = server.now_ms() - 1
    ack(server, "old")
    wait_until_old()
    ack(server, "new")
    assert server.put(Put("old", pushed_at_ms=pushed_at_ms)) == [1]
    assert server.put(Put("fresh", pushed_at_ms=server.now_ms())) == []


def test_dropping_keeps_up_with_removing(server: OneServer) -> None:
    """Bounded in memory: a call may drop twice as many as it adds."""
    for first in range(0, 300, 100):
        server.settle(*put_and_claim(server, *(f"i{first + n}" for n in range(100))).settle("ack"), trim=0)
    wait_until_old()
    for n in count():
        ack(server, f"late{n}")
        if cast("int", server.command("LLEN", server.key("tombstones"))) < 200:
            break
        assert n < 300, "each call drops more than it adds"


def test_only_tombstones_remain(server: OneServer) -> None:
    """Bounded in memory: after any number of items, what stays are tombstones and a fixed number of fields."""
    for cycle in range(20):
        ids = [f"c{cycle}-{n}" for n in range(20)]
        server.put(*ids)
        claimed = server.claim("ann", 20, waiter="ann")
        server.settle(*claimed.settle("ack"))
        server.cut(*ids)
    assert server.key_names() == {"server", "queues", "records", "tombstones", "owners", "lead"}
    contents = server.contents()
    assert len(contents.tombstones) == len(contents.records) == len(contents.ids(State.GONE)) == 400
    assert server.command("HLEN", server.key("owners")) == 1
    assert server.command("HLEN", server.key("lead")) == 4 + 3  # counters
    server.fence("ann")
    server.retire("ann")
    assert server.owners() == set()


def test_old_tombstones_leave_nothing(server: OneServer) -> None:
    """Bounded in memory: without a window every ack drops what was removed before."""
    for n in range(30):
        ack(server, f"i{n}", window_ms=0)
        time.sleep(0.002)  # the next one is pushed after what was dropped
    contents = server.contents()
    assert (contents.records, contents.tombstones, contents.left_payloads) == ({}, [], {})
    assert server.key_names() == {"server", "queues", "owners", "lead"}, "nor a payload that no client has dropped"


def test_clearing_drops_old_tombstones_too(server: OneServer) -> None:
    """Bounded in memory: also where nothing is ever acked."""
    ack(server, "old")
    wait_until_old()
    server.put("new")
    server.clear(1, put_window_ms=WINDOW_MS, trim=1)
    assert set(server.contents().records) == {"new"}


# -- out of memory -------------------------------------------------------------------------------------------------


def used_memory(server: OneServer) -> int:
    info = server.command("INFO", "memory")
    assert isinstance(info, bytes)
    match = re.search(rb"used_memory:(\d+)", info)
    assert match
    return int(match[1])


def fill(server: OneServer) -> None:
    """Let the server's memory be full; without the items that this put there would be room again."""
    server.put(*(Put(f"fill{n}", bytes(10_000)) for n in range(200)))
    server.command("CONFIG", "SET", "maxmemory", used_memory(server) - 500_000)


def test_full_server_refuses_puts_and_writes_nothing(server: OneServer) -> None:
    """Memory pressure is a refusal, not a failure: nothing happened, not even an epoch was adopted."""
    fill(server)
    before = server.contents()
    with pytest.raises(ScriptFailed, match=r"^OOM"):
        server.put("a", "b", epoch=2)
    assert server.contents() == before
    assert server.command("HGET", "{t}:server", "epoch") == b"1"
    server.command("CONFIG", "SET", "maxmemory", 0)
    assert server.put("a") == []


def test_full_server_goes_on_draining(server: OneServer) -> None:
    """Memory pressure: scripts that free memory are server ``allow-oom``, so that a full queue can drain."""
    server = server
    claims = put_and_claim(server, *FREEING).decided
    put_and_claim(server, "fenced", owner="bob")
    fill(server)
    server.epoch = 2
    assert server.settle(*(claims[verb].settle(verb, 60_000) for verb in FREEING)).outcomes == [1] * len(FREEING)
    assert set(server.fence("bob")) == {"fenced"}
    assert len(server.claim("eve", 3).handed) == 3
    assert server.apply(Applied("new", packed_item(Version(2, 1), State.GONE))) == ([], [])
    while cleared := server.clear(50):
        server.cut(*cleared)
    assert server.count() == (0, 0, 4, 1)
    assert server.put("room again") == []
    assert server.contents().faults == []


def test_view_may_change_while_memory_is_full(server: OneServer) -> None:
    """Memory pressure: nobody is evicted for it; an epoch can still be sealed, and all be read."""
    fill(server)
    server.seal(2)
    server.epoch = 2
    assert server.owners() == set()
    assert server.queues() == {"q"}
    assert server.count() == (200, 0, 0, 0)
    assert set(server.read("fill0")) == {"fill0"}


# -- large calls ---------------------------------------------------------------------------------------------------


def test_batches_of_500_work(server: OneServer) -> None:
    """Claims: Lua's ``unpack`` fails beyond some 4,000 results, and Redis does not undo half a script."""
    ids = server.put_numbered(500)

    def settle_all(claims: list[Claimed], verb: str, argument: int = 0) -> list[int]:
        return server.settle(*(each for some in claims for each in some.settle(verb, argument))).outcomes

    claims = [server.claim(count=250) for _ in range(2)]
    assert [id for some in claims for id in some.ids] == ids
    assert settle_all(claims, "extend", 60_000) == [1] * 500
    assert settle_all(claims, "nack") == [1] * 500
    claims = [server.claim(count=250) for _ in range(2)]
    assert settle_all(claims, "ack") == [1] * 500
    assert len(server.read(*ids)) == 500
    contents = server.contents()
    assert contents.ids(State.GONE) == set(ids)
    assert contents.faults == []


def test_claims_of_300_runs_work(server: OneServer) -> None:
    """Claims: items that are alone are capped at 300; with the most that expires and becomes due in the same call."""
    ids = server.put_numbered(600)
    server.claim("ann", 100, lease_ms=1)
    server.put(*(Put(f"due{n}", delay_ms=1) for n in range(100)))
    time.sleep(0.005)
    claimed = server.claim("bob", 1_000)
    assert len(claimed.handed) == len(claimed.decided) == 300
    assert claimed.ids == ids[:300]
    assert server.contents().faults == []


# -- bytes of a claim ----------------------------------------------------------------------------------------------

KIB = 1024


def put_large(server: OneServer, *sizes: int) -> list[str]:
    ids = [f"large{n}" for n in range(len(sizes))]
    server.put(*(Put(id, bytes(size)) for id, size in zip(ids, sizes, strict=True)))
    return ids


@pytest.mark.parametrize(
    ("sizes", "handed"),
    [
        ((600 * KIB, 600 * KIB, 10), 1),
        ((300 * KIB,) * 5, 3),
        ((1024 * KIB, 1), 1),
        ((3000 * KIB, 10), 1),
        ((0, 3000 * KIB, 10), 1),
        ((10,) * 50 + (3 * KIB,), 51),
    ],
)
def test_bytes_bound_a_claim(server: OneServer, sizes: tuple[int, ...], handed: int) -> None:
    """At least one item, of any size; the rest stays ready, and the client asks again immediately."""
    ids = put_large(server, *sizes)
    claimed = server.claim(count=100)
    assert claimed.ids == ids[:handed]
    assert claimed.next_ms == (0 if handed < len(sizes) else LEASE_MS)
    assert server.contents().homes(ids[-1]) == ({"ready"} if handed < len(sizes) else {"claimed"})
    assert server.contents().faults == []
    rest = 0
    while rest < len(sizes) - handed:
        rest += len(server.claim(count=100).handed)


def test_small_payloads_are_bounded_by_their_number() -> None:
    """Where all payloads are small, nobody looks at their sizes."""
    files = [(FOLDER / f"{name}.lua").read_text() for name in ("_claiming", "_record", "_sizes")]
    numbers = {name: int(number) for name, number in re.findall(r"local (\w+) = (\d+)", "".join(files))}
    assert numbers["CLAIM_MAX"] * numbers["LARGE"] <= numbers["BYTES_MAX"]


def asked_for_sizes(server: OneServer) -> int:
    """How often scripts have asked for the size of a payload."""
    told = cast("bytes", server.command("INFO", "commandstats"))
    found = re.search(rb"cmdstat_hstrlen:calls=(\d+)", told)
    return int(found[1]) if found else 0


def test_queue_of_small_payloads_pays_nothing(server: OneServer) -> None:
    before = asked_for_sizes(server)
    server.put(*(Put(f"i{n}", bytes(2000)) for n in range(200)), Put("bundle", [bytes(500)] * 100))
    assert len(server.claim(count=300).handed) == 300
    assert asked_for_sizes(server) == before


def test_large_payload_is_noted_however_it_comes(server: OneServer) -> None:
    """By a plain or a decided push, a copy, a late push, a push that is carried on."""
    large = bytes(700 * KIB)
    first, packed = Put("a", large), fresh(0, server.now_ms())
    ways: dict[str, Callable[[], object]] = {
        "put": lambda: server.put(first, Put("b", large)),
        "push": lambda: server.push(first, Put("b", large)),
        "copy": lambda: server.apply(Applied("a", packed, 0, large), Applied("b", packed, 0, large), payloads=True),
        "late push": lambda: (
            server.apply(Applied("a", packed), Applied("b", packed)),
            server.put(first, Put("b", large)),
        ),
        "carried on": lambda: server.forward(Applied("a", packed, 0, large), Applied("b", packed, 0, large)),
    }
    for way, come in ways.items():
        server.reset()
        come()
        assert len(server.claim().handed) == 1, way


def test_repeated_request_is_given_the_same_large_payloads(server: OneServer) -> None:
    put_large(server, *[400 * KIB] * 4)
    first = server.claim(seq=90)
    assert len(first.ids) == 2
    assert server.claim(seq=90).handed == first.handed


def test_rest_of_a_claim_wakes_another_waiter(server: OneServer) -> None:
    """And who was given a part is no waiter: its next request comes immediately."""
    with server.listen("bob") as bob:
        server.claim("bob", waiter="bob")
        server.fence("eve")
        server.command("ZADD", server.key("waiting"), server.now_ms(), "bob")
        put_large(server, *[700 * KIB] * 3)
        assert bob.heard() == server.key("ready")
        server.command("ZADD", server.key("waiting"), server.now_ms(), "bob")
        server.claim("ann", waiter="ann")
        assert bob.heard() == server.key("ready")
        assert "waiting" not in server.key_names()


def test_decisions_of_1000_are_applied_at_once(server: OneServer) -> None:
    """Decide, then apply: what one script decides, the other takes in one call."""
    server.put_numbered(1_000)
    decided = {
        id: each for owner in ("ann", "bob", "eve", "joe") for id, each in server.claim(owner, 250).decided.items()
    }
    server.reset()
    applied = server.apply(*(each.apply(each.id.encode()) for each in decided.values()), payloads=True)
    assert applied == ([], [])
    contents = server.contents()
    assert len(contents.ids(State.CLAIMED)) == 1_000
    assert contents.faults == []


def test_500_removals_are_decided_and_applied_at_once(server: OneServer) -> None:
    """Rule 8: clearing is bounded too."""
    server.put_numbered(500)
    removed = server.clear(500)
    assert len(removed) == 500
    server.reset()
    assert server.apply(*(each.apply() for each in removed.values()), trim=1) == ([], [])
    assert len(server.contents().tombstones) == 500
