"""Tell users of a name or an option that it goes, and what to use in its place: two minor releases before it goes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

NOTICE = 2
"""Minor releases in which a deprecated name still works, with a warning."""


class ZkrqDeprecated(DeprecationWarning):
    """What was used works for now, and goes in the release that the text names, with what to use in its place."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Deprecation:
    """One name or option that goes.

    ``old``: as users write it.  ``new``: what they write in its place.  ``since``: the release that said so first,
    such as "0.3".
    """

    old: str
    new: str
    since: str

    @property
    def removed_in(self) -> str:
        """The first release without it."""
        major, minor = map(int, self.since.split("."))
        return f"{major}.{minor + NOTICE}"

    def is_due(self, version: str) -> bool:
        """Tell whether a release of this version must not have it any more."""
        return _numbers(version) >= _numbers(self.removed_in)

    def warn(self, stacklevel: int = 1) -> None:
        """Warn the caller of the function that calls this; ``stacklevel``: 2 for the one above, and so on."""
        text = f"{self.old} is deprecated since zkrq {self.since} and goes in {self.removed_in}: use {self.new}"
        warnings.warn(text, ZkrqDeprecated, stacklevel=stacklevel + 2)


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


RENAMED: dict[str, tuple[str, Deprecation]] = {}
"""Old names of the package ``zkrq``, which its ``__getattr__`` finds: name -> the present name, and the deprecation."""

DEPRECATED: tuple[Deprecation, ...] = ()
"""Everything else that is deprecated now: made here, and used where the old name or option is (``warn``).  A test fails
when one of all these is due: then it is removed."""
