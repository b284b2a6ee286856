"""Fields of a record: every script that decides about items carries those that it does not know."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.lua.copying import copy
from tests.lua.entries import BUNDLE, Applied, Put
from tests.lua.one_server import OneServer
from zkrq.protocol import calls
from zkrq.protocol.records import FIELDS_FORMAT, State, pack

FIELDS: Mapping[str, bytes] = {"?": b"of a later release", "~": bytes(range(256)), "\xff": b""}

PUTS: Mapping[str, Put] = {
    "alone": Put("a", fields=FIELDS),
    "of several": Put(BUNDLE, [b"one", b"two", b"three"], fields=FIELDS),
    "in a group": Put("a", group="g", fields=FIELDS),
    "with a key and a time to live": Put("a", key="k", ttl_ms=60_000, fields=FIELDS),
}


def settled(server: OneServer, verb: str) -> None:
    (claim,) = server.claim().decided.values()
    assert server.settle(claim.settle(verb, 1)).outcomes == [1]


def redriven(server: OneServer) -> None:
    settled(server, "bury")
    server.redrive(*server.contents().ids(State.DEAD))


def affirmed(server: OneServer) -> None:
    server.epoch += 1
    server.affirm(*server.contents().bundles)


def fenced(server: OneServer) -> None:
    server.claim()
    server.fence("ann")


DECISIONS: Mapping[str, Callable[[OneServer], object]] = {
    "claim": lambda server: server.claim(),
    "ack": lambda server: settled(server, "ack"),
    "nack": lambda server: settled(server, "nack"),
    "pass": lambda server: settled(server, "pass"),
    "release": lambda server: settled(server, "release"),
    "extend": lambda server: settled(server, "extend"),
    "bury and redrive": redriven,
    "fence": fenced,
    "affirm": affirmed,
    "cancel": lambda server: server.cancel(*server.contents().ids(State.QUEUED)),
    "clear": lambda server: server.clear(10),
}
"""What decides about the items of ``PUTS``."""


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("decision", DECISIONS)
def test_a_decision_carries_fields_that_it_does_not_know(
    server: OneServer, other: OneServer, put: str, decision: str
) -> None:
    """They come to another server with the decision, and with a copy."""
    server.put(PUTS[put])
    DECISIONS[decision](server)
    (id, packed), *rest = server.contents().packed.items()
    assert not rest
    assert packed[0] == FIELDS_FORMAT
    bundle = server.contents().bundles[id]
    assert bundle.version > (0, 1)
    assert bundle.fields == FIELDS
    assert bundle.group == PUTS[put].group
    assert copy(server, other) == max(1, sum(state in "QRCD" for state in bundle.states))
    assert other.contents().packed == server.contents().packed
    assert server.contents().faults == other.contents().faults == []


def test_the_greater_record_brings_its_fields(server: OneServer) -> None:
    """Two servers decided separately: what one of them says of an item is as a whole."""
    server.put(PUTS["alone"])
    decided = server.claim().decided["a"]
    later = {"?": b"another"}
    raised = decided.bundle._replace(version=decided.bundle.version._replace(n=9), fields=later)
    server.apply(Applied("a", pack(raised)))
    assert server.contents().bundles["a"].fields == later
    server.apply(Applied("a", pack(decided.bundle)))
    assert server.contents().bundles["a"].fields == later


@pytest.mark.parametrize("put", ["alone", "of several"])
def test_what_moves_to_another_shard_takes_its_fields_along(server: OneServer, other: OneServer, put: str) -> None:
    server.put(PUTS[put])
    movable = server.ask(calls.Movable(server.queue, 10))
    bundles = {copied.id: copied for copied in movable.copies.items}
    items = [calls.Adopted.of(bundles[bundle], position) for bundle, position in movable.places]
    other.ask(calls.Adopt(other.queue, server.now_ms(), [item for item in items if item]))
    other.ask(calls.Admit(other.queue, [(item.id, 1) for item in items if item]))
    assert [bundle.fields for bundle in other.contents().bundles.values()] == [FIELDS]
    assert sorted(other.claim().handed) == sorted(item.id for item in items if item)


def test_a_push_that_is_finished_for_its_client_keeps_its_fields(server: OneServer, other: OneServer) -> None:
    server.put(PUTS["alone"])
    copied = server.read("a")["a"]
    other.forward(Applied("a", copied.packed, 0, b"payload", b"", copied.since))
    assert other.contents().bundles["a"].fields == FIELDS


def test_a_push_that_is_repeated_item_by_item_keeps_its_fields(server: OneServer) -> None:
    put = PUTS["of several"].call
    single = put.single(1)
    server.ask(calls.PushDecided(server.queue, [single], again=True))
    (bundle,) = server.contents().bundles.values()
    assert bundle.fields == FIELDS
    assert [*server.claim().handed.values()] == [b"two"]


def test_damaged_fields_are_damage(server: OneServer) -> None:
    """Nothing is handed out of a record that says something else than its length."""
    server.put(PUTS["alone"])
    stored = server.command("HGET", server.key("records"), "a")
    assert isinstance(stored, bytes)
    broken = stored.replace(b"?\x12\x00", b"?\x13\x00")
    assert broken != stored
    server.command("HSET", server.key("records"), "a", broken)
    assert server.claim().handed == {}
