"""Compare what one server says of a queue's groups with the records: of each group the first due entry is in line;
and of its flows."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from zkrq.protocol.flows import Kind
from zkrq.protocol.records import HELD, MEMBER, NEVER_US, WAITING, Bundle, Opens

FLOW = "\1flow "
"""Before the name of a flow, in the id of its record."""

RANK_BYTES = 10
"""Bytes between a group and an entry in ``members``."""

STATE_BYTES = 5
"""Bytes of what ``groups`` says of one before its first entry, and before what ended last if it keeps the order."""

_ENDED, _ORDER_BYTES = struct.Struct("<H"), 8

BEGUN = struct.Struct("<dd11I")
"""Counters of claims begun: microseconds in a tenth of the time, number of the newest tenth, counts."""

RESTING = b"\xff"
"""With this ``members`` names a group that rests, followed by the moment (``>d``) and the group."""


FLOWS = b"\xfe"
"""With this ``members`` names what it has of flows (``lua/_flows.lua``)."""


class Line(NamedTuple):
    """What ``groups`` says of one.  ``first``: rank and entry; ``ended``: the item that a consumer ended last;
    ``rests_us``: until when it rests; ``begun``: counters of claims begun, newest first."""

    claims: int = 0
    has_members: bool = False
    keeps_order: bool = False
    ended: str = ""
    first: bytes = b""
    rests_us: float = 0.0
    begun: tuple[int, ...] = ()

    @property
    def is_used(self) -> bool:
        """Whether it says more than what ended last, or began lately."""
        return bool(self.claims or self.has_members or self.first)


def line_of(state: bytes) -> Line:
    """Read what ``groups`` says of one; ``lua/_entries.lua`` does the same."""
    claims, flags, at = int.from_bytes(state[:4], "little"), state[4], STATE_BYTES
    ended = ""
    keeps_order, rests_us, begun = bool(flags & 2), 0.0, tuple[int, ...]()
    if keeps_order:
        (length,) = _ENDED.unpack_from(state, at)
        at += _ENDED.size
        ended = state[at : at + length].decode()
        at += length + _ORDER_BYTES
    if flags & 4:
        (rests_us,) = struct.unpack_from("<d", state, at)
        begun = BEGUN.unpack_from(state, at + 8)[2:]
        at += 8 + BEGUN.size
    return Line(claims, bool(flags & 1), keeps_order, ended, state[at:], rests_us, begun)


def entries_in(members: Iterable[bytes]) -> set[bytes]:
    """The entries that ``members`` names, without the groups that rest and what it has of flows."""
    return {entry_in(member) for member in members if not member.startswith((RESTING, FLOWS))}


def entry_of(bundle: str, position: int = 0) -> bytes:
    """How indexes name an item with a moment of its own."""
    return bundle.encode() + bytes((0, position + 1))


def member_of(bundle: Bundle, entry: bytes) -> bytes:
    """How ``members`` names an entry of a group."""
    assert bundle.group is not None
    kind = b"\0" if entry[-2:-1] == b"\0" else b"\1"
    rank = bytes([9 - bundle.priority]) + struct.pack(">d", abs(bundle.order) or bundle.pushed_at_ms) + kind
    return bundle.group.encode() + b"\0" + rank + entry


def entry_in(member: bytes) -> bytes:
    """The entry that ``members`` names."""
    return member.split(b"\0", 1)[1][RANK_BYTES:]


def waiting_in_order(bundles: Mapping[str, Bundle]) -> set[bytes]:
    """The entries that hold their groups: members even while they are scheduled."""
    return {
        entry
        for id, bundle in bundles.items()
        if bundle.claim_n is not None and bundle.order >= 0
        for entry in (id.encode(), *(entry_of(id, at) for at in range(len(bundle.states))))
    }


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
    claims, in_order = Counter[str](), Counter[str]()
    for id, bundle in bundles.items():
        if bundle.group is not None:
            claims[bundle.group] += bundle.states.count("C")
            in_order[bundle.group] += bundle.claim_n is not None and bundle.states.count("C")
            entries = [entry_of(id, at) for at, state in enumerate(bundle.states) if state == "R"]
            entries += [id.encode()] if "Q" in bundle.states else []
            holds = bundle.claim_n is not None and bundle.order >= 0
            living = {member_of(bundle, entry) for entry in entries if holds or entry not in scheduled}
            due.setdefault(bundle.group, set()).update(living)
    for group, demanded in due.items():
        line = line_of(groups.get(group, bytes(STATE_BYTES)))
        first = group.encode() + b"\0" + line.first if line.first else None
        named = {member for member in members if member.startswith(group.encode() + b"\0")}
        in_line = {member for member in demanded if entry_in(member) in ready}
        is_blocked = (limited or line.keeps_order) and claims[group] > 0 and not in_line and not first
        is_blocked = is_blocked or (line.rests_us > 0 and not in_line and not first)
        waits = line.keeps_order and not in_line and not first and entry_in(min(demanded, default=b"\0")) in scheduled
        if (
            not is_blocked
            and not waits
            and (in_line != ({min(demanded)} if demanded else set()) or in_line != ({first} if first else set()))
        ):
            yield f"of group {group!r} {in_line} stand in line, the first of {demanded} should; it says {first}"
        if named != demanded - in_line or line.has_members != bool(named):
            yield f"group {group!r} has members {named}, not {demanded - in_line}; it says {line}"
        if line.claims != claims[group]:
            yield f"{claims[group]} items of group {group!r} are claimed, it says {line}"
        if line.keeps_order and in_order[group] > 0 and in_line:
            yield f"group {group!r} keeps the order, stands in line, and {in_order[group]} of its items are claimed"
    lines = {group: line_of(state) for group, state in groups.items()}
    resting = {RESTING + struct.pack(">d", line.rests_us) + g.encode() for g, line in lines.items() if line.rests_us}
    if resting != (said := {member for member in members if member.startswith(RESTING)}):
        yield f"groups {resting} rest, members says {said}"
    if resting and not lead["resting"]:
        yield "groups rest, and no claim looks for them"
    used = {group for group, demanded in due.items() if demanded or claims[group]}
    if used != {group for group, line in lines.items() if line.is_used}:
        yield f"groups {used} have items, it says {lines}"
    counted = {
        "in_line": sum(bool(line.first) for line in lines.values()),
        "blocked": sum(line.has_members and not line.first for line in lines.values()),
        "remembered": sum(not line.is_used for line in lines.values()),
    }
    for name, count in counted.items():
        if count != lead[name]:
            yield f"{count} groups are {name}, the counter says {lead[name]}"


def flow_entries(id: str, bundle: Bundle) -> Iterator[bytes]:
    """What an index has of the flow of a bundle: its kinds, by ``lua/_flows.lua``."""
    if id.startswith(FLOW):
        yield _flow_entry(Kind.RUNS if bundle.states == "P" else Kind.OVER, id.removeprefix(FLOW), "")
    flow, held_for = (bundle.fields.get(kind, b"").decode() for kind in (MEMBER, HELD))
    if held_for and bundle.states == "R" and bundle.own[0].moment_us >= NEVER_US:
        kind = _HELD_AS[held_for[0]]
        yield _flow_entry(kind, flow if kind is Kind.WAITING else held_for[1:], id)
        if flow and held_for[0] == Opens.NESTED:
            yield _flow_entry(Kind.NESTED, flow, id)
            yield _flow_entry(Kind.LIVING, flow, id)
        return
    if not flow:
        return
    if not {"Q", "R", "C"}.isdisjoint(bundle.states):
        yield _flow_entry(Kind.LIVING, flow, id)
    if "D" in bundle.states:
        yield _flow_entry(Kind.DEAD, flow, id)
    rows = [bundle.rows[row - 1] if row else None for row in bundle.rows_of]
    if any(state == "X" and not (row and row.seq) for state, row in zip(bundle.states, rows, strict=True)):
        yield _flow_entry(Kind.MISSED, flow, id)
    if any(own.failures and bundle.states[position] == "X" for position, own in bundle.own.items()):
        yield _flow_entry(Kind.WITH_RESULT, flow, id)


_HELD_AS: Mapping[str, Kind] = {
    Opens.THEN: Kind.HELD,
    Opens.ALWAYS: Kind.HELD,
    Opens.FAILURE: Kind.HELD_FOR_FAILURE,
    Opens.NESTED: Kind.HELD,
    WAITING: Kind.WAITING,
}


def _flow_entry(kind: str, flow: str, id: str) -> bytes:
    return FLOWS + f"{kind}{flow}\0{id}".encode()
