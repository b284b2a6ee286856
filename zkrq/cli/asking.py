"""Ask before anything is done that cannot be undone."""

from __future__ import annotations

import sys
from argparse import Namespace

from zkrq.base.errors import ConfigError
from zkrq.cli.command import Incomplete
from zkrq.cli.flags import Flag
from zkrq.cli.stdin import stdin_lines

YES = Flag("yes", "do not ask", bool, False)
"""The flag of every command that asks."""


async def confirm(args: Namespace, deed: str) -> None:
    """Ask whether to do this, unless ``--yes`` was given.

    Raises ``Incomplete`` if the answer is no, ``ConfigError`` where there is no terminal to ask on.
    """
    if args.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"to {deed} without being asked on a terminal, give --yes")
    sys.stderr.write(f"{deed[0].upper()}{deed[1:]}? [y/N] ")
    sys.stderr.flush()
    async for lines in stdin_lines():
        if lines[0].strip().lower() in (b"y", b"yes"):
            return
        break
    raise Incomplete("nothing was done")
