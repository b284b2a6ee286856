"""Remember what keeps this client, and perhaps no other, from completing writes.

It begins no write while it knows of a server that keeps it out: a write that the other servers execute and this one
does not has an unknown outcome.  No server is evicted for an obstacle, since other clients may well use it.

A server that has reached its ``maxmemory`` stays in the view, too: it drains, since it still executes claims and acks.
It is asked for room before anything is written.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from zkrq.base.events import ClocksApart, Events, ServerFull, ServerHasRoom, ServerUnusableHere
from zkrq.protocol.calls import Seal
from zkrq.protocol.clocks import AGREED, Compared
from zkrq.protocol.replies import IMPRESSIONS, Answer, Status, Verdict, denial
from zkrq.protocol.steps import Obstacles
from zkrq.protocol.view import ServerId, View
from zkrq.protocol.witness import CONTRADICTION

if TYPE_CHECKING:
    from zkrq.replication.fleet import Fleet

KEPT_OUT_SECONDS = 1.0
"""Seconds during which an answer that keeps this client out is trusted; then the server is asked again."""


FULL_SECONDS = 10.0
"""Seconds since the last refusal until a server that accepts items again is no longer asked beforehand."""


class KnownObstacles:
    """Remember servers that are full, that keep this client out, or that answer only other clients."""

    def __init__(self, fleet: Fleet, *, namespace: str, events: Events) -> None:
        self.kept_out: Final = dict[ServerId, tuple[Answer, float]]()
        """Answer of each server that this client cannot use, and when it came."""
        self.clocks = AGREED
        """How the clocks of servers and client compared when they were read last."""
        self._refusing: Mapping[ServerId, str] = {}
        self._full = dict[ServerId, float]()
        """When each server that is known to be full last refused, by the event loop's clock."""
        self._fleet = fleet
        self._namespace = namespace
        self._events = events

    @property
    def any(self) -> bool:
        """Tell whether any obstacle to a write is known."""
        return bool(self.kept_out or self._full or self._refusing)

    @property
    def trouble(self) -> tuple[str, ...]:
        """Why this client, and perhaps no other, cannot use servers of the view."""
        kept_out = tuple(f"server {id}: {answer.reason}" for id, (answer, _) in sorted(self.kept_out.items()))
        return kept_out + (self.clocks.sentences if self.clocks.stops_pushes else ())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong without consequences yet: clocks that differ, by less than makes servers refuse pushes."""
        return () if self.clocks.stops_pushes else self.clocks.sentences

    async def find(self, view: View) -> Obstacles:
        """Find the obstacles to a write under this view.

        Servers that this client could not use are asked again after ``KEPT_OUT_SECONDS``, and immediately once other
        clients are known to use them.
        """
        if self.kept_out:
            asked_before = asyncio.get_running_loop().time() - KEPT_OUT_SECONDS
            due = [id for id, (_, at) in self.kept_out.items() if at <= asked_before and id in view.receivers]
            # A seal changes nothing and needs every right that a write needs first, so its answer says whether a
            # write would be let in.  The answers come back through ``note_failure``.
            await self._fleet.ask_in(view, sorted(due), Seal())
        kept_out = {id: answer for id, (answer, _) in self.kept_out.items() if id in view.receivers}
        askew = {id: reason for id, reason in self._refusing.items() if id in view.receivers}
        return Obstacles(kept_out, tuple(id for id in self._full if id in view.members), askew)

    # -- observations --------------------------------------------------------------------------------------------------

    def note_failure(self, server: ServerId, answer: Answer) -> None:
        """Remember an answer whose cause is this client, or that may be; forget the previous one.

        A server that answers other clients stays an obstacle as long as it is silent here.
        """
        known = self.kept_out.pop(server, None)
        if answer.verdict in (Verdict.CORRECT, Verdict.ACCUSE, Verdict.WAIT):
            self._keep(server, answer)
            if known is None or known[0].status is not answer.status:
                self._report(server, denial(server, answer))
        # Another time-out of a server that may answer others tells nothing new, and must not lift the obstacle.
        elif known and known[0].status in (Status.SILENT, Status.CROWDED) and answer.status in IMPRESSIONS:
            self._keep(server, known[0])

    def _keep(self, server: ServerId, answer: Answer) -> None:
        self.kept_out[server] = answer, asyncio.get_running_loop().time()

    def note_contradicted(self, server: ServerId) -> None:
        """Note a server that answers other clients, and not this one; it is asked before the next write."""
        # The time of the answer lies in the past, so the next write asks first.  Refusing it without a question would
        # refuse calls although the server has been answering again since.
        known, _ = self.kept_out.get(server, (None, 0.0))
        if known and known.status is Status.CROWDED:  # it is known what is wrong, and reported
            self.kept_out[server] = known, -math.inf
            return
        self.kept_out[server] = Answer(Status.SILENT, (), CONTRADICTION), -math.inf
        self._report(server, f"server {server}: {CONTRADICTION}")

    def note_room(self, view: View, answers: Mapping[ServerId, Answer]) -> None:
        """Note answers to calls that need memory.  A full learner is evicted instead."""
        refused = [id for id, answer in answers.items() if answer.status is Status.REFUSED and id in view.members]
        if not refused and not self._full:
            return
        now = asyncio.get_running_loop().time()
        for id in refused:
            if id not in self._full:
                self._events.tell(ServerFull(self._namespace, id), logging.WARNING)
            self._full[id] = now
        for id, at in list(self._full.items()):
            if id not in view.members:
                del self._full[id]
            elif id in answers and answers[id].status is Status.OK and now - at >= FULL_SECONDS:
                del self._full[id]
                self._events.tell(ServerHasRoom(self._namespace, id))

    def note_clocks(self, compared: Compared) -> None:
        """Note how the clocks of servers that stay in the view compare; report it when that changes."""
        before, self.clocks, self._refusing = self.clocks, compared, compared.refusing()
        if compared.kind != before.kind:
            level = logging.WARNING if any(compared.kind) else logging.INFO
            self._events.tell(ClocksApart(self._namespace, compared.sentences), level)

    def keep_only(self, servers: Mapping[ServerId, object]) -> None:
        """Forget all other servers."""
        for id in self.kept_out.keys() - servers.keys():
            del self.kept_out[id]

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks: no obstacle is older than a later answer may make it.

        An answer from the future would be trusted for longer than ``KEPT_OUT_SECONDS``, and a server that lets this
        client in again would not be asked.
        """
        now = asyncio.get_running_loop().time()
        late = [id for id, (_, at) in self.kept_out.items() if at > now]
        late += [id for id, at in self._full.items() if at > now]
        assert not late, f"answers from the future of {late}"

    def _report(self, server: ServerId, reason: str) -> None:
        self._events.tell(ServerUnusableHere(self._namespace, server, reason), logging.WARNING)
