"""Break zkrq on purpose, one rule at a time, to show that the simulation notices.

Each variant takes one rule of the protocol away.  A seed that finds no violation with any of them proves nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, cast
from unittest.mock import Mock, patch

from tests.simulation import flowing, rolling, workload
from tests.simulation.ensemble import SimHub
from zkrq.base.flows import FlowName
from zkrq.client import upgrading
from zkrq.client.flow_ends import Ends
from zkrq.client.flows import Flows
from zkrq.consuming import leases
from zkrq.coordination.coordinator import Versioned
from zkrq.producing.placement import Placement
from zkrq.protocol import attempts, flow_names, witness
from zkrq.protocol.calls import Apply, Call, NamedStates, PushPlain, Records, SteerReply
from zkrq.protocol.flow_names import Tending
from zkrq.protocol.flows import Flowing, Look
from zkrq.protocol.levels import AtLevel
from zkrq.protocol.records import State, states_of
from zkrq.protocol.recurring import Course, Loss
from zkrq.protocol.replies import VERDICTS, Answer, Status, Verdict
from zkrq.protocol.scripts import SCRIPTS, assemble, read_files
from zkrq.protocol.steps import Answers, Ask, Operation
from zkrq.protocol.view import Eviction, Judgement, View, judge_silence
from zkrq.protocol.witness import Witness
from zkrq.replication import redis_wire, server
from zkrq.replication.runner import Runner


@contextmanager
def _rewritten(changes: Mapping[str, str], *names: str) -> Generator[None, None, None]:
    """These scripts (all, if none is named) with some lines of the text replaced.

    They are of a library of their own, which stands beside that of the others, as that of another version would.
    """
    files = read_files()
    for old, new in changes.items():
        if not any(old in text for text in files.values()):
            raise LookupError(f"{old!r} is not in any file")
        files = {name: text.replace(old, new) for name, text in files.items()}
    changed = assemble(files)
    assert isinstance(SCRIPTS, dict)
    with patch.dict(SCRIPTS, {name: changed[name] for name in names or changed}):
        yield


def apply_installs_anything() -> AbstractContextManager[object]:
    """Rule 1: a record is installed only if its version is greater."""
    return _rewritten({"if not held or newer(r, held) then": "if true then"}, "apply")


def settling_asks_for_no_token() -> AbstractContextManager[object]:
    """Rule 6: settling shows the claim's token."""
    return _rewritten(
        {"local is_mine = row > 0 and token_at(r, row) == token": "local is_mine = row > 0"}, "settle", "turn"
    )


def generation_is_not_compared() -> AbstractContextManager[object]:
    """Rule 3: a server answers only in the life in which the view knows it."""
    return _rewritten(
        {"if known[1] ~= generation then return {'NOTINSYNC', known[1] or ''} end": "known[2] = known[2] or 0"}
    )


NO_TOMBSTONE = (
    "write('HSET', records, new.records) for at = 2, #(new.records or {}), 2 do "
    "if not string.find(read_record(new.records[at]).states, '[QRCDP]') then "
    "redis.call('HDEL', records, new.records[at - 1]) end end"
)


def removal_leaves_no_tombstone() -> AbstractContextManager[object]:
    """Rule 8: a removal leaves a tombstone."""
    return _rewritten({"write('HSET', records, new.records)": NO_TOMBSTONE})


def view_is_written_without_comparing() -> AbstractContextManager[object]:
    """Rule 7: the view changes only by compare-and-set."""

    def swap(self: SimHub, register: str, data: bytes, expected: int) -> Versioned | None:
        return compared(self, register, data, self.read(register).version)

    compared = SimHub.swap
    return patch.object(SimHub, "swap", swap)


Send = Callable[[Runner, Ask, Call[Any]], Awaitable[Answers]]


def _with_send(make: Callable[[Send], Send]) -> AbstractContextManager[object]:
    """Change what becomes of the calls that operations make."""
    return patch.object(Runner, "_send", make(Runner._send))  # pyright: ignore[reportPrivateUsage]


