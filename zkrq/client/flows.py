"""Make flows, push into them, and look at them, for one client: what ``zkrq.Flow`` asks for.

A queue that is not the home of a flow is made a leg of it before a first item goes there.  A push into a leg that was
sealed tells home of it before it returns: what home has seen of the legs no longer counts then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from weakref import ReferenceType, ref

from zkrq.base.checks import check_items, check_name
from zkrq.base.errors import (
    Closed,
    ConfigError,
    ContradictsOrder,
    FlowEnded,
    NotInFlow,
    OutcomeUnknown,
    Receipt,
    Unavailable,
    ZkrqError,
)
from zkrq.base.flows import MANY_NAME_MAX, FlowName, FlowState, FlowStatus, Policy
from zkrq.base.ids import MARK
from zkrq.base.meant import options_of, unknown_option
from zkrq.base.tasks import Rounds
from zkrq.client.flow_ends import Ends, Shared, state_of
from zkrq.client.flow_lists import FlowLists, FlowPlace
from zkrq.client.flow_looks import FlowLooks
from zkrq.client.flow_register import FlowRegister
from zkrq.client.flow_results import each_result, result_of
from zkrq.client.queue import Queue, parts_of
from zkrq.operations.flows import AFTER
from zkrq.operations.push import PUSH, PUSH_MEMBER, ManyOptions, MemberOptions, PushOptions
from zkrq.producing.options import Options, of_member, out_of_order, read_options
from zkrq.protocol import calls, flows
from zkrq.protocol.flow_names import named
from zkrq.protocol.flow_nested import NESTED_MAX, read_all_nested, read_around, read_nested
from zkrq.protocol.flows import Look, Stage
from zkrq.protocol.levels import Feature
from zkrq.protocol.operations import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from zkrq.base.checks import Headers
    from zkrq.base.errors import Receipts
    from zkrq.base.events import Events
    from zkrq.base.results import Result
    from zkrq.base.tasks import Tasks
    from zkrq.client.parts import QueueParts
    from zkrq.client.results import ResultQueue
    from zkrq.client.shards import Shards
    from zkrq.coordination.coordinator import Coordinator
    from zkrq.protocol.records import Opens

R = TypeVar("R")

_OVER = (Stage.UNKNOWN, Stage.ENDED)

OPEN_SECONDS = 600.0
"""Seconds between two times that a client says of its open flows that they are to stay so."""

JOINED_MAX = 10_000
"""Legs that a client remembers."""

REDRIVE_ROUNDS = 1_000
"""Rounds of one ``redrive``.  Each finds up to a hundred dead letters in each queue."""


class Flows:
    """The flows of one client.  Implements ``consuming.flow.FlowWork``."""

    def __init__(
        self,
        shards: Shards,
        coordinator: Coordinator,
        tasks: Tasks,
        events: Events,
        cluster: str,
        find: Callable[[str], Queue[Any]],
        reading: Callable[[Queue[Any]], ResultQueue[Any, Any]],
    ) -> None:
        """``find``: returns the queue of a name, as this client has it; ``reading``: one that reads its results."""
        self._shards = shards
        self._tasks = tasks
        self._find = find
        self._reading = reading
        self._register = FlowRegister(coordinator)
        self._ends = Ends(shards, tasks, events, cluster)
        self.lists: Final = FlowLists(shards, self._register, self._ends)
        self.looks: Final = FlowLooks(shards, coordinator, self._register, self._ends)
        self._joined = dict[tuple[FlowName, str], None]()
        self._joining = Shared[tuple[FlowName, str], None](tasks)
        self._telling = Shared[FlowName, Look](tasks)
        self._last = FlowName("", ""), Options()
        self._open = dict[FlowName, ReferenceType[object]]()
        """Flows that this client has begun and not sealed, and who makes them."""
        self._keeps_open = False

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks."""
        self._ends.check_invariants()

    # -- deciding ------------------------------------------------------------------------------------------------------

    async def begin(self, flow: FlowName, policy: Policy, maker: object, outer: FlowName | None = None) -> None:
        """Begin a flow, as a member of an outer one, None: of none; see ``Flow.begin``."""
        parts = self._parts(flow, None)
        self._shards.placement.check(Feature.FLOWS)
        if outer is not None:
            await self._check_outer(flow, parts, outer)
        await parts.declared()
        await self._register.enter(flow.queue)
        letters = flows.Policy.FAILS_FAST * policy.fail_fast + flows.Policy.IGNORES_MISSED * policy.ignore_missed
        key = "" if outer is None else outer.key
        look = await self._ends.steer(
            flow, "begin", keep_ms=policy.keep_ms, policy=letters, deadline_ms=policy.deadline_ms, outer=key
        )
        if not look.stage.takes_members:
            raise _ended(flow, look)
        if outer is not None:
            if look.outer != outer.key:
                raise NotInFlow(f"{flow} runs already, and not in {outer}: give it another name; nothing was written")
            await self._stand_in(flow, parts, outer)
        is_open = look.stage is Stage.OPEN
        parts.pusher.note_stage(flow.key.encode(), is_open=is_open)
        if is_open:
            self._keep_open(flow, maker)

    def home_in(self, flow: FlowName, queue: Any) -> str:
        """Return the name of a queue, None: of the home of a flow.  Raises as ``Queue.push`` before it writes."""
        return self._parts(flow, queue).name

    async def _check_outer(self, flow: FlowName, parts: QueueParts[Any], outer: FlowName) -> None:
        """Raise unless a flow may be begun as a member of another one, of which its home is made a leg."""
        if parts.pusher.is_ordered:
            raise _nothing_held(parts.name)
        around = await self._ends.drive(read_around(OPERATIONS, outer.key))
        if not (stage := Stage(around.stage)).takes_members:
            raise _ended(outer, Look(stage, around.outcome, frozenset()))
        if flow.key in around.flows:
            raise NotInFlow(f"{flow} cannot be in {outer}: that is the same, or is in it itself; nothing was written")
        if len(around.flows) >= NESTED_MAX:
            raise NotInFlow(
                f"{outer} is in {len(around.flows) - 1} others: no more than {NESTED_MAX} flows can be in one another; "
                "nothing was written"
            )
        if flow.queue != outer.queue and (outer, flow.queue) not in self._joined:
            await self._join(outer, flow.queue)

    async def _stand_in(self, flow: FlowName, parts: QueueParts[Any], outer: FlowName) -> None:
        """Push what stands for a flow in the outer one, before its members; if that is refused, cancel the flow."""
        id, options = outer.id_of(flow.name), Options(flow=outer.key.encode(), inner=flow.key.encode())
        push = partial(parts.pusher.push, None, id, options, b"")
        try:
            if flow.queue == outer.queue:
                receipt = await push()
            else:
                receipt = await self._into_leg(outer, flow.queue, push)
                await self._note_pushed(outer, parts, [id])
            if receipt.new is not True:  # of this flow, unless the name is another member's
                home = await self._shards.home(flow.queue)
                if flow.key not in await home.replicas.run(read_nested(OPERATIONS, flow.queue, outer.key)):
                    look = await self._ends.steer(flow, "look")
                    has_ended = receipt.done or not look.stage.takes_members
                    raise _taken(flow, outer, has_ended=has_ended)
        except (FlowEnded, ConfigError) as error:
            await self._ends.steer(flow, "cancel")
            if isinstance(error, ContradictsOrder):
                raise _nothing_held(parts.name) from error
            raise

    def _keep_open(self, flow: FlowName, maker: object) -> None:
        self._open[flow] = ref(maker)
        if not self._keeps_open:
            self._keeps_open = True
            self._tasks.supervise(Rounds(self._say_open, seconds=OPEN_SECONDS).run, "keep flows open")

    async def _say_open(self) -> None:
        """Say of flows that their makers are there; one whose maker is gone fails after an hour."""
        self._open = {flow: maker for flow, maker in self._open.items() if maker() is not None}
        for flow in [*self._open]:
            try:
                look = await self._ends.steer(flow, "open")
            except ZkrqError:
                continue
            if look.stage is not Stage.OPEN:
                self._open.pop(flow, None)

    async def seal(self, flow: FlowName) -> None:
        """Seal a flow; see ``Flow.seal``."""
        parts = self._parts(flow, None)
        look = await self._ends.steer(flow, "seal")
        self._open.pop(flow, None)
        if look.stage is Stage.UNKNOWN or look.outcome == flows.CANCELLED:
            raise _ended(flow, look)
        parts.pusher.note_stage(flow.key.encode(), is_open=False)
        if look.stage is Stage.SEALED and flows.Kind.LIVING not in look.kinds:
            self._ends.look_soon(flow)

    async def cancel(self, flow: FlowName, *, stop: bool) -> None:
        """Cancel a flow; see ``Flow.cancel``."""
        await self._finish(flow, "cancel", flows.CANCELLED, stop=stop)

    async def finish(self, flow: FlowName) -> None:
        """End a flow as done; see ``Flow.finish``."""
        await self._finish(flow, "finish", flows.DONE)

    async def _finish(self, flow: FlowName, verb: str, outcome: bytes, *, stop: bool = False) -> None:
        self._parts(flow, None)
        look = await self._ends.steer(flow, verb)
        self._open.pop(flow, None)
        if look.outcome != outcome:
            raise _ended(flow, look)
        await self._ends.look(flow, stop=stop, anew=True)

    async def cancel_all(self, queue: str) -> None:
        """Cancel all flows whose home is this queue, which is being deleted.  Raises as ``Flow.cancel``."""
        if not await self._may_have_flows(queue):
            return
        async for flow, _ in self.of_queue(queue):
            await self._ends.steer(flow, "cancel")
            await self._ends.look(flow, anew=True)

    async def _may_have_flows(self, queue: str) -> bool:
        """Tell whether flows may have begun in a queue: also if ZooKeeper does not say."""
        try:
            return queue in await self._register.read()
        except Unavailable:
            return True

    async def redrive(self, flow: FlowName) -> int:
        """Redrive the dead letters of a flow, and of its inner flows; see ``Flow.redrive``."""
        self._parts(flow, None)
        count, known, left = 0, {flow.key}, [flow.key]
        while left:
            key = left.pop()
            count += await self._redrive(key)
            inners = [inner for inner in await self._ends.drive(read_all_nested(OPERATIONS, key)) if inner not in known]
            known.update(inners)
            left += inners
        return count

    async def _redrive(self, key: str) -> int:
        count, seen = 0, set[tuple[str, str]]()
        for _ in range(REDRIVE_ROUNDS):
            found = await self._ends.drive(OPERATIONS.read_flow(key))
            letters = [(queue, item) for queue, item in found.items if item.kind == b"D" and not item.inner]
            dead = {(queue, item.id.decode()) for queue, item in letters} - seen
            if not dead:
                break
            seen |= dead
            for queue in sorted({queue for queue, _ in dead}):
                count += await self._find(queue).redrive(sorted(id for of, id in dead if of == queue))
        return count

    # -- looking -------------------------------------------------------------------------------------------------------

    async def status(self, flow: FlowName) -> FlowStatus:
        """Ask what is known of a flow; see ``Flow.status``."""
        self._parts(flow, None)
        return await self._ends.read(flow)

    async def wait(self, flow: FlowName, seconds: float | None) -> FlowStatus:
        """Wait for the end of a flow; see ``Flow.result``."""
        self._parts(flow, None)
        look = await self._ends.wait(flow, seconds)
        if look.stage is Stage.UNKNOWN:
            raise _ended(flow, look)
        status = await self._ends.read(flow)
        return status._replace(state=state_of(look.stage, look.outcome))

    def results(self, flow: FlowName) -> AsyncGenerator[Result[Any]]:
        """Read the results of members; see ``Flow.results``."""
        self._parts(flow, None)
        return each_result(self._shards, self._find_reading, flow)

    async def result_of(self, flow: FlowName, name: str) -> Result[Any]:
        """Read the result of one member; see ``Flow.result_of``."""
        self._parts(flow, None)
        return await result_of(self._shards, self._find_reading, flow, name)

    def _find_reading(self, queue: str) -> ResultQueue[Any, Any]:
        return self._reading(self._find(queue))

    async def of_queue(self, queue: str) -> AsyncGenerator[tuple[FlowName, Stage]]:
        """Find the flows whose home is this queue, and of which something is left to do, and how far each is.

        Raises ``Unavailable``.
        """
        async for flow, row in self.lists.rows(calls.FlowPage(queue)):
            yield flow, Stage(row.stage.decode())

    async def every(self, state: FlowState | None) -> AsyncGenerator[FlowStatus]:
        """Find the flows of all queues; see ``Cluster.flows``."""
        async for status, _ in self.lists.walk(state, FlowPlace()):
            yield status

    async def count(self) -> Mapping[str, Counter[FlowState]]:
        """Count the flows that have not ended, by their home and state; of queues whose home cannot be asked there are
        none.  Raises ``Unavailable``."""
        found: dict[str, Counter[FlowState]] = {}
        for queue in await self._register.read():
            try:
                stages = [stage async for _, stage in self.of_queue(queue)]
            except Closed:
                raise
            except ZkrqError:
                continue
            found[queue] = Counter(state_of(stage, b"") for stage in stages if stage not in _OVER)
        return found

    def tend(self, queue: str, due: Sequence[bytes]) -> None:
        """Look soon at flows of which a queue may have no living members any more."""
        for key in due:
            self._ends.look_soon(FlowName.of(key), queue)

    # -- pushing -------------------------------------------------------------------------------------------------------

    def push(self, flow: FlowName, item: Any, queue: Any, named: MemberOptions) -> Awaitable[Receipt]:
        """Push a member; see ``Flow.push``."""
        options = _of_member(flow, named)
        given = _read(options, self._usual(flow)) if options else self._usual(flow)
        if queue is None:
            return _push(parts_of(self._find(flow.queue)), item, options, given)
        parts = self._parts(flow, queue)
        if parts.name == flow.queue:
            return _push(parts, item, options, given)
        return self._push_into_leg(flow, parts, item, options, given)

    def _usual(self, flow: FlowName) -> Options:
        """Return the options of a member without others: the same for each of those that are pushed together."""
        last = self._last
        if last[0] != flow:
            last = self._last = flow, Options(flow=flow.key.encode())
        return last[1]

    async def push_after(
        self, flow: FlowName, item: Any, queue: Any, after: str | Iterable[str], member: MemberOptions
    ) -> Receipt:
        """Push a member that waits for others; see ``Flow.push``."""
        parts = self._parts(flow, queue)
        names = AFTER.kind.check("after", dict.fromkeys([after] if isinstance(after, str) else after))
        if parts.pusher.is_ordered:
            raise _nothing_held(parts.name)
        options = _of_member(flow, member)
        _check_held(options)
        given = _read(options, self._usual(flow))
        ids = {flow.id_of(name): name for name in names}
        found = await self._ends.drive(OPERATIONS.await_named(flow.key, list(ids)))
        if not found.look.stage.takes_members:
            raise _ended(flow, found.look)
        if missing := [name for id, name in ids.items() if id not in found.queues]:
            raise NotInFlow(f"after={missing[0]!r}: {flow} has no such member: push it first; nothing was written")
        given = given._replace(after=tuple(named(where, id) for id, where in found.queues.items()))
        try:
            if parts.name == flow.queue:
                receipt = await _push(parts, item, options, given)
            else:
                receipt = await self._push_into_leg(flow, parts, item, options, given)
        except ContradictsOrder as error:
            raise _nothing_held(parts.name) from error
        self._ends.look_soon(flow)  # they may have been acked before
        return receipt

    async def _push_into_leg(
        self, flow: FlowName, parts: QueueParts[Any], item: Any, options: PushOptions, given: Options
    ) -> Receipt:
        receipt = await self._into_leg(flow, parts.name, partial(_push, parts, item, options, given))
        # Also of an item that is known: the call that pushed it may not have told home.
        if not receipt.duplicate and parts.pusher.is_decided_about(given, options.get("id")):
            await self._note_pushed(flow, parts, [receipt.id])
        return receipt

    async def push_many(
        self, flow: FlowName, items: Iterable[Any], queue: Any, name: str | None, options: ManyOptions
    ) -> Receipts:
        """Push many members; see ``Flow.push_many``."""
        parts = self._parts(flow, queue)
        check_items(items)
        given = _read(options, self._usual(flow), "push_many()", _OF_MANY)
        push = partial(_push_many, parts, items, given, _bundles_of(flow, name, options, parts))
        if parts.name == flow.queue:
            return await push()
        receipts = await self._into_leg(flow, parts.name, push, repeats=isinstance(items, Sequence))
        if parts.pusher.is_decided_about(given, None):
            await self._note_pushed(flow, parts, [receipt.id for receipt in receipts])
        return receipts

    async def hold(self, flow: FlowName, item: Any, queue: Any, opens: Opens, options: PushOptions) -> Receipt:
        """Push what comes after a flow; see ``Flow.then``."""
        parts = self._parts(flow, queue)
        if parts.pusher.is_ordered:
            raise _nothing_held(parts.name)
        _check_held(options)
        given = _read(options, Options(flow=flow.key.encode(), opens=opens))
        push = partial(_push, parts, item, options, given)
        try:
            return await (push() if parts.name == flow.queue else self._into_leg(flow, parts.name, push))
        except ContradictsOrder as error:
            raise _nothing_held(parts.name) from error

    async def _into_leg(
        self, flow: FlowName, queue: str, push: Callable[[], Awaitable[R]], *, repeats: bool = True
    ) -> R:
        """Push into a leg, which is joined before, if this client does not know that it was.

        What it knows may be of an earlier flow of that name: then nothing was pushed, and it joins and pushes again.
        """
        if (flow, queue) in self._joined:
            try:
                return await push()
            except FlowEnded as error:
                outcomes = error.outcomes
                is_partial = outcomes is not None and len(outcomes.errors) < len(outcomes)
                if not repeats or is_partial:
                    raise
        await self._join(flow, queue)
        return await push()

    async def _join(self, flow: FlowName, queue: str) -> None:
        """Make a queue a leg of a flow: once for all pushes that wait for it."""
        key = flow, queue
        await self._joining.do(key, partial(self._join_once, flow, queue), f"join queue {queue} to {flow}")

    async def _join_once(self, flow: FlowName, queue: str) -> None:
        await self._register.enter(queue)
        look = await self._ends.drive(OPERATIONS.join_leg(queue, flow.key))
        if not look.stage.takes_members:
            raise _ended(flow, look)
        if queue not in look.legs:
            raise NotInFlow(f"{flow} has members in {len(look.legs) + 1} queues, more cannot be; nothing was written")
        if len(self._joined) >= JOINED_MAX:
            self._joined.clear()
        self._joined[flow, queue] = None

    async def tell_home(self, flow: FlowName) -> Look:
        """Have home know that members came to life in a leg: one call for all that came before it; return what home
        says."""
        live = partial(self._ends.steer, flow, "live")
        return await self._telling.do(flow, live, f"members of {flow} came to life", anew=True)

    async def _note_pushed(self, flow: FlowName, parts: QueueParts[Any], ids: Sequence[str]) -> None:
        """Have home know of members that were pushed into a leg; if it has ended, remove them again."""
        try:
            look = await self.tell_home(flow)
        except ZkrqError as error:
            text = f"pushed, but {flow} may not know of it: {error}; push again with the same ids"
            raise OutcomeUnknown(text, ids=tuple(ids)) from error
        if look.stage.takes_members:
            return
        await self._find(parts.name).cancel_many(ids)
        raise _ended(flow, look)

    def _parts(self, flow: FlowName, queue: Any) -> QueueParts[Any]:
        """Return the inside of a queue, None: of the home of a flow.  Raises ``Closed``, ``WrongLoop``,
        ``ConfigError``."""
        found = self._find(flow.queue if queue is None or not isinstance(queue, Queue) else queue.name)
        if queue is not None and found is not queue:
            what = "belongs to another cluster" if isinstance(queue, Queue) else "is no queue of this cluster"
            raise ConfigError(f"queue={queue!r:.200} {what}: give cluster.queue(name); nothing was written")
        parts = parts_of(found)
        parts.check_open()
        return parts


