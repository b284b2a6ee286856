"""Let this client's witness learn from every answer and every view, and ask the servers that are in doubt.

Every client asks every server in each new life, so that a client that meets a silent server usually has standing to
evict it; and it refutes the accusations of other clients.  See ``protocol/eviction.py``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zkrq.base.errors import ZkrqError
from zkrq.base.tasks import Rounds
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.view import Life, ServerId, View, accused_of_denial

if TYPE_CHECKING:
    from zkrq.protocol.eviction import Evicting
    from zkrq.replication.obstacles import KnownObstacles
    from zkrq.replication.runner import Runner

ASK_AGAIN_SECONDS = 1.0
"""Seconds after which a server that is accused of keeping clients out is asked again."""


class Attendance:
    """Update the witness and the known obstacles; ``run`` asks the servers that are in doubt."""

    def __init__(self, runner: Runner, evicting: Evicting, obstacles: KnownObstacles, *, namespace: str) -> None:
        self._runner = runner
        self._evicting = evicting
        self._witness = evicting.witness
        self._obstacles = obstacles
        self._again: asyncio.TimerHandle | None = None
        self._rounds = Rounds(self._attend, seconds=None)
        self.run = self._rounds.run
        """Ask servers that are in a new life or accused, until cancelled."""
        self._log = logging.LoggerAdapter(logging.getLogger("zkrq.view"), {"cluster": namespace})
        runner.membership.fleet.report_to(self._note_answers)
        runner.membership.watch_all(self._follow)

    async def _attend(self) -> None:
        try:
            await self._runner.repair(self._evicting.attend())
        except ZkrqError as error:
            self._log.info("servers could not be looked at: %s", error)
        if self._again:
            self._again.cancel()
        if accused_of_denial(self._runner.membership.view):
            # A server that lets clients in again, while it is accused, is not evicted.
            self._again = asyncio.get_running_loop().call_later(ASK_AGAIN_SECONDS, self._rounds.call)

    def _follow(self, view: View) -> None:
        self._obstacles.keep_only(view.receivers)
        news = self._witness.follow(view, asyncio.get_running_loop().time())
        # A server that has not been asked yet in its new life: ask now, so that this client has standing when it dies.
        if news.doubtful:
            self._rounds.call()
        for id in news.contradicted:
            self._obstacles.note_contradicted(id)

    def _note_answers(self, lives: Mapping[ServerId, Life], answers: Mapping[ServerId, Answer]) -> None:
        """Learn from the answers of servers that were called in the lives that the view names.  Servers that repair
        calls in other lives say nothing about the view's."""
        known, kept_out = self._witness.lives, self._obstacles.kept_out
        for id, answer in answers.items():
            life = lives[id]
            # An answer of another life says nothing about this one: standing is earned anew after each restart.
            if life != known.get(id):
                continue
            if answer.status not in (Status.OK, Status.STALE):
                self._obstacles.note_failure(id, answer)
                continue
            if kept_out:
                kept_out.pop(id, None)
            if self._witness.in_doubt and self._witness.heard(id, life):
                self._rounds.call()
