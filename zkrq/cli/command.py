"""Describe a command of the command line: its flags, its arguments, and the lines that it yields.

Nearly every command connects, so the flags that say to which servers and which namespace stand here, too.
"""

from __future__ import annotations

import dataclasses
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from zkrq.base.errors import ZkrqError
from zkrq.base.meant import nearest
from zkrq.base.settings import DEFAULTS
from zkrq.cli.flags import Flag, Takes, attribute, duration
from zkrq.client.connecting import connect, looker
from zkrq.client.environment import VARIABLES
from zkrq.client.texts import show_count
from zkrq.process.exits import Exit

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster


class Line(NamedTuple):
    """One line of output: as text for people, and as a value for ``--json``."""

    text: str
    value: Mapping[str, object]


Lines = AsyncGenerator[Line, None]


class Incomplete(ZkrqError):
    """A command did not do all that it was asked for; it says why, and ends with this exit code."""

    def __init__(self, message: str, code: Exit = Exit.TROUBLE) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Command:
    """Describe a command.

    A name of two words is a group and a command in it.  ``arguments`` are positional, name -> help: ``name...`` takes
    one or more values, ``name?...`` any number.  ``connected``: the command works on a namespace that exists.
    ``takes``: the parameters of an operation, which are flags and arguments, too; ``run`` finds what was given of them
    as ``given``, checked.

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
    takes: Takes | None = None

    def __post_init__(self) -> None:
        if self.takes:
            object.__setattr__(self, "flags", (*self.takes.flags, *self.flags))
            if not self.takes.arguments.keys() <= self.arguments.keys():  # else they have an order of their own
                object.__setattr__(self, "arguments", {**self.takes.arguments, **self.arguments})


count = show_count
"""What the commands call it."""


async def note_new(cluster: Cluster, queue: str) -> None:
    """Say on stderr if a queue that is changed was never used before: its name may be misspelt."""
    if queue not in (known := await cluster.queues()):
        sys.stderr.write(f"queue {queue!r} is new: nothing of it was known before{nearest(queue, known)}\n")


async def note_missing(cluster: Cluster, queue: str) -> None:
    """Say on stderr if a queue that a command looks at, or takes items from, is not there: its name may be misspelt.

    That is no error, because a queue is not there before its first push either.  A queue with items costs one call.
    """
    if not any((await cluster.statistics([queue]))[queue].sizes):
        write_missing(queue, await cluster.queues())


def write_missing(queue: str, known: Collection[str]) -> None:
    """Say on stderr that a queue is not among those that are there; nothing if it is."""
    if queue not in known:
        sys.stderr.write(f"there is no queue {queue!r}{nearest(queue, known)}\n")


# -- connecting --------------------------------------------------------------------------------------------------------


def setting(name: str, help: str, metavar: str | None = None) -> Flag:
    """Return the flag of a setting of ``connect()``, read as its environment variable is."""
    return Flag(name, help, VARIABLES[attribute(name)].read, None, metavar, setting=True)


# No flag takes a password, because every user of the machine sees a command's arguments; ZKRQ_REDIS_AUTH and
# ZKRQ_ZOOKEEPER_AUTH do, or better files that ZKRQ_REDIS_AUTH_FILE and ZKRQ_ZOOKEEPER_AUTH_FILE name.
CONNECTION = (
    setting("redis", "the Redis servers: url,url,url or name=url,name=url,name=url", "URLS"),
    setting("zookeeper", "the ZooKeeper servers: host:port,host:port,host:port", "HOSTS"),
    setting("redis-tls", "certificates for rediss://: 1 or ca_certs=FILE,certfile=FILE,keyfile=FILE", "FILES"),
    setting("zookeeper-tls", "certificates for TLS to ZooKeeper, in the same form", "FILES"),
    setting("namespace", f"the namespace's name; default: {DEFAULTS.namespace}"),
    setting("description", "describes this process in `zkrq consumers`; default: host:pid"),
    duration(
        "session-timeout",
        f"until ZooKeeper ends the session of a silent process; default: {DEFAULTS.session_timeout:g}",
        setting=True,
    ),
    duration(
        "command-timeout",
        f"until a silent Redis server counts as dead; default: {DEFAULTS.command_timeout:g}",
        setting=True,
    ),
    duration(
        "operation-timeout",
        f"during which a push or an ack is retried; default: {DEFAULTS.operation_timeout:g}",
        setting=True,
    ),
)


def look_at(args: Namespace) -> Cluster:
    """Make the cluster of a command that only shows something: it never changes the view, whatever it meets."""
    return looker(**settings_of(args), found=False)


def open_cluster(args: Namespace, *, found: bool | None = False, **more: Any) -> Cluster:
    """Make the cluster that the flags and the environment name, to be opened with ``async with``.

    A command that only shows something uses ``look_at``.  ``found``: whether to found the namespace, None: as the
    environment says.  ``more``: further arguments for ``connect``.
    """
    return connect(**settings_of(args), found=found, **more)


def settings_of(args: Namespace) -> dict[str, Any]:
    """Return the settings that the flags name, as arguments of ``connect``; None for those that are not given, and for
    passwords, which the environment has."""
    named = {name: getattr(args, name) for name in (attribute(flag.name) for flag in CONNECTION)}
    return {**named, "redis_auth": None, "zookeeper_auth": None}
