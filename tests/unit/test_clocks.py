"""Finding the wrong clock among clients and servers."""

from __future__ import annotations

from tests.every import every
from zkrq.protocol.clocks import CLOCK_BOUND, PUT_WINDOW, UNKNOWN, Clocks, Reading, compare, find_apart
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


HOUR = 3600.0


@every(
    ("ahead", "wrong", "client", "undecided"),
    [
        ({"a": 0.0, "b": CLOCK_BOUND, "c": -1.0}, "", 0.0, False),
        ({"a": 0.0, "b": CLOCK_BOUND + 0.1, "c": -1.0}, "b", 0.0, False),
        ({"a": 0.0, "b": -HOUR, "c": 0.0}, "b", 0.0, False),
        ({"a": HOUR, "b": HOUR + 1, "c": HOUR}, "", -HOUR, False),
        ({"a": HOUR, "b": HOUR, "c": HOUR, "d": 0.0}, "d", -HOUR, False),
        ({"a": HOUR, "b": HOUR, "c": 0.0}, "", 0.0, True),
        ({"a": 0.0, "b": HOUR}, "b", 0.0, False),
        ({"a": -HOUR, "b": HOUR}, "", 0.0, True),
        ({"a": HOUR, "b": HOUR}, "", -HOUR, False),
        ({"a": HOUR}, "", 0.0, True),
        ({}, "", 0.0, False),
    ],
)
def test_the_majority_of_the_clocks_is_right(
    ahead: dict[str, float], wrong: str, client: float, undecided: bool
) -> None:
    """The client's clock counts like that of a server; where no majority agrees, no clock is called wrong."""
    compared = compare({ServerId(id): seconds for id, seconds in ahead.items()})
    assert ("".join(compared.wrong), compared.client, compared.undecided) == (wrong, client, undecided)
    assert bool(compared.sentences) == any(compared.kind)


def test_what_is_said_of_clocks() -> None:
    a, b, c = map(ServerId, "abc")
    assert compare({a: 0.0, b: HOUR, c: 1.0}).sentences == (
        "server b: its clock is 3600.0 s ahead of the others': set it right (chrony, NTP)",
    )
    assert compare({a: HOUR, b: HOUR}).sentences == (
        "this client's clock is 3600.0 s behind the servers': set it right (chrony, NTP)",
    )
    assert compare({a: HOUR}).sentences == (
        "the clocks differ, and no majority agrees (a is 3600.0 s ahead of this client's): set them right",
    )


@every(
    ("ahead", "refusing"),
    [
        ({"a": 0.0, "b": PUT_WINDOW, "c": 0.0}, ""),
        ({"a": 0.0, "b": -PUT_WINDOW - 1, "c": 0.0}, "b"),
        ({"a": HOUR, "b": HOUR, "c": 0.0}, "ab"),
        ({"a": HOUR, "b": HOUR}, ""),
    ],
)
def test_servers_that_refuse_what_others_accept(ahead: dict[str, float], refusing: str) -> None:
    compared = compare({ServerId(id): seconds for id, seconds in ahead.items()})
    assert "".join(compared.refusing()) == refusing
    assert all(compared.refusing().values())


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