def claims_are_handed_out_early() -> AbstractContextManager[object]:
    """Rule 2: an item is handed to a consumer only after every server of the view has its claim."""

    def make(send: Send) -> Send:
        async def early(self: Runner, step: Ask, call: Call[Any]) -> Answers:
            if isinstance(call, Apply) and _brings(call, State.CLAIMED):

                async def later() -> None:
                    await asyncio.sleep(0.5)
                    await send(self, step, call)

                self.left_behind = [*getattr(self, "left_behind", []), asyncio.create_task(later())]  # pyright: ignore
                return {id: Answer(Status.OK, ([], [])) for id in step.lives}
            return await send(self, step, call)

        return early

    return _with_send(make)


def _brings(call: Apply, state: State) -> bool:
    """Whether one of the records says that an item is in this state."""
    return isinstance(call.items, Records) and any(
        state.value.encode() in states_of(record) for _, record in call.items
    )


def a_push_is_done_on_one_server() -> AbstractContextManager[object]:
    """Rule 4: an operation is complete when the whole view is covered."""

    def make(send: Send) -> Send:
        async def one(self: Runner, step: Ask, call: Call[Any]) -> Answers:
            answers = await send(self, step, call)
            done = [answer for answer in answers.values() if answer.status is Status.OK]
            return dict.fromkeys(step.lives, done[0]) if isinstance(call, PushPlain) and done else answers

        return one

    return _with_send(make)


def keys_are_not_looked_up() -> AbstractContextManager[object]:
    """A push with a key asks whether another item has it."""
    return _rewritten({"replacing == '0' and is_taken(key)": "nil"}, "push_decided")


def windows_are_not_looked_up() -> AbstractContextManager[object]:
    """A push with a window asks whether that of another item of its key is over."""
    return _rewritten(
        {"if window_ms > 0 then window, first, former": "if false then window, first, former"}, "push_decided"
    )


def keys_are_kept_for_ever() -> AbstractContextManager[object]:
    """A key is free again once its item is gone or dead."""
    return _rewritten(
        {"keep_key(key, r.bundle, string.find(r.states, '[QRC]') ~= nil)": "keep_key(key, r.bundle, true)"}
    )


def a_limit_is_not_asked_for() -> AbstractContextManager[object]:
    """A push into a queue with a limit is refused when it is full."""
    return _rewritten({"if most and size >= most + #rivals then": "if false then"}, "push_decided")


def more_are_claimed_than_the_limit() -> AbstractContextManager[object]:
    """No more items are claimed at once than the limit of the queue."""
    return _rewritten({"local slots = at_once - number('claimed')": "local slots = math.huge"})


def more_of_a_group_are_claimed_than_its_limit() -> AbstractContextManager[object]:
    """No more items of a group are claimed at once than its limit."""
    return _rewritten(
        {"claims < most and starts > 0": "starts > 0", "local slots = grouping.slots_of(r)": "local slots = math.huge"}
    )


def more_claims_begin_than_the_rate() -> AbstractContextManager[object]:
    """No more claims begin in a time than the limit of the queue."""
    return _rewritten({"return slots, most - limits.sum_of(counts), ": "return slots, math.huge, "})


def what_has_expired_is_handed_out() -> AbstractContextManager[object]:
    """What has outlived its time is claimed no more."""
    changes = {"\n    drop_expired()": "\n", "return expires_us + r.shift <= now_us": "return false"}
    return _rewritten(changes, "claim", "turn")


def a_ttl_begins_anew() -> AbstractContextManager[object]:
    """The moment at which an item expires is the same one after every decision."""
    return _rewritten(
        {
            "tails.packed(key, expires_us + shift, ttl_us)": "tails.packed(key, now_us + ttl_us, ttl_us)",
            "if shift ~= 0 then rebase(r, shift) end": "rebase(r, shift)",
        }
    )


def a_pause_is_not_asked_for() -> AbstractContextManager[object]:
    """While the queue is paused nothing is handed out."""
    return _rewritten(
        {"if request.most > 0 and not request.is_paused then": "if request.most > 0 then"}, "claim", "turn"
    )


def a_cancel_leaves_claims_alone() -> AbstractContextManager[object]:
    """What is cancelled is gone, also when it is claimed."""
    removal = (
        "remove(r, position, position, call ~= '' and rowset.of_call(r, (is_move and wanted or state) .. call) or 0)"
    )
    return _rewritten({removal: f"if state ~= 'C' then {removal} end"}, "cancel")


