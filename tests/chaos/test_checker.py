"""The checker finds each kind of violation in a log made by hand, and none in clean logs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.chaos.checker import Outcome, check
from tests.chaos.record import CONTROLLER, Entry, Journal, Kind, Token

NOTICE = 1.0

FIRST, SECOND, THIRD = (1, 2), (1, 4), (2, 3)
"""Tokens, in order."""


def judge(*entries: Entry, left: Mapping[str, str] | None = None) -> Outcome:
    return check(entries, left or {}, notice=NOTICE)


def pushed(id: str = "x", at: float = 0.0) -> tuple[Entry, ...]:
    return Entry(at, "a", Kind.PUSHING, id), Entry(at + 0.1, "a", Kind.PUSHED, id)


def delivered(at: float, token: Token = FIRST, who: str = "a", owner: str = "o1", id: str = "x") -> Entry:
    return Entry(at, who, Kind.DELIVERED, id, token, owner)


def settling(at: float, token: Token = FIRST, who: str = "a", verb: str = "ack", id: str = "x") -> Entry:
    return Entry(at, who, Kind.SETTLING, id, token, verb)


def settled(at: float, token: Token = FIRST, who: str = "a", verb: str = "ack", id: str = "x") -> tuple[Entry, ...]:
    return settling(at - 0.1, token, who, verb, id), Entry(at, who, Kind.SETTLED, id, token, verb)


def test_a_clean_run() -> None:
    outcome = judge(*pushed(), delivered(1), *settled(2), *pushed("y"), delivered(1, id="y"), *settled(2, id="y"))
    assert not outcome.broken
    assert (outcome.pushed, outcome.delivered, outcome.acked, outcome.duplicated) == (2, 2, 2, 0)


def test_nothing_at_all() -> None:
    assert not judge().broken


# -- lost --------------------------------------------------------------------------------------------------------------


def test_pushed_and_never_seen_again_is_lost() -> None:
    assert judge(*pushed()).lost == ("x",)


def test_delivered_and_never_acked_is_lost() -> None:
    assert judge(*pushed(), delivered(1)).lost == ("x",)


def test_handed_back_and_never_delivered_again_is_lost() -> None:
    assert judge(*pushed(), delivered(1), *settled(2, verb="release")).lost == ("x",)


def test_an_ack_that_was_refused_does_not_excuse_a_loss() -> None:
    refused = Entry(2, "a", Kind.SETTLE_REFUSED, "x", FIRST, "ack")
    assert judge(*pushed(), delivered(1), settling(1.5), refused).lost == ("x",)


def test_an_ack_of_a_claim_that_was_lost_does_not_excuse_a_loss() -> None:
    assert judge(*pushed(), delivered(1), settling(1.5), Entry(2, "a", Kind.LOST, "x", FIRST)).lost == ("x",)


def test_an_ack_that_may_have_happened_is_no_loss() -> None:
    unknown = Entry(2, "a", Kind.SETTLE_UNKNOWN, "x", FIRST, "ack")
    assert not judge(*pushed(), delivered(1), settling(1.5), unknown, Entry(3, "a", Kind.LOST, "x", FIRST)).lost


def test_an_ack_that_was_never_answered_is_no_loss() -> None:
    assert not judge(*pushed(), delivered(1), settling(1.5)).lost


def test_a_nack_that_may_have_happened_is_no_ack() -> None:
    unknown = Entry(2, "a", Kind.SETTLE_UNKNOWN, "x", FIRST, "nack")
    assert judge(*pushed(), delivered(1), settling(1.5, verb="nack"), unknown).lost == ("x",)


@pytest.mark.parametrize("ending", [Kind.PUSH_UNKNOWN, Kind.PUSH_REFUSED])
def test_a_push_that_did_not_return_cannot_be_lost(ending: Kind) -> None:
    outcome = judge(Entry(0, "a", Kind.PUSHING, "x"), Entry(1, "a", ending, "x"))
    assert not outcome.lost
    assert outcome.pushed == 0


def test_what_is_still_in_the_queue_is_stranded_and_not_lost() -> None:
    outcome = judge(*pushed(), left={"x": "claimed"})
    assert not outcome.lost
    assert outcome.stranded == ("x: claimed",)
    assert outcome.broken


# -- unexpected, recovered ---------------------------------------------------------------------------------------------


def test_delivered_and_never_pushed() -> None:
    assert judge(delivered(1), *settled(2)).unexpected == ("x",)


def test_delivered_although_the_push_was_refused() -> None:
    refused = Entry(0, "a", Kind.PUSHING, "x"), Entry(1, "a", Kind.PUSH_REFUSED, "x")
    assert judge(*refused, delivered(2), *settled(3)).unexpected == ("x",)
    assert judge(*refused, delivered(2), *settled(3), *pushed(at=4)).unexpected == ("x",)
    assert not judge(*refused, *pushed(at=1.5), delivered(2), *settled(3)).unexpected


def test_delivered_while_the_push_is_under_way_is_fine() -> None:
    entries = Entry(0, "a", Kind.PUSHING, "x"), delivered(1), *settled(2), Entry(3, "a", Kind.PUSHED, "x")
    assert not judge(*entries).broken


def test_a_push_of_unknown_outcome_that_was_delivered_is_recovered() -> None:
    unknown = Entry(0, "a", Kind.PUSHING, "x"), Entry(1, "a", Kind.PUSH_UNKNOWN, "x")
    outcome = judge(*unknown, delivered(2), *settled(3))
    assert outcome.recovered == 1
    assert not outcome.broken
    assert judge(*unknown).recovered == 0


# -- revived, duplicated -----------------------------------------------------------------------------------------------


def test_delivered_by_a_later_claim_after_an_ack() -> None:
    assert judge(*pushed(), delivered(1), *settled(2), delivered(3, SECOND, "b")).revived == ("x",)


def test_an_older_claim_that_is_delivered_late_is_not_revived() -> None:
    entries = *pushed(), delivered(1, SECOND, "b"), *settled(2, SECOND, "b"), delivered(3, FIRST)
    assert not judge(*entries, Entry(3, "a", Kind.LOST, "x", FIRST)).revived


def test_the_same_claim_delivered_again_after_its_ack_is_revived() -> None:
    assert judge(*pushed(), delivered(1), *settled(2), delivered(3)).revived == ("x",)


def test_delivered_again_after_an_ack_of_unknown_outcome_is_fine() -> None:
    unknown = Entry(2, "a", Kind.SETTLE_UNKNOWN, "x", FIRST, "ack")
    lost = Entry(2.5, "a", Kind.LOST, "x", FIRST)
    outcome = judge(*pushed(), delivered(1), settling(1.5), unknown, lost, delivered(3, SECOND), *settled(4, SECOND))
    assert not outcome.broken
    assert outcome.duplicated == 1


@pytest.mark.parametrize("verb", ["nack", "release"])
def test_delivered_again_because_it_was_handed_back_is_no_duplicate(verb: str) -> None:
    outcome = judge(*pushed(), delivered(1), *settled(2, verb=verb), delivered(3, SECOND), *settled(4, SECOND))
    assert not outcome.broken
    assert outcome.duplicated == 0


# -- two holders -------------------------------------------------------------------------------------------------------


def both(*more: Entry, second_owner: str = "o2", overlap: float = 0.5) -> Outcome:
    """An earlier claim from 1 to 2, and a later one that begins ``overlap`` before the end of the first."""
    first = delivered(1), Entry(2, "a", Kind.LOST, "x", FIRST)
    second = delivered(2 - overlap, SECOND, "b", second_owner), *settled(9, SECOND, "b")
    return judge(*pushed(), *first, *second, *more)


def test_two_who_hold_one_item_at_once() -> None:
    (sentence,) = both().two_holders
    assert sentence.startswith("x: a (1.2 from 1.000) and b (1.4 from 1.500) both held it for 0.500 s")


def test_one_after_the_other() -> None:
    assert not both(overlap=0).broken


def test_a_holder_that_was_fenced_may_learn_it_a_little_late() -> None:
    outcome = both(Entry(5, "b", Kind.OWNER_ENDED, detail="o1"))
    assert not outcome.broken
    assert outcome.fenced_late == 1
    assert both(Entry(5, "b", Kind.OWNER_ENDED, detail="o2")).two_holders


def test_an_owner_that_ends_with_the_run_is_no_excuse() -> None:
    dismissed = Entry(9.5, CONTROLLER, Kind.DISMISSED)
    assert both(dismissed, Entry(9.6, "b", Kind.OWNER_ENDED, detail="o1")).two_holders


def test_a_holder_that_was_fenced_may_not_go_on_for_ever() -> None:
    entries = delivered(1), Entry(2 + NOTICE, "a", Kind.LOST, "x", FIRST), delivered(1.5, SECOND, "b", "o2")
    ended = Entry(5, "b", Kind.OWNER_ENDED, detail="o1")
    assert judge(*pushed(), *entries, *settled(9, SECOND, "b"), ended).two_holders


def test_a_fenced_owner_does_not_excuse_handing_out_twice_to_itself() -> None:
    ended = Entry(5, "b", Kind.OWNER_ENDED, detail="o1")
    assert both(ended, second_owner="o1").two_holders


def test_one_claim_handed_out_twice() -> None:
    entries = delivered(1), delivered(1.2), *settled(3)
    assert judge(*pushed(), *entries).two_holders


def test_who_is_stopped_holds_nothing() -> None:
    stopped = Entry(1.2, CONTROLLER, Kind.STOPPED, detail="a")
    assert not both(stopped).broken
    other = Entry(1.2, CONTROLLER, Kind.STOPPED, detail="c")
    assert both(other).two_holders


def test_who_has_begun_to_settle_holds_nothing() -> None:
    first = delivered(1), settling(1.4, verb="release"), Entry(2, "a", Kind.SETTLED, "x", FIRST, "release")
    assert not judge(*pushed(), *first, delivered(1.5, SECOND, "b", "o2"), *settled(3, SECOND, "b")).broken


def test_an_outlived_claim_that_is_settled() -> None:
    stopped = Entry(1.2, CONTROLLER, Kind.STOPPED, detail="a")
    first = delivered(1), stopped, *settled(5, verb="nack")
    later = delivered(3, SECOND, "b", "o2"), *settled(8, SECOND, "b")
    (sentence,) = judge(*pushed(), *first, *later).two_holders
    assert "was settled after b" in sentence


def test_an_outlived_claim_that_is_settled_at_the_second_try() -> None:
    unknown = Entry(2, "a", Kind.SETTLE_UNKNOWN, "x", FIRST, "nack")
    first = delivered(1), settling(1.5, verb="nack"), unknown, *settled(5, verb="nack")
    later = delivered(3, SECOND, "b", "o2"), *settled(8, SECOND, "b")
    assert judge(*pushed(), *first, *later).two_holders


def test_a_claim_without_an_end_lasts_until_the_end() -> None:
    outcome = judge(*pushed(), delivered(1), delivered(4, SECOND, "b", "o2"), *settled(5, SECOND, "b"))
    assert outcome.two_holders


# -- keys --------------------------------------------------------------------------------------------------------------


def keyed(id: str, at: float) -> tuple[Entry, ...]:
    return Entry(at, "a", Kind.PUSHING, id, detail="k"), Entry(at + 0.1, "a", Kind.PUSHED, id)


def duplicate(id: str, at: float, first: str) -> tuple[Entry, ...]:
    return Entry(at, "b", Kind.PUSHING, id, detail="k"), Entry(at + 0.1, "b", Kind.DUPLICATE, id, detail=first)


def test_a_key_that_is_given_to_two() -> None:
    (sentence,) = judge(*keyed("x", 0), *keyed("y", 1), delivered(2), *settled(3), left={"y": "ready"}).misruled
    assert sentence == "y: given the key k, which x had"


def test_a_key_whose_item_may_be_done_is_free() -> None:
    assert not judge(*keyed("x", 0), delivered(0.5), settling(0.9), *keyed("y", 1), left={"y": "ready"}).misruled
    cancelling = Entry(1.05, "a", Kind.CANCELLING, "x")
    assert not judge(*keyed("x", 0), cancelling, *keyed("y", 1), left={"y": "ready"}).misruled


def test_a_duplicate_was_not_pushed() -> None:
    outcome = judge(*keyed("x", 0), *duplicate("y", 1, "x"), delivered(2), *settled(3))
    assert not outcome.broken
    assert (outcome.pushed, outcome.refused) == (1, 1)
    assert judge(*keyed("x", 0), *duplicate("y", 1, "x"), delivered(2, id="y"), left={"x": "ready"}).unexpected == (
        "y",
    )


def test_a_duplicate_of_what_is_done_or_never_was() -> None:
    assert judge(*keyed("x", 0), delivered(1), *settled(2), *duplicate("y", 3, "x")).misruled
    assert judge(*duplicate("y", 3, "z")).misruled
    assert judge(*pushed("x", 0), *duplicate("y", 3, "x"), left={"x": "ready"}).misruled, "another key"


# -- cancels -----------------------------------------------------------------------------------------------------------


def cancelled(at: float, found: str = "removed") -> tuple[Entry, ...]:
    return Entry(at - 0.1, "a", Kind.CANCELLING, "x"), Entry(at, "a", Kind.CANCELLED, "x", detail=found)


def test_what_was_cancelled_is_not_lost() -> None:
    outcome = judge(*pushed(), *cancelled(1))
    assert not outcome.broken
    assert outcome.cancelled == 1
    assert not judge(*pushed(), Entry(1, "a", Kind.CANCELLING, "x"), Entry(2, "a", Kind.CANCEL_UNKNOWN, "x")).lost
    assert judge(*pushed(), Entry(1, "a", Kind.CANCELLING, "x"), Entry(2, "a", Kind.CANCEL_REFUSED, "x")).lost == ("x",)


def test_what_is_there_is_found() -> None:
    assert judge(*pushed(), *cancelled(1, "not found"), delivered(2), *settled(3)).misruled
    assert not judge(*pushed(), delivered(0.5), *settled(0.8), *cancelled(1, "not found")).misruled


def test_claimed_or_settled_after_a_cancel() -> None:
    asked = Entry(1.5, "b", Kind.ASKED, "x", FIRST)
    assert judge(*pushed(), *cancelled(1), asked, delivered(2, who="b")).misruled
    assert judge(*pushed(), delivered(0.5), *cancelled(1, "signalled"), *settled(2)).misruled
    lost = settling(1.5), Entry(2, "a", Kind.LOST, "x", FIRST)
    assert not judge(*pushed(), delivered(0.5), *cancelled(1, "signalled"), *lost).misruled


# -- pauses, sizes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked_at", "delivered_at", "wrong"), [(1.5, 2, True), (0.5, 2, False), (1.5, 5, False)])
def test_handed_out_while_paused(asked_at: float, delivered_at: float, wrong: bool) -> None:
    paused = Entry(0.9, "a", Kind.PAUSING), Entry(1, "a", Kind.PAUSED), Entry(4, "a", Kind.RESUMING)
    asked = Entry(asked_at, "b", Kind.ASKED, "x", FIRST, "small")
    story = *pushed(), asked, delivered(delivered_at, who="b"), *settled(6, who="b")
    assert bool(judge(*paused, *story).misruled) == wrong


def test_too_many_in_the_small_queue() -> None:
    assert judge(Entry(1, "a", Kind.SIZE, detail="41 40")).misruled
    assert not judge(Entry(1, "a", Kind.SIZE, detail="40 40")).misruled
    under_way = Entry(0.5, "a", Kind.PUSHING, "x")
    assert not judge(under_way, Entry(1, "a", Kind.SIZE, detail="41 40")).misruled
    refused = Entry(0.6, "a", Kind.PUSH_REFUSED, "x")
    assert judge(under_way, refused, Entry(1, "a", Kind.SIZE, detail="41 40")).misruled


# -- stalls, files -----------------------------------------------------------------------------------------------------


def test_the_longest_stalls_are_of_the_time_under_load() -> None:
    outcome = judge(
        Entry(0, CONTROLLER, Kind.LOAD_BEGUN),
        *pushed("x", 1.0),
        delivered(1.5),
        *pushed("y", 4.0),
        Entry(5, CONTROLLER, Kind.LOAD_ENDED),
        *settled(6),
        delivered(20, id="y"),
        *settled(21, id="y"),
    )
    assert outcome.push_stall == pytest.approx(3.0)
    assert outcome.delivery_stall == pytest.approx(3.5)


def test_what_is_written_is_read_line_by_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    one, two = journal.recorder("one"), journal.recorder("two")
    one.note(Kind.DELIVERED, "x", (3, 7), "an owner", at=1.5)
    two.note(Kind.FAULT_BEGUN, detail="broken\nin two", at=2.0)
    assert journal.poll() == [
        Entry(1.5, "one", Kind.DELIVERED, "x", (3, 7), "an owner"),
        Entry(2.0, "two", Kind.FAULT_BEGUN, "", None, "broken in two"),
    ]
    with journal.file("one").open("ab") as file:
        file.write(b"2.5 pushed y - ")
        file.flush()
        assert journal.poll() == []
        file.write(b"\n")
    assert [entry.id for entry in journal.poll()] == ["y"]
    assert len(journal.entries) == 3
    one.close()
    two.close()
