"""What keeps a client from writing: it is remembered, and asked for again before a call is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import zkrq
from tests.unit.fake_redis import LIFE, SILENCE, Redis, fleet_of
from tests.unit.views import view_of
from zkrq.base.events import Events
from zkrq.protocol.clocks import compare
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.view import Life, ServerId
from zkrq.replication import obstacles
from zkrq.replication.obstacles import KnownObstacles

pytestmark = pytest.mark.anyio

A, B = ServerId("a"), ServerId("b")
VIEW = replace(view_of("a", "b"), members={A: LIFE, B: LIFE})
DENIED, CROWDED = Answer(Status.DENIED, (), "WRONGPASS"), Answer(Status.CROWDED, (), "no room")


class Client:
    """What a client knows of two servers, and the servers."""

    def __init__(self) -> None:
        self.redis = Redis()
        self.events = list[Any]()
        self._fleet = fleet_of({"a": Redis(), "b": self.redis}, command_timeout=0.3)
        self._fleet.report_to(self._note)
        self.obstacles = KnownObstacles(self._fleet, namespace="n", events=Events(self.events.append))

    def _note(self, lives: Mapping[ServerId, Life], answers: Mapping[ServerId, Answer]) -> None:
        """As ``Attendance`` does."""
        for id, answer in answers.items():
            if answer.status is Status.OK:
                self.obstacles.kept_out.pop(id, None)
            else:
                self.obstacles.note_failure(id, answer)

    async def kept_out(self) -> dict[ServerId, Status]:
        """The servers that keep a write from being begun now."""
        found = await self.obstacles.find(VIEW)
        return {id: answer.status for id, answer in found.kept_out.items()}


@pytest.fixture
def client() -> Client:
    return Client()


async def test_what_is_contradicted_is_asked_before_a_call_is_refused(client: Client) -> None:
    client.obstacles.note_contradicted(B)
    assert client.obstacles.any
    assert await client.kept_out() == {}, "it answers"
    assert len(client.redis.asked) == 1
    assert not client.obstacles.any


async def test_what_is_contradicted_and_silent_stays_what_it_is(client: Client) -> None:
    client.redis.answers = [SILENCE]
    client.obstacles.note_contradicted(B)
    for _ in range(2):
        assert await client.kept_out() == {B: Status.SILENT}
    assert len(client.redis.asked) == 1, "the answer is trusted for a moment"
    assert [type(event) for event in client.events] == [zkrq.ServerUnusableHere]


async def test_an_answer_is_trusted_for_a_moment(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.obstacles.note_failure(B, DENIED)
    assert await client.kept_out() == {B: Status.DENIED}
    assert not client.redis.asked
    monkeypatch.setattr(obstacles, "KEPT_OUT_SECONDS", 0.0)
    assert await client.kept_out() == {}
    assert client.redis.asked


@pytest.mark.parametrize("answer", [DENIED, CROWDED], ids=lambda answer: answer.status.name)
async def test_it_is_told_once(client: Client, answer: Answer) -> None:
    for _ in range(3):
        client.obstacles.note_failure(B, answer)
    assert [event.server for event in client.events] == [B]


async def test_no_room_is_no_silence_even_if_others_are_connected(client: Client) -> None:
    client.obstacles.note_failure(B, CROWDED)
    client.obstacles.note_contradicted(B)
    assert [answer.reason for answer, _ in client.obstacles.kept_out.values()] == ["no room"]
    assert len(client.events) == 1
    assert await client.kept_out() == {}, "it was asked again"


@pytest.mark.parametrize("contradicted", [False, True])
async def test_silence_is_no_room(client: Client, contradicted: bool) -> None:
    """It was turned away a moment ago, and other clients may still be served."""
    client.redis.answers = [SILENCE]
    client.obstacles.note_failure(B, CROWDED)
    if contradicted:
        client.obstacles.note_contradicted(B)
    client.obstacles.note_failure(B, Answer(Status.UNREACHABLE, (), "reset"))
    assert await client.kept_out() == {B: Status.CROWDED}


async def test_a_server_that_left_the_view_is_no_obstacle(client: Client) -> None:
    client.obstacles.note_failure(B, DENIED)
    found = await client.obstacles.find(replace(VIEW, members={A: LIFE}))
    assert not found.kept_out


HOUR = 3600.0


async def test_a_clock_that_makes_a_server_refuse_pushes_is_an_obstacle_while_the_server_is_in_the_view(
    client: Client,
) -> None:
    client.obstacles.note_clocks(compare({A: 0.0, B: HOUR}))
    assert client.obstacles.any
    assert (await client.obstacles.find(VIEW)).askew.keys() == {B}
    assert not (await client.obstacles.find(replace(VIEW, members={A: LIFE}))).askew
    (text,) = client.obstacles.trouble
    assert text == "server b: its clock is 3600.0 s ahead of the others': set it right (chrony, NTP)"
    client.obstacles.note_clocks(compare({A: 0.0, B: HOUR + 1}))  # an hour later it is as wrong
    client.obstacles.note_clocks(compare({A: 0.0, B: 1.0}))
    assert not client.obstacles.any
    assert not client.obstacles.trouble
    assert client.events == [zkrq.ClocksApart("n", (text,)), zkrq.ClocksApart("n", ())]


async def test_a_clock_that_stops_no_push_is_a_warning(client: Client) -> None:
    client.obstacles.note_clocks(compare({A: -200.0, B: -200.0}))
    assert not client.obstacles.any
    assert not client.obstacles.trouble
    assert client.obstacles.warnings == (
        "this client's clock is 200.0 s ahead of the servers': set it right (chrony, NTP)",
    )
