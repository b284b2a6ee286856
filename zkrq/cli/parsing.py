"""Parse the command line: every flag has an environment variable that gives its default."""

from __future__ import annotations

import argparse
import os
import string
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import zkrq
from zkrq.cli.command import Command, Flag, attribute
from zkrq.cli.connection import CONNECTION

EXIT_USAGE = 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def _add_flags(parser: argparse.ArgumentParser, flags: Iterable[Flag], prefix: str) -> None:
    for flag in flags:
        variable = f"{prefix}{attribute(flag.name).upper()}"
        if flag.type is bool:
            given = os.environ.get(variable, "0") not in ("", "0")
            parser.add_argument(
                f"--{flag.name}", help=f"{flag.help} ({variable}=1)", action="store_true", default=given
            )
            continue
        default = "" if flag.default is None else f"default: {flag.default}; "
        parser.add_argument(
            f"--{flag.name}",
            help=f"{flag.help} ({default}{variable})",
            type=flag.type,
            default=os.environ.get(variable) or flag.default,
            metavar=flag.metavar or flag.name.upper(),
        )


def make_parser(commands: Sequence[Command]) -> argparse.ArgumentParser:
    """Make the parser; its result has the ``run`` function of the command that was given."""
    parser = _Parser(prog="zkrq", description="A reliable work queue on independent Redis servers and ZooKeeper.")
    parser.add_argument("--version", action="version", version=f"zkrq {zkrq.__version__}")
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
        json_by_default = os.environ.get("ZKRQ_JSON", "0") not in ("", "0")
        sub.add_argument("--json", help="print JSON (ZKRQ_JSON=1)", action="store_true", default=json_by_default)
        sub.set_defaults(run=command.run)
    return parser


def _members_of(group: str, commands: Sequence[Command]) -> list[str]:
    return [command.name.removeprefix(f"{group} ") for command in commands if command.name.startswith(f"{group} ")]
