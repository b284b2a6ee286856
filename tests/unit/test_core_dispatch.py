"""What decides for the consumers of a queue, case by case."""

from __future__ import annotations

import itertools

from tests.every import every
from tests.unit.dispatching import LEASE, Caller, Claim, Shell
from zkrq.consuming.core import supply as life
from zkrq.consuming.core.dispatch import POLL_MS, ClaimReport, Waiter
from zkrq.consuming.core.lease import LOSE
from zkrq.consuming.core.pace import AHEAD_SECONDS, CLAIM_MAX, PrefetchLimit
from zkrq.consuming.core.supply import IS_DUE, PROBE_SECONDS, Order, SupplyState


def shell_with(items: int, servers: int = 1) -> Shell:
    shell = Shell(servers)
    for server in shell.servers:
        server.ready += range(items)
    return shell


def items_of(waiter: Waiter[Claim]) -> list[int] | None:
    return None if waiter.claims is None else [claim.item for claim in waiter.claims]


def test_one_request_is_for_all_who_wait() -> None:
    shell = shell_with(10)
    first, second = shell.wait(2), shell.wait()
    shell.run()
    assert (items_of(first), items_of(second), shell.requests) == ([0, 1], [2], 1)


def test_who_waits_is_not_overtaken() -> None:
    shell = shell_with(3)
    shell.dispatch.pace.join(PrefetchLimit(2, fixed=True))
    first = shell.wait()
    assert shell.draw() == []
    shell.run()
    assert items_of(first) == [0]
    assert [claim.item for claim in shell.draw()] == [1]


def test_a_consumer_that_has_left_is_passed_over() -> None:
    shell = shell_with(3)
    first, second = shell.wait(), shell.wait()
    assert isinstance(first.caller, Caller)
    first.caller.has_left = True
    shell.run()
    assert (first.claims, items_of(second)) == (None, [0])


def test_what_a_cancelled_consumer_was_given_is_the_next_ones() -> None:
    shell = shell_with(1)
    first, second = shell.wait(), shell.wait()
    shell.run()
    assert items_of(first) == [0]
    shell.withdraw(first)
    assert items_of(second) == [0]


def test_claims_of_a_batch_that_is_given_up_are_the_next_ones_in_their_order() -> None:
    shell = shell_with(3)
    shell.wait(3)
    shell.run()
    next_one = shell.wait(2)
    given, shell.taken = shell.taken, []
    shell.dispatch.give_back(given, *shell.moment)
    shell.carry_out()
    assert items_of(next_one) == [0, 1]
    assert list(shell.servers[0].ready) == [2], "and nobody else is here"


def test_without_consumers_nothing_stays_ahead() -> None:
    shell, limit = shell_with(10), PrefetchLimit(5, fixed=True)
    shell.dispatch.pace.join(limit)
    shell.wait()
    shell.run()
    assert shell.dispatch.ahead == 5
    shell.dispatch.leave(limit, *shell.moment)
    shell.carry_out()
    assert shell.dispatch.ahead == 0
    assert len(shell.servers[0].ready) == 9


def test_the_next_request_leaves_when_half_is_left() -> None:
    shell = shell_with(100)
    shell.dispatch.pace.join(PrefetchLimit(10, fixed=True))
    shell.wait()
    shell.run()
    due: list[bool] = []
    for _ in range(6):
        shell.draw()
        due.append(shell.servers[0].stock.state in IS_DUE)
    assert due == [False] * 5 + [True]
    shell.run()
    assert (shell.dispatch.ahead, shell.requests) == (10, 2)


def test_where_nothing_was_ready_only_a_caller_that_wants_an_answer_asks() -> None:
    shell = Shell()
    shell.wait()
    shell.run()
    assert shell.servers[0].stock.state is SupplyState.LISTENING
    shell.wait()
    assert shell.servers[0].stock.state is SupplyState.LISTENING
    late = shell.wait(patient=False)
    shell.run()
    assert (late.claims, shell.requests) == ([], 2)


def test_a_consumer_that_came_during_a_request_asks_for_nothing_that_a_wake_up_tells() -> None:
    """It would find nothing, and the next item would have to wait for its answer."""
    shell = Shell()
    (server,) = shell.servers
    shell.wait()
    shell.ask(server)
    late = shell.wait()
    shell.answer(server)
    assert (server.stock.state, server.hears) == (SupplyState.LISTENING, True)
    shell.push(server, 1)
    shell.push(server, 2)
    shell.run()
    assert (items_of(late), shell.requests, shell.vain) == ([2], 2, 1)


