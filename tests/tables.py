"""Make the pages of the documentation that follow from the code: ``python -m tests.tables`` writes them.

:mod:`tests.unit.test_architecture` compares what is stored with what this makes.
"""

from __future__ import annotations

import ast
import re
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import zkrq

PACKAGE = Path(zkrq.__file__).parent
PAGE = PACKAGE.parent / "docs" / "design" / "bounds.md"
HEAD = """\
# Bounds

Every buffer, batch, retry and wait has a named bound.
`python -m tests.tables` makes this page from the constants of the code.
"""


class Bound(NamedTuple):
    room: str
    file: str
    name: str
    value: str
    meaning: str


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring on one line, as Markdown."""
    line = " ".join(text.split())
    return re.split(r"(?<=[.:;]) {1,2}(?=[A-Z])", line)[0].replace("``", "`").replace("|", "\\|")


def is_a_number(node: ast.expr) -> bool:
    """Tell whether an expression is a number, or arithmetic over numbers and other constants."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case ast.BinOp(left=left, right=right):
            return all(is_a_number(side) or isinstance(side, ast.Name) for side in (left, right))
        case ast.Tuple(elts=items):
            return bool(items) and all(map(is_a_number, items))
        case _:
            return False


def bounds_of(path: Path) -> list[Bound]:
    """Find the numeric constants of a module that have a docstring, or of a Lua file with a comment behind them."""
    text = path.read_text()
    room = path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else ""
    if path.suffix == ".lua":
        found = re.findall(r"^ *local ([A-Z_]+) = ([\d*+ /]+?) *-- (.*)$", text, re.MULTILINE)
        return [Bound(room, path.name, name, value, first_sentence(said)) for name, value, said in found]
    body = ast.parse(text).body
    bounds: list[Bound] = []
    for node, after in pairwise(body):
        match node, after:
            case (
                (
                    ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ),
                ast.Expr(value=ast.Constant(value=str(said))),
            ) if name.isupper() and not name.startswith("_") and is_a_number(value):
                bounds.append(Bound(room, path.name, name, ast.unparse(value), first_sentence(said)))
            case _:
                pass
    return bounds


def bounds() -> list[Bound]:
    """List every named bound of the package, room by room."""
    paths = sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")])
    return sorted((bound for path in paths for bound in bounds_of(path)), key=lambda bound: bound[:2])


def page() -> str:
    """Print the bounds as a table for each room."""
    text = HEAD
    for room, of_room in groupby(bounds(), lambda bound: bound.room):
        rows = "".join(f"| `{b.name}` | {b.value} | {b.meaning} | `{b.file}` |\n" for b in of_room)
        text += f"\n## zkrq/{room}\n| name | value | meaning | where |\n| --- | --- | --- | --- |\n{rows}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
