"""Provide the namespace for threads: its queues, its consumers, its health."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from zkrq.base.checks import Duration, check_name
from zkrq.base.settings import AS_DECLARED, QUEUE_DEFAULTS
from zkrq.sync.claims import Claim
from zkrq.sync.queue import Queue, find_of

if TYPE_CHECKING:
    from zkrq.base.codecs import Codec
    from zkrq.base.limits import DeadLetters
    from zkrq.base.retry import Retry
    from zkrq.client import cluster, queue
    from zkrq.client.consumers import Consumer
    from zkrq.client.health import Health
    from zkrq.client.inspection import Sizes, Statistics
    from zkrq.client.shards import ShardStatus
    from zkrq.consuming import deliveries
    from zkrq.consuming.observing import Observer
    from zkrq.protocol.view import View
    from zkrq.sync.portal import Portal

T = TypeVar("T")


class Cluster:
    """A namespace on N Redis servers: ``zkrq.Cluster`` for threads, with the same meanings and errors.

    The first call opens it, or ``with``, which also closes it; what is open when the interpreter exits is closed then.
    Any number of threads may use it at the same time.  A forked process opens a connection of its own at its first
    call.
    """

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

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
        self,
        name: str,
        *,
        codec: Codec[T],
        claim_timeout: Duration = ...,
        retry: Retry | None = ...,
        dead_letters: DeadLetters | None = ...,
        max_size: int | None = ...,
        max_payload_bytes: int = ...,
    ) -> Queue[T]: ...

    @overload
    def queue(
        self,
        name: str,
        *,
        claim_timeout: Duration = ...,
        retry: Retry | None = ...,
        dead_letters: DeadLetters | None = ...,
        max_size: int | None = ...,
        max_payload_bytes: int = ...,
    ) -> Queue[Any]: ...

    def queue(
        self,
        name: str,
        *,
        codec: Codec[Any] = AS_DECLARED,
        claim_timeout: Duration = AS_DECLARED,
        retry: Retry | None = AS_DECLARED,
        dead_letters: DeadLetters | None = AS_DECLARED,
        max_size: int | None = AS_DECLARED,
        max_payload_bytes: int = AS_DECLARED,
    ) -> Queue[Any]:
        """Return the queue of that name; connects to nothing, so a module may make its queues when it is imported.

        Arguments are those of ``zkrq.Cluster.queue``.  Raises ``ConfigError`` for bad ones; the first call of a queue
        raises it if this process uses that name with another value of an option that is given.
        """
        check_name("the queue's name", name)
        options: dict[str, Any] = {
            "codec": codec,
            "claim_timeout": claim_timeout,
            "retry": retry,
            "dead_letters": dead_letters,
            "max_size": max_size,
            "max_payload_bytes": max_payload_bytes,
        }
        QUEUE_DEFAULTS.updated(options)  # finds bad values now

        def find(opened: cluster.Cluster) -> queue.Queue[Any]:
            return opened.queue(name, **options)

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

    def queues(self) -> list[str]:
        """List all queues that ever had an item, and some that only had consumers.

        One that was emptied or deleted goes within about a quarter of an hour.  Raises ``Unavailable``.
        """
        return self._portal.call(lambda cluster: cluster.queues())

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

    def shard_sizes(self, name: str) -> Mapping[str, Sizes]:
        """Count what is left in a shard, of every queue that has an item there.  Raises ``ConfigError``,
        ``Unavailable``."""
        return self._portal.call(lambda cluster: cluster.shard_sizes(name))

    def consumers(self) -> Mapping[str, Consumer]:
        """Return every live consumer by owner id, with the number of its claims in each queue; reads all claims.

        Raises ``Unavailable``, also if ZooKeeper does not answer.
        """
        return self._portal.call(lambda cluster: cluster.consumers())

    def statistics(self, queues: Iterable[str] | None = None) -> Mapping[str, Statistics]:
        """Sum up these queues, None: every queue that ever had an item and was not deleted.  Raises ``Unavailable``."""
        return self._portal.call(lambda cluster: cluster.statistics(queues))

    @property
    def queues_in_use(self) -> tuple[str, ...]:
        """Names of the queues that this process has called."""
        opened = self._portal.open()
        return opened.read(lambda: opened.cluster.queues_in_use)

    def ping(self) -> None:
        """Ask every in-sync server whether a push and a claim could be made now; see ``zkrq.Cluster.ping``."""
        self._portal.call(lambda cluster: cluster.ping())

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Let an observer see what this process does, and forked ones; it is called in the cluster's own thread.

        May be called before the cluster is open.  Returns a function that removes it.
        """
        return self._portal.observe(observer)

    def health(self) -> Health:
        """Report what this client knows, without asking a server."""
        opened = self._portal.open()
        return opened.read(opened.cluster.health)
