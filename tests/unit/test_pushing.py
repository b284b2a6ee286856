"""A push that can go to another shard: it does only if nothing was written, also when the shards have changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.by_hand import info, view_of
from zkrq.base.errors import Unavailable
from zkrq.protocol.calls import PushDecided, Put
from zkrq.protocol.operations import OPERATIONS, Operations
from zkrq.protocol.pushing import Done, InDoubt, Known, Late, Pushes, _Round  # pyright: ignore[reportPrivateUsage]
from zkrq.protocol.records import fresh
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.steps import (
    Ask,
    Begin,
    CheckTime,
    ConfirmPlace,
    Evict,
    Identify,
    Look,
    Misplaced,
    NoteClocks,
    NothingDone,
    Obstacles,
    Refresh,
    Rest,
    StepFailed,
    Unknown,
)
from zkrq.protocol.view import Life, ServerId, evict, found, plan

SERVERS = [ServerId(name) for name in ("a", "b")]
VIEW = found(plan({id: Life(id, id) for id in SERVERS}, dict.fromkeys(SERVERS, ""), min_replicas=2, by=""), by="")
PUT = Put("id", fresh(0, 1), b"")


def _end(answer: Answer) -> Pushes:
    """What becomes of a push of which one server gives this answer, and nothing more can be had of the others."""
    operation: Any = OPERATIONS.push_plain("jobs", [PUT], map_number=1, patient=False)
    assert isinstance(next(operation), Look)
    assert isinstance(operation.send(VIEW), Begin)
    assert isinstance(operation.send(Obstacles({}, ())), Ask)
    assert isinstance(operation.send({SERVERS[0]: answer, SERVERS[1]: answer}), Evict)
    with pytest.raises(StopIteration) as ended:
        operation.throw(NothingDone("nobody answers"))
    return ended.value.value


def test_what_may_have_happened_is_in_doubt() -> None:
    (outcome,) = _end(Answer(Status.TIMEOUT, reason="no answer")).exceptional.values()
    assert isinstance(outcome, InDoubt)


def test_what_certainly_has_not_happened_may_go_elsewhere() -> None:
    with pytest.raises(NothingDone, match="nobody answers"):
        _end(Answer(Status.GONE, reason="another life"))


STALE = Answer(Status.STALE, reason="a later epoch")
NEWER = replace(VIEW, epoch=VIEW.epoch + 1, map_number=4)
"""The view after an operator has changed the shards."""

PLAIN_OK = Answer(Status.OK, ([], []))
DECIDED_OK = Answer(Status.OK, ([b"+"], [], b""))


def _begin(*, decided: bool) -> Any:
    """A push that was placed by map 3, and is about to be written."""
    push = OPERATIONS.push_decided(PushDecided("jobs", [PUT]), map_number=3) if decided else None
    operation: Any = push or OPERATIONS.push_plain("jobs", [PUT], map_number=3)
    assert isinstance(next(operation), Look)
    assert isinstance(operation.send(replace(VIEW, map_number=3)), Begin)
    return operation


def _touched(*, decided: bool) -> Any:
    """The same when one server has it, and the other one already asks for map 4."""
    operation = _begin(decided=decided)
    asked = operation.send(Obstacles({}, ()))
    if decided:
        asked = operation.send(
            {VIEW.primary("jobs"): DECIDED_OK._replace(body=([b"+"], [b"id", PUT.record, [], 0], b""))}
        )
        answers = dict.fromkeys(asked.lives, STALE)
    else:
        answers = {SERVERS[0]: PLAIN_OK, SERVERS[1]: STALE}
    assert isinstance(operation.send(answers), Refresh)
    step = operation.send(NEWER)
    return operation, operation.send(Obstacles({}, ())) if decided else step


@pytest.mark.parametrize("decided", [False, True])
def test_a_push_that_met_a_newer_map_before_anything_was_written_is_placed_anew(decided: bool) -> None:
    operation = _begin(decided=decided)
    asked = operation.send(Obstacles({}, ()))
    assert isinstance(asked, Ask)
    assert isinstance(operation.send(dict.fromkeys(asked.lives, STALE)), Refresh)
    with pytest.raises(Misplaced, match="map 4 is needed, 3 was known"):
        operation.send(NEWER)
        operation.send(Obstacles({}, ()))


@pytest.mark.parametrize("decided", [False, True])
def test_a_push_that_one_server_has_goes_on_there_when_the_newer_map_leaves_it_there(decided: bool) -> None:
    operation, step = _touched(decided=decided)
    assert step == ConfirmPlace(4)
    assert isinstance(operation.send(0), Rest), "the map is not known yet"
    assert isinstance(operation.send(None), CheckTime)
    assert operation.send(None) == ConfirmPlace(4)
    step = operation.send(5)
    if isinstance(step, Begin):
        step = operation.send(Obstacles({}, ()))
    assert isinstance(step, Ask)
    assert step.epoch == NEWER.epoch


@pytest.mark.parametrize("decided", [False, True])
def test_a_push_that_one_server_has_is_in_doubt_when_it_belongs_elsewhere_by_now(decided: bool) -> None:
    operation, step = _touched(decided=decided)
    assert step == ConfirmPlace(4)
    if decided:
        with pytest.raises(Unknown, match="another shard"):
            operation.throw(StepFailed(Unavailable("another shard")))
        return
    with pytest.raises(StopIteration) as ended:
        operation.throw(StepFailed(Unavailable("another shard")))
    (outcome,) = ended.value.value.exceptional.values()
    assert isinstance(outcome, InDoubt)


class _Decided(Operations):
    """The primary says of each item that it is gone."""

    def push_decided(self, *_: Any, **__: Any) -> Any:
        yield from ()
        return Pushes(2, {(0, 0): Done(2)})


@pytest.mark.parametrize(("leaders", "outcome"), [(1, Done(2)), (2, Known(2, in_doubt=True))])
def test_a_tombstone_of_a_later_primary_may_be_that_of_the_push_itself(leaders: int, outcome: object) -> None:
    """The former primary stored the item, and a consumer acked it there, before the present one was asked."""
    so_far = _Round()
    for leading in SERVERS[:leaders]:
        so_far.begin(replace(VIEW, members={leading: VIEW.members[leading]}), "jobs")
    so_far.covered = {(id, VIEW.members[id]) for id in SERVERS}
    so_far.copies = 2
    so_far.tombstones = {(0, 0): {so_far.primary: 3}}
    again: Any = _Decided()._push_again("jobs", [PUT], so_far, {}, 0)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(StopIteration) as ended:
        next(again)
    assert ended.value.value == {(0, 0): outcome}


# -- clocks -----------------------------------------------------------------------------------------------------------

THREE = view_of(*map(ServerId, "abc"))
HOUR = 3600.0
ROUNDS = 10


class _Servers:
    """Three servers, of which some refuse every push for its age, and what the clocks say."""

    def __init__(self, *refusing: str, **ahead: float) -> None:
        self.refusing = set(refusing)
        self.ahead = ahead
        self.view = THREE
        self.asked: list[set[str]] = []
        self.askew: dict[ServerId, str] = {}

    def run(self, operation: Any) -> Any:
        try:
            step = next(operation)
            while True:
                step = operation.send(self._result(step))
        except StopIteration as stop:
            return stop.value

    def _result(self, step: Any) -> object:
        match step:
            case Look():
                return self.view
            case Begin():
                return Obstacles({}, (), self.askew)
            case Ask(lives=lives, call=PushDecided()):
                (primary,) = lives
                return {primary: Answer(Status.OK, ([b"L" if primary in self.refusing else b"+"], [], b""))}
            case Ask(lives=lives):
                self.asked.append(set(lives))
                assert len(self.asked) < ROUNDS
                late = {id: [1] if id in self.refusing else [] for id in lives}
                return {id: Answer(Status.OK, (late[id], [])) for id in lives}
            case Identify(servers):
                return {id: info(id, ahead=self.ahead.get(id, 0.0)) for id in servers}
            case NoteClocks(compared):
                self.askew = compared.refusing()
            case Evict(view, failed):
                if len(view.members) > view.min_replicas and any(self.ahead.get(id) for id in failed):
                    self.view = evict(view, failed, by="", now_ms=0)
                return self.view
            case _:
                assert isinstance(step, Rest), step
        return None


def test_a_server_that_refuses_a_push_for_its_own_clock_leaves_and_the_push_returns() -> None:
    servers = _Servers("c", c=-HOUR)
    assert servers.run(OPERATIONS.push_plain("jobs", [PUT])) == Pushes(2, {})
    assert servers.view.members.keys() == {"a", "b"}


def test_a_push_that_all_refuse_is_late_and_no_server_is_evicted() -> None:
    servers = _Servers("a", "b", "c", a=HOUR, b=HOUR, c=HOUR)
    assert servers.run(OPERATIONS.push_plain("jobs", [PUT])).exceptional == {(0, 0): Late()}
    assert servers.view is THREE


def test_a_push_that_a_needed_server_refuses_is_in_doubt_and_the_next_one_is_not_sent() -> None:
    servers = _Servers("c", c=HOUR)
    servers.view = replace(THREE, min_replicas=3)
    (outcome,) = servers.run(OPERATIONS.push_plain("jobs", [PUT])).exceptional.values()
    assert isinstance(outcome, InDoubt)
    assert outcome.reason == "c: its clock is 3600.0 s ahead of the others': set it right (chrony, NTP)"
    before = len(servers.asked)
    with pytest.raises(NothingDone, match="nothing was written: c: its clock is"):
        servers.run(OPERATIONS.push_plain("jobs", [PUT]))
    assert len(servers.asked) == before


def test_servers_that_contradict_each_other_for_another_reason_are_asked_once_more() -> None:
    """One of them has forgotten removals early, and refuses what is older."""
    servers = _Servers("c")
    (outcome,) = servers.run(OPERATIONS.push_plain("jobs", [PUT])).exceptional.values()
    assert outcome == InDoubt()
    assert servers.asked == [{"a", "b", "c"}, {"c"}]
    assert servers.view is THREE


def test_another_primary_decides_what_one_with_a_wrong_clock_refused() -> None:
    primary = THREE.primary("jobs")
    servers = _Servers(primary, **{primary: HOUR})
    assert servers.run(OPERATIONS.push_decided(PushDecided("jobs", [PUT]))).exceptional == {}
    assert primary not in servers.view.members


def test_a_primary_with_a_wrong_clock_that_is_needed_is_named() -> None:
    primary = THREE.primary("jobs")
    servers = _Servers(primary, **{primary: HOUR})
    servers.view = replace(THREE, min_replicas=3)
    for _ in range(2):
        with pytest.raises(NothingDone, match=f"nothing was written: {primary}: its clock is 3600.0 s ahead"):
            servers.run(OPERATIONS.push_decided(PushDecided("jobs", [PUT])))
