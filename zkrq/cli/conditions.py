"""Make the flags of commands that find items."""

from __future__ import annotations

from zkrq.cli.flags import AsFlags, Takes
from zkrq.operations.items import CONDITIONS, FIND


def conditions(*names: str) -> Takes:
    """Return the conditions of these names, as flags of a command that acts on all items that are found."""
    pages = dict.fromkeys(("limit", "after"), "the command reads all pages")
    others = {name: "the command does not ask for it" for name in FIND.by_name if name not in names}
    return Takes(FIND, {**others, **pages})


EVERY = tuple(each.name for each in CONDITIONS)
"""Names of the conditions that hold for items in any state."""

FLAGS = ", ".join(AsFlags().name(name) for name in EVERY)
"""The flags that find items, for errors."""
