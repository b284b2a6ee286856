"""End flows: look whether anything is left of them, decide their end, and open what is held; see ``protocol/flows.py``.

Any client may do so.  It does where it knows of something to end: after a seal, after the ack of the last member, when
it waits for a result, and while it leads (``flow_looks.py``).  After a look that has found something left, the next one
waits for a while, and for longer after each further look.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, Unpack

from zkrq.base.errors import Closed, OutcomeUnknown, Unavailable, ZkrqError, own
from zkrq.base.events import FlowClosed, FlowStuck
from zkrq.base.flows import FlowName, FlowState, FlowStatus
from zkrq.base.tasks import wait_set
from zkrq.protocol.calls import SteerReply
from zkrq.protocol.flows import Figures, Kind, Look, Stage, look_of
from zkrq.protocol.operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from zkrq.base.events import Events
    from zkrq.base.tasks import Tasks
    from zkrq.client.shards import Shards
    from zkrq.protocol.flows import Tending, Terms

T = TypeVar("T")
K = TypeVar("K")

FIRST_PAUSE, LAST_PAUSE = 0.05, 2.0
"""Seconds between two looks of a caller that waits for the end of a flow: more from look to look."""

LOOK_EVERY = 10
"""Of these looks one would also end the flow; the others ask its home alone: acks and the leader end it."""

FIRST_REST, LAST_REST = 0.1, 2.0
"""Seconds after a look that has found something left, until the next one that an ack asks for: more from look to
look, if these follow one another."""

RESTS_MAX = 10_000
"""Flows whose last looks are remembered."""

_STATES: Mapping[Stage, FlowState] = {
    Stage.UNKNOWN: FlowState.UNKNOWN,
    Stage.OPEN: FlowState.OPEN,
    Stage.SEALED: FlowState.RUNNING,
    Stage.FAILING: FlowState.FAILING,
}
"""The state of a flow that has not ended, by its stage."""

_log = logging.getLogger("zkrq.flows")

_LISTED = {"left": (Kind.LIVING, Kind.WAITING), "dead": (Kind.DEAD,), "missed": (Kind.MISSED,)}


def state_of(stage: Stage, outcome: bytes) -> FlowState:
    """Return the state of a flow."""
    return FlowState(outcome.decode()) if stage is Stage.ENDED else _STATES[stage]


def status_of(flow: FlowName, found: Figures) -> FlowStatus:
    """Return the status of a flow, as users see it."""
    ids = {
        name: tuple(item.id.decode() for _, item in found.items if item.kind.decode() in kinds)
        for name, kinds in _LISTED.items()
    }
    state = state_of(found.stage, found.outcome)
    queues = {item.id.decode(): queue for queue, item in found.items}
    nested = {item.id.decode(): FlowName.of(item.inner).name for _, item in found.items if item.inner}
    counts = found.living, found.died, found.missed, found.done
    return FlowStatus(flow.queue, flow.name, state, *counts, ids, queues, nested, found.outer)


class Rest(NamedTuple):
    """When a flow may be looked at again, by the time of the event loop, and the pause after that look."""

    until: float
    pause: float

    def after(self, now: float) -> Rest:
        """Return the rest after a look that has found something left."""
        if now > self.until + LAST_REST:
            return Rest(now + FIRST_REST, 2 * FIRST_REST)
        return Rest(now + self.pause, min(LAST_REST, 2 * self.pause))


class Shared(Generic[K, T]):
    """Do things once at a time for all who ask for the same; an error is told to each of them."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._running = dict[K, asyncio.Task[T | ZkrqError]]()
        self._begun = set[K]()
        """Those of which the first step was done: what they find may be older than what a caller has seen."""

    async def do(self, key: K, act: Callable[[], Awaitable[T]], name: str, *, anew: bool = False) -> T:
        """Do it, or wait for the one who does.  ``anew``: only for one who begins after this call.  Raises what ``act``
        does."""
        while anew and key in self._begun:
            await asyncio.wait([self._running[key]])
        if key not in self._running:
            task = self._running[key] = self._tasks.start(self._do(key, act), name)
            task.add_done_callback(partial(self._forget, key))
        result = await asyncio.shield(self._running[key])
        if isinstance(result, ZkrqError):
            raise own(result)
        return result

    async def _do(self, key: K, act: Callable[[], Awaitable[T]]) -> T | ZkrqError:
        """Return an error as a result: it belongs to those who wait, and is not logged."""
        self._begun.add(key)
        try:
            return await act()
        except ZkrqError as error:
            return error

    def _forget(self, key: K, _: object) -> None:
        del self._running[key]
        self._begun.discard(key)


