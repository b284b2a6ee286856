"""``heads`` and ``compare``: the scrub finds what two servers know differently."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given

from tests.lua.contents import PAUSE, ids_of
from tests.lua.copying import HEAD, all_heads, copy, one_of_each
from tests.lua.entries import WINDOW_MS, Applied, packed_item
from tests.lua.one_server import OneServer, put_and_claim
from tests.lua.player import Pair, Step, histories
from zkrq.protocol.records import State, Version


def test_heads_are_how_the_records_begin(server: OneServer) -> None:
    one_of_each(server)
    assert all_heads(server) == {id: packed[:HEAD] for id, packed in server.contents().packed.items()}


def test_heads_leave_out_expired_tombstones(server: OneServer) -> None:
    """Servers drop them at different times: affirmed, they would never go.  A pause's own record never expires."""
    for id in ("fresh", "old"):
        server.settle(put_and_claim(server, id).only.settle("ack"))
    server.age("old", 3 * WINDOW_MS)
    server.pause()
    server.resume()
    server.age(PAUSE, 3 * WINDOW_MS)
    assert set(server.heads()[1]) == {"fresh", PAUSE}


def test_heads_of_many_items_come_in_pages(server: OneServer) -> None:
    ids = server.put_numbered(3_000)
    cursor, page = server.heads(count=500)
    assert cursor != b"0"
    assert 500 <= len(page) < 700
    assert set(all_heads(server)) == set(ids)


def test_copy_compares_equal(server: OneServer, other: OneServer) -> None:
    """Tombstones have no payload and are equal all the same."""
    one_of_each(server)
    copy(server, other)
    assert other.compare(all_heads(server)) == ([], [])
    assert server.compare(all_heads(other)) == ([], [])


@given(histories, histories)
def test_compare_finds_exactly_what_differs(pair: Pair, history: list[Step], another: list[Step]) -> None:
    for player, steps in zip(pair.reset(), (history, another), strict=True):
        player.play(steps)
    pair.agree_on_the_view()
    here, there = (server.contents() for server in pair)
    heads = all_heads(pair.two)
    unknown, different = pair.one.compare(heads) if heads else ([], [])
    ids = list(heads)
    assert {ids[position - 1] for position in unknown} == there.bundles.keys() - here.bundles.keys()
    lacking = here.living() - here.payloads.keys()
    assert {ids[position - 1] for position in different} == {
        id
        for id, bundle in here.bundles.items()
        if id in there.bundles and (bundle.version != there.bundles[id].version or lacking & {*ids_of(id, bundle)})
    }


Answers = tuple[list[int], list[int]]
"""Positions of what is unknown, and of what is known otherwise."""


def head(epoch: int, n: int) -> bytes:
    return packed_item(Version(epoch, n), State.QUEUED)[:HEAD]


COMPARED: list[tuple[dict[str, bytes], Answers]] = [
    ({"unknown": head(0, 1)}, ([1], [])),
    ({"ready": head(0, 1)}, ([], [])),
    ({"ready": head(1, 2)}, ([], [1])),  # newer there
    ({"claimed": head(0, 1)}, ([], [1])),  # newer here
    ({"claimed": head(1, 2)}, ([], [])),
    ({"gone": head(1, 3)}, ([], [])),
    ({"gone": head(1, 2)}, ([], [1])),
    ({"dead": head(1, 3)}, ([], [])),
    ({"ready": b""}, ([], [1])),
]


@pytest.mark.parametrize(("there", "answer"), COMPARED)
def test_compare(server: OneServer, there: Mapping[str, bytes], answer: Answers) -> None:
    one_of_each(server)
    assert server.compare(there) == answer


def test_compare_answers_by_position(server: OneServer) -> None:
    server.put("a", "b", "c")
    queued, dead = head(0, 1), head(1, 3)
    there = {"x": queued, "a": queued, "b": dead, "y": queued, "c": dead}
    assert server.compare(there) == ([1, 4], [3, 5])


@pytest.mark.parametrize("state", [State.QUEUED, State.CLAIMED, State.DEAD])
def test_lack_of_a_payload_is_a_difference(server: OneServer, state: State) -> None:
    """Rule 2: the item lives here, and could not be handed out."""
    server.apply(Applied("a", packed_item(Version(1, 2), state, token="ann/1"), 60_000))
    assert server.compare({"a": head(1, 2)}) == ([], [1])
    server.apply(Applied("a", packed_item(Version(1, 2), state, token="ann/1"), 60_000, b"p"), payloads=True)
    assert server.compare({"a": head(1, 2)}) == ([], [])


def test_comparing_changes_nothing(server: OneServer) -> None:
    one_of_each(server)
    before = server.contents()
    server.compare({"unknown": head(0, 1), "ready": b""})
    all_heads(server)
    assert server.contents() == before


def test_1000_heads_are_compared_at_once(server: OneServer) -> None:
    """A page may be larger than asked for."""
    server.put_numbered(1_000)
    heads = all_heads(server)
    assert server.compare(heads) == ([], [])
    server.reset()
    assert server.compare(heads) == (list(range(1, 1_001)), [])
