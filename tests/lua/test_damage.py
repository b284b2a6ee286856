"""Damaged entries: no script fails because of one, it stops no other, and it is mended or set aside."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lua.connection import ScriptFailed
from tests.lua.contents import LIMITS, PAUSE
from tests.lua.copying import SOURCE, TARGET, carried_out, copy, fill_every_key, place
from tests.lua.entries import BUNDLE, Applied, Put, joined, read_decided
from tests.lua.every_call import CALLS
from tests.lua.one_server import OneServer, put_and_claim
from zkrq.protocol import calls
from zkrq.protocol.copying import copy_items
from zkrq.protocol.records import State, Version, unpack, version_of

GARBAGE = struct.pack("<d", 0) + b"\xff\xfegarbage"


def damage(server: OneServer, name: str, field: bytes | str, value: bytes = GARBAGE) -> None:
    server.command("HSET", server.key(name), field, value)


def copied(server: OneServer, *ids: str) -> list[calls.Copied]:
    return list(server.ask(calls.Read(server.queue, ids)).items)


# -- fuzz ----------------------------------------------------------------------------------------------------------


def _mutated(value: bytes, rng: random.Random) -> bytes:
    """The same in one of the ways in which bytes go wrong."""
    match rng.randrange(6):
        case 0:
            return b""
        case 1:
            return value[: rng.randrange(len(value) + 1)]
        case 2:
            return rng.randbytes(rng.choice((1, 3, 30)))
        case 3:
            return value + rng.randbytes(rng.choice((1, 9)))
        case 4:
            return rng.choice((b"x", b"nan", b"-inf", b"1e999", b"\xff\xff\xff"))
        case _:
            at = rng.randrange(max(1, len(value)))
            return value[:at] + rng.randbytes(1 + rng.randrange(9)) + value[at + 1 :]


def _keys(server: OneServer) -> Iterator[tuple[bytes, bytes]]:
    for key in sorted(cast("list[bytes]", server.command("KEYS", server.key("*")))):
        yield key, cast("bytes", server.command("TYPE", key))


def _damage_one(server: OneServer, key: bytes, kind: bytes, rng: random.Random) -> str:
    """Damage one entry of a key; say how."""
    if kind == b"hash":
        fields = sorted(cast("list[bytes]", server.command("HKEYS", key)))
        field = rng.choice(fields)
        value = cast("bytes", server.command("HGET", key, field))
        if rng.randrange(4) == 0:
            server.command("HDEL", key, field)
            field = _mutated(field, rng)
        else:
            value = _mutated(value, rng)
        server.command("HSET", key, field, value)
        return f"{key!r} {field!r}: {value!r}"
    if kind == b"zset":
        entry, score = rng.choice(_scored(server, key))
        server.command("ZREM", key, entry)
        entry, score = (
            (_mutated(entry, rng), score) if rng.randrange(4) else (entry, rng.choice((b"-inf", b"inf", b"-5")))
        )
        server.command("ZADD", key, score, entry)
        return f"{key!r} {entry!r}: {score!r}"
    if kind == b"list":
        at = rng.randrange(cast("int", server.command("LLEN", key)))
        value = _mutated(cast("bytes", server.command("LINDEX", key, at)), rng)
        server.command("LSET", key, at, value)
        return f"{key!r} {at}: {value!r}"
    raise AssertionError(kind)


def _scored(server: OneServer, key: bytes) -> list[tuple[bytes, bytes]]:
    flat = cast("list[bytes]", server.command("ZRANGE", key, 0, -1, "WITHSCORES"))
    return list(zip(flat[::2], flat[1::2], strict=True))


def _filled(server: OneServer) -> None:
    server.reset()
    fill_every_key(server)
    server.put(Put("grouped", group="g"), Put("other", group="h"), Put("plain", priority=3))
    server.ask(calls.Declare(server.queue, "groups", "concurrency=2,rate=5/1000", "", False, ""))
    server.ask(calls.Declare(server.queue, "limits", "concurrency=50,rate=50/1000", "", False, ""))
    server.ask(calls.Declare(server.queue, "history", "keep=5", "", False, ""))
    server.ask(calls.Store(server.queue, [calls.StoredRow("kept", "call", "set 60000 2", b"text")]))
    server.claim("ann", 6)
    server.ask(calls.Wipe("nothing"))


@pytest.mark.parametrize("several", [1, 12])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # it is emptied for each
@given(seed=st.integers(0, 2**32))
def test_no_script_fails_because_of_something_that_is_damaged(server: OneServer, several: int, seed: int) -> None:
    rng = random.Random(seed)
    _filled(server)
    done = [_damage_one(server, *rng.choice(list(_keys(server))), rng) for _ in range(several)]
    every = [call for name, call in CALLS.items() if name not in ("wipe", "enrol", "forget", "seal")]
    rng.shuffle(every)
    ids = [id.decode() for id in cast("list[bytes]", server.command("HKEYS", server.key("records"))) if _is_text(id)]
    every += [calls.Read("q", ids), calls.Results("q", "waiter", ids), calls.Stored("q", "waiter", ids)]
    for call in every:
        try:
            server.answer(call, server.epoch)
            server.epoch += rng.randrange(2)
        except ScriptFailed as error:
            raise AssertionError(f"{call.script}: {error}; damaged: {done}") from error
    for item in server.ask(calls.Read("q", ids)).items:
        unpack(item.record)  # what a server calls readable, a client can read


def _is_text(id: bytes) -> bool:
    return calls.is_text(id)


@given(seed=st.integers(0, 2**32))
def test_a_client_reads_any_record_or_says_that_it_is_damaged(seed: int) -> None:
    from zkrq.protocol.payloads import join, split, split_payload, with_headers
    from zkrq.protocol.records import fresh

    rng = random.Random(seed)
    record = _mutated(fresh(3, 1_700_000_000_000, size=rng.choice((None, 2, 50)), group=rng.choice((None, "g"))), rng)
    payloads = _mutated(join([with_headers(b"item", {"a": "b"}), with_headers(b"item", {})]), rng)
    for read, value in ((unpack, record), (split, payloads), (split_payload, payloads)):
        with contextlib.suppress(ValueError):
            cast("Any", read)(value)
    calls.read_notes(payloads)
    calls.read_remains(payloads)


# -- reading and claiming ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["records", "payloads"])
def test_a_damaged_entry_stops_no_other(server: OneServer, part: str) -> None:
    """It stands before the others, and is neither handed out nor dropped."""
    server.put("bad", "good")
    damage(server, part, "bad", GARBAGE if part == "records" else b"\xff\xff\xff")
    assert server.claim("ann", 10).ids == ["good"]
    assert server.claim("ann", 10).next_ms != 0, "consumers would ask again and again"
    assert not server.peek("ready").found
    page = server.ask(calls.Page("q", calls.START, 100))
    assert page.damaged == [b"bad"]
    assert [item.id for item in page.items if item.payload] == [b"good"]
    assert server.ask(calls.Heads("q", calls.START, 100)).damaged == [b"bad"]
    without = server.ask(calls.Heads("q", calls.START, 100, checks=False))
    assert without.damaged == ([b"bad"] if part == "records" else []), "payloads are not read"
    assert server.statistics()[:4] == (1, 0, 1, 0), "it is counted until it is set aside"
    assert server.command("HEXISTS", server.key("records"), "bad") == 1


def test_an_old_push_with_damaged_payloads_is_not_taken_for_one_that_never_arrived(server: OneServer) -> None:
    server.put("old")
    damage(server, "payloads", "old", b"\xff\xff\xff")
    server.claim("ann", 1, put_window_ms=0)
    assert server.command("HEXISTS", server.key("records"), "old") == 1


def test_a_damaged_pause_or_limit_stops_nobody(server: OneServer) -> None:
    server.put("item")
    damage(server, "records", PAUSE)
    damage(server, "records", LIMITS)
    assert server.claim("ann", 1).ids == ["item"]
    server.statistics()


@pytest.mark.parametrize("field", ["queued", "claimed", "dead", "floor_ms", "begun", "line_us"])
def test_a_number_of_the_lead_that_is_none_is_counted_again(server: OneServer, field: str) -> None:
    server.put("a", "b", "c", Put("d", group="g"))
    server.claim("ann", 2)
    damage(server, "lead", field, b"x")
    server.put("e")
    server.statistics()
    server.ask(calls.RepairLines("q"))
    lead = server.command("HMGET", server.key("lead"), "queued", "claimed", "dead")
    if field in ("queued", "claimed", "dead"):
        assert lead == [b"3", b"2", b"0"]


# -- mending -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["records", "payloads"])
def test_it_is_mended_from_a_good_copy(server: OneServer, follower: OneServer, part: str) -> None:
    """The primary decides it again, above all that it may have decided before, and it is handed out."""
    server.put("bad", "good")
    copy(server, follower)
    damage(server, part, "bad", GARBAGE if part == "records" else b"\xff\xff\xff")
    server.claim("ann", 10)
    before = version_of(copied(follower, "bad")[0].record)
    (record,) = server.ask(calls.Mend("q", copied(follower, "bad"))).flat[1::4]
    assert version_of(record) > Version(before.epoch, before.n + (65_000 if part == "records" else 0))
    assert server.claim("bob", 10).ids == ["bad"]
    assert server.command("HMGET", server.key("lead"), "queued", "claimed") == [b"0", b"2"]


def agree_after_late_decisions(server: OneServer, follower: OneServer, seed: int) -> bool:
    """Decide about an item, damage it, mend it, and decide again; what was decided before reaches the follower late."""
    rng, late, told = random.Random(seed), list[Applied](), list[Applied]()
    server.reset()
    follower.command("FLUSHDB")
    follower.enrol()
    server.put("item")
    copy(server, follower)

    def decide(into: list[Applied]) -> None:
        claim = server.claim("ann", 1).only
        into.append(claim.apply())
        if rng.randrange(2):
            into.extend(each.apply() for each in server.settle(claim.settle("release")).decided.values())

    decide(late)
    follower.apply(*late[: (heard := rng.randrange(len(late)))])
    damage(server, "records", "item")
    (mended,) = read_decided(server.ask(calls.Mend("q", copied(follower, "item"))).flat).values()
    told.append(mended.apply())
    if mended.record.state is State.QUEUED:
        decide(told)
    late = late[heard:]
    while late or told:
        follower.apply((late if late and (not told or rng.randrange(2)) else told).pop(0))
    return copied(server, "item")[0].record == copied(follower, "item")[0].record


def test_a_late_decision_undoes_no_mending(server: OneServer, follower: OneServer) -> None:
    """A mended entry is decided anew, far above: with the next version alone, another record of it may be first."""
    assert all(agree_after_late_decisions(server, follower, seed) for seed in range(40))
    server.limits["MEND_STEP"] = 1
    assert not all(agree_after_late_decisions(server, follower, seed) for seed in range(40))


def test_what_is_not_damaged_is_not_mended(server: OneServer, follower: OneServer) -> None:
    """Nor by a call that comes late: the primary has decided since."""
    server.put("item")
    copy(server, follower)
    late = calls.Mend("q", copied(follower, "item"))
    damage(server, "records", "item")
    server.ask(late)
    server.claim("ann", 1)
    before = server.contents()
    assert not server.ask(late).flat
    assert server.contents() == before


def test_a_follower_takes_what_the_primary_knows(server: OneServer, follower: OneServer) -> None:
    server.put("one", "two")
    copy(server, follower)
    damage(follower, "records", "one")
    damage(follower, "payloads", "two", b"\xff\xff\xff")
    carried_out(copy_items(place(SOURCE), place(TARGET), "q", [b"one", b"two"]), source=server, target=follower)
    assert not follower.ask(calls.Page("q", calls.START, 100)).damaged
    assert follower.contents().living() == server.contents().living()
    assert follower.command("HGET", follower.key("lead"), "queued") == b"2"


def test_counts_of_a_group_are_right_after_mending(server: OneServer, follower: OneServer) -> None:
    """Otherwise a limit of the group would hold it back for ever."""
    server.ask(calls.Declare("q", "groups", "concurrency=1", "", False, ""))
    server.put(Put("a", group="g"), Put("b", group="g"))
    held = server.claim("ann", 1)
    copy(server, follower)
    damage(server, "records", "a")
    server.ask(calls.Mend("q", copied(follower, "a")))
    mended = server.ask(calls.Read("q", ["a"])).items[0].record
    token, version = held.only.record.token, calls_version(mended)
    server.ask(calls.Settle("q", 0, 0, [("a", b"\0\0", version, token, "ack")]))
    assert server.claim("bob", 1).ids == ["b"]


def calls_version(record: bytes) -> bytes:
    return record[1:9]


# -- setting aside -------------------------------------------------------------------------------------------------


def test_it_is_set_aside_with_all_that_is_left(server: OneServer) -> None:
    put_and_claim(server, "bad", "good")
    damage(server, "records", "bad")
    reply = server.ask(calls.SetAside("q", 1000, "why", [calls.Kept(b"bad", b""), calls.Kept(b"good", b"")]))
    assert [each.id for each in reply.kept] == [b"bad"]
    left = calls.read_remains(reply.kept[0].bytes)
    assert (left.at_ms, left.reason, left.record) == (1000, "why", GARBAGE[8:])
    assert left.payload == server_payload(server, "good", reply) or left.payload
    assert server.statistics().set_aside == 1
    assert server.command("HMGET", server.key("lead"), "queued", "claimed") == [b"0", b"1"]
    assert not server.ask(calls.Page("q", calls.START, 100)).damaged
    (head,) = server.ask(calls.Aside("q")).kept
    assert calls.read_remains(head.bytes)[:2] == (1000, "why")
    assert server.ask(calls.Aside("q", items=[b"bad"])).kept == reply.kept


def server_payload(server: OneServer, id: str, _: object) -> object:
    return server.command("HGET", server.key("payloads"), id)


def test_what_turns_up_is_mended_also_after_it_was_set_aside(server: OneServer, follower: OneServer) -> None:
    """A server that comes back may have the only good copy."""
    server.put("item")
    copy(server, follower)
    damage(server, "records", "item")
    server.ask(calls.SetAside("q", 1000, "why", [calls.Kept(b"item", b"")]))
    assert server.claim("ann", 1).ids == []
    server.ask(calls.Mend("q", copied(follower, "item")))
    assert server.statistics().set_aside == 0
    assert server.claim("ann", 1).ids == ["item"]


def test_no_more_is_set_aside_than_may_be(server: OneServer) -> None:
    server.limits["ASIDE_MAX"] = 2
    server.put(*(f"i{n}" for n in range(3)))
    for n in range(3):
        damage(server, "records", f"i{n}")
    reply = server.ask(calls.SetAside("q", 0, "why", [calls.Kept(b"i%d" % n, b"") for n in range(3)]))
    assert (len(reply.kept), reply.full) == (2, 1)
    assert server.ask(calls.Page("q", calls.START, 100)).damaged == [b"i2"]


def test_a_copy_of_the_queue_has_what_is_set_aside(server: OneServer, follower: OneServer) -> None:
    server.put("bad", "good")
    damage(server, "records", "bad")
    server.ask(calls.SetAside("q", 1000, "why", [calls.Kept(b"bad", b"")]))
    copy(server, follower)
    assert follower.ask(calls.Aside("q", items=[b"bad"])) == server.ask(calls.Aside("q", items=[b"bad"]))


def test_an_id_that_is_no_text_is_damaged(server: OneServer) -> None:
    """No client could settle it."""
    server.put("größe", "good")
    for name in ("records", "payloads"):
        value = cast("bytes", server.command("HGET", server.key(name), "good"))
        damage(server, name, b"\xff\xfe", value)
    assert server.ask(calls.Page("q", calls.START, 100)).damaged == [b"\xff\xfe"]
    assert server.claim("ann", 10).ids == ["größe", "good"]


def test_one_damaged_bundle_of_a_page_is_left_out_of_a_copy(server: OneServer, follower: OneServer) -> None:
    server.put(*(Put(f"i{n}") for n in range(5)), Put(BUNDLE, joined([b"", b""])))
    damage(server, "records", "i2")
    copy(server, follower)
    assert len(follower.contents().living()) >= 4
