"""Under which name this process claims: one owner id per session, entered in the registry before the first claim."""

from __future__ import annotations

import asyncio
import math

from zkrq.coordination.coordinator import Coordinator, SessionState

_ENDED_KEPT = 100
"""Ended sessions that are remembered, so that a claim that was under way meanwhile is not handed out."""


class Enrolment:
    """Enrols when the first claim is wanted, and again in every new session."""

    def __init__(self, coordinator: Coordinator, description: str) -> None:
        self._coordinator = coordinator
        self._description = description
        self._enrolling = asyncio.Lock()
        self._ended: list[str] = []
        self._valid_until = -math.inf
        self.owner: str | None = None
        """The owner id of the present session, or None before the first claim in it."""

    async def get(self) -> str:
        """The owner id, enrolled.  With ZooKeeper away the one of the present session still serves.

        Raises ``Unavailable`` where there is none yet and ZooKeeper does not answer.
        """
        if self.owner is not None:
            return self.owner
        async with self._enrolling:
            if self.owner is None:
                owner = await self._coordinator.enrol(self._description)
                session = self._coordinator.session
                if session.id == owner and session.state is not SessionState.LOST:
                    self.owner = owner
                return owner
            return self.owner

    def is_certain(self) -> bool:
        """Whether the session certainly lives, by the last word from ZooKeeper."""
        now = asyncio.get_running_loop().time()
        if now >= self._valid_until:  # it only grows as long as the session lives
            self._valid_until = self._coordinator.valid_until
        return now < self._valid_until

    def end(self, session: str) -> None:
        """That session is over, and with it the owner of that name."""
        self._ended = [*self._ended[-_ENDED_KEPT + 1 :], session]
        self._valid_until = -math.inf
        if self.owner == session:
            self.owner = None

    def is_over(self, owner: str) -> bool:
        """Whether this owner's session is known to be over."""
        return owner in self._ended
