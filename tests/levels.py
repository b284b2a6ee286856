"""The release after this one, for tests of the machinery of levels: it speaks one level more."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from unittest.mock import patch

from zkrq.client import upgrading
from zkrq.client.examining import reading
from zkrq.protocol import levels, refounding
from zkrq.protocol.levels import RELEASES, SPOKEN, AtLevel, Levels

LATER = SPOKEN.highest + 1
"""The level of that release."""

RELEASE = "9.9.0"
"""Its name."""


class Later(AtLevel):
    """What comes with it."""

    THING = ("a new thing", LATER)


@contextlib.contextmanager
def later_release() -> Generator[None]:
    """Have the code of this process be that release, in its functions that ask what it speaks."""
    spoken = Levels(SPOKEN.lowest, LATER)
    with contextlib.ExitStack() as stack:
        for module in (levels, refounding, reading, upgrading):
            stack.enter_context(patch.object(module, "SPOKEN", spoken))
        stack.enter_context(patch.dict(RELEASES, {LATER: RELEASE}))
        yield