def test_a_consumer_that_came_during_a_request_asks_where_no_channel_was_left() -> None:
    shell = shell_with(1)
    (server,) = shell.servers
    shell.wait()
    shell.ask(server)
    late = shell.wait()
    shell.answer(server)
    assert server.stock.state is SupplyState.DUE, "all that was asked for was there: more may be"
    shell.push(server, 1)
    shell.run()
    assert (items_of(late), shell.requests) == ([1], 2)


def test_an_answer_that_was_decided_before_a_caller_came_says_nothing_to_it() -> None:
    shell = Shell()
    (server,) = shell.servers
    shell.wait(patient=False)
    shell.ask(server)
    late = shell.wait(patient=False)
    shell.answer(server)
    assert late.claims is None
    shell.run()
    assert late.claims == []


@every("is_away", [False, True])
def test_one_that_fails_is_not_waited_for_if_another_has_answered(is_away: bool) -> None:
    shell = Shell(2)
    first, second = shell.servers
    waiter = shell.wait(patient=False)
    shell.ask(first)
    shell.ask(second)
    second.is_away = is_away
    if not is_away:
        shell.fail(second, TimeoutError())
        assert not waiter.caller.done()
    shell.answer(first)
    assert waiter.claims == []


def test_if_all_fail_the_first_error_is_told() -> None:
    shell = Shell(2)
    errors = [TimeoutError(), TimeoutError()]
    waiter, patient = shell.wait(patient=False), shell.wait()
    for server in shell.servers:
        shell.ask(server)
    for server, error in zip(shell.servers, errors, strict=True):
        shell.fail(server, error)
    assert waiter.error is errors[0]
    assert not patient.caller.done(), "it is served by a later request"
    for server in shell.servers:
        server.ready.append(1)
    shell.run()
    assert items_of(patient) == [1]


def test_a_waiter_whose_last_unknown_shard_is_taken_away_has_its_answer() -> None:
    shell = Shell(2)
    first, second = shell.servers
    waiter, left = shell.wait(patient=False), shell.wait(patient=False)
    assert isinstance(left.caller, Caller)
    left.caller.has_left = True
    shell.ask(first)
    shell.ask(second)
    shell.answer(first)
    shell.use([first])
    assert (waiter.claims, left.claims) == ([], None)


def test_a_limited_queue_keeps_nothing_but_for_those_who_come_back() -> None:
    shell = Shell(limited=True)
    (server,) = shell.servers
    server.ready += range(3)
    shell.dispatch.pace.join(PrefetchLimit(5, fixed=True))
    order = Order(True, 3, expected=1)
    server.stock.tell(life.LOOK)
    server.stock.ask(order, shell.now)
    server.order = order
    shell.answer(server)
    assert shell.dispatch.ahead == 1


def test_a_consumer_without_a_channel_asks_again_soon() -> None:
    shell = Shell()
    (server,) = shell.servers
    shell.wait()
    shell.ask(server)
    shell.dispatch.answer(server.stock, ClaimReport(-1), *shell.moment)
    assert server.stock.due_at == shell.now + POLL_MS / 1000


def test_who_comes_back_finds_its_next_item() -> None:
    shell = shell_with(3)
    shell.dispatch.pace.join(PrefetchLimit(0))
    shell.dispatch.pace.join(PrefetchLimit(None))
    (server,) = shell.servers
    assert shell.dispatch.expects(1)
    assert not shell.dispatch.expects(0)
    assert shell.dispatch.order(server.stock, *shell.moment, 5).wanted == 1, "there is one stream, and another one"
    shell.is_certain = False
    assert not shell.dispatch.order(server.stock, *shell.moment, 1).asks
    shell.is_certain = True
    shell.wait()
    assert not shell.dispatch.expects(1), "it waits"


def test_items_of_a_session_that_may_be_over_go_back() -> None:
    shell = shell_with(5)
    shell.dispatch.pace.join(PrefetchLimit(2, fixed=True))
    shell.wait()
    shell.run()
    assert shell.dispatch.ahead == 2
    shell.is_certain = False
    assert shell.draw() == []
    assert shell.dispatch.ahead == 0
    waiter = shell.wait()
    shell.run()
    assert items_of(waiter) == [3], "a server has just granted it"


