"""What happened in a schedule, for people."""

from __future__ import annotations

import enum
from typing import cast

from tests.model.server import Answer, Record, Records, Request
from tests.model.world import Event
from zkrq.protocol.view import View


def narrate(event: Event) -> str:
    """One event in one line."""
    return " ".join(_words(thing) for thing in event)


def _words(thing: object) -> str:
    match thing:
        case Request():
            told = ", ".join(_words(argument) for argument in thing.arguments)
            return f"{thing.server}.{thing.script.__name__}({told}) in {thing.life.generation} epoch {thing.epoch}:"
        case Answer():
            return f"{thing.status.value} {_words(thing.records)}" if thing.records else thing.status.value
        case View():
            places = {"members": thing.members, "learners": thing.learners, "eligible": thing.eligible}
            return f"{thing.epoch} " + " ".join(
                f"{place}={','.join(f'{id}/{life.generation}' for id, life in lives.items())}"
                for place, lives in places.items()
                if lives
            )
        case Record():
            by = f" by {thing.by.verb} {thing.by.token}" if thing.by else ""
            return f"{thing.state.value} {thing.version.epoch}.{thing.version.n}{by}"
        case dict():
            records = cast("Records", thing)
            return "{" + ", ".join(f"{item}: {_words(record)}" for item, record in records.items()) + "}"
        case enum.Enum():
            return str(thing.value)
        case _:
            return str(thing)
