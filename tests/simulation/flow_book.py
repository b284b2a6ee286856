"""Keep the books of the flows of a run: what was done with each, and what was promised of it.

What comes after a flow is handed out when every member whose push has returned has ended, and no member is afterwards;
it is there once, and comes whichever clients and servers die.  An outcome never changes.  No step that has returned is
run again, and what a flow has refused is handed out to nobody.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.findings import Findings
from tests.simulation.world import CLAIM_TIMEOUT, World
from zkrq import Claim, FlowState, Result, ResultState
from zkrq.consuming.claims import lease_of

OPENED: Mapping[FlowState, frozenset[str]] = {
    FlowState.DONE: frozenset({"then", "always"}),
    FlowState.FAILED: frozenset({"on_failure", "always"}),
    FlowState.CANCELLED: frozenset(),
}
"""What each outcome hands out."""


@dataclass(eq=False, slots=True)
class Part:
    """One item of a flow, a member or what comes after.  Moments are infinite for what has not happened."""

    label: str
    opens: str = ""
    """Of what comes after: the call that held it; empty: a member."""
    queue: str = ""
    """Where it is pushed."""
    name: str = ""
    """Under which it may be pushed again, empty: it has none."""
    after: tuple[Part, ...] = ()
    """Members for which it waits."""
    result: str | None = None
    """What its acks leave."""
    confirmed_at: float = math.inf
    refused_at: float = math.inf
    """When the flow refused it."""
    given_at: float = math.inf
    """When it was handed out first."""
    ack_begun: bool = False
    acked_at: float = math.inf
    removal_begun: bool = False
    """It was buried or cancelled, or that was begun."""
    ids: set[str] = field(default_factory=set[str])
    step_at: tuple[int, int] | None = None
    """Fencing token under which its step has returned."""
    inner: Known | None = None
    """The flow for which it stands, as which it ends; then it is handed out to nobody."""

    @property
    def awaited_until(self) -> float:
        """When the last ack had returned for which it waits."""
        return max(each.acked_at for each in self.after)

    @property
    def is_after(self) -> bool:
        return bool(self.opens)


@dataclass(eq=False, slots=True)
class Known:
    """What is known of one flow."""

    name: str
    outer: Known | None = None
    """The flow of which it is a member, None: it is of none."""
    fail_fast: bool = False
    ignore_missed: bool = False
    deadline: float | None = None
    """Seconds, None: it has none."""
    begun_at: float = math.inf
    """When it may have begun, at the earliest."""
    parts: dict[str, Part] = field(default_factory=dict[str, Part])
    sealing: bool = False
    sealed: bool = False
    cancel_begun: bool = False
    finish_begun: bool = False
    opened: set[str] = field(default_factory=set[str])
    """Calls that held what was handed out."""
    outcome: FlowState | None = None
    ended_at: float = math.inf
    """When a client first learned the outcome."""

    @property
    def fails(self) -> bool:
        """Whether it may have removed members, or may do so."""
        may_fail = self.fail_fast or self.deadline is not None or self.cancel_begun or self.finish_begun
        return may_fail or (self.outer is not None and self.outer.fails)

    @property
    def place(self) -> Part | None:
        """What stands for it in the flow around it, None: it is in none."""
        return next((part for part in self.outer.members if part.inner is self), None) if self.outer else None

    @property
    def depth(self) -> int:
        """How many flows are in one another down to this one."""
        return 1 if self.outer is None else 1 + self.outer.depth

    @property
    def is_cancelled(self) -> bool:
        """Whether it may have been cancelled, by itself or with the flow around it."""
        return self.cancel_begun or (self.outer is not None and self.outer.is_cancelled)

    @property
    def may_be_done(self) -> bool:
        """Whether it may have ended as done."""
        left = (not each.ack_begun for each in self.members if each.confirmed_at < math.inf)
        removed = self.ignore_missed and any(each.removal_begun for each in self.members)
        return self.finish_begun or (self.sealing and (removed or not any(left)))

    def follow(self) -> None:
        """Have members that stand for inner flows be what these may be by now."""
        for part in self.members:
            if inner := part.inner:
                inner.follow()
                part.ack_begun = part.ack_begun or inner.may_be_done
                missed = inner.fails or any(each.removal_begun for each in inner.members)
                part.removal_begun = part.removal_begun or missed

    @property
    def members(self) -> list[Part]:
        return [part for part in self.parts.values() if not part.is_after]

    @property
    def named(self) -> list[Part]:
        """The members that were pushed under a name."""
        return [part for part in self.members if part.name and not part.inner]

    @property
    def afters(self) -> list[Part]:
        return [part for part in self.parts.values() if part.is_after]

    @property
    def first_after(self) -> float:
        """When something that comes after it was first handed out."""
        return min((part.given_at for part in self.afters), default=math.inf)


class FlowBook:
    """What was promised of all flows of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._found: Findings = world.found
        self.flows = dict[str, Known]()

    def violation(self, text: str) -> None:
        if not self._world.is_forced:  # what was on a shard that is removed by force is gone
            self._found.violation(text)

    def count(self, what: str, number: int = 1) -> None:
        self._found.counts[what] += number

    def given(self, claim: Claim[Any]) -> tuple[Known, Part]:
        """A consumer was given a claim."""
        flow = self.flows[claim.item["flow"]]
        flow.follow()
        part, what = flow.parts[claim.item["label"]], f"{claim.item['label']} of {flow.name} to {claim.owner}"
        # Extensions move it forward: then servers have said so much later that the claim holds.
        since = lease_of(claim).deadline_at - CLAIM_TIMEOUT
        part.ids.add(claim.id)
        if len(part.ids) > 1:
            self.violation(f"doubled: {what} is there under {sorted(part.ids)}")
        if since > part.acked_at:
            self.violation(f"revived: {what} after its ack had returned")
        if since > part.refused_at:
            self.violation(f"handed out though its flow has refused it: {what}")
        if waiting := [each.label for each in part.after if not self._has_ended(flow, each)]:
            self.violation(f"early: {what}, which waits for {waiting}")
        if behind := [each.label for each in flow.parts.values() if part in each.after and each.given_at < since]:
            self.violation(f"a member after one that waited for it: {what}, after {behind}")
        if part.is_after:
            self._check_after(flow, part, what)
        elif since > min(flow.first_after, flow.ended_at) and self._may_not_come(flow, part):
            self.violation(f"a member after the end: {what}")
        part.given_at = min(part.given_at, self._world.loop.now)
        self.count("continuations" if part.is_after else "members that waited" if part.after else "members")
        return flow, part

    def _has_ended(self, flow: Known, part: Part) -> bool:
        """Whether a member may have ended, as far as others wait for it."""
        return part.ack_begun or (flow.ignore_missed and part.removal_begun)

    def _may_be_late(self, flow: Known) -> bool:
        """Whether the deadline of a flow may have passed, by some clock."""
        world = self._world
        askew = 2 * world.shape.clocks + world.stepped + world.found.leapt
        return flow.deadline is not None and world.loop.now > flow.begun_at + flow.deadline - askew

    def _may_fail(self, flow: Known) -> bool:
        """Whether it may have failed while members are left, by itself or with the flow around it."""
        flow.follow()
        removed = flow.fail_fast and any(each.removal_begun for each in flow.members)
        return removed or self._may_be_late(flow) or (flow.outer is not None and self._may_fail(flow.outer))

    def _may_not_come(self, flow: Known, part: Part) -> bool:
        """Whether a member is not to be handed out after the end of its flow.

        A dead letter that is redriven is, and one that fails when its flow was ended by somebody.
        """
        if flow.finish_begun or (part.removal_begun and flow.outcome is not FlowState.DONE):
            return False
        return not flow.is_cancelled or (part.given_at == math.inf and part.confirmed_at < flow.ended_at)

    def _check_after(self, flow: Known, part: Part, what: str) -> None:
        flow.opened.add(part.opens)
        self._check_outcome(flow)
        if flow.finish_begun:
            return
        left = [one.label for one in flow.members if one.confirmed_at < math.inf and not one.ack_begun]
        removed = [one.label for one in flow.members if one.removal_begun]
        if part.opens != "then" or flow.ignore_missed:
            left = [label for label in left if label not in removed]
        if part.opens != "then" and removed:  # what waits is removed when a flow fails
            left = [label for label in left if not flow.parts[label].after]
        may_fail = part.opens != "then" and self._may_fail(flow)
        if left and not may_fail:
            self.violation(f"early: {what}, held by {part.opens}, while {left} have not ended")
        if not flow.sealing and not may_fail:
            self.violation(f"early: {what}, whose flow was not sealed")

    def _check_outcome(self, flow: Known) -> None:
        """What was handed out is what the outcome opens, of which there is one."""
        outcomes = [state for state, opens in OPENED.items() if flow.opened <= opens]
        if not outcomes or (flow.outcome is not None and flow.outcome not in outcomes):
            self.violation(f"{flow.opened} of {flow.name} were handed out, and its outcome is {flow.outcome}")

    def note_state(self, flow: Known, state: FlowState | str, begun_at: float) -> None:
        """Note the state that a client read at this moment."""
        state = FlowState(state)
        if state.has_ended and flow.outcome not in (None, state):
            self.violation(f"the outcome of {flow.name} was {flow.outcome}, and is {state}")
        if not state.has_ended and begun_at > flow.ended_at:
            self.violation(f"{flow.name} was {flow.outcome}, and is {state}")
        if state.has_ended:
            self.count(f"flows told {state}")
            flow.outcome, flow.ended_at = state, min(flow.ended_at, self._world.loop.now)
            self._check_outcome(flow)

    # -- results -------------------------------------------------------------------------------------------------------

    def read(self, flow: Known, results: Sequence[Result[Any]], begun_at: float) -> None:
        """Somebody who began at this moment has read the results of all members."""
        by_id = {id: part for part in flow.parts.values() for id in part.ids}
        self.count("results of flows read")
        ids = Counter(result.id for result in results)
        if doubled := [id for id, count in ids.items() if count > 1]:
            self.violation(f"results of {flow.name}: {doubled} are there twice")
        for result in results:
            if (part := by_id.get(result.id)) is not None:
                self._check_result(flow, part, result)
        for part in flow.members if self._keeps_results else ():
            if part.acked_at < begun_at and not part.ids & ids.keys():
                self.violation(f"no result: {part.label} of {flow.name}, acked at {part.acked_at:.3f} s")
        self.count("results of members", len(results))

    def told(self, flow: Known, part: Part, result: Result[Any], begun_at: float) -> None:
        """Somebody who began to ask at this moment was told what became of a member, by its name."""
        self.count(f"members told {result.state}")
        if result.state is ResultState.DONE:
            self._check_result(flow, part, result)
        elif self._keeps_results and part.acked_at < begun_at:
            self.violation(f"told otherwise: {part.label} of {flow.name} is {result.state}, and was acked")
        is_there = part.confirmed_at < begun_at and not part.removal_begun and not flow.fails
        if result.state is ResultState.UNKNOWN and is_there and self._keeps_results:
            self.violation(f"unknown: {part.label} of {flow.name}, pushed at {part.confirmed_at:.3f} s")

    @property
    def _keeps_results(self) -> bool:
        """Whether servers' clocks let them keep results for as long as they are to."""
        return not self._world.found.leapt and not self._world.found.away

    def _check_result(self, flow: Known, part: Part, result: Result[Any]) -> None:
        what = f"{part.label} of {flow.name} is {result}"
        if part.is_after or not part.ack_begun:
            self.violation(f"a result of nothing: {what}")
        elif not result.has_value and (part.acked_at < math.inf or not result.is_lost):
            self.violation(f"result lost: {what}")
        elif result.has_value and result.value != part.result:
            self.violation(f"a wrong result: {what}")
