"""Define the calls about the progress of the work on claimed items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zkrq.protocol.calls.call import Body, Call


@dataclass(frozen=True, slots=True)
class Report(Call[bool]):
    """Keep a report of the holder of a claim on this server; return whether the claim holds there."""

    script: ClassVar[str] = "report"
    queue: str
    id: str
    token: str
    text: str

    def read(self, body: Body) -> bool:
        (kept,) = body
        return kept == 1


class ToldReport(NamedTuple):
    """A report, and how long ago it came."""

    age_us: int
    text: str


@dataclass(frozen=True, slots=True)
class ToldReports(Call[Sequence["ToldReport | None"]]):
    """Read the reports about items; None for one about which nothing is known."""

    script: ClassVar[str] = "told_reports"
    queue: str
    items: Sequence[str]

    def read(self, body: Body) -> Sequence[ToldReport | None]:
        (flat,) = body
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return [None if age < 0 else ToldReport(age, text.decode(errors="replace")) for age, text in pairs]
