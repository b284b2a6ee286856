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
because a server makes every function anew for each call.  ``-- body: name`` in place of all but the purpose makes an
operation of another one's contract and body, with flags of its own.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple, cast

_SHEBANG = "#!lua"
_STATUS = re.compile(r"[A-Z]+")
_VALUE = re.compile(r"\s+(?:\[([^];]*)[^]]*\]|(\w+))")
_FUNCTION = re.compile(r"local function (\w+)\(")
_SCOPE = re.compile(r"local (\w+(?:, \w+)*)$")  # of a block that follows
_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"--.*")
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


def _locals(keys: tuple[str, ...], arguments: tuple[str, ...]) -> str:
    declared = [f"local {', '.join(keys)} = unpack(KEYS)"]
    declared.append(f"local {', '.join(arguments)} = unpack(ARGV, 1, {len(arguments)})")
    declared.append(f"local first = {len(arguments) + 1}")
    return "\n".join(declared)


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


def _definitions(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Divide shared parts: names, and the text that defines them; no names where the text does more than that."""
    lines = iter(text.splitlines())
    for line in lines:
        match = _FUNCTION.match(line) or _SCOPE.match(line)
        if not match:
            yield (), line
            continue
        definition = [line]
        while definition[-1] != "end":
            definition.append(next(lines))
        yield tuple(match[1].split(", ")), "\n".join(definition)


def _used(parts: str, own: str) -> list[str]:
    """Return the text of shared parts without the functions that nothing else uses."""
    definitions = list(_definitions(parts))
    while True:
        texts = (_COMMENT.sub("", text) for text in (own, *(text for _, text in definitions)))
        words = Counter(word for text in texts for word in set(_WORD.findall(text)))
        kept = [(names, text) for names, text in definitions if not names or any(words[name] > 1 for name in names)]
        if len(kept) == len(definitions):
            return [text for _, text in kept]
        definitions = kept


def _build(name: str, files: Mapping[str, str]) -> Script:
    shebang, header, own = _split(files[name])
    if "body" in header:
        _, shared, own = _split(files[header["body"][0]])
        header = {**shared, "purpose": header["purpose"]}
    arguments, _, repeated = header["ARGV"][0].partition("/")
    keys = tuple(header["KEYS"][0].split())
    single = tuple(arguments.split())
    parts = [_split(files[f"_{part}"])[2] for part in " ".join(header.get("include", [])).split()]
    body = "\n".join([_locals(keys, single), *_used("\n".join(parts), own), own])
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


def _load() -> dict[str, Script]:
    folder = resources.files("zkrq.protocol") / "lua"
    files = {entry.name.removesuffix(".lua"): entry.read_text() for entry in folder.iterdir() if ".lua" in entry.name}
    return {name: _build(name, files) for name in sorted(files) if not name.startswith("_")}


SCRIPTS: Mapping[str, Script] = _load()
"""Every operation by name."""
