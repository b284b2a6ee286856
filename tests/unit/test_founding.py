"""Joining and founding, step by step and without a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.by_hand import A, B, C, Hand, answer, info, life, view_of
from zkrq.base.settings import Settings
from zkrq.protocol.calls import Enrol
from zkrq.protocol.clocks import CLOCK_WARNING, PUT_WINDOW
from zkrq.protocol.founding import AHEAD_PAUSE, TRIES, Beginning, Founding, Location, planned_after
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.steps import (
    Ask,
    Failure,
    Identify,
    Invalid,
    Log,
    NoNamespace,
    Nonce,
    NothingDone,
    ReadRegister,
    Step,
    Wait,
    WriteRegister,
)
from zkrq.protocol.view import FOUNDING, Life, ServerId, View, found, plan

WHOLE = view_of(A, B, C)
UNREACHABLE, UNFIT, DENIED = answer(Status.UNREACHABLE), answer(Status.UNFIT), answer(Status.DENIED)


def joining(hand: Hand, *, found: bool = True, min_replicas: int | None = None) -> Beginning:
    """Join with the servers that ``hand`` has."""
    settings = Settings(found=found, min_replicas=min_replicas)
    locations = {id: Location(f"redis://{id}/0", f"redis://{id}") for id in hand.infos}
    return hand.run(Founding(settings, locations).join())


def new(**servers: ServerInfo | Answer) -> Hand:
    """New servers, of which some answer as they are told; no view."""
    return Hand(infos={id: servers.get(id, info(id)) for id in (A, B, C)})


def old(**servers: ServerInfo | Answer) -> Hand:
    """The servers of a namespace that exists."""
    known = {id: info(id, epoch=WHOLE.epoch, name=id) for id in (A, B, C)}
    return Hand(WHOLE, infos={id: servers.get(id, known[id]) for id in (A, B, C)})


# -- there is none ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("servers", "given", "needed"), [("abc", None, 2), ("a", None, 1), ("abc", 3, 3)])
def test_a_namespace_is_founded(servers: str, given: int | None, needed: int) -> None:
    hand = Hand(infos={id: info(id) for id in map(ServerId, servers)})
    view, version, identities = joining(hand, min_replicas=given)
    assert [step.view.epoch for step in hand.seen(WriteRegister)] == [FOUNDING, FOUNDING + 1]
    assert (view.epoch, view.min_replicas, version) == (FOUNDING + 1, needed, hand.version)
    assert view.members.keys() == identities.keys() == hand.infos.keys()
    assert view.servers == {id: f"redis://{id}" for id in hand.infos}
    assert [(id, call.deployment) for id, call in hand.asked if isinstance(call, Enrol)] == [
        (id, deployment) for deployment in ("", view.deployment) for id in hand.infos
    ]


def test_the_lives_of_the_plan_are_those_that_were_met() -> None:
    hand = new()
    members = joining(hand).view.members
    assert {id: known.run_id for id, known in members.items()} == {id: life(id).run_id for id in members}
    assert len({known.generation for known in members.values()}) == 3


def marked(*, by: str = "x") -> tuple[Hand, View]:
    """New servers that another client has given passing generations, and its plan."""
    hand = new(**{id: replace(info(id), generation=f"passing {id}") for id in (A, B, C)})
    lives = {id: Life(life(id).run_id, planned_after(f"passing {id}", by)) for id in hand.infos}
    return hand, plan(lives, {id: f"redis://{id}" for id in hand.infos}, min_replicas=2, by=by)


def test_a_plan_of_another_client_is_carried_out() -> None:
    hand, other = marked()
    hand.overtake = lambda: vars(hand).update(
        view=other, version=hand.version + 1, overtake=lambda: None
    )  # before this client's plan is written
    assert joining(hand).view.members == other.members


def test_a_plan_that_is_younger_than_what_the_servers_said_is_carried_out() -> None:
    hand, other = marked()
    marks, hand.infos = hand.infos, new().infos
    answers = hand.answer

    def plan_first(step: Step[Any]) -> object:
        if isinstance(step, ReadRegister) and hand.view is None:
            hand.view, hand.infos = other, marks
        return answers(step)

    hand.answer = plan_first
    assert joining(hand).view.members == other.members


def test_a_plan_that_is_executed_late_vouches_for_no_server_that_was_flushed_meanwhile() -> None:
    """Others have made it the view, and pushed.  The server that has lost its items looks like a new one."""
    hand = new()
    answers = hand.answer

    def stall(step: Step[Any]) -> object:
        if isinstance(step, Ask) and isinstance(step.call, Enrol) and step.call.deployment and B in step.lives:
            assert hand.view is not None
            hand.view, hand.version = found(hand.view, by="another"), hand.version + 1
            hand.infos[B] = info(B)
        return answers(step)

    hand.answer = stall
    assert joining(hand).view.by == "another"
    assert hand.infos[B] == info(B)


def use(hand: Hand, planned: View, **changed: ServerInfo | Answer) -> None:
    """Have others make a plan the view and use its servers, some of which change afterwards."""
    hand.view, hand.version = found(planned, by="another"), hand.version + 1
    hand.infos = {
        id: changed.get(id, replace(info(id, epoch=1, queues=1, name=id), generation=life.generation))
        for id, life in planned.members.items()
    }
    hand.answers = {
        id: answer(Status.HOLDSDATA) for id, who in hand.infos.items() if isinstance(who, ServerInfo) and who.queues
    }


def be_late(hand: Hand, planned: View, **changed: ServerInfo | Answer) -> None:
    """Have others use the plan after this client has read it, and before it meets the servers."""
    hand.view = planned
    answers = hand.answer

    def reply(step: Step[Any]) -> object:
        if isinstance(step, Identify) and hand.seen(ReadRegister) and hand.view is planned:
            use(hand, planned, **changed)
        return answers(step)

    hand.answer = reply


def test_a_plan_that_others_have_made_the_view_and_used_meanwhile_is_joined() -> None:
    """The servers hold items of that view, and not of one that ZooKeeper has lost."""
    hand, planned = marked()
    be_late(hand, planned)
    assert joining(hand).view.by == "another"


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(info(B, epoch=1, queues=1, name=B, ahead=PUT_WINDOW + 1), id="its clock is set"),
        pytest.param(UNFIT, id="unfit"),
        pytest.param(UNREACHABLE, id="dead"),
        pytest.param(info(B), id="flushed"),
        pytest.param(replace(info(B), maxmemory_policy="allkeys-lru"), id="drops items"),
    ],
)
def test_what_founding_would_refuse_keeps_no_client_out_where_others_have_founded(changed: ServerInfo | Answer) -> None:
    """Founding needs every server, and as new; the view that others have made meanwhile does not."""
    hand, planned = marked()
    be_late(hand, planned, b=changed)
    assert joining(hand).view.by == "another"
    assert not hand.seen(WriteRegister)


def test_a_client_that_is_late_gives_no_generation_to_a_server_that_was_flushed() -> None:
    """Nothing was pushed yet: the others are as they were founded, too."""
    hand, planned = marked()
    founded = {id: replace(info(id, epoch=1, name=id), generation=planned.members[id].generation) for id in (A, C)}
    be_late(hand, planned, b=info(B), **founded)
    assert joining(hand).view.by == "another"
    assert hand.infos[B] == info(B)
    assert not hand.seen(Nonce)


def test_a_server_that_another_client_has_just_given_a_generation_is_met_again() -> None:
    hand = new()
    answers = hand.answer

    def faster(step: Step[Any]) -> object:
        if isinstance(step, Ask) and isinstance(step.call, Enrol) and hand.infos[B] == info(B):
            hand.infos[B] = replace(info(B), generation="of another")
        return answers(step)

    hand.answer = faster
    view = joining(hand).view
    assert view.members[B].generation == planned_after("of another", view.deployment)
    assert len(hand.seen(WriteRegister)) == 2


def test_a_server_that_is_not_as_planned_needs_another_plan() -> None:
    hand, planned = marked()
    hand.view = planned
    hand.answers[B] = answer(Status.MISMATCH)
    with pytest.raises(NothingDone, match="its servers change, or others try as well"):
        joining(hand)
    assert len(hand.seen(WriteRegister)) == TRIES
    assert {step.view.epoch for step in hand.seen(WriteRegister)} == {FOUNDING}
    assert Log("server b was not enrolled: MISMATCH", B, warns=False) in hand.steps


FOREIGN = plan({id: life(id) for id in (A, B)}, {A: "", B: ""}, min_replicas=2, by="x")


@pytest.mark.parametrize(
    ("hand", "found", "failure", "text"),
    [
        pytest.param(lambda: new(), False, NoNamespace, "does not exist", id="not told to"),
        pytest.param(
            lambda: new(b=UNREACHABLE), True, NothingDone, "every server must answer; b: UNREACHABLE", id="one is dead"
        ),
        pytest.param(
            lambda: new(a=UNREACHABLE, b=UNREACHABLE, c=UNREACHABLE),
            True,
            NothingDone,
            "no Redis server can be reached: a: UNREACHABLE; b: UNREACHABLE; c: UNREACHABLE",
            id="all are dead",
        ),
        pytest.param(lambda: new(b=UNFIT), True, Invalid, "server b: UNFIT", id="unfit"),
        pytest.param(lambda: new(b=DENIED), True, Invalid, "server b does not let this client in", id="denied"),
        pytest.param(lambda: new(b=info(A)), True, Invalid, "a and b are the same Redis server", id="twins"),
        pytest.param(lambda: new(b=info(B, name="z")), True, Invalid, "holds the data of 'z'", id="another's name"),
        pytest.param(lambda: new(b=info(B, queues=1)), True, Invalid, "server b holds items", id="items"),
        pytest.param(lambda: new(b=info(B, epoch=2)), True, Invalid, "server b holds items", id="a later epoch"),
        pytest.param(
            lambda: new(b=info(B, ahead=PUT_WINDOW + 1)), True, Invalid, "set the clocks right", id="clocks far apart"
        ),
        pytest.param(
            lambda: replace(new(), view=FOREIGN), True, Invalid, "is being founded with the servers a, b", id="others"
        ),
        pytest.param(
            lambda: replace(new(b=UNREACHABLE), view=plan(WHOLE.members, WHOLE.servers, min_replicas=2, by="x")),
            False,
            NothingDone,
            "is being founded; retry",
            id="half founded",
        ),
    ],
)
def test_nothing_is_founded(hand: Callable[[], Hand], found: bool, failure: type[Failure], text: str) -> None:
    hands = hand()
    with pytest.raises(failure, match=text):
        joining(hands, found=found)
    assert not hands.seen(WriteRegister)


# -- there is one -----------------------------------------------------------------------------------------------------


def test_a_client_joins() -> None:
    hand = old()
    assert joining(hand, found=False) == (WHOLE, hand.version, hand.infos)
    assert not hand.seen(Log)


def test_a_server_may_be_missing() -> None:
    hand = old(b=UNREACHABLE)
    assert joining(hand).view is WHOLE
    assert hand.seen(Log) == [Log("server b cannot be used: UNREACHABLE", B)]


def test_clocks_that_differ_are_told() -> None:
    hand = old(b=info(B, epoch=WHOLE.epoch, ahead=CLOCK_WARNING + 1))
    joining(hand)
    assert [step.text for step in hand.seen(Log)] == [
        "the clock of server b is 6.0 s ahead of this client's: it is b that differs from the others"
    ]


def test_a_wrong_clock_keeps_no_client_out() -> None:
    """It may be that of one server; and operators have to be able to look."""
    hand = old(b=info(B, epoch=WHOLE.epoch, ahead=-PUT_WINDOW - 1))
    assert joining(hand).view is WHOLE
    assert [step.text for step in hand.seen(Log)] == [
        "the clock of server b is 301.0 s behind this client's: it is b that differs from the others"
    ]


def test_a_server_that_was_given_and_does_not_belong_is_told() -> None:
    hand = old()
    hand.infos[ServerId("d")] = info(ServerId("d"))
    joining(hand)
    assert [step.text for step in hand.seen(Log)] == [
        "server d does not belong to namespace 'zkrq' (a, b, c) and is not used: add_server() adds one"
    ]


def test_a_server_that_was_given_by_a_former_name_is_told() -> None:
    """It was renamed: under the view's name it is used, so it keeps no client out."""
    hand = old(b=UNREACHABLE)
    hand.infos[ServerId("former")] = info(B)
    joining(hand)
    assert hand.seen(Log)[-1].text == "server former is called b in namespace 'zkrq': name it so here, too"


