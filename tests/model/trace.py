"""What happened in a schedule, for people."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, cast

from tests.model.bundle import unpack
from tests.model.server import Request
from tests.model.world import Event
from zkrq.protocol.calls import Call, Rows
from zkrq.protocol.records import FORMAT, VERSION_BYTES, Bundle, version_of
from zkrq.protocol.replies import Answer
from zkrq.protocol.view import View

RECORD = 50
"""Bytes that the shortest record has."""


def narrate(event: Event) -> str:
    """One event in one line."""
    return " ".join(_words(thing) for thing in event)


def _words(thing: object) -> str:
    match thing:
        case Request():
            return f"{thing.server}.{_words(thing.call)} in {thing.life.generation} epoch {thing.epoch}:"
        case Call():
            return f"{thing.script}({_arguments(cast('Call[Any]', thing))})"
        case Answer():
            return " ".join([thing.status.name, *map(_words, thing.body)])
        case View():
            places = {"members": thing.members, "learners": thing.learners, "eligible": thing.eligible}
            return f"{thing.epoch} " + " ".join(
                f"{place}={','.join(f'{id}/{life.generation}' for id, life in lives.items())}"
                for place, lives in places.items()
                if lives
            )
        case Bundle():
            rows = [f"{row}:{claim.token}" for row, claim in enumerate(thing.rows, 1)]
            named = "".join(map(str, thing.rows_of)) if rows else ""
            return " ".join([thing.states, "{}.{}".format(*thing.version), named, *rows]).rstrip()
        case bytes():
            return _text(thing)
        case Rows():
            return _words(thing.flat)
        case list() | tuple():
            return f"[{', '.join(map(_words, cast('Sequence[object]', thing)))}]"
        case enum.Enum():
            return str(thing.value)
        case _:
            return str(thing)


def _arguments(call: Call[Any]) -> str:
    values = (getattr(call, field.name) for field in fields(cast("Any", call)) if field.name != "queue")
    return ", ".join(_words(value) for value in values if value != "")


def _text(data: bytes) -> str:
    """Records, and versions by themselves, are told in words."""
    if len(data) >= RECORD and data[0] == FORMAT:
        return _words(unpack(data))
    if len(data) == VERSION_BYTES.stop - VERSION_BYTES.start and b"\0" in data:
        return "{}.{}".format(*version_of(b"\1" + data))
    return data.decode(errors="backslashreplace")
