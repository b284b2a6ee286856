"""What decides for the consumers of a queue: random walks over servers that are lists."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.dispatching import LEASE, Server, Shell
from zkrq.consuming.core import supply as life
from zkrq.consuming.core.dispatch import SWEEP_SECONDS
from zkrq.consuming.core.lease import DELIVER, LOSE
from zkrq.consuming.core.pace import CLAIM_MAX, PrefetchLimit


class Walk(RuleBasedStateMachine):
    """Consumers, streams, requests and failures in any order, over up to three shards."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()
        self.streams: list[PrefetchLimit] = []

    @initialize(servers=st.integers(1, 3), limited=st.sampled_from([False, False, False, True]))
    def begin(self, servers: int, limited: bool) -> None:
        self.shell = Shell(servers, limited=limited)
        self.join(PrefetchLimit(4, fixed=True))
        for server in self.shell.servers:
            server.ready += itertools.islice(self.numbers, 6)

    def pick(self, of: list[Any], chance: int) -> Any:
        return of[chance % len(of)]

    @rule(chance=st.integers(0, 99), count=st.integers(1, 4))
    def push(self, chance: int, count: int) -> None:
        for _ in range(count):
            self.shell.push(self.pick(self.shell.servers, chance), next(self.numbers))

    @rule(want=st.integers(1, 3), patient=st.booleans())
    def wait(self, want: int, patient: bool) -> None:
        self.shell.wait(want, patient=patient)

    @precondition(lambda self: self.shell.came)
    @rule(chance=st.integers(0, 99), is_late=st.booleans())
    def leave(self, chance: int, is_late: bool) -> None:
        waiter = self.pick(self.shell.came, chance)
        if is_late and not waiter.caller.done():
            waiter.caller.has_left = True  # it is withdrawn later
        elif waiter.claims is None or all(claim in self.shell.taken for claim in waiter.claims):
            self.shell.came.remove(waiter)
            self.shell.withdraw(waiter)

    @rule(
        limit=st.sampled_from([PrefetchLimit(None), PrefetchLimit(4, fixed=True), PrefetchLimit(3), PrefetchLimit(0)])
    )
    def join(self, limit: PrefetchLimit) -> None:
        self.streams.append(limit)
        self.shell.dispatch.pace.join(limit)

    @precondition(lambda self: self.streams)
    @rule()
    def end_a_stream(self) -> None:
        self.shell.dispatch.leave(self.streams.pop(), *self.shell.moment)
        self.shell.carry_out()

    @rule(want=st.integers(1, 3))
    def draw(self, want: int) -> None:
        self.shell.draw(want)

    @precondition(lambda self: self.shell.taken)
    @rule(chance=st.integers(0, 99))
    def give_back(self, chance: int) -> None:
        claims = self.shell.taken[chance % len(self.shell.taken) :]
        claims = [claim for claim in claims if claim.lease.holds(self.shell.now)]
        self.shell.came = [each for each in self.shell.came if not {*(each.claims or ())} & {*claims}]
        self.shell.taken = [claim for claim in self.shell.taken if claim not in claims]
        self.shell.dispatch.give_back(claims, *self.shell.moment)
        self.shell.carry_out()

    @rule(chance=st.integers(0, 99))
    def lose(self, chance: int) -> None:
        if ahead := [claim for stock in self.shell.dispatch.stocks for claim in stock.ahead]:
            lease = self.pick(ahead, chance).lease
            lease.state = LOSE[lease.state]

    @rule(is_certain=st.booleans())
    def session(self, is_certain: bool) -> None:
        self.shell.is_certain = is_certain

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 4.0, LEASE]))
    def pass_time(self, seconds: float) -> None:
        self.shell.pass_time(seconds)

    @rule(chance=st.integers(0, 99), steps=st.integers(1, 3))
    def go_on(self, chance: int, steps: int) -> None:
        """Requests are made, answered, or repeated."""
        for step in range(steps):
            server: Server = self.pick(self.shell.servers, chance + step // 2)
            if server.stock.state in life.RETRY:
                self.shell.retry(server)
            elif server.stock.state in life.ANSWER:
                self.shell.answer(server)
            elif server.stock.state in life.ASK:
                self.shell.ask(server)

    @rule(chance=st.integers(0, 99), is_late=st.booleans())
    def suffer(self, chance: int, is_late: bool) -> None:
        """A request in flight fails, or takes long."""
        server: Server = self.pick(self.shell.servers, chance)
        if server.order is None:
            return
        if not is_late:
            self.shell.fail(server, TimeoutError())
        elif server.stock.asking and self.shell.dispatch.has_others:
            self.shell.dispatch.late(server.stock, *self.shell.moment)
            self.shell.carry_out()

    @rule(count=st.integers(1, CLAIM_MAX))
    def probe(self, count: int) -> None:
        self.shell.dispatch.probe(count)
        self.shell.carry_out()

    @rule(is_quiet=st.booleans())
    def quiet(self, is_quiet: bool) -> None:
        self.shell.quiet(is_quiet)

    @rule()
    def rest(self) -> None:
        """Once servers answer and time passes, nobody waits where items are, and nothing is asked for in vain."""
        shell = self.shell
        shell.is_certain = True
        if shell.dispatch.is_quiet:
            taken = len(shell.taken)
            shell.run(2 * SWEEP_SECONDS)
            assert len(shell.taken) == taken, "a quiet process was given something"
            shell.quiet(False)
        shell.vain = 0
        shell.run()
        assert shell.vain <= 2 * len(shell.servers) + 1, f"{shell.vain} requests in vain"
        shell.run(2 * SWEEP_SECONDS)
        waiting = [waiter for waiter in shell.dispatch.waiters if not waiter.caller.done()]
        assert all(waiter.patient for waiter in waiting), "nobody has told it that nothing is ready"
        assert not waiting or not any(server.ready for server in shell.servers), "it waits, and items are ready"

    @invariant()
    def is_consistent(self) -> None:
        self.shell.dispatch.check_invariants()

    @invariant()
    def no_item_is_in_two_places(self) -> None:
        shell = self.shell
        ahead = [claim for stock in shell.dispatch.stocks for claim in stock.ahead if claim.lease.holds(shell.now)]
        taken = [claim for claim in shell.taken if claim.lease.holds(shell.now)]
        items = [each.item for each in (*ahead, *taken)] + [item for server in shell.servers for item in server.ready]
        assert len({*items}) == len(items)

    @invariant()
    def claims_that_consumers_have_are_delivered(self) -> None:
        for claim in self.shell.taken:
            assert claim.lease.state is DELIVER[claim.lease.state]


Walk.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestWalk = Walk.TestCase
