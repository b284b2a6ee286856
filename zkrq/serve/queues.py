"""Give access to the queues that clients name.  Payloads are bytes here, whatever the items are elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zkrq.base.codecs import RAW
from zkrq.client.results import ResultQueue, reading

if TYPE_CHECKING:
    from zkrq.base.retry import Retry
    from zkrq.client.cluster import Cluster
    from zkrq.client.queue import Queue


class Queues:
    """Find queues by name, all with the same retry policy.

    Nothing is kept of them here, so the cluster drops those that are idle, however many names clients think of.
    """

    def __init__(self, cluster: Cluster, retry: Retry | None = None) -> None:
        """``retry``: the policy for items that clients nack, or whose lease passes; None: ``Retry()``."""
        self._cluster = cluster
        self._retry = retry

    def __getitem__(self, name: str) -> Queue[bytes]:
        """Return the queue of this name.  Raises ``ConfigError`` for a bad name."""
        return self._cluster.queue(name, codec=RAW, retry=self._retry)

    def with_results(self, name: str) -> ResultQueue[bytes, bytes]:
        """Return what reads the results of the queue of this name, as bytes.  Raises ``ConfigError`` for a bad name."""
        return reading(self[name])
