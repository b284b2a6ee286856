"""Provide the namespace for threads: its queues, its consumers, its health."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from zkrq.base.checks import check_name
from zkrq.base.meant import unknown_method
from zkrq.base.settings import AS_DECLARED, QUEUE_DEFAULTS, QueueOptions
from zkrq.client import cluster
from zkrq.sync.blocking import blocking, iterating, itself, with_arguments_of
from zkrq.sync.claims import Claim
from zkrq.sync.queue import Queue, ResultQueue, find_of
from zkrq.sync.schedules import StoredSchedules

if TYPE_CHECKING:
    from zkrq.base.codecs import Codec
    from zkrq.base.limits import Results
    from zkrq.client.health import Health
    from zkrq.client.shards import ShardStatus
    from zkrq.consuming import deliveries
    from zkrq.consuming.observing import Observer
    from zkrq.protocol.view import View
    from zkrq.sync.portal import Portal

R = TypeVar("R")
T = TypeVar("T")


class Cluster:
    """A namespace on N Redis servers: ``zkrq.Cluster`` for threads, with the same meanings and errors.

    The first call opens it, or ``with``, which also closes it; what is open when the interpreter exits is closed then.
    Any number of threads may use it at the same time.  A forked process opens a connection of its own at its first
    call.
    """

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unknown_method(self, name, "queue(...).")

    def _call(self, act: Callable[[cluster.Cluster], Awaitable[R]]) -> R:
        return self._portal.call(act)

    def _inside(self, cluster: cluster.Cluster) -> cluster.Cluster:
        return cluster

    def _opened(self) -> cluster.Cluster | None:
        """Return the asynchronous cluster inside, None if this process has not opened it."""
        return self._portal.open().cluster if self._portal.is_open else None

    def __repr__(self) -> str:
        return f"<Cluster for threads: {'open' if self._portal.is_open else 'not open'}>"

    def open(self) -> Self:
        """Connect now instead of at the first call.

        Raises ``ConfigError`` for problems to correct, ``Unavailable`` for problems that may pass, and ``Closed`` after
        ``close``.
        """
        self._portal.open()
        return self

    def __enter__(self) -> Self:
        """Connect; see ``open``."""
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop claiming, hand back claims, end the session and the thread.  Bounded in time and idempotent.

        Calls in other threads, also later ones, raise ``Closed``; so finish running work first.
        """
        self._portal.close()

    # -- queues --------------------------------------------------------------------------------------------------------

    @overload
    def queue(
        self, name: str, *, codec: Codec[T], results: Results[R], **options: Unpack[QueueOptions]
    ) -> ResultQueue[T, R]: ...

    @overload
    def queue(self, name: str, *, results: Results[R], **options: Unpack[QueueOptions]) -> ResultQueue[Any, R]: ...

    @overload
    def queue(
        self, name: str, *, codec: Codec[T], results: None = None, **options: Unpack[QueueOptions]
    ) -> Queue[T]: ...

    @overload
    def queue(self, name: str, *, results: None = None, **options: Unpack[QueueOptions]) -> Queue[Any]: ...

    @with_arguments_of(cluster.Cluster.queue)
    def queue(self, name: str, **options: Any) -> Queue[Any]:
        """Return the queue of that name; connects to nothing, so a module may make its queues when it is imported.

        Arguments are those of ``zkrq.Cluster.queue``.  Raises ``ConfigError`` for bad ones; the first call of a queue
        raises it if this process uses that name with another value of an option that is given.  A ``ResultQueue`` is
        returned if ``results`` is given here.
        """
        check_name("the queue's name", name)
        QUEUE_DEFAULTS.updated(options)  # finds bad values now

        def find(opened: cluster.Cluster) -> Any:
            make: Callable[..., Any] = opened.queue
            return make(name, **options)

        if options.get("results", AS_DECLARED) not in (None, AS_DECLARED):
            return ResultQueue[Any, Any](self._portal, name, find)
        return Queue(self._portal, name, find)

    def pop(
        self, *queues: Queue[T], prefetch: int | None = None, limit: int | None = None, wait: bool = True
    ) -> Generator[Claim[T]]:
        """Iterate over claims of several queues, which take turns: ``for claim in cluster.pop(emails, reports)``.

        Arguments and errors are those of ``zkrq.Cluster.pop``.
        """
        opened = self._portal.open()

        def pop() -> deliveries.Deliveries[T]:
            asked = (find_of(queue)(opened.cluster) for queue in queues)
            return opened.cluster.pop(*asked, prefetch=prefetch, limit=limit, wait=wait)

        return opened.iterate(opened.read(pop), partial(Claim[T], opened))

    queues = blocking(cluster.Cluster.queues)
    flows = iterating(cluster.Cluster.flows, itself, "FlowStatus")
    broadcast = blocking(cluster.Cluster.broadcast)
    listen = iterating(cluster.Cluster.listen, itself, "T")

    def schedules(self) -> StoredSchedules:
        """Return the schedules that this namespace stores, as ``zkrq.Cluster.schedules`` does."""
        return StoredSchedules(self._portal)

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """Which servers of the first shard are in sync, as this client knows it."""
        opened = self._portal.open()
        return opened.read(lambda: opened.cluster.view)

    @property
    def shards(self) -> Mapping[str, ShardStatus]:
        """The shards of this namespace by name, as this client knows them."""
        opened = self._portal.open()
        return opened.read(lambda: opened.cluster.shards)

    check_health = blocking(cluster.Cluster.check_health)
    shard_sizes = blocking(cluster.Cluster.shard_sizes)
    consumers = blocking(cluster.Cluster.consumers)
    quiet = blocking(cluster.Cluster.quiet)
    unquiet = blocking(cluster.Cluster.unquiet)
    clients = blocking(cluster.Cluster.clients)
    upgrade = blocking(cluster.Cluster.upgrade)

    @property
    def level(self) -> int:
        """The active level: what is written now."""
        opened = self._portal.open()
        return opened.read(lambda: opened.cluster.level)

    statistics = blocking(cluster.Cluster.statistics)
    ping = blocking(cluster.Cluster.ping)

    @property
    def queues_in_use(self) -> tuple[str, ...]:
        """Names of the queues that this process has called."""
        opened = self._portal.open()
        return opened.read(lambda: opened.cluster.queues_in_use)

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Let an observer see what this process does, and forked ones; it is called in the cluster's own thread.

        May be called before the cluster is open.  Returns a function that removes it.
        """
        return self._portal.observe(observer)

    def health(self) -> Health:
        """Report what this client knows, without asking a server."""
        opened = self._portal.open()
        return opened.read(opened.cluster.health)
