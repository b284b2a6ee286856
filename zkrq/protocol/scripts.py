"""Load ``lua/``: one operation per file, each with a header that is its contract.

The header is not a comment beside the code, it *is* code: its KEYS and ARGV lines define the script's local names and
the order in which the keys are sent, so neither can drift from the other::

    #!lua flags=allow-oom
    -- purpose: what it does
    -- KEYS: server records ...            locals of these names; keys.py knows what they stand for
    -- ARGV: epoch generation ... / id ... locals, then what repeats, from index `first` on; durations end in _ms
    -- reply: STATUS value [value value; what they are of]; remark      every reply: its status, and what follows that
    -- include: names of files that begin with _, in order

In a reply, brackets are a list that repeats the values up to its semicolon.  A server's answer is checked against the
header before anything else reads it (replies.py).

Files that begin with ``_`` are shared parts, put before the body; what no other line of the script uses is left out,
because a server makes every function anew for each call.  For the same reason constants (capital letters, numbers and
texts) are put where they are used: a function has to look up each local that it uses when it is made.
``-- body: name`` in place of all but the purpose makes an operation of another one's contract and body, with flags of
its own.

One call may be for several queues, each with keys and arguments of its own; then the arguments of each follow their
number, and the reply is a list of their replies, in which an error is one queue's alone::

    KEYS: keys of queue 1, keys of queue 2 ...    ARGV: epoch generation (number arguments) (number arguments) ...

So the body runs once for each queue (``ARGV[first]`` to ``ARGV[last]`` is what repeats), gate and clock once; other
locals of a shared part get their values anew for each queue.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import NamedTuple, cast

_SHEBANG = "#!lua"
_STATUS = re.compile(r"[A-Z]+")
_VALUE = re.compile(r"\s+(?:\[([^];]*)[^]]*\]|(\w+))")
_FUNCTION = re.compile(r"local function (\w+)\(")
_SCOPE = re.compile(r"local (\w+(?:, \w+)*)$")  # of a block that follows
_WORD = re.compile(r"\w+")
_CONSTANTS = re.compile(r"^ *local ([A-Z_]+(?:, [A-Z_]+)*) = ([^(){}+]*?) *(?:--.*)?$", re.MULTILINE)
_TEXT_OR_WORD = re.compile(r"'(?:[^'\\]|\\.)*'|--.*|\b[A-Z][A-Z_]+\b")
_DECLARED = re.compile(r"local ([a-z_]+(?:, [a-z_]+)*)( =.*)?$")
_ONCE = ("gate", "clock")
"""Parts whose code runs once in a call, not once for each queue."""
_HEADER_LINE = re.compile(r"^-- (purpose|KEYS|ARGV|reply|include|body): (.*)$")

_KINDS = {"position": int, "n": int, "count": int, "owner": bytes, "queue": bytes, "id": bytes, "head": bytes}
_CARRIED = {"outcome", "payload", "record", "state"}
"""Lists that contain one of these have one entry per item of the call: their elements are checked where they are
used."""


class Value(NamedTuple):
    """One value of a reply.

    ``width``: number of list elements that belong together, 0: not a list.  ``kinds``: the types of these elements,
    None for one that is not checked.
    """

    width: int
    kinds: tuple[type | None, ...] = ()


Shape = tuple[Value, ...]
"""The values that follow a status."""


class Text(NamedTuple):
    """A script's text, and the name under which a server stores it."""

    text: str
    sha: str


def sha(text: str) -> str:
    """Return the name under which a server stores a script: the argument of EVALSHA."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _named(text: str) -> Text:
    return Text(text, sha(text))


@dataclass(frozen=True, slots=True)
class Script:
    """One operation: its text, and the promises of its header."""

    name: str
    purpose: str
    keys: tuple[str, ...]
    arguments: tuple[str, ...]
    repeated: tuple[str, ...]
    replies: Mapping[str, Shape]
    body: str
    shebang: str
    with_flags: Text
    without_flags: Text

    def text(self, *, flags: bool = True) -> str:
        """Return the text to send; servers before Redis 7 do not know the ``#!lua flags=...`` line."""
        return self.given(flags).text

    def given(self, flags: bool) -> Text:
        """Return the text with its name for EVALSHA."""
        return self.with_flags if flags else self.without_flags


