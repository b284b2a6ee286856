"""Flows while workers and primaries are killed, and operators cancel; the checker finds what breaks their promises."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from tests.chaos.flows import SERVERS, SHARDS, Plan, run
from tests.chaos.flows_checker import ALWAYS, FAILURE, THEN, check
from tests.chaos.record import Entry, Kind, Token
from zkrq import local

pytestmark = pytest.mark.anyio

SHORT = Plan(seconds=20.0, flows=24, most=500, crawl=500, workers=3, kill_primary=6.0, cancel=8.0)


@pytest.fixture
async def two_shards() -> AsyncGenerator[local.Servers]:
    async with local.servers(redis=SERVERS * len(SHARDS), zookeeper=3) as servers:
        yield servers


@pytest.mark.chaos
async def test_flows_end_once_while_workers_and_primaries_are_killed(two_shards: local.Servers, tmp_path: Path) -> None:
    found = await run(two_shards, SHORT, tmp_path)
    assert not found.broken
    assert found.counts["flows"] == SHORT.flows
    assert found.counts["workers"] > SHORT.workers
    assert found.counts["primaries killed"]
    assert found.counts["results"]


# -- the checker -------------------------------------------------------------------------------------------------------


def pushed(at: float, id: str) -> Entry:
    return Entry(at, "a", Kind.PUSHED, f"f/{id}")


def delivered(at: float, id: str, token: Token = (1, 1)) -> Entry:
    return Entry(at, "a", Kind.DELIVERED, f"f/{id}", token)


def acking(at: float, id: str, verb: str = "ack") -> Entry:
    return Entry(at, "a", Kind.SETTLING, f"f/{id}", None, verb)


def acked(at: float, id: str) -> list[Entry]:
    """An item that is delivered, and acked a tenth of a second later."""
    ack = Entry(at + 0.2, "a", Kind.SETTLED, f"f/{id}", None, "ack")
    return [delivered(at, id), acking(at + 0.1, id), ack]


def told(at: float, state: str) -> Entry:
    return Entry(at, "controller", Kind.EVENT, "f", None, state)


TWO = [pushed(1, "member/x"), pushed(1, "member/y"), *acked(2, "member/x"), *acked(3, "member/y")]
FINE = [*TWO, *acked(5, "then/t"), told(6, "running"), told(7, "done")]


def broken(entries: Sequence[Entry], held: Sequence[str] = (THEN,), finished: Sequence[str] = ()) -> list[str]:
    return check(entries, {"f": held}, finished).broken


def test_a_flow_that_ends_after_its_members_is_fine() -> None:
    assert broken(FINE) == []
    assert check(FINE, {"f": [THEN]}, []).counts == {"flows": 1, "members": 2, "done": 1, "results": 0}
    assert broken([*FINE, *acked(5.5, "always/a")], (THEN, ALWAYS, FAILURE)) == []


def test_a_member_that_was_delivered_again_before_the_end_is_fine() -> None:
    killed = [pushed(1, "member/x"), delivered(2, "member/x"), *acked(3, "member/x")]
    assert broken([*killed, *acked(4, "then/t"), told(6, "done")]) == []


def test_what_was_cancelled_has_nothing_to_follow() -> None:
    assert broken([*TWO, told(7, "cancelled")], (THEN, ALWAYS)) == []


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ([*TWO, told(6, "running")], "f: never: it has not ended"),
        ([*TWO, told(6, "done")], "f: never: `then` was not delivered"),
        ([*FINE, told(8, "failed"), told(9, "done")], "f: its outcome changed: done, failed, done"),
        ([*FINE, *acked(6, "then/other")], "f: twice: 2 items of `then`"),
        ([*FINE, delivered(6, "then/t", (1, 2))], "f: twice: t came back"),
        ([*FINE, *acked(6, "failure/f")], "f: `failure` was delivered, and the flow is done"),
        ([*TWO, *acked(5, "then/t"), told(7, "cancelled")], "f: `then` was delivered, and the flow is cancelled"),
        ([pushed(4, "member/z"), *FINE], "f: early: 1 members had not ended when `then` began"),
        ([*FINE, delivered(6, "member/x", (1, 2))], "f: early: 1 members were delivered after"),
        ([pushed(1, "member/z"), *acked(4.95, "member/z"), *FINE], "f: early: 1 members ran when"),
    ],
)
def test_what_breaks_a_promise_is_found(entries: list[Entry], sentence: str) -> None:
    assert any(each.startswith(sentence) for each in broken(entries))


def read(at: float, id: str, detail: str) -> Entry:
    return Entry(at, "a", Kind.READ, f"f/{id}", None, detail)


STEPS = ("check", "price", "stock", "ship")

ORDERED = [
    *(pushed(1, f"member/f.{name}") for name in STEPS),
    *(entry for at, name in enumerate(STEPS) for entry in acked(2 + at, f"member/f.{name}")),
    *acked(9, "then/t"),
    told(9.5, "done"),
]


def test_members_that_wait_and_read_results_are_fine() -> None:
    entries = [*ORDERED, read(5, "member/f.price", "f.price"), read(9.05, "then/t", "4 0")]
    assert broken(entries) == []
    assert check(entries, {"f": [THEN]}, []).counts["results"] == 2


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (delivered(1.5, "member/f.price"), "f: early: f.price was delivered before check had ended"),
        (delivered(4.05, "member/f.ship"), "f: early: f.ship was delivered before stock had ended"),
        (read(5, "member/f.stock", "unknown"), "f: result of f.stock: unknown was read"),
        (read(5, "member/f.stock", "f.price"), "f: result of f.stock: f.price was read"),
        (read(9.05, "then/t", "3 0"), "f: results: 3 were read"),
        (read(9.05, "then/t", "5 0"), "f: results: 5 were read"),
        (read(9.05, "then/t", "4 1"), "f: results: 4 were read, 1 of them wrong"),
    ],
)
def test_a_member_that_did_not_wait_or_a_result_that_is_lost_is_found(entry: Entry, sentence: str) -> None:
    assert any(each.startswith(sentence) for each in broken([*ORDERED, entry]))


def test_a_flow_that_an_operator_ended_may_lack_members() -> None:
    entries = [pushed(1, "member/z"), *FINE]
    assert broken(entries, finished=["f"]) == []
