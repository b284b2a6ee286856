"""The view: founding, eviction, the ways back and the choice of a primary, as plain functions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.every import every
from zkrq.protocol.view import (
    ACCUSATION_GRACE,
    ACCUSE_AGAIN,
    FOUNDING,
    WITNESS_GRACE,
    Accusation,
    Eviction,
    Judgement,
    Life,
    ServerId,
    View,
    accuse,
    accused,
    admit,
    decode,
    dismiss,
    encode,
    evict,
    extend,
    found,
    judge_denial,
    judge_silence,
    plan,
    promote,
    recover,
    refute,
    remove,
    restored,
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


def with_accusation(view: View, server: str, by: str, *, refuted: bool = False, kept_out: bool = False) -> View:
    accusation = Accusation(by, view.receivers[ServerId(server)].generation, refuted, kept_out)
    return replace(view, accusations={**view.accusations, ServerId(server): accusation})


def ids_of(names: str) -> set[ServerId]:
    return {ServerId(name) for name in names}


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
    without = evict(view, ids_of("b"), by="me")
    assert without.accusations.keys() == ids_of("d")
    again = admit(without, ServerId("b"), Life("run-b", "new"), by="me")
    assert again.accusations.keys() == ids_of("d")
    assert promote(again, ServerId("d"), view.learners[ServerId("d")], by="me").accusations.keys() == ids_of("d")
    assert not remove(view, ServerId("b"), by="me").accusations.keys() & ids_of("b")
    assert not recover(view, {ServerId("b"): Life("run-b", "next")}, by="me").accusations


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
        b'{"format":2,"epoch":7,"members":{"a":["run-a","generation-a"]},"learners":{},"eligible":{},'
        b'"servers":{"a":"redis://a:6379","b":"redis://b:6379","c":"redis://c:6379","d":"redis://d:6379",'
        b'"e":"redis://e:6379"},"min_replicas":2,"nonce":"me"}'
    )
    assert decode(data) == view_of("a", epoch=7)
    founded = data[:-1] + b',"deployment":"d"}'
    view = replace(view_of("a", epoch=7), deployment="d")
    assert (decode(founded), encode(view)) == (view, founded)


def test_a_namespace_of_the_first_format_is_not_misread() -> None:
    """As its register was; and that of a later version."""
    first = (
        b'{"epoch":7,"members":{"a":["run-a","generation-a"]},"learners":{},"eligible":{},'
        b'"servers":{"a":"redis://a:6379"},"min_replicas":1,"by":"me","deployment":"d"}'
    )
    with pytest.raises(ValueError, match="stored in format 1, this version of zkrq reads 2: let the version"):
        decode(first)
    with pytest.raises(ValueError, match="stored in format 3, this version"):
        decode(encode(view_of("a")).replace(b'"format":2', b'"format":3'))


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
    assert planned == View(FOUNDING, lives, {}, {}, urls, 2, "me", "me")
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
        assert evict(view, failed, by="me").writable


# -- coming back ---------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """A change of the view: the view that was given to a function, what it was like, and what came out."""

    given: View
    before: View
    after: View


def outside(view: View) -> list[ServerId]:
    """The servers that no write goes to."""
    return sorted(view.servers.keys() - view.receivers.keys())


def removable(view: View) -> list[ServerId]:
    """The servers that the namespace can do without."""
    if len(view.servers) <= view.min_replicas:
        return []
    spare = len(view.members) > max(1, view.min_replicas)
    return [id for id in sorted(view.servers) if id not in view.members or spare]


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """Any view, changed in any way that it can be."""
    view, life = draw(views()), draw(lives)
    before, kept = deepcopy(view), draw(st.sampled_from(sorted(view.members)))
    possible: dict[str, Callable[[], View]] = {
        "evict": lambda: evict(view, draw(st.sets(st.sampled_from(sorted(view.servers)))) - {kept}, by="nonce"),
        "recover": lambda: recover(view, {kept: life}, by="nonce"),
        "extend": lambda: extend(view, draw(ids), "redis://new", by="nonce"),
    }
    if outside(view):
        possible["admit"] = lambda: admit(view, draw(st.sampled_from(outside(view))), life, by="nonce")
    if view.learners:
        learner = draw(st.sampled_from(sorted(view.learners)))
        possible["promote"] = lambda: promote(view, learner, view.learners[learner], by="nonce")
    if removable(view):
        possible["remove"] = lambda: remove(view, draw(st.sampled_from(removable(view))), by="nonce")
    return Change(view, before, possible[draw(st.sampled_from(sorted(possible)))]())


@given(changes())
def test_every_change_is_one_epoch_later(change: Change) -> None:
    """Rule 7: the epoch only grows; the nonce tells whose the view is."""
    assert (change.after.epoch, change.after.by) == (change.before.epoch + 1, "nonce")
    assert change.after.min_replicas == change.before.min_replicas


@given(changes())
def test_every_change_leaves_the_old_view_as_it_was(change: Change) -> None:
    assert change.given == change.before
    assert change.given.receivers == change.before.receivers
    assert encode(change.given) == encode(change.before)


@given(changes())
def test_every_change_can_be_written_down(change: Change) -> None:
    assert decode(encode(change.after)) == change.after
    assert change.after.members


@given(changes())
def test_receivers_follow_every_change(change: Change) -> None:
    assert change.after.receivers == {**change.after.members, **change.after.learners}


@given(views(), lives, st.data())
def test_admitted_server_is_a_learner_and_nothing_else_changes(view: View, life: Life, data: st.DataObject) -> None:
    """Catch-up (3): from here on every write goes to it too; what it held is wiped, so it is no longer eligible."""
    assume(outside(view))
    server = data.draw(st.sampled_from(outside(view)))
    after = admit(view, server, life, by="me")
    eligible = {id: life for id, life in view.eligible.items() if id != server}
    learners = {**view.learners, server: life}
    assert after == replace(view, epoch=view.epoch + 1, learners=learners, eligible=eligible, by="me")


@pytest.mark.parametrize("server", ["a", "c"])
def test_server_of_the_view_is_not_admitted(server: str) -> None:
    """Neither a member nor a learner, in whatever life: it has to fall out first."""
    view = view_of("a", "b", learners="c")
    with pytest.raises(ValueError, match="in the view already"):
        admit(view, ServerId(server), Life("another-run", "another-generation"), by="me")


def test_eligible_server_that_is_admitted_is_no_longer_eligible() -> None:
    after = admit(view_of("a", eligible="bc"), ServerId("b"), Life("run-b", "new"), by="me")
    assert set(after.learners) == ids_of("b")
    assert set(after.eligible) == ids_of("c")


@given(views(), st.data())
def test_promoted_learner_is_a_member_in_the_same_life(view: View, data: st.DataObject) -> None:
    """Catch-up (5)."""
    assume(view.learners)
    server = data.draw(st.sampled_from(sorted(view.learners)))
    after = promote(view, server, view.learners[server], by="me")
    assert after.members == {**view.members, server: view.learners[server]}
    assert after.learners == {id: life for id, life in view.learners.items() if id != server}
    assert after.receivers == view.receivers
    assert after.servers == view.servers


@every(
    ("server", "life"),
    [
        ("c", Life("run-c", "another")),
        ("c", Life("another", "generation-c")),
        ("a", Life("run-a", "generation-a")),  # a member already
        ("d", Life("run-d", "generation-d")),  # eligible
        ("e", Life("run-e", "generation-e")),  # outside
    ],
)
def test_only_a_learner_in_the_very_same_life_is_promoted(server: str, life: Life) -> None:
    """Catch-up (5): it names the same generation; what was copied into another life says nothing about this one."""
    with pytest.raises(ValueError, match="not a learner in this life"):
        promote(view_of("a", "b", learners="c", eligible="d"), ServerId(server), life, by="me")


@pytest.mark.parametrize(
    "before",
    [
        view_of("a", learners="b", eligible="cd"),  # pushes complete again: but b has not been asked since
        view_of("a", learners="be", eligible="cd", min_replicas=3),  # still none completes
        view_of("a", "c", learners="b", eligible="d", min_replicas=3),
        view_of("a", "c", learners="b"),
    ],
)
def test_eligible_stays_so_beyond_a_promotion(before: View) -> None:
    after = promote(before, ServerId("b"), Life("run-b", "generation-b"), by="me")
    assert after.eligible == before.eligible


def test_nobody_is_eligible_once_enough_members_have_answered() -> None:
    """It changes nothing about who is in sync: no epoch."""
    view = view_of("a", "b", learners="e", eligible="cd")
    assert dismiss(view) == replace(view, eligible={})
    with pytest.raises(ValueError, match="fewer than min_replicas"):
        dismiss(replace(view, min_replicas=3))


@given(views(), servers)
def test_recovered_view_has_the_merged_servers_as_members(view: View, merged: dict[ServerId, Life]) -> None:
    """Recovery: new generations; nobody else holds what counts."""
    after = recover(view, merged, by="me")
    assert after == replace(view, epoch=view.epoch + 1, members=merged, learners={}, eligible={}, by="me")


def test_nothing_is_recovered_from_nobody() -> None:
    with pytest.raises(ValueError, match="without members"):
        recover(view_of("a"), {}, by="me")


@given(lives, st.text(max_size=40))
def test_restored_generation_is_the_same_for_every_repairer(life: Life, other_run: str) -> None:
    """Recovery: whoever carries on another's makes the same; the process may have been restarted in between."""
    assert restored(life) == restored(Life(other_run, life.generation))


