"""The same call on several servers in parallel, each of which may answer, be silent, complain or break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from tests.unit.fake_redis import BROKEN, BUSY, COUNTED, LACKING, OK, SILENCE, Redis, ask, fleet_of
from zkrq.protocol.calls import Count
from zkrq.protocol.replies import Answer, Status, Verdict, denial
from zkrq.protocol.view import Life, ServerId, View
from zkrq.replication.fleet import Fleet
from zkrq.replication.stream import ErrorReply

pytestmark = pytest.mark.anyio

PATIENCE = 0.3  # seconds: command_timeout

Make = Callable[..., Fleet]


@pytest.fixture
def make() -> Make:
    def make(scheme: str = "redis", **servers: Redis) -> Fleet:
        return fleet_of(servers, command_timeout=PATIENCE, scheme=scheme)

    return make


async def connected(fleet: Fleet, *ids: str) -> None:
    await fleet.identify(map(ServerId, ids))


async def tell(fleet: Fleet, *ids: str) -> dict[str, tuple[Status, bool]]:
    """What each answered, and whether that answers a second try."""
    answers = await ask(fleet, *ids)
    return {id: (answer.status, answer.repeated) for id, answer in answers.items()}


async def test_all_answer(make: Make) -> None:
    a, b = Redis(), Redis()
    fleet = make(a=a, b=b)
    await connected(fleet, "a", "b")
    assert await tell(fleet, "a", "b") == {"a": (Status.OK, False), "b": (Status.OK, False)}
    assert a.asked == b.asked == [b"FCALL"]


async def test_calls_are_sent_before_anything_else_runs(make: Make) -> None:
    a, b = Redis(), Redis()
    fleet = make(a=a, b=b)
    await connected(fleet, "a", "b")
    first, second = (asyncio.create_task(tell(fleet, *ids)) for ids in ("ab", "ba"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert a.asked == b.asked == [b"FCALL"] * 2
    assert await first == await second


@pytest.mark.parametrize("first", [LACKING, BUSY], ids=["lacking", "BUSY"])
@pytest.mark.parametrize("known", [True, False], ids=["connected", "not connected"])
async def test_a_complaint_is_dealt_with_while_another_server_is_silent(
    make: Make, first: ErrorReply, known: bool
) -> None:
    """It has its whole time for that: the silent one is to blame for its own silence only."""
    a, b = Redis([first, OK]), Redis()
    fleet = make(a=a, b=b)
    await connected(fleet, "a", *("b" if known else ""))
    b.silent = True
    assert await tell(fleet, "a", "b") == {"a": (Status.OK, False), "b": (Status.TIMEOUT, False)}
    assert a.asked == [b"FCALL", *([b"FUNCTION"] if first == LACKING else []), b"FCALL"]


async def test_broken_connection_is_made_again_while_another_server_is_silent(make: Make) -> None:
    a, b = Redis([BROKEN, OK]), Redis()
    fleet = make(a=a, b=b)
    await connected(fleet, "a", "b")
    b.silent = True
    loop = asyncio.get_running_loop()
    before = loop.time()
    asking = asyncio.create_task(tell(fleet, "a", "b"))
    while len(a.asked) < 2:
        await asyncio.sleep(0)
    assert loop.time() < before + PATIENCE, "before the other one's time was over"
    assert await asking == {"a": (Status.OK, True), "b": (Status.TIMEOUT, False)}


async def test_silent_server_does_not_hold_up_the_next_rounds(make: Make) -> None:
    """It is left alone for a while, and no answer is taken for another one's."""
    a, b = Redis(), Redis()
    fleet = make(a=a, b=b)
    await connected(fleet, "a", "b")
    b.silent = True
    answers = await asyncio.gather(*(tell(fleet, "a", "b") for _ in range(5)))
    assert answers == [{"a": (Status.OK, False), "b": (Status.TIMEOUT, False)}] * 5
    b.silent = False
    assert (await tell(fleet, "a", "b"))["b"] == (Status.UNREACHABLE, False)


async def test_server_that_is_removed_meanwhile_is_gone(make: Make) -> None:
    a, b = Redis(), Redis([SILENCE])
    fleet = make(a=a, b=b)
    await connected(fleet, "a", "b")
    asking = asyncio.create_task(tell(fleet, "a", "b"))
    while not b.asked:
        await asyncio.sleep(0)
    fleet.servers.pop(ServerId("b")).drop()
    assert await asking == {"a": (Status.OK, False), "b": (Status.GONE, True)}
    assert await tell(fleet, "a", "b") == {"a": (Status.OK, False), "b": (Status.GONE, False)}


async def test_rounds_land_in_their_order(make: Make) -> None:
    """Also those that have to load the library first, which one of them does."""
    a, b = Redis([*[LACKING] * 4, OK]), Redis()
    fleet = make(a=a, b=b)
    await connected(fleet, "a", "b")
    landed: list[int] = []

    async def one(number: int) -> None:
        await tell(fleet, "a", "b")
        landed.append(number)

    await asyncio.gather(*map(one, range(8)))
    assert landed[:4] == sorted(landed[:4])
    assert sorted(landed) == list(range(8))
    assert a.asked == [b"FCALL"] * 8 + [b"FUNCTION"] + [b"FCALL"] * 4


