"""Write the schedules of a namespace as the bytes of a register, and read them."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from datetime import datetime
from typing import Any

from zkrq.base.errors import ConfigError
from zkrq.client.timetable import StoredSchedule, Timetable

TIMETABLE_MAX = 900_000
"""Bytes of all stored schedules together: one znode holds them."""

FORMAT = 1
"""Number of the format in which they are stored."""


def encode(table: Timetable, nonce: str) -> bytes:
    """Return what is stored; ``nonce`` makes each attempt to write unique.  Raises ``ConfigError`` if it is long."""
    data = json.dumps(
        {"format": FORMAT, "nonce": nonce, "schedules": [_as_json(entry) for entry in table.entries.values()]},
        separators=(",", ":"),
    ).encode()
    if len(data) > TIMETABLE_MAX:
        raise ConfigError(
            f"all schedules together would have {len(data):,} bytes, at most {TIMETABLE_MAX:,} are stored: "
            "remove some, or push smaller items; nothing was changed"
        )
    return data


def _as_json(entry: StoredSchedule) -> dict[str, object]:
    value: dict[str, object] = {
        name: getattr(entry, name)
        for name in ("queue", "name", "when", "offset", "zone", "catch_up", "priority", "paused", "mark")
    }
    value["payload"] = None if entry.payload is None else b64encode(entry.payload).decode()
    value["since"] = entry.since and entry.since.isoformat()
    return value


def decode(data: bytes | None) -> Timetable:
    """Read what is stored, None if nothing was ever.  Raises ``ConfigError`` if it cannot be read."""
    if data is None:
        return Timetable()
    try:
        stored = json.loads(data)
        if stored["format"] != FORMAT:
            raise ConfigError(f"schedules are stored in format {stored['format']}, this client reads {FORMAT}: upgrade")
        entries = [_from_json(value) for value in stored["schedules"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"the znode `schedules` does not hold schedules ({error}): delete it") from error
    return Timetable({entry.key: entry for entry in entries})


def _from_json(value: dict[str, Any]) -> StoredSchedule:
    """Read one schedule; a key that a newer client has added is ignored."""
    fields = {name: value[name] for name in ("queue", "name", "when", "offset", "zone", "catch_up", "priority")}
    return StoredSchedule(
        **fields,
        paused=bool(value["paused"]),
        mark=str(value["mark"]),
        payload=None if value["payload"] is None else b64decode(value["payload"]),
        since=None if value["since"] is None else datetime.fromisoformat(value["since"]),
    )
