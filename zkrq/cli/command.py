"""Describe a command of the command line: its flags, its arguments, and the lines that it yields."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from zkrq.base.errors import ZkrqError

if TYPE_CHECKING:
    from zkrq.process.exits import Exit


class Line(NamedTuple):
    """One line of output: as text for people, and as a value for ``--json``."""

    text: str
    value: object


Lines = AsyncGenerator[Line, None]


class Incomplete(ZkrqError):
    """A command did not do all that it was asked for; it says why, and ends with this exit code."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.code = code


class Flag(NamedTuple):
    """Describe ``--name``; it takes no value if the type is bool.

    Its environment variable is ``ZKRQ_COMMAND_NAME``.  A ``setting`` of ``connect()`` has the variable ``ZKRQ_NAME``,
    which ``connect()`` reads if the flag is not given.
    """

    name: str
    help: str
    type: Callable[[str], object] = str
    default: object = None
    metavar: str | None = None
    setting: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """Describe a command.

    A name of two words is a group and a command in it.  ``arguments`` are positional, name -> help: ``name...`` takes
    one or more values, ``name?...`` any number.  ``connected``: the command works on a namespace that exists.

    ``run`` yields the lines of the output.  That of a *program*, such as a worker, prints what it likes, owns its event
    loop and its signals, and returns the exit code.
    """

    name: str
    help: str
    run: Callable[[Namespace], Lines | int]
    flags: tuple[Flag, ...] = ()
    arguments: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    connected: bool = True
    program: bool = False


def attribute(flag: str) -> str:
    """Return the attribute of the parsed arguments that holds a flag's value."""
    return flag.replace("-", "_")


def count(number: int, thing: str) -> str:
    """Format a count with its noun: ``1 item``, ``2 items``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
