"""The library on a server: found by its name, beside those of other versions, and kept where data are."""

from __future__ import annotations

from typing import cast

import pytest

from tests.lua.connection import ScriptFailed
from tests.lua.one_server import OneServer
from zkrq.protocol.scripts import LIBRARY, SCRIPTS


def names(server: OneServer) -> set[str]:
    listed = cast("list[list[bytes]]", server.command("FUNCTION", "LIST"))
    return {fields[1].decode() for fields in listed}


def test_versions_stand_side_by_side(server: OneServer) -> None:
    """Clients of both work on the same data, while one is replaced by the other."""
    server.put("a", "b", "c")
    server.limits["CLAIM_MAX"] = 1  # in a library of its own
    assert set(server.claim(count=10).handed) == {"a"}
    other = server.library_of("claim")
    assert {LIBRARY.name, other} <= names(server)
    server.limits.clear()
    assert set(server.claim(count=10).handed) == {"b", "c"}
    server.command("FUNCTION", "DELETE", other)
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
    every = {name for script in SCRIPTS.values() for name in (script.function, script.looking) if name}
    assert {cast("bytes", fields[1]).decode() for fields in functions} == every
    flags = {cast("bytes", fields[1]).decode(): fields[5] for fields in functions}
    assert {name for name, script in SCRIPTS.items() if flags[script.function] == []} == {
        name for name, script in SCRIPTS.items() if not script.flags
    }
    assert {name for name in flags if flags[name] == [b"no-writes"]} == every - {
        script.function for script in SCRIPTS.values()
    }
