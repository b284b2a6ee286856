"""What is loaded by ``import zkrq``: next to nothing, and by each public name what it needs.

Counted in modules, in an interpreter of its own, because a time depends on the machine.
"""

from __future__ import annotations

import ast
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import cast

import pytest

import zkrq

DRIVERS = {"redis", "hiredis", "aiozk"}
FACES = {"fastapi", "starlette", "uvicorn", "pydantic", "msgspec", "prometheus_client", "opentelemetry", "kombu"}
"""What is optional: servers of HTTP, codecs, metrics, frameworks."""

BASE = {"zkrq", "zkrq.base", "zkrq.base.version"}

BARE = 40
"""Modules that ``import zkrq`` may load in addition to those of the interpreter."""


def loaded_by(code: str) -> set[str]:
    """Return the modules that a fresh interpreter loads for this code, without those that it starts with."""
    before = "import sys; before = set(sys.modules)"
    after = "import json; print(json.dumps([*(set(sys.modules) - before)]))"
    program = f"{before}\n{code}\n{after}"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout.splitlines()[-1]))


def _packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_the_package_alone_loads_next_to_nothing() -> None:
    modules = loaded_by("import zkrq; zkrq.__version__; dir(zkrq)")
    assert {name for name in modules if name.startswith("zkrq")} == BASE
    assert len(modules) <= BARE, sorted(modules)


def test_an_error_is_loaded_without_the_client() -> None:
    """So a module that only catches errors or names a retry costs a program nothing more."""
    modules = loaded_by("from zkrq import Backoff, ClaimLost, Retry")
    assert _packages(modules) & (DRIVERS | FACES) == set()
    assert {name for name in modules if name.startswith("zkrq.client")} == set()


def test_redis_is_loaded_when_a_client_is_made() -> None:
    """redis-py loads as many modules as all of zkrq, and a cluster in this process needs none of them."""
    assert "redis" not in _packages(loaded_by("import zkrq; zkrq.connect; zkrq.Worker; zkrq.run"))
    assert "redis" in _packages(loaded_by("import zkrq; zkrq.connect(['redis://a'], 'b')"))


def test_everything_is_loaded_without_an_extra() -> None:
    modules = loaded_by("import inspect\nfrom zkrq import *\nimport zkrq\ninspect.getmembers(zkrq)")
    assert "zkrq.client.cluster" in modules
    faces = ("zkrq.kombu", "zkrq.opentelemetry", "zkrq.outbox", "zkrq.prometheus", "zkrq.serve", "zkrq.sync")
    assert {name for name in modules if name.startswith((*faces, "zkrq.testing"))} == set()
    assert _packages(modules) & (FACES | {"redis"}) == set()


def test_threads_that_ask_first_find_the_same() -> None:
    """In a fresh interpreter: all of them meet the names before these are loaded."""
    code = """
import threading, zkrq
from concurrent.futures import ThreadPoolExecutor
together = threading.Barrier(8)
def ask(number):
    together.wait()
    names = zkrq.__all__[number:] + zkrq.__all__[:number]  # each begins with another one
    return {name: id(getattr(zkrq, name)) for name in names}
with ThreadPoolExecutor(8) as threads:
    first, *others = threads.map(ask, range(0, 80, 10))
assert len(first) == len(zkrq.__all__) and all(other == first for other in others)
"""
    assert "zkrq.client.cluster" in loaded_by(code)


def test_the_version_is_told_without_loading_a_command() -> None:
    modules = loaded_by("from zkrq.cli import main; assert main(['--version']) == 0")
    assert {name for name in modules if name.startswith("zkrq")} == {*BASE, "zkrq.cli"}
    assert len(modules) <= BARE, sorted(modules)


@pytest.mark.parametrize("arguments", [["--help"], ["push", "--help"], ["serve", "--help"]])
def test_help_loads_neither_a_face_nor_redis(arguments: list[str]) -> None:
    modules = loaded_by(f"from zkrq.cli import main\ntry: main({arguments})\nexcept SystemExit: pass")
    assert "zkrq.cli.running" in modules
    assert _packages(modules) & (FACES | {"redis", "rich", "uvloop", "asyncpg", "lupa"}) == set()
    faces = ("zkrq.kombu", "zkrq.outbox", "zkrq.serve", "zkrq.sync", "zkrq.testing")
    assert {name for name in modules if name.startswith(faces)} == set()


def test_the_version_is_the_same_however_it_is_asked_for() -> None:
    def told(*program: str) -> str:
        return subprocess.run([sys.executable, *program], capture_output=True, text=True, check=True).stdout

    alone = told("-c", "import sys; from zkrq.cli import main; sys.exit(main(['--version']))")
    assert alone == told("-m", "zkrq", "--version") == f"zkrq {zkrq.__version__}\n"


def _imported_for_types() -> Iterator[tuple[str, str]]:
    """Name what pyright and editors see: a public name, and its module."""
    assert zkrq.__file__
    for node in ast.walk(ast.parse(Path(zkrq.__file__).read_text())):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("zkrq"):
                yield from ((alias.name, module) for alias in names)
            case _:
                pass


def test_the_names_their_types_and_their_modules_are_the_same() -> None:
    homes = {name: f"zkrq.{home}" for name, home in cast("Mapping[str, str]", vars(zkrq)["_HOMES"]).items()}
    modules = cast("frozenset[str]", vars(zkrq)["_MODULES"])
    typed = dict(_imported_for_types())
    internal = {"RENAMED", "__version__"}
    assert {name: home for name, home in typed.items() if home != "zkrq" and name not in internal} == homes
    assert {name for name, home in typed.items() if home == "zkrq"} == modules
    assert {*homes, "typed"} == set(zkrq.__all__)
    assert set(zkrq.__all__) <= set(dir(zkrq))


def test_a_public_name_is_what_its_module_has() -> None:
    for name, home in cast("Mapping[str, str]", vars(zkrq)["_HOMES"]).items():
        assert getattr(zkrq, name) is getattr(import_module(f"zkrq.{home}"), name)
        assert name in vars(zkrq), "it is asked for once"


def test_a_public_name_hides_no_module() -> None:
    """An import of a module ``zkrq.name`` would set the attribute ``name`` to that module."""
    assert zkrq.__file__
    beside = {path.stem for path in Path(zkrq.__file__).parent.iterdir()}
    assert beside & set(zkrq.__all__) == {"typed"}


@pytest.mark.parametrize("name", ["Retry", "ClaimLost", "Limits", "ItemState", "exponential"])
def test_a_public_name_is_pickled(name: str) -> None:
    # Of classes and functions that is identity; a Literal is made anew once typing has forgotten it.
    assert pickle.loads(pickle.dumps(getattr(zkrq, name))) == getattr(zkrq, name)


def test_a_name_that_a_test_replaced_is_back() -> None:
    present = zkrq.connect
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zkrq, "connect", None)
        assert zkrq.connect is None
    assert zkrq.connect is present
