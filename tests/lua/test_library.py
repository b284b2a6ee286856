"""The library on a server: found by its name, beside those of other versions, and kept where data are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from tests.lua.one_server import OneServer, ScriptFailed
from zkrq.protocol import calls
from zkrq.protocol.keys import script_keys
from zkrq.protocol.scripts import LIBRARY, SCRIPTS, Script, assemble, read_files


def another_version() -> Mapping[str, Script]:
    """One that has another limit, and is otherwise the same."""
    files = read_files()
    files["_claiming"] = files["_claiming"].replace("local CLAIM_MAX = 500", "local CLAIM_MAX = 1")
    return assemble(files)


def names(server: OneServer) -> set[str]:
    listed = cast("list[list[bytes]]", server.command("FUNCTION", "LIST"))
    return {fields[1].decode() for fields in listed}


def test_versions_stand_side_by_side(server: OneServer) -> None:
    """Clients of both work on the same data, while one is replaced by the other."""
    other = another_version()
    server.command("FUNCTION", "LOAD", other["claim"].library.text)
    server.put("a", "b", "c")
    call = calls.Claim(server.queue, "bob", 1, 10, 60_000, "", 0, "X", 0, 0)
    keys = script_keys("t", server.queue, "claim")
    words = ("FCALL", other["claim"].function, len(keys), *keys, server.epoch, "g1", *call.words())
    reply = cast("list[list[bytes]]", server.command(*words))
    assert reply[3][0] == b"a"
    assert len(reply[3]) == 4, "it has a limit of one"
    assert set(server.claim(count=10).handed) == {"b", "c"}
    assert {LIBRARY.name, other["claim"].library.name} <= names(server)
    server.command("FUNCTION", "DELETE", other["claim"].library.name)
    assert server.count() == (0, 0, 3, 0)


def test_a_name_belongs_to_one_text(server: OneServer) -> None:
    server.seal(1)
    with pytest.raises(ScriptFailed, match=f"Library '{LIBRARY.name}' already exists"):
        server.command("FUNCTION", "LOAD", LIBRARY.text)


def test_library_outlasts_the_data(server: OneServer) -> None:
    server.seal(1)
    server.command("FLUSHALL")
    assert LIBRARY.name in names(server)


def test_library_is_known_under_each_of_its_names(server: OneServer) -> None:
    server.seal(1)
    (found,) = cast("list[list[object]]", server.command("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY.name))
    functions = cast("list[list[object]]", found[5])
    assert {cast("bytes", fields[1]).decode() for fields in functions} == {
        script.function for script in SCRIPTS.values()
    }
    flags = {cast("bytes", fields[1]).decode(): fields[5] for fields in functions}
    assert {name for name, script in SCRIPTS.items() if flags[script.function] == []} == {
        name for name, script in SCRIPTS.items() if not script.flags
    }
