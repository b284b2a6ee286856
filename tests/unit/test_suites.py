"""Every test is in one suite, and every place of the table is one of a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import suites
from tests.every import every

FILES = sorted(path.relative_to(suites.HERE).as_posix() for path in suites.HERE.rglob("test_*.py"))
PLACES = {**suites.PLACES, **suites.read_slow()}


def texts(path: Path) -> str:
    """Read what the parameters of a folder's tests stand in, or those of a file of it."""
    return "\n".join(one.read_text() for one in (path if path.is_dir() else path.parent).rglob("*.py"))


@every("place", PLACES)
def test_every_place_exists(place: str) -> None:
    named, bracket, word = place.partition("[")
    file, colons, test = named.partition("::")
    path = suites.HERE / file
    assert path.exists()
    if colons:
        assert re.search(rf"^(async )?def {test}\(", path.read_text(), re.MULTILINE)
    if bracket:
        assert word.removesuffix("]") in texts(path)


def test_nothing_has_two_places() -> None:
    assert not suites.PLACES.keys() & suites.read_slow().keys()
    lines = [line for line in suites.SLOW.read_text().splitlines() if not line.startswith("#")]
    assert lines == sorted(set(lines))


def test_slow_tests_are_of_folders_that_are_quick_otherwise() -> None:
    for place, suite in suites.read_slow().items():
        assert suite in (suites.TEST, suites.CHECK)
        assert suites.PLACES[place.partition("/")[0]] == suites.QUICK


@every("file", FILES)
def test_no_test_is_in_no_suite(file: str) -> None:
    assert suites.suite(f"tests/{file}::test_anything") in suites.suites(file)
    for above in [*Path(file).parents][:-1]:
        assert suites.suites(file) <= suites.suites(above.as_posix())


def test_every_suite_but_the_long_one_has_a_test() -> None:
    assert suites.suites("") == frozenset(suites.RUNS) - {suites.LONG}


@pytest.mark.parametrize(
    ("test", "suite"),
    [
        ("a/test_b.py::test_c", "a"),
        ("tests/a/test_b.py::test_c", "a"),
        ("a/test_b.py::test_c[real]", "real a"),
        ("a/test_b.py::test_c[3-real-x/y::z[0]]", "real a"),
        ("a/test_b.py::test_c[unreal]", "a"),
        ("a/test_file.py::test_c", "file"),
        ("a/test_file.py::test_c[real]", "file"),
        ("a/test_file.py::test_c[other]", "other file"),
        ("a/test_file.py::test_d[other]", "test"),
        ("a/test_file.py::test_d_and_more", "file"),
        ("a/test_file.py::test_d[x-real]", "real test"),
        ("a/b/test_file.py::test_d", "a"),
    ],
)
def test_the_longest_place_wins(test: str, suite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {
        "a": "a",
        "a[real]": "real a",
        "a/test_file.py": "file",
        "a/test_file.py[other]": "other file",
        "a/test_file.py::test_d": "test",
        "a/test_file.py::test_d[real]": "real test",
    }
    monkeypatch.setattr(suites, "_places", places)
    assert suites.suite(test) == suite


def test_a_folder_that_has_no_place_is_an_error() -> None:
    with pytest.raises(LookupError, match="give it a place"):
        suites.suite("nowhere/test_a.py::test_b")
