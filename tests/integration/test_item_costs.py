"""The cost of an item must not grow unnoticed: counted, because times mean nothing on a busy machine.

And what it is measured against works: the library's calls, sent again without it.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest

from benchmarks import bare
from benchmarks.counts import LIMITS, SCRIPT_CALLS, count, count_script_calls
from benchmarks.load import Meter
from zkrq.local import Servers

pytestmark = pytest.mark.anyio

TRIES = 8
"""Batches are smaller on a busy machine, and an item costs more then: one count within the limits is enough."""


TRACED = {name for name in LIMITS if ", traces:" in name}

BY_THE_CLOCK = {"claim and ack, alone: Python calls of the client"}
"""A client also looks about by the clock: of few items in a second, each is given more of that, whatever it costs
itself.  Beside four other processes of tests it is a fifth more, in every try."""


@pytest.mark.parametrize(
    "names",
    [
        LIMITS.keys() - TRACED - BY_THE_CLOCK,
        pytest.param(TRACED | BY_THE_CLOCK, marks=pytest.mark.chaos),
    ],
    ids=["anywhere", "on a quiet machine"],
)
async def test_no_item_costs_more_than_it_did(names: Collection[str]) -> None:
    over = {name: LIMITS[name] for name in names}
    for _ in range(TRIES):
        counted = await count(over.keys())
        assert counted.keys() == over.keys()
        over = {name: figure for name, figure in counted.items() if figure > LIMITS[name]}
        if not over:
            return
    assert over == {}


def test_no_item_of_a_lone_worker_needs_more_script_calls_than_it_did() -> None:
    counted = count_script_calls()
    assert counted.keys() == SCRIPT_CALLS.keys()
    assert {name: figure for name, figure in counted.items() if figure > SCRIPT_CALLS[name]} == {}


async def test_calls_sent_again_do_the_same(servers: Servers) -> None:
    """Also where a claim ends within a bundle, and where acks are of a part of a claim; it is an error if not."""
    tape = await bare.capture(servers, bare.Sizes(put=7, claim=5, settle=3), 60)
    for _ in range(2):
        assert (await bare.replay(servers, tape, Meter([]))).cycle > 0
