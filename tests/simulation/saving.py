"""Have consumers save what they have done, and check what later deliveries are given.

What a returned save holds, or a delivery was given, every later delivery of the item is given; and no step that has
returned is run again.  Later: with a greater fencing token, whenever the consumer comes to look.
"""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.items import Item, Outcome
from tests.simulation.world import CALL_LIMIT, Client, Lane, World
from zkrq import Claim

STEPS = ("one", "two")


class Saver:
    """What one client's consumers of a queue save."""

    def __init__(self, client: Client, lane: Lane, chance: random.Random) -> None:
        self._client = client
        self._lane = lane
        self._chance = chance
        self._number = 0

    async def work(self, claim: Claim[Any], item: Item) -> None:
        """Save something, as a handler does; ends without an error, unless it is cancelled."""
        if not self._client.at_latest_level or item.returns or item.is_moved:
            return
        ended = await self._client.do("see what is saved", _given(claim), CALL_LIMIT)
        if ended.outcome is not Outcome.DONE or not self._is_of_this_life(item):
            return
        given: list[str] = ended.value or []
        self._check(claim, item, given)
        for name in STEPS:
            if self._chance.random() < 0.5:
                await self._do_step(claim, item, name)
        if self._chance.random() < 0.5:
            self._number += 1
            marks = [*given, f"{self._client.name} {self._number}"]
            saved = await self._client.do("save", claim.save(marks, extend=self._chance.random() < 0.5), CALL_LIMIT)
            if saved.outcome is Outcome.DONE:
                item.note_saved(marks, claim.token)

    def _is_of_this_life(self, item: Item) -> bool:
        return not (item.returns or item.reborn or item.deletions)

    def _check(self, claim: Claim[Any], item: Item, given: list[str]) -> None:
        missing = [mark for mark, token in item.saved.items() if token < claim.token and mark not in given]
        if missing:
            self._lane.ledger.violation(
                f"saved state lost: {item.label} under {tuple(claim.token)} with {given}, without {missing}"
            )
        self._lane.ledger.counts["states given"] += bool(given)
        item.note_saved(given, claim.token)

    async def _do_step(self, claim: Claim[Any], item: Item, name: str) -> None:
        is_new = False

        def run() -> int:
            nonlocal is_new
            is_new = True
            return item.deliveries

        ended = await self._client.do("step", _awaited(claim, name, run), CALL_LIMIT)
        before = item.steps.get(name)
        if is_new and before is not None and before < claim.token and self._is_of_this_life(item):
            self._lane.ledger.violation(
                f"done twice: step {name} of {item.label} under {tuple(claim.token)}, and under {before} before"
            )
        if ended.outcome is Outcome.DONE:
            self._lane.ledger.counts["steps done before"] += not is_new
            item.steps[name] = min(claim.token, before or claim.token)


async def _given(claim: Claim[Any]) -> list[str]:
    return list(claim.saved or [])


async def _awaited(claim: Claim[Any], name: str, run: Any) -> Any:
    return await claim.step(name, run)


def saves(world: World) -> bool:
    """Whether consumers of this run save at all.  Drawn by a chance of its own, so other runs stay as they were."""
    return world.rolling is not None or world.chance_for("saving").random() < 0.25