def test_streams_take_the_claims_of_one_shard_at_a_time() -> None:
    shell = with_both_ahead(PrefetchLimit(10, fixed=True))
    drawn = [claim.lease.issuer for claim in (*shell.draw(3), *shell.draw(3), *shell.draw(4))]
    assert [len([*run]) for _, run in itertools.groupby(drawn)] == [5, 5]


def test_closing_ends_every_wait() -> None:
    shell = Shell()
    waiter = shell.wait()
    shell.dispatch.close()
    shell.carry_out()
    assert isinstance(waiter.caller, Caller)
    assert isinstance(waiter.caller.error, LookupError)
    assert shell.draw() == []
    shell.dispatch.check_invariants()


def test_a_shard_that_takes_long_lets_the_others_look() -> None:
    shell = Shell(2)
    first, second = shell.servers
    shell.wait()
    shell.ask(first)
    shell.ask(second)
    shell.answer(second)
    shell.dispatch.late(first.stock, *shell.moment)
    assert (first.stock.is_late, second.stock.state in IS_DUE) == (True, True)


def test_what_was_given_under_a_session_that_may_be_over_is_nobodys() -> None:
    shell = shell_with(1)
    first, second = shell.wait(), shell.wait()
    shell.run()
    shell.is_certain = False
    shell.withdraw(first)
    assert second.claims is None
    assert list(shell.servers[0].ready) == [0]


@every("gone", ["lost", "expired"])
def test_a_claim_that_no_longer_holds_is_given_to_nobody(gone: str) -> None:
    def end(claim: Claim) -> None:
        if gone == "lost":
            claim.lease.state = LOSE[claim.lease.state]
        else:
            claim.lease.deadline_at = shell.now

    shell = shell_with(6)
    shell.dispatch.pace.join(PrefetchLimit(3, fixed=True))
    shell.wait(3)
    shell.run()
    assert shell.dispatch.ahead == 3
    end(shell.servers[0].stock.ahead[0])
    assert [claim.item for claim in shell.draw(2)] == [4, 5]
    next_one = shell.wait(3)
    given, shell.taken = shell.taken[:3], shell.taken[3:]
    end(given[1])
    shell.dispatch.give_back(given, *shell.moment)
    shell.carry_out()
    assert items_of(next_one) == [0, 2]


def test_lost_claims_are_no_reason_to_ask_for_less() -> None:
    shell = shell_with(6)
    shell.dispatch.pace.join(PrefetchLimit(2, fixed=True))
    shell.wait()
    shell.run()
    (server,) = shell.servers
    for claim in server.stock.ahead:
        claim.lease.state = LOSE[claim.lease.state]
    assert shell.dispatch.order(server.stock, *shell.moment).wanted == 2


def test_a_consumer_that_has_left_is_none() -> None:
    shell = Shell()
    waiter = shell.wait()
    assert shell.dispatch.has_consumers
    shell.withdraw(waiter)
    assert not shell.dispatch.has_consumers


def test_only_shards_that_may_have_items_look_for_a_consumer_that_came() -> None:
    shell = Shell(2)
    first, second = shell.servers
    shell.wait()
    shell.ask(first)
    shell.ask(second)
    shell.answer(first)
    shell.fail(second, TimeoutError())
    shell.retry(second)
    shell.run()
    first.stock.state, second.stock.state = SupplyState.LISTENING, SupplyState.IDLE
    shell.wait()
    assert (first.stock.state, second.stock.state) == (SupplyState.LISTENING, SupplyState.DUE)


def test_more_than_a_request_can_claim_is_asked_for_at_once_again() -> None:
    shell = shell_with(CLAIM_MAX + 100)
    first, second = shell.wait(CLAIM_MAX), shell.wait(50)
    shell.ask(shell.servers[0])
    assert shell.servers[0].stock.asking == CLAIM_MAX
    shell.answer(shell.servers[0])
    assert shell.servers[0].stock.state in IS_DUE
    shell.run()
    assert (len(first.claims or ()), len(second.claims or ()), shell.requests) == (CLAIM_MAX, 50, 2)