def acks_stay_on_the_primary() -> AbstractContextManager[object]:
    """What is decided is applied to every server of the view before anybody is told."""

    def make(send: Send) -> Send:
        async def none(self: Runner, step: Ask, call: Call[Any]) -> Answers:
            if isinstance(call, Apply) and _brings(call, State.GONE):
                return {id: Answer(Status.OK, ([], [])) for id in step.lives}
            return await send(self, step, call)

        return none

    return _with_send(make)


def order_is_turned_round() -> AbstractContextManager[object]:
    """The item of the greatest priority comes first, then the one that is due first."""
    first = "redis.call('ZRANGE', ready, at, at + page - 1)"
    return _rewritten({first: "redis.call('ZRANGE', ready, at, at + page - 1, 'REV')"}, "claim", "turn")


def a_wrong_password_evicts() -> AbstractContextManager[object]:
    """What lies with one client evicts nobody."""
    return _with_verdict(Status.DENIED, Verdict.EVICT)


def settling_takes_neighbours_along() -> AbstractContextManager[object]:
    """Each item of a bundle has a fate of its own."""
    whole_row = "verb.settle(r, run_from, run_end(r.named, run_from), row, ms, text)"
    return _rewritten({"verb.settle(r, run_from, run_to, row, ms, text)": whole_row}, "settle", "turn")


def groups_are_not_put_back_in_line() -> AbstractContextManager[object]:
    """When a group had its turn, its next entry goes to the end of the line."""
    return _rewritten({"best, has_more = choose(line, first, more) end": "best, has_more = first, more end"})


def a_group_keeps_its_turn() -> AbstractContextManager[object]:
    """The next entry of a group stands behind those of all other groups."""
    return _rewritten({"redis.call('ZSCORE', ready, places.entry_in(was)) or end_of_line(best)": "nil or text_of(0)"})


def the_order_is_the_producers() -> AbstractContextManager[object]:
    """The order of a push into an ordered group is decided."""
    return _rewritten({"if places.is_ordered(r) and r.order == 0 then set_order(r) end": ""}, "push_decided")


def a_plain_push_enters_an_ordered_queue() -> AbstractContextManager[object]:
    """A server that knows that the queue keeps an order takes no plain push."""
    return _rewritten({"if why ~= '' then return {'DECIDE', why} end": ""}, "push_plain")


def a_plain_push_enters_a_queue_with_a_size() -> AbstractContextManager[object]:
    """A server that knows that the size of the queue has a limit takes no plain push."""
    return _rewritten({"return most and why .. 's' or why, most": "return why, most"})


def who_does_not_know_the_order_pushes_without() -> AbstractContextManager[object]:
    """The primary gives each item of a queue that keeps an order its place."""
    return _rewritten({"places.put_in_order(r, 0)\n": "\n"}, "push_decided")


def the_order_is_that_of_one_clock() -> AbstractContextManager[object]:
    """It exceeds every order that the server knows, whatever its clock says."""
    return _rewritten({"math.max(number('order') + 0.001, now_us / 1000)": "now_us / 1000"}, "push_decided")


def an_ordered_group_goes_on_while_one_is_claimed() -> AbstractContextManager[object]:
    """An ordered group hands out nothing while one of its items is claimed."""
    return _rewritten(
        {
            "if keeps_order and not has_both then most = 1 end": "most = math.huge",
            "if places.is_ordered(r) then most = 1 end": "most = math.huge",
        }
    )


def an_ordered_group_does_not_wait() -> AbstractContextManager[object]:
    """An ordered group hands out nothing while its first item waits."""
    return _rewritten({"if places.holds_group(r) then\n      grouping.join": "if false then\n      grouping.join"})


def tokens_of_a_group_do_not_grow() -> AbstractContextManager[object]:
    """A claim in an ordered group has a greater token than all before it."""
    numbered = "r.claim_n = math.max(r.n, number('claim_n') + 1, request.keeps_order and TOKENS_FROM or 0)"
    return _rewritten({numbered: ""})


