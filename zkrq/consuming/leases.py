"""Manage all leases of one queue in this process: settle in batches, extend while held, lose them together."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Final, TypeAlias

from zkrq.base import clock
from zkrq.base.checks import check_feature
from zkrq.base.errors import REASON_MAX, ConfigError, OutcomeUnknown, ZkrqError, message_of, own
from zkrq.base.events import ClaimsLost, DeadLettersDropped
from zkrq.base.log import Log
from zkrq.base.loop import running_loop
from zkrq.base.retry import Again, Retry
from zkrq.consuming.core.lease import EXTENDED, HOLDING, LeaseState
from zkrq.consuming.core.pace import CLAIM_MAX
from zkrq.consuming.figures import Figuring
from zkrq.consuming.flow import Flow
from zkrq.consuming.lease import EXTENSION_REFUSED, FAILURES, LETS_GO_ON, SNOOZES, Grant, Lease, Refused, Verb
from zkrq.consuming.reporting import Reporter
from zkrq.protocol.calls import Settle, Settlement, SettleReply, Turn, TurnReply, runs
from zkrq.protocol.failures import place_of, sent
from zkrq.protocol.levels import Feature, missing
from zkrq.protocol.records import VERSION_BYTES, ItemRecord, unpack, was_put_back
from zkrq.replication.batching import MAX_BATCH, MAX_BATCH_BYTES, Batcher

if TYPE_CHECKING:
    from zkrq.base.flows import FlowName
    from zkrq.consuming.context import QueueContext
    from zkrq.consuming.requests import Request
    from zkrq.protocol.deciding import Decided
    from zkrq.replication.replicas import Replicas

EXTEND_AT = 2 / 3
"""Part of ``claim_timeout``: a claim is extended when less than this is left ..."""

LOOKS_PER_LEASE = 6
"""... at one of this many checks per ``claim_timeout``; the next line bounds the seconds between two checks."""

MIN_LOOK_SECONDS, MAX_LOOK_SECONDS = 0.05, 5.0

UNENTERED_SECONDS = 300.0
"""Seconds after which a claim that was neither entered nor settled is reported, because it may have been forgotten."""

SWEEP_LEAST = 1_000
"""Leases that are kept before settled ones are dropped for the first time; later, twice the number that was left."""

SIGNALS_MAX = CLAIM_MAX
"""Cancelled items that are remembered for a claim request in flight: a request is given no more items than this.  A
cancellation beyond it counts as lost, so the holder hears of it when the claim is next extended."""

CALL_BYTES = 20
"""Approximate bytes of a settlement beside its text."""

TOGETHER_BYTES = MAX_BATCH_BYTES // MAX_BATCH
"""Bytes that each item of acks that are one call counts for, so that one script settles about as many items as calls.
Without it a script could settle 500 batches of 500 items, and hold the server for seconds."""


class Leases:
    """Settle, extend and lose the leases of one queue.  Implements ``lease.Issuer``."""

    def __init__(self, replicas: Replicas, context: QueueContext) -> None:
        self.claim_timeout = context.settings.claim_timeout
        self.observers: Final = context.observers
        self._replicas = replicas
        self.cluster = context.cluster
        self.queue = context.queue
        self._retry = context.retry
        self._deliveries = context.deliveries
        self._dead_letters = context.dead_letters
        self._results = context.settings.results
        self.keeps_results = self._results is not None
        self.saved_codec = context.saved_codec
        self._flows = context.flows
        self._events = context.events
        self.own_loop = context.own_loop
        self._where = place_of(context.identity.description)
        self.is_certain = context.identity.is_certain
        """Whether the session is certainly alive.  If not, other clients may have fenced this process."""
        self._leases: list[Lease] = []
        self._sweep_at = SWEEP_LEAST
        self._in_flight = ""
        """The claim request whose answer has not been admitted yet ..."""
        self._cancelled = set[str]()
        """... and the items of it that were cancelled meanwhile."""
        self._tasks = context.tasks
        self._extender: asyncio.Task[None] | None = None
        self._extensions_fail = False
        self._dropped_reported = self._unentered_reported = False
        self._join: Callable[[int], Request | None] | None = None
        self._reporter: Reporter | None = None
        self.figuring: Final = Figuring(replicas, context.tasks, context.queue)
        self._unentered: tuple[Lease, float] | None = None
        """The first of the claims that nobody has entered or settled, and since when it was."""
        # Without a limit, so that settlements gather: no slot waits for its ack, and each would cost a decision.
        self._batcher: Batcher[_Settling, Refused] = Batcher(
            self._send,
            tasks=context.tasks,
            name=f"settle in {context.queue}",
            patience=replicas.operation_timeout,
            watched=context.observers.settled,
            landed=self._tell_settled,
        )
        self._log = Log(logging.getLogger("zkrq.claims"), {"cluster": context.cluster, "queue": context.queue})

    def counts_each_step(self, lease: Lease) -> bool:
        """Tell whether a save begins the attempts anew."""
        return self._policy_of(lease).per_step

    @property
    def max_attempts(self) -> int:
        """Deliveries after which an item that was never settled becomes a dead letter; 0: no limit."""
        return self._deliveries.most

    def _policy_of(self, lease: Lease) -> Retry:
        return lease.retry or self._retry

    def join_with(self, join: Callable[[int], Request | None]) -> None:
        """Ask ``join`` for a claim request whenever settlements leave, with the number of claims that end by them."""
        self._join = join

    @property
    def is_leaving(self) -> bool:
        """Whether settlements leave within the next turns of the event loop."""
        return self._batcher.is_leaving

    def __len__(self) -> int:
        return len(self._active())

    def expired(self, now: float) -> int:
        """Count the leases that are still held here although their deadlines have passed."""
        return sum(lease.deadline_at <= now for lease in self._active())

    def _active(self) -> tuple[Lease, ...]:
        """Leases to extend."""
        return tuple(lease for lease in self._held() if lease.extending)

    def _held(self) -> Sequence[Lease]:
        """Leases to extend, and those that are no longer extended, until their deadline.  Forgets those that were
        settled, lost, or dropped with their claim."""
        # Before the list is swept: afterwards nothing is left to tell of.
        if not self._dropped_reported:
            delivered = (each for each in self._leases if each.state is LeaseState.DELIVERED)
            dropped = next((each for each in delivered if each() is None), None)
            if dropped is not None:
                self._report_dropped(dropped)
        now = asyncio.get_running_loop().time()
        self._leases = [
            lease
            for lease in self._leases
            # As holds_at, without the call.
            if (lease.state in EXTENDED or (lease.state in HOLDING and lease.deadline_at > now)) and lease() is not None
        ]
        self._sweep_at = max(SWEEP_LEAST, 2 * len(self._leases))
        return tuple(self._leases)

    def _report_dropped(self, lease: Lease) -> None:
        self._dropped_reported = True
        self._log.warning(
            "the claim on item %s was dropped without being settled, so the item is delivered again after %g s: "
            "enter it, `async with claim`, or call ack, nack or release (reported once per queue)",
            lease.id,
            self.claim_timeout,
            extra={"item": lease.id},
        )

    def _report_unentered(self, active: Iterable[Lease]) -> None:
        """Report a claim that is extended for a long time although nobody seems to work on its item."""
        if self._unentered_reported:
            return
        now = asyncio.get_running_loop().time()
        if self._unentered is None or not _is_unentered(self._unentered[0]):
            found = next(filter(_is_unentered, active), None)
            self._unentered = found and (found, now)
        elif now - self._unentered[1] >= UNENTERED_SECONDS:
            self._unentered_reported = True
            self._log.warning(
                "the claim on item %s has been held for %g s and was neither entered nor settled; as long as it is "
                "referenced it is extended, and nobody else gets the item: enter it, `async with claim`, or call ack, "
                "nack, release or on_lost (reported once per queue)",
                self._unentered[0].id,
                now - self._unentered[1],
            )

    def add(self, leases: Iterable[Lease]) -> None:
        """Start extending these leases, until they are settled, lost or dropped."""
        self._leases += leases
        if len(self._leases) > self._sweep_at:
            self._held()
        if self._extender is None:
            self._extender = self._tasks.supervise(self._extend_periodically, f"extend claims of {self.queue}")

    def rest(self) -> bool:
        """End the work in the background unless there is some; return whether there is none.  ``add`` restarts it."""
        if self._held() or not self._batcher.is_idle:
            return False
        if self._extender:
            self._extender.cancel()
            self._extender = None
        return True

    def settle(self, lease: Lease, verb: Verb, ms: int = 0, text: str = "") -> asyncio.Future[Refused]:
        """Send the settlement with the next batch.  What is returned is not empty if the claim is lost.

        Raises ``Closed``, ``WrongLoop``.
        """
        if running_loop() is not self.own_loop.loop:
            raise self.own_loop.elsewhere()
        if text:  # a surrogate, e.g. from an exception about a file name, cannot be sent
            text = text[:REASON_MAX].encode(errors="replace").decode()
        how: How
        if verb is Verb.ACK:
            # A time that is given holds whatever this process has declared; see ack_keeping.
            ttl_ms = ms or (self._results.ttl_ms if self._results else 0)
            how = _ack_of(lease, ttl_ms) if ttl_ms else _ACK
        elif verb in FAILURES and missing(Feature.FAILURES, self._replicas.level) is None:
            how = b"%b %d %b" % (self._in_words_of_servers(lease, verb, ms).encode(), ms, sent(self._where, text))
        else:
            how = f"{self._in_words_of_servers(lease, verb, ms)} {ms} {text}"
        parts = ((lease.grant, (lease.position,)),)
        return self._batcher.add((parts, how, 1, 0 if verb is Verb.EXTEND else 1), CALL_BYTES + len(how))

    def _in_words_of_servers(self, lease: Lease, verb: Verb, ms: int) -> str:
        if verb is Verb.NACK and not self._policy_of(lease).holds_group:
            return LETS_GO_ON
        return SNOOZES if verb is Verb.RELEASE and ms > 0 else verb

    def check_saves(self) -> None:
        """Raise ``ConfigError`` at a level that lacks saved states."""
        check_feature(Feature.SAVES, self._replicas.level)

    def flow_of(self, flow: FlowName) -> Flow:
        """Return a flow that the record of an item names."""
        return Flow(self._flows, flow)

    def save(self, lease: Lease, number: int, text: bytes, ms: int) -> asyncio.Future[Refused]:
        """Send what is to be saved of the item; see ``lease.Issuer``.

        Raises ``Closed``, ``WrongLoop``.
        """
        self.own_loop.check()
        how = b"%b %d %d %d %b" % (Verb.SAVE.encode(), ms, number, self.counts_each_step(lease), text)
        return self._batcher.add((((lease.grant, (lease.position,)),), how, 1, 0), CALL_BYTES + len(how))

    def report(self, lease: Lease, text: str) -> None:
        """Send a report of the progress of the work; see ``Claim.progress``."""
        if self._reporter is None:
            self._reporter = Reporter(self._replicas, self._tasks, self.queue)
        self.own_loop.run(partial(self._reporter.report, lease, text))

    def ack_together(self, leases: Sequence[Lease], returning: int) -> asyncio.Future[Refused]:
        """Send the acks of these leases as one call of the next batch; see ``lease.Issuer``.

        Raises ``Closed``, ``WrongLoop``.
        """
        self.own_loop.check()
        if self._results is not None:
            return self._ack_with_results(leases, returning, self._results.ttl_ms)
        parts: dict[Grant, list[int]] = {}
        for lease in leases:
            known = parts.get(lease.grant)
            if known is None:
                parts[lease.grant] = [lease.position]
            else:
                known.append(lease.position)
        # One call of the batcher, and one future, even if each claim is of a bundle of its own.
        settling = (tuple(parts.items()), _ACK, len(leases), returning)
        return self._batcher.add(settling, TOGETHER_BYTES * len(leases))

    def encode_result(self, result: object) -> bytes:
        """Return the bytes of a result; see ``lease.Issuer``."""
        if self._results is None:
            raise ConfigError(f"queue {self.queue!r} keeps no results: give cluster.queue() results=Results(...)")
        return self._results.encode(result)

    def _ack_with_results(self, leases: Sequence[Lease], returning: int, ttl_ms: int) -> asyncio.Future[Refused]:
        """Send acks as one call: each has a result of its own, so each is a settlement of its own."""
        parts = [(lease.grant, (lease.position,)) for lease in leases]
        hows = tuple(_ack_of(lease, ttl_ms) for lease in leases)
        size = TOGETHER_BYTES * len(leases) + sum(map(len, hows))
        return self._batcher.add((parts, hows, len(leases), returning), size)

    def after_failure(self, lease: Lease, delay: float | None, reason: str) -> Again | str:
        """Apply the retry policy: return a delay, or the reason to bury."""
        retry, record = self._policy_of(lease), lease.record
        after = partial(
            Retry.after,
            attempts=record.attempts,
            failures=record.failures + 1,
            age=_age_of(record),
            delay=delay,
            chance=random.random(),  # noqa: S311
            reason=reason,
        )
        try:
            decided = after(retry)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of the user's backoff; the item must be settled still
            text = "the backoff of queue %s failed, the usual one is used in its place: %s"
            self._log.error(text, self.queue, message_of(error))
            decided = after(replace(retry, backoff=Retry().backoff))
        return decided if isinstance(decided, Again) else decided.reason

    def after_snooze(self, lease: Lease, delay: float) -> Again | str:
        """Apply what the retry policy says of an item that is put off; see ``lease.Issuer``."""
        decided = self._policy_of(lease).after_snooze(age=_age_of(lease.record), delay=delay)
        return decided if isinstance(decided, Again) else decided.reason

    def lose_all(self, owner: str, reason: str) -> None:
        """Lose every claim of ``owner``, and stop their handlers."""
        self._lose([lease for lease in self._held() if lease.grant.owner == owner], reason)

    def expect(self, request: str) -> None:
        """Remember which items of a claim request are cancelled before its answer is admitted.

        The claim is decided on the server before this process knows of it, and a cancellation travels on another
        connection, so its message may arrive first.  Then no lease exists that could be lost.  A request that is
        repeated keeps what was heard since its first try.
        """
        if request != self._in_flight:
            self._in_flight, self._cancelled = request, set[str]()

    def admit(self) -> set[str]:
        """Return the items of the expected request that were cancelled: no consumer may see them."""
        cancelled, self._in_flight, self._cancelled = self._cancelled, "", set[str]()
        return cancelled

    def cancelled(self, request: str, id: str) -> None:
        """Lose the claim that came from this request, because its item was cancelled."""
        if request == self._in_flight:
            # The answer has not arrived, so there is no lease to lose yet.  Remember the item; ``admit`` leaves it
            # out.
            if len(self._cancelled) < SIGNALS_MAX:
                self._cancelled.add(id)
            return
        held = [lease for lease in self._held() if lease.state in HOLDING]
        lost = [lease for lease in held if lease.grant.request == request and lease.id == id]
        self._lose(lost, "its item was cancelled")

    def _lose(self, lost: Sequence[Lease], reason: str) -> None:
        """Lose these.  Tell of those that are extended: on the others nobody works any more."""
        expected = [lease for lease in lost if lease.extending]
        for lease in lost:
            lease.lose(reason)
        if expected:
            self._tell_lost(expected, reason)

    def _tell_lost(self, lost: Sequence[Lease], reason: str) -> None:
        ids = tuple(lease.id for lease in lost)
        for lease in lost:
            lease.lose(reason)
        self._events.tell(ClaimsLost(self.cluster, self.queue, ids, reason), logging.WARNING)

    async def release_all(self) -> None:
        """Hand back items that are only claimed ahead, and stop the handlers of the other items, for closing.

        The other items are delivered again when this owner is fenced.
        """
        held = self._held()
        ahead = [lease for lease in held if lease.state is LeaseState.GRANTED]
        handled = [lease for lease in held if lease.state is not LeaseState.GRANTED and lease.holds]
        self._lose(handled, "the cluster is closed")
        # What no consumer has seen goes back uncounted.  What a handler works on does not: it may be half done, so it
        # comes back when the owner is fenced, and counts as a delivery.
        await asyncio.gather(*(lease.settle(Verb.RELEASE) for lease in ahead), return_exceptions=True)
        for lease in ahead:
            lease.stop_extending()

    def stop(self) -> None:
        """Refuse further calls."""
        self._batcher.stop()

    async def aclose(self) -> None:
        """Refuse further calls, and wait for those in flight."""
        await self._batcher.aclose()
        await self.figuring.aclose()

    async def _send(self, settlings: Sequence[_Settling]) -> Sequence[Refused | Exception]:
        # One settlement for all items of a bundle that end in the same way: the server opens and writes one record.
        groups: dict[tuple[Grant, How], list[int]] = {}
        for parts, hows, _, _ in settlings:
            each = hows if isinstance(hows, tuple) else repeat(hows)
            for (grant, positions), how in zip(parts, each, strict=False):
                known = groups.get((grant, how))
                if known is None:
                    groups[grant, how] = [*positions]
                else:
                    known += positions
        settlements: list[Settlement] = [
            (grant.bundle, runs(positions), grant.packed[VERSION_BYTES], grant.request, how)
            for (grant, how), positions in groups.items()
        ]
        request = self._join(sum([returning for *_, returning in settlings])) if self._join else None
        decided = await (self._take_turn(request, settlements) if request else self._settle(settlements))
        reply = decided.reply
        if request is None and reply.dropped_letters:
            dropped = DeadLettersDropped(self.cluster, self.queue, reply.dropped_letters)
            self._events.tell(dropped, logging.WARNING)
        # Not left for a call that may take them along: a few hundred of them would fill a server's memory.
        for grant, _ in groups:
            if grant.is_large:
                self._replicas.drop_payloads_soon()
                break
        if reply.due:
            self._flows.tend(self.queue, reply.due)
        if not any(reply.lost):
            self.figuring.settled(groups, {})
            return [_NONE] * len(settlings)
        lost = _lost(groups, decided)
        self.figuring.settled(groups, lost)
        return [_refused(parts, hows, lost) for parts, hows, _, _ in settlings]

    def _settle(self, settlements: Sequence[Settlement]) -> Awaitable[Decided[SettleReply]]:
        """Settle, and claim nothing."""
        letters = self._dead_letters
        # It usually may trim; ``under`` says if not.
        call = Settle(self.queue, letters.max_count or 0, letters.max_age_ms, settlements, trim=True)
        return self._replicas.decide(call)

    async def _take_turn(self, request: Request, settlements: Sequence[Settlement]) -> Decided[TurnReply]:
        """Settle and claim in one decision.  Each part has its own verdict; an error concerns both."""
        try:
            decided = await self._replicas.decide(Turn.of(request.call, settlements))
        except ZkrqError as error:
            request.fail(own(error))
            raise
        except BaseException:
            request.fail(OutcomeUnknown("closed in the middle"))
            raise
        request.land(decided)
        return decided

    def _tell_settled(
        self, settlings: Sequence[_Settling], seconds: Sequence[float], results: Sequence[Refused | Exception]
    ) -> None:
        by_verb: dict[str, tuple[list[float], Counter[str]]] = {}
        for (_, how, items, _), took, result in zip(settlings, seconds, results, strict=True):
            verb = _verb_of(how) if isinstance(how, str | bytes) else _ACK  # all others are acks with results
            waits, outcomes = by_verb.setdefault(verb, ([], Counter()))
            waits += [took] * items
            if isinstance(result, Exception):
                outcomes[type(result).__name__] += items
            else:
                outcomes["done"] += items - len(result)
                outcomes["lost"] += len(result)
        for verb, (waits, outcomes) in by_verb.items():
            self.observers.tell_settled(self.queue, _OF_SERVERS.get(verb) or Verb(verb), waits, +outcomes)

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - Every lease is of this queue and shard, which settles it: others would refuse it, and call it lost.
        - No claim has two leases: one would be extended, or lost, while the other is settled.
        - Cancellations are remembered for the request in flight alone, and no more of them than it may bring items.
        - Leases are extended in the background while there are any.
        """
        known = set[tuple[str, str, int]]()
        for lease in self._leases:
            grant = lease.grant
            claim = grant.request, grant.bundle, lease.position
            assert grant.issuer is self, f"a lease of another queue or shard: {lease!r}"
            assert claim not in known, f"a second lease of the same claim: {lease!r}"
            known.add(claim)
            lease.check_invariants()
        assert self._in_flight or not self._cancelled, f"cancelled in no request: {self._cancelled}"
        assert len(self._cancelled) <= SIGNALS_MAX, f"{len(self._cancelled)} cancellations are remembered"
        assert self._extender or not self._leases, "claims are held, and nothing extends them"
        self._batcher.check_invariants()

    # -- extension -------------------------------------------------------------------------------------------------

    async def _extend_periodically(self) -> None:
        pause = min(MAX_LOOK_SECONDS, max(MIN_LOOK_SECONDS, self.claim_timeout / LOOKS_PER_LEASE))
        while True:
            await asyncio.sleep(pause)
            self._extend_due()

    def _extend_due(self) -> None:
        """Extend the leases that are due.

        While the session is not certain to be alive, every lease is: an extension asks whether this owner was fenced,
        and if so the handler stops instead of working beside the new owner's."""
        loop = asyncio.get_running_loop()
        soon = loop.time() + self.claim_timeout * EXTEND_AT if self.is_certain() else math.inf
        active = self._active()
        self._report_unentered(active)
        for lease in active:
            if lease.deadline_at < soon and lease.timer is None:
                # The deadline holds whatever becomes of the extension: a server that hangs must not let a handler go
                # on.
                lease.timer = loop.call_at(lease.deadline_at, self._expire, lease)
                self._tasks.start(self._extend(lease), "extend a claim")

    async def _extend(self, lease: Lease) -> None:
        """Extend one claim, retrying until its deadline.  The batcher combines many of these into one call."""
        while lease.extending and lease() is not None:
            try:
                await lease.extend(self.claim_timeout)
            except ZkrqError as error:
                if lease.loss:
                    if lease.loss.reason == EXTENSION_REFUSED:  # any other loss was reported when it was noticed
                        self._tell_lost([lease], EXTENSION_REFUSED)
                    return
                if not self._extensions_fail:
                    self._log.info("claims cannot be extended for now, retrying until their deadlines: %s", error)
                self._extensions_fail = True
                await asyncio.sleep(MIN_LOOK_SECONDS)
            else:
                self._extensions_fail = False
                return

    def _expire(self, lease: Lease) -> None:
        if lease.extending and lease() is not None:
            self._tell_lost([lease], "it could not be extended in time")


