"""Parse the command line: every flag has an environment variable that stands in for it."""

from __future__ import annotations

import argparse
import os
import string
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

from zkrq.base.version import __version__
from zkrq.cli.command import CONNECTION, Command
from zkrq.cli.flags import Flag, attribute
from zkrq.client.environment import read_flag, variable_of
from zkrq.process.exits import Exit

JSON = Flag("json", "print JSON", bool)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(Exit.USAGE, f"{self.prog}: {message}\n")


class _Merge(argparse.Action):
    """Make one mapping of those that a flag gives."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, {**(before if isinstance(before, dict) else {}), **values})


def _add_flags(parser: argparse.ArgumentParser, flags: Iterable[Flag], prefix: str) -> None:
    for flag in flags:
        variable = variable_of(attribute(flag.name)) if flag.setting else f"{prefix}{attribute(flag.name).upper()}"
        if flag.type is bool:
            default = os.environ.get(variable) or False
            action = parser.add_argument(
                f"--{flag.name}", help=f"{flag.help} ({variable}=1)", action="store_true", default=default
            )
            action.type = partial(_read_flag, variable)  # applied to a default that is a text
            continue
        absent = flag.absent or ("" if flag.default is None else f"{flag.default}")
        default = f"default: {absent}; " if absent else ""
        several = "; may be given several times" if flag.merges else ""
        parser.add_argument(
            f"--{flag.name}",
            action=_Merge if flag.merges else "store",
            help=f"{flag.help}{several} ({default}{variable})".replace("%", "%%"),
            type=flag.type,
            default=flag.default if flag.setting else os.environ.get(variable) or flag.default,
            metavar=flag.metavar or flag.name.upper(),
        )


def _read_flag(variable: str, text: str) -> bool:
    """Read the environment variable of a flag without a value."""
    try:
        return read_flag(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"the environment variable {variable} is {text!r}: 1 or 0 expected") from error


def make_parser(commands: Sequence[Command]) -> argparse.ArgumentParser:
    """Make the parser; its result has ``run``, ``takes`` and the ``words`` of the command, and the parser itself."""
    parser = _Parser(prog="zkrq", description="A reliable work queue on independent Redis servers and ZooKeeper.")
    parser.add_argument("--version", action="version", version=f"zkrq {__version__}")
    parser.set_defaults(parser=parser)
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    groups: dict[str, Any] = {"": subparsers}
    for command in commands:
        group, _, own_name = command.name.rpartition(" ")
        if group not in groups:
            parent = subparsers.add_parser(group, help=", ".join(_members_of(group, commands)))
            groups[group] = parent.add_subparsers(metavar="COMMAND", required=True)
        sub = groups[group].add_parser(own_name, help=command.help, description=f"{command.help}.")
        for name, help in command.arguments.items():
            several = {"?...": "*", "...": "+"}.get(name.lstrip(string.ascii_letters))
            name = name.rstrip("?.")
            sub.add_argument(name, help=help, metavar=name.upper(), nargs=several)
        _add_flags(sub, command.flags, f"ZKRQ_{command.name.upper().replace(' ', '_')}_")
        if command.connected:
            _add_flags(sub, CONNECTION, "ZKRQ_")
        if not command.program:
            _add_flags(sub, (JSON,), "ZKRQ_")
        sub.set_defaults(run=command.run, takes=command.takes, words=command.name)
    return parser


def _members_of(group: str, commands: Sequence[Command]) -> list[str]:
    return [command.name.removeprefix(f"{group} ") for command in commands if command.name.startswith(f"{group} ")]