def test_a_view_that_is_on_its_way_is_waited_for() -> None:
    hand = old(b=info(B, epoch=WHOLE.epoch + 1))
    with pytest.raises(Invalid, match="server b has seen a later epoch than ZooKeeper's view"):
        joining(hand)
    assert hand.seen(Wait) == [Wait(AHEAD_PAUSE)] * TRIES


@pytest.mark.parametrize(
    ("hand", "min_replicas", "text"),
    [
        pytest.param(lambda: old(), 3, "was founded with min_replicas=2, this client was given 3", id="min_replicas"),
        pytest.param(lambda: old(b=DENIED), None, "server b does not let this client in", id="denied"),
        pytest.param(
            lambda: old(b=replace(info(A), run_id=life(C).run_id), c=UNREACHABLE),
            None,
            "the server at redis://b/0 holds the data of 'c' in namespace 'zkrq', not of 'b'",
            id="another's data",
        ),
        pytest.param(
            lambda: Hand(WHOLE, infos={ServerId("d"): info(ServerId("d"))}),
            None,
            "consists of the servers a, b, c; this client was given d",
            id="other servers",
        ),
    ],
)
def test_a_client_that_does_not_belong_is_refused(
    hand: Callable[[], Hand], min_replicas: int | None, text: str
) -> None:
    with pytest.raises(Invalid, match=text):
        joining(hand(), min_replicas=min_replicas)


def test_a_generation_that_is_not_the_views_says_nothing_about_the_name() -> None:
    """One that was another's replica brings the other's name; it is judged by its life."""
    hand = old(b=replace(info(B, name="c"), generation=Life("", "old").generation))
    assert joining(hand).view is WHOLE
