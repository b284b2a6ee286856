"""The first schedules of ``test_model.py``, for a run that has no time for more."""

from __future__ import annotations

from tests.model.explore import explore

SCHEDULES = 200

HOMING = 8
"""Where items come home; ``test_homing.py`` has more."""


def test_no_promise_is_broken_in_few_schedules() -> None:
    findings = explore(range(SCHEDULES))
    assert not findings.broken, findings.first
    assert findings.schedules == SCHEDULES


def test_items_of_two_shards_come_home() -> None:
    findings = explore(range(HOMING), homing=True)
    assert not findings.broken, findings.first
    assert findings.counts["came home"]
