"""Figures of the package as a whole, each with a bound: lower it when a change allows."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import zkrq

ROOT = Path(zkrq.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LONGEST_CHAIN = 19
LONGEST_FUNCTION = 60
MOST_PARAMETERS = 7
WITH_MORE_PARAMETERS = 7
"""Functions with more: ``connect``, ``found``, ``push`` and others with options for users."""
LOOSE_FILES = 10


def name_of(path: Path) -> str:
    return ".".join((ROOT.name, *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {name_of(path): path for path in FILES}


def imported(node: ast.AST) -> Iterator[str]:
    """Modules of the package that are imported at run time, also inside of functions."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Import(names):
            yield from (alias.name for alias in names if alias.name in MODULES)
        case ast.ImportFrom(module=str(source), names=names):
            for alias in names:
                each = f"{source}.{alias.name}"
                yield from (one for one in (each if each in MODULES else source,) if one in MODULES)
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from imported(child)


@cache
def imports() -> dict[str, set[str]]:
    return {name: set(imported(ast.parse(path.read_text()))) - {name} for name, path in MODULES.items()}


@cache
def chain(module: str) -> tuple[str, ...]:
    return (module, *max((chain(each) for each in sorted(imports()[module])), key=len, default=()))


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name}.{node.name}", node


def test_no_chain_of_imports_is_long() -> None:
    longest = max(map(chain, MODULES), key=len)
    assert len(longest) <= LONGEST_CHAIN, " > ".join(longest)


def test_functions_are_short_and_take_few_arguments() -> None:
    long, greedy = list[str](), list[str]()
    for name, node in functions():
        body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
        if body and (node.end_lineno or 0) - body[0].lineno + 1 > LONGEST_FUNCTION:
            long.append(name)
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if len([one for one in given if one.arg not in ("self", "cls")]) > MOST_PARAMETERS:
            greedy.append(name)
    assert long == []
    assert len(greedy) <= WITH_MORE_PARAMETERS, greedy


RETIRED = {
    "holder": "owner",
    "holders": "owners",
    "prefetcher": "supplier",
    "home_loop": "own_loop",
}
"""Words that had a second meaning, or a second word for it; see docs/design/words.md."""


def words_of(name: str) -> set[str]:
    return set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


def test_names_are_of_the_present_words() -> None:
    """One word per thing: names of Python and of the scripts."""
    found: dict[str, str] = {}
    for path in [*FILES, *sorted(ROOT.rglob("*.lua"))]:
        text = path.read_text()
        if path.suffix == ".lua":
            code = re.sub(r"--.*|'[^'\n]*'", "", text)
            names = set(re.findall(r"[A-Za-z_]\w*", code))
        else:
            tokens = tokenize.generate_tokens(io.StringIO(text).readline)
            names = {token.string for token in tokens if token.type == tokenize.NAME}
        found |= {name: str(path.relative_to(ROOT)) for name in names if words_of(name) & RETIRED.keys()}
    assert found == {}, RETIRED


def test_few_files_lie_loose_on_top() -> None:
    assert len(list(ROOT.glob("*.py"))) <= LOOSE_FILES