@given(st.sets(st.text(max_size=16), min_size=2, max_size=20))
def test_restored_generation_is_new_for_every_generation(known: set[str]) -> None:
    after = {restored(Life("run", generation)) for generation in known}
    assert len(after) == len(known)
    assert not after & known


def test_an_eligible_server_that_kept_everything_stays_eligible_until_it_is_a_member() -> None:
    """It may hold what no other does, should the last member fail meanwhile."""
    view = view_of("a", eligible="bc")
    life = Life("run-b", restored(view.eligible[ServerId("b")]))
    learning = admit(view, ServerId("b"), life, by="me")
    assert learning.eligible == {**view.eligible, ServerId("b"): life}
    assert evict(learning, [ServerId("b")], by="me").eligible == learning.eligible
    assert promote(learning, ServerId("b"), life, by="me").eligible.keys() == {"c"}


def test_published_restored_generation_stays() -> None:
    """Wire format: a client of another version may carry on a recovery."""
    assert restored(Life("run", "0123456789abcdef")) == "923ee422e53ad8e7"


# -- which servers there are ---------------------------------------------------------------------------------------


@given(views(), ids, st.text(max_size=20))
def test_extending_adds_a_server_outside(view: View, server: ServerId, url: str) -> None:
    assume(server not in view.servers)
    after = extend(view, server, url, by="me")
    assert after == replace(view, epoch=view.epoch + 1, servers={**view.servers, server: url}, by="me")
    assert list(after.servers) == sorted(after.servers)
    assert server in outside(after)


