"""Provide flows for threads.

::

    with rows.flow("import-7") as flow:  # leaving seals it, an exception cancels it
        flow.push_many(pages)
        flow.then({"job": 7}, queue=reports)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, Unpack

from zkrq.base.flows import name_of_flow
from zkrq.consuming import flow as flows
from zkrq.sync.blocking import blocking, iterating, itself, with_arguments_of

if TYPE_CHECKING:
    from zkrq.base.errors import Receipt, Receipts
    from zkrq.base.flows import FlowName
    from zkrq.client.cluster import Cluster
    from zkrq.consuming.flow import Target
    from zkrq.operations.push import ManyOptions, MemberOptions, PushOptions
    from zkrq.sync.portal import Opened

R = TypeVar("R")


class Opening(Protocol):
    """Something that opens a cluster, as ``Portal`` does."""

    def open(self) -> Opened:
        """Return the open cluster of this process."""
        ...


class Within:
    """The open cluster of a claim."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def open(self) -> Opened:
        """Return it."""
        return self._opened


class Flow:
    """Items that belong together, and what comes after them: ``zkrq.Flow`` for threads, with the same meanings."""

    def __init__(self, portal: Opening, name: FlowName, make: Callable[[Cluster], flows.Flow]) -> None:
        """Made by ``Queue.flow``, or found as ``Claim.flow``.  ``make``: returns it in an open cluster."""
        self._portal = portal
        self._name = name
        self._make = make
        self._made: tuple[Cluster, flows.Flow] | None = None
        """What was made in the present cluster: a forked process has another one, and begins the flow again."""

    @property
    def name(self) -> str:
        """Its name."""
        return self._name.name

    @property
    def queue(self) -> str:
        """Name of the queue on which it was begun, its home."""
        return self._name.queue

    def __repr__(self) -> str:
        return f"<Flow {self.name!r} of queue {self.queue!r} for threads>"

    def _call(self, act: Callable[[flows.Flow], Awaitable[R]]) -> R:
        opened = self._portal.open()
        return opened.call(lambda: act(self._inside(opened.cluster)))

    def _inside(self, cluster: Cluster) -> flows.Flow:
        if self._made is None or self._made[0] is not cluster:
            self._made = cluster, self._make(cluster)
        return self._made[1]

    @with_arguments_of(flows.Flow.flow)
    def flow(self, name: str | None = None, *, queue: Target | None = None, **options: Any) -> Flow:
        """Return an inner flow, which becomes a member of this one; see ``zkrq.Flow.flow``.  Raises ``ConfigError``."""
        named = name_of_flow(self.queue if queue is None else queue.name, name)
        find = getattr(queue, "_find", None)

        def make(cluster: Cluster) -> flows.Flow:
            return self._inside(cluster).flow(named.name, queue=find(cluster) if find else queue, **options)

        return Flow(self._portal, named, make)

    def begin(self) -> Self:
        """Begin it; see ``zkrq.Flow.begin``."""
        self._call(flows.Flow.begin)
        return self

    def push(
        self,
        item: Any,
        *,
        queue: Target | None = None,
        after: str | Iterable[str] = (),
        **options: Unpack[MemberOptions],
    ) -> Receipt:
        """Put one item into a queue, as a member; see ``zkrq.Flow.push``."""
        return self._in(queue, lambda inside, target: inside.push(item, queue=target, after=after, **options))

    def push_many(
        self,
        items: Iterable[Any],
        *,
        queue: Target | None = None,
        name: str | None = None,
        **options: Unpack[ManyOptions],
    ) -> Receipts:
        """Put many items into a queue, as members; see ``zkrq.Flow.push_many``.  A generator is read first."""
        taken = list(items) if hasattr(items, "__next__") else items
        return self._in(queue, lambda inside, target: inside.push_many(taken, queue=target, name=name, **options))

    def then(self, item: Any, *, queue: Target | None = None, **options: Unpack[PushOptions]) -> Receipt:
        """Put an item into a queue that is handed out once every member is done; see ``zkrq.Flow.then``."""
        return self._in(queue, lambda inside, target: inside.then(item, queue=target, **options))

    def on_failure(self, item: Any, *, queue: Target | None = None, **options: Unpack[PushOptions]) -> Receipt:
        """Put an item into a queue that is handed out if the flow fails; see ``zkrq.Flow.on_failure``."""
        return self._in(queue, lambda inside, target: inside.on_failure(item, queue=target, **options))

    def always(self, item: Any, *, queue: Target | None = None, **options: Unpack[PushOptions]) -> Receipt:
        """Put an item into a queue that is handed out once the flow is done or has failed; see ``zkrq.Flow.always``."""
        return self._in(queue, lambda inside, target: inside.always(item, queue=target, **options))

    def _in(self, queue: Target | None, act: Callable[[flows.Flow, Any], Awaitable[R]]) -> R:
        """Do something with a flow and a queue, as they are inside the cluster."""
        opened, find = self._portal.open(), getattr(queue, "_find", None)
        return opened.call(lambda: act(self._inside(opened.cluster), find(opened.cluster) if find else queue))

    seal = blocking(flows.Flow.seal)
    cancel = blocking(flows.Flow.cancel)
    finish = blocking(flows.Flow.finish)
    redrive = blocking(flows.Flow.redrive)
    status = blocking(flows.Flow.status)
    result = blocking(flows.Flow.result)
    result_of = blocking(flows.Flow.result_of)
    results = iterating(flows.Flow.results, itself, "Result[Any]")

    def __enter__(self) -> Self:
        """Begin it."""
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call(lambda inside: inside.__aexit__(kind, error, traceback))
