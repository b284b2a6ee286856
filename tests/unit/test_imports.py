"""The imports of the package have no cycle, and its protocol imports neither I/O nor clock nor chance.

An import counts wherever it stands: for types only, inside a function, or by name (``import_module("zkrq.x")``).
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

import zkrq

ROOT = Path(zkrq.__file__).parent

PURE = {
    "contextlib",
    "__future__",
    "abc",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "importlib",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "string",
    "struct",
    "types",
    "typing",
}
"""Parts of the standard library without I/O, event loop, clock or chance; ``importlib`` reads the scripts' files."""


def _modules(root: Path) -> dict[str, Path]:
    """Name every module of the package; a folder is the module of its ``__init__.py``."""
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*.py")):
        parts = (root.name, *path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def _imported(path: Path, module: str) -> frozenset[str]:
    """Return the dotted name of everything that a module imports: ``a.b`` for ``from a import b``."""
    return frozenset(_imports(path, module))


def _imports(path: Path, module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(source, names, level):
                base = module if path.name == "__init__.py" else module.rpartition(".")[0]
                origin = resolve_name("." * level + (source or ""), base)
                yield from (f"{origin}.{alias.name}" for alias in names)
            case ast.Call(
                ast.Name("import_module") | ast.Attribute(attr="import_module"), [ast.Constant(str(name)), *_]
            ):
                yield name
            case _:
                pass


def _graph(root: Path) -> dict[str, set[str]]:
    """Module -> the modules of the same package that it imports.

    ``from a import b`` is an import of the module ``a.b`` if there is one, otherwise of ``a``.
    """
    modules = _modules(root)
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        targets = (name if name in modules else name.rpartition(".")[0] for name in _imported(path, module))
        graph[module] = {target for target in targets if target in modules}
    return graph


def _cycle(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_imports_have_no_cycle() -> None:
    assert " -> ".join(reversed(_cycle(_graph(ROOT)))) == ""


FLOORS: Mapping[str, Collection[str]] = {
    "protocol": (),
    "base": ("protocol",),
    "operations": ("protocol", "base"),
    "coordination": ("protocol", "base"),
    "replication": ("protocol", "base", "coordination"),
    "repair": ("protocol", "base", "coordination", "replication"),
    "consuming": ("protocol", "base", "operations", "coordination", "replication"),
    "producing": ("protocol", "base", "operations", "coordination", "replication", "consuming"),
    "pool": ("protocol", "base", "consuming"),
    "working": ("protocol", "base", "consuming", "pool"),
    "local": ("base",),
    "client": (
        "protocol", "base", "operations", "coordination", "replication", "repair", "consuming", "producing", "pool",
        "working", "local",
    ),
}  # fmt: skip
"""Which rooms each room may import, besides itself, from the bottom up.

``producing`` uses the observers of ``consuming``, which see pushes as well as claims.  A module that lies loose in the
package has the name under which users import it, and stands above all of these, as every other room does.
"""

FACES = ("sync", "kombu", "outbox", "testing", "process", "serve", "cli", "top")
"""The rooms above: clients of the library like any other, each of which may import those before it, and modules on top.
"""


def _room(module: str) -> str:
    _, room, *_ = (*module.split("."), "top")
    return room if (ROOT / room).is_dir() else "top"


def _allowed(room: str) -> Collection[str]:
    return FLOORS[room] if room in FLOORS else {*FLOORS, *FACES[: FACES.index(room)], "top"}


def test_a_room_imports_what_is_below_it() -> None:
    arrows = {(module, target) for module, targets in _graph(ROOT).items() for target in targets}
    strange = {(a, b) for a, b in arrows if _room(a) != _room(b) and _room(b) not in _allowed(_room(a))}
    assert strange == set()


def test_what_is_on_top_is_what_users_import() -> None:
    names = {path.stem for path in ROOT.glob("*.py")}
    assert names == {"__init__", "__main__", "logs", "opentelemetry", "prometheus", "taskiq", "typed"}


def test_protocol_imports_itself_and_pure_parts_of_the_standard_library() -> None:
    """So it runs under any event loop, in virtual time, and under the model's scheduler."""
    modules = {name: path for name, path in _modules(ROOT).items() if f"{name}.".startswith("zkrq.protocol.")}
    assert len(modules) > 5
    for module, path in modules.items():
        for name in _imported(path, module):
            allowed = f"{name}.".startswith("zkrq.protocol.") or name.split(".")[0] in PURE
            assert allowed, f"{module} imports {name}"


def test_the_core_of_the_consumers_side_is_pure() -> None:
    """It decides by its arguments alone, so a test walks through all that may happen to it."""
    modules = {name: path for name, path in _modules(ROOT).items() if f"{name}.".startswith("zkrq.consuming.core.")}
    assert len(modules) > 1
    for module, path in modules.items():
        for name in _imported(path, module):
            is_own = f"{name}.".startswith(("zkrq.consuming.core.", "zkrq.protocol."))
            assert is_own or name.split(".")[0] in PURE, f"{module} imports {name}"


@pytest.mark.parametrize("driver", ["redis", "aiozk"])
def test_a_driver_is_imported_by_one_module(driver: str) -> None:
    """So nothing else depends on what it raises, or on what its next version changes."""
    modules = _modules(ROOT).items()
    using = {name for name, path in modules if any(f"{i}.".startswith(f"{driver}.") for i in _imported(path, name))}
    assert len(using) == 1, using


CALLERS = {
    "zkrq.replication.request": "sends typed calls",
    "tests.lua.one_server": "sends typed calls",
    "tests.model.twins": "sends typed calls",
    "tests.simulation.test_isolation": "calls scripts after one another, with words that are drawn by the headers",
    "tests.simulation.test_mini_redis_scripts": "compares two servers, on words that are drawn by the headers",
    "tests.unit.test_scripts": "checks the names of the keys",
}


def test_scripts_are_called_by_typed_calls_alone() -> None:
    """A script cannot be called without the names of its keys, and no other module asks for these."""
    everything = [ROOT, *(ROOT.parent / name for name in ("tests", "benchmarks", "examples"))]
    modules = {name: path for root in everything for name, path in _modules(root).items()}
    naming = {name: path for name, path in modules.items() if "script_keys" in path.read_text()}
    asking = {name for name, path in naming.items() if "zkrq.protocol.keys.script_keys" in _imported(path, name)}
    assert asking == CALLERS.keys()


CYCLES = {
    "plain": ("from pack import b", "from pack import a"),
    "types only": ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.b import B", "import pack.a"),
    "in a function": ("def f():\n    import pack.b", "from pack.a import f"),
    "by name": ("import importlib\nimportlib.import_module('pack.b')", "from pack import a"),
    "relative": ("from . import b", "from .a import f"),
    "through the package": ("from pack import B", ""),
}


@pytest.mark.parametrize("kind", CYCLES)
def test_cycle_is_found_wherever_the_import_stands(kind: str, tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    pack.mkdir()
    (pack / "__init__.py").write_text("from .a import f" if kind == "through the package" else "")
    for name, text in zip("ab", CYCLES[kind], strict=True):
        (pack / f"{name}.py").write_text(text)
    assert _cycle(_graph(pack))


def test_modules_that_do_not_import_each_other_are_no_cycle(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    (pack / "deep").mkdir(parents=True)
    (pack / "__init__.py").write_text("from pack.deep.a import A")
    (pack / "deep" / "__init__.py").write_text("")
    (pack / "deep" / "a.py").write_text("from ..b import B\nfrom . import c")
    (pack / "deep" / "c.py").write_text("import pack.b")
    (pack / "b.py").write_text("")
    assert _graph(pack) == {
        "pack": {"pack.deep.a"},
        "pack.deep": set(),
        "pack.deep.a": {"pack.b", "pack.deep.c"},
        "pack.deep.c": {"pack.b"},
        "pack.b": set(),
    }
