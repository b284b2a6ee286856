"""Who pushes members that wait for others of their flow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from tests.model.content import place_of
from tests.model.flowing import FLOW, Flowing
from tests.model.membership import PAUSE, Steps
from tests.model.server import content_of
from tests.model.world import World
from zkrq.protocol.calls import Put
from zkrq.protocol.flow_names import named
from zkrq.protocol.payloads import join
from zkrq.protocol.records import HELD, MEMBER, fresh, waiting_for, with_fields
from zkrq.protocol.steps import Failure


class Waiter(Flowing):
    """Pushes members that wait for some that are there."""

    WAITS = 250
    MOST = 2
    """Members that one waits for."""

    def __init__(self, world: World, numbers: Iterable[int]) -> None:
        super().__init__(world)
        self.numbers = list(numbers)

    def work(self) -> Steps[None]:
        for number in self.numbers:
            for _ in range(self.world.below(self.WAITS)):
                yield PAUSE
            with suppress(Failure):
                yield from self._push_after(number)

    def _push_after(self, number: int) -> Steps[None]:
        """Push a member after others.  Raises ``Failure``."""
        flow = self.world.ledger.flow
        bundles = sorted({place_of(item)[0] for item in flow.returned})
        some = {bundles[self.world.below(len(bundles))].decode() for _ in range(self.MOST if bundles else 0)}
        if not some:
            return
        found = yield from self.tend(self.operations.await_named(FLOW, sorted(some)))
        if not found.look.stage.takes_members or set(found.queues) != some:
            return
        put = _waiting(number, [named(queue, id) for id, queue in found.queues.items()])
        item = put.item_id(0).encode()
        flow.waits[item] = frozenset(each for each in flow.returned if place_of(each)[0].decode() in some)
        flow.counts["waits"] += yield from self.push(put, decided=True)


def _waiting(number: int, names: Sequence[str]) -> Put:
    id = f"{number:02}"
    fields = {MEMBER: FLOW.encode(), HELD: waiting_for(names)}
    return Put(id, with_fields(fresh(0, number), fields), join([content_of(id.encode())]))


def waiters(world: World) -> Sequence[Waiter]:
    """Those of a schedule."""
    return [Waiter(world, range(first, first + 2)) for first in (80, 85)]