async def test_cancelled_round_leaves_the_connection_in_step(make: Make) -> None:
    a = Redis([[b"OK", number] for number in range(3)])
    fleet = make(a=a)
    await connected(fleet, "a")
    asking = asyncio.create_task(ask(fleet, "a", call=COUNTED))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert (await ask(fleet, "a", call=COUNTED))["a"].body == (1,), "not what the cancelled one was answered"


@pytest.mark.parametrize("reply", [b"OK", [b"OK"], [b"OK", 1, 2], [b"OK", 1, 2, 3, 4, []], [b"STALE"], [[]], None])
async def test_reply_that_no_header_promises_is_reported(make: Make, reply: object) -> None:
    """It does not raise where the reply is read, and says nothing of what happened on that server."""
    fleet = make(a=Redis([reply]), b=Redis([[b"OK", 1, 2, 3, 4, 5]]))
    await connected(fleet, "a", "b")
    lives = {ServerId(id): Life("r1", "g1") for id in "ab"}
    answers = await fleet.ask(1, lives, Count("q"))
    a, b = answers.values()
    assert (a.status, a.may_have_happened, b.status) == (Status.BROKEN, True, Status.OK)
    assert repr(reply) in a.reason
    assert Count("q").read(b.body) == (1, 2, 3, 4, 5)


async def test_nothing_to_ask(make: Make) -> None:
    assert await ask(make(a=Redis())) == {}


async def test_answers_are_reported_with_the_lives_that_were_called(make: Make) -> None:
    fleet = make(a=Redis())
    reports: list[tuple[Mapping[ServerId, Life], Mapping[ServerId, Answer]]] = []
    fleet.report_to(lambda lives, answers: reports.append((lives, answers)))
    answers = await ask(fleet, "a")
    assert reports == [({"a": Life("r1", "g1")}, answers)]


def view_of(*ids: str, epoch: int = 1) -> View:
    lives = {ServerId(id): Life("r1", "g1") for id in ids}
    return View(epoch, lives, {}, {}, {ServerId(id): f"redis://{id}.public" for id in ids}, 1, "test")


async def test_the_fleet_follows_the_view(make: Make) -> None:
    fleet = make(a=Redis(), b=Redis())
    kept = fleet.servers[ServerId("a")]
    with_c = view_of("a", "c")
    fleet.know(ServerId("c"), "redis://:secret@c")
    fleet.follow(with_c, None)
    assert {id: server.url for id, server in fleet.servers.items()} == {"a": "redis://a", "c": "redis://c"}
    assert fleet.servers[ServerId("a")] is kept
    fleet.follow(view_of("a", epoch=2), with_c)
    fleet.follow(view_of("a", "c", epoch=3), view_of("a", epoch=2))
    assert fleet.servers[ServerId("c")].url == "redis://c.public", "the name that comes back is another server's"
    fleet.drop()


@pytest.mark.parametrize(
    "url", ["redis://b", "unix:///b.sock", "http://b", "rediss://b%3Fssl_cert_reqs=none", "", "\udcff"]
)
async def test_a_url_of_the_view_that_cannot_be_used_is_one_servers_own(make: Make, url: str) -> None:
    fleet = make("rediss", a=Redis())
    view = view_of("a", "b")
    fleet.follow(replace(view, servers={**view.servers, ServerId("b"): url}), None)
    answers = await ask(fleet, "a", "b")
    assert answers["a"].status is Status.OK
    assert answers["b"].verdict is Verdict.CORRECT
    assert denial("b", answers["b"]).endswith("give this client its own URL of that server, in redis")
    fleet.drop()
    fleet = make("rediss", a=Redis(), b=Redis())
    fleet.follow(replace(view, servers={**view.servers, ServerId("b"): url}), None)
    assert (await ask(fleet, "b"))["b"].status is Status.OK
    fleet.drop()


async def test_options_in_the_view_are_told_once_and_not_used(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    fleet = make("rediss", a=Redis())
    view = view_of("a", "b", "c")
    urls = {ServerId("b"): "rediss://b?ssl_cert_reqs=none&password=secret", ServerId("c"): "rediss://c:6380/0"}
    fleet.follow(replace(view, servers={**view.servers, **urls}), None)
    fleet.follow(replace(view, epoch=2, servers={**view.servers, **urls}), view)
    assert {id: server.url for id, server in fleet.servers.items() if id != "a"} == {
        "b": "rediss://b",
        "c": "rediss://c:6380/0",
    }
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.endswith("are used of server b's URL in the view: rediss://b?ssl_cert_reqs=none")
    assert "secret" not in told
    fleet.drop()


async def test_a_renamed_server_keeps_the_url_that_was_given(make: Make) -> None:
    """With the user and the password in it, which the view does not have."""
    fleet = make(a=Redis(), b=Redis())
    fleet.know(ServerId("b"), "redis://ann:secret@b")
    view = View(1, {}, {}, {}, {ServerId("a"): "redis://a", ServerId("bert"): "redis://b"}, 1, "x")
    fleet.follow(view, None)
    assert fleet.urls[ServerId("bert")] == "redis://ann:secret@b"


async def test_a_guest_is_asked_apart_from_the_fleet(make: Make) -> None:
    fleet = make(a=Redis())
    guest = fleet.guest(ServerId("c"), "redis://c")
    assert (await ask(guest, "c"))["c"].status is Status.OK
    assert (await ask(fleet, "c"))["c"].status is Status.GONE
    guest.drop()
    assert (await ask(guest, "c"))["c"].status is Status.GONE