def _split(text: str) -> tuple[str, dict[str, list[str]], str]:
    """Split a file into shebang, the header's fields, and body."""
    lines = text.splitlines()
    shebang = lines.pop(0) if lines[0].startswith(_SHEBANG) else ""
    length = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    header: dict[str, list[str]] = {}
    for match in filter(None, map(_HEADER_LINE.match, lines[:length])):
        header.setdefault(match[1], []).append(match[2].strip())
    return shebang, header, "\n".join(lines[length:])


def _declared(keys: Sequence[str], arguments: Sequence[str]) -> str:
    declared = [f"local {', '.join(keys)} = unpack(KEYS)", "local epoch, generation = unpack(ARGV, 1, 2)"]
    return "\n".join([*declared, f"local {', '.join([*arguments[2:], 'first', 'last'])}"])


_BY_QUEUE = """
local replies, at, parts = {}, 3, #KEYS / %(keys)d
for part = 1, parts do
  %(assign_keys)s
  last = #ARGV
  if parts > 1 then last, at = at + ARGV[at], at + 1 end
  %(assign_arguments)s
  first, at = at + %(arguments)d, last + 1
  %(set_anew)s
  if parts == 1 then
    local reply = operation()
    return reply
  end
  local done, reply = pcall(operation)
  replies[part] = (done or type(reply) == 'table') and reply or {err = reply}
end
return replies"""


def _by_queue(keys: Sequence[str], arguments: Sequence[str], set_anew: Sequence[str]) -> str:
    """Return the code that runs the operation for each queue of the call."""
    count = len(keys)
    assign_keys = f"if part > 1 then {', '.join(keys)} = unpack(KEYS, part * {count} - {count - 1}, part * {count}) end"
    assign_arguments = f"{', '.join(arguments[2:])} = unpack(ARGV, at, at + {len(arguments) - 3})"
    return _BY_QUEUE % {
        "keys": count,
        "assign_keys": assign_keys,
        "arguments": len(arguments) - 2,
        "assign_arguments": assign_arguments if arguments[2:] else "",
        "set_anew": " ".join(set_anew),
    }


def _reply(line: str) -> tuple[str, Shape]:
    """Read the status of a reply, and the values that follow it."""
    status = cast("re.Match[str]", _STATUS.match(line))
    values: list[Value] = []
    at = status.end()
    while value := _VALUE.match(line, at):
        at = value.end()
        values.append(_listed(value[1].split()) if value[2] is None else Value(0))
    return status[0], tuple(values)


def _listed(names: Sequence[str]) -> Value:
    if not _CARRIED.isdisjoint(names):
        return Value(len(names))
    return Value(len(names), tuple(map(_KINDS.get, names)))


class _Definition(NamedTuple):
    """A function of a shared part, or one line outside functions, which has no names."""

    names: tuple[str, ...]
    text: str
    words: frozenset[str]


def _constants(text: str) -> dict[str, str]:
    """Return what stands for each constant that is defined in a file: a number or a text."""
    found: dict[str, str] = {}
    for match in _CONSTANTS.finditer(text):
        found.update(zip(match[1].split(", "), match[2].split(", "), strict=True))
    return found


def _inlined(text: str, constants: Mapping[str, str]) -> str:
    """Return code with its constants in their places, without comments and the lines that define constants."""
    code = _CONSTANTS.sub("", text)
    return _TEXT_OR_WORD.sub(lambda match: "" if match[0][:2] == "--" else constants.get(match[0], match[0]), code)


