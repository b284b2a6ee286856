"""Define the command ``completion``: print a script that completes commands and flags in a shell.

shtab makes the script from the parser.  It is static, so that completing starts no Python and asks no server; queue
names are not completed, because each would cost a connection.
"""

from __future__ import annotations

from argparse import Namespace
from importlib import import_module
from typing import Any

from zkrq.base.errors import ConfigError
from zkrq.cli.command import Command, Line, Lines

SHELLS = ("bash", "zsh")


async def _completion(args: Namespace) -> Lines:
    if args.shell not in SHELLS:
        raise ConfigError(f"SHELL is {args.shell!r}: {' or '.join(SHELLS)}")
    try:
        shtab: Any = import_module("shtab")
    except ImportError as error:
        raise ConfigError("completion needs shtab: pip install 'zkrq[cli]'") from error
    yield Line(shtab.complete(args.parser, shell=args.shell), {"shell": args.shell})


COMMANDS = (
    Command(
        "completion",
        'print the completion of this shell: eval "$(zkrq completion bash)"',
        _completion,
        arguments={"shell": "bash or zsh"},
        connected=False,
    ),
)
