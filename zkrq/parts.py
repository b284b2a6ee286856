"""Hold the inside of one queue in one client: its leases, its prefetcher, its pusher.

``Queue`` is its public face.  The client opens and closes it, and reports losses to it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, TypeVar

from zkrq.codecs import Codec
from zkrq.consuming.leases import Leases
from zkrq.consuming.prefetch import Prefetcher
from zkrq.errors import Closed
from zkrq.home import Home
from zkrq.producing.pusher import Pusher
from zkrq.replication.replicas import Replicas

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class QueueParts(Generic[T]):
    """Own the parts of a queue."""

    name: str
    codec: Codec[T]
    home: Home
    replicas: Replicas
    leases: Leases
    prefetcher: Prefetcher[T]
    pusher: Pusher[T]
    is_open: bool = True

    def check_open(self) -> None:
        """Raise ``Closed`` after ``stop``, ``WrongLoop`` on another event loop than the cluster's."""
        self.home.check()
        if not self.is_open:
            raise Closed()

    def stop(self) -> None:
        """Stop claiming and pushing, and end every ``pop``.  Held claims may still be settled."""
        self.is_open = False
        self.prefetcher.close()
        self.pusher.stop()

    async def aclose(self) -> None:
        """Hand back the held claims, and wait for the calls in flight."""
        await self.leases.release_all()
        await asyncio.gather(self.pusher.aclose(), self.leases.aclose())

    def abandon(self) -> None:
        """Stop settling, even if ``aclose`` did not end in time: every waiter gets ``Closed``."""
        self.leases.stop()
