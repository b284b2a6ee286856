"""Compare what one server says of a queue's groups with the records: of each group the first due entry is in line."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Set

from zkrq.protocol.records import Bundle

RANK_BYTES = 10
"""Bytes between a group and an entry in ``members``."""

STATE_BYTES = 5
"""Bytes of what ``groups`` says of one before its first entry."""


def entry_of(bundle: str, position: int = 0) -> bytes:
    """How indexes name an item with a moment of its own."""
    return bundle.encode() + bytes((0, position + 1))


def member_of(bundle: Bundle, entry: bytes) -> bytes:
    """How ``members`` names an entry of a group."""
    assert bundle.group is not None
    kind = b"\0" if entry[-2:-1] == b"\0" else b"\1"
    rank = bytes([9 - bundle.priority]) + struct.pack(">d", bundle.order or bundle.pushed_at_ms) + kind
    return bundle.group.encode() + b"\0" + rank + entry


def entry_in(member: bytes) -> bytes:
    """The entry that ``members`` names."""
    return member.split(b"\0", 1)[1][RANK_BYTES:]


def faults_of_groups(
    bundles: Mapping[str, Bundle],
    ready: Set[bytes],
    scheduled: Set[bytes],
    members: Set[bytes],
    groups: Mapping[str, bytes],
    lead: Mapping[str, int],
    *,
    limited: bool = False,
) -> Iterator[str]:
    """Where groups, members, ready, the counters and the records contradict each other.

    ``limited``: groups have a limit, so one of which items are claimed may be kept out of the line.
    """
    due: dict[str, set[bytes]] = {}
    claims = Counter[str]()
    for id, bundle in bundles.items():
        if bundle.group is not None:
            claims[bundle.group] += bundle.states.count("C")
            entries = [entry_of(id, at) for at, state in enumerate(bundle.states) if state == "R"]
            entries += [id.encode()] if "Q" in bundle.states else []
            living = {member_of(bundle, entry) for entry in entries if entry not in scheduled}
            due.setdefault(bundle.group, set()).update(living)
    for group, demanded in due.items():
        state = groups.get(group, bytes(STATE_BYTES))
        first = group.encode() + b"\0" + state[STATE_BYTES:] if state[STATE_BYTES:] else None
        named = {member for member in members if member.startswith(group.encode() + b"\0")}
        in_line = {member for member in demanded if entry_in(member) in ready}
        is_blocked = limited and claims[group] > 0 and not in_line and not first
        if not is_blocked and (
            in_line != ({min(demanded)} if demanded else set()) or in_line != ({first} if first else set())
        ):
            yield f"of group {group!r} {in_line} stand in line, the first of {demanded} should; it says {first}"
        if named != demanded - in_line or (named and not state[STATE_BYTES - 1]):
            yield f"group {group!r} has members {named}, not {demanded - in_line}; it says {state[STATE_BYTES - 1]}"
        if int.from_bytes(state[: STATE_BYTES - 1], "little") != claims[group]:
            yield f"{claims[group]} items of group {group!r} are claimed, it says {state!r}"
    used = {group for group, demanded in due.items() if demanded or claims[group]}
    if used != set(groups):
        yield f"groups {used} have items, it says {set(groups)}"
    counted = {
        "in_line": sum(len(state) > STATE_BYTES for state in groups.values()),
        "blocked": sum(len(state) == STATE_BYTES and state[STATE_BYTES - 1] == 1 for state in groups.values()),
    }
    for name, count in counted.items():
        if count != lead[name]:
            yield f"{count} groups are {name}, the counter says {lead[name]}"
