"""``zkrq.sync`` has the calls of the asynchronous classes, with the same arguments and results, so it cannot drift."""

from __future__ import annotations

import inspect

import pytest

import zkrq
import zkrq.sync
from tests.every import every
from zkrq.sync.schedules import StoredSchedules

PAIRS = {
    "Cluster": (zkrq.Cluster, zkrq.sync.Cluster),
    "Queue": (zkrq.Queue, zkrq.sync.Queue),
    "ResultQueue": (zkrq.ResultQueue, zkrq.sync.ResultQueue),
    "Claim": (zkrq.Claim, zkrq.sync.Claim),
    "Batch": (zkrq.Batch, zkrq.sync.Batch),
    "Flow": (zkrq.Flow, zkrq.sync.Flow),
    "StoredSchedules": (zkrq.StoredSchedules, StoredSchedules),
}

RENAMED = {"aclose": "close"}

WORK = "a worker is a program of its own; it calls plain functions in threads"

LEFT_OUT = {
    "Cluster": {
        "every": "belongs to a program that stays, like a worker",
        "add_server": "for operators, who have the command line",
        "remove_server": "for operators, who have the command line",
        "rename_server": "for operators, who have the command line",
        "recover": "for operators, who have the command line",
        "add_shard": "for operators, who have the command line",
        "drain_shard": "for operators, who have the command line",
        "remove_shard": "for operators, who have the command line",
    },
    "Queue": {"work": WORK},
    "ResultQueue": {"work": WORK},
    "Claim": {},
    "Batch": {},
    "Flow": {},
    "StoredSchedules": {"run": "belongs to a program that stays, like a worker"},
}

RESULTS = {
    "Deliveries[T]": "Generator[Claim[T]]",
    "Batches[T]": "Generator[Batch[T]]",
    "AsyncGenerator[Item[T]]": "Generator[Item[T]]",
    "AsyncGenerator[FlowStatus]": "Generator[FlowStatus]",
    "AsyncGenerator[Result[Any]]": "Generator[Result[Any]]",
    "Listener[T]": "Generator[T]",
    "Lost": "str",
    "Step[Any]": "Any",
}
"""Results that have another type without an event loop."""


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def signature(kind: type, name: str) -> inspect.Signature:
    member = inspect.getattr_static(kind, name)
    function = member.fget if isinstance(member, property) else member
    assert inspect.isfunction(function)
    return inspect.signature(function)


@pytest.mark.parametrize("kind", PAIRS)
def test_it_has_the_same_calls(kind: str) -> None:
    there, here = map(public, PAIRS[kind])
    assert LEFT_OUT[kind].keys() <= there
    assert here == {RENAMED.get(name, name) for name in there - LEFT_OUT[kind].keys()}


CALLS = [(kind, name) for kind in PAIRS for name in sorted(public(PAIRS[kind][0]) - LEFT_OUT[kind].keys() - {"item"})]


@every(("kind", "name"), CALLS)
def test_a_call_has_the_same_arguments_and_results(kind: str, name: str) -> None:
    asynchronous, blocking = PAIRS[kind]
    there, here = signature(asynchronous, name), signature(blocking, RENAMED.get(name, name))
    assert list(here.parameters.values()) == list(there.parameters.values())
    assert here.return_annotation == RESULTS.get(there.return_annotation, there.return_annotation)


@pytest.mark.parametrize("kind", PAIRS)
def test_a_property_is_one_there_too(kind: str) -> None:
    for name in public(PAIRS[kind][1]) - {"close"}:
        there, here = (isinstance(inspect.getattr_static(each, name), property) for each in PAIRS[kind])
        assert here == there, name
