"""``push`` in the place of others: a push replaces what waits under its key."""

from __future__ import annotations

import time

import pytest

from tests.lua.entries import WINDOW_MS, Applied, Decided, Put, packed_item
from tests.lua.one_server import OneServer, put_and_claim
from tests.lua.pushing import LONG_MS, keyed, push_one
from zkrq.protocol.records import REPLACED, State, Version


def replace(server: OneServer, put: Put, **options: int) -> tuple[str, dict[str, Decided]]:
    (outcome,), decided = server.push(put, replacing=1, **options)
    return outcome, decided


def test_both_change_places_in_one_decision(server: OneServer) -> None:
    server.push(keyed("a"))
    outcome, decided = replace(server, keyed("b"))
    assert outcome == "+a"
    assert (decided["a"].record.state, decided["b"].record.state) == (State.GONE, State.QUEUED)
    contents = server.contents()
    assert (contents.homes("b"), contents.keys, contents.faults) == ({"ready"}, {"k": {"b"}}, [])


def test_what_is_claimed_or_dead_is_not_replaced(server: OneServer) -> None:
    claim = put_and_claim(server, keyed("a"))
    assert replace(server, keyed("b"))[0] == "+"
    assert server.contents().keys == {"k": {"a", "b"}}
    server.settle(claim.only.settle("bury 0 bad"))
    assert replace(server, keyed("c"))[0] == "+b"
    assert server.contents().faults == []


def test_an_item_is_due_when_the_replaced_one_was_unless_it_is_delayed(server: OneServer) -> None:
    server.push(keyed("a"), Put("other"))
    replace(server, keyed("b"))
    assert [*server.claim(count=2).handed] == ["b", "other"]
    server.push(keyed("c", "delayed", delay_ms=LONG_MS))
    replace(server, keyed("d", "delayed"))
    assert server.contents().homes("d") == {"ready"}
    replace(server, keyed("e", "delayed", delay_ms=LONG_MS))
    assert server.contents().homes("e") == {"scheduled"}


SECOND_US = 1_000_000


def wait_us(decided: Decided) -> float:
    """How long an item waits from the decision about it."""
    return decided.bundle.due_us - decided.bundle.clock_us


def end_us(decided: Decided) -> float:
    """When an item is due at the latest."""
    (end,) = [row.deadline_us for row in decided.bundle.rows if row.owner.startswith(REPLACED)]
    return end


def test_an_item_that_is_replaced_with_a_delay_keeps_its_end(server: OneServer) -> None:
    _, decided = server.push(keyed("a", delay_ms=5_000, at_latest_ms=60_000))
    assert wait_us(decided["a"]) == 5 * SECOND_US
    assert end_us(decided["a"]) == decided["a"].bundle.clock_us + 60 * SECOND_US
    hasten_end(server, "a", 40)  # the first push was that long ago
    outcome, decided = replace(server, keyed("b", delay_ms=5_000, at_latest_ms=60_000))
    assert outcome == "+a"
    assert wait_us(decided["b"]) == 5 * SECOND_US
    outcome, decided = replace(server, keyed("c", delay_ms=50_000))
    assert outcome == "+b", "also without an end of its own"
    assert decided["c"].bundle.due_us == end_us(decided["c"])
    assert 0 < wait_us(decided["c"]) <= 20 * SECOND_US
    hasten_end(server, "c", 30)
    outcome, decided = replace(server, keyed("d", delay_ms=5_000, at_latest_ms=60_000))
    assert (outcome, decided.keys()) == ("+c", {"c", "d"})
    assert server.contents().homes("d") == {"ready"}
    assert replace(server, keyed("d", delay_ms=5_000, at_latest_ms=60_000))[0] == "Kc"
    assert server.claim().only.id == "d"
    outcome, decided = replace(server, keyed("e", delay_ms=5_000, at_latest_ms=60_000))
    assert outcome == "+", "what is claimed has no end for it"
    assert wait_us(decided["e"]) == 5 * SECOND_US
    assert server.contents().faults == []


def test_an_end_is_kept_over_a_claim_that_failed_and_by_another_primary(server: OneServer) -> None:
    decided = server.push(keyed("a", at_latest_ms=60_000))[1]["a"]
    for _ in range(3):  # more requests than an item of its own keeps rows for
        decided = server.settle(server.claim().only.settle("nack 0 ")).decided["a"]
    epoch = server.epoch
    server.reset()
    server.epoch = epoch + 1
    server.apply(decided.apply(b"A"), payloads=True)
    _, told = replace(server, keyed("b", delay_ms=90_000, at_latest_ms=90_000))
    assert 0 < wait_us(told["b"]) <= 60 * SECOND_US
    assert told["b"].bundle.due_us == end_us(told["b"])


def hasten_end(server: OneServer, id: str, seconds: int) -> None:
    """Have an item be pushed earlier, as far as its end goes."""
    server.change(id, lambda bundle: bundle._replace(rows=[
        row._replace(deadline_us=row.deadline_us - seconds * SECOND_US) if row.owner.startswith(REPLACED) else row
        for row in bundle.rows
    ]))  # fmt: skip