def _definitions(code: str) -> Iterator[_Definition]:
    lines = code.splitlines()
    at = 0
    while at < len(lines):
        begin, match = at, _FUNCTION.match(lines[at])
        if not match and lines[at + 1 : at + 2] == ["do"]:
            match = _SCOPE.match(lines[at])
        if match:
            at = lines.index("end", at)
        at += 1
        if text := "\n".join(lines[begin:at]).strip():
            yield _Definition(tuple(match[1].split(", ")) if match else (), text, _words(text))


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text))


def _used(definitions: Sequence[_Definition], own: str) -> list[_Definition]:
    """Leave out the functions that nothing else uses."""
    kept, used = [each for each in definitions if not each.names], _words(own)
    while True:
        used = used.union(*(each.words for each in kept))
        more = [each for each in definitions if not each.names or not used.isdisjoint(each.names)]
        if len(more) == len(kept):
            return kept
        kept = more


def _divided(definitions: Iterable[_Definition]) -> tuple[list[str], list[str]]:
    """Divide the code of shared parts: what is declared once, and what is set anew for each queue."""
    once: list[str] = []
    anew: list[str] = []
    for names, text, _ in definitions:
        declared = None if names else _DECLARED.match(text)
        if declared:
            once.append(f"local {declared[1]}")
            anew += [declared[1] + declared[2]] if declared[2] else []
        else:
            (once if names else anew).append(text)
    return once, anew


def _chunk(keys: Sequence[str], arguments: Sequence[str], parts: Mapping[str, Sequence[_Definition]], own: str) -> str:
    """Put a script together from its declarations, the shared parts, and its own code."""
    before = [each.text for name in parts if name in _ONCE for each in parts[name]]
    shared = [each for name in parts if name not in _ONCE for each in parts[name]]
    once, anew = _divided(_used(shared, own))
    body = ["local function operation()", own, "end"]
    return "\n".join([_declared(keys, arguments), *before, *once, *body]) + _by_queue(keys, arguments, anew)


def _build(
    name: str,
    files: Mapping[str, str],
    parts: Mapping[str, Sequence[_Definition]],
    constants: Mapping[str, str],
    instead: Mapping[str, str],
) -> Script:
    """Make the operation of a file; ``parts`` and ``constants``: those that operations share."""
    shebang, header, own = _split(files[name])
    if "body" in header:
        _, shared, own = _split(files[header["body"][0]])
        header = {**shared, "purpose": header["purpose"]}
    arguments, _, repeated = header["ARGV"][0].partition("/")
    keys = tuple(header["KEYS"][0].split())
    single = tuple(arguments.split())
    included = {part: parts[part] for part in " ".join(header.get("include", [])).split()}
    body = _chunk(keys, single, included, _inlined(own, {**constants, **_constants(own), **instead}))
    return Script(
        name=name,
        purpose=header["purpose"][0],
        keys=keys,
        arguments=single,
        repeated=tuple(repeated.split()),
        replies=dict(map(_reply, header["reply"])),
        body=body,
        shebang=shebang,
        with_flags=_named(f"{shebang}\n{body}"),
        without_flags=_named(body),
    )


def load(instead: Mapping[str, str] = MappingProxyType({})) -> dict[str, Script]:
    """Return every operation by name; ``instead``: values of constants instead of those in the files."""
    folder = resources.files("zkrq.protocol") / "lua"
    files = {entry.name.removesuffix(".lua"): entry.read_text() for entry in folder.iterdir() if ".lua" in entry.name}
    shared = {name: _split(text)[2] for name, text in files.items() if name.startswith("_")}
    constants: dict[str, str] = {}
    for code in shared.values():
        constants |= _constants(code)
    constants |= instead
    parts = {name[1:]: list(_definitions(_inlined(code, constants))) for name, code in shared.items()}
    return {name: _build(name, files, parts, constants, instead) for name in sorted(files) if name not in shared}


SCRIPTS: Mapping[str, Script] = load()
"""Every operation by name."""
