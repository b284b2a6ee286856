"""Define what a command may return besides plain values, and how it is refused."""

from __future__ import annotations


class SimpleString(bytes):
    """A status reply such as OK: clients see its bytes, scripts a table."""


class Refusal(Exception):
    """A command cannot be executed; the client gets an ``ErrorReply`` with this text."""


OK = SimpleString(b"OK")

SYNTAX = "ERR syntax error"
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NOT_AN_INTEGER = "ERR value is not an integer or out of range"
"""Error texts of several commands."""


def wrong_arity(name: str) -> str:
    return f"ERR wrong number of arguments for '{name.lower()}' command"


def number_text(number: float) -> bytes:
    """Format a double as Redis does: 17 significant digits, integers without a point."""
    return b"%.17g" % number
