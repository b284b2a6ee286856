"""Look whether flows end in time: one of which nothing is left ends soon, and what is held for it becomes ready.

What is left is read from the servers themselves, so it is nobody's look that ends a flow.  Moments count only while
nothing is wrong: all servers of the views answer, in the lives that the views name, and none is being caught up.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

from tests.simulation.agreement import content_of
from tests.simulation.servers import ProcessState
from tests.simulation.world import SESSION_TIMEOUT, World
from zkrq.client.flow_ends import LAST_REST
from zkrq.client.flow_looks import LOOK_SECONDS
from zkrq.protocol.flows import ROUNDS, Kind, Policy, Stage
from zkrq.protocol.records import unpack

if TYPE_CHECKING:
    from tests.simulation.flow_book import FlowBook, Known, Part

HOME = "rows"
"""The queue on which all these flows are begun."""

QUEUES = (HOME, "prices")
"""Where their items go."""

WATCH_SECONDS = 0.25
"""Between two looks at what servers hold."""

LOOK_MESSAGES = ROUNDS * 12 * 4
"""Messages of a look at a flow of two queues, one after the other: twelve decisions a round, each of two calls."""

LOOKS = 2
"""Looks that may follow each other: one in flight ends before the one that an ack asks for begins."""


def end_seconds(message: float) -> float:
    """Within so long a flow ends whose last member was acked just now, where a message takes so long."""
    return LAST_REST + LOOKS * LOOK_MESSAGES * message + WATCH_SECONDS


LEADER_SECONDS = 2 * SESSION_TIMEOUT + LOOK_SECONDS
"""So much later it does where no client that is there was told: the leader looks, and may have to be elected before."""

_FLOWS, _RECORD = b"\xfe", b"\1flow "
"""What stands before the entries of flows in ``members``, and before the name of a flow in the id of its record."""


Found = dict[str, dict[str, set[str]]]
"""Bundles that some server has of flows, by the flow's name and their kind."""


class Left(NamedTuple):
    """What is left to do about a flow.  ``soon``: the client that knows of it is there."""

    what: str
    soon: bool


class FlowWatch:
    """Looks again and again at what is left of all flows."""

    def __init__(self, world: World, book: FlowBook) -> None:
        self._world = world
        self._book = book
        self._left = dict[str, tuple[Left, float]]()
        """What is left to do about flows, and since when."""
        self._is_watching = True
        self._is_audited = False
        self._quiet_from = 0.0
        """The first look since which nothing is wrong: what is late then was so before."""
        self._late = set[str]()

    def begin_audit(self) -> None:
        """Nothing goes wrong any more, and all clients but the auditor are gone."""
        self._is_audited = self._is_watching = True

    def stop(self) -> None:
        """Nobody is there any more that would end flows."""
        self._is_watching = False

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            self._look()

    def _look(self) -> None:
        now = self._world.loop.now
        if not self._is_quiet():
            self._left.clear()
            self._quiet_from = math.inf
            return
        self._quiet_from, kinds = min(self._quiet_from, now), self._kinds()
        for known in self._book.flows.values():
            self._note(known.name, self._left_of(known, kinds), now)
            for part in known.parts.values():
                if part.after:
                    self._note(f"{part.label} of {known.name}", self._waits(known, part, kinds), now)

    def _note(self, name: str, left: Left | None, now: float) -> None:
        """Note what is left to do, and report what is left for too long."""
        if left is None:
            self._left.pop(name, None)
            return
        before, since = self._left.get(name, (left, now))
        if before.what != left.what:
            before, since = left, now
        is_soon = left.soon and before.soon and since != self._quiet_from
        self._left[name] = left._replace(soon=is_soon), since
        limit = end_seconds(self._world.network.slowest) + (0.0 if is_soon else LEADER_SECONDS)
        if now - since > limit and name not in self._late:
            self._late.add(name)
            self._book.violation(f"late: {name} {left.what}, since {since:.3f} s")

    def _waits(self, known: Known, part: Part, kinds: Found) -> Left | None:
        """Whether a member waits though all were acked for which it does."""
        bundles = kinds.get(f"{HOME}/{known.name}", {}).get(Kind.WAITING, set())
        is_over = part.awaited_until < math.inf and part.ids & bundles
        return Left("waits for nobody", soon=True) if is_over else None

    def _is_quiet(self) -> bool:
        """Whether nothing is wrong, and what work costs is not counted."""
        world = self._world
        if not self._is_watching or not (world.found.calm or self._is_audited):
            return False
        if world.shape.pace.costs or not world.is_whole:
            return False
        return all(
            view.writable
            and not view.learners
            and not view.eligible
            and all(world.servers[id].status is ProcessState.UP and not world.servers[id].closed for id in view.members)
            for _, view in world.views
        )

    def _kinds(self) -> Found:
        """What there is of each flow on any server."""
        found: Found = {}
        for _, view in self._world.views:
            for server in view.members:
                for queue in QUEUES:
                    for entry in content_of(self._world, queue, server, "members"):
                        if entry.startswith(_FLOWS):
                            flow, _, bundle = entry[2:].decode().partition("\0")
                            found.setdefault(flow, {}).setdefault(chr(entry[1]), set()).add(bundle)
        return found

    def _left_of(self, known: Known, kinds: Found) -> Left | None:
        """What is left to do about a flow; None: nothing, or servers do not say the same, or one knows of none."""
        letters, said = kinds.get(f"{HOME}/{known.name}", {}).keys(), set(self._said(known))
        if len(said) != 1:
            return None
        stage, policy = said.pop()
        if stage is Stage.ENDED:
            is_open = letters & {Kind.RUNS, Kind.HELD, Kind.HELD_FOR_FAILURE, Kind.WAITING}
            return Left("has ended, and is not closed", soon=True) if is_open else None
        if Kind.LIVING in letters or stage is Stage.OPEN:
            return None
        failed = {Kind.DEAD} if Policy.IGNORES_MISSED in policy else {Kind.DEAD, Kind.MISSED}
        may_end = stage is Stage.FAILING or Policy.FAILS_FAST in policy or Kind.HELD_FOR_FAILURE in letters
        if letters & failed and not may_end:
            return None
        if Kind.WAITING in letters and not letters & failed:
            return None
        # What is removed otherwise than by an ack is told to nobody but the leader.
        return Left("has nothing left, and has not ended", soon=Kind.MISSED not in letters)

    def _said(self, known: Known) -> Iterator[tuple[Stage, str]]:
        """How far a flow is, and its policy, as each server has it."""
        id = _RECORD + f"{HOME}/{known.name}".encode()
        for _, view in self._world.views:
            found = [content_of(self._world, HOME, server, "records").get(id) for server in view.members]
            for packed in found if any(found) else ():
                bundle = unpack(cast("bytes", packed)[8:]) if packed else None
                if bundle is None:
                    yield Stage.UNKNOWN, ""
                elif bundle.states != "P":
                    yield Stage.ENDED, ""
                else:
                    stage, _, _, policy, *_ = bundle.text.split(" ")
                    yield Stage(stage), policy
