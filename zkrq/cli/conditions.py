"""Read the flags of commands that find items, and find them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zkrq.cli.command import count
from zkrq.cli.flags import AsFlags, Takes
from zkrq.cli.progress import progress
from zkrq.operations.items import CONDITIONS, FIND

if TYPE_CHECKING:
    from zkrq.client.queue import Queue

FOUND_MAX = 100_000
"""Items that one command acts on: their ids are kept until the answer to its question."""


def conditions(*names: str) -> Takes:
    """Return the conditions of these names, as flags of a command that acts on all items that are found."""
    pages = dict.fromkeys(("limit", "after"), "the command reads all pages")
    others = {name: "the command does not ask for it" for name in FIND.by_name if name not in names}
    return Takes(FIND, {**others, **pages})


EVERY = tuple(each.name for each in CONDITIONS)
"""Names of the conditions that hold for items in any state."""

FLAGS = ", ".join(AsFlags().name(name) for name in EVERY)
"""The flags that find items, for errors."""


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