@given(views(), st.data())
def test_removing_takes_a_server_from_everywhere_and_changes_nothing_else(view: View, data: st.DataObject) -> None:
    assume(removable(view))
    server = data.draw(st.sampled_from(removable(view)))
    after = remove(view, server, by="me")

    def others(of: Mapping[ServerId, Any]) -> dict[ServerId, Any]:
        return {id: value for id, value in of.items() if id != server}

    assert after == View(
        view.epoch + 1,
        others(view.members),
        others(view.learners),
        others(view.eligible),
        others(view.servers),
        view.min_replicas,
        "me",
    )


@given(views(), st.data())
def test_whoever_is_needed_is_not_removed(view: View, data: st.DataObject) -> None:
    needed = sorted(view.servers.keys() - set(removable(view)))
    assume(needed)
    with pytest.raises(ValueError, match="min_replicas is"):
        remove(view, data.draw(st.sampled_from(needed)), by="me")


FIVE = view_of("a", "b", "c")
"""With d and e outside."""


@every(
    ("view", "server", "refused"),
    [
        (FIVE, "c", ""),
        (FIVE, "e", ""),
        (view_of("a", "b"), "b", "it is in sync, and only 1 other"),
        (view_of("a", "b"), "c", ""),  # outside: nobody misses it
        (view_of("a"), "b", ""),  # though too few are in sync already
        (view_of("a", learners="b", eligible="c"), "b", ""),
        (view_of("a", learners="b", eligible="c"), "c", ""),
        (view_of("a"), "a", "it is in sync, and only 0 other"),
        (view_of("a", min_replicas=1), "a", "it is in sync, and only 0 other"),
        (view_of("a", min_replicas=0), "a", "it is in sync, and only 0 other"),  # the last member stays in any case
        (view_of("a", "b", "c", "d", "e", min_replicas=5), "e", "4 server\\(s\\) would be left"),
        (view_of("a", "b", min_replicas=5), "e", "4 server\\(s\\) would be left"),
    ],
)
def test_enough_servers_stay(view: View, server: str, refused: str) -> None:
    """As many as a push needs, and as many in sync, as far as this server has a part in it."""
    if refused:
        with pytest.raises(ValueError, match=refused):
            remove(view, ServerId(server), by="me")
    else:
        assert server not in remove(view, ServerId(server), by="me").servers
