"""What is public stands in a list, and a change of it in the changelog; what is deprecated goes when it is due."""

from __future__ import annotations

from pathlib import Path

import pytest

import zkrq
from tests import surface
from zkrq.base import deprecation
from zkrq.base.deprecation import Deprecation, ZkrqDeprecated
from zkrq.base.version import __version__


def test_the_list_of_what_is_public_is_that_of_the_code() -> None:
    assert surface.NOW.read_text() == surface.surface(), "python -m tests.surface writes it anew"


def test_a_change_of_what_is_public_has_a_line_in_the_changelog() -> None:
    missing = surface.unexplained(surface.RELEASED.read_text(), surface.surface(), surface.notes())
    assert missing == set(), "write what changed for users into CHANGELOG.md, with these names as code"


def test_a_change_is_found_and_an_explained_one_is_not() -> None:
    before = "zkrq.a(x, y=1)\nzkrq.b\nzkrq.C.d()\n"
    now = "zkrq.a(x, y=2)\nzkrq.C.d()\nzkrq.C.e(f)\n"
    assert surface.changed(before, now) == {"a", "b", "e"}
    assert surface.unexplained(before, now, "`zkrq.a(y=2)` is new, `b` is gone, and so is e") == {"e"}
    assert surface.unexplained(before, now, "`await C.e(f)`, `b`, `a`") == set()


def test_signatures_have_no_types_and_no_addresses() -> None:
    lines = surface.surface().splitlines()
    (connect,) = (line for line in lines if line.startswith("zkrq.connect("))
    assert connect.startswith("zkrq.connect(redis=None, zookeeper=None, *, ")
    assert [line for line in lines if " at 0x" in line or "->" in line] == []
    assert "zkrq.Cancellation.REMOVED" in lines
    assert len(lines) > 300


def test_a_deprecated_name_works_and_warns_with_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = Deprecation("zkrq.Later", "zkrq.RetryLater", since="0.3")
    monkeypatch.setitem(deprecation.RENAMED, "Later", ("RetryLater", renamed))
    said = r"^zkrq\.Later is deprecated since zkrq 0\.3 and goes in 0\.5: use zkrq\.RetryLater$"
    with pytest.warns(ZkrqDeprecated, match=said) as caught:
        assert getattr(zkrq, "Later") is zkrq.RetryLater  # noqa: B009
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError):
        getattr(zkrq, "Never")  # noqa: B009


def test_it_is_due_two_releases_later() -> None:
    option = Deprecation("connect(owner=)", "connect(description=)", since="0.9")
    assert option.removed_in == "0.11"
    assert [option.is_due(version) for version in ("0.9.0", "0.10.3", "0.11.0", "1.0.0")] == [False, False, True, True]


def test_what_is_due_is_gone() -> None:
    every = [*deprecation.DEPRECATED, *(deprecation for _, deprecation in deprecation.RENAMED.values())]
    assert [each.old for each in every if each.is_due(__version__)] == []


def test_what_is_deprecated_is_listed() -> None:
    """Or it would never be due."""
    root = Path(zkrq.__file__).parent
    made = {str(path.relative_to(root)) for path in root.rglob("*.py") if " Deprecation(" in path.read_text()}
    assert made <= {"base/deprecation.py"}, "make it there, and put it into DEPRECATED or RENAMED"
    named = [each for each in vars(deprecation).values() if isinstance(each, Deprecation)]
    assert [each.old for each in named if each not in deprecation.DEPRECATED] == []
