"""Two releases side by side: which clients run which code, and when the level is raised, if ever."""

from __future__ import annotations

import asyncio
import enum
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.code import PRESENT, Code
from zkrq.protocol.levels import SPOKEN

if TYPE_CHECKING:
    from tests.simulation.world import Client, World

LEVEL_BEFORE = SPOKEN.lowest
"""The level of the release before."""

TRIES = 8
"""Operators, one after the other, that try to raise the level: each may die over it."""

TRY_SECONDS = 20.0
"""Seconds for which each has a try."""

UPGRADE_LIMIT = 60.0
"""Seconds within which ``upgrade`` ends."""


class Ending(enum.Enum):
    """What becomes of the level."""

    NEVER = "never"  # an operator goes back, or stays between the two
    WHEN_GONE = "when gone"  # raised when the clients of the release before were replaced
    OVER_THEM = "over them"  # raised by force, while they work


@dataclass(slots=True)
class Rolling:
    """One seed's plan.  Moments are parts of the time for which clients produce."""

    before: Code
    ending: Ending
    raised_at: float
    rolls: tuple[float, ...]
    auditor: Code
    """What the auditor runs: where the level is never raised, one of the release before has to find all in order."""
    only_present: bool = False
    """Whether most new clients are of this release by now."""
    raising: bool = False
    """Whether the level may have been raised."""
    raised: float | None = None
    """When an ``upgrade`` had returned."""

    def draw(self, chance: random.Random) -> Code:
        """Which code a new client runs."""
        return self.before if chance.random() < (0.15 if self.only_present else 0.5) else PRESENT

    def note_done(self, client: Client, kind: str, begun_at: float) -> None:
        """A call of a client has ended well: of one of the release before, none that was begun when the level had been
        raised may do so if it writes."""
        found = client.world.found
        if client.code is not self.before or "push" not in kind:
            return
        found.counts["pushed by the release before"] += 1
        if self.raised is not None and begun_at > self.raised:
            found.violation(f"{client.name}: {kind} was done, though it does not speak the level")

    def explains(self, error: BaseException | None) -> bool:
        """Whether an error is a refusal for the level, as either release says it."""
        return (self.raising and "it is at level" in str(error)) or "this needs level" in str(error)


def draw(chance: random.Random, before: Code) -> Rolling:
    """A seed's plan."""
    ending = chance.choice(list(Ending))
    rolls = tuple(sorted(chance.random() for _ in range(chance.randint(1, 5))))
    auditor = before if ending is Ending.NEVER and chance.random() < 0.5 else PRESENT
    return Rolling(before, ending, chance.uniform(0.1, 1.0), rolls, auditor)


async def raise_level(world: World, *, force: bool) -> None:
    """Have operators try it until one of them has done it."""
    plan = world.rolling
    assert plan
    for number in range(TRIES):
        operator = world.new_client(f"o{number}")
        operator.takes_part = False
        calling = operator.start(_upgrade(world, operator.name, force=force), "upgrade")
        done, _ = await asyncio.wait([calling], timeout=TRY_SECONDS)
        if done and not calling.cancelled() and calling.result():
            return


async def _upgrade(world: World, name: str, *, force: bool) -> bool:
    from tests.simulation.items import Outcome

    plan = world.rolling
    operator = next(client for client in world.clients if client.name == name)
    assert plan
    if not await operator.open() or (cluster := operator.cluster) is None:
        return False
    plan.raising = True
    world.trace.count("upgrade", name)
    ended = await operator.do("upgrade", cluster.upgrade(force=force), UPGRADE_LIMIT)
    await operator.close()
    if ended.outcome is not Outcome.DONE:
        await asyncio.sleep(1.0)
        return False
    plan.raised = world.loop.now
    return True
