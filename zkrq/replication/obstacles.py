"""What is in the way of this client and perhaps of no other, as far as it knows.

It begins no write while it knows of a server that keeps it out: a write that the other servers take and this one does
not has an unknown outcome.  Nobody is evicted for an obstacle, since other clients may well use the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from zkrq.errors import Unavailable
from zkrq.events import Events, ServerUnusableHere
from zkrq.protocol.calls import Seal
from zkrq.protocol.replies import Answer, Verdict, denial
from zkrq.protocol.steps import Obstacles
from zkrq.protocol.view import ServerId, View
from zkrq.protocol.witness import Witness, contradiction
from zkrq.replication.fleet import Fleet
from zkrq.replication.full import FullServers

KEPT_OUT_SECONDS = 1.0
"""Seconds for which a client that a server keeps out takes that for granted; then it asks the server again."""


class KnownObstacles:
    """Remembers servers that are full, that keep this client out, and that answer other clients only."""

    def __init__(self, fleet: Fleet, witness: Witness, *, namespace: str, events: Events) -> None:
        self.full: Final = FullServers(namespace, events)
        self.kept_out: Final = dict[ServerId, tuple[Answer, float]]()
        """What each server that keeps this client out answered, and when."""
        self._fleet = fleet
        self._witness = witness
        self._namespace = namespace
        self._events = events

    @property
    def any(self) -> bool:
        """Whether anything is known to be in the way of a write."""
        return bool(self.kept_out or self._witness.contradicted or self.full.any)

    @property
    def trouble(self) -> tuple[str, ...]:
        """What keeps this client, and perhaps no other, from using servers of the view, for people."""
        kept_out = [f"server {id}: {answer.reason}" for id, (answer, _) in sorted(self.kept_out.items())]
        return (*kept_out, *map(contradiction, sorted(self._witness.contradicted)))

    async def find(self, view: View) -> Obstacles:
        """Find out what is in the way of a write under this view.

        Servers that kept this client out are asked again after ``KEPT_OUT_SECONDS``.  Raises ``Unavailable`` where a
        server answers others only; that one is asked by the probe.
        """
        for id in sorted(self._witness.contradicted):
            raise Unavailable(contradiction(id))
        if self.kept_out:
            asked_before = asyncio.get_running_loop().time() - KEPT_OUT_SECONDS
            due = [id for id, (_, at) in self.kept_out.items() if at <= asked_before and id in view.receivers]
            await self._fleet.ask_in(view, sorted(due), Seal())
        kept_out = {id: answer for id, (answer, _) in self.kept_out.items() if id in view.receivers}
        return Obstacles(kept_out, tuple(self.full.among(view)))

    # -- what is learned -----------------------------------------------------------------------------------------------

    def note_failure(self, server: ServerId, answer: Answer) -> None:
        """Remember an answer that lies with this client; forget the last one."""
        known = self.kept_out.pop(server, None)
        if answer.verdict in (Verdict.CORRECT, Verdict.WAIT):
            self.kept_out[server] = answer, asyncio.get_running_loop().time()
            if known is None or known[0].status is not answer.status:
                self._report(server, denial(server, answer))

    def note_contradicted(self, server: ServerId) -> None:
        """Report a server that was found to answer others only."""
        self._report(server, contradiction(server))

    def keep_only(self, servers: Mapping[ServerId, object]) -> None:
        """Forget the servers that are no longer among these."""
        for id in self.kept_out.keys() - servers.keys():
            del self.kept_out[id]

    def _report(self, server: ServerId, reason: str) -> None:
        self._events.tell(ServerUnusableHere(self._namespace, server, reason), logging.WARNING)
