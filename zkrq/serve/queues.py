"""Give access to the queues that clients name.  Payloads are bytes here, whatever the items are elsewhere."""

from __future__ import annotations

from zkrq.cluster import Cluster
from zkrq.codecs import RAW
from zkrq.queue import Queue
from zkrq.retry import Retry
from zkrq.serve.problems import Busy

QUEUES_MAX = 10_000
"""Queues that one server works with, because each costs memory for as long as it runs."""


class Queues:
    """Make queues by name, all with the same retry policy."""

    def __init__(self, cluster: Cluster, retry: Retry | None = None) -> None:
        """``retry``: the policy for items that clients nack, or whose lease passes; None: ``Retry()``."""
        self._cluster = cluster
        self._retry = retry
        self._known: dict[str, Queue[bytes]] = {}

    def __getitem__(self, name: str) -> Queue[bytes]:
        """Return the queue of this name.  Raises ``ConfigError`` for a bad name, ``Busy`` for one too many."""
        if name not in self._known:
            if len(self._known) >= QUEUES_MAX:
                raise Busy(f"this server works with {QUEUES_MAX:,} queues already")
            self._known[name] = self._cluster.queue(name, codec=RAW, retry=self._retry)
        return self._known[name]
