"""zkrq for programs without an event loop: Django, Flask, scripts.

::

    cluster = zkrq.sync.connect(redis=[...], zookeeper="zk1,zk2,zk3")
    emails = cluster.queue("emails")

    def view(request):  # in any thread
        emails.push({"to": request.POST["address"]})

A cluster runs in a thread of its own; the calls of all other threads meet there.  For many items at a time, and for
handlers, use a ``zkrq.Worker`` in a process of its own: it calls plain functions in threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import ParamSpec

from zkrq.base.errors import WrongLoop
from zkrq.client import cluster, connecting
from zkrq.sync.batch import Batch
from zkrq.sync.claims import Claim, Step
from zkrq.sync.cluster import Cluster
from zkrq.sync.flow import Flow
from zkrq.sync.portal import Portal
from zkrq.sync.queue import Queue, ResultQueue, ResultReceipt

__all__ = ["Batch", "Claim", "Cluster", "Flow", "Queue", "ResultQueue", "ResultReceipt", "Step", "connect", "embedded"]

P = ParamSpec("P")


def _connect(make: Callable[P, cluster.Cluster]) -> Callable[P, Cluster]:
    def connect(*args: P.args, **kwargs: P.kwargs) -> Cluster:
        """Make a cluster for threads.  Nothing is connected before ``with``, or the first call.

        Arguments are those of ``zkrq.connect``; ``on_event`` is called in the cluster's own thread.
        Raises ``ConfigError`` for bad arguments.
        """
        make(*args, **kwargs)  # raises for bad arguments
        return Cluster(Portal(partial(make, *args, **kwargs)))

    return connect


def _embedded(make: Callable[P, AbstractAsyncContextManager[cluster.Cluster]]) -> Callable[P, Cluster]:
    def embedded(*args: P.args, **kwargs: P.kwargs) -> Cluster:
        """Make a cluster for threads on private servers, which are started and stopped with it; see ``zkrq.embedded``.

        A forked process gets ``WrongLoop``: the servers belong to the process that started them.
        """
        process = 0

        def start() -> AbstractAsyncContextManager[cluster.Cluster]:
            nonlocal process
            process = process or os.getpid()
            if process != os.getpid():
                raise WrongLoop(f"the private servers belong to process {process}, and this is a fork of it")
            return make(*args, **kwargs)

        return Cluster(Portal(start))

    return embedded


connect = _connect(connecting.connect)
embedded = _embedded(connecting.embedded)
