"""Check that every promise was kept: by each delivery, and by the order of all of them in the end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

from tests.simulation.book import Book
from tests.simulation.items import EARLY_SECONDS, Begun, Holder, Item, Request
from tests.simulation.loop import Process
from zkrq import Claim, ResultState
from zkrq.base.checks import Duration, in_seconds
from zkrq.consuming.claims import lease_of

LATE_SECONDS = 2.5
"""How long after its time an item may still be claimed: what is left of its life travels from server to server."""

ORDER_SECONDS = 0.1
"""Items that become ready within this are as good as simultaneous."""


class Ledger(Book):
    """Check every delivery of one queue against what was promised."""

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def _is_excused(self, claim: Claim[Any], process: Process, *, certain: bool) -> bool:
        """Whether this is what "one live holder, up to fencing" leaves open: the client could not know any better.

        It was stopped between being told that the claim holds and giving it out; or its session is over, but the
        coordinator calls it certain, or Redis' word has come this very moment: in the turn of its event loop before
        the one in which the caller goes on.  A client that runs and is not certain must not give out what it was told
        before.
        """
        told_at = self.found.told_at.get(claim, 0.0)
        if told_at < process.resumed_at:
            return not (self._hub.is_live(claim.owner) and claim.holds)
        return not self._hub.is_live(claim.owner) and (certain or told_at >= self._loop.now - process.turn)

    def told_lost(self, item: Item, claim: Claim[Any]) -> None:
        """A consumer was told that its nack or release was not carried out."""
        item.told_lost.append((claim.failures, claim.attempts))

    def _check_told_lost(self, item: Item, claim: Claim[Any], what: str) -> None:
        """Compare what it was told with the counts at the next delivery; see ``records.was_put_back``."""
        for failures, attempts in item.told_lost:
            if not item.is_loose and claim.failures - claim.attempts == failures - attempts:
                self.violation(f"told lost, and carried out: {what}, {attempts} attempts and {failures} failures then")
        item.told_lost.clear()

    def delivered(self, claim: Claim[Any], process: Process, *, certain: bool) -> tuple[Item, Holder]:
        """A consumer was given this claim; ``certain``: its client is certain of its session."""
        label = str(claim.item).rstrip()
        item = self.items.get(label)
        if item is None:
            self.violation(f"unexpected: {label!r} was never pushed")
            item = self.new_item(label)
        request = lease_of(claim).grant.request
        what = f"{item.label} ({claim.id}) delivered to {process.name} under {request} {tuple(claim.token)}"
        self._trace.note(what)
        if self._is_excused(claim, process, certain=certain):
            self.counts["given out while being fenced"] += 1
        else:
            self._check_is_mine(item, claim, what)
            if self.ordered and item.group is not None:
                self._check_order_in(item.group, item, claim, what)
        if not item.may_be_there:
            self.violation(f"phantom: {what}, and every push of it was refused")
        if self._loop.now < item.due - EARLY_SECONDS - item.slack:
            self.violation(f"too early: {what}, due {item.due - self._loop.now:.3f} s later")
        self._check_life(item, claim, what)
        self._check_told_lost(item, claim, what)
        self.name(item, claim.id)
        if len(item.ids) > 1:
            self.violation(f"doubled: {item.label} is there under {sorted(item.ids)}")
        item.holders = [other for other in item.holders if self._still_holds(other)]
        item.token = max(item.token, claim.token)
        item.deliveries += 1
        self.counts["deliveries"] += 1
        self.counts["deliveries again"] += item.deliveries > 1
        holder = Holder(claim, process)
        item.holders.append(holder)
        self._check_concurrency(what)
        self._check_group(item, what)
        return item, holder

    def _asked_at(self, claim: Claim[Any]) -> float:
        """When the request was begun that was given it."""
        return self.asked_for[claim.id, lease_of(claim).grant.request]

    def _held(self, items: Iterable[Item]) -> int:
        """How many of them are certainly claimed, and were asked for when the limits were declared: consumers hold them
        that nobody has declared dead, and no cancel or replacement of them was begun, which frees the slot of a claim
        before its consumer hears of it."""
        return sum(
            self._still_holds(holder)
            and self._hub.is_live(holder.claim.owner)
            and self._asked_at(holder.claim) >= self.declared_at
            for item in items
            if item.cancelled_at is None and not item.open_removals
            for holder in item.holders
        )

    def _check_concurrency(self, what: str) -> None:
        """No more are held at once than the limit."""
        if (most := self.limits.concurrency) is None:
            return
        held = self._held(self.items.values())
        self.counts["deliveries at the limit"] += held == most
        if held > most:
            self.violation(f"more than {most} at once: {what}, while {held - 1} others are held")

    def _check_group(self, item: Item, what: str) -> None:
        """No more of a group are held at once than its limit."""
        if item.group is None or (most := self.groups.limits_of(item.group).concurrency) is None:
            return
        held = self._held(other for other in self.items.values() if other.group == item.group)
        self.counts["deliveries at the limit of a group"] += held == most
        if held > most:
            self.violation(f"more than {most} of group {item.group!r} at once: {what}, {held - 1} others are held")

    def let_group_go_on(self, item: Item) -> None:
        """It is to fail, by a policy that lets its group go on while it waits."""
        item.is_loose = item.lets_group_go_on = True

    def _check_order_in(self, group: str, item: Item, claim: Claim[Any], what: str) -> None:
        """It is neither handed out before an earlier one has ended, nor after a later one was; earlier: its push
        returned before that of the other began.  Fencing tokens grow."""
        # What was claimed ahead and cancelled has no place any more: its consumer may learn late that it is cancelled.
        if claim.token <= self.tokens.get(group, (0, 0)) and item.cancelled_at is None:
            self.violation(f"fencing token of group {group!r} went back: {what} after {self.tokens[group]}")
        self.tokens[group] = max(claim.token, self.tokens.get(group, (0, 0)))
        self.counts["deliveries in order"] += 1
        for other in self.items.values():
            if other.group != group or other is item:
                continue
            earlier = other.confirmed_at is not None and other.confirmed_at < item.begun_at
            if earlier and other.lets_group_go_on:
                self.counts["deliveries past a failed item"] += other.is_live(self._loop.now)
                continue
            if earlier and not item.is_loose and not item.keeps_a_place and other.is_live(self._loop.now):
                self.violation(f"out of order: {what}, while {other.label} of {group!r} has not ended")
            later = item.confirmed_at is not None and item.confirmed_at < other.begun_at
            if later and other.handed_in_order and not item.is_loose and not other.keeps_a_place and item.ttl is None:
                self.violation(f"out of order: {what}, after {other.label} of {group!r} was handed out")
        item.handed_in_order = True

    def check_rates(
        self, where: str, epoch: int | None, request: str, begun: Begun, groups: Mapping[str | None, int]
    ) -> None:
        """No more claims begin in a time than the limit, of all and of each group; ``groups``: of how many items."""
        if self.limits.rate is not None:
            self._check_rate((where, epoch, None), self.limits.rate, request, begun)
        for group, items in groups.items():
            if group is not None and (rate := self.groups.limits_of(group).rate) is not None:
                self._check_rate((where, epoch, group), rate, request, begun._replace(items=items))

    def _check_rate(
        self, where: tuple[str, int | None, str | None], rate: tuple[int, Duration], request: str, begun: Begun
    ) -> None:
        """By the clock of the server that counts, and certainly in less than that time: a clock may be set."""
        if not begun.items or begun.since < self.declared_at:
            return
        most, seconds, of_group = rate[0], in_seconds(rate[1]), where[2] is not None
        known = self.begun.setdefault(where, {})
        known.setdefault(request, begun)
        near = [
            other
            for other in known.values()
            if 0 <= begun.clock_us - other.clock_us < seconds * 1e6
            and max(begun.until, other.until) - min(begun.since, other.since) < seconds
        ]
        count = sum(other.items for other in near)
        self.counts["requests at the rate of a group" if of_group else "requests at the rate"] += count == most
        if count > most:
            self.violation(
                f"more than {most} {f'of {where[2]!r} ' * of_group}in {seconds} s: {request} makes it {count}"
            )

    def _check_is_mine(self, item: Item, claim: Claim[Any], what: str) -> None:
        """Nobody else may have it, nor have been done with it."""
        asked_at = self._asked_at(claim)
        # A consumer that claimed it before the cancel may learn of that late, or never, because it does not listen.
        was_held = item.told and item.told[0] is ResultState.CANCELLED and asked_at <= item.told_at
        if item.told and not was_held and not item.returns and not item.deletions:
            self.violation(f"revived: {what} after a caller was told that it is {item.told}")
        if item.deleted_at is not None and not item.reborn and asked_at > item.deleted_at:
            self.violation(f"revived: {what} after a deletion of the queue had returned")
        self.counts["made again after a deletion"] += item.deletions > 0 and item.reborn
        if (item.acked or (item.buried_at is not None and item.redriven_at is None)) and not item.returns:
            self.violation(f"revived: {what} after its {'ack' if item.acked else 'burial'} had returned")
        if item.cancelled_at is not None and not item.returns and asked_at > item.cancelled_at:
            self.violation(f"revived: {what} after its cancel had returned")
        if claim.token <= item.token and not item.is_moved:
            self.violation(f"fencing token went back: {what} after {item.token}")
        for other in item.holders:
            if not self._still_holds(other):
                continue
            if self._hub.is_live(other.claim.owner):
                self.violation(f"two holders: {what}, while {other.process.name} holds {other.claim!r}")
            else:
                self.counts["held on after being fenced"] += 1

    def _check_life(self, item: Item, claim: Claim[Any], what: str) -> None:
        """It is not claimed after its time, nor brought back by a redrive while its key was another's."""
        if item.ttl is not None and item.confirmed_at is not None and item.redriven_at is None:
            late = self._asked_at(claim) - item.confirmed_at - item.ttl
            if late > LATE_SECONDS + item.slack + item.held_back:
                self.violation(f"too late: {what}, asked for {late:.3f} s after its time")
        if not item.key or item.redriven_at is None or item.buried_at is None:
            return
        for rival, _ in self.standing(item.key):
            later = item.buried_at < rival.begun_at and cast("float", rival.confirmed_at) < item.redriven_at
            if rival is not item and later:
                self.violation(f"key given twice: {what} after a redrive, while {rival.label} had {item.key}")

    # -- order ---------------------------------------------------------------------------------------------------------

    def check_order(self) -> None:
        """While nothing had gone wrong, no item was handed out for the first time while one that comes before it had
        been ready since before the request, on the same shard."""
        first: dict[str, Request] = {}
        for request in self.requests:
            for id in request.ids:
                first.setdefault(id, request)
        for request in self.requests:
            if self._is_calm(request):
                self._check_order_of(request, first)

    def _is_calm(self, request: Request) -> bool:
        """Whether nothing had gone wrong by the time of its answer."""
        before = [other for other in self.requests if other.asked_at <= request.answered_at]
        return request.calm and all(
            other.answered_at < math.inf and not (other.moved and other.answered_at >= request.asked_at)
            for other in before
        )

    def check_turns(self) -> None:
        """While nothing had gone wrong, no group had two turns while another one that was in line, with an item of no
        lower priority, had none."""
        first: dict[str, Request] = {}
        for request in self.requests:
            for id in request.ids:
                first.setdefault(id, request)
        served: dict[tuple[str, str], Request] = {}
        for request in sorted(self.requests, key=lambda request: request.answered_at):
            for group, priority in self._turns_in(request).items():
                before = served.get((request.where, group))
                served[request.where, group] = request
                if before and before.answered_at < request.asked_at and self._is_calm(request):
                    self._check_turn(group, priority, before, request, first)

    def _turns_in(self, request: Request) -> dict[str, int]:
        """The groups that a request was given items of, and the greatest priority of these."""
        turns: dict[str, int] = {}
        for item in (self.by_id[id] for id in request.ids if id in self.by_id):
            if item.group is not None:
                turns[item.group] = max(item.priority, turns.get(item.group, 0))
        return turns

    def _check_turn(
        self, group: str, priority: int, before: Request, request: Request, first: Mapping[str, Request]
    ) -> None:
        meanwhile = [
            other
            for other in self.requests
            if other.where == request.where
            and other.asked_at <= request.answered_at
            and other.answered_at >= before.asked_at
        ]
        self.counts["turns compared"] += 1
        had_turns = {named for other in meanwhile for named in self._turns_in(other)}
        for id, item in self.by_id.items():
            claimed = first.get(id)
            if item.group is None or item.group in had_turns or item.priority < priority or item.ttl:
                continue
            if (claimed.where != request.where) if claimed else self.sharded:
                continue
            ready_at = math.inf if item.confirmed_at is None else item.confirmed_at + item.delay
            if ready_at > before.asked_at - ORDER_SECONDS or item.removal_at <= request.answered_at:
                continue
            if claimed and claimed.asked_at <= request.answered_at:
                continue
            self.violation(
                f"out of turn: group {group!r} had two, until {before.answered_at:.3f} and {request.answered_at:.3f} s,"
                f" {item.label} of {item.group!r} had been ready since {ready_at:.3f} s"
            )

    def _check_order_of(self, request: Request, first: Mapping[str, Request]) -> None:
        given = [self.by_id[id] for id in request.ids if first[id] is request and id in self.by_id]
        for id, item in self.by_id.items():
            claimed = first.get(id)
            if claimed and (claimed.asked_at <= request.answered_at or claimed.where != request.where):
                continue
            if claimed is None and self.sharded:  # nobody knows where it was
                continue
            ready_at = math.inf if item.confirmed_at is None else item.confirmed_at + item.delay
            if ready_at > request.asked_at - ORDER_SECONDS or item.ttl or item.removal_at <= request.answered_at:
                continue
            self.counts["orders compared"] += len(given)
            for other in given:
                earlier = ready_at + ORDER_SECONDS < other.begun_at + other.delay and not other.keeps_a_place
                if item.priority > other.priority or (item.priority == other.priority and earlier):
                    self.violation(
                        f"out of order: {other.label} ({other.priority}) was handed out at {request.answered_at:.3f} s,"
                        f" {item.label} ({item.priority}) had been ready since {ready_at:.3f} s"
                    )

    # -- ids -----------------------------------------------------------------------------------------------------------

    def gone_by_own_id(self) -> list[tuple[str, Item]]:
        """Ids that a user chose, whose items were pushed and are certainly gone."""
        return [
            (id, item)
            for id, item in sorted(self.by_id.items())
            if id.startswith("own ") and item.confirmed and item.acked and not item.open_pushes > 1
        ]

    def use_again(self, id: str, label: str) -> Item:
        """The id of an item that is gone is to be another one's."""
        self.by_id.pop(id).ids.discard(id)
        item = self.new_item(label)
        self.name(item, id)
        return item

    def missing(self, drained: set[str]) -> list[Item]:
        """Items whose push returned and that are nowhere, with nobody who may have removed them."""
        return [item for item, _ in self.standing() if item.label not in drained]

    def letters(self) -> list[Item]:
        """Items that are certainly dead letters, unless the queue drops some."""
        return [
            item
            for item in self.items.values()
            if item.buried_at is not None
            and item.redriven_at is None
            and not (item.open_removals or item.acked or item.discarded or item.cancelled_at is not None)
        ]
