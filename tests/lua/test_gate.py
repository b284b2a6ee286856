"""The gate of every script, and enrolment: a server answers only in the life in which the view knows it."""

from __future__ import annotations

from typing import cast

import pytest

from tests.every import every
from tests.lua.connection import Refused, ScriptFailed
from tests.lua.every_call import CALLS, AnyCall
from tests.lua.one_server import GENERATION, OneServer, put_and_claim
from zkrq.protocol import calls
from zkrq.protocol.scripts import SCRIPTS
from zkrq.protocol.server_info import Own, read_own

gated = every("call", CALLS.values())


def refusal(server: OneServer, call: AnyCall, epoch: int, generation: str = GENERATION) -> Refused:
    with pytest.raises(Refused) as refused:
        server.ask(call, epoch=epoch, generation=generation)
    return refused.value


def test_every_script_for_servers_of_the_view_has_the_gate() -> None:
    assert CALLS.keys() == SCRIPTS.keys() - {"enrol", "reserve"}


@gated
def test_server_without_generation_is_not_in_sync_and_nothing_is_created(server: OneServer, call: AnyCall) -> None:
    """Rule 3: generation missing: NOTINSYNC, never created on the way."""
    server.command("FLUSHALL")
    refused = refusal(server, call, 1)
    assert (refused.status, refused.body) == ("NOTINSYNC", (b"",))
    assert server.key_names() == set()


@gated
def test_server_of_another_generation_is_not_in_sync_and_adopts_nothing(server: OneServer, call: AnyCall) -> None:
    """Rule 3: generation other: NOTINSYNC; a greater epoch of a life that is over is not adopted either."""
    server.reset()
    refused = refusal(server, call, 7, "g0")
    assert (refused.status, refused.body) == ("NOTINSYNC", (b"g1",))
    assert server.key_names() == {"server"}
    assert server.command("HGET", "{t}:server", "epoch") == b"1"


@gated
def test_lower_epoch_is_stale_and_writes_nothing(server: OneServer, call: AnyCall) -> None:
    """Rule 3: epoch lower: STALE."""
    server.reset()
    server.seal(3)
    refused = refusal(server, call, 2)
    assert (refused.status, refused.body) == ("STALE", (b"3",))
    assert server.key_names() == {"server"}


@gated
def test_greater_epoch_is_adopted(server: OneServer, call: AnyCall) -> None:
    """Rule 3: epoch greater: adopt; also rule 9, for the scripts that catch-up reads with."""
    server.reset()
    server.ask(call, epoch=5)
    assert server.command("HGET", "{t}:server", "epoch") == b"5"
    assert refusal(server, call, 4).status == "STALE"


def test_epochs_are_compared_as_numbers(server: OneServer) -> None:
    """Rule 3: 10 is greater than 9."""
    server.seal(9)
    server.seal(10)
    assert refusal(server, calls.Seal(), 9).status == "STALE"


DAMAGED = [None, b"", b"x", b"nan", b"inf", b"-1", b"1e3", b"0x10", b"7 ", b"7.5", b"9" * 16, b"\xff\xfe"]


def damage(server: OneServer, field: str, value: bytes | None) -> None:
    if value is None:
        server.command("HDEL", "{t}:server", field)
    else:
        server.command("HSET", "{t}:server", field, value)


@gated
def test_a_server_that_does_not_know_its_epoch_is_not_in_sync(server: OneServer, call: AnyCall) -> None:
    """It cannot refuse what is too late; and it says so, instead of failing, or it would refuse every call."""
    server.reset()
    damage(server, "epoch", b"x")
    refused = refusal(server, call, 7)
    assert (refused.status, refused.body) == ("NOTINSYNC", (b"",))
    assert server.command("HGET", "{t}:server", "epoch") == b"x"


@pytest.mark.parametrize("value", DAMAGED)
def test_an_epoch_that_cannot_be_read(server: OneServer, value: bytes | None) -> None:
    """It is no generation either, for scripts and in Python, until the server is enrolled again."""
    damage(server, "epoch", value)
    for epoch in (1, 7, 10**14):
        assert refusal(server, calls.Seal(), epoch).body == (b"",)
    assert own(server) == Own("", 0, "redis-1", "d")
    assert enrolment_refusal(server, "g2", "g1").body == (b"",)
    server.enrol("g2", expected="", epoch=4)
    server.ask(calls.Seal(), epoch=4, generation="g2")
    assert own(server)[:2] == ("g2", 4)


@pytest.mark.parametrize("value", [b"\xff\xfe", b"", b"g 1", b"g1\0", b"\n"])
def test_a_generation_that_is_no_text(server: OneServer, value: bytes) -> None:
    server.seal(3)
    damage(server, "generation", value)
    assert refusal(server, calls.Seal(), 3).body == (value,)
    assert own(server)[:2] == ("", 3)
    server.enrol("g2", expected="", epoch=4)
    assert own(server)[:2] == ("g2", 4)


def test_a_reservation_that_cannot_be_read_is_taken(server: OneServer) -> None:
    for until in (b"x", b"nan", b"\xff", b"inf"):
        damage(server, "repairer", b"another")
        damage(server, "repaired_until_ms", until)
        server.ask(calls.Reserve("me", 10_000))


def own(server: OneServer) -> Own:
    words = server.command("HMGET", "{t}:server", "generation", "epoch", "name", "deployment")
    return read_own(cast("list[bytes | None]", words))


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
    server.seal(6, "g2")
    server.enrol("g2", expected="g1")
    assert server.command("HGET", "{t}:server", "epoch") == b"6"


def test_an_epoch_of_another_deployment_means_nothing(server: OneServer) -> None:
    """A server that is taken from another deployment begins under the new one's epoch."""
    server.seal(500)
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


@every("script", [name for name, script in SCRIPTS.items() if script.looking])
def test_who_only_looks_makes_a_server_adopt_no_epoch(server: OneServer, script: str) -> None:
    """So that nothing is written; a server of another life, or of a later epoch, refuses this client as any other."""

    server.enrol()
    server.seal(5)
    for epoch in (5, 6):
        assert cast("list[object]", server.look(CALLS[script], epoch))[0] == b"OK"
    assert server.look(CALLS[script], 4) == [b"STALE", b"5"]
    assert server.look(CALLS[script], 6, "another") == [b"NOTINSYNC", GENERATION.encode()]