def a_failure_replaces_a_success() -> AbstractContextManager[object]:
    """A stored result replaces none of greater rank."""
    return _rewritten({" or kept and rank < attempts % COUNTED": ""}, "store")


def a_save_needs_no_claim() -> AbstractContextManager[object]:
    """A save needs the claim."""
    lost = "if r and newer({epoch = named_epoch, n = named_n}, r) then token = '' end"
    mine = "local is_mine = row > 0 and token_at(r, row) == token"
    return _rewritten({lost: "", mine: "local is_mine = verb.is_late or row > 0 and token_at(r, row) == token"})


def any_saved_text_takes_the_place_of_another() -> AbstractContextManager[object]:
    """Only a later one does."""
    return _rewritten({"return newer({epoch = epoch_of, n = n_of}, {epoch = epoch_held, n = n_held})": "return true"})


def what_a_claim_gives_is_not_saved_again() -> AbstractContextManager[object]:
    """Every server has what a claim gives, as the latest: here it has no version, and its holder alone is given it."""
    again = "beside.save(r, position, beside.state(r.saved[position]))"
    return _rewritten({again: "r.saved[position] = string.rep('\\0', 8) .. beside.state(r.saved[position])"})


def saves_are_not_numbered() -> AbstractContextManager[object]:
    """One that is executed late changes nothing."""
    return _rewritten({"return beside.read_save(text) < (tails.save_of(r, position) or 0)": "return false"})


def a_level_keeps_the_epoch() -> AbstractContextManager[object]:
    """A level is raised with a new epoch."""

    def raise_level(view: View, level: int, release: str, *, by: str) -> View:
        return replace(view, level=level, raised_by=release, by=by)

    return patch.object(upgrading, "raise_level", raise_level)


@contextmanager
def what_is_new_does_not_wait_for_its_level() -> Generator[None, None, None]:
    """What the release before cannot read is written only at a later level."""

    def check(placement: Placement, feature: AtLevel) -> None:
        pass

    with (
        patch.object(Placement, "check", check),
        patch.object(leases, "check_feature", Mock()),
        patch.object(rolling, "LEVEL_BEFORE", 0),
    ):
        yield


def a_contradiction_fails_calls() -> AbstractContextManager[object]:
    """A client that others contradict retries its calls: the server may only have hung."""
    return patch.object(Witness, "failing_for", Mock(return_value=math.inf))


def who_lets_nobody_in_stays() -> AbstractContextManager[object]:
    """A server that lets no client in leaves the view."""
    return patch.object(witness, "judge_denial", Mock(return_value=Judgement.CONTRADICTED))


def a_wrong_clock_stays() -> AbstractContextManager[object]:
    """A server whose clock is wrong leaves the view."""
    return patch.object(attempts, "weigh_eviction", Mock(return_value=Eviction.HALTING))


def who_has_no_room_stays() -> AbstractContextManager[object]:
    """A server that serves nobody, because others have its connections, leaves the view."""
    return _with_verdict(Status.CROWDED, Verdict.WAIT)


def who_has_no_room_is_evicted() -> AbstractContextManager[object]:
    """A server without room stays if it serves other clients."""
    return _with_verdict(Status.CROWDED, Verdict.EVICT)


def who_is_turned_away_is_a_witness() -> AbstractContextManager[object]:
    """All who find no room find none together, so a second one proves nothing."""

    def judge(*args: Any, crowded: bool, **kwargs: Any) -> Judgement:
        return judge_silence(*args, **kwargs)

    return patch.object(witness, "judge_silence", judge)


def _with_verdict(status: Status, verdict: Verdict) -> AbstractContextManager[object]:
    return patch.dict(cast("dict[Status, Verdict]", VERDICTS), {status: verdict})


@contextmanager
def turns_of_connecting_are_silence() -> Generator[None, None, None]:
    """Making a connection takes as many turns of the event loop as it needs, however long these are."""
    with ExitStack() as stack:
        for module in (server, redis_wire):
            stack.enter_context(patch.object(module, "patience", _without_turns))
        yield


def _without_turns(seconds: float, held: object = None) -> asyncio.Timeout:
    return asyncio.timeout(seconds)


