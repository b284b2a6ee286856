"""Hold the inside of one queue in one client: its pusher, the line of its consumers, and the part of each shard.

``Queue`` is its public face.  The client opens and closes it, adds and removes shards, and reports losses to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from zkrq.codecs import Codec
from zkrq.consuming.leases import Leases
from zkrq.consuming.line import Line
from zkrq.consuming.prefetch import Prefetcher
from zkrq.errors import Closed, Unavailable
from zkrq.home import Home
from zkrq.producing.pusher import Pusher
from zkrq.protocol.shards import ShardName
from zkrq.replication.replicas import Replicas

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class QueueShard(Generic[T]):
    """The part of a queue that is on one shard.  ``away`` tells why nothing can be had of it now, None if it can."""

    name: ShardName
    replicas: Replicas
    leases: Leases
    prefetcher: Prefetcher[T]
    away: Callable[[], str | None]

    def check_here(self) -> None:
        """Raise ``Unavailable`` if the shard is away."""
        if reason := self.away():
            raise Unavailable(reason)


@dataclass(eq=False, slots=True)
class QueueParts(Generic[T]):
    """Own the parts of a queue."""

    name: str
    cluster: str
    codec: Codec[T]
    home: Home
    pusher: Pusher[T]
    line: Line[T]
    missing: Callable[[], Mapping[ShardName, str]]
    """Returns the shards that this client could not open, and why."""
    shards: Sequence[QueueShard[T]] = ()
    is_open: bool = True

    @property
    def leases(self) -> Sequence[Leases]:
        """The leases of every shard."""
        return [shard.leases for shard in self.shards]

    @property
    def held(self) -> int:
        """Number of claims that this process holds, including those claimed ahead."""
        return sum(map(len, self.leases))

    def check_open(self) -> None:
        """Raise ``Closed`` after ``stop``, ``WrongLoop`` on another event loop than the cluster's."""
        self.home.check()
        if not self.is_open:
            raise Closed()

    def check_all_here(self) -> Sequence[QueueShard[T]]:
        """Return all shards.  Raises ``Unavailable`` if one of several is away, ``Closed``, ``WrongLoop``."""
        self.check_open()
        for name, reason in self.missing().items():
            raise Unavailable(f"shard {name} is away: {reason}")
        if len(self.shards) > 1:
            for shard in self.shards:
                shard.check_here()
        return self.shards

    def use(self, shards: Sequence[QueueShard[T]]) -> None:
        """Use these shards from now on; claims of others stay as they are."""
        self.shards = shards
        self.line.use([shard.prefetcher for shard in shards])

    def stop(self) -> None:
        """Stop claiming and pushing, and end every ``pop``.  Held claims may still be settled."""
        self.is_open = False
        self.line.close()
        self.pusher.stop()

    async def aclose(self) -> None:
        """Hand back the held claims, and wait for the calls in flight."""
        await asyncio.gather(*(leases.release_all() for leases in self.leases))
        await asyncio.gather(self.pusher.aclose(), *(leases.aclose() for leases in self.leases))

    def abandon(self) -> None:
        """Stop settling, even if ``aclose`` did not end in time: every waiter gets ``Closed``."""
        for leases in self.leases:
            leases.stop()
