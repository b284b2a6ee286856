"""Bound the lines that requests write into the log: strangers can send any number."""

from __future__ import annotations

import logging

LINES_MAX = 10
"""Lines of one kind in ``LINES_SECONDS``."""

LINES_SECONDS = 60.0


class FewLines(logging.Filter):
    """Pass at most ``LINES_MAX`` lines of a kind in ``LINES_SECONDS``; the next one says how many were left out.

    Lines are of one kind that have the same text before anything is put into it, so there are as many kinds as calls in
    the code.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether to write a line."""
        kind = str(record.msg)
        began, count = self._seen.get(kind, (record.created, 0))
        if not 0 <= record.created - began < LINES_SECONDS:
            if count > LINES_MAX:
                record.msg = f"{kind.rstrip()} ({count - LINES_MAX:,} more lines like this one were left out)"
            began, count = record.created, 0
        self._seen[kind] = began, count + 1
        return count < LINES_MAX
