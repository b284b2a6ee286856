"""``adopt``, ``admit`` and ``movable``, with ``cancel`` and ``claim``: items that come home from another shard."""

from __future__ import annotations

import pytest

from tests.lua.entries import WINDOW_MS, Put
from tests.lua.homing import admit, adopt, items_of
from tests.lua.one_server import OneServer
from zkrq.protocol import calls
from zkrq.protocol.records import Bundle, unpack

BUNDLE = "zkrq-1a-2b-3c@b"
LONG_MS = 60_000


@pytest.fixture
def home(follower: OneServer) -> OneServer:
    """The home, beside the server of the other shard."""
    return follower


def leave(there: OneServer, *ids: str) -> list[str]:
    """The states of these before they left; those that are queued do."""
    states, _ = there.ask(calls.Cancel(there.queue, "M", 0, "c0ffee", ids))
    assert there.contents().faults == []
    return [state.decode() for state in states]


def adopted(server: OneServer) -> list[str]:
    return [id.decode() for id in server.ask(calls.Movable(server.queue, 0)).adopted]


# -- payloads ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["alone", "of a bundle"])
def bare(request: pytest.FixtureRequest, server: OneServer, home: OneServer) -> str:
    """An item that is adopted at home, on a server that never got its payload, because the primary had failed."""
    there = server
    there.put("a" if request.param == "alone" else Put(BUNDLE, [b"0", b"1"]))
    items = items_of(there)
    adopt(home, items)
    bundle = "a" if request.param == "alone" else BUNDLE
    home.command("HDEL", home.key("payloads"), bundle)
    return items[-1].id


def test_an_adopted_item_gets_its_payload_from_the_next_try(server: OneServer, home: OneServer, bare: str) -> None:
    outcomes, _ = adopt(home, items_of(server))
    assert set(outcomes) == {"K"}
    assert bare in adopted(home)
    ids = [item.id for item in items_of(server)]
    leave(server, *ids)
    admit(home, *ids)
    assert home.claim(count=9).ids == ids


def test_an_adopted_item_without_its_payload_is_not_told(home: OneServer, bare: str) -> None:
    assert bare not in adopted(home)


# -- nothing is handed out beside what is at home ------------------------------------------------------------------


@pytest.mark.parametrize(("section", "settings"), [("limits", "concurrency=9"), ("groups", "ordered=1")])
def test_what_needs_a_home_is_not_handed_out_elsewhere(server: OneServer, section: str, settings: str) -> None:
    server.put("a")
    server.declare(settings, section)
    held = server.claim(elsewhere=True)
    assert (held.ids, held.next_ms) == ([], -1)
    assert server.claim().ids == ["a"], "at home it is"


@pytest.mark.parametrize(("section", "settings"), [("size", "max=9"), ("history", "keep=9"), ("limits", "")])
def test_other_settings_need_no_home(server: OneServer, section: str, settings: str) -> None:
    server.put("a")
    server.declare("concurrency=9")
    server.declare("", "limits")
    server.declare(settings, section)
    assert server.claim(elsewhere=True).ids == ["a"]


def test_a_repeated_request_is_given_what_it_was_given(server: OneServer) -> None:
    server.put("a")
    claimed = server.claim(seq=1, elsewhere=True)
    server.declare("concurrency=9")
    assert server.claim(seq=1, elsewhere=True).ids == claimed.ids == ["a"]
    assert server.settle(*claimed.settle("ack")).outcomes == [1]


# -- three steps ---------------------------------------------------------------------------------------------------


def test_an_item_is_handed_out_on_one_of_both(server: OneServer, home: OneServer) -> None:
    server.put(Put("a", b"payload"))
    items = items_of(server)
    assert adopt(home, items)[0] == ["+"]
    assert (home.claim().ids, adopted(home)) == ([], ["a"])
    assert admit(server, "a").keys() == {"a"}
    assert leave(server, "a") == ["Q"]
    assert (server.claim().ids, server.count()) == ([], (0, 0, 0, 0))
    admit(home, "a")
    assert adopted(home) == []
    assert home.claim().handed == {"a": b"payload"}


def test_each_step_may_be_repeated(server: OneServer, home: OneServer) -> None:
    server.put("a")
    items = items_of(server)
    assert [adopt(home, items)[0] for _ in range(2)] == [["+"], ["K"]]
    assert [leave(server, "a") for _ in range(2)] == [["Q"], ["M"]]
    admit(home, "a")
    admit(home, "a")
    assert adopt(home, items)[0] == ["K"]
    claimed = home.claim()
    admit(home, "a")
    admit(home, "a", has_come=False)
    assert home.settle(*claimed.settle("ack")).outcomes == [1]
    assert adopt(home, items)[0] == ["D"]
    assert home.count() == (0, 0, 0, 0)


def test_what_was_removed_there_is_forgotten_at_home(server: OneServer, home: OneServer) -> None:
    server.put("a")
    items = items_of(server)
    adopt(home, items)
    server.ask(calls.Cancel(server.queue, "", 0, "d0d0", ["a"]))
    assert leave(server, "a") == ["X"]
    admit(home, "a", has_come=False)
    assert (home.count(), home.results("a")[0]) == ((0, 0, 0, 0), [("U", "")])
    assert server.results("a")[0] == [("X", "")]
    assert adopt(home, items)[0] == ["+"], "who has read it before adopts it again, and it is forgotten again"


