"""Write the schedules of a namespace as the bytes of a register, and read them."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from zkrq.base.errors import ConfigError
from zkrq.client.timetable import StoredSchedule, Timetable

TIMETABLE_MAX = 900_000
"""Bytes of all stored schedules together: one znode holds them."""

FORMAT = 1
"""Number of the format in which they are stored."""

_PLAIN = ("queue", "name", "when", "offset", "zone", "catch_up", "priority", "paused", "mark")
_FIELDS = (*_PLAIN, "payload", "since")


def encode(table: Timetable, nonce: str) -> bytes:
    """Return what is stored; ``nonce`` makes each attempt to write unique.  Raises ``ConfigError`` if it is long."""
    entries = [{**table.unknown_of.get(key, {}), **_as_json(entry)} for key, entry in table.entries.items()]
    content = {**table.unknown, "format": FORMAT, "nonce": nonce, "schedules": entries}
    data = json.dumps(content, separators=(",", ":")).encode()
    if len(data) > TIMETABLE_MAX:
        raise ConfigError(
            f"all schedules together would have {len(data):,} bytes, at most {TIMETABLE_MAX:,} are stored: "
            "remove some, or push smaller items; nothing was changed"
        )
    return data


def _as_json(entry: StoredSchedule) -> dict[str, object]:
    value: dict[str, object] = {name: getattr(entry, name) for name in _PLAIN}
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
        read = [(_from_json(value), _others(value, _FIELDS)) for value in stored["schedules"]]
        unknown = _others(stored, ("format", "nonce", "schedules"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"the znode `schedules` does not hold schedules ({error}): delete it") from error
    return Timetable(
        {entry.key: entry for entry, _ in read}, unknown, {entry.key: more for entry, more in read if more}
    )


def _from_json(value: dict[str, Any]) -> StoredSchedule:
    """Read one schedule."""
    fields = {name: value[name] for name in ("queue", "name", "when", "offset", "zone", "catch_up", "priority")}
    return StoredSchedule(
        **fields,
        paused=bool(value["paused"]),
        mark=str(value["mark"]),
        payload=None if value["payload"] is None else b64decode(value["payload"]),
        since=None if value["since"] is None else datetime.fromisoformat(value["since"]),
    )


def _others(value: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return what a later release has added."""
    return {name: each for name, each in value.items() if name not in known}