def _of_member(flow: FlowName, named: MemberOptions) -> PushOptions:
    """Return the options of a push, in which the name of a member is an id.  Raises ``ConfigError``, ``TypeError``."""
    if "name" not in named:
        return cast("PushOptions", named)
    check_names(named, "push()", _OF_MEMBER)
    return of_member(flow, named)


def _bundles_of(flow: FlowName, name: str | None, options: ManyOptions, parts: QueueParts[Any]) -> str:
    """Return what the names of the bundles of a push of many begin with, empty without a name.  Raises
    ``ConfigError``."""
    if name is None:
        return ""
    check_name("name", name, most=MANY_NAME_MAX)
    if alone := [each for each in ("delay", "at", "ttl") if options.get(each) is not None]:
        raise ConfigError(
            f"name and {alone[0]} exclude each other in push_many(): such items are stored one by one; push each under "
            "a name of its own; nothing was written"
        )
    if parts.pusher.is_ordered:
        raise out_of_order("a name of many")
    return f"{MARK}{flow.name}.{name}."


def _read(
    given: PushOptions | ManyOptions,
    usual: Options,
    what: str = "push()",
    known: frozenset[str] = frozenset(PUSH.by_name),
) -> Options:
    """Return the options of a push into a flow, checked.  ``usual``: without any.  Raises ``ConfigError``, and
    ``TypeError`` for one that ``what`` does not have."""
    if not given:
        return usual
    check_names(given, what, known)
    return read_options(**cast("PushOptions", given))._replace(flow=usual.flow, opens=usual.opens)


