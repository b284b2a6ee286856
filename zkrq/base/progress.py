"""Tell how far the work on an item is: what its handler reports, and what others read."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zkrq.base.checks import check_text
from zkrq.base.errors import ConfigError

TEXT_MAX = 200
"""Characters kept of the text of a report."""


@dataclass(frozen=True, slots=True)
class WorkProgress:
    """How far the work on a claimed item is, as its handler reported last.

    ``fraction``: 0 to 1, None if the handler gave none.  ``text``: what it said, perhaps empty.  ``age``: seconds since
    the report.
    """

    fraction: float | None
    text: str
    age: float

    def __str__(self) -> str:
        share = "" if self.fraction is None else f"{100 * self.fraction:.0f} %"
        return ", ".join(part for part in (share, self.text) if part) or "begun"


def encode_report(fraction: float | None, text: str) -> str:
    """Return a report as it is sent.  Raises ``ConfigError``."""
    share = ""
    if fraction is not None:
        if isinstance(fraction, bool) or not isinstance(fraction, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"the progress must be a number from 0 to 1, not {type(fraction).__name__}")
        if not (math.isfinite(fraction) and 0 <= fraction <= 1):
            raise ConfigError(f"the progress is {fraction}: must be 0 to 1")
        share = f"{fraction:.6g}"
    said = check_text("the text of the progress", text)[:TEXT_MAX].encode(errors="replace").decode()
    return f"{share} {said}"


def decode_report(report: str, age: float) -> WorkProgress:
    """Read a report that came ``age`` seconds ago."""
    share, _, text = report.partition(" ")
    return WorkProgress(float(share) if share else None, text, age)
