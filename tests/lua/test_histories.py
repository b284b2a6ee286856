"""``apply`` under hypothesis: in any order, repeated, in any batches, the greatest version remains."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lua.contents import PAUSE
from tests.lua.entries import BUNDLE, Applied, Put
from tests.lua.one_server import OneServer
from zkrq import local
from zkrq.protocol.records import FIRST, Bundle, Own, Row, Version, pack, version_of

SIZES = {"a": 1, "b": 1, BUNDLE: 4}
"""Bundles, and their numbers of items; the first ones are items alone."""


class Step(NamedTuple):
    """One decided record of one bundle."""

    id: str
    bundle: Bundle
    left_ms: int

    @property
    def applied(self) -> Applied:
        return Applied(self.id, pack(self.bundle), self.left_ms, payload_of(self.id))


KEYS = ("", "k1", "k2")  # several items may have the same one: what two primaries decided can come together
TTLS = (0, 3_600_000_000)
FIELDS: tuple[Mapping[str, bytes], ...] = ({}, {}, {"?": b"of a later release"})
GROUPS = (None, None, "", "g", "h")
ORDER = 5.0
"""Of each bundle, in milliseconds, once its queue keeps an order; negative: what waits does not hold its group."""
ROWS = (Row("ann", 1, 60_000), Row("bob", 7, 60_000), Row("ann", 2, 60_000))


def payload_of(id: str) -> bytes | list[bytes]:
    size = SIZES.get(id, 1)
    return id.encode() if size == 1 else [bytes([at]) * 3 for at in range(size)]


@st.composite
def histories(draw: st.DrawFn, *, revivals: bool = False) -> list[Step]:
    """What some primaries have decided about a few bundles: versions grow, epochs too; a removed item stays removed.

    ``revivals``: but for a removal that was never completed; the next primary, which has not heard of it, goes on.
    """
    steps: list[Step] = []
    for id, size in SIZES.items():
        is_alone = size == 1
        key = draw(st.sampled_from(KEYS)) if is_alone else ""
        ttl_us = draw(st.sampled_from(TTLS)) if is_alone else 0
        bundle = Bundle(
            FIRST, "Q" * size, [0] * size, [0] * size, key=key, expires_us=ttl_us, ttl_us=ttl_us, is_alone=is_alone
        )._replace(group=draw(st.sampled_from(GROUPS)), priority=draw(st.integers(0, 1)))
        bundle = bundle._replace(fields=draw(st.sampled_from(FIELDS)))
        for _ in range(draw(st.integers(0, 7))):
            steps.append(Step(id, bundle, draw(st.sampled_from([-5_000, 0, 60_000]))))
            epoch = draw(st.integers(max(1, bundle.version.epoch), bundle.version.epoch + 2))
            may_revive = revivals and epoch > bundle.version.epoch
            if epoch > bundle.version.epoch:  # another primary may have taken a push of this id into another group
                bundle = bundle._replace(group=draw(st.sampled_from((bundle.group, bundle.group, *GROUPS))))
            bundle = draw(orders(bundle))
            bundle = draw(decisions(bundle._replace(version=Version(epoch, bundle.version.n + 1)), may_revive))
    version = Version(draw(st.integers(1, 3)), 1)
    for n in range(draw(st.integers(0, 4))):
        steps.append(Step(PAUSE, Bundle(version, "X" if n % 2 else "P", [0], [0]), 0))
        version = Version(draw(st.integers(version.epoch, version.epoch + 2)), version.n + 1)
    return steps


@st.composite
def orders(draw: st.DrawFn, bundle: Bundle) -> Bundle:
    """The same bundle after its queue has declared an order, or after a failure that holds the group or does not."""
    if bundle.group is None:
        return bundle._replace(order=0.0, claim_n=None)
    if bundle.claim_n is None and draw(st.booleans()):
        return bundle
    return bundle._replace(order=draw(st.sampled_from((-1.0, 1.0))) * ORDER, claim_n=bundle.claim_n or 0)


@st.composite
def decisions(draw: st.DrawFn, bundle: Bundle, may_revive: bool) -> Bundle:
    """The same bundle after some of its items have moved."""
    states, rows_of, own = list(bundle.states), list(bundle.rows_of), dict(bundle.own)
    rows = draw(st.permutations(ROWS))  # a number names another request from version to version
    tokens = {position: bundle.rows[row - 1] for position, row in enumerate(rows_of) if row}
    for position in draw(st.sets(st.integers(0, len(states) - 1), min_size=1)):
        if states[position] == "X" and not may_revive:
            continue
        states[position] = draw(st.sampled_from("QRCCDX"))
        tokens.pop(position, None)
        own.pop(position, None)
        if states[position] == "C":
            tokens[position] = draw(st.sampled_from(ROWS))
        elif states[position] in "RD":
            own[position] = Own(draw(st.integers(0, 9)), draw(st.integers(0, 3)))
    rows_of = [rows.index(tokens[position]) + 1 if position in tokens else 0 for position in range(len(states))]
    return bundle._replace(states="".join(states), rows_of=rows_of, rows=rows, own=own)


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


def outcome(history: list[Step]) -> dict[str, bytes]:
    """What must stay of a history: the greatest version of each bundle."""
    return {step.id: pack(step.bundle) for step in sorted(history, key=lambda step: step.bundle.version)}


def superseded(call: list[Step], held: dict[str, Bundle]) -> dict[int, list[int]]:
    """What is otherwise than a greater version says that is held by then; notes in ``held`` what is installed."""
    lost: dict[int, list[int]] = {}
    for number, (id, bundle, _) in enumerate(call, start=1):
        known = held.setdefault(id, bundle)
        if bundle.version > known.version:
            held[id] = bundle
        positions = [
            position
            for position, state in enumerate(bundle.states)
            if held[id].states[position] != state
            or (state == "C" and held[id].item(position).token != bundle.item(position).token)
        ]
        if positions:
            lost[number] = positions
    return lost


def pushes(history: list[Step]) -> list[Put]:
    """The pushes of the bundles that a history tells of."""
    items = {step.id: step.bundle for step in history if step.id != PAUSE}
    return [
        Put(id, payload_of(id), 0, bundle.priority, key=bundle.key, ttl_ms=bundle.ttl_us / 1000, group=bundle.group)
        for id, bundle in sorted(items.items())
    ]


@given(deliveries(revivals=True))
def test_any_order_gives_the_same_result(shared: OneServer, delivery: Delivery) -> None:
    """Rule 1: apply installs a record only if its version is greater: idempotent, in any order.

    So all indexes are what they are on the primary, which key names which items among them.
    """
    shared.reset()
    for call in delivery.calls:
        shared.apply(*(step.applied for step in call), payloads=True)
    contents = shared.contents()
    assert contents.packed == outcome(delivery.history)
    assert contents.faults == []


@given(deliveries())
def test_reply_tells_what_is_superseded(shared: OneServer, delivery: Delivery) -> None:
    """Rule 1: superseded exactly where a greater version is held that says otherwise."""
    held: dict[str, Bundle] = {}
    shared.reset()
    for call in delivery.calls:
        assert shared.apply_told(*(step.applied for step in call))[0] == superseded(call, held)


@given(deliveries())
def test_whoever_lacks_a_payload_says_so_every_time(shared: OneServer, delivery: Delivery) -> None:
    """Rule 2: bare is what lives here without a payload, whoever asks, however often.

    The first version comes by the push itself, and with it the payload.
    """
    shared.reset()
    for call in ([step for step in each if step.bundle.version > FIRST] for each in delivery.calls):
        bare = shared.apply(*(step.applied for step in call))[1]
        known = shared.contents().bundles
        living = {id for id, bundle in known.items() if bundle.is_alive and id != PAUSE}
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
    decided = {id: packed for id, packed in outcome(delivery.history).items() if version_of(packed) > FIRST}
    assert {id: contents.packed[id] for id in decided} == decided
    assert contents.faults == []