def test_a_shard_with_items_looks_when_another_is_still_empty() -> None:
    shell = Shell(2)
    empty, full = shell.servers
    shell.wait()
    shell.ask(empty)
    full.stock.found(is_dry=False)
    full.stock.state = SupplyState.IDLE
    shell.answer(empty)
    assert full.stock.state in IS_DUE


def test_the_shard_that_has_answered_is_asked_last() -> None:
    shell = shell_with(5, servers=2)
    first, second = shell.servers
    shell.wait()
    shell.ask(first)
    shell.answer(first)
    assert [*shell.dispatch.stocks] == [second.stock, first.stock]


def test_a_wake_up_of_this_process_alone_is_passed_on() -> None:
    shell = Shell()
    (server,) = shell.servers
    server.stock.wake(alone=True)
    order = shell.ask(server)
    assert (order.asks, order.wanted, order.listens) == (True, 0, False)


def test_a_shard_that_had_nothing_is_looked_at_now_and_then() -> None:
    shell = Shell(2)
    full, empty = shell.servers
    full.ready += range(100)
    shell.dispatch.pace.join(PrefetchLimit(20, fixed=True))
    shell.wait()
    shell.run()
    assert empty.stock.is_dry
    assert empty.stock.due_at <= shell.now + PROBE_SECONDS
    empty.stock.tell(life.LOOK)
    assert not shell.ask(empty).asks
    shell.now += PROBE_SECONDS
    empty.stock.tell(life.LOOK)
    order = shell.ask(empty)
    assert (order.asks, order.wanted) == (True, 0)


def test_a_channel_is_left_for_those_who_wait_and_for_those_who_come_back() -> None:
    shell = Shell()
    (server,) = shell.servers
    waiter = shell.wait(patient=False)
    assert not shell.dispatch.order(server.stock, *shell.moment).listens
    shell.withdraw(waiter)
    shell.dispatch.pace.join(PrefetchLimit(None))
    order = shell.dispatch.order(server.stock, *shell.moment, 1)
    assert (order.listens, order.is_awaited) == (True, False)
    shell.wait()
    order = shell.dispatch.order(server.stock, *shell.moment)
    assert (order.listens, order.is_awaited) == (True, True)


def test_a_shard_is_in_trouble_from_a_failure_until_an_answer() -> None:
    shell = Shell()
    (server,) = shell.servers
    shell.wait()
    shell.ask(server)
    shell.fail(server, TimeoutError())
    assert server.stock.is_in_trouble
    shell.run()
    assert (server.stock.is_in_trouble, server.stock.answered) == (False, 1)
    server.is_away = True
    assert server.stock.is_in_trouble


def test_where_items_are_left_nobody_is_told_that_nothing_is_ready() -> None:
    shell = shell_with(1)
    shell.wait(patient=False)
    late = shell.wait(2, patient=False)
    (server,) = shell.servers
    shell.ask(server)
    shell.dispatch.answer(server.stock, ClaimReport(0), *shell.moment)
    shell.carry_out()
    assert late.claims is None


def test_a_probe_claims_once_for_consumers_that_do_not_wait() -> None:
    shell = shell_with(9)
    shell.dispatch.pace.join(PrefetchLimit(None))
    shell.dispatch.probe(4)
    shell.carry_out()
    shell.run()
    assert (shell.dispatch.ahead, shell.requests) == (4, 1)
    shell.dispatch.probe(4)
    assert shell.servers[0].stock.state not in IS_DUE, "some are ahead"


def test_what_a_pace_claims_ahead_is_looked_at_again_soon() -> None:
    shell = shell_with(100)
    shell.dispatch.pace.join(PrefetchLimit(20))
    shell.wait()
    shell.run()
    (server,) = shell.servers
    assert server.stock.due_at <= shell.now + AHEAD_SECONDS
    shell.run(2 * AHEAD_SECONDS)
    assert shell.dispatch.ahead == 0, "nobody takes it"
    assert len(server.ready) == 99


def test_what_is_handed_out_is_the_pace() -> None:
    shell = shell_with(10)
    shell.dispatch.pace.join(PrefetchLimit(4, fixed=True))
    shell.wait(2)
    shell.run()
    shell.draw(3)
    assert shell.dispatch.pace.taken == 5