def _is_unentered(lease: Lease) -> bool:
    """Tell whether a consumer has the claim, but neither follows it nor has settled it."""
    return lease.state is LeaseState.DELIVERED and not lease.is_watched and lease() is not None


def _refused(
    parts: Sequence[tuple[Grant, Iterable[int]]],
    hows: How | tuple[How, ...],
    lost: Mapping[tuple[Grant, How], Mapping[int, bool]],
) -> Refused:
    """Return the claims of one settling that the servers refused."""
    each = hows if isinstance(hows, tuple) else repeat(hows)
    return {
        (grant, position): lost[grant, how][position]
        for (grant, positions), how in zip(parts, each, strict=False)
        for position in positions
        if position in lost[grant, how]
    }


def _lost(
    groups: Iterable[tuple[Grant, How]], decided: Decided[SettleReply] | Decided[TurnReply]
) -> Mapping[tuple[Grant, How], Mapping[int, bool]]:
    """Return, by settlement, the positions of the claims that are lost, and whether it may have been carried out.

    An ack that was carried out is recognized by the tombstone.  An item that was put back may be another consumer's
    before the call is repeated, at the next primary or under the next view: then only the item's counts tell that.
    """
    now = {id: record for id, record in decided.records if decided.again}
    found: dict[tuple[Grant, How], Mapping[int, bool]] = {}
    for (grant, how), positions in zip(groups, decided.reply.lost, strict=True):
        verb = _verb_of(how)
        in_doubt = decided.again and verb not in (_ACK, Verb.EXTEND, Verb.SAVE)
        found[grant, how] = dict.fromkeys(positions, in_doubt)
        record = now.get(grant.bundle.encode())
        if in_doubt and verb != Verb.BURY and positions and record:
            bundle, failed = unpack(record), verb not in (Verb.RELEASE, SNOOZES)
            found[grant, how] = {
                position: True
                for position in positions
                if not was_put_back(grant.record_of(position), bundle.item(position), failed=failed)
            }
    return found