def _check_held(options: PushOptions) -> None:
    """Raise ``NotInFlow`` for an option that what is held cannot have."""
    if moments := [name for name in _MOMENTS if options.get(name) is not None]:
        raise NotInFlow(
            f"{moments[0]} of what is held would mean nothing: give a delay, which begins when it is let go; "
            "nothing was written"
        )


_MOMENTS = ("at", "at_latest")
"""Options of a push that say when an item is due, whatever it is held for."""


def check_names(given: Collection[str], what: str, known: Collection[str]) -> None:
    """Raise ``TypeError`` for an option that ``what`` does not have."""
    if unknown := set(given) - set(known):
        raise unknown_option(what, min(unknown), known)


_OF_MEMBER = frozenset(PUSH_MEMBER.by_name)
"""Options of a push of a member."""

_OF_MANY = frozenset(options_of(Queue[Any].push_many))
"""Options of a push of many."""


def _push(parts: QueueParts[Any], item: Any, named: PushOptions, options: Options) -> Awaitable[Receipt]:
    """Push one item as ``Queue.push`` does."""
    if parts.context.declaration or parts.pusher.observers.pushes:
        return _push_watched(parts, item, named.get("id"), options)
    return parts.pusher.push(item, named.get("id"), options)


async def _push_watched(parts: QueueParts[Any], item: Any, id: str | None, options: Options) -> Receipt:
    await parts.declared()
    pusher = parts.pusher
    if not pusher.observers.pushes:
        return await pusher.push(item, id, options)

    def push(headers: Headers) -> Awaitable[Receipt]:
        return pusher.push(item, id, options._replace(headers=headers))

    return await pusher.observers.watch_push(parts.name, item, id, options.headers, push)


