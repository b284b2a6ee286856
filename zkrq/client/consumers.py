"""Describe the live consumers of a namespace, and count the claims that each of them holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from zkrq.protocol import calls
from zkrq.protocol.levels import release_of

if TYPE_CHECKING:
    from zkrq.protocol.levels import ClientInfo
    from zkrq.replication.replicas import Replicas


class Consumer(NamedTuple):
    """A live consumer: its description, and the number of claims that it holds in each queue.

    ``version``: its release of zkrq, empty for one that names none.  ``host``: its machine.  ``since``: when its client
    connected, by the clock of that machine, None: unknown.  ``slots``: handlers that its workers run at the same time,
    0 for a loop over ``pop``.  ``pid``: of its process, 0: unknown.  ``quiet``: whether it claims nothing more, as an
    operator said (``Cluster.quiet``); it has finished once it holds no claim.
    """

    description: str
    claims: Mapping[str, int]
    version: str = ""
    host: str = ""
    since: datetime | None = None
    slots: int = 0
    pid: int = 0
    quiet: bool = False

    @property
    def release(self) -> str:
        """Its release for people to read: "of an unknown release" for one that names none."""
        return release_of(self.version)


def describe_consumer(info: ClientInfo, claims: Mapping[str, int]) -> Consumer:
    """Describe a consumer by what its client says, and the claims that it holds."""
    since = datetime.fromtimestamp(info.started, UTC) if info.started else None
    return Consumer(info.description, claims, info.version, info.host, since, info.slots, info.pid, info.is_quiet)


async def count_claims(shards: Iterable[Replicas], queues: Iterable[str]) -> Mapping[str, Mapping[str, int]]:
    """Count the claims of every owner in each queue; reads all claims that exist.  Raises ``Unavailable``."""
    claims: dict[str, Counter[str]] = {}
    for replicas in shards:
        for queue in queues:
            for owner, count in (await _count_in(replicas, queue)).items():
                claims.setdefault(owner, Counter())[queue] += count
    return claims


async def _count_in(replicas: Replicas, queue: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    async for page, starts in replicas.pages(calls.ClaimCounts(queue)):
        if starts:
            counts.clear()
        counts.update(page.claims)
    return counts
