"""Find every next step that the product names: in its errors, in the rules of `zkrq doctor`, and in the
pages for operators.

A step is found by its form, so that a new one cannot be forgotten.  In the code: a text outside of docstrings with a
clause that begins with one of ``VERBS``, or with a command, an option, a variable or an extra to install.  In the
pages: a numbered step, a row of a table or an item of a list about troubles, and a line with a command.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.snippets import ROOT

SOURCE = ROOT / "zkrq"

VERBS = (
    "add|allow|ask|await|bind|bring|call|cancel|choose|clear|close|continue|correct|create|declare|delete|discard|drain|"
    "drop|empty|encode|end|enter|find|found|free|give|go|import|install|keep|leave|let|list|listen|look|make|move|name|"
    "open|pass|pop|provide|pull|push|put|raise|read|recover|redrive|register|release|remove|rename|repeat|replace|"
    "restart|restore|resume|retry|return|run|say|see|send|set|shorten|show|split|start|stop|synchronise|take|trust|try|"
    "unset|upgrade|use|wait|write"
)
"""With what a clause begins that tells the reader to do something."""

_CLAUSE = re.compile(rf"(?:^|[:;,.(] |\b(?:or|then|and|first) )(?:first )?(?:{VERBS})\b", re.IGNORECASE)
_NAMED = re.compile(r"`|\bzkrq [a-z]+ |ZKRQ_[A-Z]|redis-cli|=True|\(?--[a-z]|pip install|apt-get")

_NOT_SAID = {
    "Command",
    "Flag",
    "setting",
    "Field",
    "count",
    "start",
    "create_task",
    "supervise",
    "Variable",
    "compile",
    "Operation",
    "Parameter",
    "Section",
    "Record",
    "Failure",
    "_kept",
    "_on_claim",
    "_on_schedule",
}
"""Functions whose texts describe something, and are said in no trouble."""

_LEFT_OUT = ("serve/bodies.py", "cli/demo/", "testing/redis/", "cli/trying.py", "outbox/rows.py")
"""Files whose texts are descriptions of a schema, a story, errors of Redis, statements of SQL."""


class Step(NamedTuple):
    """A text with a next step, in which ``{}`` stands for what is filled in; ``file``: of ``zkrq`` or of ``docs``."""

    file: str
    line: int
    text: str


def _text_of(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            parts = (each.value if isinstance(each, ast.Constant) else "{}" for each in values)
            return "".join(map(str, parts))
        case _:
            return None


def _texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every text that may be said, with its line."""
    match node:
        case ast.Expr(value=ast.Constant()):  # a docstring
            return
        case ast.Assert():  # of a mistake in zkrq, after which no step helps
            return
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _NOT_SAID:
            return
        case _:
            pass
    if (text := _text_of(node)) is not None:
        yield getattr(node, "lineno", 0), text
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)


def steps_of_source() -> Iterator[Step]:
    """Yield every step that the code names; a text that stands in a file several times is one step."""
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE).as_posix()
        if file.startswith(_LEFT_OUT):
            continue
        seen: set[str] = set()
        for line, text in _texts(ast.parse(path.read_text())):
            if " " in text and text not in seen and (_CLAUSE.search(text) or _NAMED.search(text)):
                seen.add(text)
                yield Step(file, line, text)


PAGES = ("deploying.md", "observability.md", "operations.md", "shards.md", "upgrading.md")
"""Pages for operators who are in trouble, or about to change something."""

_ON_A_PAGE = re.compile(
    r"^\d+\. |^ {3,}(?:zkrq|systemctl) [a-z]|^\| `Zkrq|`zkrq \w+ \w+ [\w-]|`CONFIG SET|"
    r"`zkrq (?:servers|shards|damaged) \w"
)


def steps_of_pages() -> Iterator[Step]:
    """Yield every line of these pages that says what to run, to set or to do next.

    A row of a table without a first cell goes on with the row above, and is a part of that step.
    """
    for page in PAGES:
        found: list[Step] = []
        for number, line in enumerate((ROOT / "docs" / page).read_text().splitlines(), 1):
            in_table = page == "operations.md" and line.startswith(("| ", "- Look at ")) and "---" not in line
            if in_table and line.startswith("| |"):
                found[-1] = found[-1]._replace(text=f"{found[-1].text}\n{line}")
            elif in_table or _ON_A_PAGE.search(line):
                found.append(Step(page, number, line))
        yield from found


_COMMAND = re.compile(r"`(zkrq [^`{}]*)`|^ {3,}(zkrq [a-z-]+(?: .*?)?)(?:  +#.*)?$", re.MULTILINE)
"""A command as the code and the pages write it; with a colon after its name it is what a command prints."""


def commands() -> Iterator[Step]:
    """Yield every command line of zkrq that the code or any page names."""
    yield from (
        step._replace(text=match[1]) for step in steps_of_source() for match in re.finditer(_COMMAND, step.text)
    )
    for path in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"):
        text = path.read_text()
        for match in _COMMAND.finditer(text):
            yield Step(path.name, text.count("\n", 0, match.start()) + 1, match[1] or match[2])
