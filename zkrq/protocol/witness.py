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

from zkrq.protocol.view import Accusation, Life, ServerId, Silence, View, accused, weigh_silence

EVICTED_LATELY = 600.0
"""Seconds for which a client that has evicted a process for its silence has no standing against that process."""


class News(NamedTuple):
    """What a new view asks of this client.

    ``doubtful``: whether to ask servers, because they are in a new life or another client accuses them.
    ``contradicted``: servers that this client accused and that have since answered another client.
    """

    doubtful: bool
    contradicted: list[ServerId]


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
        """Receivers that answer other clients, but not this one."""
        self.nobody_answers = False
        """Whether all members have failed this client, as far as it knows."""
        self.in_doubt = False
        """Whether an answer of a server would change anything here; ``heard`` has an effect only then."""
        self._epoch = -1
        self._accused = set[ServerId]()
        self._accusations: dict[ServerId, tuple[Accusation, float]] = {}
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
            self._epoch, self.lives, self.nobody_answers = view.epoch, view.receivers, False
            lives = view.receivers.items()
            self._failing_since = {key: at for key, at in self._failing_since.items() if key in lives}
            self.unmet = {id for id, life in lives if self._met.get(id) != life}
        contradicted = self._note_accusations(view, now)
        self._settle()
        by_others = any(view.accusations[id].by != self.client for id in self._accused)
        return News(by_others or (newer and bool(self.unmet)), contradicted)

    def _note_accusations(self, view: View, now: float) -> list[ServerId]:
        """Note since when each accusation is known; return the servers about which this client was contradicted."""
        before, self._accused = self._accusations, accused(view)
        self._accusations = {
            id: before[id] if id in before and before[id][0] == accusation else (accusation, now)
            for id, accusation in view.accusations.items()
        }
        mine = {id for id in view.accusations.keys() - self._accused if view.accusations[id].by == self.client}
        new = [id for id in sorted(mine) if self._accusations[id] is not before.get(id)]
        self.contradicted = self.contradicted & mine | set(new)
        return new

    def heard(self, server: ServerId, life: Life) -> bool:
        """Note that a receiver has answered in the life that the view names, which gives this client standing; return
        whether to refute an accusation of that server now."""
        self.nobody_answers = False
        self._failing_since.pop((server, life), None)
        self._met[server] = life
        self.unmet.discard(server)
        self.contradicted.discard(server)
        self._settle()
        return server in self._accused

    def _settle(self) -> None:
        doubts = self.unmet or self.contradicted or self._accusations or self._failing_since or self.nobody_answers
        self.in_doubt = bool(doubts)

    # -- conclusions ---------------------------------------------------------------------------------------------------

    def note_failed(self, servers: Iterable[ServerId], now: float) -> float:
        """Note receivers that have failed this client; return since when all of them have."""
        self.in_doubt = True
        return max(self._failing_since.setdefault((id, self.lives[id]), now) for id in servers)

    def note_nobody_answers(self) -> None:
        """Note that all members have failed this client."""
        self.in_doubt = self.nobody_answers = True

    def note_contradicted(self, server: ServerId) -> None:
        """Note that this receiver answers only other clients."""
        self.in_doubt = True
        self.contradicted.add(server)

    def note_evicted(self, lives: Mapping[ServerId, Life], now: float) -> None:
        """Note servers that this client has evicted for their silence, which costs it standing."""
        self._evicted.update({id: (life.run_id, now) for id, life in lives.items()})

    def has_standing(self, server: ServerId, now: float) -> bool:
        """Tell whether this client may judge a receiver by its silence."""
        life = self.lives[server]
        run_id, evicted_at = self._evicted.get(server, ("", 0.0))
        lately = run_id == life.run_id and now - evicted_at < EVICTED_LATELY
        return self._met.get(server) == life and not lately

    def weigh(self, view: View, server: ServerId, now: float) -> Silence:
        """Decide what this client may do about a receiver that does not answer it."""
        _, since = self._accusations.get(server, (None, now))
        standing = self.has_standing(server, now)
        return weigh_silence(view, server, self.client, standing=standing, seconds=now - since)


def contradiction(server: ServerId) -> str:
    """Describe the problem with a server that answers only other clients."""
    return f"server {server} does not answer this client, but it does answer others: check the network between them"
