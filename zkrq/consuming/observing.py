"""Let observers see what a client does: metrics, traces, and hooks of the application.

An ``Observer`` overrides the methods for what it wants to see.  What no observer overrides costs nothing, because each
place first looks whether its list is empty.  Calls for single items, ``before_`` and ``after_``, are made in the
caller's task, so a context variable that they set holds for the push or the handler.  The other methods are called once
per batch.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from zkrq.base.checks import Headers, check_headers
from zkrq.base.errors import ConfigError, Receipt, Receipts

if TYPE_CHECKING:
    from zkrq.base.events import Event, Events
    from zkrq.consuming.claims import Claim
    from zkrq.consuming.lease import Verb

PushOutcome = Receipt | Receipts | BaseException
"""Result of a push for observers: what the call returned, or the exception that it raised."""

P = TypeVar("P", Receipt, Receipts)

RAISED = "an observer raised"

_log = logging.getLogger("zkrq.observing")


class Outgoing:
    """One call of ``push`` or ``push_many``, as observers see it.

    ``item``: the item of a ``push``, None for a ``push_many``, whose items an iterator may still have to make.  ``id``:
    the id that the caller gave, or None.  ``headers`` go with the item, or with each of many; ``before_push`` may
    change them.
    """

    __slots__ = ("headers", "id", "is_many", "item", "queue")

    def __init__(self, queue: str, item: object, id: str | None, headers: Mapping[str, str], *, is_many: bool) -> None:
        self.queue = queue
        self.item = item
        self.id = id
        self.headers = dict(headers)
        self.is_many = is_many


class Observer:
    """Observe a cluster: derive from it, override what you want to see, and pass it to ``Cluster.observe``.

    Every method is called on the cluster's event loop, must not block, and is not awaited.  An exception, also
    ``SystemExit``, is logged and changes nothing.  Claims must not be kept: a claim that is dropped without being
    settled is no longer extended only once nothing refers to it.
    """

    def event(self, event: Event) -> None:
        """See an event, as ``on_event`` does."""

    def before_push(self, push: Outgoing) -> None:
        """See a push before its options are checked; add to ``push.headers`` what the consumer is to find in
        ``claim.headers``."""

    def after_push(self, push: Outgoing, outcome: PushOutcome) -> None:
        """See the end of a push, also if it failed or was cancelled."""

    def before_delivery(self, claim: Claim[Any]) -> None:
        """See that work on an item begins: ``async with claim`` was entered, by a worker or by the user's own code."""

    def after_delivery(self, claim: Claim[Any], error: BaseException | None) -> None:
        """See that work on an item has ended, before the claim is settled; ``error`` is what the body raised."""

    def pushed(self, queue: str, seconds: Sequence[float], outcomes: Mapping[str, int]) -> None:
        """See items that were pushed together: how long each caller waited, and the number of items by outcome.

        Outcomes are ``pushed``, ``duplicate``, ``known`` (the id is in the queue already), ``done``, and names of
        errors.
        """

    def claimed(self, queue: str, claims: Sequence[Claim[Any]], seconds: float) -> None:
        """See the answer to a claim request: its claims, and how long it took.  Requests that fail are not reported."""

    def settled(self, queue: str, verb: Verb, seconds: Sequence[float], outcomes: Mapping[str, int]) -> None:
        """See claims that were settled, or extended, together: how long each caller waited, and the number by outcome.

        Outcomes are ``done``, ``lost``, and names of errors.
        """


class Observers:
    """Keep the observers of one client, by what they override; each list is empty unless there is one for it."""

    def __init__(self, events: Events) -> None:
        self.pushes: Final = list[Observer]()
        self.deliveries: Final = list[Observer]()
        self.pushed: Final = list[Observer]()
        self.claimed: Final = list[Observer]()
        self.settled: Final = list[Observer]()
        self._listeners = events.listeners

    def add(self, observer: Observer) -> Callable[[], None]:
        """Add an observer; return a function that removes it."""
        places: list[tuple[list[Any], object]] = []
        if _overrides(observer, "event"):
            places.append((self._listeners, observer.event))
        for kept, names in (
            (self.pushes, ("before_push", "after_push")),
            (self.deliveries, ("before_delivery", "after_delivery")),
            (self.pushed, ("pushed",)),
            (self.claimed, ("claimed",)),
            (self.settled, ("settled",)),
        ):
            if any(_overrides(observer, name) for name in names):
                places.append((kept, observer))
        for kept, entry in places:
            kept.append(entry)

        def remove() -> None:
            while places:
                kept, entry = places.pop()
                kept.remove(entry)

        return remove

    # -- what observers are told -----------------------------------------------------------------------------------

    async def watch_push(
        self,
        queue: str,
        item: object,
        id: str | None,
        headers: Headers | None,
        push: Callable[[Headers], Awaitable[P]],
        *,
        is_many: bool = False,
    ) -> P:
        """Push with the headers that observers add, and report its beginning and its end.  Raises as ``begin_push`` and
        ``push`` do."""
        seen = self.begin_push(queue, item, id, headers, is_many=is_many)
        try:
            outcome = await push(seen.headers)
        except BaseException as error:
            self.end_push(seen, error)
            raise
        self.end_push(seen, outcome)
        return outcome

    def begin_push(
        self, queue: str, item: object, id: str | None, headers: Headers | None, *, is_many: bool = False
    ) -> Outgoing:
        """Report the beginning of a push; return it with the headers that observers have added.

        Raises ``ConfigError`` for bad headers of the caller; those of observers are dropped and logged.
        """
        given = check_headers(headers or {})
        push = Outgoing(queue, item, id, given, is_many=is_many)
        for each in self.pushes:
            _tell(each.before_push, push)
        try:
            check_headers(push.headers)
        except ConfigError as error:
            _log.warning("headers that observers added are left out: %s", error, extra={"queue": queue})
            push.headers = dict(given)
        return push

    def end_push(self, push: Outgoing, outcome: PushOutcome) -> None:
        for each in reversed(self.pushes):
            _tell(each.after_push, push, outcome)

    def before_delivery(self, claim: object) -> None:
        for each in self.deliveries:
            try:  # as ``_tell``, without the call: these two are made for each item
                each.before_delivery(cast("Claim[Any]", claim))
            except KeyboardInterrupt:
                raise
            except BaseException:
                _log.exception(RAISED)

    def after_delivery(self, claim: object, error: BaseException | None) -> None:
        for each in reversed(self.deliveries):
            try:
                each.after_delivery(cast("Claim[Any]", claim), error)
            except KeyboardInterrupt:
                raise
            except BaseException:
                _log.exception(RAISED)

    def tell_pushed(self, queue: str, seconds: Sequence[float], outcomes: Mapping[str, int]) -> None:
        for each in self.pushed:
            _tell(each.pushed, queue, seconds, outcomes)

    def tell_claimed(self, queue: str, claims: Sequence[Claim[Any]], seconds: float) -> None:
        for each in self.claimed:
            _tell(each.claimed, queue, claims, seconds)

    def tell_settled(self, queue: str, verb: Verb, seconds: Sequence[float], outcomes: Mapping[str, int]) -> None:
        for each in self.settled:
            _tell(each.settled, queue, verb, seconds, outcomes)


def _overrides(observer: Observer, name: str) -> bool:
    """Tell whether an observer has a method of its own of this name, by its class or on itself."""
    return getattr(getattr(observer, name), "__func__", None) is not getattr(Observer, name)


def _tell(method: Callable[..., object], *arguments: object) -> None:
    try:
        method(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException:
        _log.exception(RAISED)
