"""The simulation's Redis against the real one: the scripts of zkrq must give the same replies and data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

import pytest

from tests.every import every
from tests.simulation.script_calls import FIRST_US, NAMESPACE, QUEUES, Load
from tests.simulation.twins import Twins, encoded
from zkrq.protocol import calls
from zkrq.protocol.flow_names import named
from zkrq.protocol.keys import script_keys
from zkrq.protocol.payloads import join
from zkrq.protocol.records import HELD, MEMBER, fresh, waiting_for, with_fields
from zkrq.protocol.scripts import SCRIPTS, Script, assemble, read_files
from zkrq.testing.redis.server import MiniRedis

COMMON = {"push_plain", "claim", "settle", "apply"}
SMALLER = {
    "PAGE": 3,
    "FENCED_MEMORY_MS": 30_000,
    "HOUSEKEEPING_MAX": 4,
    "TOMBSTONES_BYTES": 1_000,
    "LEAST_AGE_MS": 1_000,
}
"""Constants of the scripts that would otherwise never be reached."""


@cache
def with_clock_key() -> Mapping[str, Script]:
    """The scripts, reading their time from a key, so that both servers have the same."""
    files = read_files()
    files["_clock"] = files["_clock"].replace("redis.call('TIME')", "redis.call('HMGET', 'clock', 's', 'us')")
    for file, text in files.items():
        assert "'TIME'" not in text
        for name, value in SMALLER.items():
            text = re.sub(rf"\blocal {name} = \d+", f"local {name} = {value}", text)
        files[file] = text
    return assemble(files)


def run(twins: Twins, load: Load, script: str) -> str:
    """One call on both; returns the status."""
    called, arguments = with_clock_key()[script], load.draw(script)
    twins("HSET", "clock", "s", load.now_us // 1_000_000, "us", load.now_us % 1_000_000)
    keys = script_keys(NAMESPACE, load.queue, script)
    words = ("FCALL", called.function, len(keys), *keys, *arguments)
    if "cursor" in called.arguments:
        found = twins.walk(*words, cursor_at=3 + len(keys) + called.arguments.index("cursor"))
        refused = [status for status in called.replies if status.encode() in found]
        return refused[0] if refused else "OK" if found else "nothing"
    reply = twins(*words)
    assert isinstance(reply, list), (script, arguments, reply)
    return cast("list[bytes]", reply)[0].decode()


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(4, 16))])
def test_scripts_do_alike(twins: Twins, seed: int) -> None:
    load = Load(seed, twins.mini)
    twins("FUNCTION", "LOAD", with_clock_key()["seal"].library.text)
    names = sorted(SCRIPTS)
    weights = [5 if name in COMMON else 0.3 if name == "wipe" else 1 for name in names]
    run(twins, load, "enrol")
    for n in range(200):
        run(twins, load, load.rng.choices(names, weights)[0])
        load.pass_time()
        if n % 4 == 0:
            twins.check_contents()
    twins.check_contents()
    twins.check_heard()


def waiting(flow: str) -> calls.PushDecided:
    """A push of a member that waits for others."""
    fields = {MEMBER: flow.encode(), HELD: waiting_for([named(QUEUES[0], "a")])}
    put = calls.Put(f"{flow}.b", with_fields(fresh(0, FIRST_US // 1000), fields), join([b"\0\0"]))
    return calls.PushDecided(QUEUES[0], [put], in_order=True)


BEFORE: Mapping[str, Sequence[calls.Call[Any]]] = {
    "flow_waiting": [call for flow in ("f", "ff") for call in (calls.Steer(QUEUES[0], flow, "begin"), waiting(flow))]
}
"""What a script needs so that it finds something, and which is drawn too seldom."""


def make(twins: Twins, load: Load, call: calls.Call[Any]) -> None:
    """One call on both, as it is."""
    called, keys = with_clock_key()[call.script], script_keys(NAMESPACE, call.queue, call.script)
    twins("FCALL", called.function, len(keys), *keys, load.draw_epoch(), load.draw_generation(), *call.words())


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_every_script_gets_through(twins: Twins, script: str) -> None:
    """What is drawn makes sense often enough that every script reaches its end."""
    load = Load(0, twins.mini)
    twins("FUNCTION", "LOAD", with_clock_key()["seal"].library.text)
    statuses: set[str] = set()
    for _ in range(40):
        for name in ("enrol", "push_plain", "claim", "set_aside"):
            run(twins, load, name)
        for call in BEFORE.get(script, ()):
            make(twins, load, call)
        statuses.add(run(twins, load, script))
        if "OK" in statuses:
            return
        load.pass_time()
    pytest.fail(f"{script}.lua never did anything, only {statuses}")


@every("script", [name for name in sorted(SCRIPTS) if "NOTINSYNC" in SCRIPTS[name].replies])
def test_empty_server_is_not_in_sync(mini: MiniRedis, script: str) -> None:
    """The shipped text itself, on a server that was emptied."""
    load = Load(0, mini)
    keys = script_keys(NAMESPACE, load.queue, script)
    mini.execute(b"FUNCTION", b"LOAD", SCRIPTS[script].library.text.encode())
    words = ("FCALL", SCRIPTS[script].function, len(keys), *keys, *load.draw(script))
    assert mini.execute(*map(encoded, words)) == [b"NOTINSYNC", b""]
    assert mini.content() == {}
