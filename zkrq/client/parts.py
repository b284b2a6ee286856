"""Hold the inside of one queue in one client: its pusher, the line of its consumers, and the part of each shard.

``Queue`` is its public face.  The client opens and closes it, adds and removes shards, and reports losses to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from zkrq.base.errors import Closed

if TYPE_CHECKING:
    from zkrq.base.codecs import Codec
    from zkrq.client.awaiting import Awaiting
    from zkrq.client.everywhere import Everywhere
    from zkrq.consuming.context import QueueContext
    from zkrq.consuming.leases import Leases
    from zkrq.consuming.line import Line
    from zkrq.consuming.supplier import Supplier
    from zkrq.producing.pusher import Pusher
    from zkrq.protocol.shards import ShardName
    from zkrq.replication.replicas import Replicas

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class QueueShard(Generic[T]):
    """The part of a queue that is on one shard."""

    name: ShardName
    replicas: Replicas
    leases: Leases
    supplier: Supplier[T]


@dataclass(eq=False, slots=True)
class QueueParts(Generic[T]):
    """Own the parts of a queue."""

    context: QueueContext
    pusher: Pusher[T]
    line: Line[T]
    everywhere: Everywhere
    """Finds the shards for calls that concern all of them."""
    shards: Sequence[QueueShard[T]] = ()
    is_open: bool = True
    waits: dict[str, Awaiting] = field(default_factory=lambda: dict[str, "Awaiting"]())
    """What waits for results, by shard: one for all faces of the queue."""

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self.context.queue

    @property
    def codec(self) -> Codec[T]:
        """What encodes and decodes its items."""
        return self.context.codec

    @property
    def leases(self) -> Sequence[Leases]:
        """The leases of every shard."""
        return [shard.leases for shard in self.shards]

    @property
    def held(self) -> int:
        """Number of claims that this process holds, including those claimed ahead."""
        return sum(map(len, self.leases))

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - Consumers are served by the shards of which claims are settled, each once.
        - Everything that is kept for this queue is consistent in itself.
        """
        names = [shard.name for shard in self.shards]
        assert len({*names}) == len(names), f"a shard twice: {names}"
        assert self.line.supplied_by(shard.supplier for shard in self.shards), "consumers are served by other shards"
        self.line.check_invariants()
        self.pusher.check_invariants()
        for leases in self.leases:
            leases.check_invariants()
        for wait in self.waits.values():
            wait.check_invariants()

    def rest(self) -> bool:
        """End the work in the background unless there is some; return whether there is none and nothing is held."""
        if self.line.has_consumers:
            return False
        idle = [shard.supplier.rest() and shard.leases.rest() for shard in self.shards]
        return all(idle) and self.pusher.is_idle

    def check_open(self) -> None:
        """Raise ``Closed`` after ``stop``, ``WrongLoop`` on another event loop than the cluster's."""
        self.context.own_loop.check()
        if not self.is_open:
            raise Closed()

    async def declared(self) -> None:
        """Return once this program's settings of the queue are declared, if it has some."""
        if (declaration := self.context.declaration) and not declaration.is_done:
            await declaration.done()

    def use(self, shards: Sequence[QueueShard[T]]) -> None:
        """Use these shards from now on; claims of others stay as they are."""
        self.shards = shards
        self.line.use([shard.supplier for shard in shards])

    def stop(self) -> None:
        """Stop claiming and pushing, and end every ``pop``.  Held claims may still be settled."""
        self.is_open = False
        self.line.close()
        self.pusher.stop()
        for wait in self.waits.values():
            wait.close()

    async def aclose(self) -> None:
        """Hand back the held claims, and wait for the calls in flight."""
        await asyncio.gather(*(leases.release_all() for leases in self.leases))
        await asyncio.gather(self.pusher.aclose(), *(leases.aclose() for leases in self.leases))

    def abandon(self) -> None:
        """Stop settling, even if ``aclose`` did not end in time: every waiter gets ``Closed``."""
        for leases in self.leases:
            leases.stop()
