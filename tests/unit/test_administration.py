"""Administering queues, as far as no server is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.every import every
from zkrq.base.checks import MAX_DURATION
from zkrq.base.errors import ConfigError
from zkrq.base.limits import DEAD_LETTERS_MAX, DeadLetters
from zkrq.client.administration import Cancellation, _check_ids, _pages  # pyright: ignore[reportPrivateUsage]

# -- cancel --------------------------------------------------------------------------------------------------------


def test_cancellation_is_true_where_there_was_an_item() -> None:
    assert {outcome: bool(outcome) for outcome in Cancellation} == {
        Cancellation.REMOVED: True,
        Cancellation.SIGNALLED: True,
        Cancellation.NOT_FOUND: False,
    }


# -- pages ---------------------------------------------------------------------------------------------------------


PAGES: list[tuple[Sequence[str] | None, int, int, list[tuple[int, list[str]]]]] = [
    (None, 500, 0, []),
    (None, 500, 3, [(3, [])]),
    (None, 2, 5, [(2, []), (2, []), (1, [])]),
    (None, 2, 4, [(2, []), (2, [])]),
    ([], 500, 7, []),
    (["a"], 500, 0, [(1, ["a"])]),
    (["a", "b", "c"], 2, 0, [(2, ["a", "b"]), (1, ["c"])]),
    (("a", "b"), 1, 99, [(1, ["a"]), (1, ["b"])]),
]
"""Ids, how many to a page, how many dead letters there are; what comes of it."""


@every(("ids", "page", "dead", "expected"), PAGES)
def test_pages(ids: Sequence[str] | None, page: int, dead: int, expected: list[tuple[int, list[str]]]) -> None:
    """Where ids are given, these and no more; otherwise as many as there are now, so that it comes to an end."""
    assert [(count, list(some)) for count, some in _pages(ids, page, dead)] == expected


@given(st.lists(st.text("abc", min_size=1, max_size=3), max_size=30), st.integers(1, 9), st.integers(0, 99))
def test_pages_are_all_ids_in_order(ids: list[str], page: int, dead: int) -> None:
    pages = list(_pages(ids, page, dead))
    assert [id for _, some in pages for id in some] == ids
    assert all(count == len(some) <= page for count, some in pages)


def test_a_page_names_items_of_a_few_bundles() -> None:
    ids = [f"zkrq-1-2-{n:x}~{position:02x}" for n in range(30) for position in range(3)]
    pages = [list(some) for _, some in _pages(ids, 100, 0)]
    assert [id for some in pages for id in some] == ids
    assert [len(some) for some in pages] == [3 * 12, 3 * 12, 3 * 6]
    alone = [f"zkrq-1-2-{n:x}" for n in range(250)]
    assert [count for count, _ in _pages(alone, 100, 0)] == [100, 100, 50], "one item of each, which takes little"


@given(st.integers(1, 9), st.integers(0, 99))
def test_pages_of_all_are_as_many_as_there_are(page: int, dead: int) -> None:
    counts = [count for count, _ in _pages(None, page, dead)]
    assert sum(counts) == dead
    assert all(0 < count <= page for count in counts)


@every("bad", ["", " ", "a\n", "\x01pause", 7])
def test_bad_id_is_refused_before_the_first_page(bad: Any) -> None:
    with pytest.raises(ConfigError):
        _check_ids(["a", "b", bad])


# -- dead letters --------------------------------------------------------------------------------------------------


def test_what_a_queue_keeps_unless_it_is_told_otherwise() -> None:
    letters = DeadLetters()
    assert (letters.max_count, letters.max_age_ms, letters.expired) == (DEAD_LETTERS_MAX, 0, False)


@every(("age", "ms"), [(None, 0), (1, 1000), (0.0004, 1), (1.5, 1500), (timedelta(days=7), 604_800_000)])
def test_age_in_milliseconds(age: Any, ms: int) -> None:
    """0 is no limit: what was asked for is never that."""
    assert DeadLetters(max_age=age).max_age_ms == ms


@every("count", [0, -1, True, 1.5, "1"])
def test_bad_count(count: Any) -> None:
    with pytest.raises(ConfigError, match="max_count"):
        DeadLetters(max_count=count)


@every("age", [0, -1, math.nan, math.inf, MAX_DURATION * 1.01, "1", True, timedelta(0)])
def test_bad_age(age: Any) -> None:
    with pytest.raises(ConfigError, match="max_age"):
        DeadLetters(max_age=age)


def test_no_limits() -> None:
    letters = DeadLetters(max_count=None, max_age=None)
    assert (letters.max_count, letters.max_age_ms) == (None, 0)


def test_dead_letters_are_compared_by_what_they_say() -> None:
    """A queue that is opened twice must be asked for alike."""
    assert DeadLetters() == DeadLetters(DEAD_LETTERS_MAX)
    assert DeadLetters(expired=True) != DeadLetters()
    assert len({DeadLetters(1), DeadLetters(1)}) == 1
