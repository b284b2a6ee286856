"""Remember servers that have reached their ``maxmemory``, as this client's pushes have shown.

A full server stays in the view: it drains, since it still executes claims and acks.  No push completes meanwhile,
because one that the other servers executed and this one did not has an unknown outcome.  So a server that is known to
be full is asked for room before anything is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from zkrq.events import Events, ServerFull, ServerHasRoom
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.view import ServerId, View

FULL_SECONDS = 10.0
"""Seconds since the last refusal until a server that accepts items again is no longer asked beforehand."""


class FullServers:
    """Remember when each server last refused."""

    def __init__(self, namespace: str, events: Events) -> None:
        self._namespace = namespace
        self._events = events
        self._refused_at: dict[ServerId, float] = {}

    @property
    def any(self) -> bool:
        """Tell whether any server refused recently."""
        return bool(self._refused_at)

    def among(self, view: View) -> list[ServerId]:
        """Return the members to ask for room."""
        return [id for id in self._refused_at if id in view.members] if self._refused_at else []

    def note(self, view: View, answers: Mapping[ServerId, Answer]) -> list[ServerId]:
        """Note answers to calls that need memory; return the members that refused.  A full learner is evicted
        instead."""
        refused = [id for id, answer in answers.items() if answer.status is Status.REFUSED and id in view.members]
        if not refused and not self._refused_at:
            return refused
        now = asyncio.get_running_loop().time()
        for id in refused:
            if id not in self._refused_at:
                self._events.tell(ServerFull(self._namespace, id), logging.WARNING)
            self._refused_at[id] = now
        for id, at in list(self._refused_at.items()):
            if id not in view.members:
                del self._refused_at[id]
            elif id in answers and answers[id].status is Status.OK and now - at >= FULL_SECONDS:
                del self._refused_at[id]
                self._events.tell(ServerHasRoom(self._namespace, id))
        return refused
