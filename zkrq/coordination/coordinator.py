"""Define the interface to coordination: ZooKeeper in production, plain memory inside one process.

A coordinator provides four things, and knows nothing about items:

- *registers*, the view among them, each changed only by compare-and-set;
- a *registry* of live consumers, whose entries end with their sessions;
- an *election*, so that housekeeping has one owner at a time (correctness never depends on there being only one);
- the state of the client's own *session*, with a monotonic deadline until which it is certainly alive.

Both implementations pass the one behaviour suite in ``tests/coordination``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from types import TracebackType
from typing import Protocol, Self

from zkrq.base.errors import ConfigError


class SessionState(enum.Enum):
    """States of a session; ``TRANSITIONS`` is the table of its transitions."""

    CONNECTING = "connecting"  # no session yet
    CONNECTED = "connected"  # the coordinator answers
    SUSPENDED = "suspended"  # it does not answer now; the session may still be alive
    LOST = "lost"  # the session is over, as the coordinator itself says; a new one is being made
    CLOSED = "closed"


TRANSITIONS: Mapping[SessionState, frozenset[SessionState]] = {
    SessionState.CONNECTING: frozenset({SessionState.CONNECTED, SessionState.CLOSED}),
    SessionState.CONNECTED: frozenset({SessionState.SUSPENDED, SessionState.LOST, SessionState.CLOSED}),
    SessionState.SUSPENDED: frozenset({SessionState.CONNECTED, SessionState.LOST, SessionState.CLOSED}),
    SessionState.LOST: frozenset({SessionState.CONNECTED, SessionState.CLOSED}),
    SessionState.CLOSED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Session:
    """A session and its state: ``id`` is new for every session and never used again; empty if there is none."""

    id: str
    state: SessionState


def owner_id(session: str, incarnation: int) -> str:
    """Return the owner id of a session's enrolment number ``incarnation``; the first one is the session's id."""
    return session if incarnation == 1 else f"{session}.{incarnation}"


def latest(told: Mapping[str, str]) -> dict[str, str]:
    """Return what live clients have said last, by the id of their session; ``told``: see ``Coordinator.clients``."""
    in_order = sorted(told.items(), key=lambda each: _number_of(each[0]))
    return {session_of(name): text for name, text in in_order}


def _number_of(name: str) -> tuple[int, str]:
    """Return what orders the names of one session; for those that no client has made, too."""
    number = name.partition(".")[2] or "1"
    return (len(number), number) if number.isascii() and number.isdecimal() else (0, "")


def session_of(owner: str) -> str:
    """Return the id of the session in which this owner was enrolled."""
    return owner.partition(".")[0]


VIEW = "view"
"""Name of the register that every namespace has: it holds the view, and the namespace exists once it is written."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A register's content: ``data`` is None and ``version`` -1 until it is first written."""

    data: bytes | None
    version: int


NAMESPACES_SHOWN = 20
"""Names of other namespaces that an error text lists."""


def no_namespace(namespace: str, others: Sequence[str] = ()) -> ConfigError:
    """Return the error for a client that may not found the namespace and finds none.  Similar names come first."""
    alike = sorted(others, key=lambda other: SequenceMatcher(None, other, namespace).ratio(), reverse=True)
    shown = ", ".join(alike[:NAMESPACES_SHOWN]) + (", ..." if len(others) > NAMESPACES_SHOWN else "")
    return ConfigError(
        f"namespace {namespace!r} does not exist here ({f'there are: {shown}' if shown else 'there are none'}); it is "
        "founded once, with `zkrq found`, zkrq.found() or connect(found=True); nothing was written"
    )


class Listener(Protocol):
    """Receive notice of changes.  Called on the event loop; must neither block nor raise.

    A call means "look again" and carries no state; several changes may arrive as one call.
    """

    def register_changed(self, register: str) -> None: ...

    def consumers_changed(self) -> None: ...

    def session_changed(self, session: Session) -> None: ...

    def leading_changed(self, leading: bool) -> None: ...


class Coordinator(Protocol):
    """Provide what zkrq needs of ZooKeeper.

    ``async with`` starts and ends the session.  Every method that waits is bounded by the operation timeout (a named
    bound of the implementation) and raises ``Unavailable`` beyond it; no exception of a driver escapes.
    """

    async def __aenter__(self) -> Self:
        """Start the session.  Raises ``Unavailable`` if no server answers within the session timeout, ``ConfigError``
        for a wrong address or credentials, or if a namespace that must exist does not."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the session, bounded and shielded.  Its entries in the registry are gone afterwards if the coordinator
        could be reached, otherwise when the session times out.  No task is left running."""
        ...

    @property
    def session(self) -> Session: ...

    @property
    def valid_until(self) -> float:
        """Time by ``loop.time()`` until which this session is certainly alive: sending time of the last answered
        request, plus the session timeout, less a margin.  If it has passed, the session may be over."""
        ...

    @property
    def leading(self) -> bool:
        """Whether this session won the election, as far as is known here."""
        ...

    async def stand_down(self) -> None:
        """Lead no more, in this session or a later one: this client cannot do what the leader does.  Raises
        ``Unavailable``: it may lead still."""
        ...

    def subscribe(self, listener: Listener) -> None:
        """Notify ``listener`` of further changes; it is not called for the present state."""
        ...

    def follow(self, register: str) -> None:
        """Notify listeners of changes of this register, too, from now on, and perhaps once of none; ``VIEW`` is
        always followed."""
        ...

    async def read(self, register: str) -> Versioned:
        """Read a register, at least as new as any write that had returned anywhere before this call."""
        ...

    async def swap(
        self, register: str, data: bytes, expected: int, *, given: tuple[str, int] | None = None
    ) -> Versioned | None:
        """Write ``data`` if the register still has version ``expected`` (-1: create it).

        ``given``: only if this other register, which was written before, still has this version, in one transaction.

        Where ZooKeeper was restored from an older backup, version numbers begin again where they were then.  So a
        followed register that has version ``expected``, and other data than this client last read or wrote under that
        number, counts as changed.

        Returns what was written, or None if another client was faster, with either register.  ``data`` must be unique
        to this attempt (a view contains the nonce of its writer): so a write whose reply was lost is recognised as
        done.  Raises ``Unavailable`` if the outcome could not be determined in time: it may have been written.
        """
        ...

    async def enrol(self, description: str, incarnation: int = 1) -> str:
        """Enter the current session in the registry of consumers and return its owner id (see ``owner_id``).

        A later ``incarnation`` is another owner: the entry of the previous one is removed, if it still exists.
        Idempotent within one session.  The entry ends with the session; a new session must enrol again.
        """
        ...

    @property
    def enrolled(self) -> int:
        """Number of live consumers, as far as this client knows, without asking ZooKeeper."""
        ...

    async def introduce(self, text: str, number: int = 1) -> None:
        """Say something of this client, which ends with its present session.

        Idempotent within one session for each ``number``; a later one replaces the one before it.
        """
        ...

    async def clients(self) -> Mapping[str, str]:
        """Return what live clients have said of themselves, by ``owner_id`` of their session and the number; of two
        of one session the later one counts."""
        ...

    async def consumers(self) -> Mapping[str, str]:
        """Return the descriptions of all live consumers by owner id; as new as ``alive``."""
        ...

    async def alive(self, *, proved: bool = False) -> frozenset[str]:
        """Return the owner ids of all live consumers, at least as new as any enrolment that had returned anywhere
        before this call.

        ``proved``: valid even if the coordinator's leader has been deposed without knowing it yet.  That costs a write,
        and is needed before a missing owner is declared dead.
        """
        ...
