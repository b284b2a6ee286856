"""Define the command ``worker``: run a worker, in this process or in several that this one supervises."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

from zkrq.base.checks import check_count, check_posix
from zkrq.base.errors import ConfigError
from zkrq.cli.command import Command, open_cluster
from zkrq.cli.flags import Flag, duration
from zkrq.logs import JsonFormatter
from zkrq.process.control import Supervised
from zkrq.process.listening import read_address
from zkrq.process.program import Made, MakeWorker, run_program
from zkrq.process.supervisor import Supervisor

MOST_PROCESSES = 1_000

LOG_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"

LOGGING = (
    Flag("log-level", "debug, info, warning or error", str, "info", "LEVEL"),
    Flag("log-format", "text, or json: one object per line", str, "text", "FORM"),
)
"""The flags of every program."""


def _worker(args: Namespace) -> int:
    check_posix("worker programs")
    check_count("--processes", args.processes, least=1, most=MOST_PROCESSES)
    if args.pool is not None:
        check_count("--pool", args.pool, least=1, most=MOST_PROCESSES)
    supervised = Supervised.inherited()  # before anything else, so that it cannot reach what the module starts
    handler, level = logging_of(args)
    listen = None if args.probes is None else read_address(args.probes)
    if not supervised and (args.reload or args.processes > 1):
        logging.basicConfig(level=level, handlers=[handler])
        supervisor = Supervisor(args.processes, reload=args.reload, burst=args.burst, listen=listen)
        return asyncio.run(supervisor.run())
    with supervised.watching() if supervised else nullcontext():
        make = load(args.target)
        logging.basicConfig(level=level, handlers=[handler])  # does nothing if the module has configured it
        cluster = open_cluster(args, found=None)
        return run_program(
            make,
            cluster,
            grace=args.grace,
            burst=args.burst,
            children=args.pool,
            supervised=supervised,
            listen=listen,
        )


def logging_of(args: Namespace) -> tuple[logging.Handler, int]:
    """Return the handler and the level that ``LOGGING`` names.  Raises ``ConfigError``."""
    level = logging.getLevelNamesMapping().get(args.log_level.upper())
    if level is None:
        raise ConfigError(f"--log-level is {args.log_level!r}: debug, info, warning or error")
    if args.log_format not in ("text", "json"):
        raise ConfigError(f"--log-format is {args.log_format!r}: text or json")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if args.log_format == "json" else logging.Formatter(LOG_FORMAT))
    return handler, level


def load(target: str) -> MakeWorker:
    """Return the function that ``module:function`` names; the module may lie in the current directory.

    Raises ``ConfigError``, also if the module cannot be imported: its traceback is printed then.
    """
    name, _, attribute = target.partition(":")
    if not name or not attribute:
        raise ConfigError(f"TARGET is {target!r}: module:function is expected")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        try:
            there = find_spec(name) is not None
        except ModuleNotFoundError:
            there = False
        if not there:
            raise ConfigError(f"there is no module {name!r}, neither installed nor in {os.getcwd()}")
        found: object = import_module(name)
    except ConfigError:
        raise
    except Exception as error:
        traceback.print_exception(error)
        reason = "".join(traceback.format_exception_only(error)).strip()
        raise ConfigError(f"module {name!r} cannot be imported, as the traceback shows: {reason}") from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigError(f"module {name!r} has no function {attribute!r}; it takes a cluster and returns a Worker")
    if not _takes_one(found):
        raise ConfigError(f"{target} takes {inspect.signature(found)}: {_NO_HANDLER}")
    return _explained(target, cast("MakeWorker", found))


_NO_HANDLER = (
    "TARGET is the function that takes the cluster and returns a zkrq.Worker; a handler is given to "
    "Worker().add(cluster.queue(...), handler) in it"
)


def _takes_one(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # written in C
        pass
    return True


def _explained(target: str, make: MakeWorker) -> MakeWorker:
    """Return the same function, whose mistakes are errors to correct: a service manager must not start it again."""

    async def explained(cluster: Any) -> Made:
        try:
            made = make(cluster)
            return await made if inspect.isawaitable(made) else made
        except (TypeError, AttributeError, LookupError) as error:
            traceback.print_exception(error)
            reason = "".join(traceback.format_exception_only(error)).strip()
            raise ConfigError(
                f"{target} was called with the cluster and failed, as the traceback shows: {reason}; {_NO_HANDLER}"
            ) from error

    return explained


COMMANDS = (
    Command(
        "worker",
        "run a worker until SIGTERM or SIGINT, then drain",
        _worker,
        (
            duration("grace", "that handlers have to finish after a signal; default: the worker's"),
            Flag("burst", "end when the queues are empty", bool, False),
            Flag("pool", "run handlers in N child processes, under one client", int, None, "N"),
            Flag("processes", "number of processes, each with a client; restarted when they crash", int, 1, "N"),
            Flag("reload", "restart when a Python file below the current directory changes", bool, False),
            Flag("probes", "answer /livez, /readyz and /metrics; without HOST on loopback", str, None, "[HOST:]PORT"),
            *LOGGING,
        ),
        {"target": "module:function; function(cluster) returns a zkrq.Worker"},
        program=True,
    ),
)
