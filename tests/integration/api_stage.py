"""A server of the HTTP API for many tests, and a queue for each."""

from __future__ import annotations

from functools import partial

import zkrq
from tests.serving import Serving

TOKEN = "a-long-random-text-that-nobody-guesses"


class Stage:
    """A server of the API, a client of the library that looks on, and a queue that no other test uses."""

    def __init__(self, http: Serving, cluster: zkrq.Cluster, name: str) -> None:
        self.http = http
        self.cluster = cluster
        self.name = name
        self.path = f"/queues/{name}"
        self.queue = cluster.queue(name)
        self.push = partial(http.push, name)
        self.claim = partial(http.claim, name)


ORDERED = "orders"
"""A queue whose groups keep the order of their pushes."""
