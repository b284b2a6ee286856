"""Run functions as Redis does: the same Lua, the same globals, the same conversions between Lua and Redis.

One interpreter serves every server of the process, and each text is compiled once.  Each server loads a library of its
own from that: the variables of its text are not those of another server, and last as long as the library.  A function
reaches the data of a server only through ``call``.  Outside Lua all strings are bytes.

Left out, since no library of zkrq uses them: cjson, cmsgpack, bit, redis.log and the like, math.random, RESP3.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, cast

from zkrq.base.errors import ConfigError
from zkrq.replication.stream import ErrorReply
from zkrq.testing.redis import packing
from zkrq.testing.redis.replies import SimpleString, number_text

Call = Callable[[Sequence[bytes]], object]
"""Executes one command of a function."""

_FLAGS = {"no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"}

_PRELUDE = rb"""
local python_call, sha1hex, pack, unpack_packed, size = ...
local xpcall, error, type, tostring, unpack = xpcall, error, type, tostring, unpack
local loadstring, setfenv, getinfo, outer_pcall = loadstring, setfenv, debug.getinfo, pcall
local setmetatable, getmetatable = setmetatable, getmetatable

local redis = {pcall = python_call, sha1hex = sha1hex}

function redis.call(...)
  local reply = python_call(...)
  if type(reply) == 'table' and reply.err then error(reply) end
  return reply
end

function redis.error_reply(text) return {err = text} end
function redis.status_reply(text) return {ok = text} end

-- What functions find: nothing that they could leave behind for one another.
local globals = {redis = redis, struct = {pack = pack, unpack = unpack_packed, size = size}}
for _, name in ipairs({'assert', 'coroutine', 'error', 'getmetatable', 'ipairs', 'math', 'next', 'pairs', 'rawequal',
    'rawget', 'rawset', 'select', 'setmetatable', 'string', 'table', 'tonumber', 'tostring', 'type', 'unpack',
    'xpcall', '_VERSION'}) do
  globals[name] = _G[name]
end
math.random, math.randomseed = nil, nil

function globals.pcall(...)
  local function after(fine, result, ...)
    if not fine and type(result) == 'userdata' then error(result, 0) end
    if not fine and type(result) == 'table' and result.err then result = result.err end
    return fine, result, ...
  end
  return after(outer_pcall(...))
end

setmetatable(globals, {__index = function(_, name)
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end})
local environment = setmetatable({}, {__index = globals, __newindex = function()
  error('Attempt to modify a readonly table', 2)
end})
globals._G = environment

local function compile(text)
  local chunk, fault = loadstring(text, '@user_function')
  if chunk then setfenv(chunk, environment) end
  return chunk, fault
end

local function explain_loading(fault)
  if type(fault) == 'userdata' then return fault end
  return {err = type(fault) == 'table' and fault.err or tostring(fault)}
end

-- Load a library: while its text runs, the only global is redis, which only registers functions.
local function load(chunk, note)
  local loading = {}
  function loading.register_function(name, callback)
    local given = type(name) == 'table' and name or {function_name = name, callback = callback}
    note(given.function_name, given.callback, unpack(given.flags or {}))
  end
  local environment_index = getmetatable(environment)
  environment_index.__index = setmetatable({redis = loading}, {__index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end})
  local fine, fault = xpcall(chunk, explain_loading)
  environment_index.__index = globals
  return fine, fault
end

-- An error of Python is none of the script's: it goes through as it is.
local function explain(fault)
  if type(fault) == 'userdata' then return fault end
  if type(fault) ~= 'table' then fault = {err = 'ERR ' .. tostring(fault)} end
  local level, place = 2, getinfo(2, 'Sl')
  while place and place.source ~= '@user_function' do
    level = level + 1
    place = getinfo(level, 'Sl')
  end
  return {err = fault.err or 'ERR unknown error', line = place and place.currentline}
end

local function run(callback, keys, argv)
  return xpcall(function()
    local reply = callback(keys, argv)
    return reply
  end, explain)
end

local UNPACK_MAX = 7000

-- What a reply is made of: err, ok, the length up to the first nil, and the first of its elements.
local function parts(reply)
  if type(reply) ~= 'table' then return false, false, -1 end
  local length = 0
  while reply[length + 1] ~= nil do length = length + 1 end
  return reply.err, reply.ok, length, unpack(reply, 1, length < UNPACK_MAX and length or UNPACK_MAX)
end