class Ends:
    """End the flows that this client looks at."""

    def __init__(self, shards: Shards, tasks: Tasks, events: Events, cluster: str) -> None:
        self._shards = shards
        self._tasks = tasks
        self._events = events
        self._cluster = cluster
        self._looks = Shared[tuple[FlowName, str, bool], Look](tasks)
        self._soon = dict[FlowName, asyncio.Task[None]]()
        """Flows that are looked at after a pause."""
        self._rests = dict[FlowName, Rest]()
        self._stuck = dict[FlowName, None]()
        """Flows of which this client has told that they are stuck."""
        self._waits = defaultdict[FlowName, set[asyncio.Event]](set)
        """What to set when a flow ends, for callers that wait."""

    async def drive(self, steps: Tending[T]) -> T:
        """Run an operation over the queues of flows, each part at the home of its queue.

        Raises ``Unavailable``: nothing of its last part happened; ``OutcomeUnknown``.  Then the next look goes on.
        """
        result: object = None
        try:
            while True:
                at = steps.send(result)
                shard = await self._shards.home(at.queue)
                result = await shard.replicas.run(at.operation)
                if at.flow and isinstance(result, SteerReply):
                    self._note_end(FlowName.of(at.flow.encode()), result)
        except StopIteration as end:
            return end.value
        finally:
            steps.close()

    async def steer(self, flow: FlowName, verb: str, **terms: Unpack[Terms]) -> Look:
        """Decide about a flow at its home; return what it is then.  Raises as ``drive``."""
        home = await self._shards.home(flow.queue)
        reply = await home.replicas.steer(flow.queue, flow.key, verb, **terms)
        self._note_end(flow, reply)
        return look_of(reply)

    async def read(self, flow: FlowName) -> FlowStatus:
        """Read what is known of a flow, without a decision.  Raises ``Unavailable``."""
        return status_of(flow, await self.drive(OPERATIONS.read_flow(flow.key)))

    # -- looking -------------------------------------------------------------------------------------------------------

    async def look(self, flow: FlowName, *, queue: str = "", stop: bool = False, anew: bool = False) -> Look:
        """End a flow if nothing is left of it, and open what is held; return what was found.

        ``queue``: where it was found, empty: at its home.  ``stop``: if it was cancelled, its claimed members are
        removed as well.  The same looks at the same time are one, unless it is to begin ``anew``: the one that is under
        way may have missed what was decided just now.  Raises as ``drive``.
        """
        asked = flow, queue or flow.queue, stop
        return await self._looks.do(asked, partial(self._look, *asked), f"ending {flow}", anew=anew)

    async def _look(self, flow: FlowName, queue: str, stop: bool) -> Look:
        found = await self.drive(OPERATIONS.tend_flow(queue, flow.key, stop=stop))
        if found.stage in (Stage.UNKNOWN, Stage.ENDED):
            self._forget(flow)
            if found.outer:  # it may have waited for this one
                self.look_soon(FlowName.of(found.outer.encode()))
        else:
            await self._note_left(flow, found)
        return found

    def look_soon(self, flow: FlowName, queue: str = "") -> None:
        """Look at a flow in the background: immediately, unless it was looked at just now.  ``queue``: see ``look``."""
        if flow not in self._soon:
            with suppress(Closed):
                task = self._soon[flow] = self._tasks.start(self._rest_and_look(flow, queue), f"look at {flow}")
                task.add_done_callback(partial(self._forget_soon, flow))

    def _forget_soon(self, flow: FlowName, task: asyncio.Task[None]) -> None:
        if self._soon.get(flow) is task:
            del self._soon[flow]

    async def _rest_and_look(self, flow: FlowName, queue: str) -> None:
        now = asyncio.get_running_loop().time()
        if flow in self._rests and self._rests[flow].until > now:
            await asyncio.sleep(self._rests[flow].until - now)
        self._soon.pop(flow, None)  # what is asked for from now on may have come after this look
        try:
            await self.look(flow, queue=queue, anew=True)
        except ZkrqError as error:
            _log.info("%s could not be looked at: %s", flow, error, extra={"queue": flow.queue})

    def _note_end(self, flow: FlowName, reply: SteerReply) -> None:
        """Report a flow that this call has ended."""
        if reply.before != b"E" and reply.now == b"E":
            outcome = reply.outcome.decode()
            self._events.tell(FlowClosed(self._cluster, flow.queue, flow.name, outcome))
            self._forget(flow)

    def _forget(self, flow: FlowName) -> None:
        """Have callers that wait for a flow look at it: it has ended."""
        self._rests.pop(flow, None)
        self._stuck.pop(flow, None)
        for waiting in self._waits.get(flow, ()):
            waiting.set()

    async def _note_left(self, flow: FlowName, found: Look) -> None:
        """Have the next look wait for a while, and report a flow once that nothing but a redrive brings to an end."""
        now = asyncio.get_running_loop().time()
        if len(self._rests) >= RESTS_MAX:
            self._rests.clear()
            self._stuck.clear()
        if found.released:
            self._rests.pop(flow, None)
        else:
            self._rests[flow] = self._rests.get(flow, Rest(now, FIRST_REST)).after(now)
        if found.stage is not Stage.SEALED or Kind.LIVING in found.kinds:
            self._stuck.pop(flow, None)
        elif flow not in self._stuck and found.kinds & {Kind.DEAD, Kind.MISSED}:
            self._stuck[flow] = None
            try:
                status = await self.read(flow)
            except ZkrqError:
                self._stuck.pop(flow, None)  # the next look tells it
                return
            told = FlowStuck(self._cluster, flow.queue, flow.name, status.dead, status.missed)
            self._events.tell(told, logging.WARNING)

    def is_stuck(self, flow: FlowName) -> bool:
        """Tell whether a flow waits for a redrive, as far as this client has looked."""
        return flow in self._stuck

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def wait(self, flow: FlowName, seconds: float | None) -> Look:
        """Return how a flow has ended, or, after ``seconds`` (None: never), what is left of it.

        Raises ``Unavailable`` if it could not be asked by then.
        """
        now = asyncio.get_running_loop().time
        until = None if seconds is None else now() + seconds
        told, pause = asyncio.Event(), FIRST_PAUSE
        self._waits[flow].add(told)
        try:
            for number in itertools.count():
                is_last = until is not None and now() >= until
                told.clear()
                try:
                    is_look = is_last or number % LOOK_EVERY == 0
                    found = await (self.look(flow) if is_look else self._glance(flow))
                    if found.stage in (Stage.ENDED, Stage.UNKNOWN) or is_last:
                        return found
                except (Unavailable, OutcomeUnknown):
                    if is_last:
                        raise
                await wait_set(told, pause if until is None else min(pause, max(0.0, until - now())))
                pause = min(LAST_PAUSE, pause * 1.5)
            raise AssertionError
        finally:
            self._waits[flow].discard(told)
            if not self._waits[flow]:
                del self._waits[flow]

    async def _glance(self, flow: FlowName) -> Look:
        """Ask home alone how far a flow is, which is one call, and decides nothing."""
        home = await self._shards.home(flow.queue)
        found = await home.replicas.run(OPERATIONS.read_members(flow.queue, flow.key))
        return Look(Stage(found.stage.decode()), found.outcome, frozenset(found.kinds.decode()))

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks: no more is remembered than may be, and nobody waits for a flow
        without a place to be told."""
        assert len(self._rests) <= RESTS_MAX
        assert len(self._stuck) <= RESTS_MAX
        assert all(self._waits.values()), "a flow that nobody waits for is remembered"
