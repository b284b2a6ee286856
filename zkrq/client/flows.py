"""Make flows, push into them, and look at them, for one client: what ``zkrq.Flow`` asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from zkrq.base.checks import check_items
from zkrq.base.errors import ConfigError, ContradictsOrder, FlowEnded, OutcomeUnknown
from zkrq.base.flows import FlowName, FlowState, FlowStatus, Policy
from zkrq.base.meant import unknown_option
from zkrq.client.queue import Queue, parts_of
from zkrq.operations.push import PUSH, PushOptions, RepeatedOptions
from zkrq.producing.options import Options, read_options
from zkrq.protocol.flows import Stage
from zkrq.protocol.levels import Feature

if TYPE_CHECKING:
    from zkrq.base.errors import Receipt, Receipts
    from zkrq.client.flow_ends import Ends
    from zkrq.client.parts import QueueParts
    from zkrq.client.shards import Shards
    from zkrq.protocol.flows import Look

R = TypeVar("R")

_STATES: Mapping[Stage, FlowState] = {
    Stage.UNKNOWN: FlowState.UNKNOWN,
    Stage.OPEN: FlowState.OPEN,
    Stage.SEALED: FlowState.RUNNING,
    Stage.FAILING: FlowState.FAILING,
}
"""The state of a flow that has not ended, by its stage."""


class Flows:
    """The flows of one client.  Implements ``consuming.flow.FlowWork``."""

    def __init__(self, shards: Shards, ends: Ends, find: Callable[[str], Queue[Any]]) -> None:
        """``find``: returns the queue of a name, as this client has it."""
        self._shards = shards
        self._ends = ends
        self._find = find

    async def begin(self, flow: FlowName, policy: Policy) -> None:
        """Begin a flow; see ``Flow.begin``."""
        parts = self._parts(flow, None)
        self._shards.placement.check(Feature.FLOWS)
        await _declared(parts)
        stage = await self._steer(flow, "begin", keep_ms=policy.keep_ms)
        if stage not in (Stage.OPEN, Stage.SEALED):
            raise _ended(flow, stage)
        parts.pusher.note_stage(flow.key.encode(), is_open=stage is Stage.OPEN)

    async def seal(self, flow: FlowName) -> None:
        """Seal a flow; see ``Flow.seal``."""
        parts = self._parts(flow, None)
        stage = await self._steer(flow, "seal")
        if stage not in (Stage.SEALED, FlowState.DONE):
            raise _ended(flow, stage)
        parts.pusher.note_stage(flow.key.encode(), is_open=False)
        self._ends.look_soon(flow)

    async def cancel(self, flow: FlowName, *, stop: bool) -> None:
        """Cancel a flow; see ``Flow.cancel``."""
        await self._finish(flow, "cancel", FlowState.CANCELLED)

    async def finish(self, flow: FlowName) -> None:
        """End a flow as done; see ``Flow.finish``."""
        await self._finish(flow, "finish", FlowState.DONE)

    async def _finish(self, flow: FlowName, verb: str, outcome: FlowState) -> None:
        self._parts(flow, None)
        stage = await self._steer(flow, verb)
        if stage is not outcome:
            raise _ended(flow, stage)
        await self._ends.look(flow)

    async def _steer(self, flow: FlowName, verb: str, *, keep_ms: int = 0) -> Stage | FlowState:
        """Decide about a flow; return its stage then, or its outcome."""
        home = await self._shards.home(flow.queue)
        reply = await home.replicas.steer(flow.queue, flow.key, verb, keep_ms=keep_ms)
        stage = Stage(reply.now.decode())
        return FlowState(reply.outcome.decode()) if stage is Stage.ENDED else stage

    # -- looking -------------------------------------------------------------------------------------------------------

    async def status(self, flow: FlowName) -> FlowStatus:
        """Ask what is known of a flow; see ``Flow.status``."""
        self._parts(flow, None)
        return _status(flow, await self._ends.look(flow))

    async def wait(self, flow: FlowName, seconds: float | None) -> FlowStatus:
        """Wait for the end of a flow; see ``Flow.result``."""
        self._parts(flow, None)
        found = await self._ends.wait(flow, seconds)
        if found.stage is Stage.UNKNOWN:
            raise _ended(flow, found.stage)
        return _status(flow, found)

    # -- pushing -------------------------------------------------------------------------------------------------------

    async def push(self, flow: FlowName, item: Any, queue: Any, options: PushOptions) -> Receipt:
        """Push a member; see ``Flow.push``."""
        parts = self._parts(flow, queue)
        given = _read(options, Options(flow=flow.key.encode()))
        return await _push(parts, item, options, given)

    async def push_many(self, flow: FlowName, items: Iterable[Any], queue: Any, options: RepeatedOptions) -> Receipts:
        """Push many members; see ``Flow.push_many``."""
        parts = self._parts(flow, queue)
        check_items(items)
        given = _read(options, Options(flow=flow.key.encode()), "push_many()", _OF_MANY)
        await _declared(parts)
        observers = parts.pusher.observers
        seen = None
        if observers.pushes:
            seen = observers.begin_push(parts.name, None, None, given.headers, is_many=True)
            given = given._replace(headers=seen.headers)
        try:
            receipts = await parts.pusher.push_many(items, given)
        except BaseException as error:
            if seen:
                observers.end_push(seen, error)
            raise
        if seen:
            observers.end_push(seen, receipts)
        return receipts

    async def hold(self, flow: FlowName, item: Any, queue: Any, kind: str, options: PushOptions) -> Receipt:
        """Push what comes after a flow; see ``Flow.then``."""
        parts = self._parts(flow, queue)
        if parts.pusher.is_ordered:
            raise _nothing_held(parts.name)
        given = _read(options, Options(flow=flow.key.encode(), is_held=True), f"{kind}()")
        try:
            return await _push(parts, item, options, given)
        except ContradictsOrder as error:
            raise _nothing_held(parts.name) from error

    def _parts(self, flow: FlowName, queue: Any) -> QueueParts[Any]:
        """Return the inside of a queue, None: of the home of a flow.  Raises ``Closed``, ``WrongLoop``,
        ``ConfigError``."""
        found = self._find(flow.queue if queue is None else str(getattr(queue, "name", "")) or flow.queue)
        if queue is not None and found is not queue:
            what = "belongs to another cluster" if isinstance(queue, Queue) else "is no queue of this cluster"
            raise ConfigError(f"queue={queue!r:.200} {what}: give cluster.queue(name); nothing was written")
        parts = parts_of(found)
        parts.check_open()
        return parts


def _read(
    given: PushOptions | RepeatedOptions,
    usual: Options,
    what: str = "push()",
    known: frozenset[str] = frozenset(PUSH.by_name),
) -> Options:
    """Return the options of a push into a flow, checked.  ``usual``: without any.  Raises ``ConfigError``, and
    ``TypeError`` for one that ``what`` does not have."""
    if not given:
        return usual
    if unknown := given.keys() - known:
        raise unknown_option(what, min(unknown), known)
    return read_options(**cast("PushOptions", given))._replace(flow=usual.flow, is_held=usual.is_held)


_OF_MANY = frozenset({"delay", "at", "priority", "ttl", "headers", "group"})
"""Options of a push of many."""


async def _declared(parts: QueueParts[Any]) -> None:
    if (declaration := parts.context.declaration) and not declaration.is_done:
        await declaration.done()


async def _push(parts: QueueParts[Any], item: Any, named: PushOptions, options: Options) -> Receipt:
    """Push one item as ``Queue.push`` does."""
    await _declared(parts)
    pusher, id = parts.pusher, named.get("id")
    seen = None
    if pusher.observers.pushes:
        seen = pusher.observers.begin_push(parts.name, item, id, options.headers)
        options = options._replace(headers=seen.headers)
    try:
        call, pushed = pusher.begin(item, id, options)
        try:
            receipt = await pushed
        except OutcomeUnknown as error:
            error.ids = (call.id,)
            raise
    except BaseException as error:
        if seen:
            pusher.observers.end_push(seen, error)
        raise
    if seen:
        pusher.observers.end_push(seen, receipt)
    return receipt


def _status(flow: FlowName, found: Look) -> FlowStatus:
    state = FlowState(found.outcome.decode()) if found.stage is Stage.ENDED else _STATES[found.stage]
    return FlowStatus(flow.queue, flow.name, state)


def _ended(flow: FlowName, stage: Stage | FlowState) -> FlowEnded:
    if isinstance(stage, FlowState):
        return FlowEnded(f"{flow} has ended ({stage.value}): begin another one", outcome=stage.value)
    return FlowEnded(f"{flow} is unknown: it was never begun, or is forgotten since it has ended; begin another one")


def _nothing_held(queue: str) -> ConfigError:
    return ConfigError(
        f"queue {queue!r} keeps the order of its groups, so nothing can be held there until a flow ends: push it into "
        "another queue; nothing was written"
    )
