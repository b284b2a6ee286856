"""Every typed call agrees with the header of its script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple, cast, get_args, get_origin, get_type_hints

import pytest

from tests.every import every
from tests.unit.every_call import CALLS, sentinels
from zkrq.protocol import calls
from zkrq.protocol.calls import Call, Rows
from zkrq.protocol.calls.call import is_named, reply_of
from zkrq.protocol.records import Bundle, Version, pack
from zkrq.protocol.scripts import SCRIPTS, read_files

every_call = every("call", CALLS.values())


def test_every_script_has_one_call() -> None:
    assert CALLS.keys() == SCRIPTS.keys()


@every_call
def test_words_stand_in_the_order_of_the_header(call: type[Call[Any]]) -> None:
    script = SCRIPTS[call.script]
    values = sentinels(call)
    known: dict[str, Any] = {**values, "put_window_ms": Call.put_window_ms}
    items = [[f"{name} of {at}" for name in script.repeated] for at in range(2)]
    flat = [word for item in items for word in item]
    if script.repeated:
        values["items"] = flat if len(script.repeated) == 1 else items
    assert call(**values).words() == [known[name] for name in script.arguments[2:]] + flat


@every_call
def test_flat_rows_are_sent_as_they_are(call: type[Call[Any]]) -> None:
    if SCRIPTS[call.script].repeated:
        words = call(**{**sentinels(call), "items": Rows(["a", "b", "c"])}).words()
        assert words[-3:] == ["a", "b", "c"]


@every_call
def test_no_field_but_the_queue_is_left_unsent(call: type[Call[Any]]) -> None:
    script = SCRIPTS[call.script]
    sent = {*script.arguments[2:], *(["items"] if script.repeated else [])}
    assert {field.name for field in fields(call)} - {"queue"} <= sent  # pyright: ignore


@every_call
def test_reply_has_the_values_of_the_header(call: type[Call[Any]]) -> None:
    count = len(SCRIPTS[call.script].replies["OK"])
    reply = reply_of(call)
    if reply is type(None):
        assert count == 0
    elif isinstance(reply, type) and issubclass(reply, tuple):
        fields = get_type_hints(cast("Any", reply)).values()
        assert sum(len(calls.Copies._fields) if field is calls.Copies else 1 for field in fields) == count
    else:
        assert count == 1


FILES = read_files()
VALUE = re.compile(r"\[([^];]*)[^]]*\]|(\w+)|;.*")
"""One value of a reply, as a header names it: a list, or a word.  What holds for all of them follows a semicolon."""

RECORDS = ["id", "record", "notes", "since"]


def values_of(script: str) -> list[str | list[str]]:
    """Return the names in the header for the values after OK: of a list the names of what repeats in it."""
    shared = re.search(r"^-- body: (\w+)", FILES[script], re.MULTILINE)
    text = FILES[shared[1]] if shared else FILES[script]
    line = re.search(r"^-- reply: OK(.*)$", text, re.MULTILINE)
    assert line
    return [each[2] or each[1].split() for each in VALUE.finditer(line[1]) if each[1] or each[2]]


def flat_fields(of: Any) -> list[tuple[str, Any]]:
    """Return the fields of a reply, those of a field that has several values in its place."""
    if not is_named(of):
        return [("", of)]
    fields = get_type_hints(of).items()
    return [one for name, each in fields for one in (flat_fields(each) if is_named(each) else [(name, each)])]


@every_call
def test_a_reply_is_named_as_in_the_header(call: type[Call[Any]]) -> None:
    """A word has the field of its name in its place; records are records, and nothing else is."""
    values = values_of(call.script)
    fields = flat_fields(reply_of(call)) if values else []
    for value, (name, of) in zip(values, fields, strict=True):
        assert isinstance(value, list) or name in {value, ""}
        assert (of is calls.Records) == (value == RECORDS)
        if get_origin(of) is Sequence and is_named(row := get_args(of)[0]):
            assert len(value) == len(row._fields)


def test_a_reply_is_read_as_its_type_says() -> None:
    row = [b"id", b"record", b"notes", b"since", b"payload"]
    copied = calls.Copied(*row)
    records = [b"id", b"record", b"notes", b"since"]
    page = calls.CopyPage(b"7", [copied], [b"far"], [])
    assert calls.Page("q", b"0", 9).read((b"7", row, [b"far"], [])) == page
    cleared = calls.Clear("q", 1, "call", 0, b"").read((1, 5, 6, b"", records))
    assert cleared[:4] == (True, 5, 6, b"")
    assert list(cleared.records) == [(b"id", b"record")]
    assert list(calls.Pause("q", "P", 0, 0, "call").read((records,))) == [(b"id", b"record")]
    assert calls.Keyed("q", "k").read((row, [b"far"])) == calls.Copies([copied], [b"far"])
    assert calls.Forget("q").read((1,)) is True
    assert calls.Wipe("q").read(()) is None
    assert calls.Broadcast("t", b"").read((3,)) == 3


def test_a_reply_with_too_few_values_is_an_error_of_its_own() -> None:
    """A ``StopIteration`` would end the operation that asked, as if it were done."""
    with pytest.raises(ValueError, match="the reply of statistics has too few values: 2"):
        calls.Statistics("q").read([1, 2])


def test_booleans_are_sent_as_numbers() -> None:
    assert calls.PushDecided("q", [], again=True).words()[0] == 1


class Example(NamedTuple):
    id: bytes
    record: bytes
    left_ms: int


def test_gone_is_what_was_removed_of_bundles_of_which_half_is() -> None:
    """What less is gone of waits, so that payloads are not written anew for every item."""
    states = {b"a": "X", b"b": "Q", b"c": "XXFX", b"d": "XQFD", b"e": "CXQQ", b"f": "QQ"}
    rows = [(id, pack(Bundle(Version(1, 2), each, is_alone=len(each) == 1)), b"", b"") for id, each in states.items()]
    gone = calls.Records([word for row in rows for word in row]).gone()
    assert gone == [(b"a", b""), (b"c", b""), (b"d", b"\0\2")]
