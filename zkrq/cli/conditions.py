"""Read the flags of commands that find items, and find them."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any

from zkrq.cli.command import count
from zkrq.cli.flags import Flag
from zkrq.cli.progress import progress

if TYPE_CHECKING:
    from zkrq.client.queue import Queue

FOUND_MAX = 100_000
"""Items that one command acts on: their ids are kept until the answer to its question."""


def read_header(text: str) -> tuple[str, str]:
    """Read NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ArgumentTypeError(f"NAME=VALUE expected, as in campaign=spring, not {text!r}")
    return name, value


ERROR = Flag("error", "that failed for a reason that contains this text, in upper or lower case", metavar="TEXT")

GROUP = Flag("group", "of this group")

CONDITIONS = (
    Flag("key", "that have this key"),
    Flag("header", "that have this header", read_header, metavar="NAME=VALUE"),
    ERROR,
    GROUP,
)
"""Flags of commands that find items."""

STATE = Flag("state", "in this state: ready, scheduled, claimed or dead; default: any")


def conditions_of(args: Namespace) -> dict[str, Any]:
    """Return the conditions that were given, as arguments of ``Queue.find``."""
    given = {name: getattr(args, name, None) for name in ("key", "header", "error", "group")}
    return {name: value for name, value in given.items() if value is not None}


async def found_ids(queue: Queue[Any], **conditions: Any) -> dict[str, str]:
    """Return the ids of the items that are found, at most ``FOUND_MAX``, each with the item's state."""
    states: dict[str, str] = {}
    with progress("found") as show:
        async for item in queue.find(**conditions):
            states[item.id] = item.state
            show(len(states))
            if len(states) == FOUND_MAX:
                break
    return states


def counted(states: dict[str, str], thing: str = "item") -> str:
    """Say how many were found."""
    return f"{'the first ' if len(states) == FOUND_MAX else ''}{count(len(states), thing)}"


def may_be_more(states: dict[str, str]) -> str:
    """Say that there may be more than a command acts on."""
    return "; there may be more: repeat the command" if len(states) == FOUND_MAX else ""