return compile, load, run, parts, function(reply, from, to) return unpack(reply, from, to) end
"""


class Function(NamedTuple):
    """A function of a library, as one server has it."""

    name: bytes
    callback: object
    flags: frozenset[str]


class Library(NamedTuple):
    """A library, as one server has it: with variables of its own."""

    name: bytes
    text: bytes
    functions: tuple[Function, ...]


def _sha1hex(text: object) -> bytes:
    return hashlib.sha1(_word(text), usedforsecurity=False).hexdigest().encode()


def _word(value: object) -> bytes:
    """Format an argument of a command, as Redis does."""
    kind = type(value)
    if kind is int or kind is float:
        return number_text(cast("float", value))
    if kind is bytes:
        return cast("bytes", value)
    raise TypeError


def _nobody(words: Sequence[bytes]) -> object:
    raise AssertionError(f"no script is running that could call {words!r}")


class _Interpreter:
    """The only user of lupa, which has no types.  Raises ``ConfigError`` if lupa is not installed."""

    def __init__(self) -> None:
        try:
            module: Any = import_module("lupa.lua51")  # Redis embeds Lua 5.1
        except ImportError as error:
            raise ConfigError("servers in the process run Lua functions with lupa: install zkrq[testing]") from error
        runtime: Any = module.LuaRuntime(
            encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False
        )
        self._table: Callable[[Iterable[object]], object] = runtime.table_from
        self._named: Callable[[dict[bytes, bytes]], object] = runtime.table_from
        prelude = (self._call, _sha1hex, packing.pack, packing.unpack, packing.size)
        self._compile, self._load, self._run, self._parts, self._range = cast(
            "tuple[Callable[..., Any], ...]", runtime.execute(_PRELUDE, *prelude)
        )
        self._caller: Call = _nobody

    def compile(self, text: bytes) -> object:
        """Compile a text; return a function, or an error text."""
        function, fault = self._compile(text)
        return function or cast("bytes", fault).decode(errors="replace")

    def load(self, chunk: object) -> list[Function] | str:
        """Run the text of a library; return the functions that it registers, or an error text."""
        found: list[Function] = []

        def note(name: bytes, callback: object, *flags: bytes) -> None:
            found.append(Function(name, callback, frozenset(flag.decode() for flag in flags)))

        fine, fault = self._load(chunk, note)
        if fine:
            return found
        if isinstance(fault, BaseException):
            raise fault
        return cast("bytes", fault[b"err"]).decode(errors="replace")

    def run(self, function: Function, keys: Sequence[bytes], argv: Sequence[bytes], call: Call) -> object:
        outer, self._caller = self._caller, call
        try:
            fine, result = self._run(function.callback, self._table(keys), self._table(argv))
        finally:
            self._caller = outer
        if fine:
            return self._leave(result)
        if isinstance(result, packing.ScriptFault):
            return ErrorReply(f"ERR {result} script: {function.name.decode()}")
        if isinstance(result, BaseException):
            raise result
        text = cast("bytes", result[b"err"]).decode(errors="replace")
        place = f", on @user_function:{result[b'line']}." if result[b"line"] else ""  # none after a tail call
        return ErrorReply(f"{text} script: {function.name.decode()}{place}")

    def _call(self, *words: object) -> object:
        if not words:
            return self._enter(ErrorReply("ERR Please specify at least one argument for this redis lib call"))
        try:
            command = [word if type(word) is bytes else _word(word) for word in words]
        except TypeError:
            return self._enter(ErrorReply("ERR Lua redis lib command arguments must be strings or integers"))
        reply = self._caller(command)
        return reply if type(reply) is bytes or type(reply) is int else self._enter(reply)

    def _enter(self, reply: object) -> object:
        """Convert a reply for functions: null is false."""
        if reply is None:
            return False
        if type(reply) is list:
            elements = cast("list[object]", reply)
            return self._table([each if type(each) is bytes else self._enter(each) for each in elements])
        if isinstance(reply, SimpleString):
            return self._named({b"ok": bytes(reply)})
        if isinstance(reply, ErrorReply):
            return self._named({b"err": reply.text.encode()})
        return reply

    def _leave(self, value: Any) -> object:
        """Convert a function's result for clients: numbers lose their fraction, a list ends before its first nil."""
        kind = type(cast("object", value))
        if kind is bytes or kind is int:
            return value
        if value is None or value is False:
            return None
        if value is True or kind is float:
            return int(value)
        err, ok, length, *elements = self._parts(value)
        if isinstance(err, bytes):
            return ErrorReply(err.decode(errors="replace"))
        if isinstance(ok, bytes):
            return ok
        while len(elements) < length:
            elements += self._range(value, len(elements) + 1, min(length, len(elements) + 5000))
        return [each if type(each) is bytes else self._leave(each) for each in elements] if length >= 0 else None


_CHUNKS: dict[bytes, object] = {}
"""Compiled texts: functions of Lua that load a library when they are called."""

_NAME = re.compile(r"[A-Za-z0-9_]+")


@cache
def interpreter() -> _Interpreter:
    """Return the interpreter of this process.  Raises ``ConfigError`` without lupa."""
    return _Interpreter()


def load(text: bytes) -> Library | ErrorReply:
    """Load a library for one server; its text is compiled once in a process."""
    first, newline, rest = text.partition(b"\n")
    engine, *words = first.decode(errors="replace").split() or [""]
    if engine != "#!lua":
        return ErrorReply(
            f"ERR Engine {engine[2:]!r} not found" if engine[:2] == "#!" else "ERR Missing library metadata"
        )
    names = [word.partition("=")[2] for word in words if word.startswith("name=")]
    if not names:
        return ErrorReply("ERR Library name was not given")
    chunk = _CHUNKS.get(text)
    if chunk is None:
        chunk = interpreter().compile(newline + rest)
        if isinstance(chunk, str):
            return ErrorReply(f"ERR Error compiling function: {chunk}")
        _CHUNKS[text] = chunk
    functions = interpreter().load(chunk)
    if isinstance(functions, str):
        return ErrorReply(f"ERR Error registering functions: {functions}")
    if not functions:
        return ErrorReply("ERR No functions registered")
    for function in functions:
        if not _NAME.fullmatch(function.name.decode(errors="replace")) or function.flags - _FLAGS:
            return ErrorReply("ERR Error registering functions: unknown flag given, or a wrong name")
    return Library(names[0].encode(), text, tuple(functions))


def run(function: Function, keys: Sequence[bytes], argv: Sequence[bytes], call: Call) -> object:
    """Return the function's reply, an ``ErrorReply`` if it failed.  Errors of ``call`` itself are raised unchanged."""
    return interpreter().run(function, keys, argv, call)
