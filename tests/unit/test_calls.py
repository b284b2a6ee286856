"""Every typed call agrees with the header of its script."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple, cast, get_type_hints

from tests.every import every
from tests.unit.every_call import CALLS, sentinels
from zkrq.protocol import calls
from zkrq.protocol.calls import Call, Rows
from zkrq.protocol.records import Bundle, Version, pack
from zkrq.protocol.scripts import SCRIPTS

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
    reply = get_type_hints(call.read)["return"]
    if reply is type(None):
        assert count == 0
    elif isinstance(reply, type) and issubclass(reply, tuple):
        fields = get_type_hints(cast("Any", reply)).values()
        assert sum(len(calls.Copies._fields) if field is calls.Copies else 1 for field in fields) == count
    else:
        assert count == 1


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
