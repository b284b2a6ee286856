"""What was promised to whom, and whether it was kept.

Everything is written down before an operation begins, so that what a client had begun when it was killed is known to
be open.  Items are known by a label in their payload, since a producer that is cancelled never learns an id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from unittest.mock import patch
from weakref import WeakKeyDictionary

from tests.simulation.ensemble import SimHub
from tests.simulation.loop import Loop, Process, State
from tests.simulation.trace import Trace
from zkrq import Claim
from zkrq.held import Held

EARLY_SECONDS = 0.005
"""Durations travel in whole milliseconds."""


@dataclass(eq=False, slots=True)
class Holder:
    """A claim in the hands of a consumer."""

    claim: Claim[Any]
    process: Process
    settling: bool = False
    """It was being settled, and what became of that is not known."""


@dataclass(eq=False, slots=True)
class Item:
    """One item as its producers and consumers know it."""

    label: str
    confirmed: bool = False
    """A push of it returned."""
    open_pushes: int = 0
    """Pushes that may have happened, or may yet."""
    open_removals: int = 0
    """Acks and burials that may have happened, or may yet, and calls of clear."""
    acked: bool = False
    buried: bool = False
    redriven: bool = False
    """Whether it was to be given another chance, at some moment: a burial is not the last word then."""
    due: float = 0.0
    """Not to be delivered before."""
    ids: set[str] = field(default_factory=set[str])
    deliveries: int = 0
    token: tuple[int, int] = (0, 0)
    holders: list[Holder] = field(default_factory=list[Holder])
    open_calls: int = 0
    """Operations on it without a certain end; servers may differ about it until it is decided on again."""

    def begin_push(self) -> None:
        self.open_pushes += 1
        self.open_calls += 1


class Ledger:
    """All items, and all violations found so far."""

    def __init__(self, loop: Loop, hub: SimHub, trace: Trace) -> None:
        self.open_clears = 0
        """Calls of clear that were left in the middle: until a scrub the primary alone may know what is gone."""
        self.items: dict[str, Item] = {}
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self._told_at: WeakKeyDictionary[Claim[Any], float] = WeakKeyDictionary()
        self._loop = loop
        self._hub = hub
        self._trace = trace

    def violation(self, text: str) -> None:
        self.violations.append(f"at {self._loop.now:.3f} s: {text}")
        self._trace.note(f"VIOLATION {text}")

    def new_item(self, label: str, delay: float = 0.0) -> Item:
        item = self.items[label] = Item(label, due=self._loop.now + delay)
        return item

    @contextmanager
    def listening(self) -> Generator[None, None, None]:
        """Note when Redis last told a client that a claim holds."""
        hold = Held.hold
        extended = cast("Callable[[Claim[Any], float], Awaitable[None]]", Claim.extended)  # pyright: ignore

        def note_hold(held: Held, claims: Sequence[Claim[Any]]) -> None:
            self._told_at.update(dict.fromkeys(claims, self._loop.now))
            hold(held, claims)

        async def note_extended(claim: Claim[Any], seconds: float) -> None:
            await extended(claim, seconds)
            self._told_at[claim] = self._loop.now

        with patch.object(Held, "hold", note_hold), patch.object(Claim, "extended", note_extended):
            yield

    def _is_excused(self, claim: Claim[Any], process: Process, *, certain: bool) -> bool:
        """Whether this is what "one live holder, up to fencing" leaves open: the client could not know any better.

        It was stopped between being told that the claim holds and giving it out; or its session is over, but the
        coordinator calls it certain, or Redis' word has come this very moment.  A client that runs and is not certain
        must not give out what it was told before.
        """
        told_at = self._told_at.get(claim, 0.0)
        if told_at < process.resumed_at:
            return not (self._hub.is_live(claim.owner) and claim.holds)
        return not self._hub.is_live(claim.owner) and (certain or told_at == self._loop.now)

    def delivered(self, claim: Claim[Any], process: Process, *, certain: bool) -> tuple[Item, Holder]:
        """A consumer was given this claim; ``certain``: its client is certain of its session."""
        label: object = claim.item
        item = self.items.get(label) if isinstance(label, str) else None
        if item is None:
            self.violation(f"unexpected: {claim.item!r} was never pushed")
            item = self.new_item(str(label))
        what = f"{item.label} ({claim.id}) delivered to {process.name} under {claim.request} {tuple(claim.token)}"
        self._trace.note(what)
        if self._is_excused(claim, process, certain=certain):
            self.counts["given out while being fenced"] += 1
        else:
            self._check_is_mine(item, claim, what)
        if not item.confirmed and item.open_pushes == 0:
            self.violation(f"phantom: {what}, and every push of it was refused")
        if self._loop.now < item.due - EARLY_SECONDS:
            self.violation(f"too early: {what}, due {item.due - self._loop.now:.3f} s later")
        item.ids.add(claim.id)
        if len(item.ids) > 1:
            self.violation(f"doubled: {item.label} is there under {sorted(item.ids)}")
        item.holders = [other for other in item.holders if self._still_holds(other)]
        item.token = max(item.token, claim.token)
        item.deliveries += 1
        self.counts["deliveries"] += 1
        self.counts["deliveries again"] += item.deliveries > 1
        holder = Holder(claim, process)
        item.holders.append(holder)
        return item, holder

    def _check_is_mine(self, item: Item, claim: Claim[Any], what: str) -> None:
        """Nobody else may have it, nor have been done with it."""
        if item.acked or (item.buried and not item.redriven):
            self.violation(f"revived: {what} after its {'ack' if item.acked else 'burial'} had returned")
        if claim.token <= item.token:
            self.violation(f"fencing token went back: {what} after {item.token}")
        for other in item.holders:
            if not self._still_holds(other):
                continue
            if self._hub.is_live(other.claim.owner):
                self.violation(f"two holders: {what}, while {other.process.name} holds {other.claim!r}")
            else:
                self.counts["held on after being fenced"] += 1

    @staticmethod
    def _still_holds(holder: Holder) -> bool:
        return holder.process.state is not State.DEAD and not holder.settling and holder.claim.holds

    def missing(self, drained: set[str]) -> list[Item]:
        """Items whose push returned and that are nowhere, with nobody who may have removed them."""
        return [
            item
            for item in self.items.values()
            if item.confirmed and not (item.acked or item.buried or item.open_removals) and item.label not in drained
        ]
