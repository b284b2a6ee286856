"""Run a Redis server inside the process, which executes the real scripts under a clock of its own.

Synchronous and deterministic: the same commands at the same times give the same replies.  It knows the commands that
zkrq uses, and refuses others as unknown.  ``tests/simulation/test_mini_redis.py`` compares it with a real server.

A kill discards the object's data; a restart is ``restore`` with what a disk would hold and a new ``run_id``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import NamedTuple, NewType, cast

from zkrq.replication.stream import ErrorReply
from zkrq.testing.redis import lua
from zkrq.testing.redis.arguments import integer
from zkrq.testing.redis.commands import COMMANDS, Command, plain
from zkrq.testing.redis.keyspace import Keyspace
from zkrq.testing.redis.replies import OK, SYNTAX, Refusal, SimpleString, wrong_arity

Dump = NewType("Dump", object)
"""All data of a server at one moment."""

_OUT_OF_MEMORY = ErrorReply("OOM command not allowed when used memory > 'maxmemory'.")
_READ_ONLY = ErrorReply("READONLY You can't write against a read only replica.")
_NO_FUNCTION = ErrorReply("ERR Function not found")


class _Disk(NamedTuple):
    """What a disk holds: data and the texts of libraries."""

    data: Keyspace
    libraries: tuple[bytes, ...]


@dataclass(slots=True)
class _Run:
    """A running function: once it has written, it is not stopped."""

    may_write: bool


def _length(reply: object) -> int:
    return len(cast("list[object]", reply)) if isinstance(reply, list) else 0


class MiniRedis:
    """``run_id``, ``role``, ``maxmemory_policy`` and ``full`` (out of memory) may be set at any time."""

    def __init__(self, *, run_id: str, clock_us: Callable[[], int], version: str = "7.0.15") -> None:
        self.run_id = run_id
        self.version = version
        self.role = "master"
        self.maxmemory_policy = "noeviction"
        self.full = False
        self.touched = 0
        """Elements that commands have named or read so far; their work grows with this number."""
        self._clock_us = clock_us
        self._data = Keyspace()
        self._libraries: dict[bytes, lua.Library] = {}
        self._functions: dict[bytes, lua.Function] = {}
        self._is_running = False
        self._heard: dict[bytes, dict[object, Callable[[bytes], None]]] = {}
        own = (
            Command("PING", self._ping, -1),
            Command("INFO", self._info, -1),
            Command("TIME", self._time, 1),
            Command("PUBLISH", self._publish, 3),
            Command("FUNCTION", self._function, -2, scripts_may=False),
            Command("FCALL", self._fcall, -3, scripts_may=False),
        )
        self._commands = {command.name.encode(): command for command in own}
        for name, command in COMMANDS.items():
            self._commands[name] = replace(command, run=partial(command.run, self._data))

    def __repr__(self) -> str:
        return f"<MiniRedis {self.run_id} {self.role} {len(self._data)} keys>"

    def execute(self, *command: bytes) -> object:
        """Execute one command; return the reply as a client's parser does: bytes, int, None, list, or
        ``ErrorReply``."""
        reply = self._execute(command, None)
        return bytes(reply) if isinstance(reply, SimpleString) else reply

    def subscribe(self, channel: bytes, heard: Callable[[bytes], None]) -> Callable[[], None]:
        """Call ``heard`` with each message published on the channel, before PUBLISH returns.  Return a function that
        ends the subscription."""
        listeners = self._heard.setdefault(channel, {})
        mine = object()
        listeners[mine] = heard
        return lambda: cast("None", listeners.pop(mine, None))

    def dump(self) -> Dump:
        """Return all data as a disk would hold it; later changes do not reach it."""
        return Dump(_Disk(self._data.copy(), tuple(library.text for library in self._libraries.values())))

    def restore(self, dump: Dump | None) -> None:
        """Start again with this data and these libraries, or empty: no client is subscribed."""
        disk = cast("_Disk", dump) if dump is not None else _Disk(Keyspace(), ())
        self._data.become(disk.data.copy().items())
        self._forget_libraries()
        for text in disk.libraries:
            self._load(text)
        self._heard.clear()

    def flush(self) -> None:
        """Lose all data, but keep running, and keep the libraries."""
        self._data.clear()

    def content(self) -> Mapping[bytes, object]:
        """Return every key's value: bytes, dict for a hash, list, sorted tuple for a set, dict member -> score."""
        return {key: plain(value) for key, value in self._data.items()}

    def value(self, key: bytes) -> object:
        """Return one key's value as ``content`` has it, None if it does not exist."""
        value = self._data.get(key)
        return None if value is None else plain(value)

    # -- execution ---------------------------------------------------------------------------------------------------

    def _execute(self, words: Sequence[bytes], script: _Run | None) -> object:
        name = words[0]
        command = self._commands.get(name) or self._commands.get(name.upper())
        if (refusal := self._refusal(command, words, script)) is not None:
            return refusal
        assert command is not None
        try:
            reply = command.run(*words[1:])
        except Refusal as refused:
            return ErrorReply(str(refused))
        self.touched += len(words) + _length(reply)
        return reply

    def _refusal(self, command: Command | None, words: Sequence[bytes], script: _Run | None) -> ErrorReply | None:
        """Return why this command is refused before it starts, or None."""
        if command is None:
            name = words[0].decode(errors="replace")
            text = f"ERR unknown command '{name}'" if script is None else "ERR Unknown Redis command called from script"
            return ErrorReply(text)
        if not command.takes(len(words)):
            if script is None:
                return ErrorReply(wrong_arity(command.name))
            return ErrorReply("ERR Wrong number of args calling Redis command from script")
        if script and not command.scripts_may:
            return ErrorReply("ERR This Redis command is not allowed from script")
        if command.write:
            if self.role != "master":
                return _READ_ONLY
            if command.denyoom and self.full and not (script and script.may_write):
                return _OUT_OF_MEMORY
            if script:
                script.may_write = True
        return None

    def _fcall(self, name: bytes, count: bytes, *words: bytes) -> object:
        function = self._functions.get(name)
        if function is None:
            return _NO_FUNCTION
        try:
            number = integer(count)
        except Refusal:
            raise Refusal("ERR Bad number of keys provided") from None
        if number > len(words):
            raise Refusal("ERR Number of keys can't be greater than number of args")
        if number < 0:
            raise Refusal("ERR Number of keys can't be negative")
        allow_oom = "allow-oom" in function.flags
        if self.full and not allow_oom:
            return _OUT_OF_MEMORY
        # A server executes one call at a time, and zkrq's library has the variables of one call.
        if self._is_running:
            raise RuntimeError(f"{name.decode()} was called while another function was running")
        run = _Run(may_write=allow_oom)
        self._is_running = True
        try:
            return lua.run(function, words[:number], words[number:], lambda command: self._execute(command, run))
        finally:
            self._is_running = False

    # -- libraries ---------------------------------------------------------------------------------------------------

    def _function(self, subcommand: bytes, *words: bytes) -> object:
        match subcommand.upper(), words:
            case b"LOAD", (text,):
                if self.role != "master":
                    return _READ_ONLY
                return _OUT_OF_MEMORY if self.full else self._load(text)
            case b"FLUSH", () | (b"SYNC" | b"ASYNC",):
                self._forget_libraries()
                return OK
            case b"LIST", (b"LIBRARYNAME", pattern):
                names = [name for name in self._libraries if fnmatchcase(name.decode(), pattern.decode())]
                return [[b"library_name", name, b"engine", b"LUA", b"functions", list[object]()] for name in names]
            case b"DELETE", (name,):
                library = self._libraries.pop(name, None)
                if library is None:
                    return ErrorReply("ERR Library not found")
                for function in library.functions:
                    del self._functions[function.name]
                return OK
            case ((b"LOAD" | b"FLUSH" | b"LIST" | b"DELETE"), _):
                raise Refusal(SYNTAX)
            case _:
                raise Refusal(f"ERR unknown subcommand '{subcommand.decode(errors='replace')}'. Try FUNCTION HELP.")

    def _load(self, text: bytes) -> bytes | ErrorReply:
        library = lua.load(text)
        if isinstance(library, ErrorReply):
            return library
        if library.name in self._libraries:
            return ErrorReply(f"ERR Library '{library.name.decode()}' already exists")
        for function in library.functions:
            if function.name in self._functions:
                return ErrorReply(f"ERR Function {function.name.decode()} already exists")
        self._libraries[library.name] = library
        self._functions.update({function.name: function for function in library.functions})
        return library.name

    def _forget_libraries(self) -> None:
        self._libraries.clear()
        self._functions.clear()

    # -- commands that are not about data ----------------------------------------------------------------------------

    def _ping(self, *message: bytes) -> bytes:
        if len(message) > 1:
            raise Refusal(wrong_arity("PING"))
        return message[0] if message else SimpleString(b"PONG")

    def _info(self, *_: bytes) -> bytes:
        fields = {
            "redis_version": self.version,
            "run_id": self.run_id,
            "maxmemory_policy": self.maxmemory_policy,
            "role": self.role,
            "cluster_enabled": "0",
        }
        return "".join(f"{name}:{value}\r\n" for name, value in fields.items()).encode()

    def _time(self) -> list[bytes]:
        return [b"%d" % part for part in divmod(self._clock_us(), 1_000_000)]

    def _publish(self, channel: bytes, message: bytes) -> int:
        listeners = list(self._heard.get(channel, {}).values())
        for heard in listeners:
            heard(message)
        return len(listeners)
