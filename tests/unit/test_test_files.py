"""The files of tests: none is long, each of the units is named after what it tests, and helpers are no tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parent
ROOT = TESTS.parent
FILES = sorted(TESTS.rglob("*.py"))
MOST_LINES = 600

SUBJECTS = {
    "architecture": "pages of the design",
    "encryption": "zkrq.typed.Encrypted, also through the client",
    "house": "figures of the whole package",
    "imports": "the whole package",
    "loading": "what importing the package loads",
    "packaging": "pyproject.toml",
    "pages": "README and the documentation",
    "plugin": "zkrq.testing.plugin, in a run of pytest of its own",
    "program": "`zkrq worker` as a program",
    "reasons": "what zkrq.base.errors keeps of an exception",
    "reports": "what the benchmarks write into their pages",
    "test_files": "these files",
    "without_posix": "importing zkrq where it is Windows",
}
"""Units that are no module, or of which another name says more, by the file's name without ``test_``."""


def imported(path: Path) -> set[str]:
    """Modules that a file names in its imports, also those that it imports things of."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def names_of(path: Path) -> Iterator[str]:
    """Names that fit a test: its modules by themselves, and with the room that they are in."""
    for module in sorted(imported(path)):
        if is_module(module):
            *_, room, name = ["", *module.split(".")]
            yield from (name, room, f"{room}_{name}")


def test_no_file_is_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    long = {name: lines for name, lines in lengths.items() if lines > MOST_LINES}
    assert long == {}, f"more than {MOST_LINES} lines: split them by subject"


def test_no_test_is_imported_by_others() -> None:
    """What several files use is a helper, and stands in a module that has no tests."""
    users = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in FILES
        for module in imported(path)
        if module.startswith("tests.") and is_module(module) and module.rpartition(".")[2].startswith("test_")
    }
    assert users == set()


def test_a_unit_is_named_after_a_module_that_its_test_imports() -> None:
    """``test_urls.py`` tests a module ``urls``, ``test_view_changes.py`` a part of ``view``, and
    ``test_serve_leases.py`` the module ``leases`` of the room ``serve``."""
    misleading = dict[str, str]()
    for path in HERE.glob("test_*.py"):
        name = path.stem.removeprefix("test_")
        fits = any(name == each or name.startswith(f"{each}_") for each in names_of(path) if each)
        if fits == (name in SUBJECTS):
            misleading[path.name] = "named after a module: leave it out of SUBJECTS" if fits else "name its module"
    assert misleading == {}
    assert {path.stem.removeprefix("test_") for path in HERE.glob("test_*.py")} >= SUBJECTS.keys()
