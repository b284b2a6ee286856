"""Name flows, and hold what is known of one."""

from __future__ import annotations

import enum
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from zkrq.base.checks import Duration, check_duration, check_name
from zkrq.base.errors import ConfigError

FLOW_NAME_MAX, MEMBER_NAME_MAX = 64, 63
"""Characters in the name of a flow, and of a member: with a dot between them they are an id."""

MANY_NAME_MAX = 48
"""Characters in the name of many members that are pushed together: with that of their flow, and the numbers of a bundle
and of an item in it, they are an id."""

AFTER_MAX = 100
"""Members that another one waits for."""

KEEP = 86400.0
"""Seconds for which the outcome of a flow is kept."""

KEEP_LEAST, KEEP_MOST = 1.0, 30 * 86400.0
"""Bounds of these seconds."""


class FlowState(enum.StrEnum):
    """How far a flow is.  ``UNKNOWN``: it was never begun, or has ended and its outcome is not kept any more."""

    UNKNOWN = "unknown"
    OPEN = "open"
    RUNNING = "running"
    FAILING = "failing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def has_ended(self) -> bool:
        """Whether this is an outcome, which never changes."""
        return self in _OUTCOMES


_OUTCOMES = frozenset({FlowState.DONE, FlowState.FAILED, FlowState.CANCELLED})


class FlowStatus(NamedTuple):
    """What is known of a flow.

    ``left``: members that are queued, scheduled or claimed; ``dead``: dead letters; ``missed``: those that were removed
    otherwise than by an ack.  ``done``: members that were acked, as one server has counted them.  ``ids``: under these
    names, the ids of the first hundred of each.  ``queues``: the queue of each of these, by its id.  ``nested``: those
    of them that stand for inner flows, and the name of each of these flows, whose home is that queue.  ``outer``: the
    flow of which this one is a member, as ``queue/name``, empty: none.
    """

    queue: str
    name: str
    state: FlowState
    left: int = 0
    dead: int = 0
    missed: int = 0
    done: int = 0
    ids: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    queues: Mapping[str, str] = MappingProxyType({})
    nested: Mapping[str, str] = MappingProxyType({})
    outer: str = ""


class FlowName(NamedTuple):
    """The name of a flow, which belongs to a queue, its home."""

    queue: str
    name: str

    @property
    def key(self) -> str:
        """The name in records."""
        return f"{self.queue}/{self.name}"

    def __str__(self) -> str:
        return f"flow {self.name!r} of queue {self.queue!r}"

    def id_of(self, member: str) -> str:
        """Return the id of the member that has this name."""
        return f"{self.name}.{member}"

    @classmethod
    def of(cls, key: bytes) -> FlowName:
        """Return the name that a record has; no name of a queue contains a slash."""
        queue, _, name = key.decode(errors="replace").partition("/")
        return cls(queue, name)


@dataclass(frozen=True, slots=True)
class Policy:
    """How a flow ends; see ``Queue.flow``.  In seconds; ``deadline`` None: no limit."""

    keep: Duration = KEEP
    fail_fast: bool = False
    ignore_missed: bool = False
    deadline: Duration | None = None
    keep_ms: int = field(init=False)
    deadline_ms: int = field(init=False)

    def __post_init__(self) -> None:
        keep = check_duration("keep", self.keep)
        if not KEEP_LEAST <= keep <= KEEP_MOST:
            raise ConfigError(f"keep is {keep} s: must be at least {KEEP_LEAST:g} and at most {KEEP_MOST:.0f} s")
        deadline = 0.0 if self.deadline is None else check_duration("deadline", self.deadline, positive=True)
        object.__setattr__(self, "keep_ms", round(keep * 1000))
        object.__setattr__(self, "deadline_ms", max(1, round(deadline * 1000)) if deadline else 0)


def check_state(state: FlowState | str | None) -> FlowState | None:
    """Return a state of flows, None: any.  Raises ``ConfigError``."""
    try:
        return None if state is None else FlowState(state)
    except ValueError:
        raise ConfigError(f"state is {state!r:.100}: must be one of {', '.join(FlowState)}") from None


def name_of_flow(queue: str, name: str | None) -> FlowName:
    """Return the name of a flow, None: a new one.  Raises ``ConfigError``."""
    if name is None:
        return FlowName(queue, secrets.token_hex(12))
    return FlowName(queue, check_name("the flow's name", name, most=FLOW_NAME_MAX))
