"""Follow the life of the client's own session: check, record, log and report its changes in one place.

Both coordinators own one ``Lifecycle``; it does no I/O and reads no clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from zkrq.coordination.coordinator import TRANSITIONS, Listener, Session, SessionState

_ALIVE = frozenset({SessionState.CONNECTED, SessionState.SUSPENDED})  # states in which a session may lead
_LEVELS = {SessionState.SUSPENDED: logging.WARNING, SessionState.LOST: logging.WARNING}


class Lifecycle:
    """Hold the session, whether it leads, and all listeners.

    A change is recorded before any listener is called, so a listener that looks sees what was reported.
    """

    def __init__(self, log: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self.session = Session(id="", state=SessionState.CONNECTING)
        self.leading = False
        self._listeners: list[Listener] = []
        self.log = log

    @property
    def state(self) -> SessionState:
        return self.session.state

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def connected(self, id: str) -> None:
        """Note that the session ``id`` is answered: the old one again, or a new one after ``LOST``."""
        self._move(Session(id, SessionState.CONNECTED))

    def suspended(self) -> None:
        self._move(Session(self.session.id, SessionState.SUSPENDED))

    def lost(self) -> None:
        self._move(Session(self.session.id, SessionState.LOST))
        self.lead(False)

    def closed(self) -> None:
        """Close the session from any state; a second call does nothing."""
        if self.state is SessionState.CLOSED:
            return
        self._move(Session(self.session.id, SessionState.CLOSED))
        self.lead(False)

    def lead(self, leading: bool) -> None:
        """Note whether this session leads, and report a change.  News of an ended session is ignored."""
        leading = leading and self.state in _ALIVE
        if leading == self.leading:
            return
        self.leading = leading
        self.log.info("session %s %s the election", self.session.id, "leads" if leading else "no longer leads")
        self._tell(lambda listener: listener.leading_changed(leading))

    def register_changed(self, register: str) -> None:
        self._tell(lambda listener: listener.register_changed(register))

    def consumers_changed(self) -> None:
        self._tell(lambda listener: listener.consumers_changed())

    def _move(self, session: Session) -> None:
        old = self.session
        if session.state not in TRANSITIONS[old.state]:
            raise RuntimeError(f"{old.state} -> {session.state} is not in the table of transitions")
        self.session = session
        level = _LEVELS.get(session.state, logging.INFO)
        self.log.log(level, "session %s: %s -> %s", session.id or "(none)", old.state.value, session.state.value)
        self._tell(lambda listener: listener.session_changed(session))

    def _tell(self, call: Callable[[Listener], None]) -> None:
        for listener in tuple(self._listeners):
            try:
                call(listener)
            except Exception:  # a listener's error must not stop the session
                self.log.exception("a listener raised: %r", listener)
