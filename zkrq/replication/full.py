"""Servers that have reached their ``maxmemory``, as this client has found out by its pushes.

A full server stays in the view: it drains, since claims and acks are still taken there.  No push completes meanwhile,
because one that the other servers took and this one did not has an unknown outcome.  So a server that is known
to be full is asked for room before anything is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from zkrq.events import Events, ServerFull, ServerHasRoom
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.view import ServerId, View

FULL_SECONDS = 10.0
"""Seconds since the last refusal until a server that takes items again is no longer asked beforehand."""


class FullServers:
    """Remembers when each of them last refused."""

    def __init__(self, namespace: str, events: Events) -> None:
        self._namespace = namespace
        self._events = events
        self._refused_at: dict[ServerId, float] = {}

    @property
    def any(self) -> bool:
        """Whether any server refused lately."""
        return bool(self._refused_at)

    def among(self, view: View) -> list[ServerId]:
        """The members that are to be asked for room."""
        return [id for id in self._refused_at if id in view.members] if self._refused_at else []

    def note(self, view: View, answers: Mapping[ServerId, Answer]) -> list[ServerId]:
        """Take note of answers to what needs memory; returns the members that refused it.  A learner that is full is
        evicted instead."""
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
