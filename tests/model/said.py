"""What every rule of the protocol says of itself."""

from __future__ import annotations

import enum


class Said(enum.Enum):
    """Number of the rule in the contract, 0 for what its text says; what it says; what goes wrong without it."""

    __hash__ = object.__hash__  # enum's own is written in Python, and rules are looked up everywhere

    def __init__(self, number: int, says: str, without: str) -> None:
        self.number = number
        self.says = says
        self.without = without

    @property
    def label(self) -> str:
        """The name on the command line."""
        return self.name.lower().replace("_", "-")
