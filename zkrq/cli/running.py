"""Run one command: ``zkrq``, or ``python -m zkrq``.

Errors are one line on stderr.  The exit code is 2 for errors to correct, 1 for errors that may pass.  Signals are
handled here and nowhere else.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import aclosing
from importlib import import_module
from typing import cast

from zkrq.cli import items, queues, servers, trying
from zkrq.cli.parsing import EXIT_USAGE, make_parser
from zkrq.errors import ConfigError, ZkrqError

EXIT_TROUBLE, EXIT_SIGNAL = 1, 128

COMMANDS = (*trying.COMMANDS, *items.COMMANDS, *queues.COMMANDS, *servers.COMMANDS)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit code."""
    args = make_parser(COMMANDS).parse_args(arguments)
    logging.getLogger("zkrq").addHandler(logging.NullHandler())  # errors that matter are printed below
    try:
        with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
            runner.run(_carry_out(args))
    except KeyboardInterrupt:
        return EXIT_SIGNAL + signal.SIGINT
    except asyncio.CancelledError:
        return EXIT_SIGNAL + signal.SIGTERM
    except Exception as error:
        return _account_for(args.command, _first(error))
    return 0


async def _carry_out(args: Namespace) -> None:
    task = asyncio.current_task()
    assert task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with aclosing(args.run(args)) as lines:
        async for line in lines:
            sys.stdout.write(f"{json.dumps(line.value) if args.json else line.text}\n")
            sys.stdout.flush()


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop if it is installed (extra ``uvloop``); None means asyncio's own."""
    try:
        return cast("Callable[[], asyncio.AbstractEventLoop]", import_module("uvloop").new_event_loop)
    except ImportError:
        return None


def _account_for(command: str, error: BaseException) -> int:
    match error:
        case ZkrqError():
            sys.stderr.write(f"zkrq {command}: {' '.join(str(error).split())}\n")
            return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_TROUBLE
        case BrokenPipeError():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone, so do not complain
            return EXIT_TROUBLE
        case _:
            raise error  # a bug: the traceback is wanted


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
