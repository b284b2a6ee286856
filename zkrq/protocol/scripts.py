"""Load ``lua/``: one operation per file, each with a header that is its contract; all are functions of one library.

An operation is called a *script* here, as in all of zkrq: what a server executes as one step.  Its header is not a
comment beside the code, it *is* code: its KEYS and ARGV lines define names and the order in which keys and arguments
are sent, so neither can drift from the other::

    #!lua flags=allow-oom
    -- purpose: what it does
    -- KEYS: server records ...            variables of these names; keys.py knows what they stand for
    -- ARGV: epoch generation ... / id ... parameters, then what repeats, from index `first` on; durations end in _ms
    -- reply: STATUS value [value value; what they are of]; remark      every reply: its status, and what follows that
    -- writes: nothing                     it is also registered for clients that only look

In a reply, brackets are a list that repeats the values up to its semicolon.  A server's answer is checked against the
header before anything else reads it (replies.py).  An operation whose header has the reply NOTINSYNC is guarded by
_gate.lua.  Below the header is ordinary Lua, whose last function is ``operation``, with the arguments after epoch and
generation as its parameters.  ``-- body: name`` in place of all but the purpose registers another file's operation once
more, with flags of its own.  A list with a question mark behind it comes last, and not at all where it would be empty.

An operation that writes nothing makes a server adopt the epoch of its call nevertheless.  Clients that only look call a
second function of it, which adopts none and is flagged ``no-writes``: a server that refuses every write, as one with a
full disk does, executes it.

Files that begin with ``_`` are shared parts: what their ``local`` lines define is visible to all that follow.  The
library is the parts in the order of ``PARTS``, then the operations, each in a block of its own.  A server makes its
functions once and keeps them, so whatever a call assigns stands in _state.lua, which gives it a new value each time.

One call may be for several queues, each with keys and arguments of its own; then the arguments of each follow their
number, and the reply is a list of their replies, in which an error is one queue's alone (_execute.lua)::

    KEYS: keys of queue 1, keys of queue 2 ...    ARGV: epoch generation (number arguments) (number arguments) ...

A library is named by the hash of its text, and so are its functions, because their names are unique in a server: other
versions of zkrq have theirs beside it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import NamedTuple, cast

PARTS = (
    "state",
    "clock",
    "gate",
    "execute",
    "record",
    "entries",
    "bundle",
    "failures",
    "lead",
    "limits",
    "lease",
    "wake",
    "figures",
    "results",
    "scores",
    "endings",
    "groups",
    "notes",
    "flows",
    "index",
    "payloads",
    "owners",
    "housekeeping",
    "settling",
    "claiming",
    "damage",
    "cutting",
    "copies",
    "tombstones",
    "dead_letters",
    "taken",
    "totals",
    "calls",
    "claims",
    "itself",
    "sizes",
    "reply",
)
"""Shared parts, each before those that use it; those with many variables in a block of theirs come early, because Lua
allows 200 at a time."""

HASH_LENGTH = 12
"""Hexadecimal digits in the name of a library: enough for the few versions that meet on one server."""

_SHEBANG = "#!lua"
_STATUS = re.compile(r"[A-Z]+")
_VALUE = re.compile(r"\s+(?:\[([^];]*)[^]]*\](\?)?|(\w+))")
_HEADER_LINE = re.compile(r"^-- (purpose|KEYS|ARGV|reply|body|writes): (.*)$")

_KINDS = {
    **dict.fromkeys(("position", "n", "count", "age_us"), int),
    **dict.fromkeys(("owner", "queue", "id", "head", "report", "field"), bytes),
}
_CARRIED = {"outcome", "payload", "record", "state"}
"""Lists that contain one of these have one entry per item of the call: their elements are checked where they are
used."""


class Value(NamedTuple):
    """One value of a reply.

    ``width``: number of list elements that belong together, 0: not a list.  ``kinds``: the types of these elements,
    None for one that is not checked.  ``may_lack``: a list that is not there where it would be empty.
    """

    width: int
    kinds: tuple[type | None, ...] = ()
    may_lack: bool = False


Shape = tuple[Value, ...]
"""The values that follow a status."""


class Library(NamedTuple):
    """All operations as one text for FUNCTION LOAD, and its name."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Script:
    """One operation: the promises of its header, its own code, and its name for FCALL in its library.

    ``looking``: the name of its function for clients that only look, empty: there is none.
    """

    name: str
    purpose: str
    keys: tuple[str, ...]
    arguments: tuple[str, ...]
    repeated: tuple[str, ...]
    replies: Mapping[str, Shape]
    flags: tuple[str, ...]
    code: str
    writes: bool
    function: str
    looking: str
    library: Library

    @property
    def is_gated(self) -> bool:
        """Whether a server answers only in the life in which the view knows it."""
        return "NOTINSYNC" in self.replies


class _File(NamedTuple):
    """A file taken apart: flags of its first line, the header's fields, and the code."""

    flags: tuple[str, ...]
    header: Mapping[str, Sequence[str]]
    code: str


