"""``tests.every``: no case is left out, and each that fails is named."""

from __future__ import annotations

import inspect

import anyio
import pytest

from tests.every import every


def test_all_cases_run_and_those_that_fail_are_named() -> None:
    seen: list[tuple[int, str, str]] = []

    @every(("number", "word"), [(1, "a"), (2, "b"), (3, "c")])
    def check(number: int, other: str, word: str) -> None:
        seen.append((number, word, other))
        assert number == 2

    with pytest.raises(ExceptionGroup, match="2 of 3 cases") as caught:
        check(other="x")
    assert seen == [(1, "a", "x"), (2, "b", "x"), (3, "c", "x")]
    assert [error.__notes__ for error in caught.value.exceptions] == [["number=1, word='a'"], ["number=3, word='c'"]]
    assert list(inspect.signature(check).parameters) == ["other"]


def test_cases_of_two_tables_are_all_combined() -> None:
    seen: list[int] = []

    @every("tens", (10, 20))
    @every("ones", (1, 2))
    def check(tens: int, ones: int) -> None:
        seen.append(tens + ones)

    check()
    assert seen == [11, 12, 21, 22]


@pytest.mark.anyio
@every("number", (1, 2))
async def test_coroutines_are_awaited(number: int) -> None:
    @every("other", (1, 2))
    async def check(other: int) -> None:
        await anyio.sleep(0)
        assert other == number

    with pytest.raises(ExceptionGroup, match="1 of 2 cases"):
        await check()


def test_no_cases_and_cases_that_do_not_fit_are_mistakes() -> None:
    def check(number: int) -> None: ...

    with pytest.raises(AssertionError, match="no cases"):
        every("number", [])
    with pytest.raises(AssertionError, match="does not take"):
        every("name", [1])(check)
