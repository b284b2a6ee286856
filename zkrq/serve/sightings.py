"""Remember since when this server has seen something: a process that consumes, an item in somebody's hands.

Neither ZooKeeper's registry nor an item's record has that moment, so what is told is a lower bound: "at least".
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

SIGHTINGS_MAX = 20_000
"""Things that are remembered; then the oldest is forgotten."""


class Sighting(NamedTuple):
    """Since when something is seen.  ``came``: whether it was looked for before, and was not there."""

    since: datetime
    came: bool


class Sightings(Generic[K]):
    """Remember when each of some things was first seen."""

    def __init__(self) -> None:
        self._seen: dict[K, Sighting] = {}
        self._looked = False

    def note_all(self, now: datetime, things: Iterable[K]) -> None:
        """Note everything that is there now, and forget the rest."""
        present = list(things)
        came = self._looked
        self._looked = True
        self._seen = {each: self._seen.get(each) or Sighting(now, came) for each in present}

    def note(self, now: datetime, things: Iterable[K]) -> None:
        """Note some of what is there now."""
        for each in things:
            self._seen.setdefault(each, Sighting(now, came=False))
        while len(self._seen) > SIGHTINGS_MAX:
            del self._seen[next(iter(self._seen))]

    def of(self, thing: K) -> Sighting | None:
        """Return since when something is seen, None if it was never seen."""
        return self._seen.get(thing)
