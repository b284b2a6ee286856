"""A real Redis and the simulation's that are told the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import hiredis

from tests.lua.connection import Connection, Listener
from tests.simulation.script_calls import CHANNELS, FIRST_US, Word
from zkrq.replication.stream import ErrorReply
from zkrq.testing.redis.server import MiniRedis

HEARD = CHANNELS[:2]  # on the last one nobody listens


class Twins:
    """A real server and a mini one that are told the same."""

    def __init__(self, real: Connection, listeners: Sequence[Listener] = ()) -> None:
        self.mini = mini_redis()
        self.heard: dict[str, list[bytes]] = {channel: [] for channel in HEARD}
        for channel, messages in self.heard.items():
            self.mini.subscribe(channel.encode(), messages.append)
        self._real = real
        self._listeners = listeners

    def __call__(self, *words: Word, unordered: bool = False) -> object:
        """What both answer; of errors only the first word is compared."""
        mini, real = self._mini(*words), self.real(*words)
        arrange = _leaves if unordered else comparable
        assert arrange(mini) == arrange(real), words
        return mini

    def _mini(self, *words: Word) -> object:
        return self.mini.execute(*map(encoded, words))

    def real(self, *words: Word) -> object:
        self._real.send(words)
        reply = self._real.receive()
        return ErrorReply(str(reply)) if isinstance(reply, hiredis.HiredisError) else reply

    def full(self, full: bool) -> None:
        """Whether they are out of memory."""
        self.mini.full = full
        self.real("CONFIG", "SET", "maxmemory", int(full))

    def walk(self, *words: Word, cursor_at: int) -> list[object]:
        """What both collect in a whole scan, whatever its pages."""
        mini, real = (_walked(execute, words, cursor_at) for execute in (self._mini, self.real))
        assert mini == real, words
        return mini

    def check_contents(self) -> None:
        """Everything is the same."""
        names = cast("list[bytes]", self.real("KEYS", "*"))
        kinds = [self.real("TYPE", name) for name in names]
        assert self.mini.content() == {name: _READ[kind](self, name) for name, kind in zip(names, kinds, strict=True)}

    def check_heard(self) -> None:
        """The same was published, in the same order."""
        for listener in self._listeners:
            listener.send(("PING", "end"))
            real: list[bytes] = []
            while (message := cast("list[bytes]", listener.receive()))[0] == b"message":
                real.append(message[2])
            assert self.heard[listener.channel] == real


_READ: dict[object, Callable[[Twins, bytes], object]] = {
    b"string": lambda twins, name: twins.real("GET", name),
    b"hash": lambda twins, name: dict(_by_two(twins.real("HGETALL", name))),
    b"list": lambda twins, name: twins.real("LRANGE", name, 0, -1),
    b"set": lambda twins, name: tuple(sorted(cast("list[bytes]", twins.real("SMEMBERS", name)))),
    b"zset": lambda twins, name: {
        member: float(score) for member, score in _by_two(twins.real("ZRANGE", name, 0, -1, "WITHSCORES"))
    },
}


def encoded(word: Word) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


def _by_two(flat: object) -> Iterable[tuple[bytes, bytes]]:
    parts = iter(cast("list[bytes]", flat))
    return zip(parts, parts, strict=True)


def _walked(execute: Callable[..., object], words: tuple[Word, ...], cursor_at: int) -> list[object]:
    """All that a scan collects; what a script says instead of OK ends it.  A number counts what stands before it."""
    collected: list[object] = []
    while True:
        reply = execute(*words)
        body = cast("list[Any]", reply) if isinstance(reply, list) else [reply]
        if body[0] == b"OK":
            del body[0]
        if not isinstance(body[0], bytes) or not body[0].isdigit():
            return _leaves([*collected, *body])
        collected += [_told(part) for part in cast("list[object]", body[1:])]
        words = (*words[:cursor_at], body[0], *words[cursor_at + 1 :])
        if body[0] == b"0":
            return _leaves(collected)


def _told(part: object) -> object:
    """Names with their numbers, which are of one page, as so many names: the sum over the pages can be compared."""
    if not isinstance(part, list):
        return part
    parts = cast("list[object]", part)
    counts = parts[1::2]
    if not counts or len(parts) % 2 or not all(isinstance(count, int) for count in counts):
        return parts
    return [name for name, count in zip(parts[::2], cast("list[int]", counts), strict=True) for _ in range(count)]


def comparable(reply: object) -> object:
    """With nothing of an error but its first word: the rest differs from version to version."""
    if isinstance(reply, ErrorReply):
        return ErrorReply(reply.text.split()[0])
    return [comparable(each) for each in cast("list[object]", reply)] if isinstance(reply, list) else reply


def _leaves(reply: object) -> list[object]:
    """What a reply holds, where the order tells nothing."""
    reply = comparable(reply)
    if not isinstance(reply, list):
        return [reply]
    return sorted((leaf for each in cast("list[object]", reply) for leaf in _leaves(each)), key=repr)


def library(name: str, body: str, *flags: str) -> str:
    """A library of one function, of the same name."""
    listed = ", ".join(f"'{flag}'" for flag in flags)
    return f"""#!lua name={name}
redis.register_function{{function_name = '{name}', flags = {{{listed}}}, callback = function(KEYS, ARGV)
{body}
end}}"""


def mini_redis() -> MiniRedis:
    return MiniRedis(run_id="r1", clock_us=lambda: FIRST_US)
