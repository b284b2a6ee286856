"""The program behind docs/scale/figures.md agrees with what is known exactly."""

from __future__ import annotations

import math
import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from aiozk.protocol import GetChildren2Response

import zkrq
from benchmarks.scale import choices, life, sizes, subsets
from benchmarks.scale.__main__ import BOUNDS, FEW, PAGE, TOPICS, markers, most_clients
from benchmarks.scale.choices import Signal
from benchmarks.scale.requests import OWNERS_PAGE, Fleet
from zkrq.protocol.view import decode
from zkrq.repair.fencing import FOLLOWERS, MAX_STRETCH


@pytest.mark.parametrize("signal", [Signal.CHANCE, Signal.ALL])
def test_lines_are_as_long_as_theory_says(signal: Signal) -> None:
    """λ^i of M/M/1, λ^(2^i - 1) of the supermarket model."""
    load = 0.8
    powers = [2**i - 1 if signal is Signal.ALL else i for i in range(6)]
    found = choices.push([range(40)], 40, load=load, signal=signal, batches=25_000, seed=1)
    assert found.lines[:6] == pytest.approx([load**power for power in powers], abs=0.04)


def test_own_batches_tell_a_lone_client_everything_and_many_clients_nothing() -> None:
    def slow_seconds(clients: int, signal: Signal) -> float:
        return choices.push([range(20)] * clients, 20, load=0.8, signal=signal, batches=10_000, seed=2).slow_seconds

    assert slow_seconds(1, Signal.OWN) == pytest.approx(slow_seconds(1, Signal.ALL), rel=0.3)
    assert slow_seconds(10_000, Signal.OWN) == pytest.approx(slow_seconds(10_000, Signal.CHANCE), rel=0.1)
    assert slow_seconds(1, Signal.ALL) < 0.6 * slow_seconds(1, Signal.CHANCE)


def test_two_choices_give_a_new_shard_at_most_twice_its_part() -> None:
    def parts(policy: life.Policy) -> list[float]:
        return list(life.join(policy, shards=10, clients=50, waiting=1_000.0, seconds=2.0, seed=3))

    assert sum(parts(life.Policy.OWN)[4:]) / 4 == pytest.approx(1.0, abs=0.15)
    by_backlog = parts(life.Policy.BACKLOG)
    assert max(by_backlog) < 2.3
    assert max(by_backlog) == pytest.approx(2.0, abs=0.3)
    assert max(parts(life.Policy.LEAST)) > 3


def test_draining_lasts_as_long_as_the_last_handler() -> None:
    assert life.seconds_to_empty(0, consumed=1, handlers=3, handler_seconds=6.0) == pytest.approx(6 + 3 + 2)
    assert life.seconds_to_empty(500, consumed=100, handlers=0, handler_seconds=1.0) == 5.0
    assert life.seconds_to_remove(10.0) == 301.0
    assert life.seconds_to_remove(400.0, latest_item=500.0) == 500.0


def test_a_shard_without_clients_is_as_likely_as_it_is() -> None:
    assert subsets.likely_empty(3, 3, 1) == pytest.approx(3 * (2 / 3) ** 3)
    assert subsets.likely_empty(5, 10, 10) == 0.0
    assert subsets.at_most(2, 5, 0.3) == pytest.approx(sum(math.comb(5, n) * 0.3**n * 0.7 ** (5 - n) for n in range(3)))
    k = subsets.least_k(1_000, 100, risk=1e-6)
    assert subsets.likely_empty(1_000, 100, k) <= 1e-6 < subsets.likely_empty(1_000, 100, k - 1)
    assert subsets.even_k(1_000, 100, over=1.25, risk=1.0) == 1


def test_a_new_shard_takes_only_its_part_of_rendezvous_subsets() -> None:
    before, after = (subsets.rendezvous(range(200), range(shards), 4) for shards in (30, 31))
    for then, now in zip(before, after, strict=True):
        assert set(now) - set(then) <= {30}
    assert subsets.moved(before, after) == pytest.approx(1 / 31, rel=0.4)


def test_shards_that_are_dealt_out_have_as_many_clients_each() -> None:
    assert set(subsets.clients_of(subsets.deterministic(30, 20, 5), 20)) == {7, 8}
    assert set(subsets.clients_of(subsets.deterministic(40, 20, 5), 20)) == {10}
    drawn = subsets.drawn(40, 20, 5, random.Random(1))
    assert sum(subsets.clients_of(drawn, 20)) == 200
    assert all(len(set(chosen)) == 5 for chosen in drawn)


def test_views_and_lists_have_their_real_size() -> None:
    packed = sizes.view("shard-0001")
    assert len(decode(packed).members) == 3
    names = [sizes.OWNER] * 7
    body = struct.pack(">i", 7) + b"".join(struct.pack(">i", len(name)) + name.encode() for name in names) + bytes(68)
    response: Any = GetChildren2Response  # the stubs have what zkrq calls
    assert response.deserialize(body).children == names
    assert len(body) + sizes.FRAME_BYTES == sizes.children_reply(7)
    assert len(sizes.shard_map(11)) - len(sizes.shard_map(10)) == len('"shard-0010":"open",')


@pytest.mark.parametrize(
    ("clients", "looking"),
    [(1, 1), (FOLLOWERS + 1, FOLLOWERS + 1), (100, FOLLOWERS + 1), (6_001, 1 + 6_000 / MAX_STRETCH)],
)
def test_few_look_for_orphans(clients: int, looking: float) -> None:
    assert Fleet(1, clients, 1).looking == looking
    assert Fleet(1, clients, 1).looking_at_once == min(clients, FOLLOWERS + 1)


def test_the_square_of_the_clients() -> None:
    one, ten = Fleet(100, 1_000, 30), Fleet(100, 10_000, 3)
    assert ten.of_a_shard == one.of_a_shard == 300
    assert ten.all_lists == pytest.approx(100 * Fleet(100, 1_000, 3).all_lists, rel=0.02)
    few = Fleet(100, 10_000, 3, one_list=True, lookers=FEW)
    assert few.all_lists == ten.list_bytes * 2 * FEW
    assert Fleet(100, 10_000, 3, one_list=True).looks_for_orphans * 3 == pytest.approx(ten.looks_for_orphans)


def test_the_limits_of_one_shard_that_the_page_names() -> None:
    found = {name: most_clients(part, lambda clients: Fleet(1, clients, 1)) for name, part in BOUNDS.items()}
    assert min(found.values()) == found["ZooKeeper: a server is away"] == 4_000
    assert found["Redis: connections"] == 5_000
    assert found["ZooKeeper: a consumer comes"] == pytest.approx(6_000, rel=0.01)


def test_a_page_of_owners_is_what_the_script_says() -> None:
    text = (Path(zkrq.__file__).parent / "protocol" / "lua" / "owners.lua").read_text()
    found = re.search(r"local PAGE = (\d+)", text)
    assert found
    assert int(found[1]) == OWNERS_PAGE


def test_the_page_has_a_place_for_each_table() -> None:
    text = PAGE.read_text()
    for topic in TOPICS:
        begin, end = markers(topic.name)
        assert text.index(begin) + len(begin) + 10 < text.index(end), topic.name
