"""The model's scripts of flows against the real ones, as ``test_scripts.py`` has the others."""

from __future__ import annotations

import pytest

from tests.model.content import QUEUE
from tests.model.rules import ALL_RULES
from tests.model.twins import LONG_MS, SIZES, Load, Twins, make_calls, payload_of
from zkrq.protocol import calls
from zkrq.protocol.flow_names import named
from zkrq.protocol.records import HELD, MEMBER, Opens, fresh, held_for, waiting_for, with_fields

FLOWS = ("f", "ff")

MEMBERS, FOLLOWING = ["i1", "zkrq-0b-0-0", "zkrq-0c-0-0"], ["i2"]
"""Bundles of members, where there are flows, and what follows these."""


LIVES = (1, 1, 1, 2)
"""When flows have begun."""

VERBS = (
    *("begin", "begin", "begin", "seal", "look", "look", "end", "end", "cancel", "finish"),
    *("join", "live", "open", "fail", "close", "wait"),
)


class FlowLoad(Load):
    """Draws calls about flows, too."""

    def _member(self) -> calls.PushPlain:
        return calls.PushPlain(QUEUE, [self._of_flow(id, MEMBER) for id in self.random.sample(MEMBERS, 2)])

    def _added(self) -> calls.PushDecided:
        rng = self.random
        put = self._of_flow(rng.choice(MEMBERS), MEMBER)
        singles = [put.single(at) for at in range(put.size)]
        following = [rng.choice((self._held, self._waiting))(id) for id in FOLLOWING if rng.random() < 0.3]
        return calls.PushDecided(QUEUE, [*singles, *following], again=rng.random() < 0.5, in_order=True)

    def _of_flow(self, id: str, kind: str) -> calls.Put:
        record = fresh(0, self.moment(), size=SIZES[id] or None)
        return calls.Put(id, with_fields(record, {kind: self.random.choice(FLOWS).encode()}), payload_of(id))

    def _held(self, id: str) -> calls.Put:
        opens = self.random.choice(list(Opens))
        fields = {HELD: held_for(self.random.choice(FLOWS).encode(), opens)}
        if opens is Opens.NESTED:
            fields = {MEMBER: self.random.choice(FLOWS).encode(), **fields}
        return calls.Put(id, with_fields(fresh(0, self.moment()), fields), payload_of(id))

    def _waiting(self, id: str) -> calls.Put:
        rng = self.random
        names = [named(QUEUE, each) for each in rng.sample(MEMBERS, 2)]
        fields = {MEMBER: rng.choice(FLOWS).encode(), HELD: waiting_for(names)}
        return calls.Put(id, with_fields(fresh(0, self.moment()), fields), payload_of(id))

    def _named_states(self) -> calls.NamedStates:
        return calls.NamedStates(QUEUE, [*MEMBERS, *FOLLOWING, "none"])

    def _waiting_page(self) -> calls.WaitingPage:
        return calls.WaitingPage(QUEUE, self.random.choice(FLOWS), self.random.choice("IN"))

    def _release(self) -> calls.Release:
        return calls.Release(QUEUE, self.random.choice(FLOWS), [*FOLLOWING, self.random.choice(MEMBERS)])

    def _steer(self) -> calls.Steer:
        rng = self.random
        verb = rng.choice(VERBS)
        policy, remaining = (
            rng.choice(["", "", "f", "m", "l"]),
            rng.choice(["", "", "L", "N", "D", "M", "DV", ",1,2,3"]),
        )
        given = rng.choice(FLOWS), verb, rng.randint(0, 2), LONG_MS, policy
        leg, life, outer = rng.choice(["x", "y"]), rng.choice(LIVES), rng.choice(["", "", "o"])
        return calls.Steer(QUEUE, *given, leg=leg, life=life, remaining=remaining, outer=outer)

    def _flow_members(self) -> calls.FlowMembers:
        return calls.FlowMembers(QUEUE, self.random.choice(FLOWS))

    def _flow_page(self) -> calls.FlowPage:
        return calls.FlowPage(QUEUE)

    def _open_held(self) -> calls.OpenHeld:
        rng = self.random
        outcome = rng.choice(["", "", "", "done", "failed", "cancelled"])
        return calls.OpenHeld(QUEUE, rng.choice(FLOWS), outcome, rng.choice(LIVES), stop=rng.random() < 0.5)


DRAWN = (
    *("member", "added", "steer", "steer", "flow_members", "open_held", "claim", "settle", "settle", "cancel"),
    *("redrive", "read", "affirm", "forward", "fence", "results", "apply", "cut", "flow_page"),
    *("named_states", "waiting_page", "release", "release"),
)


@pytest.mark.parametrize("seed", range(40))
def test_model_and_scripts_treat_flows_alike(seed: int) -> None:
    twins = Twins(ALL_RULES)
    make_calls(seed, twins, FlowLoad(seed, twins.model, DRAWN))
