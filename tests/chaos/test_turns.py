"""Groups and limits while workers and primaries are killed; and the checker finds what breaks their promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.record import CONTROLLER, Entry, Kind, Token
from tests.chaos.turns import NEVER, PLANS, Plan, run
from tests.chaos.turns_checker import check_concurrency, check_lost, check_order, check_rate
from zkrq import local

pytestmark = pytest.mark.anyio

SECONDS = 20.0


@pytest.mark.chaos
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
async def test_groups_and_limits_hold_while_workers_and_primaries_are_killed(
    servers: local.Servers, plan: Plan, tmp_path: Path
) -> None:
    found = await run(servers, plan, tmp_path, seconds=SECONDS)
    assert not found.broken
    assert found.counts["acked"] >= found.counts["pushed"] > 0
    assert found.counts["workers"] > plan.workers or plan.kill_worker == NEVER
    assert found.counts["primaries killed"]


def delivered(at: float, item: str, token: Token = (1, 1), who: str = "a") -> Entry:
    return Entry(at, who, Kind.DELIVERED, item, token)


def acking(at: float, item: str, who: str = "a") -> Entry:
    return Entry(at, who, Kind.SETTLING, item, None, "ack")


IN_ORDER = [
    delivered(1, "g:0"),
    Entry(2, "a", Kind.SETTLING, "g:0", None, "nack"),
    delivered(3, "g:0", (1, 2), "b"),
    acking(4, "g:0", "b"),
    delivered(5, "g:1", (1, 3)),
    acking(6, "g:1"),
]


def test_items_in_order_are_fine() -> None:
    found = check_order(IN_ORDER)
    assert (found.broken, found.counts) == ([], {"first time": 2, "again": 1})


@pytest.mark.parametrize(
    ("entries", "broken"),
    [
        ([delivered(1, "g:0"), delivered(2, "g:1", (1, 2))], "overtaken: g:1"),
        ([delivered(1, "g:1"), acking(2, "g:1")], "overtaken: g:1"),
        ([*IN_ORDER, delivered(7, "g:0", (1, 4))], "out of order: g:0"),
        ([delivered(1, "g:0", (1, 2)), delivered(2, "g:0", (1, 2))], "token: g:0"),
    ],
)
def test_what_is_out_of_order_is_found(entries: list[Entry], broken: str) -> None:
    (sentence,) = check_order(entries).broken
    assert sentence.startswith(broken)


def test_too_many_at_the_same_time_are_found() -> None:
    entries = [delivered(1, "g:0"), delivered(2, "g:1", who="b"), delivered(3, "h:0", who="c")]
    assert not check_concurrency(entries, 2, of_each_group=True).broken
    assert len(check_concurrency(entries, 1, of_each_group=True).broken) == 1
    assert len(check_concurrency(entries, 2, of_each_group=False).broken) == 1
    killed = [entries[0], Entry(1.5, CONTROLLER, Kind.STOPPED, detail="a"), *entries[1:]]
    assert not check_concurrency(killed, 1, of_each_group=True).broken


def test_too_many_in_a_window_are_found() -> None:
    entries = [delivered(at / 8, f"g:{at}") for at in range(20)]
    assert not check_rate(entries, 8, 1.0, in_flight=0).broken
    assert check_rate(entries, 7, 1.0, in_flight=0).broken
    assert not check_rate(entries, 7, 1.0, in_flight=1).broken
    both = [*entries, *(delivered(at / 8, f"h:{at}") for at in range(20))]
    assert not check_rate(both, 8, 1.0, in_flight=0, of_each_group=True).broken
    assert check_rate(both, 7, 1.0, in_flight=0, of_each_group=True).broken[0].startswith("too many: 8 of g in 1 s")


def test_what_was_never_acked_is_lost() -> None:
    assert check_lost(IN_ORDER, ["g:0", "g:1", "g:2"]).broken == ["lost: g:2"]
