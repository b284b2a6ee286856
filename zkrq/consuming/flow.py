"""A flow as users see it: items that belong together, and what comes after them.

::

    async with rows.flow("import-7") as flow:  # leaving seals it, an exception cancels it
        await flow.push_many(pages)
        await flow.then({"job": 7}, queue=reports)

A claim names the flow of its item, so a handler can push further members.  What a flow asks of its client is a small
interface (``FlowWork``): the rules of its end are in ``protocol/flows.py``.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack

from zkrq.base.checks import check_duration, check_name
from zkrq.base.errors import (
    ConfigError,
    FlowEnded,
    NotEnoughReplicas,
    OutcomeUnknown,
    QueueFull,
    Unavailable,
    ZkrqError,
    leaves_of,
)
from zkrq.base.flows import KEEP, MEMBER_NAME_MAX, Policy, name_of_flow
from zkrq.base.retry import judge
from zkrq.protocol.records import Opens

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
    from types import TracebackType

    from zkrq.base.checks import Duration
    from zkrq.base.errors import Receipt, Receipts
    from zkrq.base.flows import FlowName, FlowStatus
    from zkrq.base.results import Result
    from zkrq.operations.push import ManyOptions, MemberOptions, PushOptions


class Target(Protocol):
    """A queue that items of a flow are pushed into."""

    @property
    def name(self) -> str:
        """Its name."""
        ...


class FlowWork(Protocol):
    """The interface that a flow needs from its client.  Calls raise as those of ``Flow`` do."""

    async def begin(self, flow: FlowName, policy: Policy, maker: object, outer: FlowName | None = None) -> None: ...

    def home_in(self, flow: FlowName, queue: Any) -> str:
        """Return the name of a queue, None: of the home of a flow."""
        ...

    def push(self, flow: FlowName, item: Any, queue: Any, named: MemberOptions) -> Awaitable[Receipt]: ...

    async def push_after(
        self, flow: FlowName, item: Any, queue: Any, after: str | Iterable[str], member: MemberOptions
    ) -> Receipt: ...

    async def push_many(
        self, flow: FlowName, items: Iterable[Any], queue: Any, name: str | None, options: ManyOptions
    ) -> Receipts: ...

    async def hold(self, flow: FlowName, item: Any, queue: Any, opens: Opens, options: PushOptions) -> Receipt: ...

    async def seal(self, flow: FlowName) -> None: ...

    async def cancel(self, flow: FlowName, *, stop: bool) -> None: ...

    async def finish(self, flow: FlowName) -> None: ...

    async def redrive(self, flow: FlowName) -> int: ...

    async def cancel_all(self, queue: str) -> None: ...

    async def status(self, flow: FlowName) -> FlowStatus: ...

    async def wait(self, flow: FlowName, seconds: float | None) -> FlowStatus: ...

    def results(self, flow: FlowName) -> AsyncGenerator[Result[Any]]: ...

    async def result_of(self, flow: FlowName, name: str) -> Result[Any]: ...

    def tend(self, queue: str, due: Sequence[bytes]) -> None:
        """Look soon at flows of which a queue may have no living members any more."""
        ...


class Flow:
    """Items that belong together, and what comes after them.  Made by ``Queue.flow``, or found as ``Claim.flow``.

    ``async with`` begins it, and seals it when the block is left: no more comes from there, so the flow ends when its
    last member has ended.  An exception cancels it, unless it says that the work is to be repeated (``Unavailable``,
    ``OutcomeUnknown``, ``NotEnoughReplicas``, ``QueueFull``, ``RetryLater``, or a cancellation of the task): then the
    flow stays open, and who begins it again under its name goes on.  Nor does ``FlowEnded`` cancel it: one that is
    failing hands out what is held for that.  The block's exception is raised also if the cancel fails, with a note
    that says so.
    """

    __slots__ = ("__weakref__", "_is_over", "_name", "_outer", "_policy", "_work")

    def __init__(
        self, work: FlowWork, name: FlowName, policy: Policy | None = None, outer: FlowName | None = None
    ) -> None:
        """``policy``: of one that has to be begun; None: it was, as its members say.  ``outer``: the flow of which it
        becomes a member."""
        self._work = work
        self._name = name
        self._policy = policy
        self._outer = outer
        self._is_over = False
        """Whether it was ended through this object, so that leaving its block has nothing to seal."""

    @property
    def name(self) -> str:
        """Its name."""
        return self._name.name

    @property
    def queue(self) -> str:
        """Name of the queue on which it was begun, its home."""
        return self._name.queue

    def __repr__(self) -> str:
        return f"<Flow {self.name!r} of queue {self.queue!r}>"

    # -- making --------------------------------------------------------------------------------------------------------

    def flow(
        self,
        name: str | None = None,
        *,
        queue: Target | None = None,
        keep: Duration = KEEP,
        fail_fast: bool = False,
        ignore_missed: bool = False,
        deadline: Duration | None = None,
    ) -> Flow:
        """Return an inner flow, which becomes a member of this one when it is begun: this one ends after it.

        ``queue``: its home, None: that of this flow.  ``name``: as of ``Queue.flow``, but at most 63 characters: it is
        the name of a member here, too, so others may wait for it by ``after``, and no other member may have it.  The
        other options are those of ``Queue.flow``.

        Once the inner flow is done it counts as one member that was acked.  If it fails it is a dead letter here, with
        a reason that names it, and for good: a redrive leaves it.  If it is cancelled it counts as a member that was
        removed.  An inner flow that waits for a redrive holds this one up.  If this one fails its inner flows fail,
        too, and if it is cancelled they are cancelled; ``finish`` leaves them alone.

        ``begin`` of it raises as ``begin`` and ``push``; ``ConfigError`` for a flow that runs already and is no member
        of this one, for a name that another member has, if there were more than 8 flows in one another, and for a queue
        that keeps the order of its groups.  A maker that dies before the seal leaves an inner flow that fails after an
        hour; begun again under its name it goes on.
        """
        self._check_begun()
        named = name_of_flow(self._work.home_in(self._name, queue), name)
        check_name("the inner flow's name", named.name, most=MEMBER_NAME_MAX)
        return Flow(self._work, named, Policy(keep, fail_fast, ignore_missed, deadline), self._name)

    async def begin(self) -> Self:
        """Begin it; one of this name that runs goes on, with the policy with which it was begun.

        Raises ``FlowEnded`` if it has ended, and its outcome is still kept; ``ConfigError`` at a level that lacks
        flows; ``Unavailable``: nothing happened; ``OutcomeUnknown``: it may have begun, begin it again.
        """
        if self._policy is not None:
            await self._work.begin(self._name, self._policy, self, self._outer)
            self._policy = None
        return self

    async def push(
        self,
        item: Any,
        *,
        queue: Target | None = None,
        after: str | Iterable[str] = (),
        **options: Unpack[MemberOptions],
    ) -> Receipt:
        """Put one item into a queue, None: the flow's home; it is a member: the flow ends after it has ended.

        ``options``: those of ``Queue.push``, and ``name``: 1 to 63 characters as in names of queues.  A name makes the
        push repeatable while the flow runs: pushed several times under it, also after it was acked, the item exists
        once.  Its id is the flow's name, a dot and this name, so two flows of one name and of different homes should
        not push named members into the same queue.  Names of members that have ended are forgotten early if the queue's
        tombstones exceed their memory.  ``name`` and ``id`` exclude each other.

        The item goes to the home of its queue, if there are several shards.
        Handlers of members may push as well, also after the flow was sealed: that costs one more round trip.

        ``after``: names of up to 100 members, in whatever queues: the item is held until all of these are acked.  They
        have to be pushed before, and may have ended already, so nothing can wait for itself.  While one of
        them is a dead letter or was removed, the item waits as the flow does, for a redrive; when the flow fails or
        ends, it is removed, as missed.  Its ``delay`` and ``ttl`` begin when it has waited; it takes no ``at``.

        Raises ``FlowEnded``: nothing was pushed; ``ConfigError`` for a name that no member has; otherwise as
        ``Queue.push``.
        """
        if self._policy is not None:
            raise self._not_begun()
        if after:
            return await self._work.push_after(self._name, item, queue, after, options)
        return await self._work.push(self._name, item, queue, options)

    async def push_many(
        self,
        items: Iterable[Any],
        *,
        queue: Target | None = None,
        name: str | None = None,
        **options: Unpack[ManyOptions],
    ) -> Receipts:
        """Put many items into a queue, None: the flow's home; each is a member.  Otherwise as ``Queue.push_many``.

        ``name``: 1 to 48 characters as in names of queues; it makes the push repeatable while the flow runs, as that of
        one member does: pushed several times under it, also after they were acked, these items exist once.  It names
        them by their order, so they have to be the same items, encoded alike; where they are not, the first one of its
        place wins.  No member can wait for it by ``after``.  It excludes ``delay``, ``at`` and ``ttl``, and queues that
        keep the order of their groups.
        """
        self._check_begun()
        return await self._work.push_many(self._name, items, queue, name, options)

    async def then(self, item: Any, *, queue: Target | None = None, **options: Unpack[PushOptions]) -> Receipt:
        """Put an item into a queue that is handed out once every member is done: it is *held* until then.

        It is stored with the flow, so it comes whichever clients and servers die; once, like any other item: it is
        delivered at least once.  A flow that is cancelled, or fails, drops it.  ``options``: those of ``Queue.push``
        but ``at`` and ``at_latest``; ``delay`` and ``ttl`` begin at the end of the flow; with an ``id`` a maker that is
        delivered again holds it once.  Raises as ``push``; ``ConfigError`` for a queue that keeps the order of its
        groups, in which nothing can be held.
        """
        self._check_begun()
        return await self._work.hold(self._name, item, queue, Opens.THEN, options)

    async def on_failure(self, item: Any, *, queue: Target | None = None, **options: Unpack[PushOptions]) -> Receipt:
        """Put an item into a queue that is handed out if the flow fails; it is held as one of ``then`` is.

        With it, a flow fails for good once nothing is left of it but dead letters, and members that were removed
        otherwise than by an ack; without it, such a flow waits for a redrive.  Raises as ``then``.
        """
        self._check_begun()
        return await self._work.hold(self._name, item, queue, Opens.FAILURE, options)

    async def always(self, item: Any, *, queue: Target | None = None, **options: Unpack[PushOptions]) -> Receipt:
        """Put an item into a queue that is handed out once the flow is done or has failed; see ``then``.

        A flow that is cancelled drops it.  Raises as ``then``.
        """
        self._check_begun()
        return await self._work.hold(self._name, item, queue, Opens.ALWAYS, options)

    async def seal(self) -> None:
        """Say that nothing more comes but what members push themselves: the flow ends after its last member.

        One without members ends immediately, as done.  One that is failing, or has ended by itself, stays as it is.
        Raises ``FlowEnded`` if it was cancelled, or is unknown; as ``begin`` otherwise: seal it again.
        """
        await self._work.seal(self._name)

    async def __aenter__(self) -> Self:
        """Begin it; see ``begin``."""
        return await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            with suppress(FlowEnded) if self._is_over else nullcontext():
                await self.seal()
        elif not _leaves_open(error):
            try:
                await self.cancel()
            except FlowEnded:
                pass
            except ZkrqError as failed:  # the caller has to see the block's own error
                error.add_note(f"flow {self.name!r} was not cancelled, and fails after an hour: {failed}")

    def _check_begun(self) -> None:
        if self._policy is not None:
            raise self._not_begun()

    def _not_begun(self) -> ConfigError:
        return ConfigError(
            f"flow {self.name!r} was not begun: `async with queue.flow(...) as flow`, or `await flow.begin()`; "
            "nothing was written"
        )

    # -- ending and looking --------------------------------------------------------------------------------------------

    async def cancel(self, *, stop: bool = False) -> None:
        """Cancel it: queued members are removed, and all that is held for it; its inner flows are cancelled.

        ``stop``: claimed members as well, whose handlers are stopped.  One that has ended stays as it is.
        Raises ``FlowEnded`` if it has ended otherwise, or is unknown; as ``begin`` otherwise: cancel it again.
        """
        await self._work.cancel(self._name, stop=stop)
        self._is_over = True

    async def finish(self) -> None:
        """End it as done now, whatever is left of its members; what follows is handed out.  Members that are
        left, and inner flows, go on.  Raises as ``cancel``."""
        await self._work.finish(self._name)
        self._is_over = True

    async def redrive(self) -> int:
        """Queue its dead letters again, in all of its queues, and those of its inner flows that have not ended; return
        how many, as ``Queue.redrive`` does.  What stands for an inner flow that has failed stays dead.

        Those of a flow that has ended are delivered as well, and change nothing of its outcome.
        """
        return await self._work.redrive(self._name)

    async def status(self) -> FlowStatus:
        """Ask what is known of it.  Raises ``Unavailable``."""
        return await self._work.status(self._name)

    async def result(self, timeout: Duration | None = None) -> FlowStatus:
        """Wait until it has ended, at most ``timeout`` seconds (None: for ever); return how.

        One that has not ended in time is returned as it is then: look at ``state.has_ended``.  Raises ``FlowEnded`` if
        it is unknown, ``Unavailable`` if it could not be asked in time.
        """
        return await self._work.wait(self._name, None if timeout is None else check_duration("timeout", timeout))

    def results(self) -> AsyncGenerator[Result[Any]]:
        """Read the results of its members, of queues with ``results``: ``async for result in flow.results()``.

        They come queue by queue, in the order of the ids, 500 at a time, of those members that were acked with a value.
        While the flow runs, that is what the servers know at that moment.  Results are kept as long as the flow runs,
        and after its end for its ``keep``; for less if the tombstones of their queue exceed their memory.  Raises
        ``Unavailable``, and ``CodecError`` for one that cannot be decoded.
        """
        return self._work.results(self._name)

    async def result_of(self, name: str) -> Result[Any]:
        """Read the result, or the present state, of the member that was pushed under a name; ``UNKNOWN`` without one.

        It is kept as those of ``results`` are.  Raises as ``ResultQueue.result``.
        """
        return await self._work.result_of(self._name, name)


def full_name(flow: Flow) -> FlowName:
    """Return the name of a flow, and that of its home: for other modules of the library, not for users."""
    return flow._name  # pyright: ignore[reportPrivateUsage]


def _leaves_open(error: BaseException) -> bool:
    """Tell whether an error that ends a block does not cancel its flow: the work is to be repeated, by what the error
    says, or the flow takes nothing more, and ends by itself."""
    if not isinstance(error, Exception):
        return True
    if all(isinstance(leaf, _LATER) for leaf in leaves_of(error)):
        return True
    failed = judge(error)
    return failed.is_wish and not failed.is_final


_LATER = (Unavailable, OutcomeUnknown, NotEnoughReplicas, QueueFull, FlowEnded)
