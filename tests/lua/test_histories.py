"""``apply`` under hypothesis: in any order, repeated, in any batches, the greatest version remains."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lua.one_server import PAUSE, Applied, OneServer, Put
from zkrq import local
from zkrq.protocol.records import FIRST, Record, State, Version, pack

IDS = ("a", "b", "c")
ITEM_STATES = [state for state in State if state is not State.PAUSED]


class Step(NamedTuple):
    """One decided record of one item."""

    id: str
    record: Record
    left_ms: int | str

    @property
    def applied(self) -> Applied:
        return Applied(self.id, pack(self.record), self.left_ms, self.id.encode())


KEYS = ("", "k1", "k2")  # several items may have the same one: what two primaries decided can come together
TTLS = (None, 3_600_000.0)


@st.composite
def histories(draw: st.DrawFn, *, revivals: bool = False) -> list[Step]:
    """What some primaries have decided about a few items: versions grow, epochs too; nothing follows a removal.

    ``revivals``: but a removal that was never completed; the next primary, which has not heard of it, goes on.
    """
    steps: list[Step] = []
    for id in IDS:
        version, state = FIRST, State.QUEUED
        key, ttl_ms = draw(st.sampled_from(KEYS)), draw(st.sampled_from(TTLS))
        for _ in range(draw(st.integers(0, 6))):
            epoch = draw(st.integers(max(1, version.epoch), version.epoch + 2))
            following = Version(epoch, version.n + 1)
            if state is State.GONE:
                steps.append(Step(id, Record(version, state, token=draw(st.sampled_from(["", "ann/1"]))), 0))
                if not revivals or epoch == version.epoch:
                    break
            else:
                token = draw(st.sampled_from(["ann/1", "bob/7"])) if state is not State.QUEUED else ""
                record = Record(
                    version,
                    state,
                    priority=draw(st.integers(0, 9)),
                    lease_ms=60_000,
                    token=token,
                    key=key,
                    note=draw(st.sampled_from(["", "why"])),
                    ttl_ms=ttl_ms,
                )
                steps.append(Step(id, record, draw(lefts(ttl_ms is not None))))
            version, state = following, draw(st.sampled_from(ITEM_STATES))
    version = Version(draw(st.integers(1, 3)), 1)
    for n in range(draw(st.integers(0, 4))):
        steps.append(Step(PAUSE, Record(version, State.GONE if n % 2 else State.PAUSED), 0))
        version = Version(draw(st.integers(version.epoch, version.epoch + 2)), version.n + 1)
    return steps


def lefts(mortal: bool) -> st.SearchStrategy[int | str]:
    """What is left until due time or deadline; decisions tell nothing of how long an item may live, copies do."""
    due = [-5_000, 0, 60_000]
    return st.sampled_from([*due, "60000.000 3600000.000", "0 -1000.000"] if mortal else due)


class Delivery(NamedTuple):
    """A history, and the calls in which it comes."""

    history: list[Step]
    calls: list[list[Step]]


@st.composite
def deliveries(draw: st.DrawFn, *, revivals: bool = False) -> Delivery:
    """In any order, some of it more than once, in batches of any size."""
    history = draw(histories(revivals=revivals))
    repeated = draw(st.lists(st.sampled_from(history), max_size=8)) if history else []
    queue = draw(st.permutations(history + repeated))
    calls: list[list[Step]] = []
    while queue:
        size = draw(st.integers(1, 6))
        calls.append(queue[:size])
        queue = queue[size:]
    return Delivery(history, calls)


@pytest.fixture(scope="module")
def shared(private_redis: local.LocalRedis) -> Generator[OneServer, None, None]:
    """For all examples of a test: each begins with ``reset``."""
    with OneServer(private_redis.host, private_redis.port) as server:
        yield server


def outcome(history: list[Step]) -> dict[str, Record]:
    """What must stay of a history: the greatest version of each item."""
    return {step.id: step.record for step in sorted(history, key=lambda step: step.record.version)}


def superseded(call: list[Step], held: dict[str, Version]) -> list[int]:
    """The positions in a call of what is older than what is held by then; notes in ``held`` what is installed."""
    positions: list[int] = []
    for position, step in enumerate(call, start=1):
        if held.get(step.id, FIRST) > step.record.version:
            positions.append(position)
        else:
            held[step.id] = step.record.version
    return positions


def pushes(history: list[Step]) -> list[Put]:
    """The pushes of the items that a history tells of."""
    items = {step.id: step.record for step in history if step.record.state not in (State.GONE, State.PAUSED)}
    gone = {step.id: step.record for step in history if step.id not in items and step.id != PAUSE}
    return [Put(id, key=record.key, ttl_ms=record.ttl_ms) for id, record in sorted({**items, **gone}.items())]


@given(deliveries(revivals=True))
def test_any_order_gives_the_same_result(shared: OneServer, delivery: Delivery) -> None:
    """Rule 1: apply installs a record only if its version is greater: idempotent, in any order.

    So all indexes are what they are on the primary, which key names which items among them.
    """
    shared.reset()
    for call in delivery.calls:
        shared.apply(*(step.applied for step in call), payloads=True)
    contents = shared.contents()
    assert contents.records == outcome(delivery.history)
    assert contents.faults == []


@given(deliveries())
def test_reply_tells_what_is_superseded(shared: OneServer, delivery: Delivery) -> None:
    """Rule 1: SUPERSEDED exactly where a greater version is held."""
    held: dict[str, Version] = {}
    shared.reset()
    for call in delivery.calls:
        assert shared.apply(*(step.applied for step in call))[0] == superseded(call, held)


@given(deliveries())
def test_whoever_lacks_a_payload_says_so_every_time(shared: OneServer, delivery: Delivery) -> None:
    """Rule 2: bare is what lives here without a payload, whoever asks, however often.

    The first version comes by the push itself, and with it the payload.
    """
    shared.reset()
    for call in ([step for step in each if step.record.version > FIRST] for each in delivery.calls):
        bare = shared.apply(*(step.applied for step in call))[1]
        living = shared.contents().living()
        assert {call[position - 1].id for position in bare} >= {step.id for step in call} & living


@given(deliveries(), st.integers(0, 30))
def test_push_may_come_at_any_time(shared: OneServer, delivery: Delivery, late: int) -> None:
    """Rule 4: decisions may overtake the push; afterwards every item that lives has its payload."""
    shared.reset()
    calls = delivery.calls
    for call in calls[:late]:
        shared.apply(*(step.applied for step in call))
    if puts := pushes(delivery.history):
        assert shared.put(*puts) == []
    for call in calls[late:]:
        shared.apply(*(step.applied for step in call))
    contents = shared.contents()
    decided = {id: record for id, record in outcome(delivery.history).items() if record.version > FIRST}
    assert {id: contents.records[id] for id in decided} == decided
    assert contents.faults == []