def _age_of(record: ItemRecord) -> float:
    """Return the seconds since the push, by the clocks of its producer and of this process."""
    return clock.now_ms() / 1000 - record.pushed_at_ms / 1000


def _verb_of(how: How) -> str:
    return how.partition(" ")[0] if isinstance(how, str) else how.partition(b" ")[0].decode()


def _ack_of(lease: Lease, ttl_ms: int) -> bytes:
    """Return the ack that leaves the lease's result, or that of None."""
    return b"ack %d %b" % (ttl_ms, getattr(lease, "result", b""))


_ACK = Verb.ACK.value

_OF_SERVERS = {LETS_GO_ON: Verb.NACK, SNOOZES: Verb.RELEASE}
"""Verbs that only servers know, as observers are told them."""

_NONE: Refused = {}


How: TypeAlias = str | bytes
"""A verb, and what belongs to it; see ``calls.Settlement``.  Bytes: an ack with a result, a save, or a failure."""

_Settling: TypeAlias = "tuple[Sequence[tuple[Grant, Sequence[int]]], How | tuple[How, ...], int, int]"
"""The settling of one claim, or the acks of many: what the claims of each bundle have in common with their positions,
how (for all, or for each), the number of items, and the number that their consumer is expected to want next (0: claims
are extended)."""
