"""Summarise why a delivery failed, as it is kept with the item: one text, with a summary of the traceback."""

from __future__ import annotations

import os
import traceback
from pathlib import PurePath

REASON_MAX = 1000
"""Characters that are kept in total; ``lua/settle.lua`` has the same limit, in bytes."""

MESSAGE_MAX = 500
"""Characters that are kept of an exception's own message."""

FRAMES_MAX = 5
"""Innermost calls of the traceback that are kept."""

_OUR_OWN = f"{PurePath(__file__).parents[1]}{os.sep}"

_BEHIND = "\0"
"""Separates the reason from the traceback; no reason contains it."""


def reason_of(error: BaseException) -> str:
    """Return what is kept of an exception: its type and message, then its traceback, innermost call first."""
    message = f"{type(error).__name__}: {error}".replace(_BEHIND, " ")[:MESSAGE_MAX]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OUR_OWN)]
    places = [
        f"{'/'.join(PurePath(frame.filename).parts[-2:])}:{frame.lineno} in {frame.name}"
        for frame in reversed(frames[-FRAMES_MAX:])
    ]
    return _BEHIND.join((message, "\n".join(places))) if places else message


def split(note: str) -> tuple[str | None, str | None]:
    """Return the reason and the summary of the traceback, None for one that is missing."""
    reason, _, summary = note.partition(_BEHIND)
    return reason or None, summary or None
