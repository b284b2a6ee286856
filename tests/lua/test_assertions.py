"""What scripts assert of their own work: a mistake there ends the call before any record is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from tests.lua import one_server
from tests.lua.altered import with_lines
from tests.lua.connection import ScriptFailed
from tests.lua.entries import BUNDLE, Put
from tests.lua.one_server import OneServer
from zkrq.protocol.scripts import Script


def claim(server: OneServer) -> object:
    return server.claim("ann", 1, epoch=2)


def push(server: OneServer) -> object:
    return server.push(Put("new", key="k"), key_window_ms=0)


class Mistake(NamedTuple):
    """``old`` stands in the scripts, and the call with ``new`` in its place ends with ``told``."""

    name: str
    old: str
    new: str
    call: Callable[[OneServer], object]
    told: str


MISTAKES = (
    Mistake(
        "one item too many is changed",
        "set(r, from, to, CLAIMED, r.row)",
        "set(r, from, to + 3, CLAIMED, r.row)",
        claim,
        "a run ends outside of its bundle",
    ),
    Mistake(
        "one item too many is handed out",
        "to = math.min(to, from + request.most - request.handed_count - 1)",
        "to = math.min(to, from + request.most - request.handed_count)",
        claim,
        "more items are handed out than the request may have",
    ),
    Mistake(
        "a lease counts backwards",
        "local deadline = now_us + request.lease_ms * 1000",
        "local deadline = now_us - request.lease_ms * 1000",
        claim,
        "a claim is over when it begins",
    ),
    Mistake(
        "a rate counts a tenth too briefly",
        "(counts.newest - oldest + 1 + TENTHS) * counts.width",
        "(counts.newest - oldest + 1) * counts.width",
        claim,
        "fewer claims count since a moment that has passed",
    ),
    Mistake(
        "a decision keeps the epoch",
        "r.decided, r.epoch, r.n, r.clock = true, epoch,",
        "r.decided, r.epoch, r.n, r.clock = true, r.epoch,",
        claim,
        "a decision is of another call",
    ),
    Mistake(
        "a push without a window begins one",
        "if window_ms > 0 then begin_window(key, id, r.pushed_at, window_ms) end",
        "begin_window(key, id, r.pushed_at, window_ms)",
        push,
        "a window is over when it begins",
    ),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_ends_the_call_and_no_record_is_written(
    server: OneServer, mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call succeeds as soon as the script is right."""
    server.declare("rate=5/1000")
    server.put(Put(BUNDLE, (b"1", b"2", b"3")))
    before = server.contents()
    broken = with_lines({mistake.old: mistake.new})

    def scripts_with(limits: object) -> Mapping[str, Script]:
        return broken

    with monkeypatch.context() as patch, pytest.raises(ScriptFailed, match=f"mistake of zkrq: {mistake.told}"):
        patch.setattr(one_server, "scripts_with", scripts_with)
        mistake.call(server)
    after = server.contents()
    assert (after.records, after.payloads, after.faults) == (before.records, before.payloads, [])
    assert mistake.call(server)
    assert server.contents().records != before.records
