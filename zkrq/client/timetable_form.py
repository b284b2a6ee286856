"""Write the schedules of a namespace as the bytes of a register, and read them."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from zkrq.base.checks import check_duration, check_id, check_name
from zkrq.base.errors import ConfigError
from zkrq.client.moments import EPOCH, check_catch_up, check_missed
from zkrq.client.timetable import Key, StoredSchedule, Timetable, check_options
from zkrq.operations.schedules import OPTIONS
from zkrq.protocol.znodes import read_object, text

TIMETABLE_MAX = 900_000
"""Bytes of all stored schedules together: one znode holds them."""

FORMAT = 1
"""Number of the format in which they are stored."""

SINCE_MAX = datetime(9000, 1, 1, tzinfo=UTC)
"""Moment from which on a schedule's ``since`` cannot be read: moments after it might be none of Python's."""

_PLAIN = ("queue", "name", "when", "offset", "zone", "catch_up", "missed", "paused", "mark")


def encode(table: Timetable, nonce: str) -> bytes:
    """Return what is stored; ``nonce`` makes each attempt to write unique.  Raises ``ConfigError`` if it is long."""
    entries = [{**table.unknown_of.get(key, {}), **_as_json(entry)} for key, entry in table.entries.items()]
    content = {**table.unknown, "format": FORMAT, "nonce": nonce, "schedules": [*entries, *table.unreadable]}
    data = json.dumps(content, separators=(",", ":")).encode()
    if len(data) > TIMETABLE_MAX:
        raise ConfigError(
            f"all schedules together would have {len(data):,} bytes, at most {TIMETABLE_MAX:,} are stored: "
            "remove some, or push smaller items; nothing was changed"
        )
    return data


def _as_json(entry: StoredSchedule) -> dict[str, object]:
    value: dict[str, object] = {name: getattr(entry, name) for name in _PLAIN}
    value |= {"priority": entry.priority, **entry.options}
    value["payload"] = None if entry.payload is None else b64encode(entry.payload).decode()
    value["since"] = entry.since and entry.since.isoformat()
    return value


def decode(data: bytes | None) -> Timetable:
    """Read what is stored, None if nothing was ever.  Raises ``ConfigError`` if it cannot be read at all.

    A schedule that cannot be read is kept as it is, and stops no other.
    """
    if data is None:
        return Timetable()
    try:
        stored = read_object(data)
        if stored["format"] != FORMAT:
            raise ConfigError(
                f"schedules are stored in format {stored['format']!r:.80}, this client reads {FORMAT}: upgrade"
            )
        listed = list[Any](stored["schedules"])
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"the znode `schedules` does not hold schedules ({error}): delete it") from error
    entries: dict[Key, StoredSchedule] = {}
    unknown_of: dict[Key, dict[str, Any]] = {}
    unreadable: list[Any] = []
    for value in listed:
        try:
            entry = _from_json(value)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):  # ConfigError is one of them
            unreadable.append(value)
            continue
        entries[entry.key] = entry
        if more := _others(value, (*_PLAIN, *OPTIONS.by_name, "payload", "since")):
            unknown_of[entry.key] = more
    return Timetable(entries, _others(stored, ("format", "nonce", "schedules")), unknown_of, tuple(unreadable))


def _from_json(value: dict[str, Any]) -> StoredSchedule:
    """Read one schedule.  What is not read here is whether its moments are known: that depends on this process."""
    when, zone, since = value["when"], value["zone"], value["since"] and datetime.fromisoformat(value["since"])
    if since and not EPOCH <= since < SINCE_MAX:
        raise ValueError(f"its pushes would begin after {since}")
    catch_up = check_catch_up(value["catch_up"])
    return StoredSchedule(
        queue=check_name("the queue's name", value["queue"]),
        name=check_id("a schedule's name", value["name"]),
        when=text(when) if isinstance(when, str) else check_duration("the period", when),
        offset=check_duration("offset", value["offset"]),
        zone=None if zone is None else text(zone),
        catch_up=catch_up,
        missed=check_missed(text(value.get("missed", "last"))),
        options=check_options({name: value[name] for name in OPTIONS.by_name if name in value}, catch_up),
        paused=bool(value["paused"]),
        mark=text(value["mark"]),
        payload=None if value["payload"] is None else b64decode(value["payload"]),
        since=since or None,
    )


def _others(value: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return what a later release has added."""
    return {name: each for name, each in value.items() if name not in known}
