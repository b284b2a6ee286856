"""Arrange the queues as a table: sorted, filtered, what needs attention first, empty queues apart, with totals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from zkrq.client.backlog import TREND_SECONDS
from zkrq.client.texts import show_backlog, show_count, show_duration, show_pause

if TYPE_CHECKING:
    from zkrq.client.backlog import Backlog
    from zkrq.client.inspection import Statistics
    from zkrq.serve.curves import Curve

QUEUES_SHOWN = 200
"""Queues in the table: the first ones in its order."""

EMPTY_SHOWN = 1_000
"""Names of empty queues below the table."""

TEXT_MAX = 200
"""Characters of a text that is looked for."""

IDLE = 0.05
"""Items per second; a queue through which fewer pass is idle."""

LATE_SECONDS = 300.0
"""Seconds after which the oldest ready item of a queue that is not paused is worth a word."""


LASTING_SECONDS = 3600.0
"""Seconds for which a backlog lasts, at its present rate, before the list of queues says when it is gone."""

UNTAKEN_SECONDS = 30.0
"""Seconds without a claim after which the page says that no consumer takes the ready items of a queue."""


class Row(NamedTuple):
    """A queue in the table.  ``pushed`` and ``removed``: items per second now, None while it is not known.

    ``untaken``: seconds for which no consumer has taken any of its ready items.  ``trend``: whether these grow.
    """

    name: str
    figures: Statistics
    pushed: float | None = None
    removed: float | None = None
    curve: Curve | None = None
    untaken: float = 0.0
    trend: Backlog | None = None

    @property
    def depth(self) -> int:
        """How many items it has, in any state."""
        return sum(self.figures.sizes)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to see: no item and no pause, and nothing passes."""
        return not (self.depth or self.figures.paused or self.figures.away or (self.pushed or 0) >= IDLE)

    @property
    def is_late(self) -> bool:
        """Whether its oldest ready item waits for long, though claims are not paused."""
        return (self.figures.oldest_ready or 0) >= LATE_SECONDS and not self.figures.paused

    @property
    def waits(self) -> str:
        """What is said of a queue that is late, or whose items nobody takes; empty for any other.

        A limit explains why items wait.  Without one, nothing is claimed if no claim is seen and no item leaves: where
        handlers are quick, most looks see no claim.
        """
        if not self.is_late and self.untaken < UNTAKEN_SECONDS:
            return ""
        if self.figures.limited:
            what = "at its limit"
        elif self.untaken >= UNTAKEN_SECONDS:
            what = "no consumer takes any"
        elif not self.figures.sizes.claimed and self.removed is not None and self.removed < IDLE:
            what = "nothing is claimed"
        else:
            what = "late"
        return f"{what}: waits {show_duration(self.figures.oldest_ready or 0)}"

    @property
    def outlook(self) -> str:
        """What is said of a backlog that grows, or lasts for longer than ``LASTING_SECONDS``; empty for any other.

        Items that wait for less than ``TREND_SECONDS`` are no backlog: there are more or fewer at each look.
        """
        trend = self.trend
        if trend is None or (self.figures.oldest_ready or 0) < TREND_SECONDS:
            return ""
        if trend.seconds_left is None:
            return show_backlog(trend) if trend.per_second else ""
        return f"gone in {show_duration(trend.seconds_left)}" if trend.seconds_left > LASTING_SECONDS else ""

    @property
    def troubles(self) -> Sequence[str]:
        """What needs attention, in a few words each, the worst first."""
        told = ["some items not counted"] if self.figures.away else []
        if self.waits:
            told.append(self.waits)
        if self.outlook:
            told.append(self.outlook)
        if self.figures.sizes.dead:
            told.append(show_count(self.figures.sizes.dead, "dead letter"))
        if self.figures.paused:
            told.append(show_pause(self.figures))
        if self.figures.limited:
            told.append(self.figures.limited)
        return told

    @property
    def alarms(self) -> Sequence[str]:
        """Those of the troubles that are shown in red: all but what somebody has set, and waits that are not long."""
        waits = self.waits if self.figures.limited or not self.is_late else ""
        others = (self.outlook, show_pause(self.figures), self.figures.limited, waits)
        return [trouble for trouble in self.troubles if trouble not in others]

    @property
    def urgency(self) -> int:
        """How soon somebody should look, for the order of the table; 0: no trouble."""
        late = self.is_late and not self.figures.limited
        return 4 * bool(self.figures.away or late) + 2 * bool(self.figures.sizes.dead) + self.figures.paused


