"""The map of shards: what it says, how it changes, and where pushes go."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrq.protocol.shards import (
    FIRST,
    Entry,
    ShardMap,
    ShardName,
    ShardState,
    choose,
    closed,
    decode,
    drained,
    encode,
    ending,
    given_up,
    heard,
    home,
    joined,
    moves,
    opened,
    rejoined,
    removed,
    renewed,
    shard_of,
)

A, B, C = FIRST, ShardName("b"), ShardName("c")
TWO = opened(joined(ShardMap(), B, "views/b", "w"), B, "x")


def emptying(map: ShardMap, name: ShardName, now_ms: int, by: str) -> ShardMap:
    """Drain a shard, whose servers have heard of it."""
    return heard(drained(map, name, by), name, now_ms, by)


names = st.text("abcdefgh", min_size=1, max_size=3).map(ShardName)
entries = st.builds(Entry, st.sampled_from(ShardState), st.text(max_size=8), st.integers(0, 1 << 42))
maps = st.builds(
    ShardMap,
    st.integers(0, 9),
    st.dictionaries(names, entries).map(lambda shards: {**ShardMap().shards, **shards}),
    st.text(max_size=8),
)


def test_without_a_map_there_is_one_shard() -> None:
    assert decode(None) == ShardMap()
    assert decode(None).open == [FIRST]
    assert decode(None).number == 0


@given(maps)
def test_a_map_is_read_as_it_was_written(map: ShardMap) -> None:
    assert decode(encode(map)) == map


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"number":1,"shards":{},"nonce":""}',
        b'{"number":1,"shards":{"main":["broken","view",0]},"nonce":""}',
        b'{"number":1,"shards":{"main":"open"},"nonce":""}',
        b'{"number":1,"shards":{"b":["open","view",0]},"nonce":""}',
        b'{"shards":{"main":["open","view",0]},"nonce":""}',
        b"\xff",
    ],
)
def test_anything_else_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="holds no map of shards"):
        decode(data)


def test_the_life_of_a_shard() -> None:
    joining = joined(TWO, C, "views/c", "1")
    assert (joining.open, joining.shards[C].state) == ([B, A], ShardState.JOINING)
    three = opened(joining, C, "2")
    assert three.open == [B, C, A]
    draining = emptying(three, B, 1_000, "3")
    assert (draining.open, draining.shards[B].state) == ([C, A], ShardState.DRAINING)
    again = rejoined(closed(draining, B, ""), B, "")
    assert (again.open, again.shards[B].state) == ([C, A], ShardState.JOINING)
    assert emptying(again, B, 9_000, "").shards == draining.shards, "it has drained since then"
    assert opened(again, B, "").shards == three.shards
    with pytest.raises(ValueError, match="add it again"):
        opened(draining, B, "4")
    assert opened(rejoined(draining, B, ""), B, "4").shards == three.shards
    assert opened(drained(three, B, "3"), B, "4").shards == three.shards, "nobody had heard of it"
    gone = removed(closed(draining, B, "5"), B, "6")
    assert gone.shards == {name: entry for name, entry in three.shards.items() if name != B}
    numbers = [each.number for each in (ShardMap(), TWO, joining, three, draining, gone)]
    assert numbers == sorted(set(numbers))


def test_what_is_so_already_is_no_change() -> None:
    assert opened(TWO, B, "1") is TWO
    draining = emptying(TWO, B, 1_000, "1")
    assert emptying(draining, B, 2_000, "2") is draining
    assert joined(TWO, B, "views/other", "1") is TWO
    assert rejoined(TWO, B, "1") is TWO


def test_a_shard_is_new_until_it_is_opened_and_items_are_on_the_others() -> None:
    joining = joined(TWO, C, "views/c", "1")
    assert (joining.shards[C].is_new, list(joining.used)) == (True, [B, A])
    used = [opened(joining, C, "2")]
    used.append(emptying(used[-1], C, 1_000, "3"))
    used.append(closed(used[-1], C, "4"))
    used.append(rejoined(used[-1], C, "5"))
    for map in used:
        assert (map.shards[C].is_new, list(map.used)) == (False, [B, C, A])


def test_a_map_is_renewed_while_a_new_shard_joins() -> None:
    joining = joined(TWO, C, "views/c", "1")
    assert renewed(joining, "2") == ShardMap(joining.number, joining.shards, "2")
    assert renewed(TWO, "2") is TWO
    back = rejoined(closed(emptying(TWO, B, 1_000, "2"), B, "3"), B, "4")
    assert renewed(back, "5") is back


def test_only_a_shard_that_was_never_opened_is_given_up() -> None:
    joining = joined(TWO, C, "views/c", "1")
    back = rejoined(closed(emptying(opened(joining, C, "2"), C, 1_000, "3"), C, "4"), C, "5")
    assert given_up(back, C, "views/c", "6") is back
    assert given_up(joining, C, "views/c", "2").shards == TWO.shards
    assert given_up(joining, C, "views/another", "2") is joining
    assert given_up(TWO, B, "views/b", "2") is TWO
    assert given_up(TWO, C, "views/c", "2") is TWO


def test_a_shard_is_known_by_the_register_of_its_view() -> None:
    assert [TWO.shard_with(register) for register in ("view", "views/b", "views/c")] == [A, B, None]


def test_what_would_lose_items_is_refused() -> None:
    with pytest.raises(ValueError, match="only one that takes pushes"):
        drained(emptying(TWO, A, 1, "1"), B, "2")
    for map in (TWO, drained(TWO, B, "1"), joined(TWO, C, "views/c", "1")):
        with pytest.raises(ValueError, match="drain it first"):
            closed(map, C if C in map.shards else B, "2")
    removing = closed(emptying(TWO, B, 1_000, "1"), B, "2")
    for change in (opened, drained, partial(heard, now_ms=1)):
        with pytest.raises(ValueError, match="shard b is being removed"):
            change(removing, B, by="3")
    with pytest.raises(ValueError, match="replace its servers instead"):
        closed(emptying(TWO, A, 1, "1"), A, "2")
    for change in (opened, rejoined, drained, partial(heard, now_ms=1), closed, removed):
        with pytest.raises(ValueError, match="there is no shard 'c': there are b, main"):
            change(TWO, C, by="1")


def test_the_shards_of_the_hash_change_only_with_a_settling_map() -> None:
    """And no other change begins or ends there."""
    joining = joined(TWO, C, "views/c", "1")
    leaving = drained(TWO, B, "1")
    gone = heard(leaving, B, 1_000, "2")
    back = rejoined(gone, B, "3")
    shut = closed(gone, B, "3")
    assert [map.hashed for map in (TWO, joining, opened(joining, C, "2"))] == [[B, A], [B, A], [B, C, A]]
    assert [map.hashed for map in (leaving, gone, back, opened(back, B, "4"))] == [[B, A], [A], [A], [B, A]]
    assert [map.hashed for map in (shut, rejoined(shut, B, "4"), removed(shut, B, "5"))] == [[A], [A], [A]]
    settling = [TWO, joining, opened(joining, C, "2"), leaving, gone, back, shut, rejoined(shut, B, "4")]
    assert [map.is_settling for map in settling] == [False, True, False, True, False, True, False, True]
    queues = [f"queue-{number}" for number in range(100)]
    moved = [queue for queue in queues if moves(queue, leaving, gone)]
    assert moved == [queue for queue in queues if home(queue, [A, B]) == B]
    assert not any(moves(queue, TWO, joining) for queue in queues)
    with pytest.raises(ValueError, match="drain it again"):
        heard(back, B, 2_000, "5")


def test_ids_name_the_shard_that_they_were_placed_on() -> None:
    id = "zkrq-0199aabbccd-01234567-10"
    assert shard_of(id + ending(B)) == shard_of(f"{id}{ending(B)}~07") == B
    assert shard_of(id + ending(A)) == A
    assert shard_of(id) is None
    assert shard_of("an-id-of-the-user@b") is None
    assert shard_of("49151234567-20261123-ff@eu") is None


def test_a_new_shard_becomes_the_home_of_its_share_and_no_queue_moves_between_the_others() -> None:
    queues = [f"queue-{number}" for number in range(2_000)]
    before = {queue: home(queue, [A, B]) for queue in queues}
    after = {queue: home(queue, [A, B, C]) for queue in queues}
    assert {after[queue] for queue in queues if after[queue] != before[queue]} == {C}
    counts = Counter(after.values())
    assert all(500 < counts[name] < 850 for name in (A, B, C))


def test_of_two_the_one_with_less_under_way_is_chosen() -> None:
    chance = random.Random(1)
    load = Counter[ShardName]()
    for _ in range(900):
        load[choose([A, B, C], load.__getitem__, chance.randrange)] += 1
    assert max(load.values()) - min(load.values()) <= 4
    assert choose([A], load.__getitem__, chance.randrange) == A
    busy = {A: 1, B: 0}
    assert {choose([A, B], busy.__getitem__, chance.randrange) for _ in range(20)} == {B}
