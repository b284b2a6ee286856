"""Ask the clients of a run whether their parts are consistent, while nothing happens.

One function of the library says so for a client and all its parts (``zkrq/client/client.py``).  It is asked between two
moments of the virtual clock, not after each callback, and not between any two: a mistake that is there for a moment and
gone again is left to chance, so that all of this costs no more than a few percent of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from zkrq.client.inner import client_of

if TYPE_CHECKING:
    from tests.simulation.world import Client, World

LOOKS_EVERY = 12
"""Moments of the virtual clock from one look at one client to the next look, at the next client."""


class Inspector:
    """Look at the clients in turn.  It draws nothing by chance, and changes nothing."""

    def __init__(self, world: World, every: int = LOOKS_EVERY) -> None:
        self._world = world
        self._every = every
        self._left = every
        self._turns = self._in_turn()

    def _in_turn(self) -> Iterator[Client | None]:
        while True:
            yield None
            yield from tuple(self._world.clients)

    def look(self) -> None:
        """Look at the next client, if a look is due."""
        self._left -= 1
        if not self._left:
            self._left = self._every
            if client := next(self._turns) or next(self._turns):
                self.inspect(client)

    def inspect(self, client: Client) -> None:
        """Report what is inconsistent in a client, if it has a cluster open and is of the present release.

        No client of the run is looked at any more then, since one mistake shows again and again.
        """
        if client.cluster is None or not client.code.is_present:
            return
        try:
            client_of(client.cluster).check_invariants()
        except AssertionError as error:
            self._every = self._left = 0
            self._world.found.violation(f"{client.name}: inconsistent: {error}")
