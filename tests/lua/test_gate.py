"""The door of every script, and enrolment: a server answers only in the life in which the view knows it."""

from __future__ import annotations

import pytest

from tests.lua.one_server import Argument, OneServer, Refused, ScriptFailed, put_and_claim
from zkrq.protocol.records import VERSION_BYTES, fresh
from zkrq.protocol.scripts import SCRIPTS

ARGUMENTS: dict[str, dict[str, Argument]] = {
    "affirm": {},
    "apply": {"fenced": "ann", "payloads_given": 1, "clock": 0},
    "apply_new": {"fenced": "ann", "payloads_given": 1, "clock": 0},
    "cancel": {},
    "claim": {"owner": "ann", "seq": 1, "count": 10, "lease_ms": 1000, "waiter": "channel"},
    "claims": {"owner": "ann", "cursor": 0},
    "clear": {"count": 10},
    "compare": {},
    "count": {},
    "cut": {},
    "fence": {"owner": "ann", "cursor": 0},
    "forward": {"clock": 10**17, "window_ms": 0},
    "heads": {"cursor": 0, "count": 10},
    "holders": {"cursor": 0},
    "install": {"floor_ms": 0},
    "owners": {"cursor": 0},
    "page": {"clock": 0, "cursor": 0, "count": 10},
    "pause": {"state": "P"},
    "peek": {"state": "ready", "count": 10},
    "push": {},
    "put": {},
    "queues": {"cursor": 0},
    "read": {"clock": 0},
    "redrive": {"count": 0},
    "room": {},
    "retire": {"owner": "ann"},
    "seal": {},
    "settle": {},
    "standing": {"cursor": 0},
    "statistics": {},
    "trim": {},
    "wipe": {},
}
"""A call of every script that has the gate."""

REPEATED: dict[str, tuple[Argument, ...]] = {
    "cancel": ("id",),
    "redrive": ("id",),
    "affirm": ("id",),
    "cut": ("id",),
    "apply": ("id", fresh(0, 0), 0, b""),
    "apply_new": ("id", fresh(0, 0), 0, b""),
    "compare": ("id", b""),
    "forward": ("id", fresh(0, 0), 0, b""),
    "install": ("ann", 1, -1),
    "push": ("id", fresh(0, 0), 0, b""),
    "put": ("id", fresh(0, 0), 0, b""),
    "read": ("id",),
    "settle": ("id", fresh(0, 0)[VERSION_BYTES], "ann/1", "ack"),
}

gated = pytest.mark.parametrize("script", sorted(ARGUMENTS))


def call(server: OneServer, script: str, **options: Argument) -> None:
    server.run(script, *REPEATED.get(script, ()), **ARGUMENTS[script], **options)


def refusal(server: OneServer, script: str, epoch: int, generation: str) -> Refused:
    with pytest.raises(Refused) as refused:
        call(server, script, epoch=epoch, generation=generation)
    return refused.value


def test_every_script_for_servers_of_the_view_has_the_gate() -> None:
    assert sorted(ARGUMENTS) == sorted(SCRIPTS.keys() - {"enrol", "reserve"})


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_script_loads(server: OneServer, script: str) -> None:
    """Lua's limits (200 locals, 60 upvalues) are kept."""
    server.command("SCRIPT", "LOAD", server.text(script))


@gated
def test_server_without_generation_is_not_in_sync_and_nothing_is_created(server: OneServer, script: str) -> None:
    """Rule 3: generation missing: NOTINSYNC, never created on the way."""
    server.command("FLUSHALL")
    refused = refusal(server, script, 1, "g1")
    assert (refused.status, refused.body) == ("NOTINSYNC", (b"",))
    assert server.key_names() == set()


