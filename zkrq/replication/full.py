"""Remember servers that have reached their ``maxmemory``, as this client's pushes have shown.

A full server stays in the view: it drains, since it still executes claims and acks.  No push completes meanwhile,
because one that the other servers executed and this one did not has an unknown outcome.  So a server that is known to
be full is asked for room before anything is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from zkrq.base.events import Events, ServerFull, ServerHasRoom
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.view import ServerId, View

FULL_SECONDS = 10.0
"""Seconds since the last refusal until a server that accepts items again is no longer asked beforehand."""


class FullServers:
    """Remember when each server last refused."""

    def __init__(self, namespace: str, events: Events) -> None:
        self._namespace = namespace
        self._events = events
        self.refused_at: Final = dict[ServerId, float]()
        """When each server that is known to be full last refused, by the event loop's clock."""

    def among(self, view: View) -> list[ServerId]:
        """Return the members to ask for room."""
        return [id for id in self.refused_at if id in view.members] if self.refused_at else []

    def note(self, view: View, answers: Mapping[ServerId, Answer]) -> None:
        """Note answers to calls that need memory.  A full learner is evicted instead."""
        refused = [id for id, answer in answers.items() if answer.status is Status.REFUSED and id in view.members]
        if not refused and not self.refused_at:
            return
        now = asyncio.get_running_loop().time()
        for id in refused:
            if id not in self.refused_at:
                self._events.tell(ServerFull(self._namespace, id), logging.WARNING)
            self.refused_at[id] = now
        for id, at in list(self.refused_at.items()):
            if id not in view.members:
                del self.refused_at[id]
            elif id in answers and answers[id].status is Status.OK and now - at >= FULL_SECONDS:
                del self.refused_at[id]
                self._events.tell(ServerHasRoom(self._namespace, id))
