"""What one shard of a queue is asked for when several could serve the same consumers."""

from __future__ import annotations

from dataclasses import dataclass

from zkrq.consuming.core.turns import asked_of, is_spared


@dataclass(frozen=True)
class Standing:
    """What is known of a shard."""

    is_dry: bool = True
    asking: int = 0
    is_late: bool = False


DRY = Standing()
IDLE = Standing(is_dry=False)
ASKED = Standing(is_dry=False, asking=3)
TRIED = Standing(asking=3)
LATE = Standing(is_dry=False, asking=3, is_late=True)


def test_a_single_shard_is_asked_for_everything() -> None:
    assert asked_of(10, DRY, [], []) == asked_of(10, IDLE, [], []) == 10


def test_shards_with_items_are_asked_one_after_the_other() -> None:
    assert asked_of(10, IDLE, [], [IDLE, IDLE]) == 10
    assert asked_of(10, IDLE, [IDLE], [IDLE]) == 0
    assert asked_of(10, IDLE, [], [IDLE, ASKED]) == 0


def test_shards_without_items_are_asked_together_if_no_other_has_some() -> None:
    assert asked_of(10, DRY, [DRY], [DRY]) == 4
    assert asked_of(10, DRY, [DRY], [IDLE]) == asked_of(10, DRY, [ASKED], []) == 0
    assert asked_of(10, IDLE, [DRY], [DRY]) == 10


def test_what_another_one_may_still_bring_is_not_asked_for_twice() -> None:
    assert asked_of(10, IDLE, [TRIED], [DRY]) == 7
    assert asked_of(2, IDLE, [TRIED], []) == 0


def test_one_that_does_not_answer_keeps_no_other_waiting() -> None:
    assert asked_of(10, IDLE, [LATE], [DRY]) == 10
    assert asked_of(10, DRY, [LATE], []) == 5


def test_only_one_that_may_be_empty_is_spared() -> None:
    assert is_spared(DRY, [DRY, IDLE])
    assert is_spared(DRY, [ASKED])
    assert not is_spared(DRY, [DRY, LATE])
    assert not is_spared(IDLE, [IDLE])
