"""The view: accusations, founding, eviction and the choice of a primary, as plain functions."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.every import every
from tests.unit.views import ids_of, view_of, views, with_accusation
from zkrq.protocol.levels import SPOKEN
from zkrq.protocol.view import (
    ACCUSATION_GRACE,
    ACCUSE_AGAIN,
    FOUNDING,
    WITNESS_GRACE,
    Eviction,
    Judgement,
    Life,
    ServerId,
    View,
    accuse,
    accused,
    admit,
    decode,
    encode,
    evict,
    found,
    judge_denial,
    judge_silence,
    plan,
    promote,
    recover,
    refute,
    remove,
    weigh_eviction,
)

# -- accusations ---------------------------------------------------------------------------------------------------

SHORT, WITNESSED, LONG, AGES = 0.0, WITNESS_GRACE, ACCUSATION_GRACE, ACCUSE_AGAIN


@every(
    ("by", "refuted", "kept_out", "seconds", "judgement"),
    [
        (None, False, False, SHORT, Judgement.ACCUSE),
        ("me", False, False, SHORT, Judgement.WAIT),
        ("me", False, False, WITNESSED, Judgement.WAIT),
        ("me", False, False, LONG, Judgement.EVICT),
        ("other", False, False, SHORT, Judgement.WAIT),
        ("other", False, False, WITNESSED, Judgement.EVICT),
        ("other", False, True, WITNESSED, Judgement.WAIT),
        ("other", False, True, LONG, Judgement.EVICT),
        ("me", True, False, SHORT, Judgement.CONTRADICTED),
        ("me", True, False, LONG, Judgement.CONTRADICTED),
        ("me", True, False, AGES, Judgement.ACCUSE),
        ("me", True, True, SHORT, Judgement.ACCUSE),
        ("other", True, False, SHORT, Judgement.ACCUSE),
    ],
)
def test_silence_is_judged(by: str | None, refuted: bool, kept_out: bool, seconds: float, judgement: Judgement) -> None:
    view = view_of("a", "b", "c")
    if by:
        view = with_accusation(view, "b", by, refuted=refuted, kept_out=kept_out)
    b = ServerId("b")
    assert judge_silence(view, b, "me", standing=False, seconds=seconds, answered=False) is judgement
    assert judge_silence(view, b, "me", standing=True, seconds=seconds, answered=False) is Judgement.EVICT
    once_more = Judgement.ACCUSE if judgement is Judgement.CONTRADICTED else judgement
    assert judge_silence(view, b, "me", standing=False, seconds=seconds, answered=True) is once_more


@every(
    ("by", "refuted", "kept_out", "seconds", "judgement"),
    [
        (None, False, True, SHORT, Judgement.ACCUSE),
        ("me", False, True, WITNESSED, Judgement.WAIT),
        ("other", False, True, WITNESSED, Judgement.WAIT),
        ("other", False, False, WITNESSED, Judgement.WAIT),
        ("me", False, True, LONG, Judgement.EVICT),
        ("other", False, True, LONG, Judgement.EVICT),
        ("me", True, True, LONG, Judgement.CONTRADICTED),
        ("other", True, True, LONG, Judgement.CONTRADICTED),
        ("other", True, True, AGES, Judgement.ACCUSE),
        ("other", True, False, SHORT, Judgement.ACCUSE),
    ],
)
def test_denial_is_judged(by: str | None, refuted: bool, kept_out: bool, seconds: float, judgement: Judgement) -> None:
    view = view_of("a", "b", "c")
    if by:
        view = with_accusation(view, "b", by, refuted=refuted, kept_out=kept_out)
    b = ServerId("b")
    assert judge_denial(view, b, standing=True, seconds=seconds) is judgement
    assert judge_denial(view, b, standing=False, seconds=seconds) is Judgement.CONTRADICTED


def test_accusing_is_no_new_epoch() -> None:
    view = view_of("a", "b", learners="c")
    accusing = accuse(view, ids_of("bc"), client="me")
    assert accused(accusing) == ids_of("bc")
    assert replace(accusing, accusations={}) == view
    assert accused(refute(accusing, ids_of("c"), client="other")) == ids_of("b")


def test_an_open_accusation_of_another_stays_and_a_refuted_one_gives_way() -> None:
    view = with_accusation(with_accusation(view_of("a", "b", "c"), "b", "first"), "c", "first", refuted=True)
    accusing = accuse(view, ids_of("bc"), client="me")
    assert {id: (each.by, each.refuted) for id, each in accusing.accusations.items()} == {
        "b": ("first", False),
        "c": ("me", False),
    }


def test_an_accuser_that_reaches_the_server_withdraws() -> None:
    view = accuse(view_of("a", "b"), ids_of("b"), client="me")
    assert not refute(view, ids_of("b"), client="me").accusations
    assert refute(view, ids_of("b"), client="other").accusations[ServerId("b")].refuted


def test_who_is_let_in_for_some_calls_only_does_not_accuse_at_each_of_the_others() -> None:
    view = accuse(view_of("a", "b"), ids_of("b"), client="me", kept_out=ids_of("b"))
    assert refute(view, ids_of("b"), client="me").accusations[ServerId("b")].refuted


def test_an_accusation_goes_with_the_life_that_it_is_about() -> None:
    view = accuse(view_of("a", "b", "c", learners="d"), ids_of("bd"), client="me")
    without = evict(view, ids_of("b"), by="me", now_ms=7)
    assert without.accusations.keys() == ids_of("d")
    again = admit(without, ServerId("b"), Life("run-b", "new"), by="me")
    assert again.accusations.keys() == ids_of("d")
    assert promote(again, ServerId("d"), view.learners[ServerId("d")], by="me").accusations.keys() == ids_of("d")
    assert not remove(view, ServerId("b"), by="me").accusations.keys() & ids_of("b")
    assert not recover(view, {ServerId("b"): Life("run-b", "next")}, by="me", now_ms=7).accusations


@given(views(), st.data())
def test_accusations_are_bounded_by_the_receivers(view: View, data: st.DataObject) -> None:
    servers = data.draw(st.sets(st.sampled_from(sorted(view.receivers))))
    kept_out = data.draw(st.sets(st.sampled_from(sorted(view.receivers))))
    accusing = accuse(view, servers, client="me", kept_out=kept_out)
    assert accusing.accusations.keys() == servers
    assert decode(encode(accusing)) == accusing


# -- as the register holds it --------------------------------------------------------------------------------------


@given(views())
def test_round_trip(view: View) -> None:
    assert decode(encode(view)) == view


def test_published_bytes_are_readable_as_long_as_the_format_is_the_same() -> None:
    """Wire format: clients of different versions read the same register."""
    data = (
        b'{"epoch":7,"members":{"a":["run-a","generation-a"]},"learners":{},"eligible":{},'
        b'"servers":{"a":"redis://a:6379","b":"redis://b:6379","c":"redis://c:6379","d":"redis://d:6379",'
        b'"e":"redis://e:6379"},"min_replicas":2,"nonce":"me"}'
    )
    assert decode(data) == view_of("a", epoch=7)
    founded = data[:-1] + b',"deployment":"d","level":1}'
    view = replace(view_of("a", epoch=7), deployment="d")
    assert (decode(founded), encode(view)) == (view, founded)


@every(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b'"view"',
        b"[" * 100_000,
        encode(view_of("a"))[:-1],
        encode(view_of("a")).replace(b'"members"', b'"people"'),
        encode(view_of("a")).replace(b'"epoch":5', b'"epoch":Infinity'),
        encode(view_of("a")).replace(b'"epoch":5', b'"epoch":null'),
        encode(view_of("a")).replace(b'["run-a","generation-a"]', b'["run-a"]'),
        encode(view_of("a")).replace(b'"learners":{}', b'"learners":[]'),
        encode(view_of("a")).replace(b'"learners":{}', b'"learners":null'),
        encode(view_of("a")).replace(b'"nonce":"me"', b'"nonce":"me","accusations":{"a":["me"]}'),
    ],
)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no view of zkrq"):
        decode(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no view of zkrq"):
        decode(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(views(), st.sampled_from(["epoch", "members", "learners", "eligible", "servers", "min_replicas"]), json_values)
def test_a_wrong_field_raises_nothing_but_value_error(view: View, name: str, value: Any) -> None:
    content = json.loads(encode(view))
    content[name] = value
    try:
        decode(json.dumps(content).encode())
    except ValueError as error:
        assert "no view of zkrq" in str(error)  # noqa: PT017 - some values are as good as the right one


def test_planned_view_has_every_server_as_member() -> None:
    """Founding: the plan is written down before the first server is enrolled."""
    lives = {ServerId("b"): Life("r2", "g2"), ServerId("a"): Life("r1", "g1")}
    urls = {ServerId("b"): "redis://b", ServerId("a"): "redis://a"}
    planned = plan(lives, urls, min_replicas=2, by="me")
    assert planned == View(FOUNDING, lives, {}, {}, urls, 2, "me", "me", level=SPOKEN.highest)
    assert list(planned.servers) == ["a", "b"]


def test_founded_view_is_the_plan_in_the_first_epoch() -> None:
    planned = plan({ServerId("a"): Life("r1", "g1")}, {ServerId("a"): "redis://a"}, min_replicas=1, by="me")
    founded = found(planned, by="other")
    assert (founded.epoch, founded.by) == (1, "other")
    assert (founded.members, founded.servers, founded.min_replicas) == (planned.members, planned.servers, 1)


def test_receivers_are_members_and_learners() -> None:
    assert set(view_of("a", "b", learners="c", eligible="d").receivers) == ids_of("abc")


@pytest.mark.parametrize(("members", "writable"), [("a", False), ("ab", True), ("abc", True)])
def test_writable_from_min_replicas_members_on(members: str, writable: bool) -> None:
    """Learners do not count: they do not have everything yet."""
    assert view_of(*members, learners="de").writable is writable


# -- the primary ---------------------------------------------------------------------------------------------------


@given(views(), st.text(max_size=20))
def test_primary_is_a_member_and_depends_on_nothing_else(view: View, queue: str) -> None:
    """Every client chooses the same: neither epoch, nor lives, nor order, nor learners matter."""
    primary = view.primary(queue)
    assert primary in view.members
    reordered = dict(sorted(view.members.items(), reverse=True))
    other = View(view.epoch + 1, dict.fromkeys(reordered, Life("", "")), {}, {}, {}, 1, "")
    assert other.primary(queue) == primary == view.primary(queue)


@given(views(), st.lists(st.text(max_size=20), min_size=1), st.data())
def test_only_queues_of_the_member_that_left_move(view: View, queues: list[str], data: st.DataObject) -> None:
    assume(len(view.members) > 1)
    gone = data.draw(st.sampled_from(sorted(view.members)))
    after = evict(view, [gone], by="me", now_ms=7)
    for queue in queues:
        if view.primary(queue) != gone:
            assert after.primary(queue) == view.primary(queue)


PRIMARIES = {"emails": "b", "orders": "b", "reports": "a", "images": "b", "thumbnails": "c", "größe": "b"}
"""Of members a, b and c."""


def test_published_primaries_stay() -> None:
    """Wire format: clients of different versions must choose alike."""
    view = view_of("a", "b", "c")
    assert {queue: view.primary(queue) for queue in PRIMARIES} == PRIMARIES


def test_queues_are_spread_over_the_members() -> None:
    view = view_of("a", "b", "c")
    share = Counter(view.primary(f"queue-{n}") for n in range(3_000))
    assert all(800 < queues < 1_200 for queues in share.values()), share


def test_many_queues_are_not_remembered_for_ever() -> None:
    view = view_of("a", "b", "c")
    first = [view.primary(f"queue-{n}") for n in range(10)]
    for n in range(25_000):
        view.primary(f"other-{n}")
    assert [view.primary(f"queue-{n}") for n in range(10)] == first


# -- eviction ------------------------------------------------------------------------------------------------------


@given(views(), st.data())
def test_evicted_view_is_the_next_one_without_the_failed(view: View, data: st.DataObject) -> None:
    failed = data.draw(st.sets(st.sampled_from(sorted(view.servers))))
    assume(view.members.keys() - failed)
    after = evict(view, failed, by="nonce", now_ms=7)
    assert (after.epoch, after.by) == (view.epoch + 1, "nonce")
    assert after.members == {id: life for id, life in view.members.items() if id not in failed}
    assert after.learners == {id: life for id, life in view.learners.items() if id not in failed}
    assert (after.servers, after.min_replicas) == (view.servers, view.min_replicas)


@given(views())
def test_last_member_is_never_evicted(view: View) -> None:
    with pytest.raises(ValueError, match="last member"):
        evict(view, view.members, by="me", now_ms=7)


def test_a_view_says_since_when_servers_are_out() -> None:
    """Also to a client that connects later, until they are in sync again; whatever else is changed meanwhile."""
    a, b, c = map(ServerId, "abc")
    view = evict(view_of("a", "b", "c"), [c], by="me", now_ms=7)
    assert decode(encode(view)).left_ms == {c: 7}
    view = evict(admit(view, c, Life("again", "new"), by="me"), [b, c], by="me", now_ms=9)
    assert view.left_ms == {b: 9, c: 7}, "a learner that fails was out already"
    assert recover(view, {b: Life("b", "new")}, by="me", now_ms=11).left_ms == {a: 11, c: 7}
    assert remove(view, c, by="me").left_ms == {b: 9}
    view = promote(admit(view, b, Life("b", "new"), by="me"), b, Life("b", "new"), by="me")
    assert view.left_ms == {c: 7}


def test_evicting_leaves_the_old_view_as_it_was() -> None:
    view = view_of("a", "b", "c", learners="d")
    evict(view, ids_of("ad"), by="other", now_ms=7)
    assert view == view_of("a", "b", "c", learners="d")


@every(
    ("before", "failed", "eligible"),
    [
        (view_of("a", "b", "c"), "c", ""),  # pushes go on: c misses some from now on
        (view_of("a", "b"), "b", "b"),  # no push completes without b: it misses none
        (view_of("a", "b", "c"), "bc", "bc"),  # both failed at once
        (view_of("a", "b", "c", learners="d"), "bcd", "bc"),  # a learner has not everything
        (view_of("a", eligible="b", learners="c"), "c", "b"),  # still no push completes
        (view_of("a", "b", eligible="c", min_replicas=3), "b", "bc"),  # further down: they stay
        (view_of("a", "b", "c", eligible="d"), "c", ""),  # pushes complete again: d misses some
    ],
)
def test_eligible_is_who_still_holds_every_pushed_item(before: View, failed: str, eligible: str) -> None:
    after = evict(before, ids_of(failed), by="me", now_ms=7)
    assert set(after.eligible) == ids_of(eligible)
    assert all(life == Life(f"run-{id}", f"generation-{id}") for id, life in after.eligible.items())


@given(views(), st.data())
def test_nobody_is_eligible_while_pushes_complete(view: View, data: st.DataObject) -> None:
    failed = data.draw(st.sets(st.sampled_from(sorted(view.servers))))
    assume(view.members.keys() - failed)
    after = evict(view, failed, by="me", now_ms=7)
    assert not (after.writable and after.eligible)
    assert not after.eligible.keys() & after.receivers.keys()


@every(
    ("view", "failed", "weight"),
    [
        (view_of("a", "b", "c"), "", Eviction.HARMLESS),
        (view_of("a", "b", "c"), "c", Eviction.HARMLESS),
        (view_of("a", "b", "c"), "bc", Eviction.HALTING),
        (view_of("a", "b", "c"), "abc", Eviction.IMPOSSIBLE),
        (view_of("a", "b"), "b", Eviction.HALTING),
        (view_of("a", "b", min_replicas=1), "b", Eviction.HARMLESS),
        (view_of("a", min_replicas=1), "a", Eviction.IMPOSSIBLE),
        (view_of("a", "b", "c", min_replicas=3), "c", Eviction.HALTING),
        (view_of("a", "b", min_replicas=3), "b", Eviction.HALTING),  # further down still waits
        (view_of("a", "b", learners="c"), "c", Eviction.HARMLESS),
        (view_of("a", learners="c"), "c", Eviction.HARMLESS),  # nothing completes before or after
        (view_of("a", learners="c"), "ac", Eviction.IMPOSSIBLE),  # a learner cannot stay alone
        (view_of("a", "b", "c"), "de", Eviction.HARMLESS),  # not in the view
    ],
)
def test_weight_of_an_eviction(view: View, failed: str, weight: Eviction) -> None:
    assert weigh_eviction(view, ids_of(failed)) is weight


@given(views(), st.data())
def test_what_is_not_impossible_can_be_done(view: View, data: st.DataObject) -> None:
    failed = data.draw(st.sets(st.sampled_from(sorted(view.servers))))
    weight = weigh_eviction(view, failed)
    assert (weight is Eviction.IMPOSSIBLE) == (not view.members.keys() - failed)
    if weight is Eviction.HARMLESS and view.writable:
        assert evict(view, failed, by="me", now_ms=7).writable
