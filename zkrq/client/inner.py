"""Reach what is inside a cluster: for other modules of the library, not for users."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from zkrq.client.client import Client
    from zkrq.client.cluster import Cluster

client_of = cast("Callable[[Cluster], Client]", attrgetter("_client"))
"""Return the client inside a cluster."""


class Inner(Protocol):
    """A cluster, or one for threads, which has a cluster inside once it is open."""

    def _opened(self) -> Cluster | None: ...


def opened_of(cluster: Inner) -> Cluster | None:
    """Return the asynchronous cluster, None if this process has not opened it."""
    return cluster._opened()  # pyright: ignore[reportPrivateUsage]