def test_the_last_item_is_given_to_a_caller_that_does_not_wait() -> None:
    shell = shell_with(1)
    waiter = shell.wait(patient=False)
    shell.run()
    assert items_of(waiter) == [0]


def with_both_ahead(limit: PrefetchLimit) -> Shell:
    """Two shards of which each has five claims ahead."""
    shell = Shell(2)
    shell.dispatch.pace.join(limit)
    for server in shell.servers:
        server.stock.tell(life.LOOK)
        server.stock.ask(Order(True, 5), shell.now)
        server.order = Order(True, 5)
        server.ready += range(5)
        shell.answer(server)
    return shell


def test_only_one_of_two_shards_with_items_is_asked() -> None:
    shell = with_both_ahead(PrefetchLimit(20, fixed=True))
    for server in shell.servers:
        server.stock.found(is_dry=False)
    assert [shell.dispatch.order(each, *shell.moment).wanted for each in shell.dispatch.stocks] == [10, 0]


def test_a_turn_ends_though_its_shard_has_more() -> None:
    shell = with_both_ahead(PrefetchLimit(2, fixed=True))
    (first,) = shell.draw()
    turn = next(server for server in shell.servers if server is first.lease.issuer)
    assert turn.stock.state in IS_DUE, "it looks when its turn begins"
    turn.stock.ahead += [Claim(item, turn, shell.now + LEASE) for item in range(5, 10)]
    assert [claim.lease.issuer is turn for claim in shell.draw(5)] == [True] * 4 + [False]


def test_no_more_than_the_surplus_goes_back() -> None:
    shell = with_both_ahead(PrefetchLimit(6, fixed=True))
    shell.dispatch.order(shell.servers[0].stock, *shell.moment)
    shell.now += AHEAD_SECONDS
    shell.dispatch.order(shell.servers[0].stock, *shell.moment)
    shell.carry_out()
    assert shell.dispatch.ahead == 6


def test_what_has_just_been_claimed_ahead_stays_a_while() -> None:
    shell = with_both_ahead(PrefetchLimit(20))
    shell.dispatch.order(shell.servers[0].stock, *shell.moment)
    shell.carry_out()
    assert shell.dispatch.ahead == 10


def test_what_is_ahead_on_any_shard_goes_back_with_the_last_consumer() -> None:
    limit = PrefetchLimit(20, fixed=True)
    shell = with_both_ahead(limit)
    assert shell.dispatch.pace.shards == 2
    shell.dispatch.leave(limit, *shell.moment)
    shell.carry_out()
    assert shell.dispatch.ahead == 0


def test_nothing_is_drawn_once_it_is_closed() -> None:
    shell = with_both_ahead(PrefetchLimit(20, fixed=True))
    shell.dispatch.close()
    assert shell.draw() == []


def test_a_quiet_process_claims_nothing_and_those_who_wait_go_on_waiting() -> None:
    shell = shell_with(3, servers=2)
    shell.dispatch.pace.join(PrefetchLimit(4, fixed=True))
    patient, asker = shell.wait(), shell.wait(patient=False)
    shell.ask(shell.servers[0])  # in flight: what it brings goes back
    shell.quiet(True)
    assert items_of(asker) == []
    shell.run(60)
    assert (patient.claims, shell.draw(), items_of(shell.wait(patient=False))) == (None, [], [])
    assert sorted(item for server in shell.servers for item in server.ready) == [0, 0, 1, 1, 2, 2]
    assert shell.requests <= 2, "and asks for nothing"
    shell.quiet(False)
    shell.run()
    assert patient.claims, "and is served afterwards"


def test_what_is_claimed_ahead_goes_back_from_a_quiet_process() -> None:
    shell = shell_with(4)
    shell.dispatch.pace.join(PrefetchLimit(3, fixed=True))
    shell.wait()
    shell.run()
    assert shell.dispatch.ahead == 3
    shell.quiet(True)
    assert (shell.dispatch.ahead, sorted(shell.servers[0].ready)) == (0, [1, 2, 3])


def test_a_quiet_process_passes_its_wake_up_on_and_leaves_no_channel() -> None:
    shell = shell_with(0)
    shell.wait()
    shell.run()
    (server,) = shell.servers
    assert server.hears
    shell.quiet(True)
    shell.push(server, 7)
    shell.run()
    assert (shell.requests, server.hears, list(server.ready)) == (2, False, [7])
