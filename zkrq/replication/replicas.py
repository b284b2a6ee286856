"""Provide the protocol's operations to the rest of the library, with the errors that callers know."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar, Unpack

from zkrq.protocol import calls
from zkrq.protocol.operations import OPERATIONS, Operations
from zkrq.protocol.view import ask_for_map
from zkrq.replication.causes import UNKNOWN, Causes

if TYPE_CHECKING:
    from zkrq.protocol.calls import Call, Decision, NamesPage, Paged, Paging, PushDecided, Put, SteerReply
    from zkrq.protocol.deciding import Decided
    from zkrq.protocol.flows import Terms
    from zkrq.protocol.pushing import Pushes
    from zkrq.protocol.view import ServerId
    from zkrq.replication.runner import Confirm, Runner

R = TypeVar("R")
P = TypeVar("P", bound="Paged")


class Replicas:
    """Run operations over the servers of one namespace."""

    def __init__(self, runner: Runner, operations: Operations = OPERATIONS, causes: Causes = UNKNOWN) -> None:
        """``operations``: others than usual only in the model of the protocol.  ``causes``: what errors say about
        servers that are not in sync."""
        self.causes = causes
        self._operations = operations
        self.membership = runner.membership
        self.operation_timeout = runner.operation_timeout
        self.run, self.repair = runner.run, runner.repair
        self.drop_payloads_soon = runner.cutter.hurry
        self._cutter = runner.cutter

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks: of the view, the servers, and the payloads to drop."""
        self.membership.check_invariants()
        self._cutter.check_invariants()

    def push_plain(
        self,
        queue: str,
        puts: Sequence[Put],
        *,
        map_number: int = 0,
        patient: bool = True,
        confirm: Confirm | None = None,
    ) -> Awaitable[Pushes]:
        """Apply new items on every server.

        ``map_number``: number of the shard map by which they were placed here.  ``patient``: False: they can go
        elsewhere.  ``confirm``: tells whether they belong here by a newer map, once something may have been written.
        Raises ``NotEnoughReplicas``, ``Unavailable`` if nothing was written; ``MapChanged`` of these.
        """
        return self.run(self._operations.push_plain(queue, puts, map_number=map_number, patient=patient), confirm)

    def push_decided(
        self, call: PushDecided, *, map_number: int = 0, confirm: Confirm | None = None
    ) -> Awaitable[Pushes]:
        """Let the primary decide about new items; see ``Pushing.push_decided``, and ``push_plain`` for ``confirm``.

        Raises what ``push_plain`` does, and ``OutcomeUnknown``.
        """
        return self.run(self._operations.push_decided(call, map_number=map_number), confirm)

    def decide(self, call: Decision[R], *, map_number: int = 0) -> Awaitable[Decided[R]]:
        """Let the primary decide, and every other server apply the decision.

        ``map_number``: number of the shard map on which this rests, 0: on none.  Raises ``Unavailable`` if nothing
        happened, ``MapChanged`` if that is because a newer map is needed, ``OutcomeUnknown`` if it may have happened,
        ``ClaimLost`` if the owner was fenced.
        """
        return self.run(self._operations.decide(call, map_number=map_number))

    def steer(self, queue: str, flow: str, verb: str, **terms: Unpack[Terms]) -> Awaitable[SteerReply]:
        """Decide about a flow itself; see ``Flowing.steer``.  Raises as ``decide`` does."""
        return self.run(self._operations.steer(queue, flow, verb, **terms))

    async def fence(self, queue: str, owner: str) -> int:
        """Declare an owner dead on every server and requeue its claims; return the number of items.

        Raises ``Unavailable``, ``OutcomeUnknown``: the owner stays listed until all is done, so call this again.
        """
        return await self.run(self._operations.fence(queue, owner))

    async def ask_for_room(self) -> None:
        """Ask every server whether it would accept a push now.  Raises what a push would raise."""
        await self.run(self._operations.ask_for_room())

    async def ask(self, call: Call[R]) -> R:
        """Make a call that only reads on the queue's primary.  Raises ``Unavailable``."""
        return await self.run(self._operations.ask_primary(call))

    async def names(self, call: Paging[NamesPage], *, everywhere: bool = False, complete: bool = False) -> list[str]:
        """Return all names that a script gives page by page, of the primary or of every server; ``complete``: see
        ``Fencing.names``.  Raises ``Unavailable``."""
        return await self.run(self._operations.names(call, everywhere=everywhere, complete=complete))

    async def pages(self, call: Paging[P]) -> AsyncGenerator[tuple[P, bool]]:
        """Page through something on the queue's primary.

        True comes with the first page, and with the first page of another primary, or of another life of this one: a
        cursor is valid in one life of one server, so the scan starts over there.  Raises ``Unavailable``.
        """
        rest: Paging[P] | None = call
        leader = ""
        while rest is not None:
            leading = self.leader(call.queue)
            starts = leading != leader
            if starts:
                rest, leader = call, leading
            page = await self.ask(rest)
            if self.leader(call.queue) != leader:
                continue
            yield page, starts
            rest = rest.after(page)

    @property
    def level(self) -> int:
        """The active level of these servers, as far as this client knows."""
        return self.membership.view.level

    def primary(self, queue: str) -> ServerId:
        """Return the queue's primary, as far as this client knows."""
        return self.membership.seen(self.membership.view).primary(queue)

    def leader(self, queue: str) -> str:
        """Name the queue's primary in its present life: a cursor of a scan is valid in that life only."""
        view = self.membership.seen(self.membership.view)
        primary = view.primary(queue)
        return f"{primary} {view.members[primary].generation}"

    async def forget(self, queue: str) -> bool:
        """Forget a queue on the servers on which nothing of it is left or remembered; return whether on all.

        Raises ``Unavailable``.
        """
        return await self.run(self._operations.forget(queue))

    async def delete(self, queue: str, moment_ms: int) -> None:
        """Have every server remember that a queue was deleted, which was emptied just now.

        Raises ``Unavailable``, ``OutcomeUnknown``.
        """
        await self.run(self._operations.delete(queue, moment_ms))

    async def broadcast(self, topic: str, message: bytes) -> int:
        """Publish a message on every server that answers; return how many listen, -1 if this client may not publish.

        Raises ``Unavailable``.
        """
        return await self.run(self._operations.broadcast(topic, message))

    async def ask_for_map(self, number: int, *, after: int = 0) -> None:
        """Have every server refuse pushes that were placed by an older shard map than this; ``after``: under an epoch
        later than this one.  Raises ``Unavailable``."""
        membership = self.membership
        while (view := membership.view).map_number < number or view.epoch <= after:
            await membership.change(view, partial(ask_for_map, number=number, after=after))
        await self.tell_all(calls.Seal())

    async def tell_all(self, call: Call[None]) -> None:
        """Make a repeatable call on every server.  Raises ``Unavailable``."""
        await self.run(self._operations.tell_all(call))
