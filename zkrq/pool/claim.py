"""Be a claim in a child: what it knows came with the item, and what it asks for goes to the parent, which holds it."""

from __future__ import annotations

import asyncio
import logging
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from zkrq.base import clock, errors
from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.base.loop import OwnLoop, running_loop
from zkrq.base.retry import Again
from zkrq.consuming.claims import Claim, lease_of
from zkrq.consuming.core.lease import HOLDING
from zkrq.consuming.lease import Grant, Lease, Refused, Verb
from zkrq.pool.frames import Kind, Work, encode_up

if TYPE_CHECKING:
    from zkrq.base.flows import FlowName
    from zkrq.consuming.flow import Flow
    from zkrq.pool.setup import PooledHandler

FOR_LONG = 10 * 366 * 86400.0
"""Seconds until a claim ends in a child: its parent extends it, and says so if it is lost."""

AS_POLICY = -1.0
"""Delay of a nack that leaves it to the policy of the queue, which only the parent knows."""

_log = logging.getLogger("zkrq.pool")


class _NobodyLooks:
    """Observers of deliveries are in the parent."""

    deliveries: Sequence[object] = ()

    def before_delivery(self, claim: object) -> None: ...

    def after_delivery(self, claim: object, error: BaseException | None) -> None: ...


class Waits(Protocol):
    """Waits for answers of the parent on the thread of a plain handler."""

    def check(self) -> None:
        """Raise ``ConfigError`` on another thread."""
        ...

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Return when it is done.  Raises ``CancelledError`` if the handler is to stop."""
        ...


class _Grant(Grant):
    """What claims of a request have in common; here that is one claim."""

    __slots__ = ("saved",)

    saved: bytes | None

    def saved_at(self, position: int) -> bytes | None:
        """Return what was saved of the item when it was claimed, None: nothing."""
        return self.saved


class ChildIssuer:
    """Send what claims of one queue are asked for to the parent.  Implements ``lease.Issuer``."""

    observers = _NobodyLooks()

    def __init__(self, handler: PooledHandler, send: Callable[[bytes], None], waits: Waits) -> None:
        self.queue = handler.queue
        self.claim_timeout = handler.claim_timeout
        self.own_loop = OwnLoop()
        self.keeps_results = handler.results is not None
        self.saved_codec = handler.saved
        self._per_step = handler.per_step
        self._results = handler.results
        self._send = send
        self._waits = waits
        self.unsaved = ""
        """Why nothing can be saved, empty if it can."""

    def encode_result(self, result: object) -> bytes:
        """Return the bytes of a result; see ``lease.Issuer``."""
        if self._results is None:
            raise ConfigError(f"queue {self.queue!r} keeps no results")
        return self._results.encode(result)

    def settle(self, lease: Lease, verb: Verb, ms: int = 0, text: str = "") -> asyncio.Future[Refused]:
        """Have the parent settle or extend a claim.  Raises ``ConfigError``."""
        return self._ask(lease, verb, getattr(lease, "result", b""), ms=ms, text=text)

    def check_saves(self) -> None:
        """Raise ``ConfigError`` at a level that lacks saved states."""
        if self.unsaved:
            raise ConfigError(self.unsaved)

    def flow_of(self, flow: FlowName) -> Flow:
        """Refuse: a child has no client."""
        raise ConfigError(
            f"the item belongs to {flow}, but a handler in a process of its own has no client: open a cluster there, "
            f"and use cluster.queue({flow.queue!r}).flow({flow.name!r})"
        )

    def save(self, lease: Lease, number: int, text: bytes, ms: int) -> asyncio.Future[Refused]:
        """Have the parent save what is known of an item; see ``lease.Issuer``."""
        return self._ask(lease, Verb.SAVE, text, ms=ms, save=number)

    def _ask(self, lease: Lease, verb: Verb, data: bytes, **values: object) -> asyncio.Future[Refused]:
        """Ask the parent; return what ends with its answer.

        A plain handler has an event loop of its own making, ``asyncio.run(claim.save(state))``: the answer is waited
        for here, because nobody else reads it.
        """
        loop, claim = running_loop(), lease()
        is_plain = loop is not self.own_loop.loop
        if loop is None or not isinstance(claim, PooledClaim):
            raise ConfigError("the claim is called from outside of its handler")
        if is_plain:
            self._waits.check()
        answer: asyncio.Future[Refused] = loop.create_future()
        call, told = claim.expect(answer), b64encode(data).decode()
        self._send(encode_up(Kind.CALL, number=claim.number, call=call, verb=verb.value, result=told, **values))
        if is_plain:
            self._waits.wait(answer.done)
        return answer

    def report(self, lease: Lease, text: str) -> None:
        """Have the parent report the progress of the work."""
        claim = lease()
        if isinstance(claim, PooledClaim):
            self._send(encode_up(Kind.PROGRESS, number=claim.number, text=text))

    def ack_together(self, leases: Sequence[Lease], returning: int) -> asyncio.Future[Refused]:
        """Refuse: a child has one claim at a time of each handler."""
        raise ConfigError("claims in a process are acked one by one: claim.ack()")

    def counts_each_step(self, lease: Lease) -> bool:
        """Tell whether a save begins the attempts anew."""
        return self._per_step

    def after_failure(self, lease: Lease, delay: float | None, reason: str) -> Again:
        """Leave the policy to the parent."""
        return Again(AS_POLICY if delay is None else delay)

    def after_snooze(self, lease: Lease, delay: float) -> Again:
        """Leave the policy to the parent."""
        return Again(delay)


class PooledClaim(Claim[Any]):
    """A claim in a child."""

    __slots__ = ("_answers", "_callbacks", "_ends_at", "number")

    def __init__(self, issuer: ChildIssuer, work: Work) -> None:
        grant = _Grant(issuer, work.bundle, work.packed, work.owner, work.request)
        grant.saved = work.saved
        issuer.unsaved = work.unsaved
        now = time.monotonic()
        super().__init__(None, grant, work.position, now + FOR_LONG, work.headers)
        self.number = work.number
        self._ends_at = now + work.seconds
        self._answers: dict[int, asyncio.Future[Refused]] = {}
        self._callbacks: list[Callable[[str], object]] = []
        self._lease.deliver()

    @property
    def deadline(self) -> datetime:
        """When the claim ended as the work began; the parent extends it."""
        return clock.now() + timedelta(seconds=self._ends_at - time.monotonic())

    @property
    def holds(self) -> bool:
        """Whether the claim is neither settled nor lost, as far as is known here."""
        return self._lease.state in HOLDING

    def on_lost(self, callback: Callable[[str], object]) -> None:
        """Call ``callback(reason)`` when the claim is lost, on the thread of the handler, before that is stopped."""
        if loss := lease_of(self).loss:
            callback(loss.reason)
        else:
            self._callbacks.append(callback)

    # -- called by the child -------------------------------------------------------------------------------------------

    def lose(self, reason: str) -> None:
        """Note that the claim is lost."""
        self._lease.lose(reason)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(reason)
            except Exception:
                _log.exception("a callback of on_lost raised")

    def expect(self, answer: asyncio.Future[Refused]) -> int:
        """Return the number of a call that the parent is about to be asked for."""
        call = max(self._answers, default=0) + 1
        self._answers[call] = answer
        return call

    def answer(self, call: int, error: str, text: str) -> None:
        """End a call: without an error, or as the error of this class."""
        answer = self._answers.pop(call, None)
        if answer is None or answer.done():
            return
        if error == "ClaimLost":
            lost: Mapping[tuple[Grant, int], bool] = {(self._lease.grant, self._lease.position): bool(text)}
            answer.set_result(lost)
        elif error:
            kind = getattr(errors, error, ZkrqError)
            failure = kind.__new__(kind)
            failure.args = (text,)
            answer.set_exception(failure)
        else:
            answer.set_result({})
