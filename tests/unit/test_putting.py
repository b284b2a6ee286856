"""A push that can go to another shard: it does only if nothing was written."""

from __future__ import annotations

from typing import Any

import pytest

from zkrq.protocol.calls import Put
from zkrq.protocol.operations import OPERATIONS
from zkrq.protocol.putting import InDoubt, Pushes
from zkrq.protocol.records import fresh
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.steps import Ask, Begin, Evict, Look, NothingDone, Obstacles
from zkrq.protocol.view import Life, ServerId, found, plan

SERVERS = [ServerId(name) for name in ("a", "b")]
VIEW = found(plan({id: Life(id, id) for id in SERVERS}, dict.fromkeys(SERVERS, ""), min_replicas=2, by=""), by="")
PUT = Put("id", fresh(0, 1), b"")


def _end(answer: Answer) -> Pushes:
    """What becomes of a push of which one server gives this answer, and nothing more can be had of the others."""
    operation: Any = OPERATIONS.put("jobs", [PUT], map=1, patient=False)
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
