"""Nothing of one call is seen by the next: a library's variables outlast a call, but each call begins with new values.

Every operation is called after every other one, complete or broken off half-way, and does the same as in a library that
was just loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import pytest

from tests.every import every
from tests.simulation.script_calls import NAMESPACE, Load, Word
from zkrq.protocol.keys import script_keys
from zkrq.protocol.scripts import LIBRARY, SCRIPTS
from zkrq.replication.stream import ErrorReply
from zkrq.testing.redis.server import Dump, MiniRedis

HISTORY = 150
"""Calls before the compared ones, so that these find something of everything."""

COMMON = ("push_plain", "push_decided", "claim", "settle")


class Failing(MiniRedis):
    """A server on which one command within a function fails, if ``fails_at`` says which."""

    fails_at = 0
    executed = 0

    def _execute(self, words: Sequence[bytes], script: Any) -> object:
        if script is not None:
            self.executed += 1
            if self.executed == self.fails_at:
                return ErrorReply("ERR it fails here")
        return super()._execute(words, script)

    def give(self, dump: Dump) -> None:
        """Have this data, in the same process, which keeps the library with its variables."""
        self._data.become(cast("Any", dump).data.copy().items())

    def call(self, words: Sequence[bytes], fails_at: int = 0) -> object:
        self.fails_at, self.executed = fails_at, 0
        return self.execute(*words)


class Drawn(NamedTuple):
    """A call: what is sent, and how many commands it executes."""

    name: str
    words: tuple[bytes, ...]
    commands: int


def words_of(script: str, queues: Sequence[str], parts: Sequence[Sequence[Word]]) -> tuple[bytes, ...]:
    """One call, for one queue or for several."""
    keys = [key for queue in queues for key in script_keys(NAMESPACE, queue, script)]
    arguments = list(parts[0])
    if len(parts) > 1:
        arguments = [*parts[0][:2], *(word for part in parts for word in (len(part) - 2, *part[2:]))]
    words = ["FCALL", SCRIPTS[script].function, len(keys), *keys, *arguments]
    return tuple(word if isinstance(word, bytes) else str(word).encode() for word in words)


class World:
    """A server with a history, and a call of each script, for one queue and for two."""

    def __init__(self) -> None:
        self.now_us = 0
        self.server = self._server()
        load = Load(4, self.server)
        for n in range(HISTORY):
            script = "enrol" if n == 0 else COMMON[n % len(COMMON)] if n % 3 else sorted(SCRIPTS)[n % len(SCRIPTS)]
            if script != "wipe":
                self.now_us = load.now_us
                arguments = load.draw(script)
                self.server.call(words_of(script, [load.queue], [arguments]))
            load.pass_time()
        self.now_us = load.now_us
        self.dump = self.server.dump()
        self.calls = [call for script in sorted(SCRIPTS) for call in self._drawn(load, script)]

    def _server(self) -> Failing:
        server = Failing(run_id="r1", clock_us=lambda: self.now_us)
        server.execute(b"FUNCTION", b"LOAD", LIBRARY.text.encode())
        return server

    def _drawn(self, load: Load, script: str) -> list[Drawn]:
        """For one queue and for two, of several draws the one that does most."""
        one, two = list[Drawn](), list[Drawn]()
        for _ in range(12):
            first, queue = load.draw(script), load.queue
            second = load.draw(script)
            while load.queue == queue:
                second = load.draw(script)
            one.append(self._tried(script, words_of(script, [queue], [first])))
            two.append(self._tried(f"{script} twice", words_of(script, [queue, load.queue], [first, second])))
        return [max(each, key=lambda call: call.commands) for each in (one, two)]

    def _tried(self, name: str, words: tuple[bytes, ...]) -> Drawn:
        self.server.give(self.dump)
        self.server.call(words)
        return Drawn(name, words, self.server.executed)

    def outcome(self, server: Failing, call: Drawn) -> object:
        """What a call answers, and what it leaves."""
        server.give(self.dump)
        reply = server.call(call.words)
        return reply, dict(server.content())

    def alone(self, call: Drawn) -> object:
        """The same in a library that was just loaded."""
        return self.outcome(self._server(), call)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def test_calls_do_something(world: World) -> None:
    """Otherwise the test below would compare refusals."""
    for call in world.calls:
        reply, _ = cast("tuple[object, object]", world.alone(call))
        assert isinstance(reply, list), call.name
    assert len([call for call in world.calls if call.commands > 8]) > len(world.calls) / 2


@pytest.mark.parametrize(
    "step",
    [pytest.param(1, marks=pytest.mark.chaos), 5, 17],
    ids=["every pair", "every fifth pair", "every seventeenth pair"],
)
@every("script", sorted(SCRIPTS))
def test_a_call_finds_nothing_of_the_one_before(world: World, script: str, step: int) -> None:
    others = [call for call in world.calls if call.name.split()[0] == script]
    expected = {call.name: world.alone(call) for call in others}
    for before in world.calls[sorted(SCRIPTS).index(script) % step :: step]:
        for fails_at in {0, before.commands // 2, before.commands - 1, before.commands}:
            for call in others:
                world.server.give(world.dump)
                world.server.call(before.words, fails_at)
                assert world.outcome(world.server, call) == expected[call.name], (before.name, fails_at, call.name)
