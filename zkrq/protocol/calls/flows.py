"""Steer a flow: begin, seal, look, end; and open what is held for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zkrq.protocol.calls.call import START, Call, Decision, Paging, Records, Trimming


class SteerReply(NamedTuple):
    """``before``, ``now``: the letter of the flow's state (``flows.Stage``) before this call and after it.

    ``stamp``: how often members have come to life, and legs were joined.  ``outcome``: of a flow that has ended, else
    empty.  ``kinds``: letters of what is left of it here (``flows.Kind``).  ``policy``: letters (``flows.Policy``).
    ``is_closed``: whether it has ended and nothing is left to open.  ``life``: when it has begun at home.
    ``keep_ms``: for how many milliseconds the outcome is kept, of one that is not closed.  ``outer``: the flow of which
    it is a member, empty: none.  ``legs``: further queues in which it has members, as long as it is not closed.
    """

    before: bytes
    now: bytes
    stamp: int
    outcome: bytes
    kinds: bytes
    policy: bytes
    is_closed: bool
    life: int
    keep_ms: int
    outer: bytes
    legs: Sequence[bytes]
    records: Records


@dataclass(frozen=True, slots=True)
class Steer(Trimming[SteerReply]):
    """Decide about a flow itself, or a leg of it.

    ``verb``: one of those in ``flows.MOVES``.  ``stamp``: under which ``end`` counts.  ``keep_ms``: milliseconds for
    which the outcome of a flow that begins is kept; ``policy``, ``deadline_ms``: of one that begins, 0: it has none.
    ``leg``: the queue that ``join`` names.  ``life``: of the flow, for ``join``, and where a leg begins; 0: of any.
    ``remaining``: letters of what is left in the legs, for ``end``, and, after commas, how many members were acked, are
    dead and were removed otherwise.  ``outer``: of a flow that begins, the flow of which it is a member; empty: none.
    """

    script: ClassVar[str] = "flow"
    has_payloads: ClassVar[bool] = False
    queue: str
    flow: str
    verb: str
    stamp: int = 0
    keep_ms: int = 0
    policy: str = ""
    deadline_ms: int = 0
    leg: str = ""
    life: int = 0
    remaining: str = ""
    outer: str = ""
    trim: bool = False

    @property
    def needs_replicas(self) -> bool:
        return self.verb in ("begin", "join")


class Left(NamedTuple):
    """An item that is left of a flow: a letter (``flows.Kind``), its id, and the inner flow for which it stands, empty:
    it is an item like others."""

    kind: bytes
    id: bytes
    inner: bytes = b""


class MembersReply(NamedTuple):
    """``stage``, ``outcome``, ``legs``, ``kinds``, ``outer``: as ``SteerReply`` has them.  ``done``: members that were
    acked, as far as the server knows.  ``living``, ``died``, ``missed``: numbers of items, estimated where they are
    many; of a flow that has ended those of its end.  ``items``: some of each kind."""

    stage: bytes
    outcome: bytes
    kinds: bytes
    done: int
    living: int
    died: int
    missed: int
    outer: bytes
    legs: Sequence[bytes]
    items: Sequence[Left]


@dataclass(frozen=True, slots=True)
class FlowMembers(Call[MembersReply]):
    """Read what is left of a flow on one server."""

    script: ClassVar[str] = "flow_members"
    queue: str
    flow: str


class OpenReply(NamedTuple):
    """``opened``: number of items that this call has opened or removed.  ``more``: whether others are held.
    ``nested``: whether inner flows have to be ended."""

    opened: int
    more: bool
    nested: bool
    records: Records


@dataclass(frozen=True, slots=True)
class OpenHeld(Trimming[OpenReply]):
    """Queue what is held for a flow that has ended, or remove it, as the outcome says; remove queued members of one
    that is failing, or was cancelled.

    ``outcome``: of the flow, if this is a leg of it; empty: the flow's home is here.  ``life``: of that flow.
    ``stop``: whether claimed members are removed, too, of a flow that was cancelled.
    """

    script: ClassVar[str] = "flow_open"
    queue: str
    flow: str
    outcome: str = ""
    life: int = 0
    stop: bool = False
    trim: bool = False


class WaitingRow(NamedTuple):
    """A member that waits for others.  ``names``: their queues and bundles, with a slash between, separated by spaces;
    or the inner flow for which it stands."""

    id: bytes
    names: bytes


class WaitingRows(NamedTuple):
    """One page of members that wait, and the cursor to continue from."""

    cursor: bytes
    rows: Sequence[WaitingRow]


@dataclass(frozen=True, slots=True)
class WaitingPage(Paging[WaitingRows]):
    """List a page of the members of a flow that wait for others, or stand for inner flows that have not ended:
    ``letter`` (``flows.Kind``)."""

    script: ClassVar[str] = "flow_waiting"
    queue: str
    flow: str
    letter: str
    cursor: bytes = START


@dataclass(frozen=True, slots=True)
class NamedStates(Call[Sequence[bytes]]):
    """Read what has become of bundles on one server: a letter of each, see the script."""

    script: ClassVar[str] = "flow_named"
    queue: str
    items: Sequence[str]


class ReleaseReply(NamedTuple):
    """``opened``: number of members that this call has let go."""

    opened: int
    records: Records


@dataclass(frozen=True, slots=True)
class Release(Decision[ReleaseReply]):
    """Let members of a flow go that have waited for others."""

    script: ClassVar[str] = "flow_release"
    has_payloads: ClassVar[bool] = False
    queue: str
    flow: str
    items: Sequence[str]


class FlowRow(NamedTuple):
    """A flow: its name, the letter of its stage, and the letters of what is left of it on the primary.

    ``is_due``: 1 if something may be decided about it now, or opened.  ``outcome``: of one that has ended, else empty;
    ``done``, ``died``, ``missed``: its members then.
    """

    name: bytes
    stage: bytes
    kinds: bytes
    is_due: int
    outcome: bytes = b""
    done: int = 0
    died: int = 0
    missed: int = 0


class FlowRows(NamedTuple):
    """One page of flows, and the cursor to continue from."""

    cursor: bytes
    rows: Sequence[FlowRow]


@dataclass(frozen=True, slots=True)
class FlowPage(Paging[FlowRows]):
    """List a page of the flows, and legs of such, about which there is something to do, or for which something is
    held.  ``kinds``: under which of these entries they are looked for, or ``flows.Kind.OVER``, in their order."""

    script: ClassVar[str] = "flow_page"
    queue: str
    cursor: bytes = START
    count: int = 100
    kinds: str = "PVW"


class FlowResult(NamedTuple):
    """The result of a member: its id, whether the result is lost, and the result as it is stored."""

    id: bytes
    is_lost: int
    text: bytes


class FlowResultsReply(NamedTuple):
    """One page of results, and the cursor to continue from.  ``stage``, ``legs``: of the flow, also of one that is
    closed."""

    cursor: bytes
    stage: bytes
    legs: Sequence[bytes]
    rows: Sequence[FlowResult]


@dataclass(frozen=True, slots=True)
class FlowResults(Paging[FlowResultsReply]):
    """Read a page of the results of a flow's members; pages go on at any server, in the order of the ids."""

    script: ClassVar[str] = "flow_results"
    queue: str
    flow: str
    cursor: bytes = START
