"""The bar of navigation that every page has: one row for each page that is not about one thing alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """A page in the bar: what the link says, and its path.  Templates name the path as ``here``."""

    title: str
    path: str


PLACES: Sequence[Place] = (
    Place("Queues", "/"),
    Place("Failures", "/failures"),
    Place("Schedules", "/schedules"),
    Place("Flows", "/flows"),
    Place("Jobs", "/jobs"),
    Place("Consumers", "/consumers"),
    Place("Servers", "/servers"),
    Place("Audit", "/audit"),
)
"""The pages in the order of the bar."""
