"""Steer a flow: begin, seal, look, end; and open what is held for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zkrq.protocol.calls.call import START, Call, Paging, Records, Trimming


class SteerReply(NamedTuple):
    """``before``, ``now``: the letter of the flow's state (``flows.Stage``) before this call and after it.

    ``stamp``: how often members have come to life after the seal.  ``outcome``: of a flow that has ended, else empty.
    ``kinds``: letters of what is left of it here (``flows.Kind``).
    """

    before: bytes
    now: bytes
    stamp: int
    outcome: bytes
    kinds: bytes
    records: Records


@dataclass(frozen=True, slots=True)
class Steer(Trimming[SteerReply]):
    """Decide about a flow itself.

    ``verb``: ``begin``, ``seal``, ``look``, ``end``, ``cancel`` or ``finish``.  ``stamp``: under which ``end`` counts.
    ``keep_ms``: milliseconds for which the outcome of a flow that begins is kept.
    """

    script: ClassVar[str] = "flow"
    has_payloads: ClassVar[bool] = False
    queue: str
    flow: str
    verb: str
    stamp: int = 0
    keep_ms: int = 0
    trim: bool = False


class MembersReply(NamedTuple):
    """``kinds``: letters of what is left of the flow here.  ``bundles``: some of those that hold it up."""

    kinds: bytes
    bundles: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class FlowMembers(Call[MembersReply]):
    """Read what is left of a flow on one server."""

    script: ClassVar[str] = "flow_members"
    queue: str
    flow: str


class OpenReply(NamedTuple):
    """``opened``: number of items that this call has opened or dropped.  ``more``: whether others are held."""

    opened: int
    more: bool
    records: Records


@dataclass(frozen=True, slots=True)
class OpenHeld(Trimming[OpenReply]):
    """Queue what is held for a flow that is done; remove it if the flow was cancelled."""

    script: ClassVar[str] = "flow_open"
    queue: str
    flow: str
    trim: bool = False


class FlowRow(NamedTuple):
    """A flow: its name, the letter of its stage, and the letters of what is left of it on the primary."""

    name: bytes
    stage: bytes
    kinds: bytes


class FlowRows(NamedTuple):
    """One page of flows, and the cursor to continue from."""

    cursor: bytes
    rows: Sequence[FlowRow]


@dataclass(frozen=True, slots=True)
class FlowPage(Paging[FlowRows]):
    """List a page of the flows that run, or for which something is held."""

    script: ClassVar[str] = "flow_page"
    queue: str
    cursor: bytes = START
    count: int = 100
