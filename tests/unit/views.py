"""Views for tests: any that may occur, and some by name."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from zkrq.protocol.levels import FIRST_LEVEL, SPOKEN
from zkrq.protocol.view import (
    Accusation,
    Life,
    ServerId,
    View,
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
        level=(level := draw(st.integers(*SPOKEN))),
        raised_by="" if level == FIRST_LEVEL else draw(st.text(max_size=8)),
        left_ms=draw(st.dictionaries(st.sampled_from(sorted(everybody)), st.integers(0, 2**41), max_size=3)),
        unknown=draw(st.dictionaries(st.text(max_size=4).map("later-{}".format), st.integers(), max_size=2)),
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
