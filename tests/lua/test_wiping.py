"""``wipe``: a server forgets a queue of a former life."""

from __future__ import annotations

from typing import cast

import pytest

from tests.lua.copying import fill_every_key, status
from tests.lua.entries import Put
from tests.lua.one_server import OneServer, put_and_claim
from zkrq.protocol.scripts import SCRIPTS


def keys_of(server: OneServer) -> set[str]:
    """Names of the keys of this queue."""
    return {name.decode() for name in cast("list[bytes]", server.command("KEYS", server.key("*")))}


KEPT = {"figures"}
"""Keys that a server keeps when it comes back: what handlers did is no part of an item."""


def test_wiping_knows_every_key() -> None:
    assert {*SCRIPTS["wipe"].keys, *KEPT} == {name for script in SCRIPTS.values() for name in script.keys}


def test_wiped_queue_is_gone(server: OneServer) -> None:
    """Catch-up (2)."""
    fill_every_key(server)
    assert {name.rpartition(":")[2] for name in keys_of(server)} == set(SCRIPTS["wipe"].keys) - {"server", "queues"}
    server.wipe()
    assert keys_of(server) == set()
    assert server.queues() == set()
    assert server.key_names() == {"server"}
    assert server.metadata()[::2] == (0, 0)


def test_other_queues_stay(server: OneServer) -> None:
    fill_every_key(server)
    for name in ("q2", "q:q", "other"):
        server.queue = name
        fill_every_key(server)
    before, metadata = server.contents(), server.metadata()
    server.queue = "q"
    server.wipe()
    assert server.queues() == {"q2", "q:q", "other"}
    server.queue = "other"
    assert server.contents() == before
    assert server.metadata().owners.keys() == metadata.owners.keys()
    assert len(keys_of(server)) == len(SCRIPTS["wipe"].keys) - 2


def test_wiping_again_is_ok(server: OneServer) -> None:
    fill_every_key(server)
    server.wipe()
    server.wipe()
    assert server.key_names() == {"server"}


def test_wiped_queue_begins_anew(server: OneServer) -> None:
    """Neither tombstones, nor the floor, nor numbers of requests are left."""
    server.settle(put_and_claim(server, "a").only.settle("ack"), put_window_ms=0)
    server.install(server.now_ms(), {"ann": (99, 0)})
    server.wipe()
    server.put(Put("a", pushed_at_ms=server.now_ms() - 1_000))
    assert server.claim("ann", seq=1).ids == ["a"]


def test_late_wipe_is_stale(server: OneServer) -> None:
    """Rule 10: the learner has adopted a later epoch by then."""
    fill_every_key(server)
    before = server.contents()
    server.seal(2)
    assert status(lambda: server.wipe()) == ("STALE", (b"2",))
    assert server.contents() == before
    server.epoch = 2
    assert server.queues() == {"q"}


@pytest.mark.parametrize("generation", ["g0", "g2", ""])
def test_wipe_of_another_life_is_refused(server: OneServer, generation: str) -> None:
    """Rule 10: a late duplicate can never wipe a newer life, nor an older one."""
    fill_every_key(server)
    before = server.contents()
    assert status(lambda: server.wipe(generation=generation, epoch=9)) == ("NOTINSYNC", (b"g1",))
    assert server.contents() == before


def test_server_that_was_flushed_has_nothing_to_wipe(server: OneServer) -> None:
    server.command("FLUSHALL")
    assert status(lambda: server.wipe()) == ("NOTINSYNC", (b"",))
    assert server.key_names() == set()