def _read(text: str) -> _File:
    lines = text.splitlines()
    shebang = lines.pop(0) if lines[0].startswith(_SHEBANG) else ""
    length = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    header: dict[str, list[str]] = {}
    for match in filter(None, map(_HEADER_LINE.match, lines[:length])):
        header.setdefault(match[1], []).append(match[2].strip())
    flags = tuple(filter(None, shebang.partition("flags=")[2].split(",")))
    return _File(flags, header, "\n".join(lines[length:]).strip("\n"))


def _reply(line: str) -> tuple[str, Shape]:
    """Read the status of a reply, and the values that follow it."""
    status = cast("re.Match[str]", _STATUS.match(line))
    values: list[Value] = []
    at = status.end()
    while value := _VALUE.match(line, at):
        at = value.end()
        listed = value[3] is None
        values.append(_listed(value[1].split())._replace(may_lack=bool(value[2])) if listed else Value(0))
    return status[0], tuple(values)


def _listed(names: Sequence[str]) -> Value:
    if not _CARRIED.isdisjoint(names):
        return Value(len(names))
    return Value(len(names), tuple(map(_KINDS.get, names)))


def _body_of(name: str, file: _File) -> str:
    """Return the name of the file that has the operation's contract and code."""
    return file.header.get("body", [name])[0]


def _script(name: str, files: Mapping[str, _File]) -> Script:
    """Read the contract of an operation; it is in no library yet."""
    own = files[name]
    shared = files[_body_of(name, own)]
    arguments, _, repeated = shared.header["ARGV"][0].partition("/")
    return Script(
        name=name,
        purpose=own.header["purpose"][0],
        keys=tuple(shared.header["KEYS"][0].split()),
        arguments=tuple(arguments.split()),
        repeated=tuple(repeated.split()),
        replies=dict(map(_reply, shared.header["reply"])),
        flags=own.flags,
        code=shared.code,
        writes="writes" not in own.header,
        function="",
        looking="",
        library=Library("", ""),
    )


# Lua fills a list of variables that is longer than its values with nil.  So the variables of keys that the operation
# does not declare come last, and forget what another operation has left in them.
_OPERATION = """
do
{code}

local function bind(KEYS, at)
  {bound} = {values}
end
{registered}
end"""

_REGISTERED = """redis.register_function{{function_name = 'zkrq_{name}_' .. HASH, flags = {{{flags}}},
  callback = function(KEYS, ARGV) return execute(operation, bind, {keys}, {arguments}, {gate}, KEYS, ARGV) end}}"""

_LOOK = "look_"
"""Begins the names of functions for clients that only look."""


def _block(scripts: Sequence[Script], every_key: Iterable[str]) -> str:
    """Write an operation, and register it under the names of these scripts, whose flags differ."""
    script = scripts[0]
    keys, values = script.keys, [f"KEYS[at + {number + 1}]" for number in range(len(script.keys))]
    functions = [(each.name, each.flags, "adopts" if each.is_gated else "") for each in scripts]
    functions += [(_LOOK + each.name, ("no-writes",), "looks") for each in scripts if not each.writes]
    registered = [
        _REGISTERED.format(
            name=name,
            flags=", ".join(f"'{flag}'" for flag in flags),
            keys=len(keys),
            arguments=len(script.arguments) - 2,
            gate=f"'{gate}'" if gate else "nil",
        )
        for name, flags, gate in functions
    ]
    bound = ", ".join([*keys, *(key for key in every_key if key not in keys)])
    return _OPERATION.format(code=script.code, bound=bound, values=", ".join(values), registered="\n".join(registered))


def assemble(texts: Mapping[str, str]) -> dict[str, Script]:
    """Return every operation by name; ``texts``: the files by name, as ``read_files`` returns them."""
    files = {name: _read(text) for name, text in texts.items()}
    scripts = {name: _script(name, files) for name in sorted(files) if not name.startswith("_")}
    every_key = sorted({key for script in scripts.values() for key in script.keys})
    by_file: dict[str, list[Script]] = {}
    for name, script in scripts.items():
        by_file.setdefault(_body_of(name, files[name]), []).append(script)
    blocks = [files[f"_{part}"].code for part in PARTS]
    blocks += [_block(registered, every_key) for registered in by_file.values()]
    body = "\n\n".join(blocks)
    hash = hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()[:HASH_LENGTH]
    library = Library(f"zkrq_{hash}", f"#!lua name=zkrq_{hash}\nlocal HASH = '{hash}'\n{body}\n")
    return {
        name: replace(
            script,
            function=f"zkrq_{name}_{hash}",
            looking="" if script.writes else f"zkrq_{_LOOK}{name}_{hash}",
            library=library,
        )
        for name, script in scripts.items()
    }


def read_files() -> dict[str, str]:
    """Return the text of every file of ``lua/`` by its name."""
    folder = resources.files("zkrq.protocol") / "lua"
    return {entry.name.removesuffix(".lua"): entry.read_text() for entry in folder.iterdir() if ".lua" in entry.name}


SCRIPTS: Mapping[str, Script] = assemble(read_files())
"""Every operation by name."""

LIBRARY = SCRIPTS["seal"].library
"""The library that they are functions of."""
