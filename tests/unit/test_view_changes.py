"""How a view changes: servers come back, recover, are added and removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.every import every
from tests.unit.views import ids, ids_of, lives, servers, view_of, views
from zkrq.protocol.view import (
    Life,
    ServerId,
    View,
    admit,
    decode,
    dismiss,
    encode,
    evict,
    extend,
    promote,
    recover,
    remove,
    rename,
    restored,
)

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
        "evict": lambda: evict(
            view, draw(st.sets(st.sampled_from(sorted(view.servers)))) - {kept}, by="nonce", now_ms=7
        ),
        "recover": lambda: recover(view, {kept: life}, by="nonce", now_ms=7),
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
    after = recover(view, merged, by="me", now_ms=7)
    out = view.servers.keys() - merged.keys()
    left_ms = {id: 7 if id in view.members else view.left_ms[id] for id in out & {*view.members, *view.left_ms}}
    assert after == replace(
        view, epoch=view.epoch + 1, members=merged, learners={}, eligible={}, left_ms=left_ms, by="me"
    )


def test_nothing_is_recovered_from_nobody() -> None:
    with pytest.raises(ValueError, match="without members"):
        recover(view_of("a"), {}, by="me", now_ms=7)


@given(lives, st.text(max_size=40))
def test_restored_generation_is_the_same_for_every_repairer(life: Life, other_run: str) -> None:
    """A client that continues the recovery of another one makes the same, even if servers have been restarted."""
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
    assert evict(learning, [ServerId("b")], by="me", now_ms=7).eligible == learning.eligible
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
        level=view.level,
        raised_by=view.raised_by,
        left_ms={id: moment for id, moment in view.left_ms.items() if id != server},
        unknown=view.unknown,
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


@given(views(), st.data())
def test_a_renamed_server_stays_what_it_is(view: View, data: st.DataObject) -> None:
    old, new = data.draw(st.sampled_from(sorted(view.servers))), ServerId("*a name of its own*")
    renamed = rename(view, old, new, by="me")
    back = rename(renamed, new, old, by=view.by)
    assert old not in {*renamed.servers, *renamed.receivers, *renamed.eligible, *renamed.left_ms}
    assert renamed.epoch == view.epoch + 1, "another server may be a queue's primary"
    assert replace(back, epoch=view.epoch, servers=view.servers) == view
    assert back.servers == view.servers


def test_no_two_servers_get_one_name() -> None:
    with pytest.raises(ValueError, match="there is a server b"):
        rename(FIVE, ServerId("a"), ServerId("b"), by="me")
