"""Run one command: ``zkrq``, or ``python -m zkrq``.

Errors are one line on stderr.  The exit code is 2 for errors to correct, 1 for errors that may pass.  Signals are
handled here, and those of workers in ``zkrq.program``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from argparse import Namespace
from contextlib import aclosing, suppress
from typing import cast

from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.cli import (
    completion,
    damaged,
    doctor,
    failures,
    figures,
    flows,
    items,
    moving,
    pop,
    push,
    queues,
    removing,
    schedules,
    serve,
    servers,
    settings,
    shards,
    top,
    trying,
    upgrade,
    worker,
)
from zkrq.cli.command import Incomplete, Lines
from zkrq.cli.parsing import make_parser
from zkrq.process.exits import Exit
from zkrq.process.program import fastest_loop

COMMANDS = (
    *trying.COMMANDS,
    *worker.COMMANDS,
    *serve.COMMANDS,
    *push.COMMANDS,
    *pop.COMMANDS,
    *items.COMMANDS,
    *queues.COMMANDS,
    *figures.COMMANDS,
    *failures.COMMANDS,
    *settings.COMMANDS,
    *schedules.COMMANDS,
    *flows.COMMANDS,
    *top.COMMANDS,
    *removing.COMMANDS,
    *moving.COMMANDS,
    *damaged.COMMANDS,
    *servers.COMMANDS,
    *upgrade.COMMANDS,
    *shards.COMMANDS,
    *doctor.COMMANDS,
    *completion.COMMANDS,
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit code."""
    args = make_parser(COMMANDS).parse_args(arguments)
    logging.getLogger("zkrq").addHandler(logging.NullHandler())  # errors that matter are printed below
    try:
        args.given = args.takes.read(args) if args.takes else {}
        outcome: Lines | int = args.run(args)
        if isinstance(outcome, int):
            return outcome
        with asyncio.Runner(loop_factory=fastest_loop()) as runner:
            runner.run(_carry_out(args, outcome))
    except KeyboardInterrupt:
        return Exit.SIGNAL + signal.SIGINT
    except asyncio.CancelledError:
        return Exit.SIGNAL + signal.SIGTERM
    except Exception as error:
        return _account_for(args.words, _first(error))
    return Exit.DONE


async def _carry_out(args: Namespace, output: Lines) -> None:
    task = asyncio.current_task()
    assert task
    with suppress(NotImplementedError):  # on Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with aclosing(output) as lines:
        async for line in lines:
            sys.stdout.write(f"{json.dumps(line.value) if args.json else line.text}\n")
            sys.stdout.flush()


def _account_for(command: str, error: BaseException) -> int:
    match error:
        case ZkrqError():
            sys.stderr.write(f"zkrq {command}: {' '.join(str(error).split())}\n")
            if isinstance(error, Incomplete):
                return error.code
            return Exit.USAGE if isinstance(error, ConfigError) else Exit.TROUBLE
        case BrokenPipeError():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone, so do not complain
            return Exit.TROUBLE
        case _:
            raise error  # a bug: the traceback is wanted


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
