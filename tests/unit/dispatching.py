"""A shell for ``core/dispatch.py`` that notices what must not happen, over servers that are lists."""

from __future__ import annotations

import itertools
from collections import deque

from zkrq.consuming.core import supply as life
from zkrq.consuming.core.dispatch import ClaimReport, Dispatch, Stock, Waiter
from zkrq.consuming.core.lease import HOLDING, LOSE, LeaseState
from zkrq.consuming.core.supply import IS_DUE, WAITING, Action, Order

LEASE = 30.0


class Held:
    """The lease of a claim."""

    def __init__(self, issuer: object, deadline_at: float) -> None:
        self.state = LeaseState.GRANTED
        self.deadline_at = deadline_at
        self.issuer = issuer

    def holds(self, now: float) -> bool:
        return self.state in HOLDING and self.deadline_at > now


class Claim:
    """An item with its lease."""

    def __init__(self, item: int, issuer: object, deadline_at: float) -> None:
        self.item = item
        self._lease = Held(issuer, deadline_at)

    @property
    def lease(self) -> Held:
        return self._lease


class Caller:
    """A consumer that waits, and may leave."""

    def __init__(self) -> None:
        self.has_left = False
        self.given: list[Claim] | None = None
        self.error: Exception | None = None

    def done(self) -> bool:
        return self.has_left or self.given is not None or self.error is not None

    def set_result(self, result: list[Claim], /) -> None:
        self.given = result

    def set_exception(self, exception: Exception, /) -> None:
        self.error = exception

    def exception(self) -> BaseException | None:
        return self.error


class Server:
    """A shard: its ready items, and the stock that claims them."""

    def __init__(self, *, is_away: bool = False) -> None:
        self.ready = deque[int]()
        self.is_away = is_away
        self.stock = Stock[Claim](self, lambda: self.is_away)
        self.hears = False
        """A wake-up channel was left here."""
        self.order: Order | None = None
        """What the request in flight asks for."""


class Shell:
    """Carry out what is decided, and notice what must not happen."""

    def __init__(self, servers: int = 1, *, limited: bool = False) -> None:
        self.now = 100.0
        self.is_certain = True
        self.dispatch = Dispatch[Claim](limited=limited)
        self.servers = [Server() for _ in range(servers)]
        self.came: list[Waiter[Claim]] = []
        """Waiters in the order in which they came."""
        self.taken: list[Claim] = []
        self.requests = self.vain = 0
        self.use(self.servers)

    @property
    def moment(self) -> tuple[float, bool]:
        return self.now, self.is_certain

    def use(self, servers: list[Server]) -> None:
        self.dispatch.use([server.stock for server in servers], *self.moment)
        self.carry_out()

    def server_of(self, stock: Stock[Claim]) -> Server:
        return next(server for server in self.servers if server.stock is stock)

    def carry_out(self, fresh: Stock[Claim] | None = None) -> None:
        actions, self.dispatch.actions = self.dispatch.actions, []
        for action in actions:
            if isinstance(action, Waiter):
                self._end(action, fresh)
                continue
            stock, what = action
            if not isinstance(what, Action) and what.lease.holds(self.now):
                assert what.lease.state is not LeaseState.DELIVERED, "a consumer has it"
                what.lease.state = LOSE[what.lease.state]
                self.push(self.server_of(stock), what.item)

    def _end(self, waiter: Waiter[Claim], fresh: Stock[Claim] | None) -> None:
        assert isinstance(waiter.caller, Caller)
        assert not waiter.caller.done(), "it waits no more"
        if waiter.claims is None:
            waiter.caller.set_exception(waiter.error or LookupError("closed"))
            return
        if waiter.claims:
            earlier = itertools.takewhile(lambda each: each is not waiter, self.came)
            assert all(each.caller.done() for each in earlier), "another one has waited longer"
        self.see(waiter.claims, fresh)
        waiter.caller.set_result(waiter.claims)

    def see(self, claims: list[Claim], fresh: Stock[Claim] | None = None) -> None:
        """A consumer gets these."""
        for claim in claims:
            assert claim.lease.holds(self.now), "it was lost before"
            assert claim not in self.taken, "another one has it"
            assert self.is_certain or (fresh and claim.lease.issuer is fresh.issuer), "it may be another client's"
        self.taken += claims

    # -- events ----------------------------------------------------------------------------------------------------

    def push(self, server: Server, item: int) -> None:
        server.ready.append(item)
        if server.hears:
            server.hears = False
            server.stock.wake(alone=True)

    def wait(self, want: int = 1, *, patient: bool = True) -> Waiter[Claim]:
        caller = Caller()
        waiter = Waiter(want, patient, caller)
        if drawn := self.draw(want):
            waiter.claims = caller.given = drawn
            return waiter
        self.came.append(waiter)
        self.dispatch.wait(waiter, *self.moment, asks=not patient)
        self.carry_out()
        return waiter

    def draw(self, want: int = 1) -> list[Claim]:
        drawn = self.dispatch.draw(want, *self.moment)
        self.see(drawn)
        self.carry_out()
        return drawn

    def ask(self, server: Server) -> Order:
        """The loop of a stock that is due asks what to do."""
        order = self.dispatch.order(server.stock, *self.moment)
        self.carry_out()
        if not order.asks:
            server.stock.pause(order, self.now)
            return order
        server.stock.ask(order, self.now)
        server.order = order
        self.requests += 1
        return order

    def answer(self, server: Server) -> list[Claim]:
        order, server.order = server.order, None
        assert order is not None
        items = [server.ready.popleft() for _ in range(min(order.wanted, len(server.ready)))]
        claims = [Claim(item, server, self.now + LEASE) for item in items]
        server.hears = order.listens and len(items) < order.wanted
        self.vain += not items
        report = ClaimReport(0 if server.ready else -1, claims, len(items), server.hears)
        self.dispatch.answer(server.stock, report, *self.moment)
        self.carry_out(server.stock)
        return claims

    def fail(self, server: Server, error: Exception) -> None:
        server.order = None
        self.dispatch.fail(server.stock, error, *self.moment)
        self.carry_out()

    def retry(self, server: Server) -> None:
        server.stock.tell(life.RETRY)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for server in self.servers:
            if server.stock.state in WAITING and server.stock.due_at <= self.now:
                server.stock.tell(life.TIME)

    def quiet(self, is_quiet: bool) -> None:
        self.dispatch.quiet(is_quiet, *self.moment)
        self.carry_out()

    def withdraw(self, waiter: Waiter[Claim]) -> None:
        """Its consumer was cancelled; what it was given, nobody has seen."""
        assert isinstance(waiter.caller, Caller)
        waiter.caller.has_left = True
        for claim in waiter.claims or ():
            self.taken.remove(claim)
        self.dispatch.withdraw(waiter, *self.moment)
        self.carry_out()

    def run(self, seconds: float = 0.0) -> None:
        """Every request is made and answered, for so long."""
        until = self.now + seconds
        for _ in range(1000):
            if due := [server for server in self.servers if server.stock.state in IS_DUE - life.IN_FLIGHT]:
                self.ask(due[0])
            elif asked := [server for server in self.servers if server.stock.state in life.ANSWER]:
                self.answer(asked[0])
            elif failed := [server for server in self.servers if server.stock.state in life.RETRY]:
                self.retry(failed[0])
            elif self.now < until:
                self.pass_time(min(0.5, until - self.now))
            else:
                return
        raise AssertionError("the shards never rest")
