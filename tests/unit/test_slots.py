"""The division of a worker's slots among its queues."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.every import every
from zkrq.working.slots import Share, Slots, next_share


class Woken:
    """Note which queues were granted a slot, in order."""

    def __init__(self, slots: Slots, weights: tuple[float, ...]) -> None:
        self.names: list[str] = []
        self.shares = [slots.add(weight, lambda name=name: self.names.append(name)) for name, weight in _named(weights)]


def _named(weights: tuple[float, ...]) -> list[tuple[str, float]]:
    return list(zip("abcde", weights, strict=False))


@given(st.lists(st.tuples(st.floats(0.1, 10), st.integers(0, 20)), min_size=1, max_size=5), st.integers(0, 20))
def test_there_is_always_one_below_its_share(parts: list[tuple[float, int]], free: int) -> None:
    shares = [Share(weight, bool, occupied=occupied) for weight, occupied in parts]
    count = sum(share.occupied for share in shares) + free + 1
    chosen = next_share(shares, count)
    assert chosen.occupied <= count * chosen.weight / sum(share.weight for share in shares)


@every("count", [1, 2, 3, 5])
@every("weights", [(3, 1), (9, 1), (1, 1, 1)])
def test_in_the_long_run_parts_follow_the_weights(count: int, weights: tuple[float, ...]) -> None:
    """Slots are too few for whole shares; items take turns in ending, first in first out."""
    slots = Slots(count)
    shares = Woken(slots, weights).shares
    running, started = list[Share](), Counter[int]()
    for share in shares:
        slots.want(share, 10_000)
    for _ in range(1000):
        for index, share in enumerate(shares):
            for _ in range(slots.take(share, count)):
                started[index] += 1
                running.append(share)
        assert slots.free == 0
        slots.end(running.pop(0))
    for index, weight in enumerate(weights):
        assert started[index] / sum(started.values()) == pytest.approx(weight / sum(weights), rel=0.25)


def test_an_idle_queue_leaves_its_share_and_gets_it_back_as_slots_become_free() -> None:
    slots = Slots(4)
    woken = Woken(slots, (1, 1))
    one, two = woken.shares
    slots.want(one, 10)
    assert (slots.take(one, 10), slots.free) == (4, 0)
    slots.want(two, 10)
    assert slots.take(two, 10) == 0
    for _ in range(4):
        slots.end(one)
    assert (slots.take(one, 10), slots.take(two, 10)) == (2, 2)
    assert woken.names == ["a"] * 4 + ["b", "b", "a", "a"]


def test_what_a_queue_left_to_others_is_not_owed_to_it() -> None:
    """It was idle for a hundred items of the other one; then both take turns."""
    slots = Slots(1)
    woken = Woken(slots, (1, 1))
    one, two = woken.shares
    slots.want(one, 1000)
    for _ in range(100):
        slots.take(one, 1)
        slots.end(one)
    slots.want(two, 1000)
    woken.names.clear()
    for _ in range(10):
        slots.end(one if slots.take(one, 1) else two)
        slots.take(two, 1)
    assert Counter(woken.names)["b"] <= 6


def test_slots_that_are_given_back_go_to_others() -> None:
    slots = Slots(3)
    one, two = Woken(slots, (1, 1)).shares
    slots.want(one, 3)
    slots.want(two, 3)
    assert slots.take(one, 2) == 2
    slots.leave(one, unused=1)
    assert (slots.take(one, 3), slots.take(two, 3)) == (0, 2)
    slots.end(one)
    assert slots.take(two, 3) == 1


@given(st.data())
def test_slots_are_neither_lost_nor_given_twice(data: st.DataObject) -> None:
    slots = Slots(data.draw(st.integers(1, 6)))
    shares = Woken(slots, tuple(data.draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=1, max_size=3)))).shares
    running = dict.fromkeys(range(len(shares)), 0)
    for _ in range(data.draw(st.integers(1, 40))):
        index = data.draw(st.integers(0, len(shares) - 1))
        share = shares[index]
        match data.draw(st.sampled_from(["want", "take", "leave", "end"])):
            case "want":
                slots.want(share, data.draw(st.integers(0, 8)))
            case "take":
                running[index] += slots.take(share, data.draw(st.integers(1, 4)))
            case "leave":
                unused = data.draw(st.integers(0, running[index]))
                running[index] -= unused
                slots.leave(share, unused)
            case _ if running[index]:
                running[index] -= 1
                slots.end(share)
            case _:
                pass
        granted = sum(share.granted for share in shares)
        assert slots.free + granted + sum(running.values()) == slots.count
        assert slots.free >= 0
        wanting = any(share.wanted > share.granted for share in shares)
        assert not (slots.free and wanting), "a free slot is granted immediately"
