"""What one shard of a queue is asked for when several could serve the same consumers."""

from __future__ import annotations

from zkrq.consuming.turns import Standing, is_spared, parts

DRY = Standing()
IDLE = Standing(is_dry=False)
ASKED = Standing(is_dry=False, asking=3)
LATE = Standing(is_dry=False, asking=3, is_late=True)


def test_a_single_shard_is_asked_for_everything() -> None:
    assert parts(DRY, [], []) == parts(IDLE, [], []) == 1


def test_shards_with_items_are_asked_one_after_the_other() -> None:
    assert parts(IDLE, [], [IDLE, IDLE]) == 1
    assert parts(IDLE, [IDLE], [IDLE]) == 0
    assert parts(IDLE, [], [IDLE, ASKED]) == 0


def test_shards_without_items_are_asked_together_if_no_other_has_some() -> None:
    assert parts(DRY, [DRY], [DRY]) == 3
    assert parts(DRY, [DRY], [IDLE]) == parts(DRY, [ASKED], []) == 0
    assert parts(IDLE, [DRY], [DRY]) == 1


def test_one_that_does_not_answer_keeps_no_other_waiting() -> None:
    assert parts(IDLE, [LATE], [DRY]) == 1
    assert parts(DRY, [LATE], []) == 2


def test_only_one_that_may_be_empty_is_spared() -> None:
    assert is_spared(DRY, [DRY, IDLE])
    assert is_spared(DRY, [ASKED])
    assert not is_spared(DRY, [DRY, LATE])
    assert not is_spared(IDLE, [IDLE])
