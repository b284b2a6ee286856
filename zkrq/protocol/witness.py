"""Remember what one client has experienced of the servers of its view, and what it may conclude from a server's
silence.

A crashed server and a broken link look the same to one client.  So a client judges a server by its silence only if it
has *standing* against it: the server has answered it in this life, and it has not evicted this process recently.
``eviction.py`` says which schedule breaks without that.

This module reads no clock: the caller passes the time, in seconds by a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from zkrq.protocol.view import (
    Accusation,
    Judgement,
    Life,
    ServerId,
    View,
    accused,
    accused_of_denial,
    judge_denial,
    judge_silence,
)

EVICTED_LATELY = 600.0
"""Seconds for which a client that has evicted a process for its silence has no standing against that process."""


class News(NamedTuple):
    """What a new view asks of this client.

    ``doubtful``: whether to ask servers, because they are in a new life or another client accuses them.
    ``contradicted``: servers that this client accused and that have since answered another client.
    """

    doubtful: bool
    contradicted: list[ServerId]


class _Known(NamedTuple):
    """An accusation, since when this client knows it, and whether the server has answered this client since."""

    accusation: Accusation
    since: float
    answered: bool


class Witness:
    """Remember which life of each server has answered this client, and since when each one fails it."""

    def __init__(self, client: str) -> None:
        """Begin without experience.  ``client``: name of this client in accusations."""
        self.client: Final = client
        self.lives: Mapping[ServerId, Life] = {}
        """Receivers of the view, in the lives that it names."""
        self.unmet = set[ServerId]()
        """Receivers that have not answered this client in their present life."""
        self.contradicted = set[ServerId]()
        """Receivers that answer other clients, and have not answered this one since it learned that."""
        self.unusable: Mapping[ServerId, str] = {}
        """Why each server has failed this client, where all members have, as far as it knows; otherwise empty."""
        self.in_doubt = False
        """Whether an answer of a server would change anything here; ``heard`` has an effect only then."""
        self._epoch = -1
        self._accused_of_silence = set[ServerId]()
        self._accusations: dict[ServerId, _Known] = {}
        self._failing_since: dict[tuple[ServerId, Life], float] = {}
        self._met: dict[ServerId, Life] = {}
        self._evicted: dict[ServerId, tuple[str, float]] = {}

    # -- observations --------------------------------------------------------------------------------------------------

    def meet(self, server: ServerId, life: Life) -> None:
        """Note that a server has answered in this life, before this client knows a view."""
        self._met[server] = life

    def follow(self, view: View, now: float) -> News:
        """Note a view that is newer than the last one, by its epoch or only by its accusations."""
        newer = view.epoch > self._epoch
        if newer:
            self._epoch, self.lives, self.unusable = view.epoch, view.receivers, {}
            lives = view.receivers.items()
            self._failing_since = {key: at for key, at in self._failing_since.items() if key in lives}
            self.unmet = {id for id, life in lives if self._met.get(id) != life}
        contradicted = self._note_accusations(view, now)
        self._settle()
        by_others = any(view.accusations[id].by != self.client for id in accused(view))
        return News(by_others or bool(accused_of_denial(view)) or (newer and bool(self.unmet)), contradicted)

    def _note_accusations(self, view: View, now: float) -> list[ServerId]:
        """Note since when each accusation is known; return the servers about which this client was contradicted.

        A refutation of an accusation that is over is no contradiction, because the server may have answered this client
        before it answered the others.
        """
        before = self._accusations
        self._accused_of_silence = accused(view) - accused_of_denial(view)
        self._accusations = {
            id: before[id] if id in before and before[id].accusation == accusation else self._learn(id, accusation, now)
            for id, accusation in view.accusations.items()
        }
        holding = {id for id, known in self._accusations.items() if self._contradicts(known)}
        new = sorted(holding - self.contradicted)
        self.contradicted = holding
        return new

    def _learn(self, server: ServerId, accusation: Accusation, now: float) -> _Known:
        return _Known(accusation, now, (server, self.lives[server]) not in self._failing_since)

    def _contradicts(self, known: _Known) -> bool:
        by, _, refuted, kept_out = known.accusation
        return refuted and by == self.client and not kept_out and not known.answered

    def heard(self, server: ServerId, life: Life) -> bool:
        """Note that a receiver has answered in the life that the view names, which gives this client standing; return
        whether to refute an accusation of that server now."""
        self.unusable = {}
        self._failing_since.pop((server, life), None)
        self._met[server] = life
        self.unmet.discard(server)
        self.contradicted.discard(server)
        if known := self._accusations.get(server):
            self._accusations[server] = known._replace(answered=True)
        self._settle()
        return server in self._accused_of_silence

    def _settle(self) -> None:
        doubts = self.unmet or self.contradicted or self._accusations or self._failing_since or self.unusable
        self.in_doubt = bool(doubts)

    def check_invariants(self) -> None:
        """Assert what holds between any two calls.

        - What is remembered of receivers is about receivers: a server that has left would be asked, or accused.
        - Only a failure of the present life counts, or a restarted server would be evicted for its former life.
        - ``in_doubt`` is true while anything is in doubt: where it is not, answers are not even passed on.
        """
        lives = self.lives.items()
        assert self.unmet <= self.lives.keys(), f"not met, and no receiver: {self.unmet}"
        assert self.contradicted <= self._accusations.keys() <= self.lives.keys(), f"accused: {self._accusations}"
        assert self._failing_since.keys() <= lives, f"a life that is over fails: {self._failing_since}"
        doubts = self.unmet or self.contradicted or self._accusations or self._failing_since or self.unusable
        assert self.in_doubt or not doubts, "answers are not heard though something is in doubt"

    # -- conclusions ---------------------------------------------------------------------------------------------------

    def note_failed(self, servers: Iterable[ServerId], now: float) -> float:
        """Note receivers that have failed this client; return since when all of them have."""
        self.in_doubt = True
        return max(self._failing_since.setdefault((id, self.lives[id]), now) for id in servers)

    def note_unusable(self, reasons: Mapping[ServerId, str]) -> None:
        """Note that all members have failed this client, and why."""
        self.in_doubt, self.unusable = True, reasons

    def note_evicted(self, lives: Mapping[ServerId, Life], now: float) -> None:
        """Note servers that this client has evicted for their silence, which costs it standing."""
        self._evicted.update({id: (life.run_id, now) for id, life in lives.items()})

    def has_standing(self, server: ServerId, now: float) -> bool:
        """Tell whether this client may judge a receiver by its silence."""
        life = self.lives[server]
        run_id, evicted_at = self._evicted.get(server, ("", 0.0))
        lately = run_id == life.run_id and now - evicted_at < EVICTED_LATELY
        return self._met.get(server) == life and not lately

    def failing_for(self, server: ServerId, now: float) -> float:
        """Return for how many seconds a receiver has failed this client without an answer in between."""
        return now - self._failing_since.get((server, self.lives[server]), now)

    def judge(self, view: View, server: ServerId, now: float, *, kept_out: bool, crowded: bool) -> Judgement:
        """Decide what this client may do about a receiver that keeps it out, has no room for it, or else does not
        answer it."""
        known = self._accusations.get(server)
        seconds = now - known.since if known else 0.0
        standing = self.has_standing(server, now)
        if kept_out:
            return judge_denial(view, server, standing=standing, seconds=seconds)
        answered = known is not None and known.answered
        return judge_silence(
            view, server, self.client, standing=standing, seconds=seconds, answered=answered, crowded=crowded
        )


CONTRADICTION = "it does not answer this client, but it does answer others: check the network between them"
"""What is wrong with a server that answers only other clients."""
