"""The view: founding, eviction and the choice of a primary, as plain functions."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zkrq.replication.view import (
    FOUNDING,
    Eviction,
    Life,
    ServerId,
    View,
    decode,
    encode,
    evict,
    found,
    plan,
    weigh_eviction,
)

ids = st.text(min_size=1, max_size=20).map(ServerId)
lives = st.builds(Life, st.text(max_size=40), st.text(max_size=16))
servers = st.dictionaries(ids, lives, min_size=1, max_size=7)


@st.composite
def views(draw: st.DrawFn) -> View:
    """Any view: each server a member, a learner, eligible, or outside."""
    everybody = draw(servers)
    places = {id: draw(st.sampled_from(["member", "learner", "eligible", "outside"])) for id in everybody}
    places[draw(st.sampled_from(sorted(everybody)))] = "member"
    by_place = {
        place: {id: life for id, life in everybody.items() if places[id] == place}
        for place in ("member", "learner", "eligible")
    }
    return View(
        epoch=draw(st.integers(1, 2**31)),
        members=by_place["member"],
        learners=by_place["learner"],
        eligible=by_place["eligible"],
        servers={id: f"redis://{number}" for number, id in enumerate(sorted(everybody))},
        min_replicas=draw(st.integers(1, len(everybody))),
        by=draw(st.text(max_size=16)),
    )


def view_of(*members: str, learners: str = "", eligible: str = "", min_replicas: int = 2, epoch: int = 5) -> View:
    def all_of(names: tuple[str, ...] | str) -> dict[ServerId, Life]:
        return {ServerId(name): Life(f"run-{name}", f"generation-{name}") for name in names}

    everybody = {ServerId(name): f"redis://{name}:6379" for name in "abcde"}
    return View(epoch, all_of(members), all_of(learners), all_of(eligible), everybody, min_replicas, "me")


def ids_of(names: str) -> set[ServerId]:
    return {ServerId(name) for name in names}


# -- as the register holds it --------------------------------------------------------------------------------------


@given(views())
def test_round_trip(view: View) -> None:
    assert decode(encode(view)) == view


def test_published_bytes_are_readable_for_ever() -> None:
    """Wire format: clients of different versions read the same register."""
    data = (
        b'{"epoch":7,"members":{"a":["run-a","generation-a"]},"learners":{},"eligible":{},'
        b'"servers":{"a":"redis://a:6379","b":"redis://b:6379","c":"redis://c:6379","d":"redis://d:6379",'
        b'"e":"redis://e:6379"},"min_replicas":2,"by":"me"}'
    )
    assert decode(data) == view_of("a", epoch=7)
    assert encode(view_of("a", epoch=7)) == data


@pytest.mark.parametrize(
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
    assert planned == View(FOUNDING, lives, {}, {}, urls, 2, "me")
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
    other = View(view.epoch + 1, dict.fromkeys(reordered, Life("", "")), {}, {}, (), 1, "")
    assert other.primary(queue) == primary == view.primary(queue)


@given(views(), st.lists(st.text(max_size=20), min_size=1), st.data())
def test_only_queues_of_the_member_that_left_move(view: View, queues: list[str], data: st.DataObject) -> None:
    assume(len(view.members) > 1)
    gone = data.draw(st.sampled_from(sorted(view.members)))
    after = evict(view, [gone], by="me")
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
    after = evict(view, failed, by="nonce")
    assert (after.epoch, after.by) == (view.epoch + 1, "nonce")
    assert after.members == {id: life for id, life in view.members.items() if id not in failed}
    assert after.learners == {id: life for id, life in view.learners.items() if id not in failed}
    assert (after.servers, after.min_replicas) == (view.servers, view.min_replicas)


@given(views())
def test_last_member_is_never_evicted(view: View) -> None:
    with pytest.raises(ValueError, match="last member"):
        evict(view, view.members, by="me")


def test_evicting_leaves_the_old_view_as_it_was() -> None:
    view = view_of("a", "b", "c", learners="d")
    evict(view, ids_of("ad"), by="other")
    assert view == view_of("a", "b", "c", learners="d")


@pytest.mark.parametrize(
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
    after = evict(before, ids_of(failed), by="me")
    assert set(after.eligible) == ids_of(eligible)
    assert all(life == Life(f"run-{id}", f"generation-{id}") for id, life in after.eligible.items())


@given(views(), st.data())
def test_nobody_is_eligible_while_pushes_complete(view: View, data: st.DataObject) -> None:
    failed = data.draw(st.sets(st.sampled_from(sorted(view.servers))))
    assume(view.members.keys() - failed)
    after = evict(view, failed, by="me")
    assert not (after.writable and after.eligible)
    assert not after.eligible.keys() & after.receivers.keys()


@pytest.mark.parametrize(
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
        assert evict(view, failed, by="me").writable
