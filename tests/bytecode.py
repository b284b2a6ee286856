"""What the functions of a Lua text really assign and read: taken from its bytecode, where no name can be misread."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple, cast

HEADER_BYTES = 12
GETGLOBAL, SETGLOBAL, SETUPVAL = 5, 7, 8


class Function(NamedTuple):
    """One function, and those that it makes."""

    line: int
    parameters: tuple[str, ...]
    lasting: tuple[str, ...]
    """Its local variables that are still there at its end: those of no block."""
    upvalues: tuple[str, ...]
    reads: frozenset[str]
    """Globals."""
    assigns: frozenset[str]
    """Globals."""
    changes: frozenset[str]
    """Variables of the functions around it."""
    inner: tuple[Function, ...]

    def all(self) -> Iterator[Function]:
        """This function and all within it."""
        yield self
        for each in self.inner:
            yield from each.all()


class _Reader:
    def __init__(self, dump: bytes) -> None:
        self._dump = dump
        self._at = HEADER_BYTES

    def _take(self, form: str) -> Any:
        size = struct.calcsize(f"<{form}")
        (value,) = struct.unpack_from(f"<{form}", self._dump, self._at)
        self._at += size
        return value

    def _text(self) -> str:
        size = self._take("Q")
        found = self._dump[self._at : self._at + size]
        self._at += size
        return found[:-1].decode(errors="replace")

    def _constant(self) -> object:
        match self._take("B"):
            case 1:
                return bool(self._take("B"))
            case 3:
                return self._take("d")
            case 4:
                return self._text()
            case _:
                return None

    def function(self) -> Function:
        self._text()
        line, _, _, parameters, _, _ = (self._take(form) for form in "iiBBBB")
        code: list[int] = [self._take("I") for _ in range(self._take("i"))]
        constants = [self._constant() for _ in range(self._take("i"))]
        inner = tuple(self.function() for _ in range(self._take("i")))
        for _ in range(self._take("i")):
            self._take("i")
        locals_ = [(self._text(), self._take("i"), self._take("i")) for _ in range(self._take("i"))]
        upvalues = [self._text() for _ in range(self._take("i"))]

        def named(operation: int) -> frozenset[str]:
            found = (each >> 14 for each in code if each & 63 == operation)
            return frozenset(cast("str", constants[index]) for index in found)

        return Function(
            line,
            tuple(name for name, _, _ in locals_[:parameters]),
            tuple(name for name, _, end in locals_ if end == len(code) - 1),
            tuple(upvalues),
            named(GETGLOBAL),
            named(SETGLOBAL),
            frozenset(upvalues[each >> 23] for each in code if each & 63 == SETUPVAL),
            inner,
        )


def read(text: str) -> Function:
    """The chunk of a Lua text.  Raises ``SyntaxError``, also beyond Lua's limits for locals and upvalues."""
    lua: Any = import_module("lupa.lua51")
    runtime = lua.LuaRuntime(encoding=None)
    compiled = runtime.eval(
        b"function(t) local f, fault = loadstring(t) if not f then return f, fault end return string.dump(f) end"
    )(text.encode())
    if not isinstance(compiled, bytes):
        raise SyntaxError(compiled[1].decode())
    return _Reader(compiled).function()