def test_only_what_is_queued_leaves(server: OneServer) -> None:
    server.put("claimed", "dead")
    claims = server.claim().decided
    server.settle(claims["dead"].settle("bury"))
    assert leave(server, "claimed", "dead", "unknown") == ["C", "D", ""]
    assert server.count() == (0, 0, 1, 1)


def test_a_late_adoption_is_refused(server: OneServer, home: OneServer) -> None:
    """Since the item was read it may have come, and ended, and been forgotten."""
    server.put("a")
    items = items_of(server)
    for ago_ms in (WINDOW_MS + 1000, -WINDOW_MS - 1000):
        assert adopt(home, items, ago_ms=ago_ms) == (["L"], {})
    assert home.contents().records == {}


def test_a_full_queue_adopts_no_more(server: OneServer, home: OneServer) -> None:
    server.put("a", "b", "c")
    home.declare("max=2", "size")
    assert adopt(home, items_of(server))[0] == ["+", "+", "F"]


# -- what comes along ----------------------------------------------------------------------------------------------


def of(server: OneServer, id: str) -> Bundle:
    return unpack(server.read(id)[id].packed)


def test_what_is_known_of_an_item_comes_along(server: OneServer, home: OneServer) -> None:
    server.put(Put("a", b"payload", priority=7, ttl_ms=LONG_MS, group="g", pushed_at_ms=server.now_ms() - 5))
    claimed = server.claim()
    server.settle(claimed.decided["a"].settle("nack", LONG_MS // 2, "why"))
    before = of(server, "a")
    adopt(home, items_of(server))
    assert adopted(home) == ["a"], "also what will have expired by then"
    admit(home, "a")
    after = of(home, "a")
    assert (after.states, after.attempts, after.own[0].failures) == ("R", before.attempts, 1)
    assert abs(after.own[0].moment_us - before.own[0].moment_us) < 1_000_000
    assert abs(after.expires_us - before.expires_us) < 1_000_000
    for field in ("priority", "group", "pushed_at_ms", "ttl_us", "is_alone"):
        assert getattr(after, field) == getattr(before, field)
    assert home.read("a")["a"].notes == server.read("a")["a"].notes
    assert home.read("a")["a"].payload == server.read("a")["a"].payload


def test_items_of_a_bundle_come_one_by_one(server: OneServer, home: OneServer) -> None:
    server.put(Put(BUNDLE, [b"0", b"1", b"2", b"3"]))
    claimed = server.claim(count=2)
    items = items_of(server)
    assert [item.id for item in items] == [calls.item_id(BUNDLE, at) for at in (2, 3)]
    adopt(home, items[1:])
    adopt(home, items)
    server.settle(claimed.decided[BUNDLE].settle("release", positions=[0, 1]))
    adopt(home, items_of(server))
    ids = [calls.item_id(BUNDLE, at) for at in range(4)]
    assert leave(server, *ids) == ["Q"] * 4
    admit(home, *ids)
    assert home.claim().handed == {id: str(at).encode() for at, id in enumerate(ids)}


def test_an_item_that_was_claimed_since_comes_as_it_is_now(server: OneServer, home: OneServer) -> None:
    server.put("a")
    adopt(home, items_of(server))
    claimed = server.claim()
    assert leave(server, "a") == ["C"]
    server.settle(claimed.decided["a"].settle("nack", 0))
    assert adopt(home, items_of(server))[0] == ["K"]
    leave(server, "a")
    admit(home, "a")
    assert (of(home, "a").attempts, of(home, "a").own[0].failures) == ((1,), 1)


def test_in_an_ordered_queue_it_has_the_place_of_its_producers_clock(server: OneServer, home: OneServer) -> None:
    home.declare("ordered=1", "groups")
    now_ms = home.now_ms()
    server.put(Put("2", group="g", pushed_at_ms=now_ms - 5), Put("1", group="g", pushed_at_ms=now_ms - 10))
    home.push(Put("3", group="g", ordered=True))
    adopt(home, items_of(server))
    admit(home, "1", "2")
    seen = list[str]()
    while (claimed := home.claim()).ids:
        seen += claimed.ids
        home.settle(*claimed.settle("ack"))
        assert home.contents().faults == []
    assert seen == ["1", "2", "3"]


# -- who looks for it ----------------------------------------------------------------------------------------------


def test_what_has_left_has_not_ended(server: OneServer) -> None:
    server.declare("keep=5", "history")
    server.put("a")
    leave(server, "a")
    assert server.results("a")[0] == [("M", "")]
    assert server.cancel("a")[0] == ["M"]
    assert server.push(Put("a"))[0] == ["K"]
    assert not server.ask(calls.History(server.queue, 0, 10)).items
    assert server.count() == (0, 0, 0, 0)


def test_a_follower_agrees(server: OneServer, home: OneServer, other: OneServer) -> None:
    """With the decisions of home, in either order."""
    server.put("a", Put(BUNDLE, [b"0", b"1"]))
    items = items_of(server)
    _, first = adopt(home, items)
    second = admit(home, *(item.id for item in items))
    payloads = {item.id.partition("~")[0] for item in items}
    assert payloads == first.keys()
    other.apply(*(each.apply() for each in second.values()))
    other.apply(*(each.apply() for each in first.values()))
    assert {id: of(other, id).states for id in first} == {id: of(home, id).states for id in first}
    assert other.contents().faults == []