def a_moment_is_left_out_in_silence() -> AbstractContextManager[object]:
    """What a process does not push is reported before it counts as done."""

    def lose(course: Course, moment: int, loss: Loss, now: float) -> None:
        course.drop(moment)

    return patch.object(Course, "lose", lose)


def a_look_is_joined_to_one_that_has_asked_before() -> AbstractContextManager[object]:
    """A look that an ack asks for begins anew."""

    def look(self: Ends, flow: FlowName, *, queue: str = "", stop: bool = False, anew: bool = False) -> Awaitable[Look]:
        return look_at(self, flow, queue=queue, stop=stop)

    look_at = Ends.look
    return patch.object(Ends, "look", look)


def acks_tell_nobody_that_a_flow_is_due() -> AbstractContextManager[object]:
    """The client of the last ack ends the flow, not the leader some seconds later."""
    return patch.object(Flows, "tend", Mock())


def what_is_held_is_left_to_the_leader() -> AbstractContextManager[object]:
    """Who ends a flow opens what is held for it."""

    def end(self: Flowing, flow: str, ended: SteerReply, *, stop: bool = False) -> Tending[None]:
        return open_all(self, flow, ended, stop=stop) if ended.before == b"E" else nothing()

    def nothing() -> Tending[None]:
        yield from ()

    open_all = Flowing.open_all
    return patch.object(Flowing, "open_all", end)


def who_waits_is_let_go_before_the_ack() -> AbstractContextManager[object]:
    """A member is held until those are acked for which it waits."""

    def ask(core: object, queue: str, ids: Sequence[str]) -> Operation[Mapping[str, frozenset[bytes]]]:
        yield from ()
        return dict.fromkeys(ids, frozenset({flow_names.ACKED}))

    return patch.object(flow_names, "ask_named", ask)


def who_waits_is_let_go_when_the_primary_knows() -> AbstractContextManager[object]:
    """A member is held until every server has the acks for which it waits."""

    def ask(core: Flowing, queue: str, ids: Sequence[str]) -> Operation[Mapping[str, frozenset[bytes]]]:
        call, states = NamedStates(queue, ids), list[bytes]()

        def attempt(view: View) -> Operation[Answers]:
            primary = view.primary(queue)
            answers: Answers = yield Ask(view.epoch, {primary: view.members[primary]}, call)
            states[:] = [
                state for each in answers.values() if each.status is Status.OK for state in call.read(each.body)
            ]
            return answers

        yield from core.tell(queue, attempt)
        return {id: frozenset({state}) for id, state in zip(ids, states, strict=True)}

    return patch.object(flow_names, "ask_named", ask)


def advance_moves_what_is_held() -> AbstractContextManager[object]:
    """What is held for a flow is ready when that ends, whatever an operator hurries."""
    held = "if flows.is_held(r) or places.due_of_adopted(r, position) or has_expired(r) then return false end"
    return _rewritten({held: "if places.due_of_adopted(r, position) or has_expired(r) then return false end"})


def results_of_members_have_a_time_of_their_own() -> AbstractContextManager[object]:
    """They are kept for as long as their flow runs, and its outcome is kept."""
    return _rewritten(
        {"return name ~= nil and has_result(r) and select(2, flows.stage_of(name)) ~= 'U'": "return false"}
    )


class Variant(NamedTuple):
    """What breaks zkrq, the faults that bring it to light soonest, and the seed from which on it is looked for: shortly
    before the one that finds it.  ``versions``: among clients of two releases.  ``saves``: consumers save in each seed.
    ``flows``: there are flows in each.
    ``by_model``: no seed is known that finds it, since it takes a moment that a random schedule of whole clients
    seldom has; the model has a seed for each (``tests/model/test_model.py``).
    """

    make: Callable[[], AbstractContextManager[object]]
    faults: str = "all"
    first: int = 1
    versions: bool = False
    saves: bool = False
    flows: bool = False
    by_model: bool = False


