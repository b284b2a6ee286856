"""The benchmark of latencies compares like with like: its paces are parts of what its own consumers reach."""

from __future__ import annotations

import pytest

import zkrq.testing
from benchmarks import latency
from benchmarks.plan import Plan


@pytest.mark.anyio
async def test_the_maximum_is_that_of_the_same_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pushes do not run away from them, so the time is not that of a backlog."""
    monkeypatch.setattr(latency, "AHEAD", 50)
    async with zkrq.testing.cluster(1) as cluster:
        load = latency.Load(cluster.queue("jobs"))
        assert await load.maximum(500) > 0
        assert len(load.began) == len(load.returned) == 500
        for n, due in enumerate(load.due):
            assert n - sum(began < due for began in load.began.values()) <= 50


def test_the_curve_has_every_part() -> None:
    assert latency.PARTS == (10, 25, 50, 75, 90)
    assert Plan().rows(latency.PARTS, (10,)) == latency.PARTS
