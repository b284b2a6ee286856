"""When servers are repaired: one by one they are brought back, all when none is left, and compared now and then.

How is the library's: these clients run its catch-up, its recovery and its scrub.
"""

from __future__ import annotations

from contextlib import suppress

from tests.model.altered import AlteredCatchUp, AlteredRecovery, AlteredScrub
from tests.model.content import QUEUE
from tests.model.membership import PAUSE, Steps
from tests.model.rules import Rule
from tests.model.runner import Client
from tests.model.world import World
from zkrq.protocol.catchup import dismiss_eligible
from zkrq.protocol.steps import Failure
from zkrq.protocol.view import ServerId, View


class Repairer(Client):
    """Brings servers back, and recovers when all members were restarted."""

    REPAIRS = 6
    """Where one client does not always reach one server, or there are several shards, they go on until it has ended,
    or those that use them."""
    LINGERS = 6
    """Turns between two, at most."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._unfinished: dict[ServerId, AlteredCatchUp] = {}

    def work(self) -> Steps[None]:
        world = self.world
        repairs = self.REPAIRS
        while repairs > 0 or (world.links and not world.links.is_over()) or world.is_busy():
            repairs -= 1
            for _ in range(world.below(self.LINGERS)):
                yield PAUSE
            yield from self.dismiss()
            if world.blackouts and self.is_recovery_due(self.view):
                yield from self.recover()
                continue
            outside = [id for id in world.servers if id not in self.view.members]
            if outside:
                yield from self.repair(outside[world.below(len(outside))])

    def repair(self, id: ServerId) -> Steps[None]:
        """Begin a catch-up, or go on with the one that failed last."""
        catch_up = self._unfinished.pop(id, None) or AlteredCatchUp(id, self.on, repairer=self.name)
        try:
            yield from self.run(catch_up.run())
        except Failure:
            self._unfinished[id] = catch_up
            return
        self.world.ledger.counts["joins"] += 1
        yield from self.dismiss()

    def dismiss(self) -> Steps[None]:
        """Give up the eligible servers as soon as that is allowed."""
        self.view = self.world.view
        if self.view.eligible:
            with suppress(Failure):
                yield from self.run(dismiss_eligible(self.view))

    def is_recovery_due(self, view: View) -> bool:
        """Whether no member is met in the life in which the view knows it."""
        met = [self.world.in_sync(id) and not self.world.servers[id].paused for id in view.members]
        return not any(met) if Rule.RECOVERY_ONLY_OF_THE_DEAD in self.on else not all(met)

    def recover(self) -> Steps[None]:
        try:
            recovered = yield from self.run(AlteredRecovery(self.on, repairer=self.name).run())
        except Failure:
            return
        self.world.ledger.counts["recoveries"] += recovered is not None


class Scrubber(Client):
    """Compares the followers with the primary, and corrects what a client left unfinished that died."""

    SCRUBS = 2

    def work(self) -> Steps[None]:
        for _ in range(self.SCRUBS):
            for _ in range(self.world.below(40)):
                yield PAUSE
            self.view = self.world.view
            yield from self.scrub()

    def scrub(self) -> Steps[bool]:
        """Whether everything was compared."""
        scrub = AlteredScrub(self.on, self.world.ledger.age)
        try:
            corrected = yield from self.run(scrub.run(QUEUE))
        except Failure:
            return False
        self.world.ledger.counts["scrubs"] += 1
        self.world.ledger.counts["corrected"] += sum(corrected)
        return True