async def _push_many(parts: QueueParts[Any], items: Iterable[Any], options: Options, name: str) -> Receipts:
    """Push many items as ``Queue.push_many`` does."""
    await parts.declared()
    pusher = parts.pusher
    if not pusher.observers.pushes:
        return await pusher.push_many(items, options, name)

    def push(headers: Headers) -> Awaitable[Receipts]:
        return pusher.push_many(items, options._replace(headers=headers), name)

    return await pusher.observers.watch_push(parts.name, None, None, options.headers, push, is_many=True)


def _ended(flow: FlowName, look: Look) -> FlowEnded:
    if look.stage is Stage.UNKNOWN:
        return FlowEnded(f"{flow} is unknown: it was never begun, or is forgotten since its end; begin another one")
    state = state_of(look.stage, look.outcome)
    if not state.has_ended:
        return FlowEnded(f"{flow} is {state.value}: nothing comes into it any more; begin another one")
    return FlowEnded(f"{flow} has ended ({state.value}): begin another one", outcome=state.value)


def _taken(flow: FlowName, outer: FlowName, *, has_ended: bool) -> ZkrqError:
    """Return the error for an inner flow whose name another member of the outer one has, or had."""
    if has_ended:
        return FlowEnded(f"{outer} had a member {flow.name!r} before, which has ended: begin another one")
    return NotInFlow(f"{outer} has another member {flow.name!r}: give the inner flow another name")


def _nothing_held(queue: str) -> NotInFlow:
    return NotInFlow(
        f"queue {queue!r} keeps the order of its groups, so nothing can be held there until a flow ends: push it into "
        "another queue; nothing was written"
    )
