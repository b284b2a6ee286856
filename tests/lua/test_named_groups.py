"""Limits of named groups on one server, in place of those of each group."""

from __future__ import annotations

import pytest

from tests.lua.grouped import push, put_group, repaired
from tests.lua.one_server import OneServer
from zkrq.base.limits import NAMED_GROUPS_MAX, Groups, Limits
from zkrq.protocol import calls

HOUR = 3_600_000


def declare(server: OneServer, groups: Groups) -> None:
    server.declare(groups.settings, "groups")


def put_all(server: OneServer, *groups: str) -> None:
    for group in groups:
        put_group(server, group, *(f"{group}-{n}" for n in range(4)))


def claimed_of(server: OneServer, count: int = 99) -> list[str]:
    return sorted(server.claim(count=count).ids)


def test_one_group_has_a_limit_and_the_others_none(server: OneServer) -> None:
    declare(server, Groups(named={"digest": Limits(concurrency=2)}))
    put_all(server, "digest", "welcome")
    claimed = server.claim(count=99)
    assert sorted(claimed.ids) == ["digest-0", "digest-1", *(f"welcome-{n}" for n in range(4))]
    assert server.statistics().blocked == 1
    assert claimed_of(server) == []
    server.settle(*claimed.settle("ack"))
    assert claimed_of(server) == ["digest-2", "digest-3"]
    assert server.contents().faults == []
    assert repaired(server) == 0


def test_a_named_group_may_have_more_than_the_others_or_no_limit(server: OneServer) -> None:
    declare(server, Groups(1, named={"more": Limits(concurrency=3), "any": Limits()}))
    put_all(server, "more", "any", "usual", "mor")
    wanted = [*(f"any-{n}" for n in range(4)), "mor-0", "more-0", "more-1", "more-2", "usual-0"]
    assert claimed_of(server) == sorted(wanted)
    assert server.contents().faults == []


@pytest.mark.parametrize("name", ["a/b;c,d=e f", "ä€", "%41", "named=x/1//", "a:b", ".*[^%w]", "\x01\n"])
def test_a_name_may_be_any_text(server: OneServer, name: str) -> None:
    declare(server, Groups(named={name: Limits(concurrency=1), "z": Limits(rate=(9, 1))}))
    put_all(server, name, "A")
    assert sorted(server.claim(count=99).ids) == sorted([f"{name}-0", *(f"A-{n}" for n in range(4))])
    assert server.contents().faults == []


def test_a_named_group_has_a_rate_of_its_own(server: OneServer) -> None:
    """The others have a shorter one."""
    declare(server, Groups(rate=(3, 60), named={"a": Limits(rate=(1, 3600)), "b": Limits(concurrency=2)}))
    put_all(server, "a", "b", "c")
    claimed = server.claim(count=99)
    assert sorted(claimed.ids) == ["a-0", "b-0", "b-1", "c-0", "c-1", "c-2"]
    server.settle(*claimed.settle("ack"))
    rest = server.claim(count=99)
    assert sorted(rest.ids) == ["b-2", "b-3"]
    server.settle(*rest.settle("ack"))
    stopped = server.claim(count=99)
    assert (stopped.ids, server.statistics().blocked) == ([], 2)
    assert 0 < stopped.next_ms <= 66_000, "the one that may go on first"
    assert server.contents().faults == []


def test_a_rate_of_one_group_alone_reaches_a_server_that_joins(server: OneServer) -> None:
    declare(server, Groups(named={"a": Limits(rate=(1, 3600))}))
    put_all(server, "a", "b")
    server.claim(count=99)
    call, begun = calls.Metadata(server.queue), b""
    while True:
        page = server.ask(call)
        begun += page.begun
        if page.cursor == calls.START:
            break
        call = call.at(page.cursor)
    assert b"\0a\0" in begun


def test_in_an_ordered_queue_it_has_a_rate_and_one_item_at_a_time(server: OneServer) -> None:
    declare(server, Groups(ordered=True, named={"a": Limits(rate=(1, 3600))}))
    push(server, "a1", "a2", group="a")
    push(server, "b1", "b2", group="b")
    claimed = server.claim(count=99)
    assert sorted(claimed.ids) == ["a1", "b1"]
    server.settle(*claimed.settle("ack"))
    assert claimed_of(server) == ["b2"]
    assert server.contents().faults == []


def test_it_holds_for_what_was_there_and_ends_with_its_name(server: OneServer) -> None:
    put_all(server, "a", "b")
    declare(server, Groups(named={"a": Limits(concurrency=1)}))
    claimed = server.claim(count=99)
    assert sorted(claimed.ids) == ["a-0", *(f"b-{n}" for n in range(4))]
    declare(server, Groups(named={"b": Limits(concurrency=1)}))
    server.settle(*claimed.settle("ack"))
    assert claimed_of(server) == ["a-1", "a-2", "a-3"]
    assert server.contents().faults == []


@pytest.mark.parametrize(
    "settings",
    ["named=a", "named=;;a/;/", "named=a/x/y/z", "named=a///0", "named=a//5/0", "named=//", "named=a/99999999999999//"],
)
def test_what_no_client_writes_limits_nothing(server: OneServer, settings: str) -> None:
    server.declare(settings, "groups")
    put_all(server, "a")
    assert len(claimed_of(server)) == 4
    assert server.contents().faults == []
    assert Groups.of(settings).named.get("a", Limits()) == Limits(), settings


def test_many_names_and_many_groups(server: OneServer) -> None:
    names = {f"named-{n}": Limits(concurrency=1 + n % 3) for n in range(NAMED_GROUPS_MAX)}
    declare(server, Groups(2, named=names))
    put_all(server, *names, *(f"g{n}" for n in range(50)))
    assert len(claimed_of(server, 500)) == sum(limits.concurrency or 0 for limits in names.values()) + 100
    assert server.contents().faults == []