@gated
def test_server_of_another_generation_is_not_in_sync_and_adopts_nothing(server: OneServer, script: str) -> None:
    """Rule 3: generation other: NOTINSYNC; a greater epoch of a life that is over is not adopted either."""
    refused = refusal(server, script, 7, "g0")
    assert (refused.status, refused.body) == ("NOTINSYNC", (b"g1",))
    assert server.key_names() == {"server"}
    assert server.command("HGET", "{t}:server", "epoch") == b"1"


@gated
def test_lower_epoch_is_stale_and_writes_nothing(server: OneServer, script: str) -> None:
    """Rule 3: epoch lower: STALE."""
    server.seal(3)
    refused = refusal(server, script, 2, "g1")
    assert (refused.status, refused.body) == ("STALE", (b"3",))
    assert server.key_names() == {"server"}


@gated
def test_greater_epoch_is_adopted(server: OneServer, script: str) -> None:
    """Rule 3: epoch greater: adopt; also rule 9, for the scripts that catch-up reads with."""
    call(server, script, epoch=5)
    assert server.command("HGET", "{t}:server", "epoch") == b"5"
    assert refusal(server, script, 4, "g1").status == "STALE"


def test_epochs_are_compared_as_numbers(server: OneServer) -> None:
    """Rule 3: 10 is greater than 9."""
    server.seal(9)
    server.seal(10)
    assert refusal(server, "seal", 9, "g1").status == "STALE"


# -- enrolment -----------------------------------------------------------------------------------------------------


def enrolment_refusal(server: OneServer, generation: str, expected: str) -> Refused:
    with pytest.raises(Refused) as refused:
        server.enrol(generation, expected)
    return refused.value


def test_enrolling_writes_generation_epoch_and_name(server: OneServer) -> None:
    """Rule 10."""
    server.enrol("g2", expected="g1", epoch=4)
    fields = server.command("HMGET", "{t}:server", "generation", "epoch", "name")
    assert fields == [b"g2", b"4", b"redis-1"]


def test_enrolling_repeated_is_ok_and_changes_nothing(server: OneServer) -> None:
    """Rule 10: a repetition after a lost answer succeeds, though the generation is no longer the expected one."""
    server.enrol("g2", expected="g1")
    server.run("seal", epoch=6, generation="g2")
    server.enrol("g2", expected="g1")
    assert server.command("HGET", "{t}:server", "epoch") == b"6"


def test_an_epoch_of_another_deployment_means_nothing(server: OneServer) -> None:
    """A server that is taken from another deployment begins under the new one's epoch."""
    server.run("seal", epoch=500)
    with pytest.raises(Refused) as refused:
        server.enrol("g2", expected="g1", epoch=4)
    assert (refused.value.status, refused.value.body) == ("STALE", (b"500",))
    server.enrol("g2", expected="g1", epoch=4, deployment="other")
    assert server.command("HMGET", "{t}:server", "generation", "epoch", "deployment") == [b"g2", b"4", b"other"]


@pytest.mark.parametrize("expected", ["", "g0"])
def test_enrolling_from_another_generation_is_refused(server: OneServer, expected: str) -> None:
    """Rule 10: a late duplicate can never wipe a newer life."""
    refused = enrolment_refusal(server, "g2", expected)
    assert (refused.status, refused.body) == ("MISMATCH", (b"g1",))
    assert server.command("HGET", "{t}:server", "generation") == b"g1"


def test_server_with_items_is_not_enrolled(server: OneServer) -> None:
    """Rule 10: what a server holds is never taken over silently."""
    put_and_claim(server, "a")
    assert enrolment_refusal(server, "g2", "g1").status == "HOLDSDATA"
    assert server.command("HGET", "{t}:server", "generation") == b"g1"


def test_key_of_the_wrong_type_is_an_error_of_redis(server: OneServer) -> None:
    """Keys written by hand are not promised for; they are not mistaken for an answer either."""
    server.command("SET", server.key("records"), "x")
    with pytest.raises(ScriptFailed, match="WRONGTYPE"):
        server.put("a")