class Totals(NamedTuple):
    """What the queues of a table have together."""

    queues: int
    ready: int
    scheduled: int
    claimed: int
    dead: int
    oldest: float | None
    pushed: float
    removed: float


@dataclass(frozen=True, slots=True)
class Column:
    """A column by which the table can be sorted.  ``falling``: whether the largest come first when it is chosen."""

    name: str
    value: Callable[[Row], Any]
    falling: bool = True


COLUMNS: Mapping[str, Column] = {
    "name": Column("queue", lambda row: row.name, falling=False),
    "trouble": Column("attention", lambda row: (row.urgency, row.depth)),
    "ready": Column("ready", lambda row: row.figures.sizes.ready),
    "scheduled": Column("scheduled", lambda row: row.figures.sizes.scheduled),
    "claimed": Column("claimed", lambda row: row.figures.sizes.claimed),
    "dead": Column("dead", lambda row: row.figures.sizes.dead),
    "oldest": Column("oldest waits", lambda row: row.figures.oldest_ready or 0.0),
    "pushed": Column("pushed / s", lambda row: row.pushed or 0.0),
    "removed": Column("removed / s", lambda row: row.removed or 0.0),
}
"""The columns of the table by the name that an address has for them."""


class Choice(NamedTuple):
    """What somebody wants to see of the table.  ``text``: in the names of the queues."""

    sort: str = "trouble"
    falling: bool = True
    text: str = ""

    @property
    def query(self) -> str:
        """The choice as the query of an address; empty for the usual one."""
        if self == Choice():
            return ""
        return "?" + urlencode({"sort": self.sort, "order": "down" if self.falling else "up", "text": self.text})

    def by(self, sort: str) -> Choice:
        """Return the choice after a click on the head of a column: sort by it, or turn its order."""
        return Choice(sort, not self.falling if sort == self.sort else COLUMNS[sort].falling, self.text)


def read_choice(query: Mapping[str, str]) -> Choice:
    """Read a choice from the query of an address; what cannot be understood is as usual."""
    sort = query.get("sort", "")
    if sort not in COLUMNS:
        sort = "trouble"
    falling = {"down": True, "up": False}.get(query.get("order", ""), COLUMNS[sort].falling)
    return Choice(sort, falling, query.get("text", "").strip()[:TEXT_MAX])


class Listing(NamedTuple):
    """The table: its rows, how many more there are, names of empty queues, and the totals of all that were chosen."""

    rows: Sequence[Row]
    more: int
    empty: Sequence[str]
    totals: Totals


def arrange(rows: Iterable[Row], choice: Choice) -> Listing:
    """Make the table of these queues."""
    chosen = sorted((row for row in rows if choice.text.lower() in row.name.lower()), key=lambda row: row.name)
    full = [row for row in chosen if not row.is_empty]
    full.sort(key=COLUMNS[choice.sort].value, reverse=choice.falling)
    empty = [row.name for row in chosen if row.is_empty]
    return Listing(full[:QUEUES_SHOWN], max(0, len(full) - QUEUES_SHOWN), empty[:EMPTY_SHOWN], add(chosen))


def add(rows: Sequence[Row]) -> Totals:
    """Add up the figures of queues."""
    sizes = [row.figures.sizes for row in rows]
    waits = [row.figures.oldest_ready for row in rows if row.figures.oldest_ready is not None]
    return Totals(
        len(rows),
        sum(each.ready for each in sizes),
        sum(each.scheduled for each in sizes),
        sum(each.claimed for each in sizes),
        sum(each.dead for each in sizes),
        max(waits, default=None),
        sum(row.pushed or 0.0 for row in rows),
        sum(row.removed or 0.0 for row in rows),
    )
