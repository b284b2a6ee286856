"""What an item costs may not grow unnoticed: counted, since times say nothing on a busy machine."""

from __future__ import annotations

import pytest

from benchmarks.counts import LIMITS, count

pytestmark = pytest.mark.anyio


async def test_no_item_costs_more_than_it_did() -> None:
    counted = await count()
    assert counted.keys() == LIMITS.keys()
    assert {name: figure for name, figure in counted.items() if figure > LIMITS[name]} == {}
