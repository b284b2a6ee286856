"""Finding the wrong clock among clients and servers."""

from __future__ import annotations

from tests.every import every
from zkrq.protocol.clocks import UNKNOWN, Clocks, Reading, find_apart
from zkrq.protocol.view import Life, ServerId


@every(
    ("ahead", "says"),
    [
        ({"a": 0.0, "b": 5.0, "c": -5.0}, []),
        ({"a": 0.0, "b": 5.1, "c": 1.0}, ["b is 5.1 s ahead of this client's: it is b that differs from the others"]),
        (
            {"a": -60.0, "b": -61.0},
            [
                "a is 60.0 s behind this client's: it is this client that differs from the others",
                "b is 61.0 s behind this client's: it is this client that differs from the others",
            ],
        ),
        ({"a": 0.0, "b": 40.0, "c": 41.0}, ["b is 40.0 s ahead of this client's: one of the two clocks is wrong"] * 2),
        ({"a": 40.0}, ["a is 40.0 s ahead of this client's: one of the two clocks is wrong"]),
    ],
)
def test_the_odd_one_is_named(ahead: dict[str, float], says: list[str]) -> None:
    texts = find_apart({ServerId(id): seconds for id, seconds in ahead.items()}, 5.0)
    assert len(texts) == len(says)
    for text, expected in zip(texts, says, strict=True):
        kept = expected if len(set(says)) == len(says) else expected.rpartition(": ")[2]
        assert text.endswith(kept)


def test_a_clock_is_expected_to_go_on_from_when_it_was_read() -> None:
    """For each queue by itself, and for the life that was read."""
    clocks, server, life = Clocks(), ServerId("a"), Life("r1", "g1")
    first = Reading("r1", 500_000, 4.0)
    assert clocks.expected("jobs", server, life, 5.0, None) == UNKNOWN
    clocks.note("jobs", server, life, 1_000_000, 5.0)
    assert clocks.expected("jobs", server, life, 7.5, first) == (3_500_000, 3_500)
    assert clocks.expected("mail", server, life, 7.5, first) == (4_000_000, 3_500)
    assert clocks.expected("jobs", server, Life("r2", "g1"), 7.5, first) == UNKNOWN
    assert clocks.expected("jobs", ServerId("b"), life, 7.5, None) == UNKNOWN


def test_a_clock_that_was_not_read_for_a_queue_is_expected_to_go_on_from_its_first_reading() -> None:
    clocks, server, life = Clocks(), ServerId("a"), Life("r1", "g1")
    first = Reading("r1", 1_000_000, 5.0)
    clocks.note("mail", server, life, 9_000_000, 6.0)
    assert clocks.expected("jobs", server, life, 7.5, first) == (3_500_000, 2_500)
    assert clocks.expected("mail", server, life, 7.5, first) == (10_500_000, 2_500)
    assert clocks.expected("jobs", server, Life("r2", "g1"), 7.5, first) == UNKNOWN
