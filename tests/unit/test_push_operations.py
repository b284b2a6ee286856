"""A push that can go to another shard: it does only if nothing was written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from zkrq.protocol.calls import Put
from zkrq.protocol.operations import OPERATIONS, Operations
from zkrq.protocol.pushing import Done, InDoubt, Known, Pushes, _Round  # pyright: ignore[reportPrivateUsage]
from zkrq.protocol.records import fresh
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.steps import Ask, Begin, Evict, Look, NothingDone, Obstacles
from zkrq.protocol.view import Life, ServerId, found, plan

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
