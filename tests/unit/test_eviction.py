"""Eviction, accusation and refutation, step by step and without a server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.by_hand import A, B, C, Hand, answer, info, life, view_of
from zkrq.protocol.clocks import compare
from zkrq.protocol.eviction import EVICTION_GRACE, REFUTE_SPREAD, REFUTE_TRIES, Evicting
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.steps import Ask, Change, Denied, Evict, Evicted, Jitter, NoteClocks, NothingDone, Swap
from zkrq.protocol.view import (
    ACCUSATION_GRACE,
    ACCUSE_AGAIN,
    WITNESS_GRACE,
    Accusation,
    ServerId,
    View,
    accuse,
    admit,
    evict,
    refute,
)
from zkrq.protocol.witness import EVICTED_LATELY, Witness

ME, OTHER = "me", "other"
PATIENCE = 15.0
TIMEOUT, GONE, DENIED = answer(Status.TIMEOUT), answer(Status.GONE), answer(Status.DENIED)
CROWDED = answer(Status.CROWDED)
WHOLE = view_of(A, B, C)


def client(view: View = WHOLE, *, met: str = "abc", now: float = 0.0) -> Evicting:
    """A client that the servers named in ``met`` have answered."""
    witness = Witness(ME)
    for id in map(ServerId, met):
        witness.meet(id, life(id))
    witness.follow(view, now)
    return Evicting(witness, patience=PATIENCE)


def failing(**answers: Answer) -> dict[ServerId, Answer]:
    return {ServerId(id): told for id, told in answers.items()}


# -- clocks ----------------------------------------------------------------------------------------------------------

HOUR = 3600.0
SUSPECTED = answer(Status.ASKEW)


def clocks(view: View, *, answers: dict[ServerId, Answer] | None = None, **ahead: float) -> Hand:
    """Servers; ``ahead``: seconds by which the clocks of some are ahead."""
    infos: dict[ServerId, ServerInfo | Answer] = {id: info(id, ahead=ahead.get(id, 0.0)) for id in view.receivers}
    return Hand(view, infos=infos, answers=answers or {})


def test_a_server_whose_clock_is_wrong_is_evicted() -> None:
    hand = clocks(WHOLE, c=HOUR)
    view = hand.run(client().evict(WHOLE, failing(c=SUSPECTED), {A, B}))
    assert (view.members.keys(), view.epoch) == ({A, B}, WHOLE.epoch + 1)
    (evicted,) = hand.seen(Evicted)
    assert evicted.failed[C].reason == "its clock is 3600.0 s ahead of the others': set it right (chrony, NTP)"
    assert not hand.seen(NoteClocks)


def test_the_clocks_are_read_anew_before_a_server_is_evicted() -> None:
    """The one that is suspected is as right as the others, and another one is wrong."""
    hand = clocks(WHOLE, b=-HOUR)
    assert hand.run(client().evict(WHOLE, failing(c=SUSPECTED), {A, B})).members.keys() == {A, C}
    hand = clocks(WHOLE)
    assert hand.run(client().evict(WHOLE, failing(c=SUSPECTED), {A, B})) is WHOLE
    assert hand.seen(NoteClocks) == [NoteClocks(compare({A: 0.0, B: 0.0, C: 0.0}))]


def test_a_client_whose_own_clock_is_wrong_evicts_no_server() -> None:
    hand = clocks(WHOLE, a=HOUR, b=HOUR, c=HOUR)
    hand.run(client().inspect())
    assert not hand.seen(Evict)
    assert [step.compared.client for step in hand.seen(NoteClocks)] == [-HOUR]


def test_a_server_whose_clock_is_wrong_stays_while_pushes_need_it() -> None:
    view = view_of(A, B)
    hand = clocks(view, b=HOUR)
    assert hand.run(client(view).evict(view, failing(b=SUSPECTED), {A})) is view
    assert [set(step.compared.wrong) for step in hand.seen(NoteClocks)] == [{B}]
    hand.run(client(view).inspect())
    assert not hand.seen(Evict)


def test_one_that_died_leaves_and_one_whose_clock_is_wrong_stays() -> None:
    """Both would leave too few."""
    hand = clocks(WHOLE, answers={B: GONE}, c=HOUR)
    assert hand.run(client().evict(WHOLE, failing(c=SUSPECTED), {A})).members.keys() == {A, C}


def test_an_idle_client_evicts_a_server_whose_clock_is_wrong() -> None:
    hand = clocks(WHOLE, a=-HOUR)
    hand.run(client().inspect())
    assert [(step.failed.keys(), step.answered) for step in hand.seen(Evict)] == [({A}, set())]


# -- who stays has answered -------------------------------------------------------------------------------------------


def test_a_silent_server_is_evicted() -> None:
    hand = Hand(WHOLE)
    view = hand.run(client().evict(WHOLE, failing(c=TIMEOUT), {A, B}))
    assert view is hand.view
    assert (view.members.keys(), view.epoch) == ({A, B}, WHOLE.epoch + 1)
    assert hand.seen(Evicted) == [Evicted(failing(c=TIMEOUT), view.epoch)]
    assert not hand.asked


def test_a_view_that_is_newer_already_is_returned() -> None:
    newer = evict(WHOLE, [C], by=OTHER, now_ms=7)
    hand = Hand(newer)
    assert hand.run(client().evict(WHOLE, failing(c=TIMEOUT), {A, B})) is newer
    assert len(hand.steps) == 1


def test_members_that_were_not_asked_are_asked() -> None:
    hand = Hand(WHOLE, answers={B: answer(Status.STALE)})
    view = hand.run(client().evict(WHOLE, failing(a=TIMEOUT), set()))
    assert [id for id, _ in hand.asked] == [B, C]
    assert view.members.keys() == {B, C}, "one that knows a later epoch is alive"


def test_servers_that_died_together_go_together() -> None:
    view = view_of(A, B, C, min_replicas=1)
    hand = Hand(view, answers={B: GONE})
    assert hand.run(client(view).evict(view, failing(a=TIMEOUT), set())).members.keys() == {C}
    assert hand.seen(Evicted)[0].failed == failing(a=TIMEOUT, b=GONE)


def test_a_client_that_is_not_let_in_judges_no_server() -> None:
    hand = Hand(WHOLE, answers={B: answer(Status.DENIED)})
    with pytest.raises(Denied, match="server b does not let this client in"):
        hand.run(client().evict(WHOLE, failing(a=TIMEOUT), set()))
    assert hand.view is WHOLE


def test_a_client_with_trouble_of_its_own_waits() -> None:
    view = view_of(A, B, C, min_replicas=1)
    hand = Hand(view, answers={B: answer(Status.HINDERED)})
    assert hand.run(client(view).evict(view, failing(a=TIMEOUT), set())) is view


def test_the_last_member_stays() -> None:
    hand, evicting = Hand(WHOLE, answers=failing(a=TIMEOUT, b=TIMEOUT, c=TIMEOUT)), client()
    assert hand.run(evicting.evict(WHOLE, failing(a=TIMEOUT), set())) is WHOLE
    assert evicting.witness.unusable == dict.fromkeys((A, B, C), TIMEOUT.reason)
    evicting.witness.heard(B, life(B))
    assert not evicting.witness.unusable


def test_a_learner_is_evicted_like_a_member() -> None:
    view = view_of(A, B, learners={C: life(C)})
    hand = Hand(view)
    changed = hand.run(client(view).evict(view, failing(c=TIMEOUT), {A, B}))
    assert not changed.learners
    assert changed.members == view.members


# -- below min_replicas -----------------------------------------------------------------------------------------------


def test_below_min_replicas_after_a_grace() -> None:
    view = view_of(A, B)
    hand, evicting = Hand(view), client(view)

    def after(seconds: float) -> View:
        hand.now += seconds
        return hand.run(evicting.evict(view, failing(b=TIMEOUT), {A}))

    assert after(0.0) is view
    assert after(EVICTION_GRACE - 0.1) is view
    assert after(0.2).eligible == {B: life(B)}


def test_the_grace_begins_anew_when_the_server_answers() -> None:
    view = view_of(A, B)
    hand, evicting = Hand(view), client(view)
    hand.run(evicting.evict(view, failing(b=TIMEOUT), {A}))
    assert evicting.witness.in_doubt
    evicting.witness.heard(B, life(B))
    assert not evicting.witness.in_doubt
    hand.now += EVICTION_GRACE
    assert hand.run(evicting.evict(view, failing(b=TIMEOUT), {A})) is view


# -- standing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.GONE, Status.NOTINSYNC, Status.UNFIT], ids=lambda status: status.name)
def test_what_a_server_says_itself_needs_no_standing(status: Status) -> None:
    hand = Hand(WHOLE)
    assert C not in hand.run(client(met="").evict(WHOLE, failing(c=answer(status)), {A, B})).members


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.UNREACHABLE, Status.CROWDED], ids=lambda status: status.name)
def test_without_standing_a_client_accuses(status: Status) -> None:
    hand = Hand(WHOLE)
    view = hand.run(client(met="ab").evict(WHOLE, failing(c=answer(status)), {A, B}))
    assert view.accusations == {C: Accusation(ME, life(C).generation)}
    assert (view.epoch, view.members) == (WHOLE.epoch, WHOLE.members)
    assert not hand.seen(Evicted)


@pytest.mark.parametrize("accuser", [ME, OTHER])
def test_an_accusation_that_stands_becomes_an_eviction(accuser: str) -> None:
    view = accuse(WHOLE, [C], client=accuser)
    grace = ACCUSATION_GRACE if accuser == ME else WITNESS_GRACE
    hand, evicting = Hand(view, now=grace - 0.1), client(view, met="ab")
    assert hand.run(evicting.evict(view, failing(c=TIMEOUT), {A, B})) is view
    hand.now = grace
    assert C not in hand.run(evicting.evict(view, failing(c=TIMEOUT), {A, B})).members


def contradicted() -> tuple[View, Evicting]:
    """A client that was contradicted about a server that fails it since second 0."""
    accusing = accuse(WHOLE, [C], client=ME)
    evicting = client(accusing, met="ab")
    evicting.witness.note_failed([C], 0.0)
    view = refute(accusing, [C], client=OTHER)
    evicting.witness.follow(view, 0.0)
    return view, evicting


def test_a_client_that_is_contradicted_retries_for_as_long_as_a_call_may_take_and_accuses_again_later() -> None:
    view, evicting = contradicted()
    hand = Hand(view, now=PATIENCE - 1)
    assert hand.run(evicting.evict(view, failing(c=TIMEOUT), {A, B})) is view, "nobody is evicted, and no call fails"
    hand.now = PATIENCE
    with pytest.raises(NothingDone, match="c: it does not answer this client, but it does answer others"):
        hand.run(evicting.evict(view, failing(c=TIMEOUT), {A, B}))
    hand.now = ACCUSE_AGAIN
    accused = hand.run(evicting.evict(view, failing(c=TIMEOUT), {A, B}))
    assert accused.accusations == {C: Accusation(ME, life(C).generation)}


def test_an_answer_makes_a_refutation_old_news() -> None:
    """The server hangs again, a second later: it is retried, and others may be asked again."""
    view, evicting = contradicted()
    evicting.witness.heard(C, life(C))
    evicting.witness.note_evicted({C: life(C)}, 0.0)  # which is why it asks
    hand = Hand(view, now=PATIENCE + 1)
    accused = hand.run(evicting.evict(view, failing(c=TIMEOUT), {A, B}))
    assert accused.accusations == {C: Accusation(ME, life(C).generation)}


# -- servers that let this client not in ------------------------------------------------------------------------------


def test_a_server_that_lets_in_nobody_is_evicted_after_the_grace() -> None:
    hand, evicting = Hand(WHOLE), client()
    view = hand.run(evicting.evict(WHOLE, failing(c=DENIED), {A, B}))
    assert view.accusations == {C: Accusation(ME, life(C).generation, kept_out=True)}, "standing is no licence"
    evicting.witness.follow(view, hand.now)
    hand.now += ACCUSATION_GRACE - 0.1
    assert hand.run(evicting.evict(view, failing(c=DENIED), {A, B})) is view
    hand.now += 0.2
    assert hand.run(evicting.evict(view, failing(c=DENIED), {A, B})).members.keys() == {A, B}
    again = life(C)._replace(generation="another")
    witness = evicting.witness
    witness.follow(admit(hand.run(evicting.evict(WHOLE, {}, {A, B})), C, again, by=OTHER), hand.now)
    assert not witness.has_standing(C, hand.now), "it was not let in by this life"
    witness.heard(C, again)
    assert witness.has_standing(C, hand.now), "it lets nobody in once more: it may be accused again"


def test_a_client_that_was_never_let_in_judges_no_server() -> None:
    hand = Hand(WHOLE)
    with pytest.raises(Denied, match="server c does not let this client in"):
        hand.run(client(met="ab").evict(WHOLE, failing(c=DENIED), {A, B}))
    assert hand.view is WHOLE


@pytest.mark.parametrize("accuser", [ME, OTHER])
def test_where_others_are_let_in_the_trouble_is_this_clients_own(accuser: str) -> None:
    view = refute(accuse(WHOLE, [C], client=accuser, kept_out=[C]), [C], client="a third")
    hand = Hand(view, now=1.0)
    with pytest.raises(Denied, match="server c does not let this client in"):
        hand.run(client(view).evict(view, failing(c=DENIED), {A, B}))
    assert hand.view is view


def test_servers_that_let_nobody_in_are_not_evicted_below_min_replicas() -> None:
    hand = Hand(WHOLE, answers={B: DENIED})
    with pytest.raises(Denied, match=r"server [bc] does not let this client in"):
        hand.run(client().evict(WHOLE, failing(c=DENIED), {A}))
    assert hand.view is WHOLE


def test_a_server_without_room_is_evicted_unless_it_serves_another_client() -> None:
    hand, evicting = Hand(WHOLE), client()
    view = hand.run(evicting.evict(WHOLE, failing(c=CROWDED), {A, B}))
    assert view.accusations == {C: Accusation(ME, life(C).generation)}, "standing is no licence"
    evicting.witness.follow(view, hand.now)
    hand.now += ACCUSATION_GRACE - 0.1
    assert hand.run(evicting.evict(view, failing(c=CROWDED), {A, B})) is view
    hand.now += 0.2
    assert hand.run(evicting.evict(view, failing(c=CROWDED), {A, B})).members.keys() == {A, B}


def test_calls_wait_for_a_server_without_room_that_serves_others() -> None:
    hand, evicting = Hand(WHOLE), client()
    view = hand.run(evicting.evict(WHOLE, failing(c=CROWDED), {A, B}))
    evicting.witness.follow(refute(view, [C], client=OTHER), hand.now)
    hand.view = view = refute(view, [C], client=OTHER)
    for _ in range(3):
        assert hand.run(evicting.evict(view, failing(c=CROWDED), {A, B})) is view, "its calls are retried"
        hand.now += PATIENCE


def test_all_who_are_turned_away_are_no_witnesses_for_each_other() -> None:
    """A full server turns every one of them away.  A client that is served refutes for all of them."""
    view = accuse(WHOLE, [C], client=OTHER)
    hand = Hand(view)
    evicting = client(view, now=hand.now)
    hand.now += WITNESS_GRACE + 0.1
    assert hand.run(evicting.evict(view, failing(c=CROWDED), {A, B})) is view
    hand.view = refuted = refute(view, [C], client="a third")
    evicting.witness.follow(refuted, hand.now)
    hand.now += ACCUSE_AGAIN - 0.1
    assert hand.run(evicting.evict(refuted, failing(c=CROWDED), {A, B})) is refuted, "nobody is accused in turns"
    hand.now += 0.2
    assert hand.run(evicting.evict(refuted, failing(c=CROWDED), {A, B})).accusations[C].by == ME


def test_servers_without_room_are_not_evicted_below_min_replicas() -> None:
    hand, evicting = Hand(WHOLE, answers={B: CROWDED}), client()
    view = hand.run(evicting.evict(WHOLE, failing(c=CROWDED), {A}))
    evicting.witness.follow(view, hand.now)
    hand.now += 2 * EVICTION_GRACE
    assert hand.run(evicting.evict(view, failing(c=CROWDED), {A})).members.keys() == {A, B, C}


def test_an_accusation_of_denial_is_refuted_over_a_new_connection() -> None:
    """The one that is there may be from before the password was changed."""
    view = accuse(WHOLE, [C], client=OTHER, kept_out=[C])
    hand = Hand(view)
    hand.run(client(view).attend())
    assert [step.anew for step in hand.seen(Ask)] == [True]
    assert hand.view is not None
    assert hand.view.accusations[C].refuted


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.UNREACHABLE, Status.CROWDED], ids=lambda status: status.name)
def test_a_new_connection_that_is_slow_to_be_made_evicts_nobody(status: Status) -> None:
    """Many clients connect at the same time; silence is found out over the connections that are there."""
    view = accuse(WHOLE, [C], client=OTHER, kept_out=[C])
    hand = Hand(view, answers={C: answer(status)})
    hand.run(client(view).attend())
    assert not hand.seen(Evict)
    assert hand.view is view


def test_who_is_kept_out_as_well_bears_witness() -> None:
    view = accuse(WHOLE, [C], client=OTHER, kept_out=[C])
    hand = Hand(view, answers={C: DENIED})
    hand.run(client(view).attend())
    assert hand.seen(Evict) == [Evict(view, {C: DENIED}, set())]
    assert hand.view is view


def test_what_keeps_clients_out_is_not_to_be_refuted_by_the_connections_that_are_there() -> None:
    witness = client(accuse(WHOLE, [C], client=OTHER, kept_out=[C])).witness
    assert not witness.heard(C, life(C))


# -- evictions that cost standing -------------------------------------------------------------------------------------


def test_an_eviction_for_silence_costs_standing_against_the_process() -> None:
    evicting = client()
    without = Hand(WHOLE).run(evicting.evict(WHOLE, failing(c=TIMEOUT), {A, B}))
    again = life(C)._replace(generation="another")
    view = admit(without, C, again, by=OTHER)
    witness = evicting.witness
    witness.follow(view, 1000.0)
    witness.heard(C, again)
    assert not witness.has_standing(C, 1000.0 + EVICTED_LATELY - 1)
    assert witness.has_standing(C, 1000.0 + EVICTED_LATELY)
    restarted = admit(without, C, life(C, 2), by=OTHER)
    witness.follow(replace(restarted, epoch=view.epoch + 1), 1000.0)
    assert not witness.has_standing(C, 1000.0), "it is not met in this life"
    witness.heard(C, life(C, 2))
    assert witness.has_standing(C, 1000.0)


def test_a_lost_compare_and_set_evicts_nobody() -> None:
    won = evict(WHOLE, [A], by=OTHER, now_ms=7)
    hand, evicting = Hand(WHOLE), client()
    hand.overtake = lambda: vars(hand).update(view=won, version=hand.version + 1)
    assert hand.run(evicting.evict(WHOLE, failing(c=TIMEOUT), {A, B})) is won
    assert not hand.seen(Evicted)
    assert evicting.witness.has_standing(C, hand.now)


# -- accusations of others --------------------------------------------------------------------------------------------


def test_every_client_asks_a_server_in_its_new_life() -> None:
    hand = Hand(WHOLE)
    hand.run(client(met="ac").attend())
    assert [id for id, _ in hand.asked] == [B]


def test_a_client_without_doubts_asks_nobody() -> None:
    hand = Hand(WHOLE)
    hand.run(client().attend())
    assert not hand.asked


def test_an_accusation_is_refuted_by_a_client_that_the_server_answers() -> None:
    view = accuse(WHOLE, [B, C], client=OTHER)
    hand = Hand(view, answers={C: TIMEOUT})
    hand.run(client(view).attend())
    assert hand.seen(Jitter) == [Jitter(REFUTE_SPREAD)]
    assert hand.view is not None
    assert {id: accusation.refuted for id, accusation in hand.view.accusations.items()} == {B: True, C: False}


def test_an_accuser_withdraws_when_the_server_answers() -> None:
    view = accuse(WHOLE, [C], client=ME)
    hand = Hand(view)
    hand.run(client(view, met="ab").attend())
    assert hand.view is not None
    assert not hand.view.accusations


def test_another_life_is_not_refuted() -> None:
    view = accuse(WHOLE, [C], client=OTHER)
    later = accuse(admit(evict(view, [C], by=OTHER, now_ms=7), C, life(C, 2), by=OTHER), [C], client=OTHER)
    hand = Hand(later)
    hand.run(client(later).refute(view, {C}))
    assert not hand.seen(Change)


def test_a_refutation_that_always_loses_is_given_up() -> None:
    view = accuse(WHOLE, [C], client=OTHER)
    hand = Hand(view)
    hand.overtake = lambda: vars(hand).update(view=view, version=hand.version + 1)
    hand.run(client(view).refute(view, {C}))
    assert len(hand.seen(Change)) == REFUTE_TRIES


def test_a_server_that_says_itself_that_it_is_out_of_sync_is_evicted() -> None:
    hand = Hand(WHOLE, answers={B: GONE})
    hand.run(client(met="").attend())
    assert hand.seen(Evict) == [Evict(WHOLE, {B: GONE}, {A, C})]
    assert not hand.seen(Swap)


# -- the witness ------------------------------------------------------------------------------------------------------


def test_what_a_view_asks_of_a_client() -> None:
    witness = client().witness
    assert witness.follow(evict(WHOLE, [C], by=OTHER, now_ms=7), 1.0) == (False, [])
    admitted = admit(evict(WHOLE, [C], by=OTHER, now_ms=7), C, life(C, 2), by=OTHER)
    assert witness.follow(admitted, 2.0) == (True, []), "a new life is to be met"
    assert witness.follow(admitted, 2.0) == (False, []), "once"
    mine = accuse(admitted, [C], client=ME)
    assert witness.follow(mine, 3.0) == (False, [])
    witness.note_failed([C], 3.0)
    refuted = refute(mine, [C], client=OTHER)
    assert witness.follow(refuted, 4.0) == (False, [C])
    assert witness.follow(refuted, 5.0) == (False, []), "a contradiction is reported once"
    assert witness.contradicted == {C}
    assert witness.follow(accuse(admitted, [B], client=OTHER), 6.0) == (True, []), "others accuse a server"
    assert not witness.contradicted, "no accusation is left that could be contradicted"


def test_an_answer_ends_a_contradiction() -> None:
    _, evicting = contradicted()
    witness = evicting.witness
    assert witness.contradicted == {C}
    assert not witness.heard(C, life(C)), "it is refuted already"
    assert not witness.contradicted


def test_a_refutation_of_what_is_over_contradicts_nobody() -> None:
    """The server hung for a moment, and answered this client before any other had answered the accusation."""
    mine = accuse(WHOLE, [C], client=ME)
    witness = client(mine, met="ab").witness
    witness.note_failed([C], 1.0)
    witness.heard(C, life(C))
    assert witness.follow(refute(mine, [C], client=OTHER), 2.0) == (False, [])
    assert not witness.contradicted


def test_an_answer_of_an_accused_server_is_to_be_told() -> None:
    witness = client(accuse(WHOLE, [C], client=OTHER)).witness
    assert witness.in_doubt
    assert witness.heard(C, life(C))
    assert not witness.heard(B, life(B))


def test_only_in_doubt_an_answer_tells_anything_new() -> None:
    assert not client().witness.in_doubt
    witness = client(met="ab").witness
    assert witness.in_doubt
    witness.heard(C, life(C))
    assert not witness.in_doubt