VARIANTS: Mapping[str, Variant] = {
    variant.make.__name__: variant
    for variant in (
        Variant(apply_installs_anything, "pause,cut,slow,restart,hub_expire", first=132),
        Variant(settling_asks_for_no_token, "pause", first=81),
        Variant(generation_is_not_compared, first=5),
        Variant(removal_leaves_no_tombstone),
        Variant(view_is_written_without_comparing, "hub_slow,cut,flush,restart_empty", first=29),
        Variant(claims_are_handed_out_early, "restart,flush,breaks,replica", first=1),
        Variant(a_push_is_done_on_one_server, "full,cut,flush,restart_empty", first=25),
        Variant(acks_stay_on_the_primary),
        Variant(keys_are_not_looked_up, first=6),
        Variant(windows_are_not_looked_up, first=90),
        Variant(keys_are_kept_for_ever),
        Variant(a_limit_is_not_asked_for, first=30),
        Variant(more_are_claimed_than_the_limit),
        Variant(more_of_a_group_are_claimed_than_its_limit, "none", first=8),
        Variant(more_claims_begin_than_the_rate, first=35),
        Variant(what_has_expired_is_handed_out, first=26),
        Variant(a_ttl_begins_anew, first=15),
        Variant(a_pause_is_not_asked_for, first=8),
        Variant(a_cancel_leaves_claims_alone, first=3),
        Variant(order_is_turned_round, "none", first=3),
        Variant(a_wrong_password_evicts, "own"),
        Variant(settling_takes_neighbours_along, "none", first=3),
        Variant(groups_are_not_put_back_in_line, "none"),
        Variant(a_group_keeps_its_turn, "none", first=60),
        Variant(the_order_is_the_producers, first=10),
        Variant(a_plain_push_enters_an_ordered_queue, first=39),
        Variant(a_plain_push_enters_a_queue_with_a_size, first=85),
        Variant(who_does_not_know_the_order_pushes_without, first=3),
        Variant(the_order_is_that_of_one_clock, "clock_step", first=70),
        Variant(an_ordered_group_goes_on_while_one_is_claimed, first=8),
        Variant(an_ordered_group_does_not_wait, first=8),
        Variant(tokens_of_a_group_do_not_grow, first=8),
        Variant(a_save_needs_no_claim, by_model=True),
        Variant(any_saved_text_takes_the_place_of_another, "pause,cut,slow,breaks", first=80, saves=True),
        Variant(what_a_claim_gives_is_not_saved_again, by_model=True),
        Variant(saves_are_not_numbered, by_model=True),
        Variant(a_level_keeps_the_epoch, "pause,hub_slow", first=60, versions=True),
        Variant(what_is_new_does_not_wait_for_its_level, "none", versions=True),
        Variant(a_failure_replaces_a_success, "none", first=5),
        Variant(a_contradiction_fails_calls, "hang", first=3),
        Variant(who_lets_nobody_in_stays, "closed", first=2),
        Variant(who_has_no_room_stays, "closed"),
        Variant(who_has_no_room_is_evicted, "closed", first=7),
        Variant(who_is_turned_away_is_a_witness, "closed", first=7),
        Variant(turns_of_connecting_are_silence, "drag"),
        Variant(a_moment_is_left_out_in_silence, "away", first=3),
        Variant(a_wrong_clock_stays, "leap", first=1),
        Variant(a_look_is_joined_to_one_that_has_asked_before, "none", flows=True),
        Variant(acks_tell_nobody_that_a_flow_is_due, "none", flows=True),
        Variant(what_is_held_is_left_to_the_leader, "none", flows=True),
        Variant(who_waits_is_let_go_before_the_ack, "none", flows=True),
        Variant(who_waits_is_let_go_when_the_primary_knows, flows=True),
        Variant(advance_moves_what_is_held, "none", flows=True),
        Variant(results_of_members_have_a_time_of_their_own, "none", flows=True),
    )
}


@contextmanager
def broken(name: str | None) -> Generator[None, None, None]:
    """zkrq as this variant has it; None: as it is."""
    if name is None:
        yield
        return
    saves = patch.object(workload, "saves", Mock(return_value=True)) if VARIANTS[name].saves else nullcontext()
    flows = patch.object(flowing, "has_flows", Mock(return_value=True)) if VARIANTS[name].flows else nullcontext()
    with VARIANTS[name].make(), saves, flows:
        yield