def test_a_repeated_push_names_what_it_replaced_whatever_became_of_it(server: OneServer) -> None:
    server.push(keyed("a"))
    replace(server, keyed("b"))
    for _ in range(3):  # more requests than an item of its own keeps rows for
        claim = server.claim().only
        outcome, decided = replace(server, keyed("b"))
        assert (outcome, decided.keys()) == ("Ka", {"a", "b"})
        server.settle(claim.settle("nack 0 "))
    server.settle(server.claim().only.settle("ack"))
    outcome, decided = replace(server, keyed("b"))
    assert (outcome, decided.keys()) == ("Da", {"a", "b"})
    assert server.contents().faults == []


def test_a_primary_that_has_the_new_item_removes_what_it_replaced(server: OneServer) -> None:
    """The one before died when it had decided both, and a claim had told the others of the new one alone."""
    old = keyed("a")
    server.push(old)
    replace(server, keyed("b"))
    claimed = server.claim().decided["b"]
    epoch = server.epoch
    server.reset()
    server.epoch = epoch + 1
    server.push(old)
    server.apply(claimed.apply(b"B"), payloads=True)
    outcome, decided = replace(server, keyed("b"))
    assert outcome == "Ka"
    assert decided["a"].record.state is State.GONE
    assert server.contents().keys == {"k": {"b"}}


def test_an_id_that_was_used_again_is_another_item(server: OneServer) -> None:
    server.push(keyed("a"))
    replace(server, keyed("b"))
    later = packed_item(Version(1, 9), State.QUEUED, pushed_at_ms=server.now_ms() + 2 * WINDOW_MS)
    server.apply(Applied("a", later, payload=b"A"), payloads=True)
    outcome, _ = replace(server, keyed("b"))
    assert outcome == "Ka"
    assert server.contents().homes("a") == {"ready"}


def test_as_many_are_replaced_as_one_item_can_name(server: OneServer) -> None:
    ids = [letter * 80 for letter in "abcd"]
    for id in ids:
        claim = put_and_claim(server, keyed(id))
        server.settle(claim.only.settle(f"nack {LONG_MS} "))
    outcome, _ = replace(server, keyed("z"))
    assert outcome == "+" + "\1".join(ids[:3])
    assert server.contents().keys == {"k": {ids[3], "z"}}


def test_the_earliest_of_several_moments_is_kept(server: OneServer) -> None:
    server.push(keyed("z"))
    claimed = server.claim()
    time.sleep(0.01)
    replace(server, keyed("a"))
    server.settle(claimed.only.settle("release"))
    moment_us = server.contents().moment_us("z")
    assert moment_us < server.contents().moment_us("a")
    assert replace(server, keyed("n"))[0] == "+a\1z"
    assert abs(server.contents().moment_us("n") - moment_us) < 1000


def test_the_same_id_twice_in_one_call_is_new_once(server: OneServer) -> None:
    server.push(keyed("old"))
    outcomes, _ = server.push(keyed("new"), keyed("new"), replacing=1)
    assert outcomes == ["+old", "Kold"]


def test_a_late_first_try_leaves_what_was_pushed_after_a_deletion(server: OneServer) -> None:
    server.push(keyed("old"))
    new = keyed("new", pushed_at_ms=server.now_ms())
    replace(server, new)
    server.settle(server.claim().only.settle("ack"))
    time.sleep(0.005)
    server.delete()
    time.sleep(0.005)
    assert push_one(server, Put("old", b"another", key="other")) == "+"
    replace(server, new)
    assert server.claim().ids == ["old"]


def third_of(server: OneServer) -> OneServer:
    return OneServer(server.host, server.port, database=2)


@pytest.mark.parametrize("why", ["late", "full"])
def test_a_refused_repetition_brings_back_what_was_replaced(server: OneServer, why: str) -> None:
    """The primary died when only the follower had heard of its decision; the next one refuses the repetition."""
    old, new = keyed("old"), keyed("new", pushed_at_ms=server.now_ms() - 200_000)
    with OneServer(server.host, server.port, database=1) as follower, third_of(server) as third:
        _, decided = server.push(old)
        for other in (follower, third):
            other.enrol()
            other.apply(*(each.apply(b"old") for each in decided.values()), payloads=True)
        for each in (server, third) if why == "full" else ():
            each.put("others", "of the queue")
        outcome, decided = replace(server, new)
        assert outcome == "+old"
        told = [each.apply(b"new" if each.id == "new" else b"") for each in decided.values()]
        follower.apply(*told, payloads=True)
        for other in (follower, third):
            other.epoch = 2
            other.seal(2)
        refusing = {"put_window_ms": 100_000} if why == "late" else {"max_size": 1}
        outcome, decided = replace(third, new, again=1, **refusing)
        assert outcome == ("L" if why == "late" else "F")
        follower.apply(*(each.apply() for each in decided.values()))
        assert follower.contents().living() == {"old"}
