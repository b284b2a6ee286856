"""Let an operator decide: cancel, redrive, advance, clear, pause, declare limits, delete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zkrq.protocol.calls.call import Decision, Records, Trimming


class CancelReply(NamedTuple):
    """The state of each item before this call, empty for an unknown one."""

    states: Sequence[bytes]
    records: Records


@dataclass(frozen=True, slots=True)
class Cancel(Trimming[CancelReply]):
    """Remove items: those named in ``items``, or, if none is named, the ``count`` dead letters that died first.

    ``wanted``: the state that they must be in, empty: any.  ``call``: id of this call, so that a repetition is
    recognised.
    """

    script: ClassVar[str] = "cancel"
    queue: str
    wanted: str
    count: int
    call: str
    items: Sequence[str] = ()
    trim: bool = False


class RedriveReply(NamedTuple):
    """``ids``: items that are queued again.  ``executed_before``: the reply repeats what the first try did."""

    executed_before: bool
    ids: Sequence[bytes]
    records: Records


@dataclass(frozen=True, slots=True)
class Redrive(Decision[RedriveReply]):
    """Queue dead letters again: those named in ``items``, or ``count`` of them, after the first ``skip``."""

    script: ClassVar[str] = "redrive"
    queue: str
    skip: int
    count: int
    call: str
    items: Sequence[str] = ()


class AdvanceReply(NamedTuple):
    """``ids``: items that are ready by this call."""

    ids: Sequence[bytes]
    records: Records


@dataclass(frozen=True, slots=True)
class Advance(Decision[AdvanceReply]):
    """Have those of ``items`` that wait for their moment, or for their next attempt, be ready immediately."""

    script: ClassVar[str] = "advance"
    queue: str
    call: str
    items: Sequence[str] = ()


class EditReply(NamedTuple):
    """``states``: of each item ``E`` edited, ``L`` too long, empty: it is no dead letter."""

    states: Sequence[bytes]
    records: Records


@dataclass(frozen=True, slots=True)
class Edit(Decision[EditReply]):
    """Give dead letters another content, which they are redriven with; ``edit``: ``saved.Edit``, packed."""

    script: ClassVar[str] = "edit"
    queue: str
    edit: bytes
    items: Sequence[str] = ()


class ClearReply(NamedTuple):
    """``removed``: number of items.  ``before_ms``: items pushed later stay.  ``cursor`` is empty at the end."""

    executed_before: bool
    removed: int
    before_ms: int
    cursor: bytes
    records: Records


@dataclass(frozen=True, slots=True)
class Clear(Trimming[ClearReply]):
    """Remove a page of the items that are ready or scheduled and were pushed until ``before_ms``.

    ``only``: see ``only_of``.
    """

    script: ClassVar[str] = "clear"
    queue: str
    count: int
    call: str
    before_ms: int
    cursor: bytes
    only: str = ""
    trim: bool = False


@dataclass(frozen=True, slots=True)
class Pause(Decision[Records]):
    """Pause the queue (``state`` P) or resume it (X).

    ``until_ms``: the moment at which the pause ends by itself, in milliseconds since 1970; ``left_ms``: milliseconds
    from now until then.  Both 0: when it is resumed.
    """

    script: ClassVar[str] = "pause"
    queue: str
    state: str
    until_ms: int
    left_ms: int
    call: str


class DeclareReply(NamedTuple):
    """``before``, ``now``: the settings of the section before this call and after it, empty if it had none."""

    before: bytes
    now: bytes
    records: Records


@dataclass(frozen=True, slots=True)
class Declare(Decision[DeclareReply]):
    """Declare one section of the queue's limits; the others stay as they are.

    ``settings``: ``name=value,name=value`` (``lua/_limits.lua``), empty to take the section away.  ``mark``: of what a
    program declares, which changes nothing if it was declared before, unless ``forced``; empty: an operator's.
    ``replaced``: ``=`` and the settings that were read, without which nothing changes; empty: whatever is there.
    """

    script: ClassVar[str] = "declare"
    queue: str
    section: str
    settings: str
    mark: str
    forced: bool
    call: str
    replaced: str = ""


@dataclass(frozen=True, slots=True)
class Delete(Decision[Records]):
    """Remember that the queue was deleted, after it was emptied.

    ``moment_ms``: of the deletion, in milliseconds since 1970, by the clock of the client that deletes.
    """

    script: ClassVar[str] = "delete"
    queue: str
    moment_ms: int
